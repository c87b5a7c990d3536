"""Peers: other durable engines that do the same work, each at a pinned version in an environment of its own.

An environment is made on first use, beneath `$XDG_CACHE_HOME/refold-bench`, and anew when its pins change.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

PINS = {
    "dbos": ("dbos==3.4.0", "pysqlite3-binary==0.5.4.post2"),
    "langgraph": ("langgraph==1.2.24", "langgraph-checkpoint-sqlite==3.1.2"),
}
INSTALL_SECS = 900


class PeerMissing(Exception):
    """A peer cannot be had here; its text says why."""


def python_of(peer: str) -> Path:
    """The Python that has the peer, installed first if need be. Raises PeerMissing."""
    if peer not in PINS:
        raise PeerMissing(f"nobody has written its workloads; there are {', '.join(PINS)}")
    pins = PINS[peer]
    stamp = hashlib.sha256(repr((pins, sys.version)).encode()).hexdigest()[:8]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "refold-bench" / f"{peer}-{stamp}"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        sys.stderr.write(f"installing {', '.join(pins)}\n")
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True, timeout=INSTALL_SECS)
            install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins]
            subprocess.run(install, check=True, timeout=INSTALL_SECS, stdout=sys.stderr)
        except (OSError, subprocess.SubprocessError) as error:
            raise PeerMissing(f"it could not be installed: {error}") from error
        (home / "complete").touch()
    return python
