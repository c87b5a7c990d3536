"""Every error is typed, says what it is, and can be branched on by a word."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from refold import errors
from refold.errors import Conflict, MissingAnchor, RefoldError


def _tree(root: type[RefoldError]) -> Iterator[type[RefoldError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child)


TREE = list(_tree(RefoldError))
each = pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)


def _raised(kind: type[RefoldError]) -> RefoldError:
    return kind("S") if kind is MissingAnchor else kind("what was found, and what to do", seq=1)


def test_the_tree_is_drawn_as_it_is() -> None:
    drawn = re.findall(r"^ {4}((?:│ {3}| {4})*)[├└]── (\w+)", errors.__doc__, re.MULTILINE)
    parents = {0: "RefoldError"}
    found = set()
    for indent, name in drawn:
        depth = len(indent) // 4
        found.add((name, parents[depth]))
        parents[depth + 1] = name
    assert found == {(kind.__name__, kind.__bases__[0].__name__) for kind in TREE[1:]}


def test_no_two_kinds_are_one_word() -> None:
    assert len({kind.kind for kind in TREE}) == len(TREE)


@each
def test_a_kind_is_a_snake_case_word_and_explained(kind: type[RefoldError]) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.kind)
    assert kind.__doc__ and kind.__doc__ != kind.__base__.__doc__


@each
def test_an_error_carries_its_text_and_its_data(kind: type[RefoldError]) -> None:
    error = _raised(kind)
    assert str(error) == error.message != ""
    assert error.data == ({"session_id": "S"} if kind is MissingAnchor else {"seq": 1})
    assert error.kind == kind.kind
    with pytest.raises(RefoldError):
        raise error


def test_an_instance_may_be_more_exact_than_its_class() -> None:
    assert (Conflict("x", kind="no_head").kind, Conflict("x").kind) == ("no_head", "conflict")


def test_a_missing_anchor_says_the_same_of_every_cursor() -> None:
    assert MissingAnchor("S").message == MissingAnchor("other").message == "unknown cursor anchor"
