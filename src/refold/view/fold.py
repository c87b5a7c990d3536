"""The fold: a Session's client state as a function of its view events (design law 6), for server and client alike.

Laws.
* *Total*: no JSON value makes `apply` raise. What it did with a frame is its outcome.
* *Idempotent*: a frame delivered again, alone or in any window, in any order, changes nothing.
* *Gapless*: a frame applies only at its place, so a state is always the fold of a whole prefix of the view.

Every durable frame of refold links to the one before it (`prevCursor`). A linked frame is in its place if that is the
state's cursor; if it is not, its record's sequence tells whether it is behind (`STALE`) or ahead (`GAP`: events are
missing; whoever feeds the fold pages from the state's cursor). Cursors themselves are opaque, so nothing orders them.

A frame without `prevCursor` comes from a host that does not link. Items are then judged by their revision, and an exact
repeat of the last cursor is stale; apart from that, such a host must deliver in order and once.

What an open item says meanwhile (`item/delta`) is kept in `texts` until the item ends. It is for a display: no part of
the digest, of a snapshot, or of what two states are compared by. Whoever came late has nothing there and loses nothing.

Not here: the snapshot form of a state (`snapshot`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from refold.canonical import Json
from refold.view.digest import Tally
from refold.view.families import FAMILIES, TEXT, Family, Members, Needs, has, pick, put


class Outcome(StrEnum):
    """What `apply` did with a frame. Only `APPLIED` changes what the state says."""

    APPLIED = "applied"
    STALE = "stale"
    """Delivered before, or an item revision that is not higher than the one held."""
    GAP = "gap"
    """Events after the state's cursor are missing, or are said to be (`view/gap`). Nothing is applied: page from it."""
    STREAMED = "streamed"
    """More text of an open item, added to `texts`."""
    EPHEMERAL = "ephemeral"
    """Not durable, so not state: it has no `sourceRange`."""
    UNKNOWN = "unknown"
    """A durable event of a method this fold does not know. The cursor moves on, or all later ones would be gaps."""
    MALFORMED = "malformed"
    """Not a frame, or a known method without the members it must have."""


@dataclass(slots=True)
class ViewState:
    """The state after some prefix of the view. Changed by `apply` only; what it holds is shared with frames.

    `items` are ordered by first opening. `families` has a member per state event method, without those that are at
    their default (a goal that was cleared is the same as none, also after a snapshot). `approvals` and `inputs` point
    at open requests. `last_turn` is not part of a snapshot.
    """

    items: dict[str, Members] = field(default_factory=dict)
    active_turn: Members | None = None
    turn_count: int = 0
    last_turn: Members | None = None
    families: dict[str, Json] = field(default_factory=dict)
    approvals: dict[str, Members] = field(default_factory=dict)
    inputs: dict[str, Members] = field(default_factory=dict)
    cursor: str | None = None
    tally: Tally = field(default_factory=Tally)
    sequence: int = 0
    """The sequence of the record of `cursor`; 0 where it is unknown, before any frame and after a snapshot."""
    texts: dict[str, dict[str, str]] = field(default_factory=dict)
    """What open items said so far, by item and field; from the beginning, or nothing."""
    siblings: tuple[str, ...] = ()
    """The cursors applied at `sequence`: a record has up to three frames, and the sequence does not tell them apart."""

    def copy(self) -> ViewState:
        """Returns a state that goes its own way from here. What it holds is shared, since nobody changes it."""
        return replace(
            self,
            items=dict(self.items),
            families=dict(self.families),
            approvals=dict(self.approvals),
            inputs=dict(self.inputs),
            texts={item: dict(fields) for item, fields in self.texts.items()},
            tally=self.tally.copy(),
        )


def apply(state: ViewState, frame: Json) -> Outcome:
    """Folds one frame into `state` and returns what became of it. Never raises, whatever `frame` is."""
    method, params = _open(frame)
    if method == "view/gap":
        return Outcome.GAP
    if params is None:
        return Outcome.MALFORMED
    if "sourceRange" not in params:
        return _streamed(state, params) if method == "item/delta" else Outcome.EPHEMERAL
    cursor, sequence = params.get("viewCursor"), _sequence(params)
    if type(cursor) is not str or sequence is None:
        return Outcome.MALFORMED
    if (misplaced := _misplaced(state, params, cursor, sequence)) is not None:
        return misplaced
    advance(state, cursor, sequence)
    rule = RULES.get(method)
    if rule is None:
        return Outcome.UNKNOWN
    return rule.fold(state, params) if has(params, rule.needs) else Outcome.MALFORMED


def advance(state: ViewState, cursor: str, sequence: int) -> None:
    """Moves `state` on to a frame in its place, the one of this cursor, of the record of this sequence."""
    state.siblings = (*state.siblings, cursor) if sequence == state.sequence else (cursor,)
    state.cursor, state.sequence = cursor, sequence


def apply_all(state: ViewState, frames: Iterable[Json]) -> ViewState:
    """Folds `frames` into `state` and returns it. For frames that are known to follow it, such as a log's own."""
    for frame in frames:
        apply(state, frame)
    return state


def _streamed(state: ViewState, params: Members) -> Outcome:
    """Adds a piece of text if it is the next one of an item that is open; its `offset` says where it belongs.

    A host that does not say has to deliver in order and once.
    """
    item_id, text, name = params.get("itemId"), params.get("delta"), params.get("field", "text")
    if type(item_id) is not str or type(text) is not str or type(name) is not str:
        return Outcome.MALFORMED
    if state.items.get(item_id, {}).get("status") != "inProgress":
        return Outcome.EPHEMERAL
    fields = state.texts.get(item_id, {})
    before = fields.get(name, "")
    if params.get("offset", len(before)) != len(before):
        return Outcome.EPHEMERAL
    state.texts[item_id] = fields | {name: before + text}
    return Outcome.STREAMED


# -- the place of a frame ---------------------------------------------------------------------------------------------


def _open(frame: Json) -> tuple[str, Members | None]:
    if not isinstance(frame, dict) or type(frame.get("method")) is not str:
        return "", None
    params = frame.get("params")
    return frame["method"], params if isinstance(params, dict) else None


def _sequence(params: Members) -> int | None:
    source = params["sourceRange"]
    last = source.get("last") if isinstance(source, dict) else None
    sequence = last.get("sequence") if isinstance(last, dict) else None
    return sequence if type(sequence) is int else None


def _misplaced(state: ViewState, params: Members, cursor: str, sequence: int) -> Outcome | None:
    """Tells why the frame is not the next one, None if it is."""
    if "prevCursor" not in params:
        return Outcome.STALE if cursor == state.cursor else None
    if params["prevCursor"] == state.cursor:
        return None
    return Outcome.STALE if sequence < state.sequence or cursor in state.siblings else Outcome.GAP


# -- what a frame in its place does -----------------------------------------------------------------------------------


class Rule(NamedTuple):
    """What a method's params must have, and how they change the state."""

    needs: Needs
    fold: Callable[[ViewState, Members], Outcome]


def _item(state: ViewState, params: Members) -> Outcome:
    """Any kind of item, known or not: the higher revision replaces the whole item."""
    item = params["item"]
    item_id, revision = item.get("itemId"), item.get("revision")
    if type(item_id) is not str or type(revision) is not int:
        return Outcome.MALFORMED
    held = state.items.get(item_id)
    if held is not None and revision <= held["revision"]:
        return Outcome.STALE
    state.items[item_id] = item
    state.tally.touch(item_id)
    if item.get("status") != "inProgress":
        state.texts.pop(item_id, None)
    return Outcome.APPLIED


def _turn_started(state: ViewState, params: Members) -> Outcome:
    state.active_turn = pick("turnId", "commandId", "displayText")(params)
    return Outcome.APPLIED


def _turn_completed(state: ViewState, params: Members) -> Outcome:
    state.turn_count += 1
    state.last_turn = pick("turnId", "terminal", "error", "reason")(params)
    return _turn_left(state, params)


def _turn_retracted(state: ViewState, params: Members) -> Outcome:
    """A declined retract leaves the turn as it is; accepted, it is gone without a terminal."""
    return Outcome.APPLIED if params.get("outcome") == "declined" else _turn_left(state, params)


def _turn_left(state: ViewState, params: Members) -> Outcome:
    if state.active_turn is not None and state.active_turn["turnId"] == params["turnId"]:
        state.active_turn = None
    return Outcome.APPLIED


def _noted(state: ViewState, params: Members) -> Outcome:
    """An event that tells a display something and leaves no state."""
    return Outcome.APPLIED


def _family(method: str, family: Family) -> Rule:
    def fold(state: ViewState, params: Members) -> Outcome:
        put(state.families, method, family.show(params))
        return Outcome.APPLIED

    return Rule(family.needs, fold)


def _approval_requested(state: ViewState, params: Members) -> Outcome:
    state.approvals[params["approvalId"]] = pick("approvalId", "itemId", "viewCursor")(params)
    return Outcome.APPLIED


def _approval_resolved(state: ViewState, params: Members) -> Outcome:
    state.approvals.pop(params["approvalId"], None)
    return Outcome.APPLIED


def _input_requested(state: ViewState, params: Members) -> Outcome:
    state.inputs[params["userInputId"]] = pick("userInputId", "itemId", "viewCursor")(params)
    return Outcome.APPLIED


def _input_settled(state: ViewState, params: Members) -> Outcome:
    state.inputs.pop(params["userInputId"], None)
    return Outcome.APPLIED


_ITEM: Final = Rule({"item": (dict,)}, _item)
_NOTED: Final = Rule({}, _noted)
_TURN: Final[Needs] = {"turnId": TEXT}
_APPROVAL: Final[Needs] = {"approvalId": TEXT}
_INPUT: Final[Needs] = {"userInputId": TEXT}
_PLACE: Final[Needs] = {"viewCursor": TEXT}

RULES: Final[Mapping[str, Rule]] = {
    "item/started": _ITEM,
    "item/updated": _ITEM,
    "item/completed": _ITEM,
    "turn/started": Rule(_TURN | {"commandId": TEXT}, _turn_started),
    "turn/completed": Rule(_TURN | {"terminal": TEXT}, _turn_completed),
    "turn/retracted": Rule(_TURN, _turn_retracted),
    "turn/unqueued": Rule(_TURN, _turn_left),
    "turn/retryScheduled": _NOTED,
    "turn/modelRetryScheduled": _NOTED,
    "turn/foregroundCompleted": _NOTED,
    "approval/requested": Rule(_APPROVAL | _PLACE, _approval_requested),
    "approval/reviewing": _NOTED,
    "approval/updated": _NOTED,
    "approval/resolved": Rule(_APPROVAL, _approval_resolved),
    "userInput/requested": Rule(_INPUT | _PLACE, _input_requested),
    "userInput/settled": Rule(_INPUT, _input_settled),
    "session/modelRouteUnserved": _NOTED,
    "monitor/inboxItemAdmitted": _NOTED,
    "monitor/inboxItemDrained": _NOTED,
    "monitor/inboxItemVoided": _NOTED,
    **{method: _family(method, family) for method, family in FAMILIES.items()},
}
"""What every durable event does. The other notifications are broadcasts and receipts without a place in the view."""
