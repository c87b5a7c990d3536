"""Temporal's dev server on a file of SQLite; a step is an activity. Runs in an environment of its own: see `peers`.

Local activities, which are faster, are not on record one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.engine import Run, answer, at_last, grow, works
from bench.sample import GIVEN_UP_SECS, main, payload_until
from bench.servers import port

QUEUE = "bench"
AT_ONCE = 200
GIVEN_UP = timedelta(seconds=GIVEN_UP_SECS)


@activity.defn(name="answer")
async def answers(n: int) -> str:
    return answer(n)


@activity.defn(name="until")
async def answers_until(n: int) -> str:
    return payload_until(n)


@activity.defn(name="grow")
async def grows(grown: list[str], n: int) -> list[str]:
    return grow(grown, n)


async def step(function: Any, *given: Any) -> Any:
    return await workflow.execute_activity(function, args=given, start_to_close_timeout=GIVEN_UP)


@workflow.defn(name="in_turn")
class InTurn:
    @workflow.run
    async def run(self, steps: int) -> None:
        for n in range(steps):
            await step(answers, n)


@workflow.defn(name="until")
class Until:
    @workflow.run
    async def run(self, steps: int) -> None:
        for n in range(steps):
            await step(answers_until, n)


@workflow.defn(name="side_by_side")
class SideBySide:
    @workflow.run
    async def run(self, lanes: int) -> None:
        await asyncio.gather(*(step(answers, n) for n in range(lanes)))


@workflow.defn(name="growing")
class Growing:
    @workflow.run
    async def run(self, steps: int) -> None:
        grown: list[str] = []
        for n in range(steps):
            grown = await step(grows, grown, n)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Run]:
    """A client, and a worker in this process that does what it asks for."""
    client = await at_last(lambda: _connect(folder), RPCError, RuntimeError)

    async def run(flow: str, size: int, name: str | None = None) -> None:
        same = WorkflowIDConflictPolicy.USE_EXISTING
        await client.execute_workflow(flow, size, id=name or uuid4().hex, task_queue=QUEUE, id_conflict_policy=same)

    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[InTurn, Until, SideBySide, Growing],
        activities=[answers, answers_until, grows],
        workflow_runner=UnsandboxedWorkflowRunner(),  # it does not run `bench` through a second importer
        max_concurrent_activities=AT_ONCE,
    ):
        yield run


async def _connect(folder: Path) -> Client:
    """To a server that knows its namespace, which it does a moment after it listens."""
    client = await Client.connect(f"127.0.0.1:{port(folder, 'temporal')}")
    await client.count_workflows()
    return client


if __name__ == "__main__":
    main(works(opened))
