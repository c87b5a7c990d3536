"""The HTTP twin of a view subscription: a Session's events as Server-Sent Events, or as NDJSON.

Every event carries its cursor: as `id:` of an SSE event, so that a browser's EventSource comes back with it as
`Last-Event-ID`, and in its params, so that a line of NDJSON is whole by itself. Delivery is strictly after `after`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from starlette.responses import StreamingResponse

from refold.canonical import encode
from refold.server.bodies import EventsQuery
from refold.server.contract import Ask, Reply
from refold.service.app import App
from refold.session import Subscription

Json = Any

KEEP_ALIVE_SECS: Final = 15.0
"""How long a stream may be silent: what nobody reads any more is found by writing to it."""

SSE, NDJSON = "text/event-stream", "application/x-ndjson"


async def events(app: App, ask: Ask[None, EventsQuery]) -> Reply:
    """The events after a cursor, and then as they come; with `follow=false` only those that are there."""
    request = ask.request
    after = ask.query.after or request.headers.get("last-event-id")
    session, position, _ = await app.sessions.follow(ask.ids["session_id"], after)
    wants_sse = SSE in request.headers.get("accept", "")
    subscription = app.sessions.subscription(session, position)
    lines = _lines(subscription, _sse if wants_sse else _ndjson, follow=ask.query.follow)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(lines, media_type=SSE if wants_sse else NDJSON, headers=headers)


async def _lines(
    subscription: Subscription, write: Callable[[Json | None], str], *, follow: bool
) -> AsyncIterator[str]:
    batches = aiter(subscription.frames())
    upcoming = asyncio.ensure_future(anext(batches))
    try:
        while True:
            done, _ = await asyncio.wait([upcoming], timeout=KEEP_ALIVE_SECS)
            if not done:
                yield write(None)
                continue
            batch = upcoming.result()
            if batch.gap is not None:
                yield write(batch.gap)
            for _, frame in batch.frames:
                yield write(frame)
            if not batch.frames and not follow:
                return
            upcoming = asyncio.ensure_future(anext(batches))
    except StopAsyncIteration:
        return
    finally:
        upcoming.cancel()
        subscription.close()


def _sse(frame: Json | None) -> str:
    if frame is None:
        return ":\n\n"
    cursor = frame["params"].get("viewCursor")
    head = f"id: {cursor}\n" if cursor else ""
    return f"{head}event: {frame['method']}\ndata: {encode(frame)}\n\n"


def _ndjson(frame: Json | None) -> str:
    return "\n" if frame is None else encode(frame) + "\n"
