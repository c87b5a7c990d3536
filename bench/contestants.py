"""Contestants, and how one of them does one piece of work: in a process of its own, in a folder of its own.

A contestant is a program `WORK FOLDER SIZE` that prints what it found as its last line (`sample.main`). What
is measured from outside, for all alike, is here: the disk they use, and how soon they go on after a kill.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import NamedTuple

from bench import peers, served
from bench.peers import Limit
from bench.sample import Figures, payload
from bench.servers import NotUp, Server

ROOT = Path(__file__).parent.parent
WORK_SECS = 600
"""What takes longer is a fault: nobody who hangs keeps the others waiting."""


class Contestant(NamedTuple):
    """`name` as the table has it; the Python and the module that do its work, and what it can do.

    Of a peer also the server that has to run meanwhile, and what it is made of.
    """

    name: str
    python: str
    module: str
    works: frozenset[str]
    limits: tuple[Limit, ...] = ()
    server: Server = nullcontext
    made_of: tuple[str, ...] = ()

    def does(self, work: str, size: int) -> bool:
        """Whether it can, as far as is known."""
        return work in self.works and self.why_not(work, size) is None

    def why_not(self, work: str, size: int) -> str | None:
        """What keeps it from a work at this size."""
        return next((limit.why for limit in self.limits if limit.work == work and size > limit.size), None)


Completed = subprocess.CompletedProcess[str]


class Failed(Exception):
    """A contestant did not do its work; the text says how it ended."""


_ON_DISK = ("ctx", "events")
"""The works of which what is on disk afterwards is a figure."""
_SHARED = ("seq", "many", "fan", "lat", "ctx", "resume")
_SERVED = ("seq", "many", "fan", "lat", "resume", "start", "cli", "clients")
REFOLD, HTTP, BARE = "refold", "refold HTTP", "bare log"


def ours() -> list[Contestant]:
    """refold through its doors, and the bare log."""
    here = sys.executable
    return [
        Contestant(REFOLD, here, "bench.inside", frozenset([*_SHARED, "idle"])),
        Contestant(REFOLD, here, "bench.audience", frozenset(["told"])),
        Contestant(REFOLD, here, "bench.lengths", frozenset(["wrote"])),
        Contestant(HTTP, here, "bench.served", frozenset(_SERVED)),
        Contestant(HTTP, here, "bench.lengths", frozenset(["events"])),
        Contestant(BARE, here, "bench.bare", frozenset(_SHARED)),
    ]


def peer(name: str) -> Contestant:
    """A peer. Raises PeerMissing."""
    python, server, made_of = peers.installed(name)
    limits = peers.PEERS[name].limits
    return Contestant(name, str(python), f"bench.peer_{name}", frozenset(_SHARED), limits, server, made_of)


def measure(who: Contestant, work: str, size: int) -> Figures:
    """What `who` does. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as name:
        folder = Path(name)
        try:
            if work == "resume":
                return _resumed(who, folder, size)
            with who.server(folder):
                found = _run(who, work, folder, size)
        except NotUp as error:
            raise Failed(f"{who.name} could not begin {work}: {error}") from error
        return {"mb": _disk_bytes(folder) / 1e6} | found if work in _ON_DISK else found


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
    done = _call(who, work, _command(who, work, folder, size), _environment())
    if done.returncode or not done.stdout.strip():
        raise Failed(f"{who.name} ended {work} with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _call(who: Contestant, work: str, command: Sequence[str], environment: dict[str, str]) -> Completed:
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True, **streams) as process:
        try:
            said, complained = process.communicate(timeout=WORK_SECS)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{who.name} was not done with {work} after {WORK_SECS} s") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started: it cannot end that itself any more
    return Completed(command, process.returncode, said, complained)


def _resumed(who: Contestant, folder: Path, at: int) -> Figures:
    """Kills a process at step `at`, and its server; how long the next ones take from their start to that step."""
    with who.server(folder):
        killed = _call(who, "crash", _command(who, "crash", folder, at), _environment())
    if killed.returncode not in (0, -9):  # 0: it watched its server die
        raise Failed(f"{who.name} did not die as it should: {killed.stderr[-500:]}")
    command, environment = _command(who, "resume", folder, at), _environment()
    if who.name == HTTP:
        command = [*served.SERVE, "--auto-resume"]
        environment |= served.environment(folder, BENCH_RESUMED="1")
    begun = time.monotonic()
    with who.server(folder):
        resumed = _call(who, "resume", command, environment)
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
