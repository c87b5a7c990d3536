"""Paths: what parses, how it prints, what reading and writing see and leave alone."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values

from refold.errors import FlowError
from refold.flowir.path import parse, read, show, write

keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters='"'), min_size=1, max_size=4)
paths = st.lists(keys, max_size=4).map(tuple)
short_paths = st.lists(st.sampled_from("abc"), max_size=3).map(tuple)
LONG = "$" + ".a" * 65
documents = st.recursive(
    st.one_of(st.none(), st.integers(), st.just("s")), lambda inner: st.dictionaries(st.sampled_from("abc"), inner)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$", ()),
        ("$.a.b", ("a", "b")),
        ('$.a["p.md"]', ("a", "p.md")),
        ('$["x.y"].z', ("x.y", "z")),
        ('$.["a"]["b"].["c"]', ("a", "b", "c")),
        ("$.0.é x", ("0", "é x")),
        ('$["a]b"]', ("a]b",)),
    ],
)
def test_what_parses(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        ".a",
        "$foo",
        "$.",
        "$.a.",
        "$.a..b",
        "$..a",
        "$[",
        '$["a"',
        "$[]",
        '$[""]',
        '$["a"]b',
        "$[0]",
        "$['a']",
        LONG,
    ],
)
def test_what_does_not_parse(text):
    with pytest.raises(FlowError, match=r"^invalid path syntax: "):
        parse(text)


@given(paths)
def test_a_path_prints_as_what_it_was_parsed_from(path):
    assert parse(show(path)) == path


def test_brackets_are_printed_around_keys_that_need_them():
    assert show(("a", "p.md", "b[", "]", "c d")) == '$.a["p.md"]["b["]["]"].c d'


@pytest.mark.parametrize("path", ["$.a.no", "$.no.x", "$.a.s.x", "$.a.list.0", "$.z.x"])
def test_reading_what_is_not_there_names_the_whole_path(path):
    doc = {"a": {"s": "text", "list": [1]}, "z": None}
    with pytest.raises(FlowError) as caught:
        read(doc, parse(path))
    assert str(caught.value) == f"path not found: {path}"
    assert caught.value.kind == "path_not_found"


def test_null_can_be_read():
    assert read({"z": None}, ("z",)) is None
    assert read(None, ()) is None


@given(documents, short_paths, json_values)
def test_what_was_written_is_read_and_nothing_else_changes(doc, path, value):
    before = copy.deepcopy(doc)
    try:
        after = write(doc, path, value)
    except FlowError as error:
        assert error.message.startswith("type error in 'path.write': ")
    else:
        assert read(after, path) is value
        assert_rest_is_shared(before, doc, after, path)
    assert doc == before


def assert_rest_is_shared(before, doc, after, path):
    for key in path:
        doc = doc if isinstance(doc, dict) else {}
        assert list(after) == [*doc, *([] if key in doc else [key])]
        assert all(after[other] is doc[other] for other in doc if other != key)
        doc, after = doc.get(key), after[key]


@pytest.mark.parametrize("middle", ["s", 0, True, [], 1.5])
def test_writing_through_a_value_is_a_type_error_that_says_where(middle):
    with pytest.raises(FlowError, match=r"^type error in 'path.write': \$\.a\.b is of type "):
        write({"a": {"b": middle}}, ("a", "b", "c"), 1)
    with pytest.raises(FlowError, match=r"^type error in 'path.write': \$ is of type "):
        write(middle, ("a",), 1)


def test_missing_and_null_intermediates_become_objects():
    assert write({"a": None}, ("a", "b", "c"), 1) == {"a": {"b": {"c": 1}}}
    assert write(None, ("a",), 1) == {"a": 1}


def test_writing_the_root_replaces_the_document():
    assert write({"a": 1}, (), [2]) == [2]
