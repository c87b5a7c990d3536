"""What `scripts/bench speed` makes of figures: medians, ratios within a round, verdicts, a table; and the bare log."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from bench import attach, contestants, peers, postgres, profile, report, speed
from bench.__main__ import main
from bench.bare import Log, Run, connect
from bench.contestants import BARE, HTTP, REFOLD, Contestant, Failed, measure, ours
from bench.peers import Limit
from bench.sample import latency, payload, rate
from bench.servers import NotUp, listens, port, running
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


def test_a_long_session_is_judged_by_the_short_one_and_both_by_the_clock() -> None:
    suffix = attach.ROWS[0]
    verdicts = [
        attach._judged(suffix, length, {1_000: short, 10**6: long}, {1_000: 9.0, 10**6: 9.0})["clears"]
        for length, short, long in [(1_000, 1.9, 9.0), (1_000, 2.1, 1.0), (10**6, 1.0, 1.2), (10**6, 1.0, 1.4)]
    ]
    assert verdicts == [True, False, True, False]


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
    assert "nobody" in speed.measure([], ["nobody"], rounds=1)["not_run"]
    assert "nobody is NOT RUN" in capsys.readouterr().err


def test_a_peer_on_postgresql_where_none_can_be_had_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "local", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "PostgreSQL 15 or later is not here" in speed.measure([], ["absurd"], rounds=1)["not_run"]["absurd"]


def test_postgresql_is_the_youngest_that_is_here_if_it_is_young_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("9.6.24", "14.30", "15.9", "15.18"):
        program = tmp_path / version / "bin" / "initdb"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'initdb (PostgreSQL) {version} (Debian)'\n")
        program.chmod(0o755)
    monkeypatch.setattr(postgres, "DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "14.30" / "bin"))
    assert str(postgres.local()) == "PostgreSQL 15.18"
    monkeypatch.setattr(postgres, "OLDEST", 16)
    assert postgres.local() is None


def test_what_is_beyond_a_peer_is_named_and_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = list[str]()
    small = Contestant("small", "python", "module", frozenset({"seq"}), (Limit("seq", 5, "it is small"),))
    monkeypatch.setattr(speed.contestants, "ours", list)
    monkeypatch.setattr(speed.contestants, "peer", lambda _: small)
    monkeypatch.setattr(speed.contestants, "raw_commits", lambda: 100.0)
    monkeypatch.setattr(speed.contestants, "measure", lambda who, *_: begun.append(who.name) or {"per_s": 1.0})
    found = speed.measure([FAST], ["small"], rounds=1)
    assert (begun, found["cannot"]) == ([], {"small": {"steps in turn": "it is small"}})
    found = speed.measure([FAST], ["small"], rounds=1, shrink=2)
    assert (begun, found["cannot"]) == (["small"], {})


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
@pytest.mark.parametrize(("work", "figures"), [("events", {"mib", "mb"}), ("wrote", {"mib"})])
def test_a_session_is_written_and_served_and_what_that_took_is_told(work: str, figures: set[str]) -> None:
    (contestant,) = (each for each in ours() if work in each.works)
    found = measure(contestant, work, 2_000)
    assert found.keys() == figures
    assert all(0 < found[each] < 64 for each in figures)


@pytest.mark.e2e
def test_what_a_contestant_cannot_do_is_told() -> None:
    with pytest.raises(Failed, match="KeyError"):
        measure(ours()[0], "nothing", 1)


def program(tmp_path: Path, body: str) -> str:
    """A program that stands for a peer's Python, whatever work it is given."""
    path = tmp_path / "program"
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)
    return str(path)


SLEEPS = "import time; time.sleep(600)"
LISTENS = "import socket, sys; door = socket.create_server(('127.0.0.1', int(sys.argv[1])))"


@pytest.mark.e2e
@pytest.mark.parametrize("work", ["seq", "resume"])
def test_who_hangs_is_ended_with_what_it_started_and_its_server_too(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contestants, "WORK_SECS", 1)
    ended = list[str]()

    @contextmanager
    def server(folder: Path) -> Iterator[None]:
        try:
            yield
        finally:
            ended.append("server")

    with socket.create_server(("127.0.0.1", 0)) as door:
        child = f"import os, socket; os.fork() or socket.create_connection({door.getsockname()!r}).recv(1); {SLEEPS}"
        hangs = Contestant("hangs", program(tmp_path, child), "module", frozenset(), server=server)
        with pytest.raises(Failed, match="hangs was not done"):
            measure(hangs, work, 1)
        assert ended == ["server"]
        door.settimeout(10)
        line, _ = door.accept()
        with line:
            line.settimeout(10)
            assert line.recv(1) == b"", "its child lives on"


@pytest.mark.e2e
def test_a_server_is_up_within_its_block_and_comes_back_where_it_was(tmp_path: Path) -> None:
    door = port(tmp_path, "door")
    command = [program(tmp_path, f"{LISTENS}; {SLEEPS}"), str(door)]
    for _ in range(2):
        assert not listens(port(tmp_path, "door"))
        with pytest.raises(KeyError), running(command, tmp_path, partial(listens, door)) as process:
            raise KeyError("what is asked of it fails")
        assert process.returncode == -signal.SIGKILL


@pytest.mark.e2e
def test_a_server_that_ends_at_its_start_is_told_with_what_it_said(tmp_path: Path) -> None:
    command = [program(tmp_path, "import sys; sys.exit('no room here')")]
    with pytest.raises(NotUp, match="no room here"), running(command, tmp_path, lambda: False):
        pytest.fail("it is not up")

    def server(folder: Path) -> AbstractContextManager[object]:
        return running(command, folder, lambda: False)

    with pytest.raises(Failed, match="could not begin seq: program did not open its door"):
        measure(Contestant("who", "python", "module", frozenset(), server=server), "seq", 1)


@pytest.mark.e2e
@pytest.mark.skipif(postgres.local() is None, reason="needs PostgreSQL 15 or later")
def test_postgresql_comes_back_after_it_was_ended_as_by_a_crash(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # not tmp_path, which is closed to the user that it needs beside root
        folder = Path(name)
        for _ in range(2):
            with postgres.serving(tmp_path, folder):
                assert listens(port(folder, "postgres"))
            assert not listens(port(folder, "postgres"))


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
    cannot = {"absurd": {"fan-out": "one after the other", "ctx": "too large", "its disk": "too large"}}
    return {"machine": machine, "rounds": 3, "shrink": 1, "peers": {"dbos": ["dbos==1"]}, "not_run": not_run} | {
        "cannot": cannot,
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
    assert "absurd cannot do: fan-out (one after the other); ctx, its disk (too large)." in page


def test_the_plot_is_a_picture_also_where_somebody_took_no_time(found: Json) -> None:
    root = ET.fromstring(report.plot(found))
    assert len([each for each in root.iter() if each.tag.endswith("rect")]) >= 5


def test_everybody_has_a_colour_of_its_own() -> None:
    assert len(set(report.COLOURS)) >= len({each.name for each in ours()}) + len(peers.PEERS)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# -- where the time goes ----------------------------------------------------------------------------------------------


def columns(page: str) -> dict[str, dict[str, float]]:
    """The shares of a table of `profile`, by workload and place."""
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()]
    return {name: {cells[0]: float(cells[n]) for cells in lines} for n, name in enumerate(head[1:], 1)}


def test_what_is_not_named_is_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "SHOWN", 2)
    shares = {"seq": Counter({"a": 70.0, "c": 20.0, "d": 10.0}), "fan": Counter({"b": 60.0, "a": 35.0, "d": 5.0})}
    assert columns(profile.table(shares)) == {
        "seq": {"a": 70.0, "b": 0.0, "all else": 30.0},
        "fan": {"a": 35.0, "b": 60.0, "all else": 5.0},
    }


def bench(*arguments: str, **patched: str) -> subprocess.CompletedProcess[str]:
    """`scripts/bench` in a process of its own, whose timer is its own too; with things of `profile` set otherwise."""
    setting = "; ".join(f"profile.{name} = {value}" for name, value in patched.items())
    code = (
        f"import sys; from bench import profile; {setting or 'pass'}; from bench.__main__ import main; sys.exit(main())"
    )
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=contestants.ROOT, capture_output=True, text=True, check=False)


@pytest.mark.e2e
def test_a_profile_says_of_every_workload_where_all_its_time_went() -> None:
    done = bench("profile", "--quick")
    assert done.returncode == 0, done.stderr
    found = columns(done.stdout)
    assert found.keys() == profile.WORKS.keys()
    for places in found.values():
        assert sum(places.values()) == pytest.approx(100, abs=1)  # each is rounded to a tenth
        assert places["all else"] < 50
        assert places["store/sqlite.py, its commits"] + places["store/sqlite.py"] > 0


@pytest.mark.e2e
def test_a_profile_in_which_nothing_was_seen_is_a_fault_and_no_table() -> None:
    done = bench("profile", "--quick", LOOK_SECS="3600")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing was seen of seq" in done.stderr


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
