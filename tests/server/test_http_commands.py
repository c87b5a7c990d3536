"""Kicks and verbs over HTTP: waiting and not waiting, time limits, and command ids that apply once (laws 8 and 9)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import time_machine
from http_kit import NO_RUN, NO_TASK, Door, assign, blueprint, launching, opened, step, uuid7

from refold.records import CommandRow, LogRow, RunRecord, TaskRecord

pytestmark = pytest.mark.anyio
Json = Any
DETACHED = {"detach": True}


async def count(door: Door, kind: type) -> int:
    return await door.app.store.read(lambda reader: reader.count(kind))


# -- waiting ----------------------------------------------------------------------------------------------------------


async def test_a_launch_is_answered_when_its_run_has_ended(door: Door) -> None:
    came = await door.launch(assign("$.x", 1))
    assert came.keys() == {"task_id", "run_id", "session_id", "status", "final_ctx"}
    assert (came["status"], came["final_ctx"]) == ("done", {"x": 1})
    failed = await door.launch(step("fail"))
    assert failed["status"] == "failed"
    assert "told to fail" in failed["error"]


async def test_a_detached_launch_is_answered_at_once(door: Door) -> None:
    came = await door.launch(step("gate"), **DETACHED, status=202)
    assert came == {**came, "status": "running"}
    door.gate.set()
    assert (await door.settled(came["run_id"]))["result_ref"] == {"gate": 1}


async def test_a_wait_ends_and_the_run_goes_on(door: Door) -> None:
    came = await door.launch(step("gate"), timeout_secs=0.01, status=504)
    assert (came["kind"], came["error"]) == ("timeout", f"run {came['run_id']} is still going; ask for it later")
    assert (await door.ask("GET", f"/v1/runs/{came['run_id']}"))["status"] == "running"
    door.gate.set()
    assert (await door.settled(came["run_id"]))["status"] == "done"


async def test_a_rekick_waits_or_not_as_a_launch_does(door: Door) -> None:
    path = f"/v1/tasks/{(await door.launch(assign('$.x', 1), init_ctx={'a': 1}))['task_id']}/runs"
    again = await door.ask("POST", path, {"init_ctx_override": {"b": 2}}, status=201)
    assert again["final_ctx"] == {"a": 1, "b": 2, "x": 1}
    assert (await door.ask("POST", path, DETACHED, status=202)).keys() == {"task_id", "run_id", "session_id", "status"}
    refused = await door.ask("POST", path, DETACHED | {"timeout_secs": 1}, status=400)
    assert refused["kind"] == "invalid_request"
    assert (await door.ask("POST", f"/v1/tasks/{NO_TASK}/runs", {}, status=404))["kind"] == "task_not_found"


async def test_the_labels_of_a_task_are_those_of_its_runs(door: Door) -> None:
    came = await door.launch(labels={"team": "blue"})
    again = await door.ask("POST", f"/v1/tasks/{came['task_id']}/runs", status=201)
    for path in (f"/v1/tasks/{came['task_id']}", f"/v1/runs/{came['run_id']}", f"/v1/runs/{again['run_id']}"):
        assert (await door.ask("GET", path))["labels"] == {"team": "blue"}


# -- the time that a Run may take -------------------------------------------------------------------------------------


async def test_a_run_fails_when_its_time_is_over_and_its_work_is_stopped(door: Door) -> None:
    came = await door.launch(step("gate"), ttl_secs=0.05)
    assert (came["status"], came["kind"]) == ("failed", "ttl_exceeded")
    assert came["error"] == "its ttl of 0.05 s is over"
    run = await door.ask("GET", f"/v1/runs/{came['run_id']}")
    assert run["result_ref"] == {"error": came["error"], "kind": "ttl_exceeded"}
    assert [each["ended_at"] is not None for each in run["step_entries"]] == [True]
    assert (await door.ask("GET", f"/v1/runs/{came['run_id']}/replay"))["items"] == []


async def test_a_run_that_is_quick_enough_has_no_trouble(door: Door) -> None:
    assert (await door.launch(step("echo"), ttl_secs=1000))["status"] == "done"


async def test_a_kick_has_a_limit_of_its_own(door: Door) -> None:
    task = (await door.launch(ttl_secs=1000))["task_id"]
    again = await door.ask("POST", f"/v1/tasks/{task}/runs", {"ttl_secs": 0.05, "init_ctx_override": {}}, status=201)
    assert again["status"] == "done"
    snapshots = await door.app.store.read(lambda reader: [run.input_json for run in reader.find(RunRecord)])
    assert ['"ttl_secs":1000.0' in snapshots[0], '"ttl_secs":0.05' in snapshots[1]] == [True, True]


async def test_the_time_goes_on_while_no_server_runs(tmp_path: Path) -> None:
    """A due time, not a stopwatch: a Run that is resumed after it fails, and begins no step that it would cut off."""
    store = tmp_path / "refold.db"
    with time_machine.travel(1_700_000_000, tick=True) as clock:
        async with opened(store) as door:
            ids = [(await door.launch(step("gate"), ttl_secs=100, **DETACHED, status=202))["run_id"] for _ in range(2)]
            for run_id in ids:
                await door.interrupted(run_id)
            begun = (await door.ask("GET", f"/v1/runs/{ids[1]}"))["step_entries"]
        clock.shift(50)
        async with opened(store) as door:
            door.gate.set()
            await door.ask("POST", f"/v1/runs/{ids[0]}/resume", status=202)
            assert (await door.settled(ids[0]))["status"] == "done"
        clock.shift(60)
        async with opened(store) as door:
            door.gate.set()
            await door.ask("POST", f"/v1/runs/{ids[1]}/resume", status=202)
            late = await door.settled(ids[1])
            assert (late["status"], late["result_ref"]["kind"]) == ("failed", "ttl_exceeded")
            assert late["step_entries"] == begun
            await door.ask("POST", f"/v1/runs/{ids[1]}/rerun-from", {"from_step": "gate"}, status=202)
            assert (await door.settled(ids[1]))["status"] == "done", "a rerun-from has the whole time again"


# -- command ids ------------------------------------------------------------------------------------------------------


async def test_a_repeated_launch_is_the_same_launch(door: Door) -> None:
    body = launching(step("echo"), command_id=uuid7())
    first = await door.ask("POST", "/v1/tasks", body)
    assert await door.ask("POST", "/v1/tasks", body) == first
    detached = launching(step("gate"), command_id=uuid7(), **DETACHED)
    begun = await door.ask("POST", "/v1/tasks", detached, status=202)
    door.gate.set()
    await door.settled(begun["run_id"])
    assert await door.ask("POST", "/v1/tasks", detached, status=202) == begun, "as it was then"
    assert (await count(door, RunRecord), await count(door, TaskRecord)) == (2, 2)


async def test_launches_that_race_under_one_id_are_one(door: Door) -> None:
    body = launching(step("echo"), command_id=uuid7())
    answers = await asyncio.gather(*(door.ask("POST", "/v1/tasks", body) for _ in range(10)))
    assert all(each == answers[0] for each in answers)
    assert await count(door, RunRecord) == 1


async def test_a_repeated_command_keeps_its_answer_whatever_has_changed(tmp_path: Path) -> None:
    store = tmp_path / "refold.db"
    async with opened(store) as door:
        await door.ask("POST", "/v1/blueprints", blueprint(step("gate"), id="mine"), status=201)
        launch = {"blueprint": {"kind": "id", "id": "mine"}, "command_id": uuid7(), **DETACHED}
        begun = await door.ask("POST", "/v1/tasks", launch, status=202)
        kick = {"command_id": uuid7(), **DETACHED}
        queued = await door.ask("POST", f"/v1/tasks/{begun['task_id']}/runs", kick, status=202)
        assert queued["status"] == "pending"
        run, again = f"/v1/runs/{begun['run_id']}", f"/v1/runs/{queued['run_id']}"
        await door.interrupted(begun["run_id"])
    async with opened(store) as door:
        door.gate.set()
        resume, cancel = ({"command_id": uuid7()} for _ in range(2))
        resumed = await door.ask("POST", f"{run}/resume", resume, status=202)
        await door.settled(begun["run_id"])
        await door.settled(queued["run_id"])
        rerun = {"from_step": "gate", "command_id": uuid7()}
        rerun_done = await door.ask("POST", f"{run}/rerun-from", rerun, status=202)
        await door.settled(begun["run_id"])
        rows = await count(door, LogRow)
        await door.ask("POST", "/v1/blueprints/mine/archive")
        for path, body, answer in (
            ("/v1/tasks", launch, begun),
            (f"/v1/tasks/{begun['task_id']}/runs", kick, queued),
            (f"{run}/resume", resume, resumed),
            (f"{run}/rerun-from", rerun, rerun_done),
        ):
            assert await door.ask("POST", path, body, status=202) == answer, path
        assert await count(door, LogRow) == rows
        assert (await door.ask("POST", f"{run}/resume", status=409))["kind"] == "run_not_interrupted"
        assert (await door.ask("POST", f"{again}/cancel", cancel, status=409))["kind"] == "run_done"
        await door.ask("DELETE", run)
        assert await door.ask("POST", f"{run}/resume", resume, status=202) == resumed


async def test_a_repeated_cancel_answers_as_it_did(door: Door) -> None:
    run = f"/v1/runs/{(await door.launch(step('gate'), **DETACHED, status=202))['run_id']}"
    command = {"command_id": uuid7()}
    first = await door.ask("POST", f"{run}/cancel", command, status=202)
    assert await door.ask("POST", f"{run}/cancel", status=200) == first, "without an id: it is cancelled already"
    assert await door.ask("POST", f"{run}/cancel", command, status=202) == first
    assert (await door.ask("GET", run))["status"] == "cancelled"


async def test_an_id_with_another_body_is_a_conflict_at_every_door(door: Door) -> None:
    used = uuid7()
    run = await door.ask("POST", "/v1/tasks", launching(step("echo"), command_id=used))
    path = f"/v1/runs/{run['run_id']}"
    bodies = [
        ("/v1/tasks", launching(assign("$.x", 2), command_id=used)),
        ("/v1/tasks", launching(step("echo"), command_id=used, goal="other")),
        ("/v1/tasks", {"blueprint": {"kind": "id", "id": "no such"}, "command_id": used}),
        (f"/v1/tasks/{run['task_id']}/runs", {"command_id": used}),
        (f"{path}/resume", {"command_id": used}),
        (f"{path}/rerun-from", {"from_step": "echo", "command_id": used}),
        (f"{path}/rerun-from", {"from_step": "no such", "command_id": used}),
        (f"{path}/cancel", {"command_id": used}),
    ]
    for where, body in bodies:
        came = await door.ask("POST", where, body, status=409)
        assert (came["kind"], came["command_id"]) == ("command_id_conflict", used), where
    assert await count(door, RunRecord) == 1


async def test_the_same_verb_on_another_run_is_another_command(door: Door) -> None:
    one, two = [(await door.launch(step("gate"), **DETACHED, status=202))["run_id"] for _ in range(2)]
    command = {"command_id": uuid7()}
    await door.ask("POST", f"/v1/runs/{one}/cancel", command, status=202)
    assert (await door.ask("POST", f"/v1/runs/{two}/cancel", command, status=409))["kind"] == "command_id_conflict"


async def test_what_was_refused_leaves_no_trace_and_may_be_tried_again(door: Door) -> None:
    body = {"blueprint": {"kind": "id", "id": "mine"}, "command_id": uuid7()}
    assert (await door.ask("POST", "/v1/tasks", body, status=404))["kind"] == "blueprint_not_found"
    faulty = launching(command_id=uuid7())
    faulty["blueprint"]["value"]["flow"] = {"kind": "nothing"}
    assert (await door.ask("POST", "/v1/tasks", faulty, status=422))["kind"] == "blueprint_invalid"
    assert await count(door, CommandRow) == 0
    await door.ask("POST", "/v1/blueprints", blueprint(assign("$.x", 1), id="mine"), status=201)
    assert (await door.ask("POST", "/v1/tasks", body))["status"] == "done"


async def test_a_busy_session_refuses_a_rerun_and_nothing_of_it_is_left(door: Door) -> None:
    """The refusal is kept as the command's answer, in a commit: a cut that was written before it would be in there."""
    door.gate.set()
    done = await door.launch(step("gate"))
    door.gate.clear()
    busy = await door.ask("POST", f"/v1/tasks/{done['task_id']}/runs", DETACHED, status=202)
    run = f"/v1/runs/{done['run_id']}"

    async def standing() -> Json:
        return await door.ask("GET", run), await door.ask("GET", f"{run}/replay?all=true"), await count(door, LogRow)

    before, command = await standing(), {"from_step": "gate", "command_id": uuid7()}
    for _ in range(2):
        came = await door.ask("POST", f"{run}/rerun-from", command, status=409)
        assert (came["kind"], came["run_id"]) == ("session_busy", busy["run_id"])
    assert await standing() == before
    door.gate.set()
    await door.settled(busy["run_id"])
    before = await standing()
    came = await door.ask("POST", f"{run}/rerun-from", command, status=409)
    assert came["kind"] == "session_busy", "the answer stays, whatever has changed"
    assert await standing() == before


async def test_a_command_is_named_by_the_turn_that_it_wakes(door: Door) -> None:
    command = uuid7()
    came = await door.ask("POST", "/v1/tasks", launching(command_id=command))
    frames = (await door.app.sessions.page(came["session_id"], None, 100, backward=False)).frames
    started = next(frame["params"] for frame in frames if frame["method"] == "turn/started")
    assert started["commandId"] == command
    assert started["turnId"] not in (command, None)


# -- verbs without an id ----------------------------------------------------------------------------------------------


async def test_verbs_on_what_is_not_there_or_does_not_stand_so(door: Door) -> None:
    run = f"/v1/runs/{(await door.launch(step('echo')))['run_id']}"
    for path, status, kind in (
        (f"{run}/resume", 409, "run_not_interrupted"),
        (f"{run}/cancel", 409, "run_done"),
        (f"/v1/runs/{NO_RUN}/resume", 404, "run_not_found"),
        (f"/v1/runs/{NO_RUN}/cancel", 404, "run_not_found"),
    ):
        came = await door.ask("POST", path, status=status)
        assert came["kind"] == kind
        assert came.get("status", "done") == "done"
    assert (await door.ask("POST", f"{run}/rerun-from", {"from_step": "no"}, status=422))["kind"] == "no_such_step"


async def test_delete_removes_an_ended_run_only(door: Door) -> None:
    running = (await door.launch(step("gate"), **DETACHED, status=202))["run_id"]
    assert (await door.ask("DELETE", f"/v1/runs/{running}", status=409))["kind"] == "run_running"
    door.gate.set()
    await door.settled(running)
    assert await door.ask("DELETE", f"/v1/runs/{running}") == {"run_id": running, "deleted": True}
    assert (await door.ask("DELETE", f"/v1/runs/{running}", status=404))["kind"] == "run_not_found"
