"""Endpoints of requests: what people are asked, and their answers."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from refold.records import parse_id
from refold.server import shapes
from refold.server.bodies import AnswerBody, DecideBody, RequestsQuery
from refold.server.contract import Ask, NoQuery, Reply
from refold.server.paging import page, place
from refold.service.app import App
from refold.service.requests import Settled

Json = Any


async def requests(app: App, ask: Ask[None, RequestsQuery]) -> Reply:
    query = ask.query
    equals = {"status": query.status, "run_id": None if query.run_id is None else parse_id(query.run_id, "R")}
    given = {name: value for name, value in equals.items() if value is not None}
    rows = await app.requests.page(query.limit + 1, place("requests", query), **given)
    return 200, page("requests", query, rows, attrgetter("n"), shapes.request)


async def request(app: App, ask: Ask[None, NoQuery]) -> Reply:
    return 200, shapes.request(await app.requests.get(ask.ids["request_id"]))


async def decide(app: App, ask: Ask[DecideBody, NoQuery]) -> Reply:
    body = ask.body
    settled = await app.requests.decide(
        ask.ids["request_id"],
        choice=body.choice,
        decision=body.decision,
        feedback=body.feedback,
        command_id=body.command_id,
    )
    return 200, _settled(settled)


async def answer(app: App, ask: Ask[AnswerBody, NoQuery]) -> Reply:
    settled = await app.requests.answer(ask.ids["request_id"], ask.body.answers, command_id=ask.body.command_id)
    return 200, _settled(settled)


def _settled(done: Settled) -> Json:
    return {**shapes.request(done.request), "resumed": done.resumed}
