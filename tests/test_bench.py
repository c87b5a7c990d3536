"""What `scripts/bench speed` makes of figures: medians, ratios within a round, verdicts, a table; and the bare log."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from bench import report, speed
from bench.__main__ import main
from bench.bare import Log, Run, connect
from bench.contestants import BARE, HTTP, REFOLD, Contestant, Failed, measure, ours
from bench.sample import latency, payload, rate
from bench.speed import Sample, Task, _order, judged
from bench.table import PEERS, ROWS, Bar, Row

Json = Any
FAST = Row("seq", "steps in turn", "seq", 10, "per_s", "steps/s", True, (Bar(0.7, BARE), Bar(1.8, PEERS)))
SHORT = Row("fan", "fan-out", "fan", 10, "ms", "ms", False, (Bar(3, BARE), Bar(6, None, HTTP)))


def samples(row: Row, *rounds: dict[str, float]) -> list[Sample]:
    """One sample for everybody who is named in a round."""
    return [
        Sample(n, who, row.work, row.size, 100.0, {row.figure: figure})
        for n, figures in enumerate(rounds)
        for who, figure in figures.items()
    ]


def verdicts(row: Row, *rounds: dict[str, float]) -> list[tuple[float | None, bool | None]]:
    return [(bar["found"], bar["clears"]) for bar in judged(row, samples(row, *rounds))["bars"]]


def test_a_ratio_is_taken_within_its_round_and_the_median_is_judged() -> None:
    # Over all rounds refold's median is 100 and the bare log's 200; round by round it is 0.8, 0.8 and 0.1.
    rounds = [{REFOLD: 80.0, BARE: 100.0}, {REFOLD: 160.0, BARE: 200.0}, {REFOLD: 100.0, BARE: 1000.0}]
    assert verdicts(FAST, *rounds)[0] == (0.8, True)


def test_of_peers_the_best_counts() -> None:
    figures = {REFOLD: 100.0, "slow": 10.0, "quick": 80.0, BARE: 900.0, HTTP: 900.0}
    assert verdicts(FAST, figures)[1] == (1.25, False)


def test_less_is_better_turns_a_bar_round() -> None:
    assert verdicts(SHORT, {REFOLD: 31.0, BARE: 10.0, HTTP: 5.0}) == [(3.1, False), (5.0, True)]


def test_what_nobody_ran_is_not_judged() -> None:
    assert verdicts(FAST, {REFOLD: 100.0}) == [(None, None), (None, None)]
    assert verdicts(FAST) == [(None, None), (None, None)]


def test_figures_of_another_size_are_not_taken() -> None:
    other = samples(FAST._replace(size=99), {REFOLD: 1.0, BARE: 1.0})
    assert judged(FAST, other)["medians"] == {}


def test_those_who_do_the_same_work_are_measured_together_in_an_order_of_each_round() -> None:
    who = [Contestant(name, "python", "module", frozenset()) for name in "abc"]
    tasks = [Task(each, work, 1) for work in ("seq", "many", "fan", "lat") for each in who]
    orders = [_order(n, tasks) for n in range(4)]
    assert all(set(order) == set(tasks) and len(order) == len(tasks) for order in orders)
    assert all(len({task.work for task in order[at : at + 3]}) == 1 for order in orders for at in (0, 3, 6, 9))
    assert len({tuple(order) for order in orders}) == 4
    assert _order(1, tasks) == orders[1]


def test_rows_have_keys_of_their_own_and_figures_that_are_found_somewhere() -> None:
    assert len({row.key for row in ROWS}) == len(ROWS)


# -- the command line -------------------------------------------------------------------------------------------------


def run(monkeypatch: pytest.MonkeyPatch, found: Json, *arguments: str) -> int:
    """The exit code of `scripts/bench` if it had found this."""
    monkeypatch.setattr(speed, "measure", lambda *_, **how: found)
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    return main()


@pytest.mark.parametrize(
    ("figures", "code"), [({REFOLD: 9.0, BARE: 9.0}, 0), ({REFOLD: 1.0, BARE: 9.0}, 1), ({REFOLD: 1.0}, 0)]
)
def test_check_fails_for_a_missed_bar_and_not_for_one_that_was_not_run(
    figures: dict[str, float], code: int, found: Json, monkeypatch: pytest.MonkeyPatch
) -> None:
    found["rows"] = [judged(FAST, samples(FAST, figures))]
    assert run(monkeypatch, found, "--check") == code
    assert run(monkeypatch, found) == 0


def test_check_fails_if_somebody_did_not_do_its_work(found: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    found |= {"rows": [], "samples": [Sample(0, "dbos", "seq", 1, 1.0, {}, "it fell")._asdict()]}
    assert run(monkeypatch, found, "--check") == 1


def test_a_row_that_does_not_exist_is_a_usage_error(found: Json, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, found, "--only", "seq,nothing")
    assert ended.value.code == 2


def test_a_peer_that_cannot_be_had_is_said_aloud(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "restate" in speed.measure([], ["restate"], rounds=1)["not_run"]
    assert "restate is NOT RUN" in capsys.readouterr().err


def test_when_time_is_up_nothing_more_is_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed.contestants, "measure", lambda *_: pytest.fail("it was begun"))
    found = speed.measure([FAST], [], rounds=1, minutes=-1)
    assert found["rows"][0]["medians"] == {}
    assert "time is up" in capsys.readouterr().err


# -- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize("who", [BARE, REFOLD])
def test_a_process_that_is_killed_goes_on_where_it_was(who: str) -> None:
    contestant = next(each for each in ours() if each.name == who and "resume" in each.works)
    found = measure(contestant, "resume", 7)
    assert found["ran_again"] == 0
    assert found["secs"] > 0 and found["scan_per_s"] > 0


@pytest.mark.e2e
def test_what_a_contestant_cannot_do_is_told() -> None:
    with pytest.raises(Failed, match="KeyError"):
        measure(ours()[0], "nothing", 1)


# -- the page ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def found() -> Json:
    rows = [
        judged(FAST, samples(FAST, {REFOLD: 1234.0, BARE: 2000.0, "dbos": 200.0})),
        judged(SHORT, samples(SHORT, {REFOLD: 10.0, BARE: 0.0})),
    ]
    sqlite = {"refold": "3.54", "bare log": "3.40"}
    machine = {"commit": "abc1234", "cores": 2, "system": "Linux", "python": "3.11", "sqlite": sqlite}
    not_run = {"restate": "nobody has written its workloads"}
    return {"machine": machine, "rounds": 3, "shrink": 1, "peers": {"dbos": ["dbos==1"]}, "not_run": not_run} | {
        "rows": rows,
        "samples": [],
    }


def test_the_table_says_what_was_missed_and_what_was_not_run(found: Json) -> None:
    page = report.markdown(found)
    assert "| steps in turn, steps/s | 1,234 | 2,000 | 200 | 100 |" in page
    assert "refold ≥ 0.7 × bare log: 0.617 **missed**" in page
    assert "refold ≥ 1.8 × best peer: 6.17<br>" in page or "refold ≥ 1.8 × best peer: 6.17 |" in page
    assert "refold HTTP ≤ 6 ms: not run" in page
    assert "**restate was not run**: nobody has written its workloads." in page


def test_the_plot_is_a_picture_also_where_somebody_took_no_time(found: Json) -> None:
    root = ET.fromstring(report.plot(found))
    assert len([each for each in root.iter() if each.tag.endswith("rect")]) >= 5


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# -- what is measured -------------------------------------------------------------------------------------------------


def test_payloads_are_1_kib_and_differ() -> None:
    assert {len(payload(n)) for n in range(100)} == {1024}
    assert len({payload(n) for n in range(100)}) == 100


def test_the_end_of_a_long_run_is_compared_with_its_beginning() -> None:
    slower = [0.001 * n for n in range(1000)] + [1.0 + 0.002 * n for n in range(1000)]
    assert rate(2000, 3.0, slower)["last_to_first"] == pytest.approx(0.5)
    assert "last_to_first" not in rate(1999, 3.0, slower[:1999])


def test_percentiles_are_milliseconds() -> None:
    assert latency([n / 1000 for n in range(1, 101)]) == {"p50": 51.0, "p99": 100.0}


@pytest.mark.anyio
async def test_the_bare_log_answers_what_it_logged(tmp_path: Any) -> None:
    asked: list[int] = []

    def work(n: int) -> int:
        asked.append(n)
        return n * n

    log = Log(tmp_path)
    first = Run(log, 1)
    answers = [await first.step("square", n, work) for n in (2, 3, 2)]
    again = Run(log, 1, log.read(1))
    assert [await again.step("square", n, work) for n in (2, 3, 2)] == answers == [4, 9, 4]
    assert asked == [2, 3, 2]


@pytest.mark.anyio
async def test_the_bare_log_keeps_ctx_as_deltas_until_they_weigh_what_the_last_full_one_does(tmp_path: Any) -> None:
    run = Run(Log(tmp_path), 1)
    for n in range(64):
        await run.step("grow", n, payload, f"k{n}")
    rows = connect(tmp_path).execute("SELECT is_full, length(ctx) FROM log ORDER BY n").fetchall()
    assert sum(full for full, _ in rows) < 10
    assert sum(size for _, size in rows) < 4 * 64 * 1100
