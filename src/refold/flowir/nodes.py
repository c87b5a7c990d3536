"""What each node does: generators over a fiber, which ask for what they cannot do themselves.

A *fiber* is one sequential strand of the flow with a ctx of its own: the root, or a lane of a fan-out. A node's
generator changes `fiber.ctx` and yields requests: `Ask` is sent an answer, `Fork` what the join makes of the lanes, and
either may have an error thrown in instead; `PAUSE` is sent nothing, but there is another slice. Errors of the flow are
`FlowError`; every other exception is a bug and passes through.

Not here: who runs when, tickets, keys (`machine`), what a join makes of its lanes (`fanout`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any, Final

from refold.canonical import encode, type_name
from refold.errors import FlowError, InvalidJson
from refold.flowir import path
from refold.flowir.expr import evaluate, truthy
from refold.flowir.ir import Approve, Assign, Branch, Expr, Fanout, Loop, Node, Path, PathKeys, Seq, Step, Try, Wait

Json = Any
Steps = Generator[Any, Json, None]
"""A node under way: yields requests, is sent answers."""


class Meter:
    """How many transitions are left before control goes back to the driver. Shared by all fibers of a machine."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0


class Fiber:
    """The part of a strand that nodes see: its ctx, and the meter that its transitions count on.

    It notes where it writes: `written` are the paths at which the ctx may differ from that of the dispatch `since`, the
    last one that passed (0: the initial ctx; None: not known). Paths stand in the flow, so there are only so many.
    """

    __slots__ = ("ctx", "meter", "since", "written")

    def __init__(self, ctx: Json, meter: Meter, around: Fiber | None = None) -> None:
        self.ctx = ctx
        self.meter = meter
        self.since: int | None = 0 if around is None else around.since
        self.written: dict[PathKeys, None] = {} if around is None else around.written.copy()

    def write(self, at: PathKeys, value: Json) -> None:
        """Writes to the ctx; raises FlowError as `path.write`."""
        self.ctx = path.write(self.ctx, at, value)
        self.written[at] = None

    def go_back(self, ctx: Json, since: int | None) -> None:
        """Takes up the ctx again that it had when `since` was its last dispatch that passed."""
        self.ctx = ctx
        if self.since != since:  # what was written before the one that passed meanwhile is undone too, and not noted
            self.since = None

    def passed(self, ticket: int) -> None:
        """Begins a new trail: the dispatch under `ticket`, made from the ctx as it still is, has passed."""
        self.since = ticket
        self.written = {}


class Ask:
    """Request: the answer of agent `ref` to `given`, the value of the step's `in`."""

    __slots__ = ("given", "node", "ref")

    def __init__(self, ref: str, given: Json, node: Approve | None = None) -> None:
        self.ref = ref
        self.given = given
        self.node = node


class Fork:
    """Request: one lane per item, and what the join makes of them."""

    __slots__ = ("bind", "items", "node")

    def __init__(self, node: Fanout, bind: PathKeys, items: list[Json]) -> None:
        self.node = node
        self.bind = bind
        self.items = items


APPROVE: Final = "@approve"
"""The ref under which an approval is asked for and logged."""
WAIT: Final = "@wait"
"""The ref under which a wait is dispatched and logged: its driver keeps the time."""
MAX_WAIT_SECS: Final = 10**9
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.IGNORECASE)


class Pause:
    """Request: another slice; this one is used up."""

    __slots__ = ()


PAUSE: Final = Pause()


def walk(node: Node, fiber: Fiber) -> Steps:
    """Runs a node. Every node that is entered is one transition: also a loop of nothing ends at the meter."""
    meter = fiber.meter
    while meter.left <= 0:
        yield PAUSE
    meter.left -= 1
    yield from _NODES[type(node)](node, fiber)


def walk_lane(fork: Fork, item: Json, fiber: Fiber) -> Steps:
    """Runs the body of a fan-out for one item. A `bind` that cannot be written refuses in the lane, like its body."""
    fiber.write(fork.bind, item)
    yield from walk(fork.node.body, fiber)


def _step(node: Step, fiber: Fiber) -> Steps:
    out = _target(node.out)  # before the dispatch: an answer that has nowhere to go is not paid for
    answer = yield Ask(node.ref, evaluate(node.input, fiber.ctx))
    fiber.write(out, answer)


def _seq(node: Seq, fiber: Fiber) -> Steps:
    for child in node.children:
        yield from walk(child, fiber)


def _branch(node: Branch, fiber: Fiber) -> Steps:
    cond = evaluate(node.cond, fiber.ctx)
    if type(cond) is not bool:
        raise FlowError(f"branch cond must be boolean, got: {_shown(cond)}")
    yield from walk(node.then if cond else node.otherwise, fiber)


def _loop(node: Loop, fiber: Fiber) -> Steps:
    counter = _target(node.counter)
    turns = 0
    fiber.write(counter, turns)
    while turns < node.max and truthy(evaluate(node.cond, fiber.ctx)):
        yield from walk(node.body, fiber)
        turns += 1
        fiber.write(counter, turns)


def _fanout(node: Fanout, fiber: Fiber) -> Steps:
    out, bind = _target(node.out), _target(node.bind)
    items = evaluate(node.items, fiber.ctx)
    if type(items) is not list:
        raise FlowError(f"type error in 'fanout.items': expected an array, got {type_name(items)}")
    joined = yield Fork(node, bind, items)
    fiber.write(out, joined)


def _try(node: Try, fiber: Fiber) -> Steps:
    before, since = fiber.ctx, fiber.since
    try:
        yield from walk(node.body, fiber)
    except FlowError as error:
        text = error.message
    else:
        return
    fiber.go_back(before, since)
    if node.err_at is not None:
        fiber.write(_target(node.err_at), text)
    yield from walk(node.catch, fiber)


def _assign(node: Assign, fiber: Fiber) -> Steps:
    at = _target(node.at)
    fiber.write(at, evaluate(node.value, fiber.ctx))
    return
    yield  # makes this a generator like the others


def _approve(node: Approve, fiber: Fiber) -> Steps:
    out = _target(node.out)
    answer = yield Ask(APPROVE, {"action": evaluate(node.action, fiber.ctx)}, node)
    fiber.write(out, answer)


def _wait(node: Wait, fiber: Fiber) -> Steps:
    if node.secs is not None:
        secs = evaluate(node.secs, fiber.ctx)
        if type(secs) not in (int, float) or not 0 <= secs <= MAX_WAIT_SECS:
            raise FlowError(
                f"type error in 'wait.secs': expected seconds from 0 to {MAX_WAIT_SECS}, got {_shown(secs)}"
            )
        yield Ask(WAIT, {"secs": secs})
        return
    assert node.until is not None, "parse sees to it that one of the two is given"
    until = evaluate(node.until, fiber.ctx)
    if not _is_time(until):
        raise FlowError(f"type error in 'wait.until': expected an RFC 3339 time, got {_shown(until)}")
    yield Ask(WAIT, {"until": until})


_NODES: Final[Mapping[type, Callable[[Any, Fiber], Steps]]] = {
    Step: _step,
    Seq: _seq,
    Branch: _branch,
    Loop: _loop,
    Fanout: _fanout,
    Try: _try,
    Assign: _assign,
    Wait: _wait,
    Approve: _approve,
}


def _is_time(value: Json) -> bool:
    """Whether `value` is an RFC 3339 time that there is: the 30th of February is spelled like one."""
    if type(value) is not str or not _TIME.fullmatch(value):
        return False
    try:
        datetime.fromisoformat(value.upper())
    except ValueError:
        return False
    return True


def _target(expr: Expr) -> PathKeys:
    if type(expr) is not Path:
        raise FlowError("invalid path syntax: expected Path expr for write target")
    return expr.at


def _shown(value: Json) -> str:
    try:
        return encode(value)
    except InvalidJson:  # a loop of `$.a = $` nests a ctx deeper than any text of it can be
        return f"a value that cannot be written ({type_name(value)})"
