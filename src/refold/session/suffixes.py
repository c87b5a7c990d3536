"""What follows a position in a log: read, made into frames and written as text once, for all readers that stand there.

Most readers of a Session stand at its head, and all of them are woken by the same commit. A log is append-only, so what
was found after a position stays true for ever, and whoever asks for it later may be handed the same. Only that nothing
follows is true no longer than the log ends there; and what retention takes away is forgotten here too (`forget`).

What is kept here is a cache of a few suffixes, bounded in bytes; a reader is never owed anything by it.

Not here: who is woken (`hub`), which reader may be handed what, and how much of it (`subscription`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from refold.canonical import encode_known
from refold.records import SessionRecord
from refold.session.live import Piece
from refold.session.log import SessionLog
from refold.store import Reader
from refold.view import Frame, Position

BATCH_BYTES: Final = 512 * 1024
"""About how many bytes of log rows are handed out at once: what a reader that stands still costs."""

KEPT: Final = 64
"""Suffixes that are kept, newest last: the heads of so many Sessions that are read at a time."""

KEPT_BYTES: Final = 1024 * 1024
"""What their texts may weigh together; the newest one is kept whatever it weighs."""


class Shown(NamedTuple):
    """A frame as every reader is handed it: never change one."""

    position: Position
    frame: Frame
    text: bytes
    """The frame as JSON, `{"method":…,"params":…}`: whoever sends it puts its own envelope around that."""


class Batch(NamedTuple):
    """What a reader is handed at once, `said` first; an empty batch says that it is at the head.

    `gap` comes before all frames. `kept` are the frames inside the gap that are handed out in spite of it, in order;
    the position is that of the last of `frames` all the same. `said` are notifications without a place in the view.
    Who has taken it has all up to the log row `through`.
    """

    frames: Sequence[Shown]
    through: int
    gap: Frame | None = None
    kept: Sequence[Shown] = ()
    said: Sequence[tuple[Piece, Frame]] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it."""
        return not self.frames and not self.said


def shown(frames: Iterable[tuple[Position, Frame]]) -> list[Shown]:
    """Writes frames out."""
    return [Shown(position, frame, encode_known(frame).encode()) for position, frame in frames]


class Suffixes:
    """The suffixes that were read last, of all Sessions."""

    def __init__(self, log: SessionLog) -> None:
        self._log = log
        self._kept: dict[tuple[int, int, int], Batch] = {}
        self._bytes = 0

    def known(self, session_n: int, position: Position, head: int) -> Batch | None:
        """What is kept of the suffix after `position` in a log that ends at row `head`; None if it is to be read."""
        found = self._kept.get((session_n, position.seq, position.k))
        return found if found is not None and (found.frames or found.through >= head) else None

    def after(self, reader: Reader, session: SessionRecord, position: Position) -> Batch:
        """The suffix after `position`, which must be held, or as much of it as is handed out at once."""
        suffix = self.known(session.n, position, session.seq)
        if suffix is None:
            frames = shown(self._log.after(reader, session, position, nbytes=BATCH_BYTES))
            suffix = Batch(frames, frames[-1].position.seq if frames else session.seq)
            self._keep((session.n, position.seq, position.k), suffix)
        return suffix

    def forget(self, session_n: int) -> None:
        """Drops what is kept of a Session: its log is about to lose rows."""
        for key in [key for key in self._kept if key[0] == session_n]:
            self._drop(key)

    def _keep(self, key: tuple[int, int, int], suffix: Batch) -> None:
        self._drop(key)
        self._kept[key] = suffix
        self._bytes += _weight(suffix)
        while len(self._kept) > 1 and (len(self._kept) > KEPT or self._bytes > KEPT_BYTES):
            self._drop(next(iter(self._kept)))

    def _drop(self, key: tuple[int, int, int]) -> None:
        if (gone := self._kept.pop(key, None)) is not None:
            self._bytes -= _weight(gone)


def _weight(suffix: Batch) -> int:
    return sum(len(each.text) for each in suffix.frames)
