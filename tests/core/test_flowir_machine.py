"""The machine step by step: what nodes and joins do, which commands come when, metering. Replay has its own file."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from strategies import assign, binary, branch, fanout, flows, guard, lit, loop, path, seq, step, unary

from refold.flowir import (
    Abandon,
    Blocked,
    Decision,
    Dispatch,
    Done,
    Failed,
    FlowMachine,
    Lit,
    Pass,
    Path,
    Skip,
    Step,
    parse_flow,
)

Json = Any


def machine_of(flow: Json, ctx: Json = None, **more: Any) -> FlowMachine:
    return FlowMachine(parse_flow(flow), {} if ctx is None else ctx, **more)


def run(flow: Json, ctx: Json = None, answer: Callable[[Dispatch], Any] = lambda asked: Pass(asked.directive), **more):
    """Runs a flow to its result; every dispatch is answered at once."""
    machine = machine_of(flow, ctx, **more)
    commands = machine.start()
    while commands or machine.paused:
        asked = [command for command in commands if isinstance(command, Dispatch)]
        commands = machine.proceed() if machine.paused else []
        for dispatch in asked:
            commands += machine.complete(dispatch.ticket, answer(dispatch))
    return machine.result


def dispatches(commands):
    return [command for command in commands if isinstance(command, Dispatch)]


BLOCK = {"code": 3}
blocks = lambda asked: Blocked(BLOCK)  # noqa: E731
REFUSED = """dispatcher error for ref 'a': dispatcher error for ref 'a': blocked: {"code":3}"""
NOT_BOOLEAN = 'branch cond must be boolean, got: "x"'
WRONG = branch("x", seq(), seq())
TARGET = "invalid path syntax: expected Path expr for write target"

# -- nodes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flow", "ctx", "expected"),
    [
        (seq(), {"a": 1}, {"a": 1}),
        (seq(assign("$.a", 1), assign("$.b", "$.a")), {}, {"a": 1, "b": 1}),
        (assign("$", {"all": 1}), {"a": 1}, {"all": 1}),
        (step("a", "$.x", "$.got.it"), {"x": [1]}, {"x": [1], "got": {"it": [1]}}),
        (branch(binary("eq", "$.a", 1), assign("$.t", 1), assign("$.e", 1)), {"a": 1}, {"a": 1, "t": 1}),
        (branch(False, assign("$.t", 1), assign("$.e", 1)), {}, {"e": 1}),
        (loop("$.n", True, assign("$.m", "$.n"), 3), {}, {"n": 3, "m": 2}),
        (loop("$.n", True, assign("$.m", 1), 0), {"n": "old"}, {"n": 0}),
        (loop("$.n", binary("lt", "$.n", 2), seq(), 10), {}, {"n": 2}),
        (loop("$.n", unary("not", "$.stop"), assign("$.stop", 0), 10), {"stop": None}, {"stop": 0, "n": 1}),
        (guard(assign("$.b", 1), assign("$.c", 1)), {}, {"b": 1}),
        (guard(seq(assign("$.b", 1), WRONG), assign("$.c", 1)), {"a": 1}, {"a": 1, "err": NOT_BOOLEAN, "c": 1}),
        (guard(seq(assign("$.b", 1), WRONG), err_at=None), {"a": 1}, {"a": 1}),
        (guard(guard(WRONG, assign("$.x", "$.no"), None)), {}, {"err": "path not found: $.no"}),
        (guard(assign("$.a", 2), err_at=lit("not needed")), {"a": 1}, {"a": 2}),
    ],
)
def test_nodes(flow, ctx, expected):
    before = copy.deepcopy(ctx)
    result = run(flow, ctx)
    assert result == Done(expected)
    assert repr(result.ctx) == repr(expected)  # counters are integers: 3, not 3.0
    assert ctx == before


@pytest.mark.parametrize(
    ("flow", "text"),
    [
        (branch(1, seq(), seq()), "branch cond must be boolean, got: 1"),
        (branch({"a": [None]}, seq(), seq()), 'branch cond must be boolean, got: {"a":[null]}'),
        (assign("$.x", "$.no"), "path not found: $.no"),
        (seq(assign("$.x", 1), assign("$.x.y", 1)), "type error in 'path.write': $.x is of type number, not an object"),
        (assign(lit("$.x"), 1), TARGET),
        (step("a", 1, lit("$.x")), TARGET),
        (loop("$.n", True, WRONG, 1), NOT_BOOLEAN),
        (loop("$.n", True, seq(), 1) | {"counter": lit(1)}, TARGET),
        (guard(WRONG, WRONG), NOT_BOOLEAN),
        (guard(WRONG, err_at=lit("$.e")), TARGET),
        (fanout([1], seq(), "all", out=lit("$.r")), TARGET),
        (fanout([1], seq(), "all", bind=lit("$.i")), TARGET),
        (fanout("no", seq(), "all"), "type error in 'fanout.items': expected an array, got string"),
        (fanout([], seq(), "any"), "type error in 'fanout.any': expected at least one item, got an empty array"),
        (fanout([], seq(), "race"), "type error in 'fanout.race': expected at least one item, got an empty array"),
        (
            seq(assign("$.i", 1), fanout([1], seq(), "all", bind="$.i.x")),
            "type error in 'path.write': $.i is of type number, not an object",
        ),
    ],
)
def test_errors_of_nodes(flow, text):
    assert run(flow) == Failed(text)


APPROVE = {"kind": "approve", "action": path("$.plan"), "title": "Go on?", "out": path("$.said")}


def test_an_approval_asks_for_its_action_and_writes_the_answer():
    machine = machine_of(APPROVE, {"plan": [1]})
    (asked,) = machine.start()
    assert (asked.ref, asked.directive, asked.node) == ("@approve", {"action": [1]}, parse_flow(APPROVE))
    assert machine.complete(asked.ticket, Pass({"decision": "approved"})) == []
    assert machine.result == Done({"plan": [1], "said": {"decision": "approved"}})


def test_an_approval_that_is_denied_is_an_error_that_the_flow_may_catch():
    result = run(guard(APPROVE), {"plan": 1}, answer=lambda asked: Blocked({"decision": "denied"}))
    assert result.ctx["err"].endswith("""ref '@approve': blocked: {"decision":"denied"}""")
    assert "said" not in result.ctx


@pytest.mark.parametrize("node", [step("a", 1, lit("$.x")), APPROVE | {"out": lit("$.x")}], ids=["step", "approve"])
def test_what_has_no_place_for_its_answer_is_never_dispatched(node):
    assert machine_of(node, {"plan": 1}).start() == []


def test_a_value_that_cannot_be_written_is_still_an_error_of_the_flow():
    nest = loop("$.n", True, assign("$.a", "$"), 2000)
    shown = run(seq(nest, branch("$", seq(), seq())))
    assert shown == Failed("branch cond must be boolean, got: a value that cannot be written (object)")
    asked = run(seq(nest, guard(step("a", "$", "$.b")), assign("$.a", 0)))
    assert asked.ctx["err"].startswith("dispatcher error for ref 'a': dispatcher error for ref 'a': ")


# -- outcomes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (Pass({"v": 1}), Done({"x": {"v": 1}})),
        (Pass(None), Done({"x": None})),
        (Skip("n/a"), Done({"x": {"__mse_skip": True, "value": "n/a"}})),
        (Blocked(BLOCK), Failed(REFUSED)),
        (Failed("worker died"), Failed("dispatcher error for ref 'a': dispatcher error for ref 'a': worker died")),
    ],
)
def test_outcomes(outcome, result):
    assert run(step("a", 1, "$.x"), answer=lambda _: outcome) == result


def test_try_catches_a_refusal_and_undoes_the_writes_of_its_body():
    flow = guard(seq(assign("$.lost", 1), step("a", 1, "$.x")), assign("$.caught", "$.err"))
    assert run(flow, answer=blocks) == Done({"err": REFUSED, "caught": REFUSED})


def test_a_bug_in_a_node_passes_through():
    class Unheard(Step, frozen=True):
        pass

    machine = FlowMachine(Unheard("a", Lit(1), Path(())), {})
    with pytest.raises(KeyError):
        machine.start()


def test_a_ticket_is_answered_once():
    machine = machine_of(step("a", 1, "$.x"))
    (asked,) = machine.start()
    with pytest.raises(LookupError):
        machine.complete(asked.ticket + 1, Pass(1))
    machine.complete(asked.ticket, Pass(1))
    with pytest.raises(LookupError):
        machine.complete(asked.ticket, Pass(1))


# -- dispatches -------------------------------------------------------------------------------------------------------


def test_a_dispatch_says_what_is_asked_and_where():
    flow = fanout([7], seq(assign("$.y", 1), fanout([8, 9], step("a", "$.i", "$.x"), "all")), "all")
    inner = dispatches(machine_of(flow, {"c": 1}).start())
    assert [(d.ref, d.directive, d.lane) for d in inner] == [("a", 8, ((0, 0), (0, 0))), ("a", 9, ((0, 0), (0, 1)))]
    assert [d.ctx for d in inner] == [{"c": 1, "y": 1, "i": 8}, {"c": 1, "y": 1, "i": 9}]
    assert all(d.key.step_ref == "a" and d.key.occurrence == 0 and d.step_ctx is None for d in inner)


def test_forks_count_the_fan_outs_of_their_fiber_so_each_turn_of_a_loop_has_its_own_lanes():
    body = fanout([1], fanout([1], step("a", 1, "$.x"), "all"), "all")
    machine = machine_of(seq(fanout([], seq(), "all"), loop("$.n", True, body, 2)))
    (first,) = machine.start()
    (second,) = machine.complete(first.ticket, Pass(1))
    assert first.lane == ((1, 0), (0, 0))
    assert second.lane == ((2, 0), (0, 0))


def test_occurrence_counts_equal_questions_whatever_came_of_them():
    outcomes = iter([Blocked(1), Pass(1), Skip(1), Pass(1)])
    keys = []

    def answer(asked):
        keys.append((asked.directive, asked.key.occurrence))
        return next(outcomes)

    run(seq(guard(step("a", 1, "$.x")), *[step("a", v, "$.x") for v in (1, 2, 1)]), answer=answer)
    assert keys == [(1, 0), (1, 1), (2, 0), (1, 2)]


METAS = {"m": {"k": 1, "j": 1}}


@pytest.mark.parametrize(
    ("given", "directive", "step_ctx"),
    [
        ({"a": 1}, {"a": 1}, None),
        ("text", "text", None),
        ({"$in": 1}, {"$in": 1}, None),
        ({"$step_meta": {}}, "", {}),
        ({"$step_meta": {"ref": "m"}, "$in": [1]}, [1], {"k": 1, "j": 1}),
        ({"$step_meta": {"ref": "m", "inline": {"k": 2}}, "a": 1}, {"a": 1}, {"k": 2, "j": 1}),
        ({"$step_meta": {"inline": {"k": 2}}, "$in": None, "a": 1}, None, {"k": 2}),
    ],
)
def test_the_step_meta_envelope(given, directive, step_ctx):
    (asked,) = machine_of(step("a", lit(given), "$.x"), metas=METAS).start()
    assert (asked.directive, asked.step_ctx) == (directive, step_ctx)


@pytest.mark.parametrize("asked", [{"secs": 0}, {"secs": 1.5}, {"until": "2030-01-01T00:00:00Z"}])
def test_a_wait_is_asked_of_the_engine_and_writes_nothing(asked):
    machine = machine_of({"kind": "wait"} | {key: lit(value) for key, value in asked.items()}, {"a": 1})
    (dispatch,) = machine.start()
    assert (dispatch.ref, dispatch.directive) == ("@wait", asked)
    machine.complete(dispatch.ticket, Pass(None))
    assert machine.result == Done({"a": 1})


@pytest.mark.parametrize(
    ("member", "value"),
    [("secs", v) for v in (-1, True, "1", None, 1e12, float("nan"))]
    + [("until", v) for v in (5, "", "tomorrow", "2030-02-30T00:00:00Z")],
)
def test_a_wait_for_something_else_is_a_type_error(member, value):
    result = run({"kind": "wait", member: lit(value)})
    assert result.text.startswith(f"type error in 'wait.{member}': ")


@pytest.mark.parametrize(
    "meta", [1, None, {"ref": "other"}, {"ref": 1}, {"ref": {}}, {"inline": []}, {"inline": None}, {"in": {}}]
)
def test_a_malformed_envelope_fails_the_step_before_its_dispatch(meta):
    machine = machine_of(step("a", lit({"$step_meta": meta}), "$.x"), metas=METAS)
    assert machine.start() == []
    assert machine.result.text.startswith(
        "dispatcher error for ref 'a': dispatcher error for ref 'a': invalid $step_meta"
    )


# -- fan-outs ---------------------------------------------------------------------------------------------------------

PURE = branch(binary("eq", "$.i", 1), assign("$.got", "$.i"), WRONG)  # item 1 succeeds, others refuse
GOOD = {"i": 1, "got": 1}


@pytest.mark.parametrize(
    ("flow", "result"),
    [
        (fanout([0, 1], assign("$.got", "$.i"), "all"), Done({"r": [{"i": 0, "got": 0}, GOOD]})),
        (fanout([], PURE, "all"), Done({"r": []})),
        (fanout([0, 1], PURE, "all"), Failed(NOT_BOOLEAN)),
        (fanout([0, 1], PURE, "any"), Done({"r": GOOD})),
        (fanout([0, 2], PURE, "any"), Failed(NOT_BOOLEAN)),
        (fanout([1, 0], PURE, "race"), Done({"r": GOOD})),
        (fanout([0, 1], PURE, "race"), Failed(NOT_BOOLEAN)),
        (fanout([], PURE, "all_settled"), Done({"r": []})),
        (
            fanout([0, 1], PURE, "all_settled"),
            Done({"r": [{"status": "rejected", "reason": NOT_BOOLEAN}, {"status": "fulfilled", "value": GOOD}]}),
        ),
    ],
)
def test_joins(flow, result):
    assert run(flow) == result


ASK = step("a", "$.i", "$.got")


def lanes_of(join, count=3, **more):
    machine = machine_of(fanout(list(range(count)), ASK, join, **more))
    return machine, [d.ticket for d in dispatches(machine.start())]


def refusal(why):
    return f"dispatcher error for ref 'a': dispatcher error for ref 'a': {why}"


def test_all_waits_for_every_lane_and_reports_the_lowest_refusal():
    machine, (t0, t1, t2) = lanes_of("all")
    assert machine.complete(t2, Failed("two")) == []
    assert machine.complete(t0, Pass(1)) == []
    assert machine.result is None
    assert machine.complete(t1, Failed("one")) == []
    assert machine.result == Failed(refusal("one"))


def test_any_takes_the_first_success_and_abandons_the_rest():
    machine, (t0, t1, t2) = lanes_of("any")
    assert machine.complete(t0, Failed("zero")) == []
    assert machine.complete(t2, Pass("yes")) == [Decision((), 0, 2), Abandon(t1)]
    assert machine.result == Done({"r": {"i": 2, "got": "yes"}})
    assert machine.complete(t1, Pass("late")) == []
    assert machine.result == Done({"r": {"i": 2, "got": "yes"}})


def test_any_with_all_refused_reports_the_lowest():
    machine, (t0, t1, t2) = lanes_of("any")
    for ticket, why in ((t2, "two"), (t1, "one"), (t0, "zero")):
        assert machine.complete(ticket, Failed(why)) == []
    assert machine.result == Failed(refusal("zero"))


@pytest.mark.parametrize(
    ("outcome", "result"), [(Pass(5), Done({"r": {"i": 1, "got": 5}})), (Failed("no"), Failed(refusal("no")))]
)
def test_race_takes_whoever_settles_first(outcome, result):
    machine, (t0, t1, t2) = lanes_of("race")
    assert machine.complete(t1, outcome) == [Decision((), 0, 1), Abandon(t0), Abandon(t2)]
    assert machine.result == result


def test_a_losing_lane_ends_with_all_that_it_started():
    inner = fanout([0, 1], step("a", "$.i", "$.x"), "all", bind="$.j")
    flow = fanout([0, 1], branch(binary("eq", "$.i", 0), inner, step("b", 1, "$.x")), "race")
    machine = machine_of(flow)
    first, second, fast = dispatches(machine.start())
    assert machine.complete(fast.ticket, Pass(1)) == [
        Decision((), 0, 1),
        Abandon(first.ticket),
        Abandon(second.ticket),
    ]
    assert machine.complete(second.ticket, Pass(1)) == []


def test_a_lane_that_has_lost_before_it_started_asks_nothing():
    flow = fanout([0, 1], branch(binary("eq", "$.i", 0), seq(), ASK), "race")
    machine = machine_of(flow)
    assert machine.start() == [Decision((), 0, 0)]
    assert machine.result == Done({"r": {"i": 0}})


@pytest.mark.parametrize("join", ["any", "race"])
def test_a_given_decision_starts_the_winning_lane_only(join):
    machine = machine_of(fanout([0, 1, 2], ASK, join), decisions={((), 0): 1})
    (asked,) = machine.start()
    assert asked.lane == ((0, 1),)
    assert machine.confirmed == set()
    assert machine.complete(asked.ticket, Pass("x")) == []  # not decided again
    assert machine.confirmed == {((), 0)}
    assert machine.result == Done({"r": {"i": 1, "got": "x"}})


def test_a_decided_winner_that_refuses_now_has_still_won():
    for join in ("any", "race"):
        machine = machine_of(fanout([0, 1], ASK, join), decisions={((), 0): 1})
        (asked,) = machine.start()
        assert machine.complete(asked.ticket, Failed("no")) == []
        assert machine.result == Failed(refusal("no"))


def test_decisions_do_not_touch_joins_that_nothing_decides():
    machine = machine_of(fanout([0, 1], ASK, "all"), decisions={((), 0): 1})
    assert len(machine.start()) == 2


def test_a_decision_for_a_lane_that_is_not_there_is_divergence_which_no_try_catches():
    machine = machine_of(guard(fanout([0, 1], ASK, "race")), decisions={((), 0): 2})
    assert machine.start() == []
    assert machine.result.kind == "divergence"
    assert not machine.paused


@pytest.mark.parametrize("join", ["all", "all_settled", "any"])
def test_concurrency_bounds_the_active_lanes_and_starts_them_in_order(join):
    machine = machine_of(fanout(list(range(5)), ASK, join, concurrency=2))
    active = dispatches(machine.start())
    started = [asked.lane for asked in active]
    while active:
        youngest = active.pop()
        active += (due := dispatches(machine.complete(youngest.ticket, Failed("no"))))
        started += [asked.lane for asked in due]
        assert len(active) <= 2
    assert started == [((0, index),) for index in range(5)]
    assert machine.result is not None


def test_concurrency_of_a_race_never_starts_lanes_after_the_winner():
    machine, (t0, t1) = lanes_of("race", 5, concurrency=2)
    assert machine.complete(t1, Pass(1)) == [Decision((), 0, 1), Abandon(t0)]
    assert machine.result is not None


# -- metering ---------------------------------------------------------------------------------------------------------

FOREVER = loop("$.n", True, seq(), 2**32 - 1)


def test_pure_work_gives_control_back_after_each_slice():
    machine = machine_of(loop("$.n", True, assign("$.m", 1), 25), slice=10)
    assert machine.start() == []
    grants = 1
    while machine.paused:
        assert machine.proceed() == []
        grants += 1
    assert machine.result == Done({"n": 25, "m": 1})
    assert grants == 3  # 26 nodes entered


def test_an_outcome_that_comes_while_paused_is_kept():
    flow = fanout([0, 1], branch(binary("eq", "$.i", 0), ASK, loop("$.n", True, seq(), 50)), "all")
    machine = machine_of(flow, slice=10)
    (asked,) = dispatches(machine.start())
    assert machine.paused
    assert machine.complete(asked.ticket, Pass("kept")) == []
    while machine.paused:
        machine.proceed()
    assert machine.result.ctx["r"] == [{"i": 0, "got": "kept"}, {"i": 1, "n": 50}]


def test_nothing_runs_while_paused_however_many_outcomes_come():
    looping = branch(binary("lt", "$.i", 20), ASK, loop("$.n", True, seq(), 958))
    machine = machine_of(fanout(list(range(21)), looping, "all"), slice=100)
    asked = dispatches(machine.start())
    assert len(asked) == 20 and machine.paused
    for dispatch in asked:
        assert machine.complete(dispatch.ticket, Pass(1)) == []
    grants = 1
    while machine.paused:
        machine.proceed()
        grants += 1
    assert grants == 11  # 1 + 21 + 20 + 1 + 958 = 1001 nodes entered


def test_a_grant_that_nothing_waits_for_is_no_grant():
    machine = machine_of(seq(step("a", 1, "$.x"), loop("$.n", True, seq(), 7)), slice=5, max_transitions=10)
    (asked,) = machine.start()
    for _ in range(3):
        assert machine.proceed() == []
    machine.complete(asked.ticket, Pass(1))
    while machine.paused:
        machine.proceed()
    assert machine.result == Done({"x": 1, "n": 7})


def test_a_lane_that_loops_does_not_starve_the_others():
    flow = fanout([0, 1], branch(binary("eq", "$.i", 0), FOREVER, seq(seq(), seq())), "race")
    machine = machine_of(flow, slice=4)
    commands = machine.start()
    for _ in range(3):
        commands += machine.proceed()
    assert commands == [Decision((), 0, 1)]
    assert isinstance(machine.result, Done)


def test_too_many_transitions_fail_the_flow_whatever_it_catches():
    flow = fanout([0, 1], branch(binary("eq", "$.i", 0), ASK, guard(FOREVER)), "all_settled")
    machine = machine_of(guard(flow), slice=10, max_transitions=95)
    (asked,) = commands = machine.start()
    while machine.paused:
        commands = machine.proceed()
    assert commands == [Abandon(asked.ticket)]
    assert machine.result == Failed("flow exceeded 95 transitions", "max_flow_transitions")
    assert machine.complete(asked.ticket, Pass(1)) == []
    assert machine.proceed() == []


def test_a_flow_may_use_its_very_last_transition():
    exact = loop("$.n", True, seq(), 9)
    assert run(exact, max_transitions=10) == Done({"n": 9})
    assert run(exact, max_transitions=9).kind == "max_flow_transitions"


def test_a_flow_at_the_depth_limit_runs():
    node = step("a", "$.x", "$.x")
    for _ in range(62):
        node = guard(node, err_at=None)
    assert run(node, {"x": 1}) == Done({"x": 1})


@given(flows)
def test_values_that_go_in_are_never_mutated(flow):
    ctx = {"a": {"x": 1}, "b": [1]}
    kept = []

    def answer(asked):
        kept.append((asked.ctx, copy.deepcopy(asked.ctx), answered := {"x": [asked.ticket]}, copy.deepcopy(answered)))
        return Pass(answered)

    machine = FlowMachine(flow, ctx)
    commands = machine.start()
    while asked := dispatches(commands):
        commands = [command for d in asked for command in machine.complete(d.ticket, answer(d))]
    assert machine.result is not None
    assert ctx == {"a": {"x": 1}, "b": [1]}
    assert all(seen == before and answered == given for seen, before, answered, given in kept)
