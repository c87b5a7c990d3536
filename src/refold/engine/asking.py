"""Asking people: what must be asked before a dispatch goes on, and what was asked before. Pure.

A request is found again by its identity, so that a resume asks nobody twice. It is bound to the digest of the canonical
action that is shown: another action is another question, whatever it is called. What an answer means is
`flowir.answers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from refold.canonical import decode, digest, encode
from refold.engine.clock import Clock
from refold.flowir import CHOICES, AgentDef, Choice, Dispatch, Outcome, Pass, ReplayKey
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


class Asked:
    """What was asked in a generation of a Run before, by identity."""

    def __init__(self, requests: Iterable[RequestRow], generation: int) -> None:
        self._of: dict[Json, list[RequestRow]] = {}
        for request in requests:
            if request.generation == generation:
                key = ReplayKey(request.step_ref, request.input_hash, request.occurrence)
                self._of.setdefault((*key, request.source, request.digest), []).append(request)

    def standing(self, key: ReplayKey, query: Query) -> RequestRow | None:
        """The request that asks this already, open or settled; None if nobody was asked, or it was voided since."""
        of = self._of.get(_identity(key, query))
        return None if of is None or of[-1].status == RequestStatus.VOIDED else of[-1]

    def times(self, key: ReplayKey, query: Query) -> int:
        """How often this was asked: the number of the next equal question."""
        return len(self._of.get(_identity(key, query), ()))


def _identity(key: ReplayKey, query: Query) -> Json:
    return (*key, query.source, query.digest)


def new_request(query: Query, dispatch: Dispatch, run: RunRecord, clock: Clock, nth: int) -> RequestRow:
    """The record of a question that nobody has been asked yet; `nth` tells it from equal ones before it."""
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
        nth=nth,
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


def item_status(answer: RequestRow, outcome: Outcome) -> str | None:
    """How the item of a question ends that a person, or nobody in time, has answered; None: as its outcome says."""
    if isinstance(outcome, Pass):
        return None
    decision = decode(answer.resolution_json or "{}")["decision"]
    return _ITEM_STATUS.get(decision, "rejected")


_ITEM_STATUS: Final[Mapping[str, str]] = {"expired": "timedOut", "cancelled": "cancelled"}
"""How an item ends by a decision that is no denial: nothing may say that a person denied what nobody answered."""


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
