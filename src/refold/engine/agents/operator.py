"""Agents of the kind `operator`: work that lies open for people and programs who attach from outside.

An attempt of an operator step lies open as an `Offer` for as long as it is performed. Operators take offers, do the
work wherever they are, and submit what came of it; the first submission is the attempt's answer.

Laws:
- An offer has one holder at a time, and one answer.
- Taking an offer or giving it back leaves no trace on record: the attempt is the same, whoever does it.
- An answer that cannot be taken is refused before it counts, and the step goes on waiting.

Not here: who is attached and for how long it holds what it took (`service.operators`), what is on record about an
attempt (`service.submissions`), how an offer looks (`server.operators`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from refold.canonical import decode_strict, encode
from refold.engine.agents.base import Assignment, Report
from refold.engine.agents.output import folded, passed
from refold.errors import InvalidJson, Unprocessable
from refold.flowir import Blocked, Failed, Outcome, Pass, Skip
from refold.flowir.verdicts import violation

Json = Any
Key = tuple[str, int]
"""Step id and attempt: what an offer is known by."""
Said = Literal["pass", "skip", "blocked", "fail"]

OPERATOR: Final = "operator"
"""The kind of agents that this is about."""
FAILED: Final = "failed by its operator"
"""What a step says that was failed without a reason."""


@dataclass(eq=False, slots=True)
class Offer:
    """One attempt that waits for an operator, and who holds it."""

    work: Assignment
    answer: asyncio.Future[Report]
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the attempt is over: answered, timed out, or its lane or Run stopped."""
    holder: str | None = None
    submitter: str | None = None

    @property
    def key(self) -> Key:
        """What the offer is known by."""
        return self.work.step_id, self.work.attempt

    def settle(self, report: Report, submitter: str | None) -> None:
        """Gives the attempt its answer. Only of an offer that `Offers.find` has just returned."""
        self.submitter = submitter
        self.answer.set_result(report)


class Offers:
    """All offers of this process, oldest first. It is the agent of every operator step."""

    def __init__(self) -> None:
        self._offers: dict[Key, Offer] = {}
        self.news = asyncio.Event()
        """Set, and replaced, whenever there may be something to take. Read it first, then `take`."""

    async def perform(self, work: Assignment) -> Report:
        """Lays `work` open until somebody has done it."""
        offer = Offer(work, asyncio.get_running_loop().create_future())
        self._offers[offer.key] = offer
        self.ring()
        try:
            return await offer.answer
        finally:
            del self._offers[offer.key]
            offer.ended.set()

    def find(self, step_id: str, attempt: int) -> Offer | None:
        """The offer of an attempt, if nobody has answered it yet."""
        offer = self._offers.get((step_id, attempt))
        return None if offer is None or offer.answer.done() else offer

    def take(self, holder: str) -> Offer | None:
        """Gives `holder` the oldest offer that nobody holds."""
        offer = next(
            (offer for offer in self._offers.values() if offer.holder is None and not offer.answer.done()), None
        )
        if offer is not None:
            offer.holder = holder
        return offer

    def held(self, holder: str) -> list[Offer]:
        """What an operator holds."""
        return [offer for offer in self._offers.values() if offer.holder == holder]

    def give_back(self, holder: str, keep: Collection[str] = ()) -> None:
        """Opens to everybody what an operator holds, but the step ids that it keeps."""
        back = [offer for offer in self.held(holder) if offer.work.step_id not in keep]
        for offer in back:
            offer.holder = None
        if back:
            self.ring()

    def ring(self) -> None:
        """Wakes everybody who waits for something to take."""
        news, self.news = self.news, asyncio.Event()
        news.set()

    def all(self) -> list[Offer]:
        """What lies open, and what is just being answered."""
        return list(self._offers.values())


def report_of(work: Assignment, said: Said, value: Json, parts: Mapping[str, Json] | None, limit: int) -> Report:
    """What a submission makes of an attempt.

    A string that holds a JSON object or array becomes one, unless the agent's `submit_format` is `text`; under `json`
    every string must be JSON. With `parts` the value becomes `{"out": value, "parts": parts}`.

    Raises Unprocessable: the answer breaks the agent's verdict contract or its `submit_format`, or has more than
    `limit` bytes. Source of the rule: mse 2.4 and 2.6.
    """
    if said == "fail":
        return Report(Failed(_reason(value)))
    read = _FORMATS[work.agent.spec.get("submit_format") or "fold"]
    answer = read(value) if parts is None else {"out": read(value), "parts": {k: read(v) for k, v in parts.items()}}
    checked = passed(answer, limit)
    if isinstance(checked.outcome, Failed):
        raise Unprocessable(checked.outcome.text, kind="answer_unusable")
    contract = work.agent.verdict
    wrong = violation(contract, answer) if said == "pass" else None
    if contract is not None and wrong is not None:
        raise Unprocessable(wrong, kind="contract_violated", channel=contract.channel, values=list(contract.values))
    return Report(_OUTCOMES[said](checked.outcome.value), checked.mended)


def _reason(value: Json) -> str:
    return value if isinstance(value, str) else FAILED if value is None else encode(value)


def _as_it_is(value: Json) -> Json:
    return value


def _json(value: Json) -> Json:
    if not isinstance(value, str):
        return value
    try:
        return decode_strict(value)
    except InvalidJson as error:
        raise Unprocessable(f"this agent's answers are JSON: {error.message}", kind="answer_unusable") from None


_FORMATS: Final[Mapping[str, Callable[[Json], Json]]] = {"fold": folded, "text": _as_it_is, "json": _json}
_OUTCOMES: Final[Mapping[str, Callable[[Json], Outcome]]] = {"pass": Pass, "skip": Skip, "blocked": Blocked}
