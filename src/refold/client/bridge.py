"""A stdio connection carried to the process that holds the store: frames both ways, unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from refold.canonical import decode, encode
from refold.client.api import Unreachable
from refold.protocol import FRAME_LIMIT, Splitter
from refold.protocol.jsonrpc import Line, Oversize

LAST: Final = {"jsonrpc": "2.0", "id": "refold bridge: last", "method": "refold/last"}
"""The bridge's own question at the end of `incoming`. Calls are answered in their order, so its answer, whatever it is,
tells that all questions before it are answered: `refold msp < questions` must not lose what is still on its way."""


async def bridge(
    url: str, token: str, incoming: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]
) -> None:
    """Carries until `incoming` has ended and all it asked is answered; raises Unreachable when the holder goes away."""
    headers = {"Authorization": f"Bearer {token}"}
    where = url.replace("http://", "ws://", 1) + "/v1/msp"
    try:
        async with connect(
            where, additional_headers=headers, max_size=None, compression=None, proxy=None, ping_interval=None
        ) as socket:

            async def outward() -> None:
                splitter = Splitter(FRAME_LIMIT)
                async for data in incoming:
                    for piece in splitter.feed(data):
                        await socket.send(_text(piece))
                await socket.send(encode(LAST))

            async def inward() -> None:
                async for frame in socket:
                    data = frame.encode() if isinstance(frame, str) else frame
                    if _answers_last(data):
                        return
                    await write(data + b"\n")
                raise Unreachable(f"the server at {url} closed the connection")

            tasks = [asyncio.create_task(outward()), asyncio.create_task(inward())]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for task in done:
                task.result()
    except (OSError, ConnectionClosed, InvalidHandshake) as error:
        raise Unreachable(f"the server at {url} went away: {error!r}") from error


def _answers_last(data: bytes) -> bool:
    return LAST["id"].encode() in data and decode(data).get("id") == LAST["id"]


def _text(piece: Line | Oversize) -> str:
    """What stands for a line over there: bytes that are no UTF-8 stay no JSON, what was too long stays too long."""
    match piece:
        case Line(data):
            return data.decode("utf-8", "backslashreplace")
        case Oversize(head):
            return head.decode("utf-8", "backslashreplace") + "x" * FRAME_LIMIT
