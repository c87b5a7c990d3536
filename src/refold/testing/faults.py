"""Power loss and disk errors under a SQLite store: an apsw VFS that stands between SQLite and the file system.

    with PowerVFS("power") as disk:
        store = SqliteStore.open(path, vfs=disk.name)
        ...
        disk.power_loss(path.parent, elsewhere)  # its files as they would be found after power had failed just now
        disk.fail_at(3, apsw.FullError)  # the third operation from now finds the disk full

The model: a file is what was synced, plus operations that are on their way. Power loss keeps the former and of
the latter nothing, or a random part, whole or torn at sectors of 512 bytes. Names are kinder than POSIX allows: a
creation is durable at once, a deletion with the next sync of any file. A disk that lies about syncs is not modelled.

Everything must be opened through the VFS from the start; shared memory (`-shm`) never survives and is not recorded.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

SECTOR: Final = 512
"""What a disk writes whole or not at all."""

LOST: Final = 0.45
"""The share of operations on their way that a lucky power loss takes."""

TORN: Final = 0.25
"""The share of surviving writes of more than a sector that survive in part."""


class Op(NamedTuple):
    """One operation that changes a file: `write`, `truncate`, `sync` or `delete`."""

    kind: str
    path: Path


class _Change(NamedTuple):
    """A write of `data` at `at`; a truncation to `at` if there is no data."""

    at: int
    data: bytes | None

    def apply(self, content: bytearray) -> None:
        if self.data is None:
            del content[self.at :]
        else:
            content.extend(bytes(max(0, self.at - len(content))))
            content[self.at : self.at + len(self.data)] = self.data


class _Recorded:
    """One file: its durable bytes and the changes that no sync has made durable yet."""

    def __init__(self, content: bytes) -> None:
        self.durable = bytearray(content)
        self.pending: list[_Change] = []

    def sync(self) -> None:
        for change in self.pending:
            change.apply(self.durable)
        self.pending = []

    def image(self, luck: random.Random | None) -> bytes:
        content = bytearray(self.durable)
        if luck is None:
            return bytes(content)
        for change in self.pending:
            for survivor in _survivors(change, luck):
                survivor.apply(content)
        return bytes(content)


def _survivors(change: _Change, luck: random.Random) -> list[_Change]:
    """What of `change` reached the disk: all, nothing, or some of its sectors."""
    if luck.random() < LOST:
        return []
    if change.data is None or len(change.data) <= SECTOR or luck.random() >= TORN:
        return [change]
    starts = [start for start in range(0, len(change.data), SECTOR) if luck.random() < 0.5]
    return [_Change(change.at + start, change.data[start : start + SECTOR]) for start in starts]


class PowerVFS(apsw.VFS):
    """Records what is durable of every file, counts operations, and fails the one it is told to.

    Attributes:
        name: what to open files with.
        counts: how many operations of each kind there were.
        watch: is called before every operation; for images at each of them.
        hit: the first operation that was failed, None while there is none.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self.watch: Callable[[Op], None] = lambda op: None
        self.hit: Op | None = None
        self._files: dict[Path, _Recorded] = {}
        self._deleted: dict[Path, _Recorded] = {}
        self._failing = range(0)
        self._error: type[apsw.Error] = apsw.IOError
        super().__init__(name, "")

    def __enter__(self) -> PowerVFS:
        return self

    def __exit__(self, *_: object) -> None:
        self.unregister()

    def fail_at(self, operation: int, error: type[apsw.Error], times: int = 1) -> None:
        """Makes the `operation`-th operation from now, and `times` in all, raise `error`.

        A write that is failed has written its first half by then, as on a disk that fills up.
        """
        first = self.counts.total() + operation
        self._failing, self._error, self.hit = range(first, first + times), error, None

    def heal(self) -> None:
        """Fails nothing any more."""
        self._failing = range(0)

    def power_loss(self, source: Path, target: Path, luck: random.Random | None = None) -> None:
        """Writes to the directory `target` the files of `source` as power loss at this moment would leave them.

        Without `luck` nothing survives that was not synced; with it, a random part.
        """
        target.mkdir(parents=True, exist_ok=True)
        back = {path: file for path, file in self._deleted.items() if luck is None or luck.random() < 0.5}
        for path, file in (back | self._files).items():
            if path.parent == source:
                (target / path.name).write_bytes(file.image(luck))

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        if name is None:
            return super().xOpen(name, flags)
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else name)
        if path not in self._files:
            self._files[path] = _Recorded(path.read_bytes() if path.exists() else b"")
        return _PowerFile(self, path, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        path = Path(filename)
        self.begin("delete", path)
        super().xDelete(filename, syncdir)
        if path in self._files:
            self._deleted[path] = self._files.pop(path)
        if syncdir:
            self._deleted.clear()

    def begin(self, kind: str, path: Path) -> None:
        """Takes note of an operation that is about to happen; raises if it is the one to fail."""
        op = Op(kind, path)
        self.watch(op)
        self.counts[kind] += 1
        if self.counts.total() in self._failing:
            self.hit = self.hit or op
            raise self._error(f"injected at a {kind}")

    def changed(self, path: Path, at: int, data: bytes | None) -> None:
        """Takes note of a write or a truncation that happened."""
        self._files[path].pending.append(_Change(at, data))

    def synced(self, path: Path) -> None:
        """Takes note of a sync that happened."""
        self._files[path].sync()
        self._deleted.clear()


class _PowerFile(apsw.VFSFile):
    """A file whose changes are reported to its PowerVFS."""

    def __init__(self, disk: PowerVFS, path: Path, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._path = path
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        try:
            self._disk.begin("write", self._path)
        except apsw.Error:
            self._write(data[: len(data) // 2], offset)
            raise
        self._write(data, offset)

    def _write(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._disk.changed(self._path, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        self._disk.begin("truncate", self._path)
        super().xTruncate(newsize)
        self._disk.changed(self._path, newsize, None)

    def xSync(self, flags: int) -> None:
        self._disk.begin("sync", self._path)
        super().xSync(flags)
        self._disk.synced(self._path)
