"""The bare log: a replay log on SQLite and nothing else, to tell how near refold comes to what its disk allows.

It keeps the first law and the second: a step's output is committed with `synchronous=FULL` before the flow goes on, and
a logged step is answered from the log. It has no server, no view, no attempts, no epochs, no chain, no leases, and its
flows are Python functions. One thread owns the write connection and commits whatever has queued up during its last
sync, so that steps which run side by side share one.

What was measured to matter: a rowid table with an integer run and one unique index; ctx as deltas, with a full one when
the deltas have grown to the size of the last; a WAL that is checkpointed seldom; one SELECT to read a log.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import queue
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.sample import Figures, arrived, die, latency, main, payload, rate

Json = Any
Key = tuple[str, bytes, int]

SCHEMA = """
CREATE TABLE IF NOT EXISTS run (n INTEGER PRIMARY KEY, status TEXT NOT NULL, input TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS log (
  n INTEGER PRIMARY KEY, run INTEGER NOT NULL, ref TEXT NOT NULL, hash BLOB NOT NULL, occurrence INTEGER NOT NULL,
  ctx TEXT NOT NULL, is_full INTEGER NOT NULL, output TEXT NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS log_key ON log (run, ref, hash, occurrence);
"""
APPEND = "INSERT INTO log (run, ref, hash, occurrence, ctx, is_full, output) VALUES (?, ?, ?, ?, ?, ?, ?)"
BEGIN = "INSERT OR IGNORE INTO run VALUES (?, 'running', ?)"
END = "UPDATE run SET status = 'done' WHERE n = ?"
MOST_AT_ONCE = 1000


def encode(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def connect(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None, check_same_thread=False)
    for setting in ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 8000", "cache_size = -32000"):
        connection.execute(f"PRAGMA {setting}")
    connection.executescript(SCHEMA)
    return connection


class Log:
    """The store: `write` returns a future that is done once the statement is on disk."""

    def __init__(self, folder: Path) -> None:
        self._connection = connect(folder)
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[str, Any, asyncio.Future[None]]] = queue.SimpleQueue()
        threading.Thread(target=self._commit_forever, daemon=True).start()

    def write(self, sql: str, values: Any) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        self._queue.put((sql, values, future))
        return future

    def read(self, run: int) -> dict[Key, str]:
        """All that is logged of a Run, by replay key."""
        rows = self._connection.execute("SELECT ref, hash, occurrence, output FROM log WHERE run = ?", (run,))
        return {(ref, digest, occurrence): output for ref, digest, occurrence, output in rows}

    def _commit_forever(self) -> None:
        while True:
            batch = [self._queue.get()]
            while len(batch) < MOST_AT_ONCE and not self._queue.empty():
                batch.append(self._queue.get_nowait())
            self._connection.execute("BEGIN IMMEDIATE")
            for sql, values, _ in batch:
                self._connection.execute(sql, values)
            self._connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(self._settle, [future for *_, future in batch])

    @staticmethod
    def _settle(futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)


class Run:
    """One flow on the log: answers what is logged, logs the rest."""

    def __init__(self, log: Log, n: int, logged: dict[Key, str] | None = None) -> None:
        self._log, self._n, self._logged = log, n, logged or {}
        self._occurrences: Counter[tuple[str, bytes]] = Counter()
        self._ctx: dict[str, Json] = {}
        self._full_size = self._deltas_size = 0

    async def step(self, ref: str, given: Json, work: Callable[[Json], Json], member: str | None = None) -> Json:
        """The answer of `work` to `given`, or what the log has of it; it becomes that `member` of the ctx.

        Without one the ctx is only what was asked last: the least that a log can say about where a flow stands.
        """
        digest = hashlib.sha256(encode(given).encode()).digest()
        occurrence = self._occurrences[ref, digest]
        self._occurrences[ref, digest] += 1
        logged = self._logged.get((ref, digest, occurrence))
        if logged is not None:
            return json.loads(logged)
        answer = work(given)
        ctx, is_full = self._snapshot("last", given) if member is None else self._snapshot(member, answer)
        await self._log.write(APPEND, (self._n, ref, digest, occurrence, ctx, is_full, encode(answer)))
        return answer

    def _snapshot(self, member: str, value: Json) -> tuple[str, bool]:
        self._ctx[member] = value
        delta = encode({member: value})
        self._deltas_size += len(delta)
        if self._deltas_size < self._full_size:
            return delta, False
        full = encode(self._ctx)
        self._full_size, self._deltas_size = len(full), 0
        return full, True


async def _flow(log: Log, n: int, steps: int, work: Callable[[int], Json] = payload) -> None:
    await log.write(BEGIN, (n, encode({"steps": steps})))
    run = Run(log, n, log.read(n))
    for i in range(steps):
        await run.step("answer", i, work)
    await log.write(END, (n,))


async def sequential(folder: Path, steps: int) -> Figures:
    log, marks = Log(folder), list[float]()

    def work(i: int) -> str:
        marks.append(time.perf_counter())
        return payload(i)

    begun = time.perf_counter()
    await _flow(log, 1, steps, work)
    return rate(steps, time.perf_counter() - begun, marks)


async def many(folder: Path, runs: int) -> Figures:
    log = Log(folder)
    begun = time.perf_counter()
    await asyncio.gather(*(_flow(log, n, 10) for n in range(1, runs + 1)))
    return rate(10 * runs, time.perf_counter() - begun)


async def fan_out(folder: Path, lanes: int) -> Figures:
    log = Log(folder)
    begun = time.perf_counter()
    await log.write(BEGIN, (1, encode({"lanes": lanes})))
    run = Run(log, 1)
    await asyncio.gather(*(run.step("answer", i, payload) for i in range(lanes)))
    await log.write(END, (1,))
    return {"ms": 1000 * (time.perf_counter() - begun)}


async def one_step(folder: Path, times: int) -> Figures:
    log, took = Log(folder), list[float]()
    for n in range(1, times + 1):
        begun = time.perf_counter()
        await _flow(log, n, 1)
        took.append(time.perf_counter() - begun)
    return latency(took)


async def growing_ctx(folder: Path, steps: int) -> Figures:
    log = Log(folder)
    begun = time.perf_counter()
    await log.write(BEGIN, (1, encode({"steps": steps})))
    run = Run(log, 1)
    for i in range(steps):
        await run.step("answer", i, payload, f"k{i}")
    await log.write(END, (1,))
    return {"secs": time.perf_counter() - begun}


async def crash(folder: Path, at: int) -> Figures:
    await _flow(Log(folder), 1, 2 * at, lambda i: die() if i == at else payload(i))
    raise AssertionError("it did not die")


async def resume(folder: Path, at: int) -> Figures:
    await _flow(Log(folder), 1, 2 * at, arrived)
    raise AssertionError("nothing was left to do")


async def scan(folder: Path, at: int) -> Figures:
    log = Log(folder)
    begun = time.perf_counter()
    assert len(log.read(1)) == at
    return {"per_s": at / (time.perf_counter() - begun)}


WORKS = {
    "seq": sequential,
    "many": many,
    "fan": fan_out,
    "lat": one_step,
    "ctx": growing_ctx,
    "crash": crash,
    "resume": resume,
    "scan": scan,
}

if __name__ == "__main__":
    main(WORKS)
