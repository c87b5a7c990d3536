"""Requests: what people are asked, and their answers, through any door (design §8).

The first valid answer wins: one compare-and-set in one transaction, with the record that shows it and, where the Run
was interrupted meanwhile, with the resume that goes on from it. Everybody else gets the resolution.
"""

from __future__ import annotations

from typing import Any

import msgspec

from refold.canonical import decode
from refold.engine.clock import Clock
from refold.engine.desk import Desk, already_settled, settle
from refold.engine.supervisor import Supervisor
from refold.errors import Conflict, InvalidRequest, NotFound, RefoldError
from refold.records import RequestRow, RequestStatus, RunRecord, RunStatus
from refold.service.commands import Ledger
from refold.service.runs import Runs
from refold.service.sessions import find_session
from refold.session import SessionLog
from refold.store import Reader, Store, Tx

Json = Any

FREE_TEXT_CHARS = 500
"""The longest free text of an answer (MSP, userInput/answer)."""


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer did: the request as it now stands, and whether its Run goes on by it."""

    request: RequestRow
    resumed: bool


class Requests:
    """Lists and settles requests."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        supervisor: Supervisor,
        runs: Runs,
        ledger: Ledger,
        desk: Desk,
        log: SessionLog,
        *,
        resume_on_decision: bool = True,
    ) -> None:
        self._store = store
        self._clock = clock
        self._supervisor = supervisor
        self._runs = runs
        self._ledger = ledger
        self._desk = desk
        self._log = log
        self._resume_on_decision = resume_on_decision

    async def page(self, limit: int, before: int | None = None, **equals: Json) -> list[RequestRow]:
        """Requests, newest first, those made before the integer key `before`."""

        def read(reader: Reader) -> list[RequestRow]:
            rows = reader.find(RequestRow, newest_first=True, **equals)
            return [row for row in rows if before is None or row.n < before][:limit]

        return await self._store.read(read)

    async def get(self, request_id: str) -> RequestRow:
        """Raises NotFound."""
        return await self._store.read(lambda reader: find_request(reader, request_id))

    async def pending(self, session_id: str) -> list[tuple[RequestRow, Json]]:
        """The open requests of a Session, oldest first, each with the params of the frame that opened it."""

        def read(reader: Reader) -> list[tuple[RequestRow, Json]]:
            session = find_session(reader, session_id)
            still = reader.find(RequestRow, session=session.n, status=RequestStatus.OPEN)
            return [(each, self._log.frame(reader, session, each.opened, 1)["params"]) for each in still]

        return await self._store.read(read)

    async def decide(
        self,
        request_id: str,
        *,
        choice: str | None = None,
        decision: str | None = None,
        feedback: str | None = None,
        by: str = "user",
        command_id: str | None = None,
    ) -> Settled:
        """Settles an approval by the id of a choice, or by a decision that one of its choices has.

        Raises NotFound, InvalidRequest for a choice that was not offered, Conflict with the resolution for the loser.
        """

        def answer(request: RequestRow) -> Json:
            if request.kind != "approval":
                raise InvalidRequest(f"request {request_id} asks for input; answer it", kind="approval_choice_invalid")
            offered = decode(request.choices_json)
            chosen = [c for c in offered if choice == c["id"] or (choice is None and decision == c["decision"])]
            if not chosen:
                names = ", ".join(each["id"] for each in offered)
                raise InvalidRequest(
                    f"{choice or decision!r} is not offered; choose one of {names}",
                    kind="approval_choice_invalid",
                    choice_id=choice or decision,
                )
            said = {"decision": chosen[0]["decision"], "choice": chosen[0]["id"], "by": by, "command_id": command_id}
            return said | ({"feedback": feedback} if feedback is not None else {})

        verb = {"request_id": request_id, "choice": choice, "decision": decision, "feedback": feedback}
        return await self._settle(request_id, "request/decide", verb, answer, command_id)

    async def answer(
        self, request_id: str, answers: list[Json], *, by: str = "user", command_id: str | None = None
    ) -> Settled:
        """Settles a user input; every question needs exactly one answer.

        Raises NotFound, InvalidRequest, Conflict with the settlement for the loser.
        """

        def said(request: RequestRow) -> Json:
            if request.kind != "input":
                raise InvalidRequest(f"{request_id} is an approval; decide it", kind="user_input_answer_invalid")
            value = _answered(decode(request.questions_json), answers)
            return {"decision": "answered", "value": value, "answers": answers, "by": by, "command_id": command_id}

        return await self._settle(
            request_id, "request/answer", {"request_id": request_id, "answers": answers}, said, command_id, answers
        )

    async def withdraw(
        self, request_id: str, outcome: str, *, reason: str | None = None, command_id: str | None = None
    ) -> Settled:
        """Settles a user input without an answer: `cancelled`, and the step is blocked by it."""

        def said(request: RequestRow) -> Json:
            if request.kind != "input":
                raise InvalidRequest(f"{request_id} is an approval; decide it", kind="user_input_answer_invalid")
            return {"decision": outcome, "by": "user", "reason": reason, "command_id": command_id}

        verb = {"request_id": request_id, "outcome": outcome, "reason": reason}
        return await self._settle(request_id, "request/withdraw", verb, said, command_id)

    async def _settle(
        self, request_id: str, verb: str, params: Json, said: Any, command_id: str | None, answers: Json = ()
    ) -> Settled:
        at, driven = self._clock.now_ms(), []
        turn_id = self._clock.uuid7()

        def effect(tx: Tx) -> Json:
            driven.clear()  # a transaction may be tried twice
            request = find_request(tx, request_id)
            if request.status != RequestStatus.OPEN:
                raise self._lost(tx, request)
            if request.expires_at is not None and request.expires_at <= at:
                settle(tx, request, RequestStatus.EXPIRED, {"decision": "expired", "by": "refold"}, at)
                return {"expired": True}
            resolution = {name: value for name, value in said(request).items() if value is not None}
            settle(tx, request, RequestStatus.RESOLVED, resolution, at, command_id=command_id, answers=answers)
            return {"resumed": self._go_on(tx, request, turn_id, driven)}

        if command_id is None:
            done = await self._store.write(effect)
        else:
            done, _ = await self._ledger.apply(command_id, verb, params, effect, at=at)
        request = await self.get(request_id)
        for run in driven:
            self._supervisor.drive(run)
        self._desk.ring(request)
        if done.get("expired"):
            raise await self._store.read(lambda reader: self._lost(reader, request))
        return Settled(request=request, resumed=done["resumed"])

    def _go_on(self, tx: Tx, request: RequestRow, turn_id: str, driven: list[RunRecord]) -> bool:
        """Has the Run go on: told after the commit, or resumed in it, or resumed once its Session is idle."""
        run = tx.get(RunRecord, request.run)
        assert run is not None, "a request is made with its Run, and goes with it"
        if run.status != RunStatus.INTERRUPTED:
            return run.status == RunStatus.RUNNING
        if not self._resume_on_decision:
            return False
        session = find_session(tx, request.session_id)
        if session.active_run is not None:
            tx.update(RunRecord, (run.n,), resume_wanted=turn_id)
            return False
        driven.append(self._runs.open_resume(tx, run.run_id, self._runs.opening("decision", turn_id)).run)
        return True

    def _lost(self, reader: Reader, request: RequestRow) -> Conflict:
        """The loser's answer: with what was decided, by whom, and where the view shows it."""
        lost = already_settled(request)
        said = decode(request.resolution_json or "{}")
        cursor = None
        if request.settled is not None:
            session = find_session(reader, request.session_id)
            cursor = self._log.frame(reader, session, request.settled, 0)["params"]["viewCursor"]
        by = "user" if request.status == RequestStatus.RESOLVED else "policy"
        resolution = {"decision": said.get("decision", request.status), "resolvedBy": by, "viewCursor": cursor}
        lost.data["resolution"] = resolution
        lost.data["settlement"] = {"outcome": said.get("decision", request.status), "viewCursor": cursor}
        return lost


def find_request(reader: Reader, request_id: str) -> RequestRow:
    """The record of a request; raises NotFound."""
    found = reader.find(RequestRow, request_id=request_id)
    if not found:
        raise NotFound(f"there is no request {request_id[:80]!r}", kind="request_not_found", request_id=request_id[:80])
    return found[0]


def _answered(questions: list[Json], answers: list[Json]) -> Json:
    """The value that the flow gets: the one question's answer, a label, labels or text."""
    given = {each.get("questionId"): each for each in answers if isinstance(each, dict)}
    if len(given) != len(answers) or given.keys() != {question["id"] for question in questions}:
        raise _invalid("answer every question once")
    values = [_value(question, given[question["id"]]) for question in questions]
    return values[0] if len(values) == 1 else values


def _value(question: Json, answer: Json) -> Json:
    said = {name: answer[name] for name in ("selectedLabel", "selectedLabels", "freeText") if name in answer}
    if len(said) != 1:
        raise _invalid("an answer has exactly one of selectedLabel, selectedLabels and freeText")
    ((form, value),) = said.items()
    labels = {option["label"] for option in question["options"]}
    if form == "freeText":
        if not isinstance(value, str) or len(value) > FREE_TEXT_CHARS:
            raise _invalid(f"freeText is a text of at most {FREE_TEXT_CHARS} characters")
        return value
    chosen = value if form == "selectedLabels" else [value]
    if not isinstance(chosen, list) or not chosen or not all(each in labels for each in chosen):
        raise _invalid(f"choose from {', '.join(sorted(labels))}")
    if form == "selectedLabels" and question["selection"]["mode"] != "multiple":
        raise _invalid("this question takes one label")
    return value


def _invalid(text: str) -> RefoldError:
    return InvalidRequest(text, kind="user_input_answer_invalid")


def pointer(request: RequestRow, opened: Json) -> Json:
    """How an answer points at an open request."""
    name = "approvalId" if request.kind == "approval" else "userInputId"
    kind = "approval" if request.kind == "approval" else "userInput"
    return {"kind": kind, name: request.request_id, "viewCursor": opened["viewCursor"]}
