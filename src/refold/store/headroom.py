"""Room ahead of the end of SQLite's WAL, so that a commit overwrites instead of making the file longer.

A sync after which the file is longer also waits for the file system's own journal: on ext4 such a commit takes half as
long again. SQLite lets its WAL grow to the size at which it is checkpointed, and from then on writes over it; until
then, zeros are written ahead of it here, some commits' worth at a time.

Law: to SQLite they are not there. Whatever lies behind the last commit in a WAL is skipped unless its salt and checksum
are those of this WAL (SQLite file format, 4.1 and 4.4), as with what an earlier round has left there. They are no part
of any promise either: if they cannot be written nothing is said, and the next commit finds its own room or says why.

Not here: locks. SQLite keeps none on this file, so that opening and closing it here takes none from it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

BYTES: Final = 512 * 1024
"""How far ahead. A sequential step takes about 40 KB."""

_ZEROS: Final = bytes(BYTES)


class Headroom:
    """The room of one store. `keep` after each commit; `close` with the store."""

    def __init__(self, database: Path) -> None:
        self._wal = database.with_name(database.name + "-wal")
        self._file: int | None = None
        self._end = 0
        """Where the zeros end; behind it is only what SQLite has made room for itself."""

    def keep(self) -> None:
        """Writes the next zeros if SQLite has used up the last ones."""
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = os.open(self._wal, os.O_WRONLY | os.O_CLOEXEC)
            size = os.fstat(self._file).st_size
            if size > self._end:
                self._end = size + os.pwrite(self._file, _ZEROS, size)
            elif size < self._end:  # a checkpoint has cut it off
                self._end = size

    def close(self) -> None:
        """Ends it; the zeros go with the WAL."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
