"""One reader's subscription: it pulls the log after its own position, at its own speed.

Nothing is queued for a reader beyond what it is handed: a slow one reads later, from the log. Delivery is strictly
after the position, so the seam to what an answer already covered has neither a hole nor a double. Readers that stand at
one position near the head share one read, and what it gave (`suffixes`): what a commit costs does not grow with them.

A reader that has fallen too far behind, in rows or in bytes, jumps near the head, and is told with one `view/gap` what
it has not been handed; it pages that from the log, or takes a snapshot. Ends of requests are handed out even so: a
person must not be left with a question that is settled. What was there when the reader came, or jumped, is owed and
never jumped over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from refold.records import LogRow, RequestRow, SessionRecord
from refold.session.hub import Hub
from refold.session.live import Listener, Live
from refold.session.log import Frames, SessionLog
from refold.session.suffixes import Batch, Suffixes, shown
from refold.store import Reader, Store
from refold.view import CHAIN_BYTES, Position, delta

NEAR_HEAD: Final = 64
"""How many of the newest frames a reader that jumps is handed."""


class Subscription:
    """The frames of one Session after a position, as they come; `close` ends it. Its bell is open from the start.

    Either iterate over `frames`, or `look`, deliver, `take`, and wait with `rung` when there was nothing. `position` is
    that of the last frame that was taken: one that was handed out and dropped, because another subscription took over
    meanwhile, is still owed.

    Args:
        behind: how many log rows a reader may fall behind before it jumps.
        behind_bytes: the same in bytes of the rows' bodies.
        live: what agents say meanwhile, if the reader is told. It hears what began to be said after it came, and of
            items that it knows.
    """

    def __init__(
        self,
        store: Store,
        hub: Hub,
        log: SessionLog,
        suffixes: Suffixes,
        session: SessionRecord,
        after: Position,
        *,
        behind: int = 10_000,
        behind_bytes: int = 8 * 1024 * 1024,
        live: Live | None = None,
    ) -> None:
        self._store = store
        self._hub = hub
        self._log = log
        self._suffixes = suffixes
        self._session = session
        self._bell = hub.open(session.n)
        self.closed = False
        self._behind = behind
        self._behind_bytes = behind_bytes
        self._owed: int | None = None
        """The head when the reader came or jumped: up to there nothing is jumped over."""
        self._at_head = False
        self.position = after
        self._through = 0
        """The log row up to which nothing follows the position."""
        self._cursor: str | None = None
        """That of the last frame that was taken."""
        self._listener = None if live is None else Listener(live, session.n)

    async def frames(self) -> AsyncIterator[Batch]:
        """Yields what is there, in batches, an empty one whenever the head is reached; ends once it is closed."""
        while not self.closed:
            batch = await self.look()
            if batch is None:
                await self.rung()
            else:
                yield batch
                self.take(batch)

    async def look(self) -> Batch | None:
        """What is there now; None if there is nothing, and the reader knows, or if the subscription is closed."""
        self._bell.clear()  # before the read: what is appended after it rings again
        batch = self._at_hand()
        if batch is None:
            batch = await self._store.read(self._all)
        if not batch.frames:
            self._through = batch.through
        if self.closed or (self._at_head and batch.is_empty):
            return None
        return batch

    def take(self, batch: Batch) -> None:
        """The reader has what `look` gave it: it goes on from there."""
        if self._listener is not None:
            for piece, _ in batch.said:
                self._listener.take(piece)
            if batch.gap is not None:
                self._listener.miss()
        if batch.frames:
            self._at_head = False
            last = batch.frames[-1]
            self.position, self._cursor = last.position, last.frame["params"]["viewCursor"]
            self._through = batch.through
        elif not batch.said:
            self._at_head = True

    @property
    def is_idle(self) -> bool:
        """Whether looking again gives nothing before the bell rings, unless one who reaches the head is to be told."""
        if self._listener is not None and self._listener.hears(self.position):
            return False
        return self._bell.head <= self._through

    async def rung(self) -> None:
        """Waits until it is worth looking again."""
        if not self.closed:
            await self._bell.wait()

    async def rest(self, until: Position) -> AsyncIterator[Batch]:
        """Yields what a closed subscription still owes, up to and with the frame at `until`."""
        while self.position < until:
            batch = await self._store.read(self._next)
            frames = [each for each in batch.frames if each.position <= until]
            if not frames:
                return
            batch = batch._replace(frames=frames)
            yield batch
            self.take(batch)

    def close(self) -> None:
        """Ends `frames`: it hands out nothing more, also not what it is about to read."""
        self.closed = True
        self._hub.close(self._session.n, self._bell)
        self._bell.set()

    def _at_hand(self) -> Batch | None:
        """What to hand out, if that can be told without a read: to a reader that is near the head and hears nothing."""
        if self._owed is None or (self._listener is not None and self._listener.hears(self.position)):
            return None
        head = self._bell.head
        if head <= self._through:
            return Batch((), self._through)
        if head - self.position.seq > min(NEAR_HEAD, self._behind):
            return None
        return self._suffixes.known(self._session.n, self.position, head)

    def _all(self, reader: Reader) -> Batch:
        """What to hand out, with what was said before it: the end of an item comes after all that it said."""
        batch = self._next(reader)
        pieces = [] if self._listener is None else self._listener.pieces(self.position)
        row = reader.get(LogRow, self._session.n, self.position.seq) if pieces else None
        if row is None:
            return batch
        mint, session_id = self._log.mint(self._session), self._session.session_id
        cursors = [mint(self.position, row.hash[:CHAIN_BYTES], piece.fragment) for piece in pieces]
        said = [
            (piece, delta(session_id, cursor, piece.item_id, piece.text, piece.start))
            for piece, cursor in zip(pieces, cursors, strict=True)
        ]
        return batch._replace(said=said)

    def _next(self, reader: Reader) -> Batch:
        head = reader.get(SessionRecord, self._session.n)
        if head is None:
            return Batch((), self._through)
        if self._owed is None:
            self._owed = self._bell.head = head.seq
        if head.floor and self.position < self._log.floor(reader, head):
            return self._over_the_floor(reader, head)
        if self.position.seq >= self._owed and self._is_far_behind(reader, head):
            near = self._log.before(reader, head, None, NEAR_HEAD)
            if near[0][0] > self.position:  # else all it lacks are rows without a frame
                return self._jump(reader, head, near)
        return self._suffixes.after(reader, head, self.position)

    def _is_far_behind(self, reader: Reader, head: SessionRecord) -> bool:
        """Whether more waits than a reader is kept for. A few rows are not measured: no log row is that large."""
        rows = head.seq - self.position.seq
        if rows > self._behind:
            return True
        return rows > NEAR_HEAD and reader.log_bytes(head.n, self.position.seq) > self._behind_bytes

    def _over_the_floor(self, reader: Reader, head: SessionRecord) -> Batch:
        """What retention has taken from under a reader is a gap as well; paged, it is answered as truncated."""
        earliest, floor = self._log.earliest(reader, head), self._log.floor(reader, head)
        left = self._suffixes.after(reader, head, floor)
        missed = {
            "sessionId": head.session_id,
            "after": self._cursor or earliest,
            "next": left.frames[0].frame["params"]["viewCursor"],
        }
        return left._replace(gap={"method": "view/gap", "params": missed})

    def _jump(self, reader: Reader, head: SessionRecord, near: Frames) -> Batch:
        self._owed = head.seq
        last = self._log.before(reader, head, Position(self.position.seq, self.position.k + 1), 1)[-1][1]["params"]
        first = near[0][1]["params"]
        newest = Batch(shown(near), head.seq)
        if first["prevCursor"] == last["viewCursor"]:
            return newest
        missed = {"sessionId": head.session_id, "after": last["viewCursor"], "next": first["viewCursor"]}
        settled = shown(self._settled(reader, head, near[0][0]))
        return newest._replace(gap={"method": "view/gap", "params": missed}, kept=settled)

    def _settled(self, reader: Reader, head: SessionRecord, until: Position) -> Frames:
        """The ends of requests that lie between the reader's position and `until`."""
        ends = {row.settled for row in reader.find(RequestRow, session=head.n) if row.settled is not None}
        inside = sorted(seq for seq in ends if self.position.seq < seq < until.seq)
        return [frame for seq in inside for frame in self._log.before(reader, head, Position(seq, 1), 1)]
