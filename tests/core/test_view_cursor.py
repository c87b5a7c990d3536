"""Cursors: one text per position, and nothing else is one."""

from __future__ import annotations

import base64
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from view_strategies import KEY, OTHER_SESSION, SESSION, logs

from refold.errors import InvalidId, MissingAnchor
from refold.view import GENESIS, Claim, Position, cursor, decode, holds, mint, minter

ALPHABET = string.ascii_letters + string.digits + "-_"
positions = st.builds(Position, st.integers(1, 2**64 - 1), st.integers(0, 255))
chains = st.binary(min_size=8, max_size=8)
fragments = st.integers(0, 2**32 - 1)
TOKEN = mint(KEY, SESSION, Position(7, 1), b"chain..8")


def refused(token: object, session_id: str = SESSION, key: bytes = KEY) -> MissingAnchor:
    with pytest.raises(MissingAnchor) as caught:
        decode(key, session_id, token)
    return caught.value


@given(positions, chains, fragments)
def test_what_is_minted_is_decoded(position, chain8, fragment):
    token = mint(KEY, SESSION, position, chain8, fragment)
    assert decode(KEY, SESSION, token) == Claim(position, fragment, chain8)
    assert token == minter(KEY, SESSION)(position, chain8, fragment)
    assert len(token) == cursor.TOKEN_CHARS and set(token) <= set(ALPHABET)


@given(positions, positions, chains, chains)
def test_different_positions_or_histories_have_different_cursors(one, two, chain_one, chain_two):
    same = (one, chain_one) == (two, chain_two)
    assert (mint(KEY, SESSION, one, chain_one) == mint(KEY, SESSION, two, chain_two)) == same


@given(positions, chains)
def test_a_cursor_of_another_session_or_store_is_refused(position, chain8):
    token = mint(KEY, SESSION, position, chain8)
    refused(token, session_id=OTHER_SESSION)
    refused(token, key=KEY[::-1])


@given(positions, chains, st.integers(0, cursor.TOKEN_CHARS - 1), st.sampled_from(ALPHABET + "+/=é"))
def test_a_cursor_with_one_character_changed_is_refused(position, chain8, at, char):
    token = mint(KEY, SESSION, position, chain8)
    forged = token[:at] + char + token[at + 1 :]
    if forged != token:
        refused(forged)


@given(st.one_of(st.text(max_size=100), st.text(ALPHABET, min_size=72, max_size=72), st.none(), st.integers()))
def test_what_was_never_minted_is_refused(token):
    refused(token)


@given(st.binary(min_size=54, max_size=54))
def test_bytes_of_the_right_length_are_refused_unless_they_carry_the_mac(data):
    refused(base64.urlsafe_b64encode(data).decode())


def test_another_spelling_of_the_same_bytes_is_refused():
    token = next(t for n in range(99) if "-" in (t := mint(KEY, SESSION, Position(1, n), bytes(8))))
    for other in (token.replace("-", "+"), token + "=", token + "\n", " " + token[:-1], token + token):
        refused(other)


def test_a_cursor_of_another_format_version_is_refused(monkeypatch):
    monkeypatch.setattr(cursor, "VERSION", cursor.VERSION + 1)
    future = mint(KEY, SESSION, Position(7, 1), b"chain..8")
    monkeypatch.undo()
    refused(future)


def test_a_refusal_does_not_say_why():
    bodies = {
        (error.kind, error.message, tuple(error.data.items()))
        for error in (refused(""), refused(TOKEN[:-1] + "é"), refused("A" * 72), refused(TOKEN, key=b"another key"))
    }
    assert bodies == {("missing_anchor", "unknown cursor anchor", (("session_id", SESSION),))}


def test_what_is_no_session_id_has_no_cursors():
    assert refused(TOKEN, session_id=SESSION.upper()).data == {"session_id": SESSION.upper()}
    with pytest.raises(InvalidId):
        minter(KEY, "not-a-session")


def test_the_format_stands():
    """Cursors outlive releases: a client may come back after years with one it wrote down."""
    assert TOKEN == "AQGY8KoREXAAgAAAAAAAAKoAAAAAAAAABwEAAAAAY2hhaW4uLjgpmGgEZBnoPqfs26vCoLMN"


@pytest.mark.parametrize(
    ("key", "position", "chain8"),
    [(KEY, GENESIS, bytes(8)), (b"", Position(1, 0), bytes(8)), (KEY, Position(1, 0), b"")],
)
def test_minting_what_names_nothing_is_a_bug(key, position, chain8):
    with pytest.raises(AssertionError):
        mint(key, SESSION, position, chain8)


def test_positions_are_ordered_by_row_then_frame():
    assert sorted([Position(2, 0), Position(1, 2), GENESIS, Position(1, 0)]) == [
        GENESIS,
        Position(1, 0),
        Position(1, 2),
        Position(2, 0),
    ]


@given(logs(max_size=16))
def test_a_cursor_holds_in_its_own_history_only(log):
    for position, frame in log.placed():
        claim, row = decode(KEY, SESSION, frame["params"]["viewCursor"]), log.rows[position.seq - 1]
        assert claim.position == position
        assert holds(claim, row)
        assert not holds(claim, None), "a position of the future"
        assert not holds(Claim(Position(row.seq, row.frames), 0, claim.chain8), row), "a frame the row does not have"
        assert not holds(Claim(position, 0, bytes(8)), row), "a history that went another way"
        assert not holds(Claim(Position(row.seq + 1, 0), 0, claim.chain8), row), "another row"
