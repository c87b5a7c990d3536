"""Contestants, and how one of them does one piece of work: in a process of its own, in a folder of its own.

A contestant is a program `WORK FOLDER SIZE` that prints what it found as its last line (`sample.main`). What
is measured from outside, for all alike, is here: the disk they use, and how soon they go on after a kill.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench import peers, served
from bench.sample import Figures, payload

ROOT = Path(__file__).parent.parent
WORK_SECS = 900


class Contestant(NamedTuple):
    """`name` as the table has it; the Python and the module that do its work, and what it can do."""

    name: str
    python: str
    module: str
    works: frozenset[str]


class Failed(Exception):
    """A contestant did not do its work; the text says how it ended."""


_SHARED = ("seq", "many", "fan", "lat", "ctx", "resume")
_SERVED = ("seq", "many", "fan", "lat", "resume", "start", "cli", "clients")
REFOLD, HTTP, BARE = "refold", "refold HTTP", "bare log"


def ours() -> list[Contestant]:
    """refold through its doors, and the bare log."""
    here = sys.executable
    return [
        Contestant(REFOLD, here, "bench.inside", frozenset([*_SHARED, "idle"])),
        Contestant(REFOLD, here, "bench.audience", frozenset(["told"])),
        Contestant(HTTP, here, "bench.served", frozenset(_SERVED)),
        Contestant(BARE, here, "bench.bare", frozenset(_SHARED)),
    ]


def peer(name: str) -> Contestant:
    """A peer. Raises PeerMissing."""
    return Contestant(name, str(peers.python_of(name)), f"bench.peer_{name}", frozenset(_SHARED))


def measure(who: Contestant, work: str, size: int) -> Figures:
    """What `who` does. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as name:
        folder = Path(name)
        if work == "resume":
            return _resumed(who, folder, size)
        found = _run(who, work, folder, size)
        return found if work != "ctx" else found | {"mb": _disk_bytes(folder) / 1e6}


def raw_commits(count: int = 200) -> float:
    """One-row FULL commits a second in a bare loop: how fast this machine's disk is at this moment."""
    with (
        tempfile.TemporaryDirectory(prefix="refold-bench-") as name,
        closing(sqlite3.connect(Path(name) / "raw.db", isolation_level=None)) as raw,
    ):
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute("PRAGMA synchronous = FULL")
        raw.execute("CREATE TABLE step (n INTEGER PRIMARY KEY, output TEXT)")
        begun = time.perf_counter()
        for n in range(count):
            raw.execute("INSERT INTO step (output) VALUES (?)", (payload(n),))
        return count / (time.perf_counter() - begun)


def _command(who: Contestant, work: str, folder: Path, size: int) -> list[str]:
    return [who.python, "-m", who.module, work, str(folder), str(size)]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


def _run(who: Contestant, work: str, folder: Path, size: int) -> Figures:
    command = _command(who, work, folder, size)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=WORK_SECS, env=_environment(), cwd=ROOT)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{who.name} was not done with {work} after {WORK_SECS} s") from error
    if done.returncode or not done.stdout.strip():
        raise Failed(f"{who.name} ended {work} with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _resumed(who: Contestant, folder: Path, at: int) -> Figures:
    """Kills a process at step `at`; how long the next one takes from its start to that step."""
    crash = _command(who, "crash", folder, at)
    killed = subprocess.run(crash, capture_output=True, text=True, timeout=WORK_SECS, env=_environment(), cwd=ROOT)
    if killed.returncode not in (0, -9):  # 0: it watched its server die
        raise Failed(f"{who.name} did not die as it should: {killed.stderr[-500:]}")
    command, environment = _command(who, "resume", folder, at), _environment()
    if who.name == HTTP:
        command = [*served.SERVE, "--auto-resume"]
        environment |= served.environment(folder, BENCH_RESUMED="1")
    begun = time.monotonic()
    resumed = subprocess.run(command, capture_output=True, text=True, timeout=WORK_SECS, env=environment, cwd=ROOT)
    if resumed.returncode:
        raise Failed(f"{who.name} did not resume: {resumed.stderr[-500:]}")
    came = json.loads(resumed.stdout.splitlines()[-1])
    found = {"secs": came["at"] - begun, "ran_again": float(at - came["step"])}
    if who.name in (REFOLD, BARE):
        found["scan_per_s"] = _run(who, "scan", folder, at)["per_s"]
    return found


def _disk_bytes(folder: Path) -> int:
    """What is on disk once every WAL has been moved into its database."""
    for file in folder.rglob("*.db"):
        with closing(sqlite3.connect(file)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
