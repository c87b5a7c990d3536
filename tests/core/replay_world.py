"""A Run in a small world, for the dry replay's tests: rows, decisions, cuts and attempts as its tables keep them.

Workers answer differently at every call, completions are shuffled, and a crash may come after any of them. Every
dispatch is written down with its place, so that what needs what can be told without asking the dry replay.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from strategies import CTX

from refold.canonical import decode, digest, encode
from refold.flowir import (
    Abandon,
    Blocked,
    Blueprint,
    Decision,
    Dispatch,
    Failed,
    FlowMachine,
    Node,
    Pass,
    Plan,
    PlannedStep,
    ReplayCursor,
    ReplayKey,
    Skip,
    Target,
    dry_replay,
    live_rows,
    refusals,
    settle_hits,
    uncut,
)
from refold.records import AttemptRow, AttemptStatus, CutRow, DecisionRow, Lane, ReplayRow

Json = Any
Refuses = Callable[[Dispatch], Any]
Planner = Callable[..., Plan]

ENDS = {
    Pass: AttemptStatus.PASSED,
    Skip: AttemptStatus.SKIPPED,
    Blocked: AttemptStatus.BLOCKED,
    Failed: AttemptStatus.FAILED,
}

# -- places -----------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a dispatch stands: its lane, and how many fan-outs and dispatches came before it there."""

    lane: Lane
    forks: int
    nth: int


def follows(one: Place, other: Place) -> bool:
    """Whether the step at `one` needs what came of the step at `other`."""
    for (fork, index), (other_fork, other_index) in zip(one.lane, other.lane, strict=False):
        if fork != other_fork:
            return fork > other_fork
        if index != other_index:
            return False  # siblings
    if len(one.lane) == len(other.lane):
        return one.nth > other.nth
    if len(one.lane) > len(other.lane):
        return one.lane[len(other.lane)][0] >= other.forks
    return one.forks > other.lane[len(one.lane)][0]


def needs(place: Place, others: Iterable[Place]) -> bool:
    return any(follows(place, other) for other in others)


class Watched(FlowMachine):
    """A machine that writes down the places of its dispatches."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.places: dict[ReplayKey, Place] = {}

    def key_of(self, ref: str, directive: Json, lane: Lane) -> ReplayKey:
        key, depth = super().key_of(ref, directive, lane), len(lane)
        lanes = [place.lane for place in self.places.values()]
        forks = [seen[depth][0] for seen in lanes if len(seen) > depth and seen[:depth] == lane]
        self.places[key] = Place(lane, max(forks, default=-1) + 1, lanes.count(lane))
        return key


# -- the world --------------------------------------------------------------------------------------------------------


class Cursor(ReplayCursor):
    """A log that keeps in mind what it answered."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.answered: list[ReplayKey] = []

    def lookup(self, key: ReplayKey) -> tuple[bool, Json]:
        known, value = super().lookup(key)
        if known:
            self.answered.append(key)
        return known, value


@dataclass
class Drive:
    """What came of one activation: `asked` are the dispatches that went to an agent."""

    machine: Watched
    answered: list[ReplayKey]
    asked: set[ReplayKey] = field(default_factory=set)


@dataclass
class Life:
    """What a Run has behind it, as its tables keep it."""

    flow: Node
    refuses: Refuses
    rows: list[ReplayRow] = field(default_factory=list)
    decisions: list[DecisionRow] = field(default_factory=list)
    cuts: list[CutRow] = field(default_factory=list)
    attempts: list[AttemptRow] = field(default_factory=list)
    places: dict[ReplayKey, Place] = field(default_factory=dict)
    reached: set[ReplayKey] = field(default_factory=set)
    """What the last activation came to ask."""

    @property
    def uncut(self) -> list[ReplayRow]:
        return uncut(self.rows, self.cuts)

    @property
    def standing(self) -> list[DecisionRow]:
        return uncut(self.decisions, self.cuts)

    @property
    def live(self) -> set[ReplayKey]:
        return set(map(key_of, live_rows(self.uncut, self.standing)))

    @property
    def unfinished(self) -> set[ReplayKey]:
        """The steps that have no answer: neither a row, nor a refusal when they answered last."""
        answers = {key_of(attempt): attempt for attempt in self.attempts if attempt.status is not None}
        refused = {key for key, attempt in answers.items() if attempt.outcome_json is not None}
        return set(map(key_of, self.attempts)) - refused - set(map(key_of, self.uncut))

    def plan(self, target: Target | None = None, planner: Planner = dry_replay) -> Plan:
        blueprint = Blueprint(id="b", flow=self.flow)
        return planner(blueprint, CTX, self.uncut, self.standing, refusals(self.attempts), target)

    def cut(self, plan: Plan) -> None:
        """Begins the generation that a plan leads to."""
        self.cuts.append(CutRow(**self._now(), retired_json=encode(plan.retired)))

    def activate(self, seed: int, most: int = -1) -> Drive:
        """Drives the Run to its end, or to a crash after `most` outcomes."""
        cursor = Cursor(self.uncut, self.standing)
        machine = Watched(self.flow, CTX, decisions=cursor.decisions)
        drive, open_, rng = Drive(machine, cursor.answered), {}, random.Random(seed)
        fresh = itertools.count(rng.randrange(10**6) * 1000)

        def obey(commands: Iterable[Any]) -> None:
            for command in settle_hits(machine, commands, cursor):
                match command:
                    case Dispatch():
                        open_[command.ticket] = command, self._begin(command)
                        drive.asked.add(command.key)
                    case Abandon(ticket):
                        self._end(open_.pop(ticket)[1], AttemptStatus.CANCELLED)
                    case Decision(lane, fork, winner):
                        row = DecisionRow(**self._now(), lane_json=encode(lane), fork=fork, winner=winner)
                        self.decisions.append(row)

        obey(machine.start())
        while open_ and most != 0:
            most -= 1
            ticket = rng.choice(list(open_))
            dispatch, attempt = open_.pop(ticket)
            number = next(fresh)
            outcome = self.refuses(dispatch) or Pass([number, {"x": number}, f"n{number}", None][number % 4])
            self._log(dispatch, attempt, outcome)
            obey(machine.complete(ticket, outcome))
        self.places |= machine.places
        self.reached = set(machine.places)
        return drive

    def _now(self) -> dict[str, int]:
        ordinal = len(self.rows) + len(self.decisions) + len(self.cuts) + 1
        return {"run": 1, "ordinal": ordinal, "generation": len(self.cuts), "epoch": 1, "created_at": 0}

    def _begin(self, asked: Dispatch) -> int:
        place = {"run": 1, "ordinal": len(self.attempts), "generation": len(self.cuts), "epoch": 1}
        more = {"step_id": "ST-", "attempt": 1, "opened": 0, "started_at": 0, "status": None, "ended_at": None}
        self.attempts.append(AttemptRow(**place, **more, **asked.key._asdict(), lane_json=encode(asked.lane)))
        return len(self.attempts) - 1

    def _end(self, attempt: int, status: AttemptStatus, outcome: str | None = None) -> None:
        ended = {"status": status, "ended_at": 0, "outcome_json": outcome}
        self.attempts[attempt] = msgspec.structs.replace(self.attempts[attempt], **ended)

    def _log(self, asked: Dispatch, attempt: int, outcome: Any) -> None:
        said = encode(outcome.text if isinstance(outcome, Failed) else outcome.value)
        passed = isinstance(outcome, Pass)
        self._end(attempt, ENDS[type(outcome)], None if passed else said)
        if passed:
            known = {"lane_json": encode(asked.lane), "ctx_snapshot_json": "{}", "step_output_json": said}
            self.rows.append(ReplayRow(**self._now(), **asked.key._asdict(), **known))


def by_content(salt: int) -> Refuses:
    """Refusals and skips that depend on what is asked alone."""

    def refuses(asked: Dispatch) -> Any:
        draw = int(digest([salt, asked.ref, asked.directive])[:4], 16) % 16
        return {0: Blocked(["no", salt]), 1: Blocked(salt), 2: Failed("broken"), 3: Skip(salt)}.get(draw)

    return refuses


def key_of(row: Any) -> ReplayKey:
    """The key of a row, an attempt or a planned step."""
    return ReplayKey(row.step_ref, row.input_hash, row.occurrence)


def lane_of(row: Any) -> Lane:
    """The lane of a row or of a planned step."""
    return row.lane if isinstance(row, PlannedStep) else tuple((fork, at) for fork, at in decode(row.lane_json))
