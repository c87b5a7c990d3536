"""From Blueprint JSON to shapes: one table of fields per node kind and operator, every fault at once.

What is not in a table is rejected: an unknown key, kind or operator is a misspelling that would otherwise change what
the flow does without a word. A write target that is an expression other than `path` is left to the run, as flow.ir has
it, where `try` can catch it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from refold.errors import FlowError
from refold.flowir import path
from refold.flowir.agents import agent
from refold.flowir.envelope import unwrap
from refold.flowir.fanout import JOINS
from refold.flowir.ir import (
    Apply,
    Approve,
    Assign,
    Blueprint,
    Branch,
    Choice,
    Expr,
    Extern,
    Fanout,
    Lit,
    Loop,
    Node,
    Path,
    PathKeys,
    Seq,
    Step,
    Try,
    Wait,
)
from refold.flowir.reading import (
    At,
    Fields,
    Reading,
    anything,
    array,
    boolean,
    choice,
    hint_for,
    integer,
    may,
    members,
    name,
    need,
    number,
    obj,
    text,
    wrong_type,
)
from refold.flowir.runners import Runners, employ, named_runner
from refold.flowir.templates import template

Json = Any

MAX_DEPTH: Final = 64
"""Nodes and expressions inside each other. Evaluation recurses, so this is what keeps the stack bounded."""


def parse_blueprint(value: Json) -> Blueprint:
    """Returns the Blueprint that a JSON value describes.

    Raises:
        BlueprintInvalid: `data["faults"]` lists every fault as `{path, kind, message, hint}`; `path` is a JSON path
            such as `$.flow.children[2].in`, `hint` may be None.
    """
    names = {member: list(_names(value, member)) for member in _NAMED}
    reading = Reading(*(frozenset(own for _, own in names[member]) for member in ("agents", "metas")))
    got = members(reading, value, At(), _BLUEPRINT) or {}
    for member in names:
        _no_twins(reading, names[member], At().member(member))
    runners = Runners(got.pop("runners", None), got.pop("default_runner", None), got.pop("subprocesses", None))
    got["agents"] = employ(reading, got.get("agents") or (), runners)
    reading.finish("blueprint")
    extras = {key: got.pop(key) for key in _KEPT if key in got}
    metas = {meta["name"]: meta["ctx"] for meta in got.pop("metas", ())}
    return Blueprint(**got, metas=metas, extras=extras)


def parse_flow(value: Json) -> Node:
    """Returns the node that a JSON value describes. Which agents there are is not checked.

    Raises:
        BlueprintInvalid: as `parse_blueprint`, with paths from the node.
    """
    reading = Reading()
    node = _node(reading, value, At())
    reading.finish("flow")
    assert node is not None, "else there was a fault"
    return node


# -- nodes and expressions --------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """The JSON form of a node kind or an operator: its members, and the shape that they make."""

    make: Callable[..., Any]
    fields: Fields
    check: Callable[[Mapping[str, Any]], str | None] = lambda got: None
    """Says what is wrong between members that are right by themselves."""


def _tagged(
    tag: str, noun: str, forms: Mapping[str, Form], later: frozenset[str], reading: Reading, value: Json, at: At
) -> Any:
    at = at.deeper()
    if at.depth > MAX_DEPTH:
        return reading.fault(at, "too_deep", f"nodes and expressions are nested deeper than {MAX_DEPTH}")
    if type(value) is not dict:
        return wrong_type(reading, value, at, f"a {noun}")
    word = value.get(tag)
    if type(word) is not str:
        return reading.fault(at, "missing_key", f"a {noun} names its {tag!r}", hint_for("", forms))
    if word in later:
        return reading.fault(at.member(tag), f"{noun}_{tag}_unavailable", f"{noun} {tag} {word!r} is not available yet")
    form = forms.get(word)
    if form is None:
        return reading.fault(at.member(tag), f"unknown_{tag}", f"unknown {tag} {word[:80]!r}", hint_for(word, forms))
    before = len(reading.faults)
    got = members(reading, value, at, form.fields, ignore=[tag]) or {}
    if len(reading.faults) == before and (wrong := form.check(got)) is not None:
        return reading.fault(at, "members_disagree", wrong)
    return form.make(**got) if len(reading.faults) == before else None


def _node(reading: Reading, value: Json, at: At) -> Node | None:
    return _tagged("kind", "node", NODES, LATER_NODES, reading, value, at)


def _expr(reading: Reading, value: Json, at: At) -> Expr | None:
    return _tagged("op", "expression", OPERATORS, frozenset(), reading, value, at)


def _choice(reading: Reading, value: Json, at: At) -> Choice | None:
    got = members(reading, value, at, {"id": need(name), "label": need(text), "decision": need(name)})
    return None if got is None or len(got) < 3 else Choice(**got)


def _path(reading: Reading, value: Json, at: At) -> PathKeys | None:
    if type(value) is not str:
        return wrong_type(reading, value, at, "a path")
    try:
        return path.parse(value)
    except FlowError as error:
        return reading.fault(at, "bad_path", error.message, 'a path is $, $.key or $.key["other.key"]')


def _ref(reading: Reading, value: Json, at: At) -> str | None:
    if type(value) is str and reading.agents is not None and value not in reading.agents:
        message = f"no agent is named {value[:80]!r}"
        return reading.fault(at, "unresolved_agent_ref", message, hint_for(value, reading.agents))
    return text(reading, value, at)


def _input(reading: Reading, value: Json, at: At) -> Expr | None:
    """A step's `in`. An envelope that stands there literally is checked now; others are met when they are evaluated."""
    expr = _expr(reading, value, at)
    if type(expr) is Lit and reading.metas is not None:
        try:
            unwrap(expr.value, {meta: {} for meta in reading.metas})
        except FlowError as error:
            reading.fault(at.member("value"), "bad_step_meta", error.message)
    return expr


def _operands(op: str, *names: str) -> Form:
    return Form(lambda **got: Apply(op, tuple(got[name] for name in names)), {name: need(_expr) for name in names})


def _variadic(op: str) -> Form:
    return Form(partial(Apply, op), {"args": need(array(_expr))})


NODES: Final[Mapping[str, Form]] = {
    "step": Form(Step, {"ref": need(_ref), "in": need(_input, "input"), "out": need(_expr)}),
    "seq": Form(Seq, {"children": need(array(_node))}),
    "branch": Form(Branch, {"cond": need(_expr), "then": need(_node), "else": need(_node, "otherwise")}),
    "loop": Form(
        Loop, {"counter": need(_expr), "cond": need(_expr), "body": need(_node), "max": need(integer(0, 2**32 - 1))}
    ),
    "fanout": Form(
        Fanout,
        {
            "items": need(_expr),
            "bind": need(_expr),
            "body": need(_node),
            "join": need(choice(*JOINS)),
            "out": need(_expr),
            "concurrency": may(integer(1, 2**32 - 1)),
        },
    ),
    "try": Form(Try, {"body": need(_node), "catch": need(_node), "err_at": may(_expr)}),
    "assign": Form(Assign, {"at": need(_expr), "value": need(_expr)}),
    "approve": Form(
        Approve,
        {
            "action": need(_expr),
            "out": need(_expr),
            "title": may(text),
            "choices": may(array(_choice)),
            "expires_secs": may(number(0, 10**9)),
            "on_deny": may(choice("fail", "continue")),
        },
        lambda got: None if got.get("choices", True) else "an approval without choices can never be answered",
    ),
    "wait": Form(
        Wait,
        {"secs": may(_expr), "until": may(_expr)},
        lambda got: None if len(got) == 1 else "a wait has either secs or until",
    ),
}
LATER_NODES: Final = frozenset({"call"})

_BINARY: Final = ("eq", "ne", "lt", "lte", "gt", "gte", "add", "sub", "mul", "div", "mod")
OPERATORS: Final[Mapping[str, Form]] = {
    "path": Form(Path, {"at": need(_path)}),
    "lit": Form(Lit, {"value": need(anything)}),
    **{op: _operands(op, "lhs", "rhs") for op in _BINARY},
    **{op: _operands(op, "arg") for op in ("not", "exists", "len")},
    **{op: _variadic(op) for op in ("and", "or")},
    "in": _operands("in", "needle", "haystack"),
    "call_extern": Form(Extern, {"ref": need(text), "args": need(array(_expr))}),
}


# -- the Blueprint around them ----------------------------------------------------------------------------------------

_NAMED: Final = ("agents", "metas", "subprocesses", "runners")
"""The members that are lists of named entries."""
_STRATEGY: Final[Fields] = {key: may(boolean) for key in ("strict_refs", "strict_kind", "strict_binding")}
_META: Final[Fields] = {"name": need(name), "ctx": need(obj)}


def _strategy(reading: Reading, value: Json, at: At) -> Json:
    return members(reading, value, at, _STRATEGY)


def _meta(reading: Reading, value: Json, at: At) -> Json:
    return members(reading, value, at, _META)


_KEPT: Final = (
    "operators",
    "hints",
    "strategy",
    "metadata",
    "spawner_hints",
    "default_agent_kind",
    "default_operator_kind",
    "default_agent_ctx",
    "default_context_policy",
    "projection_placement",
    "audits",
    "degradation_policy",
    "blueprint_ref_includes",
)
"""Members of the format that mean nothing to refold (yet). They are accepted and kept."""

_BLUEPRINT: Final[Fields] = {
    **{key: may(anything) for key in _KEPT},
    "schema_version": may(text),
    "id": need(name),
    "flow": need(_node),
    "agents": may(array(agent)),
    "metas": may(array(_meta)),
    "subprocesses": may(array(template)),
    "runners": may(array(named_runner)),
    "default_runner": may(text),
    "default_init_ctx": may(anything),
    "strategy": may(_strategy),
    "check_policy": may(choice("silent", "warn", "strict")),
}


def _names(value: Json, member: str) -> Iterator[tuple[int, str]]:
    """Yields the index and name of every entry that has one: references are checked also where entries are faulty."""
    entries = value.get(member) if type(value) is dict else None
    for index, entry in enumerate(entries if type(entries) is list else ()):
        if type(entry) is dict and type(entry.get("name")) is str:
            yield index, entry["name"]


def _no_twins(reading: Reading, names: Iterable[tuple[int, str]], at: At) -> None:
    first: dict[str, int] = {}
    for index, own in names:
        if first.setdefault(own, index) != index:
            message = f"{own[:80]!r} is the name of {at.item(first[own]).path} already"
            reading.fault(at.item(index).member("name"), "duplicate_name", message, "names are unique")
