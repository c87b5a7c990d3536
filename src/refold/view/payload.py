"""Texts in log records: short ones stand in the record, long ones are named by their digest and show a prefix.

A *payload* is the form a text has in a record's body: the text itself, or `{ref, len, head, media}` when its UTF-8 form
is longer than `INLINE_BYTES`. Law: whoever writes a record with a `ref` writes the `ValueRow` in the same commit.

A third form, `{row, ref}`, stands for the output of a logged step (`records.named_output`): the text is in its replay
row, written in the same commit. The store puts it back (`store.told`) before a row is rendered, so that a frame is the
same in either form.

Not here: reading a whole value back (the store has it under its digest).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Final

from refold.canonical import Json, decode, encode
from refold.records import INLINE_BYTES, LogRow, ValueRow

JSON_TEXT: Final = "application/json"
PLAIN_TEXT: Final = "text/plain"
HEAD_BYTES: Final = 1024
"""How much of a long text every frame shows. Small against `INLINE_BYTES`, so that eliding it rarely matters."""

Payload = str | dict[str, Json]


def stow(text: str, media: str = JSON_TEXT) -> tuple[Payload, ValueRow | None]:
    """Returns the payload of `text`, and the value row that must be written with it (None for a short text)."""
    data = text.encode()
    if len(data) <= INLINE_BYTES:
        return text, None
    digest = hashlib.sha256(data).hexdigest()
    return {"ref": digest, "len": len(data), "head": clip(text, HEAD_BYTES), "media": media}, ValueRow(
        digest=digest, body=text
    )


def clip(text: str, limit: int = INLINE_BYTES) -> str:
    """Returns the longest prefix of `text` that takes at most `limit` bytes and cuts no character in two."""
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode(errors="ignore")


def shown(member: str, payload: Payload | None) -> dict[str, Json]:
    """Returns the item members that show `payload` under `member`: a long one as its prefix and an `outputRef`."""
    if payload is None:
        return {}
    if isinstance(payload, str):
        return {member: payload}
    assert "row" not in payload, "whoever reads a row to render it has put the named text back"
    return {member: payload["head"], "truncated": True, "outputRef": _output_ref(payload)}


def args_text(payload: Payload) -> str:
    """Returns `payload` as an item's `args`, which must be JSON text: a long one as the object that names it."""
    if isinstance(payload, str):
        return payload
    return encode(
        {
            "$ref": payload["ref"],
            "digest": f"sha256:{payload['ref']}",
            "byteLen": payload["len"],
            "head": payload["head"],
        }
    )


def named_texts(row: LogRow) -> Iterator[str]:
    """Yields the digests of the texts that a log row names, in either form, instead of saying them."""
    for payload in decode(row.body_json).values():
        if isinstance(payload, dict) and "ref" in payload:
            yield payload["ref"]


def texts_of_item(item: Mapping[str, Json]) -> dict[str, str]:
    """Returns the values that an item shows the head of, by their digest, with their media types."""
    found = {item["outputRef"]["id"]: item["outputRef"]["mediaType"]} if "outputRef" in item else {}
    args = decode(item["args"]) if "args" in item else None
    if isinstance(args, dict) and isinstance(args.get("$ref"), str):
        found.setdefault(args["$ref"], JSON_TEXT)
    return found


def _output_ref(payload: dict[str, Json]) -> dict[str, Json]:
    return {
        "id": payload["ref"],
        "kind": "output",
        "uri": f"refold:value/{payload['ref']}",
        "byteLen": payload["len"],
        "availability": "available",
        "digest": f"sha256:{payload['ref']}",
        "mediaType": payload["media"],
    }
