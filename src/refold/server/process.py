"""How a process runs that holds a store: on which loop, and what its collector looks at.

Both are settings of the whole process, so they are made by who owns it: a command, or the program of who embeds an App.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on uvloop: a good tenth more steps a second of many Runs (`scripts/bench steps`)."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def spare_collector() -> None:
    """Has the collector look rarely, and never at what is loaded.

    Runs make thousands of objects a second and hardly a cycle among them. At the default of 700 new objects a look, a
    good part of the time of many Runs goes into looking at the others' state (`scripts/bench steps`). What is loaded is
    not collected first: imports leave a thousand objects, and finding them is a look at all the others.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
