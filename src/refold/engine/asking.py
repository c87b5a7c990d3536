"""Asking people: what must be asked before a dispatch goes on, and what an answer means to it. Pure.

A request is found again by its identity (`key_of`), so that a resume asks nobody twice. It is bound to the digest of
the canonical action that is shown: another action is another question, whatever it is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from refold.canonical import decode, digest, encode
from refold.engine.clock import Clock
from refold.flowir import CHOICES, AgentDef, Blocked, Choice, Dispatch, Outcome, Pass, ReplayKey
from refold.records import AttemptRow, RequestRow, RequestStatus, RunRecord

Json = Any

AGAIN: Final = (Choice("again", "Run it again", "approved"), Choice("fail", "Fail the step", "denied"))
"""What may be answered about an attempt that a crash cut off."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, before it is a record."""

    kind: str
    source: str
    action: Json
    title: str = ""
    choices: tuple[Choice, ...] = ()
    questions: tuple[Json, ...] = ()
    expires_secs: float | None = None
    on_deny: str = "fail"

    @property
    def digest(self) -> str:
        """What the request is bound to."""
        return digest(self.action)


def query_of(dispatch: Dispatch, agent: AgentDef | None, cut_off: AttemptRow | None) -> Query | None:
    """What a person has to answer before this dispatch goes on; None if nothing.

    `cut_off` is the attempt that a crash left ambiguous, if there is one.
    """
    node = dispatch.node
    if node is not None:
        return Query(
            kind="approval",
            source="node",
            action=dispatch.directive["action"],
            title=node.title,
            choices=node.choices,
            expires_secs=node.expires_secs,
            on_deny=node.on_deny,
        )
    if agent is None:
        return None
    if agent.kind == "human":
        return Query(kind="input", source="node", action=dispatch.directive, questions=(_question(agent),))
    asked = {"agent": agent.name, "directive": dispatch.directive}
    if cut_off is not None and agent.on_ambiguous == "ask":
        title = f"Attempt {cut_off.attempt} of {agent.name} was cut off and may have acted. Run it again?"
        action = asked | {"attempt": cut_off.attempt}
        return Query(kind="approval", source="ambiguous", action=action, title=title, choices=AGAIN)
    if agent.approval == "required" or (agent.approval == "on_write" and (agent.meta or {}).get("writes")):
        return Query(kind="approval", source="policy", action=asked, title=f"Run {agent.name}?", choices=CHOICES)
    return None


def new_request(query: Query, dispatch: Dispatch, run: RunRecord, clock: Clock) -> RequestRow:
    """The record of a question that nobody has been asked yet."""
    at, key = clock.now_ms(), dispatch.key
    return RequestRow(
        request_id=clock.uuid7(),
        kind=query.kind,
        source=query.source,
        run=run.n,
        run_id=run.run_id,
        task_id=run.task_id,
        session=run.session,
        session_id=run.session_id,
        generation=run.generation,
        step_id=clock.mint("ST-"),
        step_ref=key.step_ref,
        input_hash=key.input_hash,
        occurrence=key.occurrence,
        lane_json=encode(dispatch.lane),
        nth=0,
        turn_id=run.turn_id or "",
        title=query.title,
        action_json=encode(query.action),
        digest=query.digest,
        choices_json=encode([msgspec.to_builtins(choice) for choice in query.choices]),
        questions_json=encode(list(query.questions)),
        status=RequestStatus.OPEN,
        opened=0,
        opened_at=at,
        expires_at=None if query.expires_secs is None else at + round(query.expires_secs * 1000),
        settled=None,
        settled_at=None,
        resolution_json=None,
    )


def known_requests(requests: Iterable[RequestRow], generation: int) -> dict[Json, RequestRow]:
    """The requests of a generation that are not void, by identity."""
    return {
        (request.step_ref, request.input_hash, request.occurrence, request.source, request.digest): request
        for request in requests
        if request.generation == generation and request.status != RequestStatus.VOIDED
    }


def key_of(key: ReplayKey, query: Query) -> Json:
    """The identity of a question within its Run and generation."""
    return (key.step_ref, key.input_hash, key.occurrence, query.source, query.digest)


def outcome_of(request: RequestRow, query: Query) -> Outcome | None:
    """What a settled request means to its step: an outcome, or None where the step may now be done."""
    said = decode(request.resolution_json or "{}")
    if request.kind == "input":
        return Pass(said["value"]) if said.get("decision") == "answered" else Blocked(said)
    decision = _plain(said["decision"])
    answer = {name: said[name] for name in ("choice", "by", "feedback") if name in said} | {"decision": decision}
    if query.source in ("policy", "ambiguous"):
        return None if decision == "approved" else Blocked(answer)
    if decision != "approved" and query.on_deny == "fail":
        return Blocked(answer)
    return Pass(answer)


def _plain(decision: str) -> str:
    """What a flow reads: `approved`, `denied` or `expired`; the doors know finer words."""
    if decision in ("expired", "denied"):
        return decision
    return "approved" if decision.startswith("approved") else "denied"


def _question(agent: AgentDef) -> Mapping[str, Json]:
    spec = agent.spec
    options = [{"label": each} if isinstance(each, str) else each for each in spec.get("options", ())]
    return {
        "id": "q1",
        "header": spec.get("header") or agent.name,
        "question": spec["question"],
        "options": options,
        "selection": {"mode": spec.get("selection", "single")},
    }
