"""The reaper with real processes: nothing of a server outlives it, and nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from engine_kit import is_alive, marked, until, until_async

from refold.engine import reaper_process
from refold.engine.reaper import Reaper

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]

Sleeper = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def server_id() -> Iterator[str]:
    """A server's id; whatever carries it at the end of the test is killed."""
    server_id = str(uuid.uuid4())
    yield server_id
    for pid in marked(server_id):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """Starts processes that sleep, each in a group of its own, marked with a server's id or not."""
    started: list[subprocess.Popen[bytes]] = []

    def start(server_id: str | None = None) -> subprocess.Popen[bytes]:
        env = {} if server_id is None else {"REFOLD_SERVER": server_id}
        started.append(subprocess.Popen(["/bin/sleep", "60"], env=env, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@contextmanager
def killed_while_starting(server_id: str, mode: str) -> Iterator[None]:
    """Starts a server with 50 agents and a grandchild each, and kills it when the first few are seen."""
    command = [sys.executable, str(Path(__file__).with_name("server_like.py")), server_id, "50", mode]
    server = subprocess.Popen(command, start_new_session=True)
    try:
        assert until(lambda: len(marked(server_id)) >= 5, 10)
        server.kill()
        server.wait()
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_nothing_outlives_a_server_that_is_killed_while_its_agents_start(server_id: str) -> None:
    with killed_while_starting(server_id, "reaped"):
        assert until(lambda: not marked(server_id), 2), f"left behind: {marked(server_id)}"


def test_without_the_reaper_agents_outlive_the_server(server_id: str) -> None:
    """The planted fault: what the test above says is the reaper's doing."""
    with killed_while_starting(server_id, "bare"):
        assert not until(lambda: not marked(server_id), 1)


def test_a_fork_of_the_server_does_not_keep_the_reaper_waiting(server_id: str) -> None:
    with killed_while_starting(server_id, "forked"):
        assert until(lambda: not marked(server_id), 2), f"left behind: {marked(server_id)}"


async def test_close_kills_recorded_groups_and_marked_processes_and_ends_the_reaper(
    server_id: str, sleeper: Sleeper
) -> None:
    reaper = Reaper.start(server_id)
    recorded, only_marked = sleeper(), sleeper(server_id)
    reaper.register(recorded.pid)
    await reaper.close()
    assert (recorded.wait(1), only_marked.wait(1)) == (-signal.SIGKILL, -signal.SIGKILL)
    assert not is_alive(reaper.pid)
    await reaper.close()


def test_it_ends_after_two_scans_in_a_row_that_saw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [True, False, True, False, False, True]
    monkeypatch.setattr(reaper_process, "PAUSE_SECS", 0)
    monkeypatch.setattr(reaper_process, "kill_seen", lambda mark: seen.pop(0))
    reaper_process.kill_marked(b"REFOLD_SERVER=x")
    assert seen == [True]


def test_it_gives_up_when_what_it_kills_does_not_go_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper_process, "PAUSE_SECS", 0)
    monkeypatch.setattr(reaper_process, "PATIENCE_SECS", 0.02)
    monkeypatch.setattr(reaper_process, "kill_seen", lambda mark: True)
    reaper_process.kill_marked(b"REFOLD_SERVER=x")


async def test_what_is_not_this_servers_is_left_alone(server_id: str, sleeper: Sleeper) -> None:
    reaper = Reaper.start(server_id)
    forgotten, strangers = sleeper(), [sleeper(server_id + "0"), sleeper(server_id[:-1]), sleeper()]
    reaper.register(forgotten.pid)
    reaper.unregister(forgotten.pid)
    await reaper.close()
    assert [process.poll() for process in (forgotten, *strangers)] == [None] * 4


async def test_nothing_is_killed_while_the_server_lives(server_id: str, sleeper: Sleeper) -> None:
    reaper = Reaper.start(server_id)
    recorded = sleeper(server_id)
    reaper.register(recorded.pid)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        assert until(lambda bit=1 << (number - 1): _ignored(reaper.pid) & bit, 5), f"{number!r} would kill the reaper"
        os.kill(reaper.pid, number)
    assert os.getsid(reaper.pid) != os.getsid(0)
    assert recorded.poll() is None
    assert is_alive(reaper.pid)
    await reaper.close()
    assert recorded.wait(1) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_reaper_that_was_killed_or_stopped_is_replaced(
    number: signal.Signals, server_id: str, sleeper: Sleeper
) -> None:
    reaper = Reaper.start(server_id)
    first, early, late = reaper.pid, sleeper(), sleeper()
    reaper.register(early.pid)
    os.kill(first, number)
    assert await until_async(lambda: number is signal.SIGSTOP or not is_alive(first), 5)
    for _ in range(20_000):  # a stopped one is noticed when its pipe is full
        reaper.register(late.pid)
    assert reaper.pid != first
    assert not is_alive(first)
    assert (early.poll(), late.poll()) == (None, None)
    await reaper.close()
    assert (early.wait(1), late.wait(1)) == (-signal.SIGKILL, -signal.SIGKILL)


async def test_after_close_groups_can_be_forgotten_but_not_recorded(server_id: str) -> None:
    reaper = Reaper.start(server_id)
    await reaper.close()
    reaper.unregister(4711)
    with pytest.raises(ValueError, match="closed"):
        reaper.register(4711)


async def test_the_reaper_of_a_server_inside_an_agent_is_not_marked_by_the_outer_server(
    server_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_SERVER", server_id)
    inner = Reaper.start("inner-" + server_id)
    assert until(lambda: _ignored(inner.pid), 5)
    assert inner.pid not in marked(server_id)
    await inner.close()


def _ignored(pid: int) -> int:
    """The signals that the process ignores, as a bit mask."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)
