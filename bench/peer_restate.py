"""Restate: its server, which calls a service in this process. Runs in an environment of its own: see `peers`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config

from bench.engine import Run, answer, at_last, grow, works
from bench.sample import main, payload_until
from bench.servers import port

UNBOUNDED = 2**31 - 1
EVERYBODY_AT_ONCE = httpx.Limits(max_connections=None)
SERVICE = restate.Service("bench")


@SERVICE.handler()
async def in_turn(ctx: restate.Context, steps: int) -> None:
    for n in range(steps):
        await ctx.run_typed("answer", answer, n=n)


@SERVICE.handler()
async def until(ctx: restate.Context, steps: int) -> None:
    for n in range(steps):
        await ctx.run_typed("answer", payload_until, n=n)


@SERVICE.handler()
async def side_by_side(ctx: restate.Context, lanes: int) -> None:
    await restate.gather(*(ctx.run_typed("answer", answer, n=n) for n in range(lanes)))


@SERVICE.handler()
async def growing(ctx: restate.Context, steps: int) -> None:
    grown: list[str] = []
    for n in range(steps):
        grown = await ctx.run_typed("grow", grow, grown=grown, n=n)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Run]:
    """The service, once its Restate knows it."""
    ended, patient = asyncio.Event(), httpx.AsyncClient(timeout=None, limits=EVERYBODY_AT_ONCE, trust_env=False)
    ingress, admin, service = (f"http://127.0.0.1:{port(folder, name)}" for name in ("ingress", "admin", "service"))
    config = Config()
    config.bind, config.loglevel = [service.removeprefix("http://")], "ERROR"
    config.h2_max_concurrent_streams = config.keep_alive_max_requests = config.keep_alive_timeout = UNBOUNDED
    async with asyncio.TaskGroup() as group, patient as http:
        group.create_task(serve(restate.app([SERVICE]), config, shutdown_trigger=ended.wait))

        async def run(flow: str, size: int, name: str | None = None) -> None:
            headers = {"Idempotency-Key": name} if name else {}
            (await http.post(f"{ingress}/bench/{flow}", json=size, headers=headers)).raise_for_status()

        async def introduce() -> None:
            (await http.post(f"{admin}/deployments", json={"uri": service})).raise_for_status()
            await run("in_turn", 0)

        # Both listen before they answer, and the ingress hears of a service a moment after the admin did.
        await at_last(introduce, httpx.HTTPError)
        yield run
        ended.set()


if __name__ == "__main__":
    main(works(opened))
