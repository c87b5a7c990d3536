"""How much may run at the same time on this server: steps, and among them processes.

A step that does not fit has no attempt and is not started; its driver waits in line and is woken in turn. Nothing here
is durable: after a restart everything is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Capacity:
    """Slots for steps; a subprocess takes one of its own kind as well."""

    def __init__(self, steps: int, subprocesses: int) -> None:
        self._free_steps = steps
        self._free_subprocesses = subprocesses
        self._line: deque[Callable[[], None]] = deque()

    def take(self, kind: str) -> bool:
        """Takes a slot for an agent of `kind` if there is one."""
        if not self._free_steps or (kind == "subprocess" and not self._free_subprocesses):
            return False
        self._free_steps -= 1
        self._free_subprocesses -= kind == "subprocess"
        return True

    def give(self, kind: str) -> None:
        """Gives a slot back and wakes everybody in line, the longest waiting first."""
        self._free_steps += 1
        self._free_subprocesses += kind == "subprocess"
        line, self._line = self._line, deque()
        for wake in line:
            wake()

    def queue(self, wake: Callable[[], None]) -> None:
        """Puts a waiting driver in line: `wake` is called once, when something may fit."""
        if wake not in self._line:
            self._line.append(wake)
