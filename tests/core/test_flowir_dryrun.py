"""What a preview says is what happens: random flows, histories with crashes and refusals, and targets.

What an agent refuses is decided by what it is asked (refusals are not logged). A rerun-from is planned and carried out
on the rows that the plan left; what needs what is judged apart from the plan, by the places of steps in their lanes.
Planners with a fault planted in them are caught by the same judgement.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_world import Drive, Life, Place, Planner, Refuses, by_content, key_of, lane_of, needs
from strategies import CTX, binary, branch, fanout, flows, guard, loop, seq, step

from refold.canonical import encode
from refold.flowir import (
    JOINS,
    AgentDef,
    Blocked,
    Blueprint,
    Dispatch,
    Failed,
    Fanout,
    Node,
    Plan,
    ReplayKey,
    Target,
    dry_replay,
    live_rows,
    parse_flow,
    refusals,
)
from refold.flowir.machine import SLICE
from refold.records import AttemptRow, AttemptStatus, Lane

Json = Any

DOWNSTREAM = "downstream of the target"

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
    standing = [row for row in life.standing if row not in plan.dropped_decisions]
    for rows in (plan.dropped, plan.dropped_decisions):
        assert live_rows(rows, standing) == list(rows), "what a decision has retired, and still does, was cut"
    for row in live_rows(life.standing, life.standing):
        winner = Place((*lane_of(row), (row.fork, row.winner)), 0, -1)
        if not any(is_within(place, winner.lane) for place in life.places.values()):
            continue  # no place tells where a winner stands that asked nothing
        dropped = row in plan.dropped_decisions
        assert not dropped or is_open(winner, ended) or has_queues(life.flow), f"{row} was dropped"
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


# -- planted faults ---------------------------------------------------------------------------------------------------


def forgets_refusals(blueprint, ctx, rows, decisions, refused, target=None):
    return dry_replay(blueprint, ctx, rows, decisions, {}, target)


def is_off_by_one(blueprint, ctx, rows, decisions, refused, target=None):
    """Keeps the row of the target itself."""
    plan = dry_replay(blueprint, ctx, rows, decisions, refused, target)
    withheld = {key_of(each) for each in plan.steps if each.why == "the target"}
    own = tuple(row for row in plan.dropped if key_of(row) in withheld)
    dropped = tuple(row for row in plan.dropped if row not in own)
    return msgspec.structs.replace(plan, kept=(*plan.kept, *own), dropped=dropped)


def cuts_the_rest_of_the_log(blueprint, ctx, rows, decisions, refused, target=None):
    """What comes later in the log goes, as in the original engine: by time, not by need."""
    plan = dry_replay(blueprint, ctx, rows, decisions, refused, target)
    first = min((row.ordinal for row in plan.dropped), default=0)
    dropped = tuple(row for row in rows if row.ordinal >= first)
    return msgspec.structs.replace(plan, kept=tuple(row for row in rows if row not in dropped), dropped=dropped)


def leaves_the_losers(blueprint, ctx, rows, decisions, refused, target=None):
    """Forgets that a decision which is cut had retired rows, which come alive with it."""
    return dry_replay(blueprint, ctx, live_rows(rows, decisions), decisions, refused, target)


def keeps_decisions(blueprint, ctx, rows, decisions, refused, target=None):
    plan = dry_replay(blueprint, ctx, rows, decisions, refused, target)
    return msgspec.structs.replace(plan, dropped_decisions=())


TALK = parse_flow(
    seq(
        step("a", 1, "$.a"),
        fanout([0, 1, 2], seq(guard(step("b", "$.i", "$.b"), step("c", "$.i", "$.b")), step("d", "$.i", "$.d")), "all"),
        fanout([0, 1], seq(step("e", "$.i", "$.e"), step("f", "$.i", "$.f")), "race"),
        step("g", 1, "$.g"),
    )
)
"""Refusals that are caught, siblings, a race, and steps before and after all of it."""


def refuses_b(asked: Dispatch) -> Any:
    return Blocked("no") if asked.ref == "b" and asked.directive != 2 else None


def try_every_target(planner: Planner) -> None:
    """Reruns TALK from each of its steps, after histories of several orders of completion."""
    for seed, ref in itertools.product(range(6), "abcdefg"):
        life = Life(TALK, refuses_b)
        life.activate(seed)
        assert_rerun_is_its_preview(life, Target(step_ref=ref), seed + 1, planner=planner)


def test_every_step_of_a_flow_can_be_rerun_from():
    try_every_target(dry_replay)


@pytest.mark.parametrize(
    "planner", [forgets_refusals, is_off_by_one, cuts_the_rest_of_the_log, leaves_the_losers, keeps_decisions]
)
def test_a_planted_fault_is_noticed(planner):
    with pytest.raises(AssertionError):
        try_every_target(planner)


# -- by example -------------------------------------------------------------------------------------------------------


def shown(plan: Plan) -> list[str]:
    """`ref[lane]: plan, why`, in the order of the listing."""
    return [f"{each.step_ref}{[at for _, at in each.lane]}: {each.plan}, {each.why}" for each in plan.steps]


def ran(flow: Json, refuses: Refuses = lambda asked: None, seed: int = 0, most: int = -1) -> Life:
    life = Life(parse_flow(flow), refuses)
    life.activate(seed, most)
    return life


def refuses_all(*refs: str) -> Refuses:
    return lambda asked: Blocked("no") if asked.ref in refs else None


def test_what_needs_the_target_runs_and_what_came_before_is_kept():
    life = ran(seq(step("a", 1, "$.a"), step("b", 1, "$.b"), step("c", 1, "$.c")))
    plan = life.plan(Target(step_ref="b"))
    assert shown(plan) == ["a[]: replayed, logged", "b[]: runs, the target", f"c[]: runs, {DOWNSTREAM}"]
    assert [row.step_ref for row in plan.kept] == ["a"]
    assert [row.step_ref for row in plan.dropped] == ["b", "c"]
    assert (plan.withheld, plan.stopped_at, plan.retired) == (1, ("b",), [[2, 3]])


def test_a_step_that_failed_can_be_the_target():
    life = ran(seq(step("a", 1, "$.a"), step("b", 1, "$.b")), refuses_all("b"))
    plan = life.plan(Target(step_ref="b"))
    assert shown(plan) == ["a[]: replayed, logged", "b[]: runs, the target"]
    assert (plan.withheld, plan.retired) == (1, [])


def test_a_step_that_is_not_reached_is_not_withheld_and_the_plan_says_where_it_stops():
    life = ran(seq(step("a", 1, "$.a"), step("b", 1, "$.b"), step("c", 1, "$.c")), most=1)
    plan = life.plan(Target(step_ref="c"))
    assert shown(plan) == ["a[]: replayed, logged", "b[]: runs, never finished"]
    assert (plan.withheld, plan.stopped_at) == (0, ("b",))


@pytest.mark.parametrize("occurrence", [0, 1, 2])
def test_an_occurrence_names_one_turn_of_a_loop(occurrence):
    life = ran(loop("$.n", True, step("a", 1, "$.a"), 3))
    plan = life.plan(Target(step_ref="a", occurrence=occurrence))
    assert [row.occurrence for row in plan.kept] == list(range(occurrence))
    assert [row.occurrence for row in plan.dropped] == list(range(occurrence, 3))


def test_without_an_occurrence_the_first_one_is_meant():
    plan = ran(loop("$.n", True, step("a", "$.n", "$.a"), 3)).plan(Target(step_ref="a"))
    assert (plan.kept, plan.withheld, len(plan.dropped)) == ((), 1, 3)


def test_a_flow_that_computes_for_long_is_planned_to_its_end():
    """The machine hands control back after a slice; a dry run that stopped there would cut what comes behind it."""
    life = ran(seq(step("a", 1, "$.a"), loop("$.n", True, seq(), SLICE + 1), step("b", 1, "$.b")))
    assert shown(life.plan()) == ["a[]: replayed, logged", "b[]: runs, never finished"]


def test_siblings_stay_also_those_that_a_limit_starts_later():
    body = seq(step("a", "$.i", "$.a"), step("b", "$.i", "$.b"))
    life = ran(seq(fanout([0, 1, 2], body, "all", concurrency=1), step("c", 1, "$.c")))
    plan = life.plan(Target(step_ref="b", lane=(0,)))
    assert [(row.step_ref, lane_of(row)[-1][1]) for row in plan.kept] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("b", 1),
        ("b", 2),
    ]
    assert shown(plan)[-1] == f"c[]: runs, {DOWNSTREAM}"
    assert life.plan(Target(step_ref="b")).withheld == 3


RACE = fanout([0, 1], seq(step("a", "$.i", "$.a"), step("b", "$.i", "$.b")), "race")


def test_a_decision_stands_while_its_lane_settles():
    life = ran(seq(RACE, step("c", 1, "$.c")))
    plan = life.plan(Target(step_ref="c"))
    assert (plan.dropped_decisions, [row.step_ref for row in plan.dropped]) == ((), ["c"])
    winner = life.decisions[0].winner
    assert shown(plan)[0] == f"a[{winner}]: replayed, logged"
    assert len(plan.steps) == 3  # the loser's row is as it was: retired by the decision


def test_a_decision_whose_lane_is_open_goes_and_what_the_losers_had_is_live_again():
    life = next(life for seed in range(99) if len((life := ran(RACE, seed=seed)).rows) == 3)
    winner = life.decisions[0].winner
    plan = life.plan(Target(step_ref="b"))
    assert plan.dropped_decisions == tuple(life.decisions)
    assert sorted(shown(plan)) == sorted(
        [
            "a[0]: replayed, logged",
            "a[1]: replayed, logged",
            "b[0]: runs, the target",
            "b[1]: runs, the target",
        ]
    )
    only = life.plan(Target(step_ref="b", lane=(winner,)))
    assert f"b[{1 - winner}]: runs, never finished" in shown(only)
    assert life.plan(Target(step_ref="b", lane=(1 - winner,))).withheld == 0  # the lane lost: nobody comes there


def test_what_losers_had_before_a_race_that_runs_again_is_cut_with_the_decision():
    life = ran(seq(step("z", 1, "$.z"), RACE))
    plan = life.plan(Target(step_ref="z"))
    assert plan.kept == ()
    assert plan.retired == [[1, len(life.rows) + 1]]


def test_what_was_decided_in_a_lane_that_lost_is_left_with_that_lane():
    flow = fanout([0, 1], seq(fanout([0, 1], step("a", "$.i", "$.a"), "race", "$.r"), step("b", 1, "$.b")), "race")
    life = next(
        life for seed in range(99) if len((life := ran(seq(flow, step("c", 1, "$.c")), seed=seed)).decisions) == 3
    )
    assert life.plan(Target(step_ref="c")).dropped_decisions == ()
    lost = [row for row in life.decisions if row not in live_rows(life.decisions, life.decisions)]
    inner = life.plan(Target(step_ref="b"))
    assert len(lost) == 1 and lost[0] not in inner.dropped_decisions  # live again, and its lane settles as before


def test_a_step_of_a_lane_that_is_given_up_is_not_listed():
    """Lane 1 needs nothing and wins at once: lane 0 is never asked, neither in a preview nor in a resume."""
    flow = fanout([0, 1], branch(binary("eq", "$.i", 0), step("a", 1, "$.a"), seq()), "race")
    life = Life(parse_flow(seq(flow, step("b", 1, "$.b"))), lambda asked: None)
    plan = life.plan()
    assert (shown(plan), plan.stopped_at) == (["b[]: runs, never finished"], ("b",))
    assert life.plan(Target(step_ref="a")).withheld == 0


def test_lanes_of_a_race_that_wait_for_earlier_ones_are_not_run_by_a_preview():
    """Lane 1 needs nothing and would win at once, but it is started only if lane 0 ends, which then has won."""
    lanes = branch(binary("eq", "$.i", 0), step("a", 1, "$.a"), seq())
    life = ran(seq(fanout([0, 1], lanes, "race", concurrency=1), step("b", 1, "$.b")), most=0)
    assert shown(life.plan()) == ["a[0]: runs, never finished"]


def test_a_refusal_is_answered_with_and_said_to_be_asked_again():
    life = ran(seq(guard(step("a", 1, "$.a"), step("b", 1, "$.b")), step("c", 1, "$.c")), refuses_all("a"), most=2)
    assert shown(life.plan()) == [
        "a[]: runs, refused before, and is asked again",
        "b[]: replayed, if it refuses again",
        "c[]: runs, never finished",
    ]


def test_a_refusal_is_remembered_when_a_crash_comes_while_it_is_asked_again():
    life = ran(seq(guard(step("a", 1, "$.a"), step("b", 1, "$.b")), step("c", 1, "$.c")), refuses_all("a"), most=2)
    life.activate(0, 0)
    assert life.attempts[-1].status is None
    assert shown(life.plan(Target(step_ref="c")))[-1] == "c[]: runs, the target"


def test_another_blueprint_may_have_no_lane_that_won():
    life = next(life for seed in range(99) if (life := ran(RACE, seed=seed)).decisions[0].winner == 1)
    life.flow = parse_flow(seq(fanout([0], RACE["body"], "race"), step("c", 1, "$.c")))
    plan = life.plan(Target(step_ref="a"))
    assert (plan.withheld, plan.dropped_decisions) == (1, tuple(life.decisions))


def test_what_a_lane_had_logged_stays_logged_when_it_loses_in_another_blueprint():
    """There lane 0 is shorter: it settles while the step of lane 1 that is known is being read."""
    played = (ran(RACE, seed=seed) for seed in range(99))
    life = next(life for life in played if len(life.rows) == 3 and life.decisions[0].winner == 1)
    first, second = step("a", "$.i", "$.a"), step("d", "$.i", "$.d")
    life.flow = parse_flow(fanout([0, 1], branch(binary("eq", "$.i", 0), first, seq(first, second)), "race"))
    plan = life.plan(Target(step_ref="d"))
    assert shown(plan)[:2] == ["a[0]: replayed, logged", "a[1]: replayed, logged"]
    assert (plan.withheld, [row.step_ref for row in plan.dropped]) == (0, ["b"])


@pytest.mark.parametrize(
    ("ordinals", "spans"), [([], []), ([3], [[3, 3]]), ([5, 1, 2, 3, 7, 8], [[1, 3], [5, 5], [7, 8]])]
)
def test_retired_ordinals_are_spans(ordinals, spans):
    rows = tuple(msgspec.structs.replace(RACE_ROW, ordinal=ordinal) for ordinal in ordinals)
    plan = Plan(steps=(), kept=(), dropped=rows, dropped_decisions=(), withheld=0, stopped_at=())
    assert plan.retired == spans


RACE_ROW = ran(RACE).rows[0]

# -- what refused -----------------------------------------------------------------------------------------------------


def attempts(*ends: tuple[AttemptStatus | None, Json] | tuple[AttemptStatus | None, Json, int]) -> list[AttemptRow]:
    """Attempts of one step: how each ended, what it said, and when the next was due."""
    life = ran(step("a", 1, "$.a"))
    return [
        msgspec.structs.replace(
            life.attempts[0],
            attempt=number,
            generation=1,
            status=status,
            outcome_json=None if said is None else encode(said),
            due_at=due[0] if due else None,
        )
        for number, (status, said, *due) in enumerate(ends, 1)
    ]


A = AttemptStatus
ONCE = AgentDef(name="a", kind="python", spec={}, on_ambiguous="fail")


def answers(*ends: Any, **more: Any) -> list[Any]:
    return [refusal.outcome for refusal in refusals(attempts(*ends), **more).values()]


def test_the_last_answer_counts():
    assert answers((A.BLOCKED, {"no": 1})) == [Blocked({"no": 1})]
    assert answers((A.SKIPPED, 1), (A.FAILED, "broken")) == [Failed("broken")]
    assert answers((A.TIMEOUT, "timed out after 1 s")) == [Failed("timed out after 1 s")]
    assert answers((A.BLOCKED, "no"), (A.SKIPPED, None)) == []
    assert answers((A.BLOCKED, "no"), (A.PASSED, None)) == answers((A.BLOCKED, "no"), (A.CANCELLED, None)) == []


def test_a_step_that_waits_for_its_next_try_has_not_refused():
    assert answers((A.FAILED, "broken", 7)) == answers((A.FAILED, "broken", 7), (None, None)) == []


def test_what_was_cut_off_is_refused_if_it_must_not_be_done_twice():
    cut_off = ((A.BLOCKED, "no"), (None, None))
    why = "attempt 2 was cut off by a crash and may have acted; on_ambiguous is fail"
    assert answers(*cut_off) == [Blocked("no")]
    assert answers(*cut_off, agents=[ONCE]) == [Failed(why)]


def test_a_resume_does_not_ask_what_must_not_be_done_twice_and_a_rerun_does():
    life = ran(seq(guard(step("a", 1, "$.a"), step("b", 1, "$.b")), step("c", 1, "$.c")), most=0)
    refused = refusals(life.attempts, [ONCE], 0)

    def plan(target: Target | None = None) -> list[str]:
        return shown(dry_replay(Blueprint(id="b", flow=life.flow), CTX, [], [], refused, target))

    given_up = "a[]: replayed, cut off by a crash, and must not be done twice: it fails"
    assert plan() == [given_up, "b[]: runs, never finished"]
    assert plan(Target(step_ref="b")) == ["a[]: runs, refused before, and is asked again", "b[]: runs, the target"]
    refused = refusals(life.attempts, [ONCE], 1)  # the attempt is of an earlier generation
    assert plan()[0] == "a[]: runs, refused before, and is asked again"
