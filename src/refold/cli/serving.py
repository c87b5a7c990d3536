"""`refold serve` and `refold msp`: the commands that hold a store, or carry a connection to who does."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from refold import diagnostics
from refold.cli.doors import configured, holder, say
from refold.cli.holding import prepare_process
from refold.client.api import Api
from refold.client.bridge import bridge
from refold.errors import StoreHeld
from refold.server.config import Config, Home
from refold.server.host import hold
from refold.server.process import run
from refold.server.stdio import chunks, serve_stdio, writer


def serve(
    *,
    bind: str | None = None,
    store: str | None = None,
    replay_store_path: str | None = None,
    ephemeral: Annotated[bool | None, Parameter(negative=())] = None,
    subprocess: Literal["any", "declared", "off"] | None = None,
    app: Annotated[list[str] | None, Parameter(negative=())] = None,
    replay: Literal["on", "off"] | None = None,
    stale_run_sweep_secs: int | None = None,
    sweep_period_secs: float | None = None,
    auto_resume: Annotated[bool | None, Parameter(negative=())] = None,
    notify_command: Annotated[list[str] | None, Parameter(negative=(), allow_leading_hyphen=True)] = None,
    notify_url: str | None = None,
) -> int:
    """Holds a store and serves it until SIGTERM or Ctrl-C.

    Parameters
    ----------
    bind
        HOST:PORT of the loopback door; port 0 takes any.
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    replay_store_path
        The published name of --store.
    ephemeral
        Keep everything in memory; nothing outlives the process.
    subprocess
        Whether Blueprints that come over HTTP may name programs.
    app
        A module whose functions agents of kind `python` may name; may be given several times.
    replay
        Whether passed steps are logged, so that Runs can be resumed.
    stale_run_sweep_secs
        How long a Run without a driver may stand still before it is interrupted; 0 turns the sweep off.
    sweep_period_secs
        How often the sweep looks.
    auto_resume
        Resume at boot what boot recovery found.
    notify_command
        A program that is run, with JSON on its standard input, when a Run begins to wait for a person; given several
        times, the further ones are its arguments.
    notify_url
        A web address that is told the same by POST: https, or http on this machine.
    """
    home, config = configured(
        store,
        bind=bind,
        replay_store_path=replay_store_path,
        ephemeral=ephemeral,
        subprocess=subprocess,
        app=app or None,
        replay=replay,
        stale_run_sweep_secs=stale_run_sweep_secs,
        sweep_period_secs=sweep_period_secs,
        auto_resume=auto_resume,
        notify_command=notify_command or None,
        notify_url=notify_url,
    )
    prepare_process()
    run(_serve(home, config))
    return 0


async def _serve(home: Home, config: Config) -> None:
    stop = _stop_signals()
    async with hold(config, home) as host:
        diagnostics.Log("refold").info("serving", url=host.url, store=str(host.app.settings.store or "memory"))
        await stop.wait()


def msp(
    *,
    store: str | None = None,
    ephemeral: Annotated[bool | None, Parameter(negative=())] = None,
    subprocess: Literal["any", "declared", "off"] | None = None,
) -> int:
    """Speaks the Muse Session Protocol on stdio: attached to who holds the store, or holding it itself.

    Parameters
    ----------
    store
        The store's file; default $REFOLD_HOME/store/refold.db.
    ephemeral
        Keep everything in memory; nothing outlives the process.
    subprocess
        Whether Blueprints may name programs, where this process holds the store.
    """
    home, config = configured(store, ephemeral=ephemeral, subprocess=subprocess, bind="127.0.0.1:0")
    prepare_process()
    while True:
        api = holder(home, config)
        try:
            run(_attach(api) if api is not None else _host(home, config))
        except StoreHeld:
            continue  # somebody took the store between the look and the lock: attach to them
        return 0


async def _attach(api: Api) -> None:
    await bridge(api.url, api.token, chunks(sys.stdin.fileno()), await writer(sys.stdout.fileno()))


async def _host(home: Home, config: Config) -> None:
    stop = _stop_signals()
    async with hold(config, home) as host:
        speaking = asyncio.create_task(serve_stdio(host.rpc))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([speaking, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in (speaking, stopping):
            task.cancel()
        await asyncio.gather(speaking, stopping, return_exceptions=True)


def _stop_signals() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets; the second one ends the process at once."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def stopped() -> None:
        if stop.is_set():
            os._exit(130)
        say("stopping: runs are marked as interrupted and can be resumed")
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped)
    return stop
