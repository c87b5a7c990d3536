"""Who holds a store: an exclusive `flock` on `<store>.lock`, with the holder's pid and url inside.

The kernel drops the lock when the holder dies, however it dies, so a stale file never blocks anybody. The text inside
is for people and for those who attach; the lock alone decides.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any, Final

from refold.canonical import decode, encode
from refold.errors import InvalidJson, StoreHeld, StoreRefused

PROBES: Final = 5
PROBE_SECS: Final = 0.01
"""Who asks `is_held` has the lock for an instant: that many tries, so far apart, are not stopped by it."""


class StoreLock:
    """The right to write one store. `acquire` at most once; `release` or the death of the process gives it back."""

    def __init__(self, store: Path) -> None:
        store = store.resolve()  # a link beside the file would else lead to a lock of its own, and to a second holder
        self.path = store.with_name(store.name + ".lock")
        self._fd: int | None = None

    def acquire(self) -> None:
        """Takes the lock or raises StoreHeld naming the holder. Touches nothing else.

        Raises StoreRefused where there can be no lock file.
        """
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreRefused(f"{self.path} cannot be opened for writing: {error}", path=str(self.path)) from error
        if not _locked(fd):
            os.close(fd)
            holder = self.holder()
            who = f"pid {holder.get('pid', 'unknown')} at {holder.get('url', 'an address not yet known')}"
            raise StoreHeld(
                f"the store {self.path.with_suffix('')} is in use by another refold process ({who}); "
                "attach to it, stop it, or name another store with --store",
                **holder,
            )
        self._fd = fd
        self._write({"pid": os.getpid()})

    def publish(self, url: str) -> None:
        """Writes where this holder listens, for those that are refused or attach."""
        self._write({"pid": os.getpid(), "url": url})

    def holder(self) -> dict[str, Any]:
        """What the file says of the holder; empty when it says nothing readable."""
        try:
            said = decode(self.path.read_text())
        except (OSError, ValueError, InvalidJson):
            return {}
        return said if isinstance(said, dict) else {}

    def is_held(self) -> bool:
        """Whether another process holds the lock at this moment."""
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, holder: dict[str, object]) -> None:
        assert self._fd is not None, "only the holder writes"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, encode(holder).encode(), 0)


def _locked(fd: int) -> bool:
    for _ in range(PROBES):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PROBE_SECS)
        else:
            return True
    return False
