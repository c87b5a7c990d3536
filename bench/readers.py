"""`scripts/bench readers`: what a reader that stands still costs the others, and the server.

A writer appends 100,000 events, ten to a commit and at full speed; eight readers are pushed every one of them. The
figure is the p99 of their delay, from the append to the frame in a reader's hands, with one more reader that never
takes a frame, divided by the p99 without it. Rounds are interleaved, as in `steps`. Beside it stands what the process
grew by in memory while the reader stood still.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final

import uuid_utils

from bench.workloads import open_app
from refold import view
from refold.canonical import decode, encode
from refold.server.rpc import Peer, Rpc
from refold.service.app import App
from refold.session import find_session
from refold.store import append_log

EVENTS: Final = 100_000
PER_COMMIT: Final = 10
READERS: Final = 8
Send = Callable[[bytes], Coroutine[Any, Any, None]]


def measure(rounds: int) -> list[dict[str, Any]]:
    """Runs it `rounds` times with and without the slow reader; two rows, each with whether it clears its bar."""
    ratios: list[float] = []
    grown: list[float] = []
    events = EVENTS // 10 if rounds == 1 else EVENTS
    for n in range(rounds):
        sys.stderr.write(f"round {n + 1} of {rounds}\n")
        alone, needed = asyncio.run(_round(events, stands_still=False))
        beside, growth = asyncio.run(_round(events, stands_still=True))
        ratios.append(beside / alone)
        grown.append(growth - needed)
    ratio, most = statistics.median(ratios), max(grown)
    return [
        _row(f"p99 of {READERS} readers beside one that stands still", ratio, "× their own", 1.5),
        _row(f"memory while it stands still, {events:,} events", most, "MiB", 64.0),
    ]


def _row(name: str, value: float, unit: str, bar: float) -> dict[str, Any]:
    return {
        "row": name,
        "median": round(value, 2),
        "unit": unit,
        "ratio": round(value, 2),
        "bar": f"≤ {bar}",
        "clears": value <= bar,
    }


async def _round(events: int, *, stands_still: bool) -> tuple[float, float]:
    """The p99 of the delay in seconds, and by how many MiB the process grew."""
    async with open_app(compacts=False) as (app, _), AsyncExitStack() as stack:
        rpc = Rpc(app, "/bench")
        session_n, session_id = await _session(app)
        sent: list[float] = []
        delays: list[float] = []

        async def take(frame: bytes) -> None:
            if b'"session/modelChanged"' in frame:
                n = int(decode(frame)["params"]["modelId"])
                if n >= 0:
                    delays.append(time.perf_counter() - sent[n // PER_COMMIT])

        for _ in range(READERS):
            await _attached(stack, rpc, session_id, take)
        if stands_still:
            await _attached(stack, rpc, session_id, _Wall().take)
        before = _resident()
        for start in range(0, events, PER_COMMIT):
            grown = [_event(n) for n in range(start, start + PER_COMMIT)]
            sent.append(time.perf_counter())
            await app.store.write(lambda tx, grown=grown: append_log(tx, session_n, grown))
        while len(delays) < READERS * events:
            await asyncio.sleep(0)
        return statistics.quantiles(delays, n=100)[98], (_resident() - before) / 2**20


class _Wall:
    """A client that takes what it is answered, and then nothing more."""

    def __init__(self) -> None:
        self._never = asyncio.Event()

    async def take(self, frame: bytes) -> None:
        if b'"id"' not in frame[:32]:
            await self._never.wait()


async def _attached(stack: AsyncExitStack, rpc: Rpc, session_id: str, take: Send) -> None:
    peer = await stack.enter_async_context(Peer(rpc, take))
    hello = {"clientInfo": {"name": "bench", "version": "1"}}
    for number, (method, params) in enumerate(
        [("initialize", hello), ("session/resume", {"commandId": str(uuid_utils.uuid7()), "sessionId": session_id})]
    ):
        await peer.receive_frame(encode({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        if method == "initialize":
            await peer.receive_frame(encode({"jsonrpc": "2.0", "method": "initialized"}))


async def _session(app: App) -> tuple[int, str]:
    info, _, _ = await app.sessions.start(
        str(uuid_utils.uuid7()), {}, session_id=None, model=None, workspace_root=None, client="bench"
    )
    row = await app.store.read(lambda reader: find_session(reader, info.session.session_id))
    return row.n, row.session_id


def _event(n: int) -> Any:
    return view.model_changed(0, model=str(n), source="user", command="bench")


def _resident() -> int:
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - one line of the kernel's
        return int(statm.read().split()[1]) * 4096
