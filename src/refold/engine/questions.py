"""The requests that one driver waits for: each is heard of once, whoever settles it and whenever.

A request may be settled by a person over any door, or by nobody in time. The desk rings for the first, a timer here
settles the second. Open the bell first, then look: an answer that came while the driver was being made rang for nobody.

Not here: what is asked and what an answer means (`asking`, `flowir.answers`), how a request is settled (`desk`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

from refold.engine.clock import Clock
from refold.engine.desk import Desk, expire
from refold.errors import Conflict
from refold.records import RequestRow, RequestStatus
from refold.store import Reader, Store

Tell = Callable[[int, RequestRow | Exception], None]
"""Takes a ticket and the request that was settled for it, or the error for which that will never be known."""


class Questions:
    """What one driver waits for people with. `wait`, then `arm` once it is on record; `close` ends it all."""

    def __init__(self, store: Store, clock: Clock, desk: Desk, tell: Tell) -> None:
        self._store = store
        self._clock = clock
        self._desk = desk
        self._tell = tell
        self._waits: dict[str, int] = {}
        self._unarmed: list[tuple[RequestRow, bool]] = []
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def wait(self, ticket: int, request: RequestRow, *, is_new: bool) -> None:
        """Has the answer told under `ticket`: at once, if it is there already."""
        if request.status != RequestStatus.OPEN:
            self._tell(ticket, request)
            return
        self._waits[request.request_id] = ticket
        self._desk.wait(request.request_id, self._heard)
        self._unarmed.append((request, is_new))

    def arm(self) -> None:
        """Starts the clocks of what is on record by now: before that there is nothing that could expire."""
        for request, is_new in self._unarmed:
            if request.request_id not in self._waits:
                continue
            self._desk.asked(request)
            if not is_new:
                self._spawn(request, self._look(request))
            if request.expires_at is not None:
                left = max(0, request.expires_at - self._clock.now_ms()) / 1000
                over = partial(self._over, request)
                self._timers[request.request_id] = asyncio.get_running_loop().call_later(left, over)
        self._unarmed.clear()

    def leave(self, request: RequestRow) -> None:
        """Ends a wait: the lane that asked has lost."""
        self._desk.leave(request.request_id)
        self._forget(request)

    def close(self) -> Collection[asyncio.Task[None]]:
        """Ends all waits; what was under way for them, cancelled, which the caller awaits."""
        for request_id in self._waits:
            self._desk.leave(request_id)
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        return list(self._tasks)

    def _heard(self, request: RequestRow) -> None:
        ticket = self._forget(request)
        if ticket is not None:
            self._tell(ticket, request)

    def _forget(self, request: RequestRow) -> int | None:
        timer = self._timers.pop(request.request_id, None)
        if timer is not None:
            timer.cancel()
        return self._waits.pop(request.request_id, None)

    async def _look(self, request: RequestRow) -> None:
        """Looks whether a request was settled between the read that brought it here and the bell."""

        def read(reader: Reader) -> RequestRow | None:
            return reader.get(RequestRow, request.n)

        now = await self._store.read(read)
        if now is not None and now.status != RequestStatus.OPEN:
            self._desk.ring(now)

    def _over(self, request: RequestRow) -> None:
        self._spawn(request, self._expire(request))

    async def _expire(self, request: RequestRow) -> None:
        try:
            settled = await self._store.write(partial(expire, request.request_id, self._clock.now_ms()))
        except Conflict:
            return  # somebody answered at the last moment, and that answer is on its way here
        self._desk.ring(settled)

    def _spawn(self, request: RequestRow, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._guarded(request, work), name=f"request {request.request_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, request: RequestRow, work: Coroutine[Any, Any, None]) -> None:
        """A fault of the store must not leave a Run waiting for ever: its driver falls, and it can be resumed."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - told to the driver, which raises it
            ticket = self._forget(request)
            if ticket is not None:
                self._tell(ticket, error)
