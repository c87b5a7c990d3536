"""The audience: events of one Session delivered to many connections, and what each costs while it only waits.

Every reader is a whole connection of the protocol (`server.rpc.Peer`): handshake, subscription, frames as bytes. What
lies beyond is not measured here: its `send` notes the time and throws the bytes away, as a socket would hand them on.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from pathlib import Path

from bench import flows
from bench.inside import opened, resident_kib
from bench.sample import Figures, latency, main
from bench.served import hello
from refold.server import process
from refold.server.rpc import Peer, Rpc
from refold.service.app import App
from refold.service.tasks import NewTask

EVENTS = 100
"""Events that everybody is told; each is appended, committed and delivered before the next one."""
PATIENCE_SECS = 60


class Reader:
    """One connection, and when what it is waiting for came."""

    def __init__(self, rpc: Rpc, heard: list[float]) -> None:
        self.peer = Peer(rpc, self._send)
        self._heard = heard
        self.frames = 0

    async def _send(self, frame: bytes) -> None:
        assert b'"error"' not in frame, frame
        if b'"session/nameChanged"' in frame:
            self.frames += 1
            self._heard.append(time.perf_counter())

    async def follow(self, session: str) -> None:
        for message in hello(session):
            await self.peer.receive_frame(json.dumps(message))


async def told(folder: Path, readers: int) -> Figures:
    """Events a second that are delivered, from the command to the last byte; how late the slowest one in a hundred is;
    and what a reader weighs."""
    async with opened(folder) as app, AsyncExitStack() as stack:
        launched = await app.tasks.launch(NewTask(blueprint=flows.blueprint(flows.loop(10))))
        await app.runs.settled(launched)
        session = (await app.sessions.list(1))[0].session.session_id
        heard, late = list[float](), list[float]()
        before = resident_kib()
        rpc = Rpc(app, str(folder))
        audience = [Reader(rpc, heard) for _ in range(readers)]
        for reader in audience:
            await stack.enter_async_context(reader.peer)
            await reader.follow(session)
        await asyncio.sleep(0)
        weighs = (resident_kib() - before) / readers
        begun = time.perf_counter()
        for n in range(EVENTS):
            late += await _tell(app, session, n, heard, readers)
        took = time.perf_counter() - begun
        assert all(reader.frames == EVENTS for reader in audience), "somebody missed an event"
    return {"per_s": EVENTS * readers / took, "kib": weighs, **latency(late)}


async def _tell(app: App, session: str, n: int, heard: list[float], readers: int) -> list[float]:
    """Renames the Session; how long after that each reader had it."""
    heard.clear()
    begun = time.perf_counter()
    await app.sessions.rename(app.clock.uuid7(), {"n": n}, session_id=session, name=f"name {n}")
    async with asyncio.timeout(PATIENCE_SECS):
        while len(heard) < readers:
            await asyncio.sleep(0)
    return [at - begun for at in heard]


WORKS = {"told": told}

if __name__ == "__main__":
    main(WORKS, process.run)
