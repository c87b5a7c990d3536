"""Stored snapshots give back exactly what was stored, at a price that does not grow with the ctx.

Ctxs are made as flows make them: copies along a path, everything else shared; and as they never do, to be sure.
"""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import CTX, assign, flows, guard, json_values, lit, seq, step

from refold.canonical import decode, encode
from refold.errors import StoreDamaged
from refold.flowir import Blocked, Dispatch, FlowMachine, Node, Pass, Skip, parse_flow, path, read_all
from refold.flowir.messages import Trail
from refold.flowir.outputs import REPEATED_BYTES, Outputs
from refold.flowir.snapshots import Writer, dispatch_ctx
from refold.records import Lane, ReplayRow

Json = Any
Given = dict[str, Json]

LANES: list[Lane] = [(), ((0, 0),), ((0, 1),), ((0, 1), (2, 0))]
LONG = "x" * REPEATED_BYTES


class Log:
    """The rows of a Run, and the dispatch Ctx that each was written with."""

    def __init__(self) -> None:
        self.rows: list[ReplayRow] = []
        self.given: list[Given] = []
        self.writer = Writer()
        self.ordinal = 0

    def passed(
        self, ctx: Json, output: Json, lane: Lane = (), step_ctx: Json = None, trail: tuple[int, Trail] = (0, Trail())
    ) -> None:
        """Logs a step that answered `output` where it saw `ctx`; `trail` is its ticket, and how the ctx came about."""
        self.ordinal += 1
        place = {"attempt": self.ordinal % 3, "lane": lane, "step_ctx": step_ctx}
        given = dispatch_ctx("R-1", step_id=f"ST-{self.ordinal}", agent=f"a{self.ordinal % 4}", ctx=ctx, **place)
        text, said = self.writer.write(self.ordinal, given, *trail), encode(output)
        self.writer.passed(self.ordinal, output, said)
        self.given.append(given)
        asked = {"step_ref": given["agent"], "input_hash": "", "occurrence": self.ordinal, "lane_json": encode(lane)}
        at = {"run": 1, "ordinal": self.ordinal, "generation": 1, "epoch": 1, "created_at": 0}
        self.rows.append(ReplayRow(**at, **asked, ctx_snapshot_json=text, step_output_json=said))

    def resume(self, outputs: Outputs | None = None) -> None:
        """Another driver goes on; `outputs` is what it was answered with."""
        self.writer = Writer(outputs)

    def skip(self) -> None:
        """A decision or a cut takes an ordinal."""
        self.ordinal += 1

    @property
    def size(self) -> int:
        """Characters that are stored: snapshots and outputs."""
        return self.outputs + sum(len(row.ctx_snapshot_json) for row in self.rows)

    @property
    def outputs(self) -> int:
        return sum(len(row.step_output_json) for row in self.rows)


def exactly(value: Json) -> str:
    """Text that is equal for equal values of equal types: to Python 1, 1.0 and True are one."""
    return json.dumps(value, sort_keys=True)


def assert_reads_back(log: Log) -> None:
    read = list(read_all(log.rows))
    assert [row for row, _ in read] == log.rows
    assert [exactly(whole) for _, whole in read] == [exactly(given) for given in log.given]


# -- the law ----------------------------------------------------------------------------------------------------------

keys = st.sampled_from(["a", "b", "c", "x y", ""])
paths = st.lists(keys, max_size=3).map(tuple)
values = st.one_of(json_values, st.just(LONG), st.builds(lambda value: {"long": LONG, "more": value}, json_values))


@st.composite
def changed(draw: st.DrawFn, ctx: Json, said: list[Json]) -> Json:
    """A ctx that follows `ctx`; `said` is what agents answered so far."""
    match draw(st.sampled_from(["write", "write", "write", "answer", "answer", "copy", "remove", "replace", "same"])):
        case "write":
            return written(ctx, draw(paths), draw(values))
        case "answer" if said:
            return written(ctx, draw(paths), draw(st.sampled_from(said)))
        case "copy":
            return copy.deepcopy(ctx)
        case "remove" if isinstance(ctx, dict) and ctx:
            gone = draw(st.sampled_from(sorted(ctx)))
            return {key: value for key, value in ctx.items() if key != gone}
        case "replace":
            return draw(st.one_of(json_values, st.sampled_from([{}, [], LONG, None, 1, 1.0, True]), st.just(said[-1:])))
    return ctx


def written(ctx: Json, at: tuple[str, ...], value: Json) -> Json:
    """As a flow writes; where it could not, the whole is replaced."""
    node = ctx
    for key in at[:-1]:
        node = node.get(key) if isinstance(node, dict) else node
    return path.write(ctx if isinstance(ctx, dict) and (node is None or isinstance(node, dict)) else {}, at, value)


@given(st.data())
def test_every_row_gives_back_the_ctx_that_it_was_written_with(data: st.DataObject) -> None:
    log, ctxs, said = Log(), {lane: {} for lane in LANES}, []
    for event in data.draw(st.lists(st.sampled_from(["pass"] * 6 + ["resume", "skip"]), max_size=20)):
        if event == "pass":
            lane = data.draw(st.sampled_from(LANES))
            ctxs[lane] = ctx = data.draw(changed(ctxs[lane], said))
            said.append(data.draw(values))
            log.passed(ctx, said[-1], lane, data.draw(st.sampled_from([None, {}, {"meta": 1}])))
        else:
            getattr(log, event)()
    assert_reads_back(log)


def test_what_a_flow_does_not_have_to_be_an_object() -> None:
    log = Log()
    for ctx in (None, {}, {"a": None}, [], {"a": {}}, 1, 1.0, True, LONG, {"a": {"b": {}}}, {"a": {"b": {"c": LONG}}}):
        log.passed(ctx, LONG)
    assert_reads_back(log)


def test_a_member_that_is_gone_is_named_by_its_path_alone() -> None:
    log, kept = Log(), {"long": LONG}
    for ctx in ({"a": {"b": {"c": 1, "d": kept}, "e": kept}}, {"a": {"b": {"d": kept}, "e": kept}}, {"a": {"e": kept}}):
        log.passed(ctx, 1)
    assert [row.ctx_snapshot_json.count(LONG) for row in log.rows] == [2, 0, 0]
    assert '"set":[[["a","b"]]]' in log.rows[2].ctx_snapshot_json
    assert_reads_back(log)


def test_an_answer_is_named_wherever_it_stands_and_repeated_only_if_it_is_short() -> None:
    log, long, short = Log(), {"text": LONG}, {"text": "x"}
    log.passed({}, long)
    log.passed({"first": long}, short)
    log.passed({"first": long, "in": {"it": long}, "second": short}, LONG)
    log.passed(long, None)
    assert [text.ctx_snapshot_json.count(LONG) for text in log.rows] == [0, 0, 1, 0]  # new around it: repeated once
    assert '{"o":1}' in log.rows[1].ctx_snapshot_json and '"second"],{"v"' in log.rows[2].ctx_snapshot_json
    assert_reads_back(log)


def test_a_resumed_driver_names_what_it_was_answered_with() -> None:
    log, answered, other = Log(), Outputs(), LONG + "!"
    log.passed({}, LONG)
    log.passed({"a": LONG}, other)
    answered.note(1, LONG, encode(LONG))
    log.resume(answered)
    log.passed({"a": LONG, "b": other}, 1)
    assert log.rows[2].ctx_snapshot_json.endswith('"set":[[["a"],{"o":1}],[["b"],{"v":"' + other + '"}]]}')
    assert_reads_back(log)


def test_a_row_whose_base_is_gone_is_damage() -> None:
    log = Log()
    for number in range(3):
        log.passed({"n": number, "long": LONG}, number)
    del log.rows[0]
    with pytest.raises(StoreDamaged, match="row 2 builds on row 1, which is not there"):
        list(read_all(log.rows))


# -- where changes are looked for -------------------------------------------------------------------------------------


def logged(flow: Node, ctx: Json, answers: Callable[[Dispatch], Any]) -> Log:
    """What a Run of a flow logs. Every row is written as if nothing were known of its ctx, too, and says the same."""
    log, searching, machine = Log(), Writer(), FlowMachine(flow, ctx)
    commands = machine.start()
    while commands:
        follow: list[Any] = []
        for command in commands:
            if not isinstance(command, Dispatch) or machine.result is not None:
                continue
            outcome = answers(command)
            if isinstance(outcome, Pass) and outcome.value != ANSWERED_BEFORE:
                trail = command.ticket, command.trail
                log.passed(command.ctx, outcome.value, command.lane, trail=trail)
                searched = searching.write(log.ordinal, log.given[-1])
                searching.passed(log.ordinal, outcome.value, encode(outcome.value))
                assert changes(log.rows[-1].ctx_snapshot_json) == changes(searched)
            follow += machine.complete(command.ticket, outcome)
        commands = follow
    return log


ANSWERED_BEFORE = "logged by another driver"
"""What a replay row has answered: it is a Pass, and makes no row."""


def changes(text: str) -> tuple[Json, list[str]]:
    stored = decode(text)
    return stored, sorted(map(encode, stored.pop("set")))


@given(flows, st.randoms(use_true_random=False))
def test_where_a_flow_says_that_it_wrote_is_all_that_has_changed(flow: Node, rng: random.Random) -> None:
    def answers(asked: Dispatch) -> Any:
        draw = rng.randrange(8)
        said = [{"x": rng.randrange(3)}, LONG, [asked.ticket], {}, ANSWERED_BEFORE][draw % 5]
        return Blocked("no") if draw == 5 else Skip("none") if draw == 6 else Pass(said)

    assert_reads_back(logged(flow, CTX, answers))


@pytest.mark.parametrize(
    ("written", "changed"),
    [
        ([], [["n"]]),
        (["$.a.x"], [["n"], ["a", "x"]]),
        (["$.a.x", "$.a.y", "$.b"], [["n"], ["a", "x"], ["a", "y"], ["b"]]),
        (["$.a.x", "$.a"], [["n"], ["a", "z"], ["a", "new"]]),
        (["$.a", "$.a.x"], [["n"], ["a", "z"], ["a", "new"], ["a", "x"]]),
        (["$.b", "$"], [[]]),
    ],
)
def test_paths_within_each_other_are_looked_at_once(written: list[str], changed: list[list[str]]) -> None:
    assigned = [assign(at, lit({"new": 1} if at == "$.a" else 1)) for at in written]
    ctx = {"a": {"z": 1}, "long": 8 * LONG}
    log = logged(parse_flow(seq(step("a", lit(0), "$.n"), *assigned, step("a", lit(1), "$.n"))), ctx, lambda _: Pass(0))
    assert [at for at, *_ in decode(log.rows[1].ctx_snapshot_json)["set"]] == changed
    assert_reads_back(log)


def test_what_a_caught_error_takes_back_before_any_row_is_no_change() -> None:
    guarded = guard(seq(assign("$.mine", lit(LONG)), step("refuses", lit(2), "$.c")), err_at=None)
    flow = parse_flow(seq(step("a", lit(0), "$.n"), guarded, step("a", lit(3), "$.m")))
    log = logged(flow, {"long": LONG}, lambda asked: Blocked("no") if asked.ref == "refuses" else Pass(0))
    assert decode(log.rows[1].ctx_snapshot_json)["set"] == [[["n"], {"v": 0}]]
    assert_reads_back(log)


def test_what_a_caught_error_takes_back_is_found_although_it_was_written_before_the_last_row() -> None:
    body = seq(assign("$.mine", lit(LONG)), step("a", lit(1), "$.b"), step("refuses", lit(2), "$.c"))
    flow = parse_flow(seq(step("a", lit(0), "$.a"), guard(body), step("a", lit(3), "$.d")))
    log = logged(
        flow, {"long": 8 * LONG}, lambda asked: Blocked("no") if asked.ref == "refuses" else Pass(asked.ticket)
    )
    assert [encode(["mine"]) in row.ctx_snapshot_json for row in log.rows] == [False, True, True]
    assert_reads_back(log)


# -- the price --------------------------------------------------------------------------------------------------------

ROWS, KIB = 2_000, 1024


def test_no_row_is_far_from_a_whole_one() -> None:
    """Reading one row reads the deltas back to a whole one: never more of them than it is long, and the last one."""
    log, ctx = Log(), {}
    for number in range(ROWS):
        log.passed(ctx, number)
        ctx = path.write(ctx, (f"k{number % 300}",), number)
    wholes, since, whole = 0, 0, 0
    for text in (row.ctx_snapshot_json for row in log.rows):
        if '"base"' not in text:
            wholes, since, whole = wholes + 1, 0, len(text)
            continue
        assert since < whole
        since += len(text)
    assert wholes > 10


@pytest.mark.parametrize(
    ("lanes", "below"), [(1, ()), (1, ("all",)), (50, ()), (2, ())], ids=["sequence", "nested", "fan-out", "long lanes"]
)
def test_what_is_stored_grows_with_what_was_said_and_not_with_the_ctx(lanes: int, below: tuple[str, ...]) -> None:
    log, ctxs = Log(), {((0, index),): {"input": "i" * KIB} for index in range(lanes)}
    for number in range(ROWS // lanes):
        for lane, ctx in ctxs.items():
            answer = f"{number} in {lane}".ljust(KIB)
            log.passed(ctx, answer, lane)
            ctxs[lane] = path.write(ctx, (*below, f"k{number}"), answer)
    assert log.size <= 4 * log.outputs, log.size / log.outputs
    *_, (_, last) = read_all(log.rows)
    assert exactly(last) == exactly(log.given[-1])


def test_a_row_costs_no_more_work_where_the_ctx_is_large() -> None:
    assert lines_of_a_step(2_000) == lines_of_a_step(20)


def lines_of_a_step(members: int) -> int:
    """How many lines of refold run to log one step that adds its answer to a ctx of so many members."""
    children = [step("a", lit(number), f"$.k{number}") for number in range(8)]
    machine = FlowMachine(parse_flow(seq(*children)), {f"m{number}": LONG for number in range(members)})
    log, commands = Log(), machine.start()
    for _ in children[:-1]:
        (asked,) = commands
        lines = lines_of(lambda asked=asked: log.passed(asked.ctx, LONG, trail=(asked.ticket, asked.trail)))
        commands = machine.complete(asked.ticket, Pass(LONG))
    return lines


def lines_of(do: Callable[[], object]) -> int:
    count = 0

    def traced(frame: Any, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        do()
    finally:
        sys.settrace(before)
    return count
