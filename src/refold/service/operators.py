"""Operators: who may do the work of operator steps, and for how long each holds what it took.

An operator attaches once and gets an id and a token of its own; both outlive its connections and our restarts, until
somebody ends them. It takes offers one after the other, by long poll or over an open socket.

*Held.* What an operator took is offered to nobody else while it is *present*, that is while a poll of it waits or its
socket is open, and for `lease_secs` after that. Then it is offered again, as the same attempt; what the operator
submits late counts nevertheless, if it comes first.

*Lost.* An answer to a poll may get lost on the way. So a poll names the steps that its operator is at work on
(`holding`); whatever else it holds never arrived, and is offered again at once.

Not here: what a submission makes of a step (`service.submissions`), which calls a token opens (`server.guard`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections import Counter
from collections.abc import Collection, Generator
from typing import Any, Final

import msgspec

from refold.canonical import decode
from refold.engine.activation import snapshot
from refold.engine.agents import OPERATOR
from refold.engine.agents.operator import Offer, Offers
from refold.engine.clock import Clock
from refold.errors import InvalidRequest, NotFound
from refold.flowir.dryrun import RUNS
from refold.records import MetaRow, RunRecord, parse_id
from refold.service.reruns import Preview
from refold.store import Reader, Store, with_launch

Json = Any

WAIT_SECS: Final = 60.0
"""The longest that a poll waits."""
LEASE_SECS: Final = 300.0
"""How long an operator that does not say otherwise may be silent about what it holds."""
MAX_LEASE_SECS: Final = 24 * 3600.0
_KEY: Final = "operator/"
"""What the keys of operators begin with, among the facts that a store keeps about itself."""


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One attached operator, as it is stored. Of its token there is only the digest."""

    sid: str
    token_digest: str
    desc: str
    lease_secs: float
    created_at: int


class Attached(msgspec.Struct, frozen=True):
    """An operator as a list shows it: whether it is present, and the attempts that it holds."""

    operator: Operator
    present: bool
    holds: list[Offer]


class Operators:
    """Attaches operators, hands offers out, and takes back what nobody works on any more."""

    def __init__(self, store: Store, clock: Clock, offers: Offers) -> None:
        self._store = store
        self._clock = clock
        self._offers = offers
        self._operators: dict[str, Operator] = {}
        self._by_digest: dict[str, str] = {}
        self._present: Counter[str] = Counter()
        self._leases: dict[str, asyncio.TimerHandle] = {}
        self._closing = False

    # -- who there is -------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Reads the operators of the store. Part of the boot, before anything is accepted."""
        for operator in await self._store.read(_stored):
            self._remember(operator)

    async def attach(self, desc: str = "", lease_secs: float = LEASE_SECS) -> tuple[Operator, str]:
        """A new operator, durable, and its token, which nobody can read again. Raises InvalidRequest."""
        if not 0 < lease_secs <= MAX_LEASE_SECS:
            raise InvalidRequest(f"lease_secs is more than 0 and at most {MAX_LEASE_SECS:.0f}", member="lease_secs")
        token = secrets.token_urlsafe(32)
        operator = Operator(
            sid=self._clock.mint("O-"),
            token_digest=_digest(token),
            desc=desc,
            lease_secs=lease_secs,
            created_at=self._clock.now_ms(),
        )
        row = MetaRow(key=_KEY + operator.sid, value=msgspec.json.encode(operator))
        await self._store.write(lambda tx: tx.insert(row))
        self._remember(operator)
        return operator, token

    async def detach(self, sid: str) -> None:
        """Ends an operator: its token opens nothing any more, what it holds is offered again. Raises NotFound."""
        operator = self.get(sid)
        await self._store.write(lambda tx: tx.delete(MetaRow, key=_KEY + sid))
        self._operators.pop(sid, None)
        self._by_digest.pop(operator.token_digest, None)
        self._end_lease(sid)
        self._offers.give_back(sid)
        self._offers.ring()  # its polls learn that they wait for nothing

    def sid_of(self, token: str) -> str | None:
        """Whose token this is; None if it is nobody's."""
        return self._by_digest.get(_digest(token))

    def get(self, sid: str) -> Operator:
        """Raises InvalidId, NotFound."""
        operator = self._operators.get(parse_id(sid, "O"))
        if operator is None:
            raise NotFound(f"there is no operator {sid}", kind="operator_not_found", sid=sid)
        return operator

    def knows(self, sid: str) -> bool:
        """Whether the operator is still attached."""
        return sid in self._operators

    def held(self, sid: str) -> list[Offer]:
        """What the operator holds."""
        return self._offers.held(sid)

    def all(self) -> list[Attached]:
        """Every operator, the oldest first."""
        return [
            Attached(operator, self._present[sid] > 0, self._offers.held(sid))
            for sid, operator in self._operators.items()
        ]

    def _remember(self, operator: Operator) -> None:
        self._operators[operator.sid] = operator
        self._by_digest[operator.token_digest] = operator.sid

    # -- offers -------------------------------------------------------------------------------------------------------

    async def next(self, sid: str, wait_secs: float = 0, holding: Collection[str] = ()) -> Offer | None:
        """The next offer, held by `sid` from now on; None if there is none within `wait_secs`, or at our end.

        `holding` are the step ids that the operator is at work on. Raises InvalidId, NotFound, InvalidRequest.
        """
        if not 0 <= wait_secs <= WAIT_SECS:
            raise InvalidRequest(f"wait_secs is 0 to {WAIT_SECS:.0f}", member="wait_secs")
        with self.present(sid, holding), contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_secs):
                return await self.take(sid)
        return None

    async def take(self, sid: str) -> Offer | None:
        """As `next`, for as long as it takes. Nothing is awaited once an offer is taken: cancelling loses none."""
        while not self._closing:
            self.get(sid)
            news = self._offers.news
            offer = self._offers.take(sid)
            if offer is not None:
                return offer
            await news.wait()
        return None

    async def until_ended(self, sid: str) -> None:
        """Waits until the operator is ended, or we end."""
        while self.knows(sid) and not self._closing:
            await self._offers.news.wait()

    @contextlib.contextmanager
    def present(self, sid: str, holding: Collection[str] = ()) -> Generator[None]:
        """Marks `sid` as present inside the block. Its lease runs from the end of the last such block.

        It keeps the steps in `holding`; what else it holds is offered again. Raises InvalidId, NotFound.
        """
        self.get(sid)
        self._end_lease(sid)
        self._offers.give_back(sid, keep=holding)
        self._present[sid] += 1
        try:
            yield
        finally:
            self._present[sid] -= 1
            if not self._present[sid]:
                del self._present[sid]
                self._begin_lease(sid)

    def counts(self) -> dict[str, int]:
        """How many operators there are, how many of them are present, and how many offers lie open."""
        present = sum(count > 0 for count in self._present.values())
        return {"attached": len(self._operators), "present": present, "offers": len(self._offers.all())}

    def hang_up(self) -> None:
        """Sends all polls home. Part of our end."""
        self._closing = True
        self._offers.ring()

    def _begin_lease(self, sid: str) -> None:
        if self._offers.held(sid):  # never of one that was ended
            lease_secs, loop = self._operators[sid].lease_secs, asyncio.get_running_loop()
            self._leases[sid] = loop.call_later(lease_secs, self._offers.give_back, sid)

    def _end_lease(self, sid: str) -> None:
        if (lease := self._leases.pop(sid, None)) is not None:
            lease.cancel()


def may_need_operator(reader: Reader, run: RunRecord) -> bool:
    """Whether an agent of the Run may be an operator, by a look at its snapshot: most need no dry replay to tell."""
    return f'"{OPERATOR}"' in (with_launch(reader, run).input_json or "")


def needs_operator(preview: Preview) -> bool:
    """Whether a resume would come to a step at once that only an operator can do."""
    agents = snapshot(preview.run)["blueprint"]["value"]["agents"]
    kinds = {agent["name"]: agent["kind"] for agent in agents}
    return any(step.plan == RUNS and kinds.get(step.step_ref) == OPERATOR for step in preview.plan.steps)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _stored(reader: Reader) -> list[Operator]:
    rows = [row for row in reader.find(MetaRow) if row.key.startswith(_KEY)]
    return [msgspec.convert(decode(row.value), Operator) for row in rows]
