"""A stdio connection carried to the process that holds the store: frames both ways, unread and unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from refold.client.api import Unreachable
from refold.protocol import FRAME_LIMIT, Splitter
from refold.protocol.jsonrpc import Line, Oversize


async def bridge(
    url: str, token: str, incoming: AsyncIterator[bytes], write: Callable[[bytes], Awaitable[None]]
) -> None:
    """Carries until `incoming` ends; raises Unreachable when the holder goes away."""
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

            async def inward() -> None:
                async for frame in socket:
                    data = frame.encode() if isinstance(frame, str) else frame
                    await write(data + b"\n")
                raise Unreachable(f"the server at {url} closed the connection")

            tasks = [asyncio.create_task(outward()), asyncio.create_task(inward())]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for task in done:
                task.result()
    except (OSError, ConnectionClosed, InvalidHandshake) as error:
        raise Unreachable(f"the server at {url} went away: {error!r}") from error


def _text(piece: Line | Oversize) -> str:
    """What stands for a line over there: bytes that are no UTF-8 stay no JSON, what was too long stays too long."""
    match piece:
        case Line(data):
            return data.decode("utf-8", "backslashreplace")
        case Oversize(head):
            return head.decode("utf-8", "backslashreplace") + "x" * FRAME_LIMIT
