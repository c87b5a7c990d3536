"""Endpoints of Blueprints."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Any

from refold.errors import InvalidRequest
from refold.server import shapes
from refold.server.bodies import BlueprintsQuery
from refold.server.contract import Ask, NoQuery, Reply
from refold.server.paging import PageQuery, page, place
from refold.service.app import App

Json = Any
_line = partial(shapes.blueprint, body=False)


async def add(app: App, ask: Ask[Json, NoQuery]) -> Reply:
    expected, own = ask.ids.get("blueprint_id"), ask.body.get("id") if isinstance(ask.body, dict) else None
    if expected not in (None, own):
        raise InvalidRequest(f"the path names blueprint {expected!r}, the body {own!r}", member="id")
    return 201, _line(await app.blueprints.add(ask.body))


async def lint(app: App, ask: Ask[Json, NoQuery]) -> Reply:
    return 200, shapes.lint(app.blueprints.lint(ask.body))


async def heads(app: App, ask: Ask[None, BlueprintsQuery]) -> Reply:
    after = place("blueprints", ask.query) or ""
    found = [each for each in await app.blueprints.heads(archived=ask.query.archived) if each.blueprint_id > after]
    return 200, page("blueprints", ask.query, found, attrgetter("blueprint_id"), _line)


async def head(app: App, ask: Ask[None, NoQuery]) -> Reply:
    return 200, shapes.blueprint(await app.blueprints.head(ask.ids["blueprint_id"]), body=True)


async def versions(app: App, ask: Ask[None, PageQuery]) -> Reply:
    blueprint_id = ask.ids["blueprint_id"]
    of = f"versions of {blueprint_id}"
    rows = await app.blueprints.versions(blueprint_id, ask.query.limit + 1, place(of, ask.query))
    return 200, page(of, ask.query, rows, attrgetter("n"), _line)


async def version(app: App, ask: Ask[None, NoQuery]) -> Reply:
    row = await app.blueprints.version(ask.ids["blueprint_id"], ask.ids["version"])
    return 200, shapes.blueprint(row, body=True)


async def archive(app: App, ask: Ask[None, NoQuery]) -> Reply:
    return 200, _line(await app.blueprints.archive(ask.ids["blueprint_id"]))


async def unarchive(app: App, ask: Ask[None, NoQuery]) -> Reply:
    return 200, _line(await app.blueprints.unarchive(ask.ids["blueprint_id"]))
