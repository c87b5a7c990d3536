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
    st.sampled_from(
        [0.0, -0.0, 1e16, 1e21, 1e-4, 9.999e-5, 1e-7, 2.0**53, 2**53, 2**53 + 1, 2**63, 2**63 - 1, -(2**63)]
    ),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
json_values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)

# -- flows ------------------------------------------------------------------------------------------------------------

CTX = {"a": {"x": 1}, "b": 2, "c": [0, 1], "i": 0}
"""What generated flows expect to find, so that they do not all end at their first read."""

_targets = st.sampled_from(["$.a", "$.b", "$.b", "$.d", "$.d", "$.c", "$.a.x"]).map(path)
_literals = st.sampled_from([0, 1, "s", None, {}]).map(lit)
_reads = st.sampled_from(["$.a", "$.b", "$.b", "$.c", "$.i", "$.i", "$.i", "$.a.x", "$", "$.missing"]).map(path)
_values = st.one_of(
    _literals,
    _reads,
    _reads,
    st.builds(binary, st.sampled_from(["add", "eq"]), _reads, _literals),
    st.builds(unary, st.sampled_from(["len", "exists"]), _reads),
)
_conds = st.one_of(
    st.booleans().map(lit),
    st.builds(unary, st.sampled_from(["exists", "not"]), _reads),
    st.builds(binary, st.sampled_from(["eq", "ne", "lt"]), _reads, _literals),
    st.sampled_from([True, True, False, 1]).map(lit),  # 1 is no boolean: a pure error, after steps that were paid for
)
_steps = st.builds(step, st.sampled_from("pqr"), _values, _targets)
_items = st.one_of(st.just(lit([0, 1])), st.lists(st.integers(0, 1), max_size=3).map(lit), st.just(path("$.c")))
_joins = st.sampled_from(["all", "any", "any", "race", "race", "all_settled"])
_limits = st.sampled_from([{}, {}, {"concurrency": 1}, {"concurrency": 2}])


@st.composite
def _node(draw: st.DrawFn, depth: int) -> Json:
    kinds = ["step"] if depth == 0 else ["seq", "seq", "fanout", "fanout", "try", "loop", "branch", "step", "assign"]
    inner = _node(depth - 1)
    match draw(st.sampled_from(kinds)):
        case "seq":
            return seq(*draw(st.lists(inner, min_size=2, max_size=3)))
        case "fanout":
            out = draw(st.sampled_from(["$.f", "$.f", "$.c"]))
            return fanout(draw(_items), draw(inner), draw(_joins), out, **draw(_limits))
        case "try":
            return guard(draw(inner), draw(inner), draw(st.sampled_from(["$.err", "$.b", None])))
        case "loop":
            return loop("$.n", draw(_conds), draw(inner), draw(st.integers(0, 3)))
        case "branch":
            return branch(draw(_conds), draw(inner), draw(inner))
        case "assign":
            return assign(draw(_targets), draw(_values))
        case _:
            return draw(_steps)


def _go_on(node: Json) -> Json:
    return guard(node, err_at="$.oops")


_contests = st.builds(
    lambda first, second, last, join: fanout([0, 1, 2], seq(first, second, last), join, "$.f"),
    *(_steps, _steps, st.sampled_from([0, 1, 2]).flatmap(_node), st.sampled_from(["race", "any", "all"])),
)
"""Lanes of several steps each, so that the losers of a join have rows in the log."""
_parts = st.one_of(_contests, *[_node(depth) for depth in (1, 2, 3)])
flow_json = st.one_of(
    _parts,
    st.lists(st.one_of(_parts, _parts.map(_go_on), _parts.map(_go_on)), min_size=2, max_size=4).map(lambda n: seq(*n)),
    st.lists(_parts.map(_go_on), min_size=3, max_size=5).map(lambda parts: seq(*parts)),
)
"""Flows of all nodes and joins, nested, that ask agents `p`, `q` and `r`, and that also go wrong by themselves: most
parts are guarded, so that what follows is reached."""

flows = flow_json.map(parse_flow)
