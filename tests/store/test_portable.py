"""Rows as text that can be sent away: what was written is read back, and nothing else is read at all."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import apsw
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.canonical import decode, encode
from refold.errors import Conflict, ImportInvalid, StoreError, StoreRefused
from refold.records import BlueprintRecord, CommandRow, LogRow, MetaRow, ReplayRow, Row, RunRecord, TaskRecord
from refold.store import MemoryStore, SqliteStore, portable
from refold.store.base import TABLES
from refold.store.schema import COPY
from refold.testing.history import filled, sample

ABOUT = {
    "run_id": "R-0123456789abcdef",
    "session_id": "0198f0aa-1111-7000-8000-0000000000aa",
    "task_id": "T-0123456789abcdef",
    "exported_at": "2026-11-30T12:00:00.000Z",
}
FEW: list[Row] = [
    sample(TaskRecord, n=7, task_id=ABOUT["task_id"], goal="é\0"),
    sample(ReplayRow, run=1, hash=b"\x00\xff"),
    sample(LogRow, seq=2**53 + 1, body_json=encode({"n": 10**40, "t": "𝕏\u2028"})),
]


def written(rows: list[Row]) -> bytes:
    return portable.write(rows, **ABOUT)


def resealed(data: bytes, **changes: Any) -> bytes:
    """The file with other members in its manifest, and the digest that goes with them."""
    first, rest = data.split(b"\n", 1)
    said = {name: value for name, value in (decode(first) | changes).items() if name != "digest"}
    digest = hashlib.sha256(encode(said).encode() + b"\n" + rest).hexdigest()
    return encode(said | {"digest": digest}).encode() + b"\n" + rest


def with_line(change: dict[str, Any], *, drop: str = "") -> bytes:
    """A sealed file of one replay row, with a member changed, added or dropped."""
    said = decode(written([FEW[1]]).splitlines()[1]) | change
    said.pop(drop, None)
    data = written([FEW[1]]).splitlines()[0] + b"\n" + encode(said).encode() + b"\n"
    return resealed(data)


# -- what is written is read back -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", portable.KINDS.values(), ids=list(portable.KINDS))
def test_a_row_comes_back_as_it_was(kind: type[Row]) -> None:
    rows: list[Row] = [filled(kind, salt) for salt in range(3)] + [sample(kind)]
    found = portable.read(written(rows))
    assert found.rows == rows
    assert [type(row) for row in found.rows] == [kind] * 4
    assert found.manifest.rows == {TABLES[kind].name: 4}


@given(st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.binary(max_size=40)), max_size=5))
def test_any_text_and_any_bytes_come_back(members: list[tuple[str, bytes]]) -> None:
    rows: list[Row] = [MetaRow(key=key, value=value) for key, value in members]
    assert portable.read(written(rows)).rows == rows


def test_the_manifest_says_whose_file_it_is() -> None:
    about = portable.read(written(FEW)).manifest
    assert {name: getattr(about, name) for name in ABOUT} == ABOUT
    assert about.rows == {"task": 1, "replay_log": 1, "log": 1}


def test_a_row_is_a_line_with_its_members_by_name() -> None:
    line = decode(written(FEW).splitlines()[2])
    assert (line["table"], line["hash"], line["run"]) == ("replay_log", "00ff", 1)


def test_no_member_of_a_row_is_called_table() -> None:
    assert not [kind for kind in portable.KINDS.values() if "table" in kind.__struct_fields__]


def test_all_tables_can_be_in_a_file_but_those_that_only_a_holder_needs() -> None:
    assert set(TABLES) - set(portable.KINDS.values()) == {BlueprintRecord, CommandRow}


# -- and nothing else is read -----------------------------------------------------------------------------------------


def refused(data: bytes) -> bool:
    try:
        portable.read(data)
    except ImportInvalid:
        return True
    return False


def flips(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        for mask in (0x01, 0x20, 0x80):  # another character, another case, no UTF-8
            yield data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :]


def test_a_flipped_bit_at_any_byte_is_refused() -> None:
    assert all(map(refused, flips(written(FEW))))


def test_planted_without_the_digest_flipped_bits_are_read() -> None:
    with mock.patch.object(portable, "_digest", lambda about, lines: about.digest):
        assert not all(map(refused, flips(written(FEW))))


def test_a_manifest_that_is_not_sealed_would_be_read_changed() -> None:
    """Why the digest covers the first line too: with one of the other lines only, nobody would see another time."""
    data = written(FEW).replace(b"2026-11-30T12", b"2026-11-30T13")
    rows_only = hashlib.sha256(data.split(b"\n", 1)[1]).hexdigest
    assert refused(data)
    with mock.patch.object(portable, "_digest", lambda about, lines: about.digest or rows_only()):
        assert not refused(data)


def test_a_file_that_was_cut_off_anywhere_is_refused() -> None:
    data = written(FEW)
    assert all(refused(data[:at]) for at in range(len(data)))


@pytest.mark.parametrize("more", [b"\n", b" ", b"{}\n", b"\0"])
def test_what_was_added_is_refused(more: bytes) -> None:
    data = written(FEW)
    assert refused(data + more)
    assert refused(more + data)
    assert refused(data.replace(b"\n", b"\r\n"))


def test_lines_in_another_order_or_twice_are_refused() -> None:
    first, *lines = written(FEW).splitlines(keepends=True)
    assert refused(b"".join([first, *reversed(lines)]))
    assert refused(b"".join([first, *lines, lines[0]]))


MISFITS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "line 1"),
    "no JSON": (b"hello\n", "line 1"),
    "no object": (b"[]\n", "its first line does not say"),
    "a document": (b'{"format":"refold.run/1"}\n', "without --json"),
    "another format": (resealed(written(FEW), format="refold.run/3"), "its first line does not say"),
    "a format that is no text": (resealed(written(FEW), format=2), "its first line does not say"),
    "a run id that is a path": (resealed(written(FEW), run_id="R-../../x"), "its manifest is not one"),
    "a session that is none": (resealed(written(FEW), session_id="x"), "its manifest is not one"),
    "a strange member": (resealed(written(FEW), more=1), "its manifest is not one"),
    "a count that is wrong": (resealed(written(FEW), rows={"task": 3}), "its manifest says"),
    "a manifest with spaces": (
        b" ".join([b"{", written(FEW)[1:]]),
        "not written as refold writes it",
    ),
    "a table that nobody knows": (with_line({"table": "operators"}), "line 2 is not a row"),
    "a table of the holder's": (with_line({"table": "command"}), "line 2 is not a row"),
    "a table that is no text": (with_line({"table": 1}), "line 2 is not a row"),
    "a member too many": (with_line({"more": 1}), "line 2: a replay_log row that has, or lacks, more"),
    "a member too few": (with_line({}, drop="lane_json"), "line 2: a replay_log row that has, or lacks, lane_json"),
    "a text for a number": (with_line({"run": "1"}), "line 2: not a replay_log row"),
    "a number for a text": (with_line({"step_ref": 1}), "line 2: not a replay_log row"),
    "a flag for a number": (with_line({"run": True}), "line 2: not a replay_log row"),
    "a number that no column holds": (with_line({"run": 2**63}), "beyond 64 bits"),
    "bytes in upper case": (with_line({"hash": "00FF"}), "not bytes in lower-case hex"),
    "bytes that are none": (with_line({"hash": "0g"}), "line 2: not a replay_log row"),
    "bytes that are null": (with_line({"hash": None}), "not bytes in lower-case hex"),
}
"""Files with the right digest that `write` does not write all the same."""


@pytest.mark.parametrize("name", MISFITS)
def test_what_is_no_such_file_is_refused_with_the_reason(name: str) -> None:
    data, expected = MISFITS[name]
    with pytest.raises(ImportInvalid) as raised:
        portable.read(data)
    assert raised.value.kind == "import_invalid"
    assert expected in raised.value.message


# -- a copy on disk ---------------------------------------------------------------------------------------------------

ROWS: list[Row] = [
    sample(TaskRecord, n=41, task_id=ABOUT["task_id"]),
    sample(RunRecord, n=7, run_id="R-a"),
    sample(RunRecord, n=3, run_id="R-b"),
    *FEW[1:],
]
MARK = MetaRow(key=COPY, value=b"{}")


def peeked(path: Path, kind: type[Row]) -> list[Row]:
    return asyncio.run(SqliteStore.peek(path, lambda reader: reader.find(kind)))


def test_a_copy_holds_the_rows_under_the_keys_that_they_had(tmp_path: Path) -> None:
    path = tmp_path / "new" / "copy.db"
    SqliteStore.make_copy(path, [*ROWS, MARK])
    assert peeked(path, RunRecord) == [ROWS[2], ROWS[1]]
    assert peeked(path, TaskRecord) == [ROWS[0]]
    assert peeked(path, LogRow) == [FEW[2]]
    assert [each.name for each in path.parent.iterdir()] == ["copy.db"], "the file is all there is of it"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert MemoryStore.of(ROWS).reader().find(RunRecord) == [ROWS[2], ROWS[1]]


def test_a_copy_is_not_opened_and_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    SqliteStore.make_copy(path, [*ROWS, MARK])
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreRefused, match="never held") as raised:
            SqliteStore.open(path)
        assert raised.value.kind == "store_is_copy"
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["copy.db"]


def test_planted_without_the_mark_a_copy_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    SqliteStore.make_copy(path, ROWS)
    asyncio.run(SqliteStore.open(path).close())


def test_what_is_there_is_never_touched(tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    path.write_text("mine")
    with pytest.raises(Conflict, match="stays as it is"):
        SqliteStore.make_copy(path, ROWS)
    with mock.patch.object(Path, "exists", lambda self: False), pytest.raises(Conflict):  # it came after the look
        SqliteStore.make_copy(path, ROWS)
    assert path.read_text() == "mine"
    assert [each.name for each in tmp_path.iterdir()] == ["copy.db"]


@pytest.mark.parametrize("bad", [ROWS[1], msgspec.structs.replace(ROWS[1], n=9)], ids=["key", "unique"])
def test_rows_that_cannot_all_be_stored_leave_no_file(tmp_path: Path, bad: Row) -> None:
    with pytest.raises(StoreError, match="cannot be stored"):
        SqliteStore.make_copy(tmp_path / "copy.db", [*ROWS, bad])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreError, match="is there already"):
        MemoryStore.of([*ROWS, bad])


@pytest.mark.parametrize("error", [apsw.FullError, apsw.IOError])
def test_a_disk_that_is_full_or_fails_leaves_no_file(tmp_path: Path, error: type[apsw.Error]) -> None:
    with (
        mock.patch("refold.store.sqlite._SqliteTx.keep", side_effect=error("planted")),
        pytest.raises(StoreError, match="planted"),
    ):
        SqliteStore.make_copy(tmp_path / "copy.db", ROWS)
    assert list(tmp_path.iterdir()) == []


def test_a_place_where_nothing_can_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreRefused, match="cannot be opened for writing"):
        SqliteStore.make_copy(tmp_path / "file" / "copy.db", ROWS)
