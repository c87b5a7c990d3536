"""One reader's subscription: it pulls the log after its own position, at its own speed.

Nothing is queued for a reader beyond what it is handed: a slow one reads later, from the log. Delivery is strictly
after the position, so the seam to what an answer already covered has neither a hole nor a double.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from refold.records import SessionRecord
from refold.session.hub import Hub
from refold.session.log import Frames, SessionLog
from refold.store import Reader, Store
from refold.view import Position


class Subscription:
    """The frames of one Session after a position, as they come. `position` is that of the last one handed out."""

    def __init__(self, store: Store, hub: Hub, log: SessionLog, session: SessionRecord, after: Position) -> None:
        self._store = store
        self._hub = hub
        self._log = log
        self._session = session
        self._bell = hub.open(session.n)
        self._closed = False
        self.position = after

    async def frames(self) -> AsyncIterator[Frames]:
        """Yields what is there, in batches, and waits when there is nothing; ends once it is closed."""
        while not self._closed:
            self._bell.clear()  # before the read: what is appended after it rings again
            batch = await self._store.read(self._read)
            if self._closed:
                return
            if not batch:
                await self._bell.wait()
                continue
            self.position = batch[-1][0]
            yield batch

    async def rest(self, until: Position) -> AsyncIterator[Frames]:
        """Yields what a closed subscription still owes, up to and with the frame at `until`."""
        while self.position < until:
            batch = [each for each in await self._store.read(self._read) if each[0] <= until]
            if not batch:
                return
            self.position = batch[-1][0]
            yield batch

    def close(self) -> None:
        """Ends `frames`: it hands out nothing more, also not what it is about to read."""
        self._closed = True
        self._hub.close(self._session.n, self._bell)
        self._bell.set()

    def _read(self, reader: Reader) -> Frames:
        return self._log.after(reader, self._session, self.position)
