"""Pages of lists: `{items, next_cursor}`, and the cursors that lead from one to the next.

A cursor is opaque to clients. It names the list it belongs to, with the filters, and the place of the last row that was
shown: one that comes from another list or another question is refused, where a bare number would silently skip rows.
Nothing is kept for it, so it stays good for ever; rows made meanwhile stand before the first page.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from refold.canonical import canonical, decode_strict, digest
from refold.errors import InvalidJson, InvalidRequest

Json = Any
R = TypeVar("R")

PAGE: Final = 200
"""Rows of a page, unless asked for fewer or more."""
LONGEST_PAGE: Final = 1000
_LARGEST_KEY: Final = 2**63 - 1
_CURSOR: Final = "A `next_cursor` of this list, asked with the same filters."


class PageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which page of a list."""

    limit: Annotated[int, Meta(ge=1, le=LONGEST_PAGE, description="The most rows that the page may have.")] = PAGE
    cursor: Annotated[str, Meta(description=_CURSOR)] | None = None

    @property
    def filters(self) -> Json:
        """All that this query asks for, but for the place in the list."""
        asked = msgspec.to_builtins(self)
        return {name: value for name, value in asked.items() if name not in ("limit", "cursor")}


def place(of: str, query: PageQuery) -> Json:
    """The place after which the page begins, None at the beginning. Raises InvalidRequest (`invalid_cursor`)."""
    if query.cursor is None:
        return None
    try:
        _, at = decode_strict(base64.urlsafe_b64decode(query.cursor))
    except (InvalidJson, ValueError, TypeError, binascii.Error):
        raise _foreign() from None
    sound = isinstance(at, str) or (type(at) is int and 0 < at <= _LARGEST_KEY)
    if not sound or query.cursor != _cursor(of, query, at):  # another list, other filters, or another spelling
        raise _foreign()
    return at


def page(of: str, query: PageQuery, rows: Sequence[R], key: Callable[[R], Json], show: Callable[[R], Json]) -> Json:
    """The page of `rows`, which the caller read one more of than `query.limit`, to see whether there are more."""
    shown, more = rows[: query.limit], len(rows) > query.limit
    return {
        "items": [show(row) for row in shown],
        "next_cursor": _cursor(of, query, key(shown[-1])) if more else None,
    }


def _name(of: str, query: PageQuery) -> str:
    return f"{of}:{digest(query.filters)[:16]}"


def _cursor(of: str, query: PageQuery, at: Json) -> str:
    return base64.urlsafe_b64encode(canonical([_name(of, query), at])).decode()


def _foreign() -> InvalidRequest:
    return InvalidRequest(
        "that cursor is not one of this list under these filters; begin again without a cursor",
        kind="invalid_cursor",
        member="cursor",
    )
