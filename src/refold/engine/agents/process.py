"""One child process on the event loop: its own session and group, its three pipes, its end.

Laws:
- Nothing of the group outlives `stop`: the leader is reaped, whatever it started in its group is killed.
- The group is recorded with the reaper from birth until just before the leader is reaped. Until then the kernel gives
  its number to nobody else, so that no signal can hit a stranger.
- `finished` ends when the leader has exited, also while a grandchild still holds a pipe.
- Memory is bounded by the limits, whatever the child writes.

It stands on file descriptors and a pidfd (Linux 5.3), which are the same on every event loop. asyncio's own subprocess
support is not: whether its `wait` waits for the pipes as well depends on the loop and on the release of Python.
Not here: what the output means (`agents.subprocess`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final

from refold.engine.agents.base import Groups

_CHUNK: Final = 64 * 1024
_PIPE_BYTES: Final = 1024 * 1024
"""The most that a pipe can hold: one read of this size empties it."""
_MORE: Final = 4
"""What a tail keeps beyond its limit: a sign that there was more, and room to cut between characters."""


class Process:
    """A running child. Await `finished`, then in any case `stop`; then its results are complete.

    Raises:
        OSError, ValueError: it cannot be started; nothing is left behind.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | None,
        env: Mapping[str, str],
        cwd: str | None,
        reaper: Groups,
        output_bytes: int,
        tail_bytes: int,
    ) -> None:
        self.stdout = bytearray()
        """All of its standard output, unless that is `excessive`."""
        self.stderr = bytearray()
        """The end of its standard error: at least `tail_bytes`, and more than that if it is not all."""
        self.excessive = False
        """True when it wrote more than `output_bytes`; it is killed then."""
        self._output_bytes = output_bytes
        self._tail_bytes = tail_bytes
        self._reaper = reaper
        self._writer: _Writer | None = None
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        try:
            reaper.register(self._child.pid)
            self._exit = _watch_exit(self._child.pid)
        except BaseException:
            self._signal(signal.SIGKILL)
            self._reap()
            raise
        if self._child.stdin is not None and stdin is not None:
            self._writer = _Writer(self._child.stdin, stdin)
        self._readers = _Reader(self._child.stdout, self._take_stdout), _Reader(self._child.stderr, self._take_stderr)

    @property
    def exit_code(self) -> int:
        """The leader's exit code, after `stop`; minus the signal's number if one killed it."""
        return self._child.returncode

    async def finished(self, drain_secs: float) -> None:
        """Waits until the leader has exited and, for `drain_secs` at most, until its output has ended too."""
        await asyncio.wait([self._exit])
        # The output of `exec > >(tee log)` comes through a process that ends a moment after its leader.
        await asyncio.wait([reader.ended for reader in self._readers], timeout=drain_secs)

    async def stop(self, grace_secs: float) -> None:
        """Ends what still runs (SIGTERM, after `grace_secs` SIGKILL), takes the last output, reaps the leader.

        It waits only after `finished` was cancelled, and a further cancellation does not hurry it: the first one is
        under way already, and it must not complete before the work has ended.
        """
        if not self._exit.done():
            self._signal(signal.SIGTERM)
            await _outlast(self._exit, grace_secs)
        self._signal(signal.SIGKILL)
        await _outlast(self._exit, None)
        for reader in self._readers:
            reader.finish()
        self._reap()

    def _take_stdout(self, chunk: bytes) -> bool:
        self.stdout += chunk
        if len(self.stdout) > self._output_bytes:
            self.excessive = True
            self.stdout.clear()
            self._signal(signal.SIGKILL)
        return not self.excessive

    def _take_stderr(self, chunk: bytes) -> bool:
        self.stderr += chunk
        if len(self.stderr) > 2 * self._tail_bytes + _MORE:
            del self.stderr[: -self._tail_bytes - _MORE]
        return True

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # every member is gone, or a zombie
            os.killpg(self._child.pid, number)

    def _reap(self) -> None:
        self._reaper.unregister(self._child.pid)
        self._child.wait()
        if self._writer is not None:
            self._writer.close()
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                pipe.close()


def _watch_exit(pid: int) -> asyncio.Future[None]:
    """A future that is done when the child `pid` has exited; it is not reaped by that."""
    loop = asyncio.get_running_loop()
    seen: asyncio.Future[None] = loop.create_future()
    fd = os.pidfd_open(pid)

    def exited() -> None:
        loop.remove_reader(fd)
        os.close(fd)
        seen.set_result(None)

    loop.add_reader(fd, exited)
    return seen


async def _outlast(seen: asyncio.Future[None], secs: float | None) -> None:
    """Waits for `seen`, for `secs` at most, through any cancellation."""
    loop = asyncio.get_running_loop()
    deadline = None if secs is None else loop.time() + secs
    while not seen.done() and (deadline is None or loop.time() < deadline):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([seen], timeout=None if deadline is None else deadline - loop.time())


class _Writer:
    """Writes `data` into a pipe as there is room, and closes it. A child that does not read it is no fault."""

    def __init__(self, pipe: IO[bytes], data: bytes) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._rest = memoryview(data)
        os.set_blocking(pipe.fileno(), False)
        self._loop.add_writer(pipe.fileno(), self._write)

    def close(self) -> None:
        """Closes the pipe, whatever is still unwritten."""
        if not self._pipe.closed:
            self._loop.remove_writer(self._pipe.fileno())
            self._pipe.close()

    def _write(self) -> None:
        try:
            self._rest = self._rest[os.write(self._pipe.fileno(), self._rest) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._rest = self._rest[:0]
        if not self._rest:
            self.close()


class _Reader:
    """Hands what comes through a pipe to `take`, until the pipe ends or `take` wants no more."""

    def __init__(self, pipe: IO[bytes] | None, take: Callable[[bytes], bool]) -> None:
        assert pipe is not None
        self._loop = asyncio.get_running_loop()
        self._fd = pipe.fileno()
        self._take = take
        self.ended: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(self._fd, False)
        self._loop.add_reader(self._fd, self._read)

    def finish(self) -> None:
        """Takes what is in the pipe at this moment and no more, whoever still writes to it."""
        if not self.ended.done():
            self._read(_PIPE_BYTES)
            self._end()

    def _read(self, size: int = _CHUNK) -> None:
        with contextlib.suppress(BlockingIOError):
            chunk = os.read(self._fd, size)
            if not chunk or not self._take(chunk):
                self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self._loop.remove_reader(self._fd)
            self.ended.set_result(None)
