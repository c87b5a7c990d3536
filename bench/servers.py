"""Servers: on loopback, on free ports, with what they keep in a given folder, and ended with the block they serve.

Only the standard library: peers ask here, in environments of their own, where their server is.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

Server = Callable[[Path], AbstractContextManager[object]]
"""What a contestant needs to run, for as long as the block lasts. Entered again on its folder, it has what it had."""

PATIENCE_SECS, ENDING_SECS = 300.0, 30.0


class NotUp(Exception):
    """A server did not open its door; the text has what it said last."""


def port(folder: Path, name: str) -> int:
    """A port that was free when `name` was first asked for in this folder: who comes back is found where it was."""
    kept = folder / f"{name}.port"
    if not kept.exists():
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            kept.write_text(str(one.getsockname()[1]))
    return int(kept.read_text())


def listens(at: int) -> bool:
    """Whether somebody takes connections at this port of loopback."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", at)) == 0


@contextmanager
def running(
    command: Sequence[str | Path],
    folder: Path,
    is_up: Callable[[], bool],
    *,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
    ending: signal.Signals = signal.SIGKILL,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process from when it is up; what it says is in `server.log`. Raises NotUp."""
    said = folder / "server.log"
    with said.open("ab") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        process = subprocess.Popen(command, env=environment, user=user, **streams)
    try:
        until = time.monotonic() + PATIENCE_SECS
        while not is_up():
            if process.poll() is not None or time.monotonic() > until:
                raise NotUp(f"{Path(command[0]).name} did not open its door: {said.read_text()[-500:]}")
            time.sleep(0.002)
        yield process
    finally:
        process.send_signal(ending)
        try:
            process.wait(ENDING_SECS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def restate(home: Path, folder: Path) -> Iterator[None]:
    """Restate's server as npm installed it in `home`, on the ports `ingress` and `admin`.

    It is the program itself: its wrapper in JavaScript would die alone.
    """
    (program,) = home.glob("node_modules/@restatedev/restate-server-*/bin/restate-server")
    ingress, admin, node = (f"127.0.0.1:{port(folder, name)}" for name in ("ingress", "admin", "node"))
    settings = {
        "RESTATE_INGRESS__BIND_ADDRESS": ingress,
        "RESTATE_ADMIN__BIND_ADDRESS": admin,
        "RESTATE_BIND_ADDRESS": node,
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_LOG_FILTER": "warn",
        "DO_NOT_TRACK": "1",
        "NO_PROXY": "127.0.0.1",
    }
    command = [program, "--base-dir", folder / "restate", "--node-name", "bench"]
    is_up = partial(listens, port(folder, "admin"))
    with running(command, folder, is_up, environment={**os.environ, **settings}):
        yield


@contextmanager
def temporal(home: Path, folder: Path) -> Iterator[None]:
    """Temporal's dev server as pip installed it in `home`, on the port `temporal`, with its file of SQLite."""
    at = port(folder, "temporal")
    command = [home / "bin" / "temporal", "server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(at)]
    with running([*command, "--db-filename", folder / "temporal.db"], folder, partial(listens, at)):
        yield
