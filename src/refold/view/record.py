"""From a log row to its frames: which frames a record has, and the envelope that places each of them.

A log record is compact and stays as it was written; a frame is what a client sees. The builders of `session_log`,
`turn_log` and `step_log` are the only ones that write bodies, and the renderer beside each is the only one that reads
them, so engine and services never handle a body.

Laws. A frame is a function of its row, of the row that opened its item, and of the cursor before it: pushed or paged,
today or after a restart, a position has the same frame byte for byte. A row has exactly `row.frames` frames. A closing
record does not repeat what its opening holds; if that is missing, the log is damaged and nothing is guessed.

Not here: walking over many rows (`page`), what a client makes of frames (`fold`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypedDict

from refold.canonical import decode
from refold.errors import StoreDamaged
from refold.records import LogRow, LogType
from refold.view import request_log, session_log, step_log, turn_log
from refold.view.cursor import ANCHOR, CHAIN_BYTES, Mint, Position
from refold.view.parts import Members, Part, Renderer

RENDERERS: Final[Mapping[str, Renderer]] = {
    **session_log.RENDERERS,
    **turn_log.RENDERERS,
    **step_log.RENDERERS,
    **request_log.RENDERERS,
}


class Frame(TypedDict):
    """One event of the view, as a page holds it. Frames are shared by all readers and by folds: never change one."""

    method: str
    params: Members


def render(row: LogRow, opening: LogRow | None, session_id: str, mint: Mint, prev: str | None) -> list[Frame]:
    """Returns the frames of `row`, in their fixed order.

    Args:
        row: the row.
        opening: the row that `row.origin` names; None if it names none.
        session_id: the Session.
        mint: its `cursor.minter`.
        prev: the cursor of the frame before the first one of `row`; None if that is the first of the Session.

    Raises:
        StoreDamaged: the type is unknown, or `opening` is not the row that `row` closes.
    """
    chain8, source = row.hash[:CHAIN_BYTES], _source_range(row, session_id)
    frames: list[Frame] = []
    for k, (method, members) in enumerate(parts_of(row, decode(row.body_json), opening, mint)):
        cursor = mint(Position(row.seq, k), chain8)
        envelope = {"sessionId": session_id, "viewCursor": cursor, "prevCursor": prev, "sourceRange": source}
        frames.append({"method": method, "params": envelope | members})
        prev = cursor
    return frames


def parts_of(row: LogRow, body: Members, opening: LogRow | None, mint: Mint) -> list[Part]:
    """Returns the frames of `row`, whose body is `body`, without their envelopes. Raises as `render`."""
    renderer = RENDERERS.get(row.type)
    if renderer is None:
        raise StoreDamaged(f"log row {row.seq} has the unknown type {row.type!r}", seq=row.seq)
    parts = renderer(row, body, opening)
    assert len(parts) == row.frames, (row.type, len(parts))
    if row.type == LogType.COMPACTED:
        (_, members), k = parts[-1], len(parts) - 1
        members["item"]["summarizedThrough"] = mint(Position(row.seq, k), row.hash[:CHAIN_BYTES], ANCHOR)
    return parts


def closed_item(row: LogRow) -> str:
    """Returns the id of the item that a closing row ends: its step, or its turn's workflow."""
    return row.item_id or turn_log.workflow_item(row.turn_id)


def delta(session_id: str, cursor: str, item_id: str, text: str, offset: int) -> Frame:
    """Returns the notification of more output of an open item; it is no frame of the view, and has no `sourceRange`.

    Args:
        session_id: the Session.
        cursor: the last durable position plus a fragment.
        item_id: the item, a `toolCall`: what is streamed is what it ends with as `visibleOutput`.
        text: what was said.
        offset: how many characters were said before. Our own member: with it a fold knows its place.
    """
    params = {"sessionId": session_id, "viewCursor": cursor, "itemId": item_id, "field": "output", "delta": text}
    return {"method": "item/delta", "params": params | {"offset": offset}}


def _source_range(row: LogRow, session_id: str) -> Members:
    """The span of records that a frame reports: from the one that opened its item or turn to this one."""
    first, last = row.origin or row.seq, row.seq
    return {
        "stream": {"kind": "session", "id": session_id},
        "first": {"id": f"{session_id}:{first}", "sequence": first},
        "last": {"id": f"{session_id}:{last}", "sequence": last},
    }
