"""Endpoints of Runs: reading them, and the verbs that change how they stand."""

from __future__ import annotations

from functools import partial
from operator import attrgetter, itemgetter
from typing import Final

import msgspec

from refold.errors import InvalidRequest
from refold.records import parse_id
from refold.server import shapes
from refold.server.bodies import CommandBody, LogQuery, PreviewQuery, ReplayQuery, RerunBody, RunsQuery
from refold.server.contract import Ask, NoQuery, Reply, Text, command_of
from refold.server.paging import page, place
from refold.service.app import App
from refold.service.listing import Wanted
from refold.service.reruns import RerunFrom

NDJSON: Final = "application/x-ndjson"


async def runs(app: App, ask: Ask[None, RunsQuery]) -> Reply:
    query = ask.query
    wanted = Wanted(
        status=query.status,
        task_id=None if query.task_id is None else parse_id(query.task_id, "T"),
        labels=tuple(map(_label, query.label)),
        q=query.q,
    )
    rows = await app.runs.page(query.limit + 1, place("runs", query), wanted)
    return 200, page("runs", query, rows, attrgetter("n"), shapes.run)


async def run(app: App, ask: Ask[None, NoQuery]) -> Reply:
    run_id = ask.ids["run_id"]
    return 200, shapes.run(await app.runs.get(run_id), await app.runs.steps(run_id))


async def delete(app: App, ask: Ask[None, NoQuery]) -> Reply:
    await app.runs.delete(ask.ids["run_id"])
    return 200, {"run_id": ask.ids["run_id"], "deleted": True}


# -- what a Run has written -------------------------------------------------------------------------------------------


async def steps(app: App, ask: Ask[None, LogQuery]) -> Reply:
    run_id, query = ask.ids["run_id"], ask.query
    of = f"steps of {run_id}"
    rows = await app.runs.steps(run_id, after=place(of, query) or 0, limit=query.limit + 1)
    return 200, page(of, query, rows, attrgetter("ordinal"), shapes.step)


async def replay(app: App, ask: Ask[None, ReplayQuery]) -> Reply:
    run_id, query = ask.ids["run_id"], ask.query
    of = f"replay of {run_id}"
    rows = await app.runs.replay(
        run_id, ctx=query.ctx, everything=query.all, after=place(of, query) or 0, limit=query.limit + 1
    )
    return 200, page(of, query, rows, attrgetter("row.ordinal"), partial(shapes.replay_row, run_id=run_id))


async def trace(app: App, ask: Ask[None, LogQuery]) -> Reply:
    run_id, query = ask.ids["run_id"], ask.query
    of = f"trace of {run_id}"
    entries = await app.runs.trace(run_id, after=place(of, query) or 0, limit=query.limit + 1)
    return 200, page(of, query, entries, itemgetter("seq"), dict)


async def export(app: App, ask: Ask[None, NoQuery]) -> Reply:
    return 200, Text(NDJSON, await app.copies.export(ask.ids["run_id"]))


# -- verbs ------------------------------------------------------------------------------------------------------------


async def resume(app: App, ask: Ask[CommandBody, PreviewQuery]) -> Reply:
    run_id = ask.ids["run_id"]
    if ask.query.preview:
        return 200, shapes.preview(await app.reruns.preview_resume(run_id))
    return 202, msgspec.to_builtins(await app.runs.resume(run_id, command_of(ask, "run/resume")))


async def rerun(app: App, ask: Ask[RerunBody, PreviewQuery]) -> Reply:
    run_id, body = ask.ids["run_id"], ask.body
    wanted = RerunFrom(
        from_step=body.from_step,
        occurrence=body.occurrence,
        lane=None if body.lane is None else tuple(at if isinstance(at, int) else at[1] for at in body.lane),
        input_hash=body.input_hash,
        step_id=body.step_id,
        blueprint=body.blueprint,
    )
    if ask.query.preview:
        return 200, shapes.preview(await app.reruns.preview(run_id, wanted))
    return 202, msgspec.to_builtins(await app.reruns.rerun(run_id, wanted, command_of(ask, "run/rerun-from")))


async def cancel(app: App, ask: Ask[CommandBody, NoQuery]) -> Reply:
    done = await app.runs.cancel(ask.ids["run_id"], command_of(ask, "run/cancel"))
    return 200 if done.already else 202, {"run_id": done.run_id, "status": "cancelled"}


def _label(text: str) -> tuple[str, str | None]:
    name, given, value = text.partition("=")
    if not name:
        raise InvalidRequest(f"label is {text[:80]!r}, expected name or name=value", member="label")
    return name, value if given else None
