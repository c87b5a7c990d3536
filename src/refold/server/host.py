"""The holder of a store: lock, App, loopback door, server.json; and their end, in the reverse order.

Exactly one process holds a store. Whoever it is, `serve`, a stdio host or a one-shot command, it opens the door, so
that everybody else attaches to it. Boot: take the lock, recover, bind, announce, accept. End: mark and stop what runs,
close the door, take back server.json, give the lock back.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Generator
from functools import partial

import uvicorn

from refold.engine.clock import Clock, rfc3339
from refold.errors import ConfigInvalid
from refold.server import shapes
from refold.server.config import Config, Home
from refold.server.guard import host_port
from refold.server.http import http_app
from refold.server.lock import StoreLock
from refold.server.process import spare_collector
from refold.server.rpc import Rpc
from refold.server.settings import settings
from refold.service.app import App

DRAIN_SECS = 3
"""How long open connections may still take after everything that runs has been marked and stopped."""


class Host:
    """A held store with its door open."""

    def __init__(self, app: App, rpc: Rpc, url: str) -> None:
        self.app = app
        self.rpc = rpc
        self.url = url


@contextlib.asynccontextmanager
async def hold(config: Config, home: Home) -> AsyncGenerator[Host]:
    """Holds the store of `config` for the length of the block.

    Raises StoreHeld before anything is touched, StoreRefused, StoreDamaged, ConfigInvalid.
    """
    home.make()
    told = settings(config, home)
    lock = None
    if told.store is not None:
        told.store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = StoreLock(told.store)
        lock.acquire()
    try:
        app = await App.open(told)
        try:
            async with _door(app, config, home, lock) as host:
                spare_collector()
                yield host
                await app.drain()
        finally:
            await app.close()
    finally:
        if lock is not None:
            lock.release()


@contextlib.asynccontextmanager
async def _door(app: App, config: Config, home: Home, lock: StoreLock | None) -> AsyncGenerator[Host]:
    listener = _bind(config.bind)
    host, port = listener.getsockname()[:2]
    url = f"http://{host_port(host, port)}"
    rpc = Rpc(app, str(home.path.absolute()))
    names = [host_port(name, port) for name in {host, "127.0.0.1", "::1", "localhost"}]
    server = _Server(
        uvicorn.Config(
            http_app(app, rpc, home.token(), names),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            ws_max_size=2 * rpc.host.limits.frame_bytes,
            timeout_graceful_shutdown=DRAIN_SECS,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        if serving.done():
            serving.result()
            raise ConfigInvalid(f"the door at {config.bind} did not open")
        await asyncio.sleep(0.005)
    if lock is not None:
        lock.publish(url)
    home.announce({"url": url, "pid": os.getpid(), "started_at": rfc3339(Clock().now_ms())})
    try:
        await app.notifier.start(partial(shapes.opened, url))
        yield Host(app, rpc, url)
    finally:
        home.retract()
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: signals belong to the process that holds, and end it with exit code 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def _bind(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host.strip("[]") or "127.0.0.1", int(port)), family=family, backlog=2048)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigInvalid(f"cannot listen on {address}: {error}; give another --bind HOST:PORT") from error
    # Its connections inherit this. asyncio sets it on sockets that name their protocol, which these do not; without it
    # an answer and the events behind it wait for the client's delayed acknowledgement, 40 ms each time.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setblocking(False)
    return listener


__all__ = ["Host", "hold"]
