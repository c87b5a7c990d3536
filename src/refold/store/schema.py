"""Which SQLite file is a refold store, and how it becomes one of today.

`application_id` says that a file is ours, `user_version` is the number of its last migration. Newer or foreign files
are refused, untouched. A migration is `migrations/NNNN_name.sql`, one transaction; released ones never change.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Final

import apsw

from refold import diagnostics
from refold.errors import StoreRefused

APPLICATION_ID: Final = 0x7265666F  # "refo"
COPY: Final = "copy"
"""The fact about a store (`MetaRow`) that it is the copy of a Run, made by an import to be looked at."""
SET_ASIDE: Final = "replay_log_before_refold"

log = diagnostics.Log("refold.store")


def check_identity(connection: apsw.Connection, path: Path) -> int:
    """The schema version of our own file, 0 for one that is to become ours; raises StoreRefused for any other."""
    application, version = connection.pragma("application_id"), connection.pragma("user_version")
    newest = max(number for number, _ in _migrations())
    if application not in (0, APPLICATION_ID):
        raise StoreRefused(
            f"{path} belongs to another program (application_id {application:#x}); name another file with --store",
            path=str(path),
        )
    if version > newest:
        raise StoreRefused(
            f"{path} has schema {version}, this refold knows up to {newest}; it was written by a newer one: upgrade",
            path=str(path),
            version=version,
        )
    tables = connection.execute("SELECT count(*) FROM sqlite_schema WHERE type='table'").get
    if application == 0 and version != 0:
        raise StoreRefused(f"{path} is another program's database (user_version {version})", path=str(path))
    if application == 0 and tables and not _legacy(connection):
        raise StoreRefused(f"{path} is another program's database ({tables} tables)", path=str(path))
    return version


def refuse_copy(connection: apsw.Connection, path: Path) -> None:
    """Raises StoreRefused for a store that is marked as a copy: who holds a store runs what is in it.

    Its Run exists where it was exported as well. Two that both go on would do its side effects twice, under one
    idempotency key, and no fence lies between two stores.
    """
    if connection.execute("SELECT count(*) FROM meta WHERE key=?", (COPY,)).get:
        raise StoreRefused(
            f"{path} is the copy of a Run that was exported from another store; it is there to be looked at (`refold "
            "ls`, `show`, `events`, `export` with --store), and is never held: its Run would run twice. Go on with the "
            "Run where it was exported",
            kind="store_is_copy",
            path=str(path),
        )


def _legacy(connection: apsw.Connection) -> bool:
    """Whether the file is a pre-versioned replay store: it has nothing but a `replay_log` and its sequence."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type='table'")}
    return "replay_log" in names and names <= {"replay_log", "sqlite_sequence"}


def _migrations() -> Iterator[tuple[int, str]]:
    """`(number, SQL)` of every migration, ascending. `NNNN_name.sql` is one transaction; released ones never change."""
    folder = resources.files("refold.store") / "migrations"
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if match := re.fullmatch(r"(\d{4})_\w+\.sql", entry.name):
            yield int(match[1]), entry.read_text()


@contextmanager
def _transaction(connection: apsw.Connection) -> Generator[None]:
    connection.execute("BEGIN EXCLUSIVE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # after a full disk SQLite has rolled back by itself
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def migrate(connection: apsw.Connection) -> None:
    """Brings the schema up to date, one transaction per migration: each is there or it is not."""
    for number, sql in _migrations():
        if number <= connection.pragma("user_version"):
            continue
        with _transaction(connection):
            if number == 1 and _legacy(connection):
                _set_aside(connection)
            connection.execute(sql)
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", number)


def _set_aside(connection: apsw.Connection) -> None:
    """Renames a replay log of before. The published original drops it; it may be all that is left of some work."""
    rows = connection.execute("SELECT count(*) FROM replay_log").get
    connection.execute(f"ALTER TABLE replay_log RENAME TO {SET_ASIDE}")
    log.warning("replay_log_set_aside", table=SET_ASIDE, rows=rows)
