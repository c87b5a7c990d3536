"""The inbox of a driver: what its attempts, questions and pauses tell it, taken all at once.

Not an `asyncio.Queue`, which hands out one by one: lanes that end in one turn of the loop share a commit (law 3).
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

M = TypeVar("M")


class Inbox(Generic[M]):
    """Messages in the order in which they were put. One reader, on `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._messages: list[M] = []
        self._arrival: asyncio.Future[None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come since the last `take`."""
        return not self._messages

    def put(self, message: M) -> None:
        """Puts a message in, and wakes the reader."""
        self._messages.append(message)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def take(self) -> list[M]:
        """Waits for one message, and takes all that are there by then."""
        if not self._messages:
            self._arrival = self._loop.create_future()
            await self._arrival
        taken, self._messages = self._messages, []
        return taken
