"""The stage of the demo: a home of its own, a server that can be killed, the ledger and the gate.

The server is `refold serve` as a child process, with nothing of the caller's configuration. Not here: what happens on
the stage (`command`), what the steps write into the ledger (`steps`).
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from refold.cli.demo import flow, steps
from refold.client.api import Api
from refold.client.session import Wire
from refold.errors import RefoldError
from refold.server.config import Home

BOOT_SECS: Final = 30.0
STOP_SECS: Final = 10.0
POLL_SECS: Final = 0.01
LOG_TAIL: Final = 1000
"""Characters of the server's log that an error shows."""


class DemoStuck(RefoldError):
    """The story cannot go on: something that must happen did not happen within its deadline."""

    kind = "demo_stuck"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the ledger: `event` is `start`, `held` or `end`. Steps inside the server have no `key`."""

    event: str
    run: str
    step_id: str
    ref: str
    lane: tuple[int, ...]
    at_ns: int
    occurrence: int | None = None
    key: str | None = None
    planned: int | None = None


class Stage:
    """Use it as a context: at its end the server is stopped, whatever happened."""

    def __init__(self, home: Path) -> None:
        self.home = Home(home)
        self.work = home / "survey"
        self.log = home / "serve.log"
        self.pid = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._gate: int | None = None
        self._wires: list[Wire] = []

    def __enter__(self) -> Self:
        self.home.make()
        self.work.mkdir(mode=0o700)
        self._gate = os.open(self.work / steps.GATE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for wire in self._wires:
            wire.close()
        self.stop()
        self.open_gate()

    def serve(self) -> Api:
        """Starts the server and returns its door; raises DemoStuck."""
        command = [sys.executable, "-P", "-m", "refold", "serve", "--bind", "127.0.0.1:0", "--subprocess", "any"]
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(
                [*command, "--app", flow.APP],
                env=_environment(self.home.path, self.work),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C ends the demo, and the demo ends the server
            )
        self.pid = self._server.pid
        deadline = time.monotonic() + BOOT_SECS
        while self.home.server().get("pid") != self.pid:  # the file of a killed server stays, with another pid in it
            if self._server.poll() is not None or time.monotonic() > deadline:
                raise DemoStuck(f"the server did not start; its log ends with:\n{self.log_tail()}")
            time.sleep(POLL_SECS)
        return Api(self.home.server()["url"], self.home.token(), timeout=BOOT_SECS)

    def wire(self) -> Wire:
        """A new connection to the server, closed with the stage."""
        wire = Wire(self.home.server()["url"], self.home.token(), client="refold_demo")
        self._wires.append(wire)
        return wire

    def kill(self) -> None:
        """kill -9. Returns when the process is gone."""
        assert self._server is not None
        os.kill(self._server.pid, signal.SIGKILL)
        self._server.wait()

    def stop(self) -> None:
        """Ends the server in good order, if there is one."""
        if self._server is None or self._server.poll() is not None:
            return
        self._server.terminate()
        try:
            self._server.wait(STOP_SECS)
        except subprocess.TimeoutExpired:
            self.kill()

    def open_gate(self) -> None:
        """Lets go whoever waits at the gate, and everybody after."""
        if self._gate is not None:
            os.close(self._gate)
            self._gate = None

    def ledger(self) -> tuple[Entry, ...]:
        """What the steps have written so far."""
        return tuple(msgspec.convert(line, Entry) for line in steps.read_ledger(str(self.work)))

    def log_tail(self) -> str:
        """The end of the servers' log, for errors."""
        return self.log.read_text(errors="replace")[-LOG_TAIL:]


def _environment(home: Path, work: Path) -> Mapping[str, str]:
    """The caller's environment without any setting of refold."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    return bare | {"REFOLD_HOME": str(home), steps.WORK_VARIABLE: str(work)}
