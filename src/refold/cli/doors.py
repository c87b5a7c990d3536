"""How a command reaches the store, and how it talks.

It goes through the door of whoever holds the store. Only reading without a holder goes to the file, and says so.

Not here: holding the store where nobody does (`holding`).
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any, Final

from refold.canonical import encode
from refold.client.api import Api, Unreachable
from refold.server.config import Config, Home, load, store_path
from refold.server.lock import StoreLock

Json = Any

HOLDER_SECS: Final = 10.0
"""How long a holder may take from its lock to its door."""


def configured(store: str | None = None, **flags: Any) -> tuple[Home, Config]:
    """The home and configuration of this command."""
    home = Home()
    return home, load(home, {"store": store, **flags})


def holder(home: Home, config: Config) -> Api | None:
    """The door of the process that holds the store, None if nobody does. Raises Unreachable if its door stays shut."""
    if config.ephemeral:
        return None
    lock = StoreLock(store_path(config, home))
    deadline = time.monotonic() + HOLDER_SECS
    while lock.is_held():
        url = lock.holder().get("url")
        if isinstance(url, str):
            return Api(url, home.token())
        if time.monotonic() > deadline:
            raise Unreachable(f"a process holds {lock.path} and does not say where it listens")
        time.sleep(0.02)
    return None


def database(home: Home, config: Config) -> Path | None:
    """The store's file for a read without a holder, None if there is none yet."""
    path = store_path(config, home)
    if path.exists():
        say(f"nobody holds {path}; reading it as it is")
        return path
    return None


def say(text: str) -> None:
    """Says a line to the person: on stderr, whether it is read or not. What cannot be written there is dropped.

    A pipe whose reader is gone, a closed file or a full disk must not reach who talks: a driver that falls first logs
    why and then interrupts its Run, and a log that raised would leave that Run `running` for ever.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def give(value: Json) -> None:
    """Gives data: one line of JSON on stdout."""
    sys.stdout.write(encode(value) + "\n")
