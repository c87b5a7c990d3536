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
    """The frames of one Session after a position, as they come. Cancel the task that iterates to end it."""

    def __init__(self, store: Store, hub: Hub, log: SessionLog, session: SessionRecord, after: Position) -> None:
        self._store = store
        self._hub = hub
        self._log = log
        self._session = session
        self.position = after

    async def frames(self) -> AsyncIterator[Frames]:
        """Yields what is there, in batches, and waits when there is nothing."""
        bell = self._hub.open(self._session.n)
        try:
            while True:
                bell.clear()  # before the read: what is appended after it rings again
                batch = await self._store.read(self._read)
                if not batch:
                    await bell.wait()
                    continue
                yield batch
                self.position = batch[-1][0]
        finally:
            self._hub.close(self._session.n, bell)

    def _read(self, reader: Reader) -> Frames:
        return self._log.after(reader, self._session, self.position)
