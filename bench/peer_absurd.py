"""Absurd on PostgreSQL, durability and polling as shipped. Runs in an environment of its own: see `peers`."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import absurdctl
import psycopg
from absurd_sdk import Absurd, AsyncAbsurd

from bench.engine import Run, answer, grow, works
from bench.sample import GIVEN_UP_SECS, main, payload_until
from bench.servers import port

QUEUE = "bench"
WORKERS = 20
"""Each has a connection and a thread of its own."""


def in_turn(steps: int, ctx: Any) -> None:
    _loop(steps, ctx, answer)


def until(steps: int, ctx: Any) -> None:
    _loop(steps, ctx, payload_until)


def _loop(steps: int, ctx: Any, function: Callable[[int], str]) -> None:
    for n in range(steps):
        ctx.step("answer", lambda n=n: function(n))


def growing(steps: int, ctx: Any) -> None:
    grown: list[str] = []
    for n in range(steps):
        grown = ctx.step("grow", lambda n=n, before=grown: grow(before, n))


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Run]:
    """A client, and workers in this process that do what it asks for."""
    address = f"postgresql://bench@127.0.0.1:{port(folder, 'postgres')}/postgres"
    _prepare(address)
    for _ in range(WORKERS):
        threading.Thread(target=_work, args=(address,), daemon=True).start()
    client = AsyncAbsurd(address)

    async def run(flow: str, size: int, name: str | None = None) -> None:
        task = await client.spawn(flow, size, queue=QUEUE, idempotency_key=name or uuid4().hex)
        ended = await client.await_task_result(task["task_id"], queue_name=QUEUE)
        assert ended.state == "completed", ended

    yield run


def _prepare(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        (schema,) = connection.execute("SELECT to_regnamespace('absurd')").fetchone()
        if schema is None:
            connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
            Absurd(connection).create_queue(QUEUE)


def _work(address: str) -> None:
    worker = Absurd(address, queue_name=QUEUE)
    for flow in (in_turn, until, growing):
        worker.register_task(flow.__name__)(flow)
    worker.start_worker(claim_timeout=GIVEN_UP_SECS)


if __name__ == "__main__":
    main(works(opened))
