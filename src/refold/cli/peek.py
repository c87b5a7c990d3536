"""Reading the store while nobody holds it: read only, and as the last holder left it. See docs/adr/0018."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

from refold.engine.clock import Clock
from refold.errors import NotFound, RefoldError
from refold.records import AttemptRow, MetaRow, RunRecord, parse_id, parse_uuid7
from refold.server import shapes
from refold.service import copies
from refold.service.copies import MAC_KEY, collect, written
from refold.service.runs import find_run, logged_steps, traced, whole
from refold.service.sessions import after_of
from refold.session import SessionLog, boundaries, find_session
from refold.store import Reader, SqliteStore
from refold.store.portable import READABLE
from refold.view import Frame

Json = Any
T = TypeVar("T")

READ_FRAMES: Final = 512
"""Frames per read."""


def runs(database: Path | None, status: str | None) -> Json:
    """What `GET /v1/runs` would list; nothing where there is no store yet."""
    if database is None:
        return {"items": [], "next_cursor": None}
    equals: dict[str, Any] = {"status": status} if status else {}

    def read(reader: Reader) -> list[RunRecord]:
        return [whole(reader, run) for run in reader.find(RunRecord, newest_first=True, **equals)]

    rows = asyncio.run(SqliteStore.peek(database, read))
    return {"items": [shapes.run(row) for row in rows], "next_cursor": None}


def run(database: Path | None, run_id: str) -> Json:
    """What `GET /v1/runs/{id}` would show. Raises InvalidId, NotFound."""
    parse_id(run_id, "R")
    return _asked(database, lambda reader: run_in(reader, run_id), _no_run(run_id))


def export(database: Path | None, run_id: str) -> bytes:
    """What `GET /v1/runs/{id}/export` would answer. Raises NotFound, StoreDamaged."""
    rows = _asked(database, lambda reader: collect(reader, run_id), _no_run(run_id))
    return written(rows, run_id, Clock().now_ms())


def document(database: Path | None, run_id: str) -> Json:
    """What `refold export --json` writes. Raises NotFound, StoreDamaged."""
    return _asked(database, lambda reader: document_in(reader, run_id), _no_run(run_id))


def events(database: Path | None, name: str, after: str | None, take: Callable[[Frame], None]) -> None:
    """Hands over the events of a Session, or of that of a Run, as `GET /v1/sessions/{id}/events` would tell them.

    Raises InvalidId, NotFound, MissingAnchor, ViewTruncated, StoreDamaged.
    """

    def read(reader: Reader) -> None:
        for frame in events_in(reader, name, after):
            take(frame)

    if name.startswith("R-"):
        parse_id(name, "R")
        absent = _no_run(name)
    else:
        parse_uuid7(name, "session id")
        absent = NotFound(f"there is no session {name}", kind="session_not_found", session_id=name)
    _asked(database, read, absent)


def is_copy(database: Path) -> bool:
    """Whether this store is a copy, which nobody will ever hold."""
    return asyncio.run(SqliteStore.peek(database, copies.is_copy))


# -- of a store that is being read ------------------------------------------------------------------------------------


def run_in(reader: Reader, run_id: str) -> Json:
    """A Run with its step entries."""
    run = whole(reader, find_run(reader, run_id))
    return shapes.run(run, reader.find(AttemptRow, run=run.n))


def document_in(reader: Reader, run_id: str) -> Json:
    """A Run as a document: its record, its whole replay log, its trace."""
    logged = logged_steps(reader, run_id, ctx=True, everything=True)
    return {
        "format": READABLE,
        "run": run_in(reader, run_id),
        "replay": [shapes.replay_row(each, run_id) for each in logged],
        "trace": list(traced(reader, run_id)),
    }


def events_in(reader: Reader, name: str, after: str | None) -> Iterator[Frame]:
    """The events of a Session, or of that of a Run, after a cursor."""
    session = find_session(reader, find_run(reader, name).session_id if name.startswith("R-") else name)
    key = reader.get(MetaRow, MAC_KEY)
    log = SessionLog(b"" if key is None else key.value, boundaries.start)
    position = after_of(reader, log, session, after)
    while frames := log.after(reader, session, position, READ_FRAMES):
        yield from (frame for _, frame in frames)
        position = frames[-1][0]


def _asked(database: Path | None, read: Callable[[Reader], T], absent: RefoldError) -> T:
    """What `read` finds; raises `absent` where there is no store yet."""
    if database is None:
        raise absent
    return asyncio.run(SqliteStore.peek(database, read))


def _no_run(run_id: str) -> NotFound:
    return NotFound(f"there is no run {run_id}", kind="run_not_found", run_id=run_id)
