"""How much may run at the same time on this server: steps, and among them processes.

A step that does not fit has no attempt and is not started; its driver waits in line. A driver that had a slot and waits
for more goes to the end of it: otherwise a Run of a thousand lanes would be woken first for ever. Nothing here is
durable: after a restart everything is free.
"""

from __future__ import annotations

from collections.abc import Callable


class Capacity:
    """Slots for steps; a subprocess takes one of its own kind as well."""

    def __init__(self, steps: int, subprocesses: int) -> None:
        self._free_steps = steps
        self._free_subprocesses = subprocesses
        self._line: dict[Callable[[], None], None] = {}

    def take(self, kind: str) -> bool:
        """Takes a slot for an agent of `kind` if there is one."""
        if not self._free_steps or (kind == "subprocess" and not self._free_subprocesses):
            return False
        self._free_steps -= 1
        self._free_subprocesses -= kind == "subprocess"
        return True

    def give(self, kind: str) -> None:
        """Gives a slot back and wakes everybody in line, the longest waiting first: not everybody needs the same."""
        self._free_steps += 1
        self._free_subprocesses += kind == "subprocess"
        for wake in list(self._line):
            wake()

    def queue(self, wake: Callable[[], None]) -> None:
        """Puts a driver in line, if it is not: `wake` is called whenever something may fit, until it leaves."""
        self._line.setdefault(wake)

    def leave(self, wake: Callable[[], None]) -> None:
        """Takes a driver out of the line."""
        self._line.pop(wake, None)
