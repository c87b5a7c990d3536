"""A spliced text is, joined again, the text; what it names is what stood there."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values

from refold.canonical import decode, encode
from refold.flowir.outputs import REPEATED_BYTES, Outputs, Splice
from refold.flowir.path import write

Json = Any

LONG = "x" * REPEATED_BYTES


def noted(*values: Json) -> tuple[Outputs, dict[int, str]]:
    """The values as the outputs of rows 1, 2, … and what these rows say."""
    outputs, rows = Outputs(), {n: encode(value) for n, value in enumerate(values, 1)}
    for (n, text), value in zip(rows.items(), values, strict=True):
        outputs.note(n, value, text)
    return outputs, rows


def joined(parts: Splice, rows: dict[int, str]) -> str:
    return "".join(part if isinstance(part, str) else rows[part] for part in parts)


values = st.one_of(
    json_values, st.text(min_size=60), st.builds(lambda value: {"long": LONG, "more": value}, json_values)
)
keys = st.sampled_from(["a", "b", "c", "x y", ""])
places = st.lists(st.lists(keys, min_size=1, max_size=3).map(tuple), max_size=8)


@given(st.lists(values, min_size=1, max_size=5), places, st.data())
def test_a_spliced_text_is_joined_to_the_very_text(said: list[Json], at: list[tuple[str, ...]], data: st.DataObject):
    outputs, rows = noted(*said)
    ctx: Json = {}
    for place in at:
        value = data.draw(st.one_of(st.sampled_from(said), values))
        node = ctx
        for key in place[:-1]:
            node = node.get(key) if isinstance(node, dict) else node
        if node is None or isinstance(node, dict):  # as a flow writes
            ctx = write(ctx, place, value)
    text = encode(ctx)
    parts = outputs.splice(ctx, text)
    if parts is not None:
        assert joined(parts, rows) == text
        assert 2 * sum(len(part) for part in parts if isinstance(part, str)) < len(text)
        assert decode(encode(parts)) == parts


@given(json_values)
def test_what_was_read_back_is_written_as_it_stands_in_its_row(value: Json):
    text = encode(value)
    assert encode(decode(text)) == text


def test_outputs_are_named_wherever_they_stand_in_the_order_of_the_text():
    first, second, third = LONG + "1", {"says": LONG}, [LONG]
    outputs, _ = noted(first, second, third)
    ctx = {"third": third, "in": {"list": [1, second, first], "again": first}, "n": None}
    assert outputs.splice(ctx, encode(ctx)) == [
        '{"third":',
        3,
        ',"in":{"list":[1,',
        2,
        ",",
        1,
        '],"again":',
        1,
        '},"n":null}',
    ]


def test_a_whole_text_may_be_one_output():
    outputs, _ = noted(LONG)
    assert outputs.splice(LONG, encode(LONG)) == ["", 1, ""]


def test_a_text_that_is_mostly_something_else_is_not_spliced():
    outputs, _ = noted(LONG)
    ctx = {"said": LONG, "else": "y" * REPEATED_BYTES}
    assert outputs.splice(ctx, encode(ctx)) is None
    assert Outputs().splice(ctx, encode(ctx)) is None


def test_an_output_is_known_by_identity_and_only_if_it_is_long():
    text = {"says": LONG}
    outputs, _ = noted(text, "short", 10**REPEATED_BYTES)
    assert outputs.ordinal(text) == 1
    assert outputs.ordinal(copy.deepcopy(text)) is None, "equal, and another object: it is repeated"
    assert outputs.ordinal("short") is None
    assert outputs.ordinal(10**REPEATED_BYTES) is None


def test_an_output_that_is_spelled_differently_in_the_text_stays_in_it():
    outputs, rows = noted(LONG)
    assert outputs.splice({"a": LONG}, encode({"a": LONG}).replace("x", "\\u0078", 1)) is None
    assert outputs.splice([LONG, LONG], '["\\u0078",' + rows[1] + "]") == ['["\\u0078",', 1, "]"]
