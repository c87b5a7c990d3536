"""What the renderers of all record types share: the shape of a part, of items, and of errors.

A *part* is a frame before its envelope: `session_log`, `turn_log` and `step_log` make parts, `record` adds the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache

from refold.canonical import Json
from refold.errors import StoreDamaged
from refold.records import LogRow

Members = dict[str, Json]
Part = tuple[str, Members]
"""Method and members of a frame, without the envelope."""

Renderer = Callable[[LogRow, Members, LogRow | None], list[Part]]
"""Makes the parts of a row from the row, its decoded body and the row that its origin names."""


def present(**members: Json) -> Members:
    """Returns the members that are not None: in a body and in an item, absent is the only way to say nothing."""
    return {name: value for name, value in members.items() if value is not None}


def item(item_id: str, kind: str, opened: LogRow, *, revision: int, status: str, **members: Json) -> Members:
    """Returns an item of the turn, and with the time, of the row that `opened` it: every revision repeats both."""
    return {
        "itemId": item_id,
        "kind": kind,
        "turnId": opened.turn_id,
        "revision": revision,
        "status": status,
        "recordedAt": rfc3339(opened.at),
        **present(**members),
    }


def opened_by(row: LogRow, opening: LogRow | None) -> LogRow:
    """Returns `opening` if it is the row that `row` closes.

    Raises:
        StoreDamaged: it is not; an item without its opening would be shown without what was asked.
    """
    if opening is None or opening.seq != row.origin:
        found = "nothing" if opening is None else f"row {opening.seq}"
        raise StoreDamaged(f"log row {row.seq} closes row {row.origin}, but {found} is at hand", seq=row.seq)
    return opening


def turn_error(kind: str, message: str) -> Members:
    """Returns the error of a failed turn. Never retryable by itself: a resume is an operator's decision."""
    return {"kind": kind, "message": message, "retryable": False}


def rfc3339(ms: int) -> str:
    """Returns `ms` milliseconds since the epoch as RFC 3339 UTC text. In integers: a float would lose milliseconds."""
    seconds, millis = divmod(ms, 1000)
    return f"{_second(seconds)}.{millis:03d}Z"


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    """The text of a second: the rows of a log that follow each other share it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]
