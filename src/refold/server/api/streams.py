"""The HTTP twin of a view subscription: a Session's events as Server-Sent Events, or as NDJSON.

Every event carries its cursor: as `id:` of an SSE event, so that a browser's EventSource comes back with it as
`Last-Event-ID`, and in its params, so that a line of NDJSON is whole by itself. Delivery is strictly after `after`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from starlette.responses import StreamingResponse

from refold.canonical import encode
from refold.server.bodies import EventsQuery
from refold.server.contract import Ask, Reply
from refold.service.app import App
from refold.session import Subscription
from refold.view import Frame

KEEP_ALIVE_SECS: Final = 15.0
"""How long a stream may be silent: what nobody reads any more is found by writing to it."""


class Form(NamedTuple):
    """How events are written, each from its frame and that frame's JSON."""

    media_type: str
    write: Callable[[Frame, bytes], bytes]
    silence: bytes
    """What is written where there is nothing to tell."""


def _sse(frame: Frame, text: bytes) -> bytes:
    cursor = frame["params"].get("viewCursor")
    head = f"id: {cursor}\n" if cursor else ""
    return b"%bevent: %b\ndata: %b\n\n" % (head.encode(), frame["method"].encode(), text)


def _ndjson(_: Frame, text: bytes) -> bytes:
    return text + b"\n"


SSE: Final = Form("text/event-stream", _sse, b":\n\n")
NDJSON: Final = Form("application/x-ndjson", _ndjson, b"\n")


async def events(app: App, ask: Ask[None, EventsQuery]) -> Reply:
    """The events after a cursor, and then as they come; with `follow=false` only those that are there."""
    request = ask.request
    after = ask.query.after or request.headers.get("last-event-id")
    session, position, _ = await app.sessions.follow(ask.ids["session_id"], after)
    form = SSE if SSE.media_type in request.headers.get("accept", "") else NDJSON
    subscription = app.sessions.subscription(session, position)
    lines = _lines(subscription, form, follow=ask.query.follow)
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(lines, media_type=form.media_type, headers=headers)


async def _lines(subscription: Subscription, form: Form, *, follow: bool) -> AsyncIterator[bytes]:
    batches = aiter(subscription.frames())
    upcoming = asyncio.ensure_future(anext(batches))
    try:
        while True:
            done, _ = await asyncio.wait([upcoming], timeout=KEEP_ALIVE_SECS)
            if not done:
                yield form.silence
                continue
            batch = upcoming.result()
            if batch.gap is not None:
                yield form.write(batch.gap, encode(batch.gap).encode())
            for _, frame, text in batch.frames:
                yield form.write(frame, text)
            if not batch.frames and not follow:
                return
            upcoming = asyncio.ensure_future(anext(batches))
    except StopAsyncIteration:
        return
    finally:
        upcoming.cancel()
        subscription.close()
