"""The door gives a Run out as the file that an import takes."""

from __future__ import annotations

import httpx
import pytest
from http_kit import NO_RUN, Door, step

from refold.canonical import decode
from refold.service.copies import checked

pytestmark = pytest.mark.anyio


async def test_a_run_is_given_out_as_a_file_that_an_import_takes(door: Door) -> None:
    run = await door.launch(step("echo"))
    answer = await door.send("GET", f"/v1/runs/{run['run_id']}/export")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    found = checked(answer.content)
    assert (found.manifest.run_id, found.manifest.task_id) == (run["run_id"], run["task_id"])
    assert [decode(line)["table"] for line in answer.content.splitlines()[1:3]] == ["meta", "task"]


async def test_a_run_that_is_still_driven_is_given_out_as_it_is(door: Door) -> None:
    run = await door.launch(step("echo"), step("gate"), status=202, detach=True)
    found = checked((await door.send("GET", f"/v1/runs/{run['run_id']}/export")).content)
    assert found.manifest.rows["run"] == 1
    door.gate.set()
    assert (await door.settled(run["run_id"]))["status"] == "done"


@pytest.mark.parametrize(("run_id", "status", "kind"), [(NO_RUN, 404, "run_not_found"), ("R-x", 400, "invalid_id")])
async def test_what_is_not_there_is_said(door: Door, run_id: str, status: int, kind: str) -> None:
    answer: httpx.Response = await door.send("GET", f"/v1/runs/{run_id}/export")
    assert (answer.status_code, answer.json()["kind"]) == (status, kind)
