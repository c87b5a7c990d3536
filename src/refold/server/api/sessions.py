"""Endpoints of Sessions: the twins, over HTTP, of what the protocol reads."""

from __future__ import annotations

from refold.server.contract import Ask, NoQuery, Reply
from refold.service.app import App


async def session(app: App, ask: Ask[None, NoQuery]) -> Reply:
    served, resumed = await app.sessions.snapshot(ask.ids["session_id"])
    return 200, {
        "session_id": served.info.session.session_id,
        "view_cursor": served.cursor,
        "snapshot": served.history["snapshot"],
        "resumed": resumed,
    }
