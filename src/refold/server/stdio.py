"""Stdio: NDJSON on this process's own pipes, for the process that holds the store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable

from refold.server.rpc import Peer, PeerGone, Rpc

CHUNK = 64 * 1024


async def serve_stdio(rpc: Rpc) -> None:
    """Speaks until stdin ends. Stdout carries frames only; a reader that is slow makes us wait, never drop."""
    write = await writer(sys.stdout.fileno())

    async def send(frame: bytes) -> None:
        try:
            await write(frame)
        except OSError as error:
            raise PeerGone from error

    async with Peer(rpc, send) as peer:
        with contextlib.suppress(PeerGone):  # nobody reads our stdout any more
            async for data in chunks(sys.stdin.fileno()):
                await peer.receive_data(data)


async def chunks(fd: int) -> AsyncGenerator[bytes]:
    """Yields what arrives at `fd`, a pipe, a socket, a terminal or a file, until it ends."""
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader(limit=CHUNK)
    try:
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(fd), "rb"))
    except ValueError:  # a regular file never blocks, and event loops refuse it
        while data := os.read(fd, CHUNK):
            yield data
        return
    while data := await reader.read(CHUNK):
        yield data


async def writer(fd: int) -> Callable[[bytes], Awaitable[None]]:
    """Returns what writes whole frames to `fd` and waits while its reader is slow."""
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.streams.FlowControlMixin(loop=loop), os.fdopen(os.dup(fd), "wb")
        )
    except ValueError:

        async def write_file(frame: bytes) -> None:
            view = memoryview(frame)
            while view:
                view = view[os.write(fd, view) :]

        return write_file
    stream = asyncio.StreamWriter(transport, protocol, None, loop)

    async def write_pipe(frame: bytes) -> None:
        stream.write(frame)
        await stream.drain()

    return write_pipe
