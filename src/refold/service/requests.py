"""Requests: what people are asked, and their answers, through any door (design §8).

The first valid answer wins: one compare-and-set in one transaction, with the record that shows it and, where the Run
was interrupted meanwhile, with the resume that goes on from it. Everybody else gets the resolution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from refold import diagnostics
from refold.canonical import decode, encode
from refold.engine.clock import Clock
from refold.engine.desk import Desk, already_settled, resolved_by, settle
from refold.engine.supervisor import Supervisor
from refold.errors import Conflict, InvalidRequest, NotFound, RefoldError, Unprocessable
from refold.records import RequestRow, RequestStatus, RunRecord, RunStatus
from refold.service.commands import Ledger
from refold.service.runs import Opened, Runs
from refold.session import SessionLog, find_session
from refold.store import Reader, Store, Tx
from refold.view import Position

Json = Any
log = diagnostics.Log("refold.requests")

FREE_TEXT_CHARS: Final = 500
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

        window = {"before": before, "limit": limit, "newest_first": True}
        return await self._store.read(lambda reader: reader.find(RequestRow, **window, **equals))

    async def get(self, request_id: str) -> RequestRow:
        """Raises NotFound."""
        return await self._store.read(lambda reader: find_request(reader, request_id))

    async def pending(self, session_id: str) -> list[tuple[RequestRow, Json]]:
        """The open requests of a Session, oldest first, each with the params of the frame that opened it."""

        def read(reader: Reader) -> list[tuple[RequestRow, Json]]:
            session = find_session(reader, session_id)
            still = reader.find(RequestRow, session=session.n, status=RequestStatus.OPEN)
            return [(each, self._log.asked(reader, session, each.opened)["params"]) for each in still]

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
            value, kept = answered(decode(request.questions_json), answers)
            return {"decision": "answered", "value": value, "answers": kept, "by": by, "command_id": command_id}

        verb = {"request_id": request_id, "answers": answers}
        return await self._settle(request_id, "request/answer", verb, said, command_id)

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
        self, request_id: str, verb: str, params: Json, said: Callable[[RequestRow], Json], command_id: str | None
    ) -> Settled:
        at, turn_id = self._clock.now_ms(), self._clock.uuid7()
        driven: list[Opened] = []

        def effect(tx: Tx) -> Json:
            driven.clear()  # a transaction may be tried twice
            request = find_request(tx, request_id)
            if request.status != RequestStatus.OPEN:
                raise self.lost(tx, request)
            if request.expires_at is not None and request.expires_at <= at:
                settle(tx, request, RequestStatus.EXPIRED, {"decision": "expired", "by": "refold"}, at)
                return {"expired": True}
            resolution = {name: value for name, value in said(request).items() if value is not None}
            answers = resolution.get("answers", ())
            settle(tx, request, RequestStatus.RESOLVED, resolution, at, command_id=command_id, answers=answers)
            resumed, driven[:] = self._go_on(tx, request, turn_id)
            return {"resumed": resumed}

        if command_id is None:
            done = await self._store.write(effect)
        else:
            done, _ = await self._ledger.apply(command_id, verb, params, effect, at=at)
        request = await self.get(request_id)
        for opened in driven:
            self._supervisor.drive(opened.run, opened.history)
        self._desk.ring(request)
        if done.get("expired"):
            raise await self._store.read(lambda reader: self.lost(reader, request))
        return Settled(request=request, resumed=done["resumed"])

    def _go_on(self, tx: Tx, request: RequestRow, turn_id: str) -> tuple[bool, list[Opened]]:
        """Whether the Run goes on by the answer, and the Run to drive after the commit if that resumes it.

        A running one is told after the commit. An interrupted one is resumed, or once its Session is idle. One that can
        not be resumed now keeps the answer: whoever resumes it later goes on from it.
        """
        run = tx.get(RunRecord, request.run)
        assert run is not None, "a request is made with its Run, and goes with it"
        if run.status != RunStatus.INTERRUPTED:
            return run.status == RunStatus.RUNNING, []
        if not self._resume_on_decision:
            return False, []
        if find_session(tx, request.session_id).active_run is not None:
            tx.update(RunRecord, (run.n,), resume_wanted=turn_id)
            return False, []
        try:
            return True, [self._runs.open_resume(tx, run.run_id, self._runs.opening("decision", turn_id))]
        except (Conflict, Unprocessable) as no:  # raised before anything is written
            log.warning("run_not_resumed_by_decision", run_id=run.run_id, kind=no.kind, error=no.message)
            return False, []

    def lost(self, reader: Reader, request: RequestRow) -> Conflict:
        """The loser's answer: with what was decided, by whom, and where the view shows it."""
        lost = already_settled(request)
        assert request.settled is not None, "only an open request has no settlement"
        session = find_session(reader, request.session_id)
        shown_at = self._log.cursor(reader, session, Position(request.settled, 0))
        cursor = shown_at or self._log.earliest(reader, session)
        resolution = decode(request.resolution_json or "{}")
        decision, by = resolution["decision"], resolved_by(resolution)
        lost.data["resolution"] = {"decision": decision, "resolved_by": by, "view_cursor": cursor}
        if request.kind == "input":
            lost.data["settlement"] = {"outcome": decision, "view_cursor": cursor}
        return lost


def find_request(reader: Reader, request_id: str) -> RequestRow:
    """The record of a request; raises NotFound."""
    found = reader.find(RequestRow, request_id=request_id)
    if not found:
        raise NotFound(f"there is no request {request_id[:80]!r}", kind="request_not_found", request_id=request_id[:80])
    return found[0]


def answered(questions: list[Json], answers: list[Json]) -> tuple[Json, list[Json]]:
    """The value that the flow gets, and the answers as they are kept and shown, in the order of the questions.

    The value is the one question's answer (a label, labels or a text), or the list of all of them. Raises
    InvalidRequest (`user_input_answer_invalid`).
    """
    kept = partly_answered(questions, answers)
    if len(kept) != len(questions):
        raise _invalid("answer every question once")
    values = [next(answer[form] for form in _FORMS if form in answer) for answer in kept]
    return (values[0] if len(values) == 1 else values), kept


def partly_answered(questions: list[Json], answers: list[Json]) -> list[Json]:
    """The answers to some of the questions as they are kept, in the order of the questions. Raises InvalidRequest."""
    given = {encode(each.get("questionId")): each for each in answers if isinstance(each, dict)}
    named = {encode(question["id"]): question for question in questions}
    if len(given) != len(answers) or not given.keys() <= named.keys():
        raise _invalid("answer every question once")
    return [_kept(question, given[name]) for name, question in named.items() if name in given]


def _kept(question: Json, answer: Json) -> Json:
    forms = [form for form in _FORMS if form in answer]
    if len(forms) != 1 or not answer.keys() <= {"questionId", "note", *_FORMS}:
        raise _invalid(f"an answer has questionId, exactly one of {', '.join(_FORMS)}, and maybe a note")
    _FORMS[forms[0]](question, answer[forms[0]])
    if "note" in answer:
        _text(question, answer["note"])
    return answer


def _text(question: Json, text: Json) -> None:
    if not isinstance(text, str) or len(text) > FREE_TEXT_CHARS:
        raise _invalid(f"freeText and note are texts of at most {FREE_TEXT_CHARS} characters")


def _label(question: Json, label: Json) -> None:
    if question["selection"]["mode"] != "single":
        raise _invalid("this question takes selectedLabels")
    _check_offered(question, [label])


def _labels(question: Json, labels: Json) -> None:
    if question["selection"]["mode"] != "multiple":
        raise _invalid("this question takes one selectedLabel")
    if not isinstance(labels, list) or not labels:
        raise _invalid("selectedLabels is a list of one label or more")
    _check_offered(question, labels)


def _check_offered(question: Json, labels: list[Json]) -> None:
    offered = [option["label"] for option in question["options"]]
    if any(label not in offered for label in labels) or any(labels.count(label) > 1 for label in labels):
        raise _invalid(f"choose from {', '.join(offered) or 'nothing: answer with freeText'}, each once")


_FORMS: Final[Mapping[str, Callable[[Json, Json], None]]] = {
    "selectedLabel": _label,
    "selectedLabels": _labels,
    "freeText": _text,
}
"""The forms an answer may have, and what checks each."""


def _invalid(text: str) -> RefoldError:
    return InvalidRequest(text, kind="user_input_answer_invalid")


def pointer(request: RequestRow, opened: Json) -> Json:
    """How an answer points at an open request."""
    name = "approvalId" if request.kind == "approval" else "userInputId"
    kind = "approval" if request.kind == "approval" else "userInput"
    return {"kind": kind, name: request.request_id, "viewCursor": opened["viewCursor"]}
