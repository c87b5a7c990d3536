"""Building Blueprint JSON in Python: a function per node kind and operator, each gives what one would write by hand.

    from refold import blueprint, eq, seq, step, branch, assign

    flow = seq(
        step("review", "$.text", "$.verdict"),
        branch(eq("$.verdict", "PASS"), assign("$.output", "$.text")),
    )

Where an expression is wanted, an object with an `op` is one as it is, text that begins with `$` is a path, and
everything else is a literal. `lit` makes a literal of what would be taken for something else: `lit("$5")`. A name that
Python has taken gets an underscore: `try_`, `not_`, `and_`, `or_`, `in_`, `len_`. Not here: checks (`parse`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

Json = Any
Node = dict[str, Json]
Expr = dict[str, Json]

# -- expressions ------------------------------------------------------------------------------------------------------


def expr(value: Json) -> Expr:
    """The expression that a value stands for."""
    if isinstance(value, dict) and "op" in value:
        return value
    return path(value) if isinstance(value, str) and value.startswith("$") else lit(value)


def path(at: str) -> Expr:
    """Reads the flow ctx: `path("$.a.b")`. As a write target it says where."""
    return {"op": "path", "at": at}


def lit(value: Json) -> Expr:
    """The value itself."""
    return {"op": "lit", "value": value}


def call_extern(ref: str, *args: Json) -> Expr:
    """A pure function of the host."""
    return {"op": "call_extern", "ref": ref, "args": [expr(arg) for arg in args]}


def in_(needle: Json, haystack: Json) -> Expr:
    """Whether an array holds a value."""
    return {"op": "in", "needle": expr(needle), "haystack": expr(haystack)}


def _binary(op: str, doc: str) -> Callable[[Json, Json], Expr]:
    def build(lhs: Json, rhs: Json) -> Expr:
        return {"op": op, "lhs": expr(lhs), "rhs": expr(rhs)}

    build.__name__, build.__doc__ = op, doc
    return build


def _unary(op: str, doc: str) -> Callable[[Json], Expr]:
    def build(arg: Json) -> Expr:
        return {"op": op, "arg": expr(arg)}

    build.__name__, build.__doc__ = op, doc
    return build


def _variadic(op: str, doc: str) -> Callable[..., Expr]:
    def build(*args: Json) -> Expr:
        return {"op": op, "args": [expr(arg) for arg in args]}

    build.__name__, build.__doc__ = op, doc
    return build


eq: Final = _binary("eq", "Whether two values are equal; numbers by value: 5 is 5.0.")
ne: Final = _binary("ne", "Whether two values differ.")
lt: Final = _binary("lt", "Less: two numbers, or two texts.")
lte: Final = _binary("lte", "Less or equal.")
gt: Final = _binary("gt", "Greater.")
gte: Final = _binary("gte", "Greater or equal.")
add: Final = _binary("add", "The sum of two numbers, always a float.")
sub: Final = _binary("sub", "Their difference.")
mul: Final = _binary("mul", "Their product.")
div: Final = _binary("div", "Their quotient; by 0 it is an error.")
mod: Final = _binary("mod", "The remainder, with the sign of the divisor.")
not_: Final = _unary("not", "The opposite of a value's truthiness.")
exists: Final = _unary("exists", "Whether something reads, and is not null.")
len_: Final = _unary("len", "Items of an array, characters of a text, keys of an object.")
and_: Final = _variadic("and", "Whether all are truthy; stops at the first that is not.")
or_: Final = _variadic("or", "Whether any is truthy; stops at the first that is.")

# -- nodes ------------------------------------------------------------------------------------------------------------


def step(ref: str, given: Json, out: Json) -> Node:
    """Asks the agent `ref` for an answer to `given`, and writes it at `out`."""
    return {"kind": "step", "ref": ref, "in": expr(given), "out": expr(out)}


def seq(*children: Node) -> Node:
    """Runs its children in order."""
    return {"kind": "seq", "children": list(children)}


def branch(cond: Json, then: Node, otherwise: Node | None = None) -> Node:
    """Runs one of two arms; without the second one nothing where `cond` is false."""
    return {"kind": "branch", "cond": expr(cond), "then": then, "else": seq() if otherwise is None else otherwise}


def loop(counter: Json, cond: Json, body: Node, max: int) -> Node:
    """Runs `body` while `cond` is truthy, at most `max` times; `counter` holds the turns that ended."""
    return {"kind": "loop", "counter": expr(counter), "cond": expr(cond), "body": body, "max": max}


def fanout(
    items: Json, body: Node, out: Json, *, bind: Json = "$.item", join: str = "all", concurrency: int | None = None
) -> Node:
    """Runs `body` once per item, each in a lane with a ctx of its own, the item at `bind`; `join` makes one value."""
    node = {"kind": "fanout", "items": expr(items), "bind": expr(bind), "body": body, "join": join, "out": expr(out)}
    return node if concurrency is None else node | {"concurrency": concurrency}


def try_(body: Node, catch: Node | None = None, *, err_at: Json = None) -> Node:
    """Runs `body`; on an error undoes its writes, puts the text at `err_at` if given, and runs `catch`."""
    node = {"kind": "try", "body": body, "catch": seq() if catch is None else catch}
    return node if err_at is None else node | {"err_at": expr(err_at)}


def assign(at: Json, value: Json) -> Node:
    """Writes `value` at `at`."""
    return {"kind": "assign", "at": expr(at), "value": expr(value)}


def approve(action: Json, out: Json, **options: Json) -> Node:
    """Asks a person whether `action` may be done; the decision goes to `out`.

    `options`: title, choices, expires_secs, on_deny.
    """
    return {"kind": "approve", "action": expr(action), "out": expr(out), **options}


def wait(secs: Json = None, *, until: Json = None) -> Node:
    """Waits, durably: for `secs`, or `until` an RFC 3339 time."""
    given = {"secs": secs, "until": until}
    return {"kind": "wait"} | {key: expr(value) for key, value in given.items() if value is not None}


def blueprint(id: str, flow: Node, agents: Iterable[Mapping[str, Json]] = (), **members: Json) -> dict[str, Json]:
    """A Blueprint of a flow and the agents that it names; other members of the format by their names."""
    return {"id": id, "flow": flow, "agents": [dict(agent) for agent in agents], **members}
