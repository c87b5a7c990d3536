"""The server's side of the reaper: a small process that outlives the server and leaves none of its agents behind.

    server ──"+4711\\n" "-4711\\n"──▶ pipe ──▶ reaper_process.py
      ╳ dies, by whatever means          └─ end of file ─▶ kills every group still recorded, then every process whose
                                            environment carries REFOLD_SERVER=<this server's id>

Law: when the server is gone, its agents and what they started are gone soon after (reliability F7). Without it a
killed server's agents go on making side effects while the resumed Run makes them again.

A file end is the one message that a process killed with SIGKILL still sends. The second pass catches the group that
was born between fork and record, and what left its group by `setsid`. Beyond reach is what also wiped its environment.
Not here: starting and stopping agents (`agents.process`).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Final
from weakref import WeakSet

SERVER_VARIABLE: Final = "REFOLD_SERVER"
_SCRIPT: Final = Path(__file__).with_name("reaper_process.py")
_LAST_WAIT_SECS: Final = 6.0
"""Longer than the reaper process itself ever takes to finish."""


class Reaper:
    """One reaper process, for one server. Made by `start`, ended by `close`.

    It is told of a group right after its birth and of its end before the leader is reaped: as long as a number is
    recorded, the kernel gives it to nobody else.
    """

    def __init__(self, server_id: str) -> None:
        self.server_id = server_id
        self._groups: set[int] = set()
        self._process = self._spawn()
        _alive.add(self)

    @classmethod
    def start(cls, server_id: str) -> Reaper:
        """Starts the reaper process of the server `server_id`; raises OSError if it cannot be started."""
        return cls(server_id)

    @property
    def pid(self) -> int:
        """The process id of the reaper process, for status pages."""
        return self._process.pid

    def register(self, pgid: int) -> None:
        """Records a process group that must not outlive the server; raises ValueError after `close`."""
        self._groups.add(pgid)
        self._tell(f"+{pgid}\n")

    def unregister(self, pgid: int) -> None:
        """Forgets a group whose work has ended. After `close` there is nothing to forget."""
        self._groups.discard(pgid)
        if self in _alive:
            self._tell(f"-{pgid}\n")

    async def close(self) -> None:
        """Kills all that is left of this server's agents and ends the reaper process. A second call does nothing."""
        _alive.discard(self)
        await asyncio.to_thread(self._finish)

    def _spawn(self) -> subprocess.Popen[bytes]:
        # A server that was itself started by an agent of another server carries that one's id. Its reaper must not:
        # the other reaper would kill it together with the server, and nobody would be left to clean up.
        env = {name: value for name, value in os.environ.items() if name != SERVER_VARIABLE}
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), self.server_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env=env,
            start_new_session=True,  # a signal to the server's group or terminal does not reach it
        )
        os.set_blocking(_pipe(process), False)
        return process

    def _tell(self, line: str) -> None:
        try:
            os.write(_pipe(self._process), line.encode())
        except (BrokenPipeError, BlockingIOError):  # it was killed, or it was stopped until the pipe was full
            self._replace()

    def _replace(self) -> None:
        """Starts another reaper process that knows the same groups."""
        # Killed before its pipe is closed: a stopped one that is continued later would find the end of the file, and
        # kill every group of a server that is alive.
        self._process.kill()
        self._process.wait()
        self.hang_up()
        self._process = self._spawn()
        os.write(_pipe(self._process), "".join(f"+{pgid}\n" for pgid in self._groups).encode())

    def _finish(self) -> None:
        self.hang_up()
        try:
            self._process.wait(_LAST_WAIT_SECS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def hang_up(self) -> None:
        """Closes this process's end of the pipe, and nothing else."""
        if self._process.stdin is not None:
            self._process.stdin.close()


def _pipe(process: subprocess.Popen[bytes]) -> int:
    assert process.stdin is not None
    return process.stdin.fileno()


_alive: WeakSet[Reaper] = WeakSet()


def _hang_up_in_fork() -> None:
    """A fork of the server (multiprocessing in an app's function, say) must not hold the pipe open after its death."""
    for reaper in _alive:
        reaper.hang_up()


os.register_at_fork(after_in_child=_hang_up_in_fork)
