"""The engine's own `@wait`: sleeps until the due time that stands in its attempt row.

The row is what makes a wait durable: a server that died meanwhile reads the due time back and waits for what is left.
"""

from __future__ import annotations

import asyncio

from refold.engine.agents.base import Assignment, Definition, Report, Tools
from refold.flowir import Pass

LOOK_SECS = 30.0
"""How long a wait `until` a wall-clock time sleeps at once: the clock may be set meanwhile."""


class WaitAgent:
    """Passes with null when the wait is over."""

    def __init__(self, agent: Definition, tools: Tools) -> None:
        self._clock = tools.clock

    async def perform(self, work: Assignment) -> Report:
        """Sleeps."""
        assert work.due_at is not None, "the driver gives every wait its due time"
        if "secs" in work.directive:  # an interval: only what was left of it at the start comes from the wall clock
            await asyncio.sleep(max(0, work.due_at - self._clock.now_ms()) / 1000)
            return Report(Pass(None))
        while (left := work.due_at - self._clock.now_ms()) > 0:
            await asyncio.sleep(min(left / 1000, LOOK_SECS))
        return Report(Pass(None))
