"""One reader's subscription: it pulls the log after its own position, at its own speed.

Nothing is queued for a reader beyond what it is handed: a slow one reads later, from the log. Delivery is strictly
after the position, so the seam to what an answer already covered has neither a hole nor a double.

A reader that was at the head once and has fallen too far behind jumps near it again, and is told with one `view/gap`
what it has not been handed; it pages that from the log, or takes a snapshot. What a resume owes is never jumped over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from refold.records import SessionRecord
from refold.session.hub import Hub
from refold.session.log import Frames, SessionLog
from refold.store import Reader, Store
from refold.view import Frame, Position

NEAR_HEAD: Final = 64
"""How many of the newest frames a reader that jumps is handed."""


class Batch(NamedTuple):
    """What a reader is handed at once. `gap` comes first; a batch without frames says it is at the head."""

    frames: Frames
    gap: Frame | None = None


class Subscription:
    """The frames of one Session after a position, as they come; `close` ends it. Its bell is open from the start.

    `position` is that of the last frame that was taken: a batch counts once the reader comes back for the next one, so
    one that was handed out and dropped, because another subscription took over meanwhile, is still owed.

    Args:
        behind: how many log rows a reader that was at the head may fall behind before it jumps.
    """

    def __init__(
        self,
        store: Store,
        hub: Hub,
        log: SessionLog,
        session: SessionRecord,
        after: Position,
        *,
        behind: int = 10_000,
    ) -> None:
        self._store = store
        self._hub = hub
        self._log = log
        self._session = session
        self._bell = hub.open(session.n)
        self.closed = False
        self._behind = behind
        self._live = False
        self.position = after
        self._cursor: str | None = None
        """That of the last frame that was taken."""

    async def frames(self) -> AsyncIterator[Batch]:
        """Yields what is there, in batches, an empty one whenever the head is reached; ends once it is closed."""
        at_head = False
        while not self.closed:
            self._bell.clear()  # before the read: what is appended after it rings again
            batch = await self._store.read(self._next)
            if self.closed:
                return
            if batch.frames:
                at_head = False
                yield batch
                self._take(batch.frames)
            elif not at_head:
                at_head = self._live = True
                yield batch
            else:
                await self._bell.wait()

    async def rest(self, until: Position) -> AsyncIterator[Batch]:
        """Yields what a closed subscription still owes, up to and with the frame at `until`."""
        while self.position < until:
            batch = await self._store.read(self._next)
            frames = [each for each in batch.frames if each[0] <= until]
            if not frames:
                return
            yield Batch(frames, batch.gap)
            self._take(frames)

    def close(self) -> None:
        """Ends `frames`: it hands out nothing more, also not what it is about to read."""
        self.closed = True
        self._hub.close(self._session.n, self._bell)
        self._bell.set()

    def _take(self, frames: Frames) -> None:
        self.position, self._cursor = frames[-1][0], frames[-1][1]["params"]["viewCursor"]

    def _next(self, reader: Reader) -> Batch:
        head = reader.get(SessionRecord, self._session.n)
        if head is not None and head.floor and self.position < self._log.floor(reader, head):
            return self._over_the_floor(reader, head)
        if self._live and head is not None and head.seq - self.position.seq > self._behind:
            return self._jump(reader, head)
        return Batch(self._read(reader))

    def _over_the_floor(self, reader: Reader, head: SessionRecord) -> Batch:
        """What retention has taken from under a reader is a gap as well; paged, it is answered as truncated."""
        earliest, left = self._log.earliest(reader, head), self._log.after(reader, head, self._log.floor(reader, head))
        missed = {
            "sessionId": head.session_id,
            "after": self._cursor or earliest,
            "next": left[0][1]["params"]["viewCursor"],
        }
        return Batch(left, {"method": "view/gap", "params": missed})

    def _jump(self, reader: Reader, head: SessionRecord) -> Batch:
        self._live = False  # what it is handed now is owed; only once it is at the head can it fall behind again
        near = self._log.before(reader, head, None, NEAR_HEAD)
        after = self._log.before(reader, head, Position(self.position.seq, self.position.k + 1), 1)[-1][1]
        missed = {
            "sessionId": head.session_id,
            "after": after["params"]["viewCursor"],
            "next": near[0][1]["params"]["viewCursor"],
        }
        return Batch(near, {"method": "view/gap", "params": missed})

    def _read(self, reader: Reader) -> Frames:
        return self._log.after(reader, self._session, self.position)
