"""Tells a person that a Run waits for one: once per request, and never in the way of the Run.

A driver rings the desk when it begins to wait for a request; from then on it is nobody's concern but the notifier's. It
hands the request to every channel, tries again what failed, and marks on disk what was told: a request that a restart
or a resume finds open again is not told again.

The promise is *at least once*. Between the moment a channel took a request and the commit of the mark lies a window: a
server that is killed in it tells that request once more after its restart. Receivers tell repeats by `request_id`. A
request that no try got through for is counted, logged and tried anew after the next start or resume.

Not here: what a message looks like (whoever calls `start`), how it is sent (`channels`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from refold import diagnostics
from refold.canonical import encode
from refold.engine.desk import Desk
from refold.engine.secrets import Secrets
from refold.errors import RefoldError
from refold.records import MetaRow, RequestRow, RequestStatus
from refold.service.channels import Channel
from refold.service.metrics import Metrics
from refold.store import Reader, Store, Tx
from refold.view import clip

Json = Any
log = diagnostics.Log("refold.notifier")

PAUSES: Final = (0.0, 1.0, 10.0)
"""Seconds before each try. What is down for longer is told after the next start or resume."""

ACTION_BYTES: Final = 64 * 1024
"""The longest action that a message carries whole."""

WORKERS: Final = 4
"""How many requests are told at a time: a slow receiver delays the others, and costs no more than this."""

_KEY: Final = "notified:"
_SWEPT_EVERY: Final = 256


class Notifier:
    """Whom to tell, and what was told. Without channels it does nothing."""

    def __init__(
        self,
        store: Store,
        desk: Desk,
        secrets: Secrets,
        metrics: Metrics,
        channels: Sequence[Channel],
        *,
        timeout_secs: float,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._store = store
        self._desk = desk
        self._secrets = secrets
        self._metrics = metrics
        self._channels = channels
        self._timeout_secs = timeout_secs
        self._sleep = sleep
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._taken: set[str] = set()
        self._marked = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, describe: Callable[[RequestRow], Json]) -> None:
        """Begins to tell: what is open and was never told, then whatever is opened. `describe` gives the message."""
        if not self._channels:
            return
        self._desk.on_asked(self._asked)
        for request_id in await self._store.write(_untold):
            self._take(request_id)
        work = (self._work(describe) for _ in range(WORKERS))
        self._tasks = [asyncio.create_task(each, name="notifier") for each in work]

    async def close(self) -> None:
        """Ends it. What is under way is given up, unmarked."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _asked(self, request: RequestRow) -> None:
        self._take(request.request_id)

    def _take(self, request_id: str) -> None:
        if request_id not in self._taken:
            self._taken.add(request_id)
            self._queue.put_nowait(request_id)

    async def _work(self, describe: Callable[[RequestRow], Json]) -> None:
        while True:
            request_id = await self._queue.get()
            try:
                await self._tell(request_id, describe)
            except RefoldError as error:  # the store: the Run will hear of it too
                log.warning("request_not_told", request_id=request_id, kind=error.kind, error=error.message)
            except Exception as error:
                log.error("request_not_told", request_id=request_id, error=repr(error), exc_info=error)
            finally:
                self._taken.discard(request_id)

    async def _tell(self, request_id: str, describe: Callable[[RequestRow], Json]) -> None:
        owed, faults = list(self._channels), []
        for pause in PAUSES:
            await self._sleep(pause)
            request = await self._store.read(lambda reader: _owed(reader, request_id))
            if request is None:
                return
            body, names = self._message(request, describe), {"REFOLD_REQUEST_ID": request_id}
            said = [(each, await self._sent(each, body, names)) for each in owed]
            owed, faults = [each for each, fault in said if fault], [fault for _, fault in said if fault]
            if not owed:
                await self._store.write(lambda tx: tx.put(MetaRow(key=_KEY + request_id, value=b"")))
                self._metrics.requests_told["ok"] += 1
                await self._sweep()
                return
        self._metrics.requests_told["failed"] += 1
        log.warning("request_not_told", request_id=request_id, kind="hook_failed", faults=faults)

    async def _sent(self, channel: Channel, body: str, names: dict[str, str]) -> str | None:
        limit = asyncio.timeout(self._timeout_secs)
        try:
            async with limit:
                return await channel.send(body, names)
        except TimeoutError:
            if not limit.expired():
                raise
            return f"no answer within {self._timeout_secs} s"

    def _message(self, request: RequestRow, describe: Callable[[RequestRow], Json]) -> str:
        said = describe(request)
        size = len(request.action_json.encode())
        if size > ACTION_BYTES:
            head = {"head": clip(request.action_json, ACTION_BYTES), "byte_len": size}
            said = said | {"request": said["request"] | {"action": {"$truncated": head}}}
        return encode(self._secrets.redact(said))

    async def _sweep(self) -> None:
        """Takes the marks of settled requests away now and then; a start does so as well."""
        self._marked += 1
        if self._marked % _SWEPT_EVERY == 0:
            await self._store.write(_untold)


def _untold(tx: Tx) -> list[str]:
    """The open requests without a mark, oldest first. Marks of those that are not open any more are taken away."""
    still = {row.request_id for row in _open(tx)}
    marks = {row.key.removeprefix(_KEY) for row in tx.find(MetaRow) if row.key.startswith(_KEY)}
    for request_id in marks - still:
        tx.delete(MetaRow, key=_KEY + request_id)
    return [row.request_id for row in _open(tx) if row.request_id not in marks]


def _owed(reader: Reader, request_id: str) -> RequestRow | None:
    """The request, if it is still to be told of: neither answered meanwhile, nor gone with its Run, nor told before."""
    if reader.get(MetaRow, _KEY + request_id) is not None:
        return None
    found = reader.find(RequestRow, request_id=request_id)
    return found[0] if found and found[0].status == RequestStatus.OPEN else None


def _open(reader: Reader) -> list[RequestRow]:
    return reader.find(RequestRow, status=RequestStatus.OPEN)
