"""What the machine and its driver say to each other.

The machine *asks* with commands and *learns* outcomes; a `Dispatch` is answered by one `Outcome` under its ticket. Here
are the words only; who says them when is `machine`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from refold.flowir.ir import Approve, PathKeys
from refold.records import Lane

Json = Any


class ReplayKey(NamedTuple):
    """What an answer is logged under, within one Run and generation (design §4)."""

    step_ref: str
    input_hash: str
    occurrence: int


class Trail(NamedTuple):
    """How the ctx of a dispatch came about, so that what has changed in it is found without looking at all of it.

    Law: it differs from the ctx of the dispatch `since` at and below the paths `written`, and nowhere else.
    """

    since: int | None = None
    """The ticket of the last dispatch before it that passed, in its lane or the one around; None: not known."""
    written: tuple[PathKeys, ...] = ()


class Message(msgspec.Struct, frozen=True):
    """Base of commands and outcomes. They carry references to JSON values, which nobody mutates."""


# -- commands: machine to driver --------------------------------------------------------------------------------------


class Dispatch(Message, frozen=True, kw_only=True):
    """The flow wants agent `ref` to do `directive`. `ctx` is the flow ctx as the step sees it."""

    ticket: int
    ref: str
    directive: Json
    key: ReplayKey
    lane: Lane
    ctx: Json
    node: Approve | None = None
    """The node that asks a person; None for a step. Not hashed: its title and choices are no part of the question."""
    step_ctx: dict[str, Json] | None = None
    """What `$step_meta` said, None without one."""
    trail: Trail = Trail()


class Decision(Message, frozen=True):
    """Lane `winner` of the fan-out number `fork` in `lane` has won its `any` or `race`. It belongs into the log."""

    lane: Lane
    fork: int
    winner: int


class Abandon(Message, frozen=True):
    """The work under `ticket` belongs to a lane that lost: cancel it. Its outcome is ignored if it is delivered."""

    ticket: int


Command = Dispatch | Decision | Abandon


# -- outcomes: driver to machine, and the machine's own result ---------------------------------------------------------


class Pass(Message, frozen=True):
    """The agent did it. The only outcome that is logged (law 5)."""

    value: Json


class Skip(Message, frozen=True):
    """The agent found that there is nothing to do: the flow goes on with a marker object."""

    value: Json


class Blocked(Message, frozen=True):
    """The agent could not do it: an error that the flow may catch."""

    value: Json


class Done(Message, frozen=True):
    """The flow ended; `ctx` is its final ctx."""

    ctx: Json


class Failed(Message, frozen=True):
    """As an outcome: the dispatch ended in an error. As a result: the flow did, and nothing caught it."""

    text: str
    kind: str = "flow_error"
    """`flow_error`, `max_flow_transitions` or `divergence`; the last two cannot be caught by a flow."""


Outcome = Pass | Skip | Blocked | Failed
Result = Done | Failed
