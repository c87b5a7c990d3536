"""Endpoints of operators: attaching, the long poll for offers, and submitting.

An operator's own token opens what carries its own id, and submitting; the server's opens everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from refold.errors import Forbidden
from refold.server import operators as shapes
from refold.server.contract import SERVER, Ask, NoQuery, Reply
from refold.server.operators import AttachBody, NextQuery
from refold.server.paging import PageQuery, page, place
from refold.service.app import App
from refold.service.submissions import Submission

T = TypeVar("T")


async def attach(app: App, ask: Ask[AttachBody, NoQuery]) -> Reply:
    operator, token = await app.operators.attach(ask.body.desc, ask.body.lease_secs)
    return 201, {"sid": operator.sid, "token": token, "desc": operator.desc, "lease_secs": operator.lease_secs}


async def operators(app: App, ask: Ask[None, PageQuery]) -> Reply:
    after = place("operators", ask.query) or ""
    rows = [each for each in app.operators.all() if each.operator.sid > after]
    return 200, page("operators", ask.query, rows, lambda each: each.operator.sid, shapes.operator)


async def detach(app: App, ask: Ask[None, NoQuery]) -> Reply:
    sid = own(ask.ids["sid"], ask.who)
    await app.operators.detach(sid)
    return 200, {"sid": sid, "deleted": True}


async def next_offer(app: App, ask: Ask[None, NextQuery]) -> Reply:
    sid, query = own(ask.ids["sid"], ask.who), ask.query
    offer = await _while_there(ask.request, app.operators.next(sid, query.wait_secs, query.holding))
    return (204, None) if offer is None else (200, shapes.offer(offer))


async def submit(app: App, ask: Ask[Submission, NoQuery]) -> Reply:
    return 200, msgspec.to_builtins(await app.submissions.submit(ask.body, ask.who))


def own(sid: str, who: str | None) -> str:
    """The id of an operator that `who` may speak for. Raises Forbidden."""
    if who not in (SERVER, sid):
        raise Forbidden("that token is another operator's", kind="forbidden_scope")
    return sid


async def _while_there(request: Request, waiting: Coroutine[Any, Any, T]) -> T | None:
    """What `waiting` comes to, or None once the client has gone: what it would get then would reach nobody."""
    tasks = asyncio.create_task(waiting), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
