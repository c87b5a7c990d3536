"""Replay keys: the frozen hash. A failing test here means that every stored log would become unreadable."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import json_values

from refold.errors import InvalidJson
from refold.flowir import FlowMachine, ReplayKey, input_hash, parse_flow

lanes = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=3).map(tuple)


@pytest.mark.parametrize(
    ("directive", "lane", "hashed", "digest"),
    [
        ("go", (), '"go"', "cdbca2a1e5e496bb4115ba35d19bfac361e6e4ba638e74c6a0552cd8c80c7795"),
        (
            "go",
            ((0, 2),),
            '{"input":"go","lane":[[0,2]]}',
            "7a792705e5ef0beed1e0f7cbfd4121b0bf9373560a4b3d39140b9fe40a62b4f9",
        ),
        (
            {"q": [1.0, 2.5, None]},
            ((1, 0), (0, 11)),
            '{"input":{"q":[1,2.5,null]},"lane":[[1,0],[0,11]]}',
            "f92203ad8b9dc6e70ff44cf309053df4cb1511c60ecfce70f98b318bef05c422",
        ),
    ],
)
def test_golden_digests_and_what_they_cover(directive, lane, hashed, digest):
    assert input_hash(directive, lane) == hashlib.sha256(hashed.encode()).hexdigest() == digest


@given(json_values, lanes, lanes)
def test_lanes_do_not_share_questions(directive, one, other):
    assert (input_hash(directive, one) == input_hash(directive, other)) == (one == other)
    assert input_hash(directive, one) != input_hash(directive)


def test_occurrence_counts_equal_questions_of_a_lane():
    machine = FlowMachine(parse_flow({"kind": "seq", "children": []}), {})
    asked = [("a", 1, ()), ("a", 1, ()), ("b", 1, ()), ("a", 2, ()), ("a", 1, ((0, 0),)), ("a", 1.0, ())]
    assert [machine.key_of(*question).occurrence for question in asked] == [0, 1, 0, 0, 0, 2]


def test_a_key_is_a_tuple():
    assert ReplayKey("a", "h", 0) == ("a", "h", 0)


def test_a_directive_that_cannot_be_written_has_no_hash():
    with pytest.raises(InvalidJson):
        input_hash(float("nan"))
