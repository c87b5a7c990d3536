"""Strands and joins: what a fan-out makes of its lanes, and which lanes start when.

| join | decided by | value |
|---|---|---|
| `all` | nothing: every lane settles | the lanes' ctxs; an error of the *lowest* refusing lane |
| `any` | the first lane to succeed | its ctx; all refused: the error of the lowest lane |
| `race` | the first lane to settle | its ctx, or its error |
| `all_settled` | nothing: every lane settles | `{status, value \\| reason}` per lane; never an error |

"First error aborts" is what `all` does elsewhere; which error is first depends on timing, and a replay has another
timing. For the same reason a winner of `any` or `race` is a decision that is logged, and a replay starts that lane
only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from refold.errors import FlowError
from refold.flowir.messages import Done, Failed, Result
from refold.flowir.nodes import Fiber, Fork, Meter, Steps, walk_lane
from refold.records import Lane

Json = Any


class Join(NamedTuple):
    """A kind of join. `wins` tells whether an outcome decides it; `collect` makes the value when all lanes settled."""

    wins: Callable[[Result], bool] | None
    collect: Callable[[list[Result]], Json]


class Strand(Fiber):
    """A fiber with its place: its lane, what it waits for, and the fan-out it is a lane of (None for the root)."""

    __slots__ = ("forks", "gathering", "home", "lane", "over", "steps", "ticket")

    def __init__(
        self,
        begin: Callable[[Fiber], Steps],
        ctx: Json,
        meter: Meter,
        lane: Lane = (),
        home: Gathering | None = None,
    ) -> None:
        super().__init__(ctx, meter, None if home is None else home.parent)
        self.lane = lane
        self.home = home
        self.steps = begin(self)
        self.forks = 0
        """How many fan-outs it has opened: the `fork` of the next one's lanes."""
        self.ticket: int | None = None
        self.gathering: Gathering | None = None
        """The fan-out it waits for."""
        self.over = False

    @property
    def index(self) -> int:
        """Which lane of its fan-out it is."""
        return self.lane[-1][1]


class Gathering:
    """The book-keeping of one open fan-out: lanes not yet started, lanes running, outcomes so far."""

    __slots__ = ("fork", "join", "number", "outcomes", "parent", "running", "waiting")

    def __init__(self, fork: Fork, parent: Strand, number: int) -> None:
        self.fork = fork
        self.join = JOINS[fork.node.join]
        self.parent = parent
        self.number = number
        self.waiting = range(len(fork.items))
        self.running: dict[int, Strand] = {}
        self.outcomes: dict[int, Result] = {}

    def start(self) -> list[Strand]:
        """Makes the strands of the lanes to start now, in index order: as many as `concurrency` leaves room for."""
        limit = self.fork.node.concurrency
        room = len(self.waiting) if limit is None else limit - len(self.running)
        due, self.waiting = self.waiting[:room], self.waiting[room:]
        started = {index: self._strand(index) for index in due}
        self.running |= started
        return list(started.values())

    def _strand(self, index: int) -> Strand:
        parent = self.parent
        begin = partial(walk_lane, self.fork, self.fork.items[index])
        return Strand(begin, parent.ctx, parent.meter, (*parent.lane, (self.number, index)), self)

    def settle(self, index: int, outcome: Result) -> bool:
        """Notes how a lane ended; tells whether that decides the join."""
        del self.running[index]
        self.outcomes[index] = outcome
        return self.join.wins is not None and self.join.wins(outcome)

    @property
    def complete(self) -> bool:
        """True once no lane is running or waiting."""
        return not self.running and not self.waiting

    def value(self) -> Json:
        """What the parent gets when all lanes settled; raises FlowError if it gets an error."""
        return self.join.collect([self.outcomes[index] for index in sorted(self.outcomes)])


def unwrap(outcome: Result) -> Json:
    """The ctx of a lane that succeeded; raises the FlowError of one that did not."""
    if isinstance(outcome, Failed):
        raise FlowError(outcome.text)
    return outcome.ctx


def _no_items(join: str) -> FlowError:
    return FlowError(f"type error in 'fanout.{join}': expected at least one item, got an empty array")


def _all(outcomes: list[Result]) -> list[Json]:
    return [unwrap(outcome) for outcome in outcomes]


def _any(outcomes: list[Result]) -> Json:
    if not outcomes:
        raise _no_items("any")
    return unwrap(outcomes[0])  # all refused, or it would have been decided


def _race(outcomes: list[Result]) -> Json:
    raise _no_items("race")  # a race with lanes is always decided by one of them


def _all_settled(outcomes: list[Result]) -> list[Json]:
    return [
        {"status": "rejected", "reason": outcome.text}
        if isinstance(outcome, Failed)
        else {"status": "fulfilled", "value": outcome.ctx}
        for outcome in outcomes
    ]


JOINS: Final[Mapping[str, Join]] = {
    "all": Join(None, _all),
    "any": Join(lambda outcome: isinstance(outcome, Done), _any),
    "race": Join(lambda _: True, _race),
    "all_settled": Join(None, _all_settled),
}
