"""What the stores' tests share: a factory per back end that opens, reopens and reaches around its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import apsw
import msgspec

from refold.records import Row
from refold.store import MemoryStore, SqliteStore
from refold.store.base import TABLES
from refold.store.memory import Tables

R = TypeVar("R", bound=Row)


class MemoryFactory:
    """A reopened memory store is a new one on the old tables."""

    def __init__(self) -> None:
        self._tables = Tables()

    async def open(self) -> MemoryStore:
        return MemoryStore(self._tables)

    def raw_get(self, kind: type[R], *key: Any) -> R | None:
        return self._tables.rows[kind].get(key)  # type: ignore[return-value]

    def raw_set(self, kind: type[Row], key: tuple[Any, ...], row: Row | None) -> None:
        del self._tables.rows[kind][key]
        if row is not None:
            moved = tuple(getattr(row, name) for name in TABLES[kind].key)
            self._tables.rows[kind][moved] = row


class SqliteFactory:
    """Reaches around the store with a connection and SQL of its own."""

    def __init__(self, path: Path, vfs: str | None = None) -> None:
        self.path = path
        self._vfs = vfs

    async def open(self) -> SqliteStore:
        return SqliteStore.open(self.path, vfs=self._vfs)

    def raw_get(self, kind: type[R], *key: Any) -> R | None:
        for found in self._run(f"SELECT * FROM {TABLES[kind].name} WHERE {_where(kind)}", key):
            return msgspec.convert([found[name] for name in kind.__struct_fields__], kind, strict=False)
        return None

    def raw_set(self, kind: type[Row], key: tuple[Any, ...], row: Row | None) -> None:
        if row is None:
            self._run(f"DELETE FROM {TABLES[kind].name} WHERE {_where(kind)}", key)
            return
        sets = ", ".join(f"{name}=?" for name in kind.__struct_fields__)
        sql = f"UPDATE {TABLES[kind].name} SET {sets} WHERE {_where(kind)}"
        self._run(sql, (*msgspec.structs.astuple(row), *key))

    def _run(self, sql: str, values: tuple[Any, ...]) -> list[dict[str, Any]]:
        connection = apsw.Connection(str(self.path))
        try:
            cursor = connection.execute(sql, values)
            return [dict(zip((column[0] for column in cursor.description), found, strict=True)) for found in cursor]
        finally:
            connection.close()


def _where(kind: type[Row]) -> str:
    return " AND ".join(f"{name}=?" for name in TABLES[kind].key)


def make_legacy(path: Path) -> list[tuple[Any, ...]]:
    """Makes the store of a program from before versions, and returns what is in its one table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = apsw.Connection(str(path))
    connection.execute(
        "CREATE TABLE replay_log (seq INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT, step_ref TEXT, input_hash TEXT,"
        " occurrence INTEGER, step_output_json TEXT, created_at INTEGER);"
        "CREATE INDEX replay_log_run ON replay_log (run_id, seq)"
    )
    for number in range(3):
        values = ("R-0123456789abcdef", "agent", f"hash {number}", 0, f'"paid for {number}"', number)
        connection.execute("INSERT INTO replay_log VALUES (NULL, ?, ?, ?, ?, ?, ?)", values)
    connection.close()
    return rows_of(path, "replay_log")


def rows_of(path: Path, table: str) -> list[tuple[Any, ...]]:
    """The rows of a table as they lie in the file."""
    connection = apsw.Connection(str(path))
    try:
        return list(connection.execute(f"SELECT * FROM {table}"))
    finally:
        connection.close()
