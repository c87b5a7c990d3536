"""What the tests that judge attaches by the official client share: that client's fold, and the service alone.

`Official` is the fold of muse-code-sdk, which knows nothing of ours: seeded as a client seeds itself from what a resume
served, asked in the words of `ours`. A `Desk` is the Sessions service over a store that an `Author` writes, and nothing
else: no engine, no queue, no connection. Its Session is loaded, so an attach writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from boundary_kit import SESSION, Author
from muse_code.fold import (
    IgnoredMissingParams,
    IgnoredStaleFrame,
    IgnoredStaleRevision,
    IgnoredUnrecognizedMethod,
    ItemFold,
    SessionFold,
)

from refold import view
from refold.canonical import Json
from refold.engine.clock import Clock
from refold.records import SessionRecord
from refold.service.commands import Ledger
from refold.service.sessions import Served, Sessions, ViewSettings
from refold.session import Hub, Live, SessionLog, Subscription, Suffixes, boundaries
from refold.view import Frame, Outcome, Position, Rung, ViewState
from refold.view.digest import elide_item
from refold.view.families import FAMILIES

AMPLE = ViewSettings(compact_events=10**9, history_budget_bytes=10**9)
_BACK = {
    "session/approvalModeChanged": lambda shown: shown | {"commandId": shown["lastCommandId"]},
    "session/modelChanged": dict,
    "session/nameChanged": lambda shown: {"name": shown},
}
"""From the member of a snapshot to the event that says it, for the families that an Author writes."""


def ours(state: ViewState) -> Json:
    """What our fold says, as far as the official one can say it too."""
    return {
        "items": list(state.items.values()),
        "active": (state.active_turn or {}).get("turnId"),
        "approvals": sorted(state.approvals),
        "inputs": sorted(state.inputs),
        "families": state.families,
        "turns": state.turn_count,
    }


class Official:
    """The official client's fold. Every frame must count: one that it ignores was sent twice, or out of place."""

    def __init__(self) -> None:
        self.fold = SessionFold()
        self._turns_before = 0

    @classmethod
    def seeded(cls, snapshot: Json) -> Official:
        """The fold of a client that begins with a snapshot: its state, told as the events that say it."""
        told, client = snapshot["state"], cls()
        client._turns_before = told["turnCount"]
        client._take("item/updated", *({"item": item} for item in told["items"]))
        client._take("turn/started", *([told["activeTurn"]] if told["activeTurn"] else []))
        client._take("approval/requested", *told["pendingApprovals"])
        client._take("userInput/requested", *told["pendingUserInputs"])
        for method, family in FAMILIES.items():
            shown = told.get(family.member, family.default)
            client._take(method, *([] if shown == family.default else [_BACK[method](shown)]))
        return client

    def _take(self, method: str, *members: Json) -> None:
        for each in members:
            self.apply([{"method": method, "params": {"viewCursor": "of the snapshot", **each}}])

    def apply(self, frames: Iterable[Frame | Json]) -> Official:
        """Folds frames; each must change something."""
        for frame in frames:
            outcome = self.fold.apply(frame)
            assert not isinstance(outcome, IgnoredUnrecognizedMethod | IgnoredMissingParams | IgnoredStaleFrame), frame
            assert not (isinstance(outcome, ItemFold) and isinstance(outcome.outcome, IgnoredStaleRevision)), frame
        return self

    def told(self) -> Json:
        """What the fold says, in the words of `ours`."""
        said = self.fold.session_state
        families = {method: FAMILIES[method].show(said.get(method)) for method in said.families()}
        return {
            "items": self.fold.items.list(),
            "active": self.fold.active_turn_id,
            "approvals": sorted(each.approval_id for each in self.fold.pending_approvals()),
            "inputs": sorted(each["userInputId"] for each in self.fold.pending_user_inputs()),
            "families": {method: value for method, value in families.items() if value != FAMILIES[method].default},
            "turns": self._turns_before + sum(turn.state == "settled" for turn in self.fold.turns()),
        }


def slim(told: Json) -> Json:
    """What is said, without the payloads that an elided snapshot leaves out."""
    return told | {"items": [elide_item(item) for item in told["items"]]}


@dataclass(frozen=True)
class Attach:
    """A client that came to a Session: what it was served, as which rung, and how many frames the log had then."""

    rung: Rung
    served: Served
    frames: int

    def begin(self) -> tuple[ViewState, Official] | None:
        """Both folds as the answer seeds them; None where it seeds nothing, and the client pages from the beginning."""
        snapshot = self.served.history["snapshot"]
        return None if snapshot is None else (view.seed(snapshot), Official.seeded(snapshot))


class Desk:
    """The Sessions service over the store of an author."""

    def __init__(self, author: Author, log: SessionLog | None = None) -> None:
        self.store = author.store
        self._log = log or author.log
        self._hub = Hub()
        self._hub.load(1)
        self.store.on_commit(self._hub.ring)
        self._ample = self._with(AMPLE)

    def _with(self, settings: ViewSettings) -> Sessions:
        """The service under other settings: an attach needs none of its colleagues."""
        clock, nobody = Clock(), None
        rest: Any = {"supervisor": nobody, "blueprints": nobody, "tasks": nobody, "compaction": nobody}
        return Sessions(
            self.store,
            clock,
            ledger=Ledger(self.store),
            hub=self._hub,
            live=Live(self._hub),
            log=self._log,
            suffixes=Suffixes(self._log),
            settings=settings,
            **rest,
        )

    async def resume(
        self, cursor: str | None = None, *, preference: str = "auto", exclude: bool = False, budget: int | None = None
    ) -> Served:
        """What a resume answers."""
        service = self._ample if budget is None else self._with(ViewSettings(history_budget_bytes=budget))
        return await service.resume(
            "nobody's command",
            {},
            session_id=SESSION,
            cursor=cursor,
            preference=preference,
            exclude_items=exclude,
        )

    async def attaches(self) -> list[Attach]:
        """A client for every rung that there is at this moment, made sure of by what was served."""
        session, state = await self.store.read(lambda reader: self._state(reader))
        weights, anchored = view.weigh(state), bool(await self._boundary())
        served = [(Rung.INLINE, await self.resume(preference="inline"))]
        served.append((Rung.SNAPSHOT, await self.resume(preference="snapshot")))
        served.append((Rung.BUDGET, await self.resume(budget=0)))
        served.append((Rung.EXCLUDED, await self.resume(exclude=True)))
        served.append((Rung.SUFFIX, await self.resume(state.cursor)))
        if anchored:
            served.append((Rung.ANCHORED, await self.resume(preference="anchored")))
        if weights[Rung.ELIDED] < weights[Rung.SNAPSHOT]:
            elided = await self.resume(preference="snapshot", budget=weights[Rung.ELIDED])
            served.append((Rung.ELIDED, elided))
        for rung, each in served:
            expected = view.history(rung)
            assert each.history["mode"] == expected["mode"]
            assert each.history.get("noneReason") == expected.get("noneReason")
        assert (await self.store.read(lambda reader: reader.get(SessionRecord, 1))) == session, "an attach wrote"
        return [Attach(rung, each, len(await self.page())) for rung, each in served]

    def _state(self, reader: Any) -> tuple[SessionRecord, ViewState]:
        session = reader.get(SessionRecord, 1)
        return session, self._log.fold(reader, session)

    async def _boundary(self) -> object:
        return await self.store.read(lambda reader: boundaries.latest(reader, reader.get(SessionRecord, 1)))

    async def page(self, cursor: str | None = None, limit: int = 1_000, *, backward: bool = False) -> list[Frame]:
        """All frames on one side of a cursor, read in pages of `limit`."""
        found: list[Any] = []
        while True:
            page = await self._ample.page(SESSION, cursor, limit, backward=backward)
            assert cursor not in [frame["params"]["viewCursor"] for frame in page.frames], "or this would never end"
            found = page.frames + found if backward else found + page.frames
            if (cursor := page.next_cursor) is None:
                return found

    async def subscription(self, after: Position) -> Subscription:
        """A subscription after a position."""
        session = await self.store.read(lambda reader: reader.get(SessionRecord, 1))
        return self._ample.subscription(session, after)

    async def pushed(self, after: Position) -> list[Frame]:
        """What a subscription after a position hands out up to the head."""
        subscription, found = await self.subscription(after), []
        async for batch in subscription.frames():
            assert batch.gap is None
            if not batch.frames:
                break
            found += [each.frame for each in batch.frames]
        subscription.close()
        return found


def folded_on(state: ViewState, frames: Iterable[Frame]) -> ViewState:
    """The state with frames that must all apply."""
    for frame in frames:
        assert view.apply(state, frame) is Outcome.APPLIED, frame
    return state
