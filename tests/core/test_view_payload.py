"""Texts that are named instead of said: whoever takes rows or items elsewhere learns which texts belong to them."""

from __future__ import annotations

from typing import Any

import pytest

from refold.canonical import encode
from refold.records import INLINE_BYTES, LogRow
from refold.view import JSON_TEXT, PLAIN_TEXT, named_texts, stow, texts_of_item
from refold.view.payload import args_text, shown

LONG = "é" * INLINE_BYTES
PAYLOAD, VALUE = stow(LONG, PLAIN_TEXT)


def row(body: Any) -> LogRow:
    members = {"turn_id": None, "item_id": None, "revision": 1, "origin": None, "hash": b""}
    return LogRow(session=1, seq=1, type="t", at=0, run=None, body_json=encode(body), **members)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, []),
        ({"output": "short", "ref": "a step's name", "n": 1, "children": [{"ref": "x"}]}, []),
        ({"reason": {"kind": "blocked"}}, []),
        ({"args": PAYLOAD, "output": {"row": 3, "ref": "d" * 64}}, [PAYLOAD["ref"], "d" * 64]),
    ],
)
def test_a_log_row_tells_which_texts_it_names(body: Any, named: list[str]) -> None:
    assert list(named_texts(row(body))) == named


@pytest.mark.parametrize("args", ["[1]", '{"$ref":7}', '{"a":1}', '"$ref"'])
def test_arguments_that_look_like_nothing_name_nothing(args: str) -> None:
    assert texts_of_item({"args": args}) == {}


def test_an_item_tells_which_texts_it_shows_the_head_of() -> None:
    assert VALUE is not None
    assert texts_of_item({}) == {}
    assert texts_of_item(shown("text", PAYLOAD)) == {VALUE.digest: PLAIN_TEXT}
    assert texts_of_item({"args": args_text(PAYLOAD)}) == {VALUE.digest: JSON_TEXT}
    both = shown("text", PAYLOAD) | {"args": args_text(PAYLOAD)}
    assert texts_of_item(both) == {VALUE.digest: PLAIN_TEXT}, "one text, and what it is called first"
