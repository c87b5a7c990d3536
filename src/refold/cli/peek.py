"""Reading the store while nobody holds it: read only, and as the last holder left it. See docs/adr/0018."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from refold.errors import NotFound
from refold.records import AttemptRow, RunRecord, parse_id
from refold.server import shapes
from refold.service.runs import find_run, whole
from refold.store import Reader, SqliteStore

Json = Any


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
    if database is None:
        raise NotFound(f"there is no run {run_id}", kind="run_not_found")

    def read(reader: Reader) -> Json:
        run = whole(reader, find_run(reader, run_id))
        return shapes.run(run, reader.find(AttemptRow, run=run.n))

    return asyncio.run(SqliteStore.peek(database, read))
