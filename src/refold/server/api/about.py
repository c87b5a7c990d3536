"""Endpoints about the server itself."""

from __future__ import annotations

from typing import Any

from refold import __version__
from refold.server.contract import Ask, NoQuery, Reply, Text
from refold.service.app import App

Question = Ask[None, NoQuery]
Json = Any


async def healthz(app: App, ask: Question) -> Reply:
    return 200, {"ok": True}


async def status(app: App, ask: Question) -> Reply:
    return 200, {"version": __version__, **await app.status()}


async def metrics(app: App, ask: Question) -> Reply:
    # Imported here: a server opens its door sooner without Prometheus, and many are never scraped.
    from refold.server import scrape

    return 200, Text(scrape.CONTENT_TYPE, scrape.render(app.metrics, await app.status()))


async def openapi(app: App, ask: Question) -> Reply:
    # Imported here: the document describes the table, and the table names this endpoint.
    from refold.server.openapi import document

    return 200, document()
