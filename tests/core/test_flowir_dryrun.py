"""What a preview says is what happens: random flows, histories with crashes and refusals, and targets.

A Run lives in a small world: workers answer differently at every call, completions are shuffled, a crash may come after
any of them, and what an agent refuses is decided by what it is asked (refusals are not logged). Then a rerun-from is
planned and carried out on the rows that the plan left. What needs what is judged apart from the plan, by the places of
steps in their lanes. Planners with a fault planted in them are caught by the same judgement.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import CTX, branch, fanout, flows, guard, loop, seq, step

from refold.canonical import decode, digest, encode
from refold.flowir import (
    Abandon,
    JOINS,
    AgentDef,
    Blocked,
    Blueprint,
    Decision,
    Dispatch,
    Failed,
    Fanout,
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
    parse_flow,
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
DOWNSTREAM = "downstream of the target"

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


# -- the judgement ----------------------------------------------------------------------------------------------------


def assert_plan_is_right(life: Life, target: Target, plan: Plan) -> None:
    """The plan keeps what needs nothing of the target, cuts what does, and lists each step once."""
    listed = list(map(key_of, plan.steps))
    assert len(listed) == len(set(listed))
    withheld = {key_of(each) for each in plan.steps if each.why == "the target"}
    assert len(withheld) == plan.withheld
    targets = [life.places[key] for key in withheld if key in life.places]
    ended = targets + [life.places[key] for key in life.unfinished]
    kept = set(map(key_of, plan.kept))
    for key in kept:
        assert key not in withheld and not needs(life.places[key], targets), f"{key} was kept"
    for key in life.live & life.reached - withheld:
        place = life.places[key]
        if not (needs(place, ended) or has_queues(life.flow)):
            assert not matches(target, key, place), f"{key} was not withheld"
            assert key in kept, f"{key} was not kept"
    assert life.live <= kept | set(map(key_of, plan.dropped))
    for row in live_rows(life.standing, life.standing):
        winner = Place((*lane_of(row), (row.fork, row.winner)), 0, -1)
        if not any(is_within(place, winner.lane) for place in life.places.values()):
            continue  # no place tells where a winner stands that asked nothing
        dropped = row in plan.dropped_decisions
        assert not dropped or is_open(winner, ended), f"{row} was dropped"
        assert dropped or not is_open(winner, targets), f"{row} was kept"


def is_open(winner: Place, ended: list[Place]) -> bool:
    """Whether a lane does not settle, or is not even opened, where lanes end at these places."""
    return needs(winner, ended) or any(is_within(place, winner.lane) for place in ended)


def has_queues(flow: Any) -> bool:
    """Whether lanes of an `any` or `race` in the flow are started only if earlier ones do not win: they need those."""
    if isinstance(flow, Fanout) and flow.concurrency and JOINS[flow.join].wins:
        return True
    return isinstance(flow, tuple | msgspec.Struct) and any(map(has_queues, parts(flow)))


def parts(node: Any) -> Iterable[Any]:
    return msgspec.structs.astuple(node) if isinstance(node, msgspec.Struct) else node


def is_within(place: Place, lane: Lane) -> bool:
    return place.lane[: len(lane)] == lane


def matches(target: Target, key: ReplayKey, place: Place) -> bool:
    asked = {"lane": tuple(index for _, index in place.lane), **key._asdict()}
    return all(value in (None, asked[name]) for name, value in msgspec.structs.asdict(target).items())


def assert_execution_equals(life: Life, plan: Plan, drive: Drive) -> None:
    """What the log answered is what was kept; what was listed to run ran, unless its lane was given up."""
    kept = set(map(key_of, plan.kept))
    assert len(drive.answered) == len(set(drive.answered)), "a row was asked for twice"
    assert set(drive.answered) <= kept, "a row was answered that the plan does not keep"
    assert not drive.asked & kept, "a kept step was run"
    won = {(lane_of(row), row.fork): row.winner for row in life.standing}
    assert len(won) == len(life.standing), "what was decided is decided again"
    if drive.machine.result is not None:
        due = [each for each in plan.steps if each.plan == "runs" and each.why != DOWNSTREAM]
        assert survivors(plan.kept, won) <= set(drive.answered), "a kept row was not asked for"
        assert survivors(due, won) <= drive.asked, "a listed step did not run"


def survivors(steps: Iterable[Any], won: Mapping[tuple[Lane, int], int]) -> set[ReplayKey]:
    """Those of the rows or planned steps that are in no lane that lost."""


    def has_lost(lane: Lane) -> bool:
        return any(won.get((lane[:depth], fork), index) != index for depth, (fork, index) in enumerate(lane))

    return {key_of(each) for each in steps if not has_lost(lane_of(each))}


def assert_rerun_is_its_preview(life: Life, target: Target, seed: int, most: int = -1, planner: Planner = dry_replay):
    plan = life.plan(target, planner)
    if plan.withheld:
        assert_plan_is_right(life, target, plan)
        life.cut(plan)
        assert_execution_equals(life, plan, life.activate(seed, most))


# -- the laws ---------------------------------------------------------------------------------------------------------

seeds = st.integers(0, 10**6)
salts = st.integers(0, 100)
crashes = st.lists(st.integers(0, 12), max_size=2)
"""After how many outcomes each of the activations before the last one is cut off."""
ends = st.sampled_from([-1, -1, 0, 1, 2, 3, 5])


def lived(flow: Node, seed: int, salt: int, crashes: list[int], end: int) -> Life:
    life = Life(flow, by_content(salt))
    for number, most in enumerate([*crashes, end]):
        life.activate(seed + number, most)
    return life


@st.composite
def targets(draw: st.DrawFn, life: Life) -> Target:
    """A step that was asked some time, named as closely as somebody may."""
    key = draw(st.sampled_from([key_of(attempt) for attempt in life.attempts]), label="step")
    lane = tuple(index for _, index in life.places[key].lane)
    close = {"lane": lane, "occurrence": key.occurrence, "input_hash": key.input_hash}
    named = draw(st.lists(st.sampled_from(sorted(close)), unique=True), label="named by")
    return Target(step_ref=key.step_ref, **{name: close[name] for name in named})


@given(flows, seeds, salts, crashes, ends, st.lists(ends, min_size=1, max_size=3), st.data())
def test_the_preview_of_a_rerun_from_is_its_execution(flow, seed, salt, crashes, end, reruns, data):
    life = lived(flow, seed, salt, crashes, end)
    for number, most in enumerate(reruns):
        if life.attempts:
            assert_rerun_is_its_preview(life, data.draw(targets(life)), seed - number, most)


@given(flows, seeds, salts, crashes, st.integers(0, 8))
def test_the_preview_of_a_resume_is_the_resume(flow, seed, salt, crashes, end):
    life = lived(flow, seed, salt, crashes, end)
    plan = life.plan()
    assert (plan.dropped, plan.dropped_decisions, plan.withheld, plan.retired) == ((), (), 0, [])
    assert all(each.why != DOWNSTREAM for each in plan.steps)
    assert_execution_equals(life, plan, life.activate(seed - 1))
