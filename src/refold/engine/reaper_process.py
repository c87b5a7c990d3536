"""The reaper process: reads process groups from standard input and, when that ends, kills what the server left.

Run as `python -I -S reaper_process.py SERVER_ID` by `reaper.Reaper`. It is a script of its own and imports nothing of
refold, so that it is up in milliseconds, stays small, and cannot fail for the reason that killed the server.

Law: it kills recorded groups and processes of its own server, nothing else, and never before the pipe has ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CLEAN_SCANS = 2  # one is not enough: a fork may have been hidden from it behind the process it came from
PAUSE_SECS = 0.05
PATIENCE_SECS = 5.0


def main(server_id: str) -> None:
    """Waits for the end of standard input, then kills until nothing of `server_id` is seen any more."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    for pgid in recorded_groups():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pgid, signal.SIGKILL)
    kill_marked(f"REFOLD_SERVER={server_id}".encode())


def recorded_groups() -> set[int]:
    """Reads `+pgid` and `-pgid` lines until the server closes the pipe or dies; returns the groups then alive."""
    groups: set[int] = set()
    for line in sys.stdin:
        (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
    return groups


def kill_marked(mark: bytes) -> None:
    """Kills every process whose environment has the entry `mark`, until two scans in a row find none."""
    deadline = time.monotonic() + PATIENCE_SECS
    clean = 0
    while clean < CLEAN_SCANS and time.monotonic() < deadline:
        clean = 0 if kill_seen(mark) else clean + 1
        time.sleep(PAUSE_SECS)


def kill_seen(mark: bytes) -> bool:
    """One scan of all processes; tells whether it saw one with `mark`."""
    seen = False
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal() and int(entry.name) != os.getpid() and has_mark(entry.path, mark):
            seen = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(int(entry.name), signal.SIGKILL)
    return seen


def has_mark(process: str, mark: bytes) -> bool:
    """Tells whether the process has `mark` among its entries, whole: the id `a` is not the id `ab`."""
    try:
        with open(f"{process}/environ", "rb") as environ:  # noqa: PTH123 - pathlib would double the start-up time
            return mark in environ.read().split(b"\0")
    except OSError:  # it is gone meanwhile, or somebody else's
        return False


if __name__ == "__main__":
    main(sys.argv[1])
