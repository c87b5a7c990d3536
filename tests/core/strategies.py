"""Hypothesis strategies for JSON values and flows, and the JSON shorthands that tests write flows in."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from refold.flowir import parse_flow

Json = Any

# -- shorthands -------------------------------------------------------------------------------------------------------


def path(at: str) -> Json:
    """A path expression."""
    return {"op": "path", "at": at}


def lit(value: Json) -> Json:
    """A literal expression."""
    return {"op": "lit", "value": value}


def expr(value: Json) -> Json:
    """An expression as it is, a path for text that starts with `$`, a literal for anything else."""
    if isinstance(value, dict) and "op" in value:
        return value
    return path(value) if isinstance(value, str) and value.startswith("$") else lit(value)


def binary(op: str, lhs: Json, rhs: Json) -> Json:
    """An operator with `lhs` and `rhs`."""
    return {"op": op, "lhs": expr(lhs), "rhs": expr(rhs)}


def unary(op: str, arg: Json) -> Json:
    """An operator with `arg`."""
    return {"op": op, "arg": expr(arg)}


def step(ref: str, given: Json, out: Json) -> Json:
    """A step."""
    return {"kind": "step", "ref": ref, "in": expr(given), "out": expr(out)}


def seq(*children: Json) -> Json:
    """A sequence."""
    return {"kind": "seq", "children": list(children)}


def branch(cond: Json, then: Json, otherwise: Json) -> Json:
    """A branch."""
    return {"kind": "branch", "cond": expr(cond), "then": then, "else": otherwise}


def loop(counter: str, cond: Json, body: Json, most: int) -> Json:
    """A loop."""
    return {"kind": "loop", "counter": expr(counter), "cond": expr(cond), "body": body, "max": most}


def fanout(items: Json, body: Json, join: str, out: Json = "$.r", bind: Json = "$.i", **more: Json) -> Json:
    """A fan-out."""
    node = {"kind": "fanout", "items": expr(items), "bind": expr(bind), "body": body, "join": join, "out": expr(out)}
    return node | more


def guard(body: Json, catch: Json | None = None, err_at: Json = "$.err") -> Json:
    """A try."""
    node = {"kind": "try", "body": body, "catch": catch or seq()}
    return node if err_at is None else node | {"err_at": expr(err_at)}


def assign(at: Json, value: Json) -> Json:
    """An assignment."""
    return {"kind": "assign", "at": expr(at), "value": expr(value)}


# -- values -----------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(10**6), 10**6).map(float),
    st.sampled_from([0.0, -0.0, 1e16, 1e21, 1e-4, 9.999e-5, 1e-7, 2.0**53, 2**53, 2**53 + 1, 2**63, 2**63 - 1, -(2**63)]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)

# -- flows ------------------------------------------------------------------------------------------------------------

PLACES = ["$.a", "$.b", "$.c", "$.a.x", "$.i"]

_targets = st.sampled_from(PLACES).map(path)
_literals = st.sampled_from([0, 1, 2.0, "s", None, True, [], [1], {}]).map(lit)
_reads = st.sampled_from([*PLACES, *PLACES, "$", "$.missing"]).map(path)
_values = st.one_of(
    _literals,
    _reads,
    _reads,
    st.builds(binary, st.sampled_from(["add", "eq"]), _reads, _literals),
    st.builds(unary, st.just("len"), _reads),
)
_conds = st.one_of(
    st.booleans().map(lit),
    st.builds(unary, st.sampled_from(["exists", "not"]), _reads),
    st.builds(binary, st.sampled_from(["eq", "ne", "lt"]), _reads, _literals),
    st.just(lit(1)),
)
_items = st.one_of(st.lists(st.integers(0, 2), max_size=3).map(lit), _reads)
_leaves = st.one_of(
    st.builds(step, st.sampled_from("pqr"), _values, _targets),
    st.builds(step, st.sampled_from("pqr"), _values, _targets),
    st.builds(assign, _targets, _values),
)


def _nodes(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    limits = st.sampled_from([{}, {}, {"concurrency": 1}, {"concurrency": 2}])
    joins = st.sampled_from(["all", "any", "race", "all_settled"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda children: seq(*children)),
        st.builds(branch, _conds, inner, inner),
        st.builds(loop, st.just("$.n"), _conds, inner, st.integers(0, 3)),
        st.builds(guard, inner, inner),
        st.builds(
            lambda items, body, join, out, more: fanout(items, body, join, out, **more),
            _items, inner, joins, st.sampled_from(["$.f", "$.g", "$.a"]), limits,
        ),
        st.builds(
            lambda body, join, more: fanout([0, 1, 2], body, join, "$.f", **more), inner, joins, limits
        ),
    )  # fmt: skip


flow_json = st.recursive(_leaves, _nodes, max_leaves=8)
"""Flows of all nodes and joins, nested, that ask agents `p`, `q` and `r`, and that also go wrong by themselves."""

flows = flow_json.map(parse_flow)
