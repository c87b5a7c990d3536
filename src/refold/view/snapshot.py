"""The snapshot form of a folded state: made from it, elided, weighed, digested, and turned back into it.

Laws. `seed(view_snapshot(s))` equals `s` in everything but `last_turn`, which snapshots do not carry. So a snapshot
plus the frames after it is the fold from genesis: it is a transport form, never a second source of truth. Every
snapshot has every member that the protocol requires. An elided one carries the digest of the full state, so that a
client that has read the payloads back can check that it has all.

Not here: which form is served (`ladder`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from refold.canonical import canonical
from refold.errors import InvalidRequest
from refold.view.digest import Tally, Totals, elide_item, items_sum, join
from refold.view.families import FAMILIES, Members, put
from refold.view.fold import ViewState
from refold.view.ladder import Rung, history

SCHEMA_VERSION: Final = 1


def snapshot_state(state: ViewState, queued_turns: Sequence[Members] = ()) -> Members:
    """Returns the protocol's `SnapshotState` of `state`, with all its members.

    Args:
        state: the fold.
        queued_turns: the turns that wait, in launch order. They are no events of the view until they launch, so the
            fold does not know them.
    """
    return {"items": list(state.items.values())} | _beside_items(state, queued_turns)


def _beside_items(state: ViewState, queued_turns: Sequence[Members]) -> Members:
    shown: Members = {
        "activeTurn": state.active_turn,
        "queuedTurns": list(queued_turns),
        "pendingApprovals": list(state.approvals.values()),
        "pendingUserInputs": list(state.inputs.values()),
        "turnCount": state.turn_count,
    }
    for method, family in FAMILIES.items():
        value = state.families.get(method, family.default)
        if value is not None or not family.optional:
            shown[family.member] = value
    return shown


def view_snapshot(
    state: ViewState, queued_turns: Sequence[Members] = (), anchor: Mapping[str, str] | None = None
) -> Members:
    """Returns the protocol's `ViewSnapshot` of `state`, plus its `foldDigest`.

    Args:
        state: the fold, after at least one frame.
        queued_turns: as in `snapshot_state`.
        anchor: the boundary it stands at, for an anchored snapshot.
    """
    snapshot = _snapshot(state, snapshot_state(state, queued_turns))
    return snapshot if anchor is None else snapshot | {"anchor": dict(anchor)}


def _snapshot(state: ViewState, shown: Members) -> Members:
    return {
        "schemaVersion": SCHEMA_VERSION,
        "viewCursor": state.cursor,
        "state": shown,
        "foldDigest": fold_digest(state),
    }


def elide(snapshot: Members) -> Members:
    """Returns `snapshot` without the payload of every item whose payload can be read by its `outputRef`."""
    state = snapshot["state"]
    return snapshot | {"state": state | {"items": [elide_item(item) for item in state["items"]]}}


def fold_digest(state: ViewState) -> str:
    """Returns the digest of `state`: of its items, active turn, open requests, families and number of turns.

    The domain is what a snapshot carries, so that a client which was seeded can compute it as well.
    """
    rest = {
        "activeTurn": state.active_turn and state.active_turn["turnId"],
        "pendingApprovals": sorted(state.approvals),
        "pendingUserInputs": sorted(state.inputs),
        "families": state.families,
        "turnCount": state.turn_count,
    }
    return join(state.tally.totals(state.items).sum, rest)


def weigh(state: ViewState, queued_turns: Sequence[Members] = ()) -> dict[Rung, int]:
    """Returns how many bytes of canonical JSON the history of each rung has that a fold alone can serve.

    Exact, and without looking at an item that has not changed since the last call.
    """
    totals = state.tally.totals(state.items)
    shell = _snapshot(state, {"items": []} | _beside_items(state, queued_turns))
    around = {
        Rung.INLINE: (history(Rung.INLINE, []), totals.size),
        Rung.SNAPSHOT: (history(Rung.SNAPSHOT, shell), totals.size),
        Rung.ELIDED: (history(Rung.ELIDED, shell), totals.elided),
    }
    return {rung: len(canonical(empty)) - len("[]") + items for rung, (empty, items) in around.items()}


def seed(snapshot: Members) -> ViewState:
    """Returns the state that `snapshot` shows; frames after its `viewCursor` apply to it.

    Raises:
        InvalidRequest: the snapshot has a schema version that this fold does not know. Page the view instead.
    """
    if snapshot["schemaVersion"] != SCHEMA_VERSION:
        raise InvalidRequest(
            f"snapshot schema version {snapshot['schemaVersion']!r} is not {SCHEMA_VERSION}: page the view instead"
        )
    shown, cursor = snapshot["state"], snapshot["viewCursor"]
    state = ViewState(
        items={item["itemId"]: item for item in shown["items"]},
        active_turn=shown["activeTurn"],
        turn_count=shown["turnCount"],
        approvals={pointer["approvalId"]: pointer for pointer in shown["pendingApprovals"]},
        inputs={pointer["userInputId"]: pointer for pointer in shown["pendingUserInputs"]},
        cursor=cursor,
        siblings=(cursor,),
    )
    for item_id in state.items:
        state.tally.touch(item_id)
    for method, family in FAMILIES.items():
        put(state.families, method, shown.get(family.member, family.default))
    return state


def seed_some(snapshot: Members, *, count: int, size: int, elided: int) -> ViewState:
    """Returns as much of a state as changes: a fold that goes on as that of the whole would.

    Its digest and its weight are those of the whole. Of the items it holds those in `snapshot` and what comes.

    Args:
        snapshot: as for `seed`, with the digest of the whole, and of its items at least those that later frames change.
        count: how many items the whole has.
        size: the bytes of all of them as a JSON array.
        elided: the same without payloads.

    Raises:
        InvalidRequest: as `seed`.
    """
    state = seed(snapshot)
    state.tally = Tally.of_some(state.items.values(), Totals(items_sum(snapshot["foldDigest"]), size, elided), count)
    return state
