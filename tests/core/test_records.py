"""Ids have one shape, chains notice every change, and every type of log record knows its frames."""

from __future__ import annotations

import hashlib
import re
from types import NoneType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from refold import records
from refold.canonical import decode, encode
from refold.errors import InvalidId
from refold.records import (
    FRAMES,
    INLINE_BYTES,
    NAMED_BYTES,
    CutRow,
    DecisionRow,
    Head,
    LogRecord,
    LogRow,
    LogType,
    OutputName,
    ReplayRow,
    Row,
    SessionRecord,
    genesis,
    log_hash,
    named_output,
    output_name,
    parse_id,
    parse_uuid7,
    replay_hash,
    seal,
    seal_log,
    shown_text,
    stored_json,
)
from refold.testing.history import sample

# -- ids --------------------------------------------------------------------------------------------------------------

PREFIXES = ("T", "R", "ST", "O")
UUID7 = "0198f0aa-1111-7000-8000-0000000000aa"


@given(st.sampled_from(PREFIXES), st.text("0123456789abcdef", min_size=16, max_size=32))
def test_an_id_is_its_prefix_and_16_to_32_hex_digits(prefix: str, digits: str) -> None:
    text = f"{prefix}-{digits}"
    assert parse_id(text, prefix) == text
    for other in set(PREFIXES) - {prefix}:
        with pytest.raises(InvalidId):
            parse_id(text, other)


@given(st.sampled_from(PREFIXES), st.text(max_size=40))
@example("R", "R-" + "a" * 15)
@example("R", "R-" + "a" * 33)
@example("R", "R-" + "A" * 16)
@example("R", "R-" + "a" * 16 + "\n")
@example("R", " R-" + "a" * 16)
@example("R", "R-" + "٣" * 16)  # a digit, and not one of ours
@example("T", "ST-" + "a" * 16)
@example("T", "../T-" + "a" * 16)
def test_whatever_else_is_no_id_and_is_named_in_part(prefix: str, text: str) -> None:
    if re.fullmatch(rf"{prefix}-[0-9a-f]{{16,32}}", text) and text.isascii():
        return
    with pytest.raises(InvalidId) as refused:
        parse_id(text, prefix)
    assert refused.value.data == {"id": text[:80]}
    assert len(refused.value.message) < 500


@pytest.mark.parametrize("text", [UUID7, UUID7.replace("8000", "b000"), UUID7.replace("-7000", "-7fff")])
def test_a_uuid7_is_taken_as_it_is_spelled(text: str) -> None:
    assert parse_uuid7(text, "command id") == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        UUID7.upper(),
        UUID7.replace("-7", "-4"),
        UUID7.replace("8000", "c000"),
        UUID7 + "\n",
        f"{{{UUID7}}}",
        UUID7.replace("-", ""),
        UUID7 + "0",
        "x" * 10**6,
    ],
)
def test_another_spelling_of_a_uuid_is_refused(text: str) -> None:
    with pytest.raises(InvalidId, match="command id") as refused:
        parse_uuid7(text, "command id")
    assert len(refused.value.message) < 200


# -- what is stored ---------------------------------------------------------------------------------------------------

KINDS = sorted(
    (each for each in vars(records).values() if isinstance(each, type) and issubclass(each, Row)),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_row_cannot_be_changed(kind: type[Row]) -> None:
    assert kind.__struct_config__.frozen


def test_every_type_of_log_record_has_its_number_of_frames() -> None:
    assert FRAMES.keys() == set(LogType)
    assert all(number >= 0 for number in FRAMES.values())
    row = seal_log(1, 1, b"", LogRecord(type=LogType.TURN_OPENED, at=0, body={}))
    assert row.frames == FRAMES[LogType.TURN_OPENED]


def test_a_session_says_where_its_log_ends() -> None:
    session = sample(SessionRecord, seq=3, chain=b"c", updated_at=5)
    assert session.head == Head(3, b"c", 5)


@pytest.mark.parametrize("more", [0, 1, 2])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_only_long_json_is_stored_by_its_digest(text: str, more: int) -> None:
    padding = INLINE_BYTES - len(encode(text).encode()) + more - 1
    told = encode(text + "x" * padding)
    held, digest = stored_json(told)
    assert len(told.encode()) == INLINE_BYTES + more - 1
    if more < 2:
        assert (held, digest) == (told, None)
    else:
        assert digest == hashlib.sha256(told.encode()).hexdigest()
        assert held == f"@{digest}"


# -- chains -----------------------------------------------------------------------------------------------------------

KEYS = {"run", "session"}
"""The integer keys of a store, which a copy of it may give anew."""
SEALED = (ReplayRow, DecisionRow, CutRow)
CHAIN = genesis("R-0123456789abcdef")
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, 2**63 - 1),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    bytes: st.just(b""),
    NoneType: st.none(),
}


def rows(kind: type[Row]) -> st.SearchStrategy[Any]:
    """Rows with anything in their members."""
    hints = {name: get_args(hint) or [hint] for name, hint in get_type_hints(kind).items()}
    return st.fixed_dictionaries(
        {name: st.one_of([VALUES[each] for each in hint]) for name, hint in hints.items()}
    ).map(lambda members: kind(**members))


PAIRS = {kind: st.tuples(rows(kind), rows(kind)) for kind in (*SEALED, LogRow)}


def hash_of(chain: bytes, row: Any) -> bytes:
    return log_hash(chain, row) if isinstance(row, LogRow) else replay_hash(chain, row)


@pytest.mark.parametrize("kind", [*SEALED, LogRow])
@given(st.data())
def test_a_hash_covers_every_member_but_the_keys_of_the_store(kind: type[Row], data: st.DataObject) -> None:
    row, other = data.draw(PAIRS[kind])
    for name in row.__struct_fields__:
        changed = msgspec.structs.replace(row, **{name: getattr(other, name)})
        same = changed == row or name in KEYS or name == "hash"
        assert (hash_of(CHAIN, changed) == hash_of(CHAIN, row)) is same, name


@given(st.sampled_from(SEALED).flatmap(rows), st.binary(min_size=32, max_size=32))
def test_a_row_fits_behind_one_chain_only(row: Any, other: bytes) -> None:
    sealed = seal(CHAIN, row)
    assert sealed == msgspec.structs.replace(row, hash=replay_hash(CHAIN, sealed))
    assert (replay_hash(other, row) == sealed.hash) is (other == CHAIN)


def test_two_owners_share_no_chain() -> None:
    owners = ["R-1", "R-2", "", "R-1 "]
    assert len({genesis(owner) for owner in owners}) == len(owners)


def test_rows_of_two_kinds_never_have_one_hash() -> None:
    decision = DecisionRow(run=1, ordinal=1, generation=1, epoch=1, lane_json="[]", fork=1, winner=1, created_at=1)
    names = {"lane_json": "retired_json"}
    same = {names.get(name, name): getattr(decision, name) for name in decision.__struct_fields__}
    cut = CutRow(**{name: value for name, value in same.items() if name in CutRow.__struct_fields__})
    assert replay_hash(CHAIN, decision) != replay_hash(CHAIN, cut)


@given(rows(LogRow), st.sampled_from(LogType))
def test_a_log_record_is_given_its_place_and_keeps_its_members(row: LogRow, type: LogType) -> None:
    told = {name: getattr(row, name) for name in ("at", "run", "turn_id", "item_id", "revision", "origin")}
    sealed = seal_log(7, row.seq, CHAIN, LogRecord(type=type, body={"text": row.body_json}, **told))
    assert {name: getattr(sealed, name) for name in told} == told
    assert (sealed.session, sealed.seq, sealed.type) == (7, row.seq, type.value)
    assert decode(sealed.body_json) == {"text": row.body_json}
    assert sealed.hash == log_hash(CHAIN, sealed)


# -- outputs that stand once ------------------------------------------------------------------------------------------


def ended(output: Any, **members: Any) -> LogRow:
    record = LogRecord(type=LogType.STEP_COMPLETED, at=1, body={"output": output}, run=3)
    return msgspec.structs.replace(seal_log(1, 2, b"", record), **members)


@given(st.text(), st.integers(0, 3))
@example("x" * (NAMED_BYTES - 1), 0)
@example("x" * NAMED_BYTES, 0)
@example("x" * INLINE_BYTES, 0)
@example("x" * (INLINE_BYTES + 1), 0)
@example("€" * (INLINE_BYTES // 3), 1)
def test_an_output_of_middling_length_is_named_by_its_row_and_its_digest(text: str, more: int) -> None:
    text += "y" * more
    name, raw = named_output(7, text), text.encode()
    if NAMED_BYTES <= len(raw) <= INLINE_BYTES:
        assert output_name(ended(name)) == OutputName(3, 7, hashlib.sha256(raw).hexdigest())
    else:
        assert name is None
        assert output_name(ended(text)) is None


def test_only_the_record_that_ends_a_step_of_a_run_names_an_output() -> None:
    name = named_output(7, "x" * NAMED_BYTES)
    assert output_name(ended(name)) is not None
    assert output_name(ended(name, run=None)) is None
    assert output_name(ended(name, type=LogType.TURN_COMPLETED)) is None
    assert output_name(ended({"ref": "", "len": 9, "head": '"row":', "media": ""})) is None
    assert output_name(ended('{"row":7,"ref":""}')) is None, "a text that looks like a name is a text"
    assert output_name(ended({"head": {"row": 7}})) is None


@given(st.one_of(st.text(), st.integers(), st.lists(st.text()), st.none()))
def test_people_are_shown_a_text_as_it_is_and_anything_else_as_json(value: Any) -> None:
    assert shown_text(encode(value)) == (value if isinstance(value, str) else encode(value))
