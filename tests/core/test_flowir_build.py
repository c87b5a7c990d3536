"""Building Blueprints in Python: the builders give what one writes by hand, and it parses to the same shapes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import flow_json, json_values

import refold
from refold.flowir import build, parse_blueprint, parse_flow
from refold.flowir.parse import NODES, OPERATORS

Json = Any

NAMES = {"try": "try_", "not": "not_", "and": "and_", "or": "or_", "in": "in_", "len": "len_"}
"""The builders whose names Python has taken."""


def rebuilt(node: Json) -> Json:
    """`node`, made again by the builders alone."""
    match node:
        case {"kind": "step", "ref": ref, "in": given_, "out": out}:
            return build.step(ref, again(given_), again(out))
        case {"kind": "seq", "children": children}:
            return build.seq(*map(rebuilt, children))
        case {"kind": "branch", "cond": cond, "then": then, "else": otherwise}:
            return build.branch(again(cond), rebuilt(then), rebuilt(otherwise))
        case {"kind": "loop", "counter": counter, "cond": cond, "body": body, "max": most}:
            return build.loop(again(counter), again(cond), rebuilt(body), most)
        case {"kind": "fanout", "items": items, "bind": bind, "body": body, "join": join, "out": out, **more}:
            return build.fanout(again(items), rebuilt(body), again(out), bind=again(bind), join=join, **more)
        case {"kind": "try", "body": body, "catch": catch, **more}:
            return build.try_(rebuilt(body), rebuilt(catch), **{key: again(value) for key, value in more.items()})
        case {"kind": "assign", "at": at, "value": value}:
            return build.assign(again(at), again(value))
    raise AssertionError(f"no builder is known for {node}")


def again(expr: Json) -> Json:
    """An expression as its author says it: text for a path, a bare value for most literals, a call for the rest."""
    match expr:
        case {"op": "path", "at": at}:
            return at
        case {"op": "lit", "value": str() as text} if text.startswith("$"):
            return build.lit(text)
        case {"op": "lit", "value": {"op": _} as value}:
            return build.lit(value)
        case {"op": "lit", "value": value}:
            return value
        case {"op": op, **operands}:
            values = operands.get("args") or list(operands.values())
            return getattr(build, NAMES.get(op, op))(*map(again, values))
    raise AssertionError(f"no builder is known for {expr}")


@given(flow_json)
def test_every_flow_can_be_built_and_is_what_one_writes_by_hand(flow: Json) -> None:
    built = rebuilt(flow)
    assert built == flow
    assert parse_flow(built) == parse_flow(flow)


def test_every_node_and_operator_that_parses_has_a_builder() -> None:
    words = {*NODES, *OPERATORS}
    assert {word for word in words if not callable(getattr(build, NAMES.get(word, word), None))} == set()


A = {"op": "path", "at": "$.a"}


@pytest.mark.parametrize(
    ("built", "by_hand"),
    [
        (build.path("$.a"), A),
        (build.lit("$.a"), {"op": "lit", "value": "$.a"}),
        (build.expr("$.a"), A),
        (build.expr("a"), {"op": "lit", "value": "a"}),
        (build.expr(A), A),
        (build.expr({"a": 1}), {"op": "lit", "value": {"a": 1}}),
        (build.expr(None), {"op": "lit", "value": None}),
        (build.eq("$.a", 5), {"op": "eq", "lhs": A, "rhs": {"op": "lit", "value": 5}}),
        (build.sub(5, "$.a"), {"op": "sub", "lhs": {"op": "lit", "value": 5}, "rhs": A}),
        (build.not_(build.exists("$.a")), {"op": "not", "arg": {"op": "exists", "arg": A}}),
        (build.and_(), {"op": "and", "args": []}),
        (build.or_("$.a", True), {"op": "or", "args": [A, {"op": "lit", "value": True}]}),
        (build.in_("$.a", [1]), {"op": "in", "needle": A, "haystack": {"op": "lit", "value": [1]}}),
        (build.call_extern("f", "$.a"), {"op": "call_extern", "ref": "f", "args": [A]}),
        (build.approve("$.a", "$.a"), {"kind": "approve", "action": A, "out": A}),
        (build.approve("$.a", "$.a", title="?"), {"kind": "approve", "action": A, "out": A, "title": "?"}),
        (build.wait("$.a"), {"kind": "wait", "secs": A}),
        (build.wait(until="$.a"), {"kind": "wait", "until": A}),
        (
            build.branch("$.a", build.seq()),
            {
                "kind": "branch",
                "cond": A,
                "then": {"kind": "seq", "children": []},
                "else": {"kind": "seq", "children": []},
            },
        ),
        (
            build.try_(build.seq()),
            {"kind": "try", "body": {"kind": "seq", "children": []}, "catch": {"kind": "seq", "children": []}},
        ),
    ],
)
def test_what_a_builder_gives(built: Json, by_hand: Json) -> None:
    assert built == by_hand


@given(json_values)
def test_lit_gives_any_value_to_the_flow_as_it_is(value: Json) -> None:
    assert parse_flow(build.assign("$.a", build.lit(value))).value.value == value


def test_a_blueprint_is_built_with_its_agents_and_other_members() -> None:
    agents = [{"name": "echo", "kind": "python", "spec": {"fn": "builtin:echo"}}]
    flow = build.step("echo", "$.input", "$.output")
    built = build.blueprint("b", flow, agents, default_init_ctx={"input": 1})
    assert built == {"id": "b", "flow": flow, "agents": agents, "default_init_ctx": {"input": 1}}
    assert parse_blueprint(built).agents[0].name == "echo"


def test_the_builders_can_be_had_from_the_package() -> None:
    assert refold.seq is build.seq
    assert set(refold.__all__) == {name for name in vars(build) if name in refold.__all__}
    assert {name for name in vars(build) if callable(getattr(build, name)) and name[0].islower()} == set(refold.__all__)
    with pytest.raises(AttributeError, match="no attribute 'sequence'"):
        _ = refold.sequence


def test_importing_the_package_loads_nothing() -> None:
    """Whoever imports `refold.canonical` pays for this file first."""
    code = "import sys, refold; sys.exit(any(name.startswith('refold.') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


names = st.from_regex(r"[A-Za-z_.-]{1,8}", fullmatch=True)


@given(names, names)
def test_names_are_taken_as_they_are(ref: str, key: str) -> None:
    assert build.step(ref, key, build.path(f'$["{key}"]')) == {
        "kind": "step",
        "ref": ref,
        "in": {"op": "lit", "value": key},
        "out": {"op": "path", "at": f'$["{key}"]'},
    }
