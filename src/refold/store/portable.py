"""Stored rows as text that can be sent away: one file of NDJSON, `refold.run/2`. Pure; nothing is read or written here.

    {"format":"refold.run/2","run_id":…,"session_id":…,"task_id":…,"exported_at":…,"refold":…,"rows":{…},"digest":…}
    {"table":"task","n":3,"task_id":…}
    …

The first line is the *manifest*: `rows` counts them by table, `digest` is the hex SHA-256 of everything else, that is
the manifest as it is written without that member, and all other lines. Each of these is a row: its table, and all its
members by name, with bytes in hex.

Laws. `read(write(rows, about)) == (about, rows)`. `read` accepts no text that `write` does not write: a byte that was
changed, added or lost anywhere is refused. The digest finds damage, not forgery: whoever writes a file can compute it.

Integer keys stand in the file as they stand in the store. They mean nothing outside the two: hashes leave them out, but
segments of boundaries, which are named by their content, name outputs by them (docs/adr/0029).

Not here: which rows belong to a Run, and whether they fit together (`service.copies`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from refold import __version__
from refold.canonical import decode_strict, encode, encode_known
from refold.errors import ImportInvalid, InvalidId, InvalidJson
from refold.records import BlueprintRecord, CommandRow, Row, parse_id, parse_uuid7
from refold.store.base import TABLES

Json = Any

FORMAT: Final = "refold.run/2"
READABLE: Final = "refold.run/1"
"""What `refold export --json` writes: for people and scripts; nothing reads it back."""

KINDS: Final[Mapping[str, type[Row]]] = {
    table.name: kind for kind, table in TABLES.items() if kind not in (BlueprintRecord, CommandRow)
}
"""The tables that a file may hold rows of. A Run has its Blueprint in its launch snapshot; a copy takes no commands."""

_INTEGERS: Final = range(-(2**63), 2**63)
"""What an integer column holds."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line: whose file it is, when and by which refold it was written, and what must be in it."""

    format: str = FORMAT
    run_id: str
    session_id: str
    task_id: str
    exported_at: str
    refold: str
    rows: dict[str, int]
    digest: str = ""


class Portable(NamedTuple):
    """A file that was read."""

    manifest: Manifest
    rows: list[Row]


def write(rows: Sequence[Row], *, run_id: str, session_id: str, task_id: str, exported_at: str) -> bytes:
    """The file of `rows`, in their order."""
    counts = Counter(TABLES[type(row)].name for row in rows)
    about = Manifest(
        run_id=run_id,
        session_id=session_id,
        task_id=task_id,
        exported_at=exported_at,
        refold=__version__,
        rows=dict(counts),
    )
    lines = [_line(row) for row in rows]
    return _text([_first_line(msgspec.structs.replace(about, digest=_digest(about, lines))), *lines])


def read(data: bytes) -> Portable:
    """The rows of a file, and what it says of itself. Raises ImportInvalid for all that `write` did not write."""
    first, *lines = data.split(b"\n")
    about = _manifest(first)
    if not lines or lines.pop():
        raise _invalid("it ends in the middle of a line: it was cut off", digest=about.digest)
    if _digest(about, lines) != about.digest:
        raise _invalid("its content does not match its digest: it was changed, or cut off", digest=about.digest)
    rows = [_row(line, number) for number, line in enumerate(lines, 2)]
    counts = Counter(TABLES[type(row)].name for row in rows)
    if counts != about.rows:
        raise _invalid(f"its manifest says {about.rows}, and it holds {dict(counts)}")
    return Portable(about, rows)


# -- lines ------------------------------------------------------------------------------------------------------------


def _text(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _digest(about: Manifest, lines: Iterable[bytes]) -> str:
    unsealed = {name: value for name, value in msgspec.structs.asdict(about).items() if name != "digest"}
    return hashlib.sha256(_text([encode(unsealed).encode(), *lines])).hexdigest()


def _first_line(about: Manifest) -> bytes:
    return encode(msgspec.structs.asdict(about)).encode()


def _manifest(line: bytes) -> Manifest:
    said = _decoded(line, 1)
    found = said.get("format") if isinstance(said, dict) else None
    if found == READABLE:
        raise _invalid(f"it is a document to be read ({READABLE}); export the Run again, without --json", format=found)
    if found != FORMAT:
        raise _invalid(
            f"its first line does not say that it is {FORMAT}", format=found if isinstance(found, str) else ""
        )
    try:
        about = msgspec.convert(said, Manifest)
        parse_id(about.run_id, "R")
        parse_id(about.task_id, "T")
        parse_uuid7(about.session_id, "session id")
    except (msgspec.ValidationError, InvalidId) as error:
        raise _invalid(f"its manifest is not one: {error}") from None
    if _first_line(about) != line:
        raise _invalid("its manifest is not written as refold writes it: it was changed")
    return about


def _line(row: Row) -> bytes:
    kind = type(row)
    members = zip(kind.__struct_fields__, msgspec.structs.astuple(row), strict=True)
    shown = {name: value.hex() if isinstance(value, bytes) else value for name, value in members}
    return encode_known({"table": TABLES[kind].name} | shown).encode()


def _row(line: bytes, number: int) -> Row:
    said = _decoded(line, number)
    table = said.pop("table", None) if isinstance(said, dict) else None
    kind = KINDS.get(table) if isinstance(table, str) else None
    if kind is None:
        raise _invalid(f"line {number} is not a row of a table that a file may hold", line=number)
    if said.keys() != set(kind.__struct_fields__):
        wrong = sorted(said.keys() ^ set(kind.__struct_fields__))
        raise _invalid(f"line {number}: a {table} row that has, or lacks, {', '.join(wrong)[:200]}", line=number)
    try:
        row = msgspec.convert([_stored(kind, name, said[name]) for name in kind.__struct_fields__], kind)
    except (msgspec.ValidationError, ValueError) as error:
        raise _invalid(f"line {number}: not a {table} row: {error}", line=number) from None
    return row


def _stored(kind: type[Row], name: str, value: Json) -> Any:
    """The member as a row has it. Raises ValueError."""
    if kind.__annotations__[name] == "bytes":
        data = bytes.fromhex(value) if isinstance(value, str) else b""
        if data.hex() != value:
            raise ValueError(f"{name} is not bytes in lower-case hex")
        return data
    if isinstance(value, int) and value not in _INTEGERS:
        raise ValueError(f"{name} is beyond 64 bits")
    return value


def _decoded(line: bytes, number: int) -> Json:
    try:
        return decode_strict(line)
    except InvalidJson as error:
        raise _invalid(f"line {number}: {error.message}", line=number) from None


def _invalid(text: str, **data: Any) -> ImportInvalid:
    return ImportInvalid(f"this is not a file that `refold export` wrote: {text}", **data)
