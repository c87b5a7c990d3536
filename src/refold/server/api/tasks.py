"""Endpoints of Tasks: launching them, kicking them again, and waiting for what they run."""

from __future__ import annotations

import asyncio
from operator import attrgetter
from typing import Any, Final

import msgspec

from refold.records import RunRecord, RunStatus
from refold.server import shapes
from refold.server.bodies import LaunchBody, RekickBody, Waiting
from refold.server.contract import Ask, NoQuery, Reply, command_of
from refold.server.paging import PageQuery, page, place
from refold.service.app import App
from refold.service.tasks import Begun, NewTask

Json = Any

SYNC_SECS: Final = 3600.0
"""How long a kick that is not detached waits for its Run, unless it says; the Run goes on after it."""


async def launch(app: App, ask: Ask[LaunchBody, NoQuery]) -> Reply:
    body, command = ask.body, command_of(ask, "task/launch")
    new = NewTask(
        blueprint=msgspec.to_builtins(body.blueprint),
        init_ctx=body.init_ctx,
        goal=body.goal,
        labels=body.labels,
        work_dir=body.work_dir,
        project_root=body.project_root,
        ttl_secs=body.ttl_secs,
        command_id=body.command_id,
    )
    return await _answer(app, await app.tasks.begin(new, command=command), body, 200)


async def rekick(app: App, ask: Ask[RekickBody, NoQuery]) -> Reply:
    body, command = ask.body, command_of(ask, "task/rekick")
    begun = await app.tasks.begin_again(
        ask.ids["task_id"], body.init_ctx_override, ttl_secs=body.ttl_secs, command=command
    )
    return await _answer(app, begun, body, 201)


async def tasks(app: App, ask: Ask[None, PageQuery]) -> Reply:
    rows = await app.tasks.page(ask.query.limit + 1, place("tasks", ask.query))
    return 200, page("tasks", ask.query, rows, attrgetter("n"), shapes.task)


async def task(app: App, ask: Ask[None, NoQuery]) -> Reply:
    return 200, shapes.task(await app.tasks.get(ask.ids["task_id"]))


async def _answer(app: App, begun: Begun, body: Waiting, status: int) -> Reply:
    """The answer to a kick: at once, or when the Run has ended; the Run goes on when the caller's time is over."""
    if body.detach:
        return 202, msgspec.to_builtins(begun)
    ids = {"task_id": begun.task_id, "run_id": begun.run_id, "session_id": begun.session_id}
    try:
        async with asyncio.timeout(body.timeout_secs or SYNC_SECS):
            run = await app.runs.settled(await app.runs.get(begun.run_id))
    except TimeoutError:
        return 504, ids | {"error": f"run {begun.run_id} is still going; ask for it later", "kind": "timeout"}
    return status, ids | {"status": run.status} | _ending(run)


def _ending(run: RunRecord) -> dict[str, Json]:
    result = shapes.result(run)
    if run.status == RunStatus.DONE:
        return {"final_ctx": result}
    return result if isinstance(result, dict) else {"error": result}
