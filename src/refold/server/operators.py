"""What operators send and see: structs of their bodies, queries and frames, and how an offer looks.

The same offer is an answer of `next` and a frame of the socket. Not here: the endpoints (`api.operators`), the socket
(`operator_socket`), what it all means (`service.operators`, `service.submissions`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from refold.engine.agents.operator import Offer as Offered
from refold.records import ID_PATTERN
from refold.server.shapes import Lane, Shape, plain
from refold.service.operators import LEASE_SECS, MAX_LEASE_SECS, WAIT_SECS
from refold.service.operators import Attached as Present
from refold.view import rfc3339

Json = Any

StepId = Annotated[str, Meta(pattern=f"^{ID_PATTERN.pattern.replace('(T|R|ST|O)', 'ST')}$")]
Holding = Annotated[
    list[StepId],
    Meta(description="The steps that the operator is at work on. What else it holds got lost and is offered again."),
]
AT_ONCE = 64
"""The most offers that one socket may hold."""


# -- what comes in ----------------------------------------------------------------------------------------------------


class AttachBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new operator: what people see of it, and how long it may be silent about what it holds."""

    desc: Annotated[str, Meta(max_length=1024)] = ""
    lease_secs: Annotated[float, Meta(gt=0, le=MAX_LEASE_SECS)] = LEASE_SECS


class NextQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a poll waits for an offer."""

    wait_secs: Annotated[float, Meta(ge=0, le=WAIT_SECS)] = 30
    holding: Holding = []


class SocketQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many offers a socket is sent before it has submitted one."""

    at_once: Annotated[int, Meta(ge=1, le=AT_ONCE)] = 1
    holding: Holding = []


# -- what goes out ----------------------------------------------------------------------------------------------------


class OperatorToken(Shape, frozen=True, kw_only=True):
    """A new operator and its token, which nobody can read again."""

    sid: str
    token: str
    desc: str
    lease_secs: float


class Held(Shape, frozen=True, kw_only=True):
    """An attempt that an operator holds."""

    run_id: str
    step_id: str
    attempt: int


class Operator(Shape, frozen=True, kw_only=True):
    """An attached operator: whether a poll or socket of it is open, and what it holds."""

    sid: str
    desc: str
    lease_secs: float
    created_at: str
    present: bool
    holds: list[Held]


class Detached(Shape, frozen=True, kw_only=True):
    """An operator that is ended."""

    sid: str
    deleted: Literal[True]


class OfferedAgent(Shape, frozen=True, kw_only=True):
    """The agent whose work is offered, as its Blueprint has it; `spec.instructions` are for the operator."""

    name: str
    spec: dict[str, Json]
    profile: dict[str, Json] | None
    verdict: dict[str, Json] | None


class Offer(Shape, frozen=True, kw_only=True):
    """Work to be done: what is asked (`directive`), by whom, within which ctx, and what to submit it under."""

    run_id: str
    step_id: str
    attempt: int
    step_ref: str
    occurrence: int
    lane: Lane
    epoch: int
    idempotency_key: str
    directive: Json
    agent: OfferedAgent
    ctx: dict[str, Json]
    work_dir: str | None
    project_root: str | None


def offer(offered: Offered) -> Json:
    """An offer."""
    work, agent = offered.work, offered.work.agent
    shown = Offer(
        run_id=work.run_id,
        step_id=work.step_id,
        attempt=work.attempt,
        step_ref=work.step_ref,
        occurrence=work.occurrence,
        lane=list(work.lane),
        epoch=work.epoch,
        idempotency_key=work.idempotency_key,
        directive=work.directive,
        agent=OfferedAgent(
            name=agent.name,
            spec=dict(agent.spec),
            profile=None if agent.profile is None else dict(agent.profile),
            verdict=None if agent.verdict is None else msgspec.to_builtins(agent.verdict),
        ),
        ctx=work.ctx,
        work_dir=work.work_dir,
        project_root=work.project_root,
    )
    return plain(shown)


def operator(attached: Present) -> Json:
    """An operator."""
    known = attached.operator
    shown = Operator(
        sid=known.sid,
        desc=known.desc,
        lease_secs=known.lease_secs,
        created_at=rfc3339(known.created_at),
        present=attached.present,
        holds=[Held(run_id=each.work.run_id, **_ids(each)) for each in attached.holds],
    )
    return plain(shown)


def _ids(offered: Offered) -> dict[str, Any]:
    return {"step_id": offered.work.step_id, "attempt": offered.work.attempt}
