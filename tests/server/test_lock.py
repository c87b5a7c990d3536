"""One holder per store: the kernel decides, and gives the lock back however the holder dies (law 4)."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refold.errors import StoreHeld, StoreRefused
from refold.server import lock
from refold.server.lock import StoreLock

HOLD = """
import sys
from pathlib import Path
from refold.server.lock import StoreLock
held = StoreLock(Path(sys.argv[1]))
held.acquire()
held.publish("http://127.0.0.1:7777")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "refold.db"


@pytest.fixture
def holder(store: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that holds the store."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(store)], stdin=-1, stdout=-1) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_holder_is_refused_and_told_who_holds(store: Path, holder: subprocess.Popen[bytes]) -> None:
    second = StoreLock(store)
    with pytest.raises(StoreHeld) as raised:
        second.acquire()
    assert raised.value.data == {"pid": holder.pid, "url": "http://127.0.0.1:7777"}
    for part in (str(store), str(holder.pid), "http://127.0.0.1:7777"):
        assert part in raised.value.message
    assert second.holder() == raised.value.data, "the refused one has not written over it"
    assert not store.exists(), "nor touched the store"


def test_kill_9_gives_the_lock_back(store: Path, holder: subprocess.Popen[bytes]) -> None:
    assert StoreLock(store).is_held()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert not StoreLock(store).is_held()
    next_one = StoreLock(store)
    next_one.acquire()
    assert next_one.holder() == {"pid": os.getpid()}, "the dead one's address is gone"
    next_one.release()


def test_a_release_lets_the_next_one_in(store: Path) -> None:
    for _ in range(2):
        held = StoreLock(store)
        held.acquire()
        assert StoreLock(store).is_held()
        with pytest.raises(StoreHeld):
            StoreLock(store).acquire()
        held.release()
        held.release()
        assert not StoreLock(store).is_held()


def test_a_link_to_the_store_is_the_same_store(store: Path, tmp_path: Path) -> None:
    store.touch()
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "mine.db"
    link.symlink_to(store)
    held = StoreLock(store)
    held.acquire()
    with pytest.raises(StoreHeld):
        StoreLock(link).acquire()
    held.release()


def test_who_only_asks_does_not_stop_the_next_holder(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_file = StoreLock(store).path
    lock_file.touch()
    asking = os.open(lock_file, os.O_RDWR)
    fcntl.flock(asking, fcntl.LOCK_SH)
    monkeypatch.setattr(lock.time, "sleep", lambda secs: fcntl.flock(asking, fcntl.LOCK_UN))
    held = StoreLock(store)
    held.acquire()
    held.release()
    os.close(asking)


def test_asking_about_a_store_without_a_lock_file_makes_none(store: Path) -> None:
    assert not StoreLock(store).is_held()
    assert list(store.parent.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "\udcff", "NaN"])
def test_a_holder_that_says_nothing_readable_is_unknown(store: Path, text: str) -> None:
    held = StoreLock(store)
    held.acquire()
    held.path.write_bytes(text.encode("utf-8", "surrogateescape"))
    assert held.holder() == {}
    with pytest.raises(StoreHeld, match="pid unknown at an address not yet known"):
        StoreLock(store).acquire()
    held.release()


def test_the_lock_file_is_for_its_owner_only(store: Path) -> None:
    before = os.umask(0o022)
    try:
        held = StoreLock(store)
        held.acquire()
        assert stat.S_IMODE(held.path.stat().st_mode) == 0o600
        held.release()
    finally:
        os.umask(before)


@pytest.mark.parametrize("spoil", [lambda path: path.mkdir(), lambda path: path.symlink_to("no/such/place")])
def test_where_there_can_be_no_lock_file_the_store_is_refused(store: Path, spoil: Callable[[Path], None]) -> None:
    spoil(StoreLock(store).path)
    with pytest.raises(StoreRefused):
        StoreLock(store).acquire()
