"""Expressions: the 20 operators, truthiness, equality by double value, error texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import assign, binary, expr, json_values, unary

from refold.errors import FlowError
from refold.flowir import parse, parse_flow
from refold.flowir.expr import OPERATORS, evaluate, same, truthy

CTX = {"d": {"n": 5, "o": {"p.md": 1}, "z": None, "list": [1, [2]], "big": 10**400}}
NO = "$.no.x"
EXTERN = {"op": "call_extern", "ref": "f", "args": [expr(NO)]}


def value_of(json, ctx=CTX):
    return evaluate(parse_flow(assign("$.x", json)).value, ctx)


def args(op, *items):
    return {"op": op, "args": [expr(item) for item in items]}


def within(needle, haystack):
    return {"op": "in", "needle": expr(needle), "haystack": expr(haystack)}


@pytest.mark.parametrize(
    ("json", "expected"),
    [
        (expr('$.d.o["p.md"]'), 1),
        (expr("$"), CTX),
        (expr([1, {"a": None}]), [1, {"a": None}]),
        (binary("eq", "$.d.n", 5.0), True),
        (binary("eq", [{"a": 5}], [{"a": 5.0}]), True),
        (binary("eq", "$.d.n", "5"), False),
        (binary("eq", True, 1), False),
        (binary("eq", [False], [0]), False),
        (binary("eq", 2**53, 2**53 + 1), True),
        (binary("eq", "$.d.big", 1e308), False),
        (binary("ne", "$.d.n", 5), False),
        (binary("ne", {"a": 1}, {"b": 1}), True),
        (binary("lt", "$.d.n", 5), False),
        (binary("lte", "$.d.n", 5), True),
        (binary("gt", "$.d.n", 4), True),
        (binary("gt", "$.d.big", 1e308), True),
        (binary("gt", -(10**400), -1e308), False),
        (binary("gte", "$.d.n", 6), False),
        (binary("lt", "a", "b"), True),
        (binary("lt", "\uffff", "😀"), True),  # as UTF-8 bytes; UTF-16 units order the other way
        (unary("not", 0), False),
        (unary("not", None), True),
        (args("and"), True),
        (args("and", 1, ""), True),
        (args("and", False, NO), False),
        (args("or"), False),
        (args("or", None, 0, NO), True),
        (args("or", None, False), False),
        (unary("exists", "$.d.n"), True),
        (unary("exists", "$.d.z"), False),
        (unary("exists", NO), False),
        (unary("exists", False), True),
        (binary("add", "$.d.n", 2), 7.0),
        (binary("sub", "$.d.n", 2), 3.0),
        (binary("mul", "$.d.n", 2), 10.0),
        (binary("div", "$.d.n", 2), 2.5),
        (binary("mod", "$.d.n", 3), 2.0),
        (binary("mod", -5, 3), 1.0),
        (binary("mod", 5, -3), -1.0),
        (unary("len", "é🙂"), 2),
        (unary("len", [1, 2]), 2),
        (unary("len", "$.d.o"), 1),
        (within("$.d.n", [4, 5.0]), True),
        (within("$.d.n", ["5", True]), False),
        (within([2.0], "$.d.list"), True),
    ],
)
def test_values(json, expected):
    came = value_of(json)
    assert came == expected
    assert type(came) is type(expected)  # 2 + 3 is 5.0, and a comparison is a boolean


@pytest.mark.parametrize(
    ("json", "text"),
    [
        (expr(NO), "path not found: $.no.x"),
        (args("and", True, NO), "path not found: $.no.x"),
        (binary("lt", 1, "a"), "type error in 'cmp': "),
        (binary("gte", None, None), "type error in 'cmp': "),
        (binary("lt", True, 2), "type error in 'cmp': "),
        (binary("add", True, 1), "type error in 'add': "),
        (binary("mul", 1, "2"), "type error in 'mul': "),
        (binary("div", 1, 0), "arithmetic error in 'div': "),
        (binary("mod", 1, 0.0), "arithmetic error in 'mod': "),
        (binary("mul", 1e308, 10), "arithmetic error in 'mul': "),
        (binary("sub", "$.d.big", 1), "arithmetic error in 'sub': "),
        (unary("len", 5), "type error in 'len': "),
        (unary("len", None), "type error in 'len': "),
        (within(1, "1"), "type error in 'in': "),
        (within(1, {}), "type error in 'in': "),
        (EXTERN, "extern error for ref 'f': no externs registry configured"),
        (unary("exists", EXTERN), "extern error for ref 'f': "),
        (unary("exists", unary("len", 5)), "type error in 'len': "),
    ],
)
def test_errors(json, text):
    with pytest.raises(FlowError) as caught:
        value_of(json)
    assert caught.value.message.startswith(text)


def test_every_operator_that_parses_can_be_evaluated_and_there_are_twenty():
    assert OPERATORS.keys() == parse.OPERATORS.keys()
    assert len(OPERATORS) == 20
    assert OPERATORS["path"](parse_flow(assign("$.x", "$.d.n")).value, CTX) == 5
    assert OPERATORS["lit"](parse_flow(assign("$.x", 7)).value, CTX) == 7


@pytest.mark.parametrize(("value", "expected"), [(None, False), (False, False), *[(v, True) for v in (0, "", [], {})]])
def test_only_null_and_false_are_falsy(value, expected):
    assert truthy(value) is expected


def reference_same(a, b):
    """The rule as one would write it down: replace every number by its double, keep booleans apart."""

    def plain(value):
        if isinstance(value, bool):
            return ("boolean", value)
        if isinstance(value, int | float):
            return float(value)
        if isinstance(value, list):
            return list(map(plain, value))
        return {key: plain(item) for key, item in value.items()} if isinstance(value, dict) else value

    return plain(a) == plain(b)


small = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 0.0, 1.0, "", "1", 2**53, 2**53 + 1]),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("ab"), inner)),
    max_leaves=4,
)


@given(small, small)
def test_equality_is_deep_and_by_double_value(a, b):
    assert same(a, b) == reference_same(a, b)


@given(json_values, json_values)
def test_equality_is_reflexive_and_symmetric(a, b):
    assert same(a, a)
    assert same(a, b) == same(b, a)


def test_equality_of_very_deep_values_needs_no_stack():
    a, b = 0, 0.0
    for _ in range(100_000):
        a, b = [a], [b]
    assert same(a, b)
    while a:  # taken apart by hand: the interpreter would recurse to free it
        a, b = a.pop(), b.pop()
