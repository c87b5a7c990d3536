"""The shapes of a Blueprint: nodes, expressions, agents. Immutable, and nothing but data.

The JSON forms of nodes are tagged by `kind`, those of expressions by `op`. `parse` makes these shapes from them;
`nodes` and `expr` say what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

Json = Any
PathKeys = tuple[str, ...]
"""A parsed path: its object keys from the root inwards; empty for `$`."""


class Shape(msgspec.Struct, frozen=True):
    """Base of all shapes. Two are equal if all members are."""


# -- expressions ------------------------------------------------------------------------------------------------------


class Path(Shape, frozen=True):
    """`{"op":"path","at":"$…"}`: reads the flow ctx; as a write target it says where."""

    at: PathKeys


class Lit(Shape, frozen=True):
    """`{"op":"lit","value":…}`: the value itself."""

    value: Json


class Apply(Shape, frozen=True):
    """Any other operator with its operands in the order of the JSON form's fields (`lhs`, `rhs`; `args` in order)."""

    op: str
    args: tuple[Expr, ...]


class Extern(Shape, frozen=True):
    """`{"op":"call_extern","ref":…,"args":[…]}`: a pure function of the host. refold registers none."""

    ref: str
    args: tuple[Expr, ...]


Expr = Path | Lit | Apply | Extern


# -- nodes ------------------------------------------------------------------------------------------------------------


class Step(Shape, frozen=True):
    """Dispatches the agent `ref` with `input` and writes what it returns at `out`."""

    ref: str
    input: Expr
    out: Expr


class Seq(Shape, frozen=True):
    """Runs its children in order; without children it does nothing."""

    children: tuple[Node, ...]


class Branch(Shape, frozen=True):
    """Runs one of two arms. `cond` must be a real boolean: a truthy value is an error, not a yes."""

    cond: Expr
    then: Node
    otherwise: Node


class Loop(Shape, frozen=True):
    """Runs `body` while `cond` is truthy, at most `max` times; `counter` holds the number of turns that ended."""

    counter: Expr
    cond: Expr
    body: Node
    max: int


class Fanout(Shape, frozen=True):
    """Runs `body` once per item, each in a lane with a private ctx; `join` says what the parent gets at `out`."""

    items: Expr
    bind: Expr
    body: Node
    join: str
    out: Expr
    concurrency: int | None = None
    """At most so many lanes are active at a time, started in index order; None = all at once."""


class Try(Shape, frozen=True):
    """Runs `body`; on an error undoes its writes, puts the error text at `err_at` if given and runs `catch`."""

    body: Node
    catch: Node
    err_at: Expr | None = None


class Choice(Shape, frozen=True):
    """One answer that a person may give to an approval."""

    id: str
    label: str
    decision: str


CHOICES: Final = (Choice("approve", "Approve", "approved"), Choice("deny", "Deny", "denied"))
"""What a person may answer where the author names no choices."""


class Approve(Shape, frozen=True):
    """Asks a person before the flow goes on; `out` gets `{decision, choice, by, feedback?}`.

    Only `action` is hashed: another title, or other choices, is the same question.
    """

    action: Expr
    out: Expr
    title: str = ""
    choices: tuple[Choice, ...] = CHOICES
    expires_secs: float | None = None
    on_deny: str = "fail"
    """What a denial, or an expiry, does: `fail` blocks the step, `continue` lets the flow read the decision."""


class Wait(Shape, frozen=True):
    """Waits, durably: `secs` from when it is first reached, or `until` an RFC 3339 time. Exactly one is given."""

    secs: Expr | None = None
    until: Expr | None = None


class Assign(Shape, frozen=True):
    """Writes `value` at `at`."""

    at: Expr
    value: Expr


Node = Step | Seq | Branch | Loop | Fanout | Try | Assign | Wait | Approve


def steps_of(node: Node) -> Iterator[Step]:
    """Yields every step of a flow, in the order of its text."""
    match node:
        case Step():
            yield node
        case Seq(children):
            for child in children:
                yield from steps_of(child)
        case Branch(_, first, second) | Try(first, second):
            yield from steps_of(first)
            yield from steps_of(second)
        case Loop(body=body) | Fanout(body=body):
            yield from steps_of(body)
        case _:
            return


# -- blueprints -------------------------------------------------------------------------------------------------------


class Retry(Shape, frozen=True):
    """How often a failed attempt is tried again by itself, and how long the pauses grow. `max_attempts` counts all."""

    max_attempts: int = 3
    initial_secs: float = 1.0
    max_secs: float = 60.0
    multiplier: float = 2.0
    retry_on: tuple[str, ...] = ("error", "timeout")


class Verdict(Shape, frozen=True):
    """Which words an agent's verdict may be, and where it stands: `body` or `part` of the answer."""

    channel: str
    values: tuple[str, ...]


class AgentDef(Shape, frozen=True, kw_only=True):
    """An agent as the Blueprint names it. `spec` belongs to its kind; what has no use yet is kept as it was written."""

    name: str
    kind: str
    spec: Mapping[str, Json]
    profile: Mapping[str, Json] | None = None
    meta: Mapping[str, Json] | None = None
    runner: Mapping[str, Json] | None = None
    runner_ref: str | None = None
    verdict: Verdict | None = None
    lints: Mapping[str, Json] | None = None
    retry: Retry | None = None
    timeout_secs: float | None = None
    on_ambiguous: str = "retry"
    """What becomes of an attempt without an end after a crash: `retry`, `ask` or `fail`."""
    approval: str = "never"


class Blueprint(Shape, frozen=True, kw_only=True):
    """A flow and the agents it names. `metas` are the named context bundles that `$step_meta` refers to."""

    id: str
    flow: Node
    agents: tuple[AgentDef, ...] = ()
    metas: Mapping[str, Mapping[str, Json]] = {}
    default_init_ctx: Json = None
    schema_version: str = "0.1.0"
    check_policy: str | None = None
    extras: Mapping[str, Json] = {}
    """Members that are accepted and mean nothing to refold: what is written there is kept."""
