"""Expressions: one table of the 20 operators, each a pure function of the flow ctx.

Numbers are doubles here, whatever they are elsewhere: `eq` compares by double value, arithmetic returns a float
(2 + 3 is 5.0). A boolean is never a number. Falsy are null and false, nothing else: 0, "", [] and {} are truthy.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final

from refold.canonical import type_name
from refold.errors import FlowError
from refold.flowir.ir import Apply, Expr, Extern, Lit, Path
from refold.flowir.path import PATH_NOT_FOUND, read

Json = Any


def evaluate(expr: Expr, ctx: Json) -> Json:
    """Returns the value of `expr` in `ctx`.

    Raises:
        FlowError: with one of the texts `path not found: P`, `type error in 'OP': …`, `arithmetic error in 'OP': …`,
            `extern error for ref 'R': …`.
    """
    if type(expr) is Path:  # the two leaves first: most expressions are nothing else
        return read(ctx, expr.at)
    if type(expr) is Lit:
        return expr.value
    return OPERATORS[expr.op if type(expr) is Apply else "call_extern"](expr, ctx)


def truthy(value: Json) -> bool:
    """Tells whether a value counts as true: everything but null and false."""
    return value is not None and value is not False


def same(left: Json, right: Json) -> bool:
    """Deep equality of `eq` and `in`: numbers by double value (5 equals 5.0), booleans equal no number."""
    pairs = [(left, right)]
    for a, b in pairs:
        if a is b:
            continue
        kind = type_name(a)
        if kind != type_name(b):
            return False
        if kind == "array" or kind == "object":
            if len(a) != len(b) or (kind == "object" and a.keys() != b.keys()):
                return False
            pairs += zip(a, b, strict=True) if kind == "array" else ((a[key], b[key]) for key in a)
        elif (_double(a) != _double(b)) if kind == "number" else a != b:
            return False
    return True


def _double(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:  # an integer beyond the doubles compares as the infinity on its side
        return math.inf if number > 0 else -math.inf


def _type_error(op: str, why: str) -> FlowError:
    return FlowError(f"type error in '{op}': {why}")


# -- operators on values ----------------------------------------------------------------------------------------------

Operation = Callable[..., Json]
"""A function of the operands' values; all of them are evaluated first, from left to right."""


def _compare(holds: Callable[[Any, Any], bool]) -> Operation:
    def compare(lhs: Json, rhs: Json) -> bool:
        kinds = (type_name(lhs), type_name(rhs))
        if kinds == ("number", "number"):
            return holds(_double(lhs), _double(rhs))
        if kinds == ("string", "string"):
            return holds(lhs, rhs)  # code points order as UTF-8 bytes do
        raise _type_error("cmp", f"expected two numbers or two strings, got {kinds[0]} and {kinds[1]}")

    return compare


def _arithmetic(op: str, compute: Callable[[float, float], float]) -> Operation:
    def arithmetic(lhs: Json, rhs: Json) -> float:
        for operand in (lhs, rhs):
            if type_name(operand) != "number":
                raise _type_error(op, f"expected a number, got {type_name(operand)}")
        try:
            result = compute(_double(lhs), _double(rhs))
        except ZeroDivisionError:
            raise FlowError(f"arithmetic error in '{op}': division by zero") from None
        if not math.isfinite(result):  # 1e308 * 10: JSON has no infinity to write
            raise FlowError(f"arithmetic error in '{op}': the result is not a finite number")
        return result

    return arithmetic


def _len(value: Json) -> int:
    if type_name(value) not in ("array", "string", "object"):
        raise _type_error("len", f"expected an array, a string or an object, got {type_name(value)}")
    return len(value)


def _in(needle: Json, haystack: Json) -> bool:
    if type_name(haystack) != "array":
        raise _type_error("in", f"expected an array to search, got {type_name(haystack)}")
    return any(same(needle, item) for item in haystack)


# -- operators on expressions -----------------------------------------------------------------------------------------

Evaluation = Callable[[Any, Json], Json]
"""A function of the expression and the ctx."""


def _strict(operation: Operation) -> Evaluation:
    return lambda expr, ctx: operation(*[evaluate(arg, ctx) for arg in expr.args])


def _and(expr: Apply, ctx: Json) -> bool:
    return all(truthy(evaluate(arg, ctx)) for arg in expr.args)


def _or(expr: Apply, ctx: Json) -> bool:
    return any(truthy(evaluate(arg, ctx)) for arg in expr.args)


def _exists(expr: Apply, ctx: Json) -> bool:
    try:
        return evaluate(expr.args[0], ctx) is not None
    except FlowError as error:
        if error.kind == PATH_NOT_FOUND:
            return False
        raise


def _extern(expr: Extern, ctx: Json) -> Json:
    raise FlowError(f"extern error for ref '{expr.ref}': no externs registry configured")


OPERATORS: Final[Mapping[str, Evaluation]] = {
    "path": lambda expr, ctx: read(ctx, expr.at),
    "lit": lambda expr, ctx: expr.value,
    "eq": _strict(same),
    "ne": _strict(lambda lhs, rhs: not same(lhs, rhs)),
    "lt": _strict(_compare(operator.lt)),
    "lte": _strict(_compare(operator.le)),
    "gt": _strict(_compare(operator.gt)),
    "gte": _strict(_compare(operator.ge)),
    "not": _strict(lambda arg: not truthy(arg)),
    "and": _and,
    "or": _or,
    "exists": _exists,
    "add": _strict(_arithmetic("add", operator.add)),
    "sub": _strict(_arithmetic("sub", operator.sub)),
    "mul": _strict(_arithmetic("mul", operator.mul)),
    "div": _strict(_arithmetic("div", operator.truediv)),
    "mod": _strict(_arithmetic("mod", operator.mod)),
    "len": _strict(_len),
    "in": _strict(_in),
    "call_extern": _extern,
}
"""Every operator of flow.ir. `parse` knows the same names with their fields; one test compares the two."""
