"""What a scrape sees, and that it grows with what happens and with nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from http_kit import Door, assign, launching, opened, step
from prometheus_client.parser import text_string_to_metric_families

from refold.errors import CommitFailed, Fenced
from refold.records import AttemptStatus, RunStatus
from refold.server.rpc import Peer, Rpc

pytestmark = pytest.mark.anyio


async def scrape(door: Door) -> Mapping[str, float]:
    """Every sample by its name, with its labels where it has any."""
    answer = await door.send("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        sample.name + "".join(f"|{value}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


async def test_runs_are_counted_by_status(door: Door) -> None:
    before = await scrape(door)
    assert {name: value for name, value in before.items() if name.startswith("refold_runs|")} == {
        f"refold_runs|{status}": 0 for status in RunStatus
    }
    await door.launch(step("echo"))
    await door.launch(step("fail"))
    await door.launch(step("gate"), detach=True, status=202)
    after = await scrape(door)
    for status, count in (("done", 1), ("failed", 1), ("running", 1), ("pending", 0)):
        assert after[f"refold_runs|{status}"] == count


async def test_steps_are_counted_by_outcome_once_they_are_durable(door: Door) -> None:
    before = await scrape(door)
    assert {before[f"refold_steps_total|{outcome}"] for outcome in AttemptStatus} == {0}
    await door.launch(step("echo"), step("echo"), step("fail"))
    after = await scrape(door)
    assert (after["refold_steps_total|passed"], after["refold_steps_total|failed"]) == (2, 1)
    assert after["refold_steps_total|blocked"] == 0


async def test_a_step_whose_commit_failed_is_not_counted(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, refusals = door.app.store._store, iter([CommitFailed("disk full")])

    async def commit(step_commit: object, also: object = None) -> object:
        if step_commit.ends and (error := next(refusals, None)):
            raise error
        return await type(inner).commit(inner, step_commit, also)

    monkeypatch.setattr(inner, "commit", commit)
    came = await door.launch(step("echo"))
    assert came["status"] == "interrupted"
    after = await scrape(door)
    assert (after["refold_steps_total|passed"], after["refold_commits_total|failed"]) == (0, 1)


async def test_commits_are_counted_and_timed(door: Door) -> None:
    before = await scrape(door)
    await door.launch(assign("$.x", 1))
    after = await scrape(door)
    grown = after["refold_commits_total|ok"] - before["refold_commits_total|ok"]
    assert grown == 2, "the launch and the end"
    assert after["refold_commit_seconds_count"] - before["refold_commit_seconds_count"] == grown
    assert after["refold_commit_seconds_sum"] > before["refold_commit_seconds_sum"]


async def test_a_fenced_commit_is_told_apart(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fenced(fn: object) -> None:
        raise Fenced("another driver owns it")

    monkeypatch.setattr(door.app.store._store, "write", fenced)
    with pytest.raises(Fenced):
        await door.app.store.write(lambda tx: None)
    after = await scrape(door)
    assert (after["refold_commits_total|fenced"], after["refold_commits_total|failed"]) == (1, 0)


async def test_a_refusal_is_no_failed_commit(door: Door) -> None:
    await door.ask("POST", "/v1/runs/R-00000000000000ff/cancel", status=404)
    assert (await scrape(door))["refold_commits_total|failed"] == 0


async def test_open_connections_are_counted(door: Door) -> None:
    rpc = Rpc(door.app, "/home")

    async def send(frame: bytes) -> None:
        pass

    async with Peer(rpc, send), Peer(rpc, send):
        assert (await scrape(door))["refold_open_connections"] == 2
    assert (await scrape(door))["refold_open_connections"] == 0


async def test_what_slow_readers_missed_and_whom_nobody_could_tell_is_counted(door: Door) -> None:
    metrics = door.app.metrics
    names = ("refold_reader_gaps_total", "refold_notices_dropped_total", "refold_requests_told_total|failed")
    before = await scrape(door)
    metrics.reader_gaps, metrics.notices_dropped, metrics.requests_told["failed"] = 1, 2, 3
    after = await scrape(door)
    assert [[each[name] for name in names] for each in (before, after)] == [[0, 0, 0], [1, 2, 3]]


async def test_faults_of_the_sweep_are_counted(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await scrape(door))["refold_sweep_faults_total"] == 0
    store = door.app.sweep._store

    async def fails(fn: object) -> None:
        raise CommitFailed("disk full")

    monkeypatch.setattr(store, "write", fails)
    await door.app.sweep.sweep()
    assert (await scrape(door))["refold_sweep_faults_total"] == 1
    assert (await door.ask("GET", "/v1/status"))["stale_run_sweep"] == {"interrupted": 0, "faults": 1}


async def test_labels_come_from_closed_lists(door: Door) -> None:
    """A metric with a label per Run grows for ever."""
    before = (await scrape(door)).keys()
    for n in range(3):
        await door.ask("POST", "/v1/tasks", launching(step("echo"), goal=str(n), labels={"n": str(n)}))
    assert (await scrape(door)).keys() == before


async def test_two_apps_of_a_process_count_apart() -> None:
    async with opened() as one, opened() as two:
        await one.launch(step("echo"))
        assert ((await scrape(one))["refold_steps_total|passed"], (await scrape(two))["refold_steps_total|passed"]) == (
            1,
            0,
        )
