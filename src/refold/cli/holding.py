"""Commands that act: through whoever holds the store, or by holding it for the length of the command.

Either way the command speaks HTTP to a door, so that there is one way to do a thing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

from refold.cli.doors import holder, say
from refold.client.api import Api
from refold.server.config import Config, Home
from refold.server.process import run

T = TypeVar("T")


def through(home: Home, config: Config, command: Callable[[Api], T]) -> T:
    """Runs `command` against the holder's door, or against our own while we hold the store."""
    api = holder(home, config)
    if api is not None:
        return command(api)
    from refold.server.host import hold  # the servers' libraries take longer to load than most commands to run

    async def holding() -> T:
        async with hold(config, home) as host:
            return await asyncio.to_thread(command, Api(host.url, home.token()))

    prepare_process()
    return run(holding())


def prepare_process() -> None:
    """Private files whatever the caller's umask, and logs as JSON lines on stderr."""
    from refold.server.journal import JsonLines  # rich comes with it, and a command that only asks needs none

    os.umask(0o077)
    JsonLines(say).attach()
