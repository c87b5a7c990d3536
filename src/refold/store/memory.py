"""The store that forgets at exit: the shortest one, behind `--ephemeral`, and the model that others are tested against.

Rows are immutable, so a table is a dict of references. A transaction applies its changes at once and keeps how to undo
each; one that raises is undone in reverse.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from refold.errors import StoreError
from refold.records import Head, LogRow, Row, SessionRecord
from refold.store.base import TABLES, Reader, StepCommit, Tx, apply_step

R = TypeVar("R", bound=Row)
T = TypeVar("T")


class Tables:
    """The rows by kind and primary key, the unique keys that are taken, and the last integer key that was given."""

    def __init__(self) -> None:
        self.rows: dict[type[Row], dict[tuple[Any, ...], Any]] = {kind: {} for kind in TABLES}
        self.unique: dict[tuple[type[Row], tuple[str, ...]], set[tuple[Any, ...]]] = {
            (kind, names): set() for kind, table in TABLES.items() for names in table.unique
        }
        self.last: Counter[type[Row]] = Counter()


class MemoryStore:
    """A store in this process only. `tables` may be handed on to stand for a reopened store in tests."""

    def __init__(self, tables: Tables | None = None) -> None:
        self.tables = tables or Tables()
        self._wake: Callable[[Mapping[int, int]], None] = lambda heads: None

    @classmethod
    def of(cls, rows: Iterable[Row]) -> MemoryStore:
        """A store that holds exactly these rows, under the integer keys that they have.

        Raises StoreError for two rows with one key.
        """
        store = cls()
        tx = _MemoryTx(store.tables)
        for row in rows:
            tx.keep(row)
        return store

    def reader(self) -> Reader:
        """What is asked of it at once, by who shares it with nobody."""
        return _MemoryTx(self.tables)

    async def commit(self, step: StepCommit, also: Callable[[Tx], object] | None = None) -> tuple[int, ...]:
        return await self.write(lambda tx: apply_step(tx, step, also))

    async def write(self, fn: Callable[[Tx], T]) -> T:
        tx = _MemoryTx(self.tables)
        try:
            result = fn(tx)
        except BaseException:
            tx.undo()
            raise
        if tx.heads:
            self._wake(tx.heads)
        return result

    async def read(self, fn: Callable[[Any], T]) -> T:
        return fn(_MemoryTx(self.tables))

    def on_commit(self, wake: Callable[[Mapping[int, int]], None]) -> None:
        self._wake = wake

    async def close(self) -> None:
        self._wake = lambda heads: None


class _MemoryTx:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._undo: list[Callable[[], Any]] = []
        self.heads: dict[int, int] = {}

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()

    def get(self, kind: type[R], *key: Any) -> R | None:
        return self._tables.rows[kind].get(key)

    def find(
        self,
        kind: type[R],
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        but: Mapping[str, Any] | None = None,
        **equals: Any,
    ) -> list[R]:
        names, rows = TABLES[kind].key, self._tables.rows[kind]
        if equals.keys() >= set(names):  # one row at most, and no need to look at the others
            named = tuple(equals[name] for name in names)
            rows = {named: rows[named]} if named in rows else {}
        found = [
            key
            for key, row in rows.items()
            if (not after or key[-1] > after)
            and (before is None or key[-1] < before)
            and _equal(row, equals)
            and not (but and _equal(row, but))
        ]
        found.sort(reverse=newest_first)
        return [self._tables.rows[kind][key] for key in found[:limit]]

    def count(self, kind: type[Row], **equals: Any) -> int:
        return len(self.find(kind, **equals))

    def head(self, session: int) -> Head | None:
        owner = self.get(SessionRecord, session)
        return None if owner is None else owner.head

    def log(self, session: int, after: int, limit: int | None = None) -> list[LogRow]:
        return list(itertools.islice(self._log(session, range(after + 1, self._head(session) + 1)), limit))

    def log_before(self, session: int, before: int, limit: int) -> list[LogRow]:
        last = min(before - 1, self._head(session))
        return list(itertools.islice(self._log(session, range(last, 0, -1)), limit))[::-1]

    def log_bytes(self, session: int, after: int) -> int:
        return sum(len(row.body_json.encode()) for row in self.log(session, after))

    def _head(self, session: int) -> int:
        owner = self.get(SessionRecord, session)
        return owner.seq if owner is not None else 0

    def _log(self, session: int, seqs: Iterable[int]) -> Iterator[LogRow]:
        """The rows at these places, but for those that retention has taken."""
        log = self._tables.rows[LogRow]
        return (row for seq in seqs if (row := log.get((session, seq))) is not None)

    def insert(self, row: R) -> R:
        kind = type(row)
        is_keyed = TABLES[kind].key == ("n",)
        if is_keyed:
            row = msgspec.structs.replace(row, n=self._tables.last[kind] + 1)
        self.keep(row)
        if is_keyed:
            self._tables.last[kind] += 1
            self._undo.append(lambda: self._tables.last.subtract([kind]))
        if isinstance(row, LogRow):
            self.heads[row.session] = row.seq
        return row

    def keep(self, row: Row) -> None:
        """Stores a row as it is, its integer key included. Duplicate keys raise StoreError."""
        kind = type(row)
        table, spec = self._tables.rows[kind], TABLES[kind]
        key = _members(row, spec.key)
        claims = [(self._tables.unique[kind, names], _members(row, names)) for names in spec.unique]
        if key in table or any(claim in taken for taken, claim in claims):
            raise StoreError(f"a {spec.name} row {key} is there already", table=spec.name)
        table[key] = row
        self._undo.append(lambda: table.pop(key))
        for taken, claim in claims:
            taken.add(claim)
            self._undo.append(lambda taken=taken, claim=claim: taken.discard(claim))

    def insert_all(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.insert(row)

    def put(self, row: Row) -> None:
        if _members(row, TABLES[type(row)].key) not in self._tables.rows[type(row)]:
            self.insert(row)

    def update(
        self, kind: type[Row], key: Sequence[Any], *, where: Mapping[str, Any] | None = None, **changes: Any
    ) -> bool:
        table = self._tables.rows[kind]
        old = table.get(tuple(key))
        if old is None or not _equal(old, where or {}):
            return False
        table[tuple(key)] = msgspec.structs.replace(old, **changes)
        self._undo.append(lambda: table.__setitem__(tuple(key), old))
        return True

    def update_all(
        self, kind: type[Row], names: tuple[str, ...], where: tuple[str, ...], values: Sequence[Sequence[Any]]
    ) -> int:
        found = 0
        for each in values:
            guard = dict(zip(where, each[len(names) :], strict=True))
            key = [guard.pop(name) for name in TABLES[kind].key]
            found += self.update(kind, key, where=guard, **dict(zip(names, each, strict=False)))
        return found

    def delete(self, kind: type[Row], **equals: Any) -> int:
        table, spec, gone = self._tables.rows[kind], TABLES[kind], self.find(kind, **equals)
        for row in gone:
            key = _members(row, spec.key)
            del table[key]
            self._undo.append(lambda key=key, row=row: table.__setitem__(key, row))
            for names in spec.unique:
                taken, claim = self._tables.unique[kind, names], _members(row, names)
                taken.discard(claim)
                self._undo.append(lambda taken=taken, claim=claim: taken.add(claim))
        return len(gone)


def _members(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in names)


def _equal(row: Row, values: Mapping[str, Any]) -> bool:
    return all(getattr(row, name) == value for name, value in values.items())
