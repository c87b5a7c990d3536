"""Turns of a Session: kicking one, and stopping, cancelling, unqueueing or re-entering one. A turn is an activation.

Each verb is one command: its answer, its effect and what it launches next stand in one commit; drivers are started and
stopped after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from refold.canonical import decode
from refold.engine.activation import cancel_idle, close_activation
from refold.engine.clock import Clock
from refold.engine.desk import retire_requests, settle
from refold.engine.supervisor import History, Supervisor
from refold.errors import CommandRejected, NotFound, NotInterrupted
from refold.flowir.lifecycle import TERMINAL, Verb
from refold.records import RequestStatus, RunRecord, RunStatus, SessionRecord, TaskRecord
from refold.service.blueprints import Blueprints
from refold.service.commands import Ledger, later
from refold.service.requests import Requests, find_request, partly_answered
from refold.service.runs import Runs, find_run
from refold.service.sessions import Sessions
from refold.service.tasks import Kick, Tasks
from refold.session import find_session
from refold.store import Store, Tx

Json = Any


class TurnAck(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn/start answers."""

    turn_id: str
    disposition: str


class Turns:
    """Every verb on turns, and on the workflows that they are shown as."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        supervisor: Supervisor,
        blueprints: Blueprints,
        tasks: Tasks,
        runs: Runs,
        sessions: Sessions,
        requests: Requests,
        ledger: Ledger,
    ) -> None:
        self._store = store
        self._clock = clock
        self._supervisor = supervisor
        self._blueprints = blueprints
        self._tasks = tasks
        self._runs = runs
        self._sessions = sessions
        self._requests = requests
        self._ledger = ledger

    async def start(
        self, command_id: str, params: Json, *, session_id: str, text: str, display: str | None, if_busy: str
    ) -> TurnAck:
        """Kicks the Session's Task with `text` as input. The turn id is the command id.

        While another turn runs, `queue` waits for it, `replace` cancels it and goes ahead of the queue, and `steer` is
        rejected: no agent takes input yet. Raises NotFound, Conflict (not loaded, archived), Unprocessable,
        CommandRejected.
        """
        session = await self._store.read(lambda reader: find_session(reader, session_id))
        resolved = await later(self._blueprints.resolve(await self._reference(session)))
        opening = self._tasks.opening("turn/start", command_id, text)
        if display is not None:
            opening = msgspec.structs.replace(opening, display=display)
        changes = _Changes()

        def effect(tx: Tx) -> Json:
            now = find_session(tx, session_id)
            self._sessions.require_loaded(now)  # in here: a command that was applied before keeps its answer
            if now.active_run is not None and if_busy == "steer":
                raise _rejected(command_id, "steer_unsupported", "the running agent takes no input; queue the turn")
            self._blueprints.programs.check(resolved().blueprint)
            replaces = now.active_run is not None and if_busy == "replace"
            if replaces:
                self._end(tx, now, Verb.CANCEL, "replaced", changes, go_on=False)
                now = find_session(tx, session_id)
            task = tx.get(TaskRecord, now.task)
            assert task is not None, "a Session is made with its Task"
            kick = Kick(opening=opening, override={"input": text}, ahead=replaces)
            kicked = self._tasks.kick(tx, task, now, resolved(), kick)
            changes.launched = kicked.launched
            started = kicked.run.status == RunStatus.RUNNING
            return {"turn_id": opening.turn_id, "disposition": "started" if started else "queued"}

        return TurnAck(**await self._apply(command_id, "turn/start", params, effect, changes))

    async def stop(self, command_id: str, params: Json, *, session_id: str, turn_id: str | None, verb: Verb) -> str:
        """Ends the running turn: INTERRUPT leaves its Run resumable, CANCEL ends it for good. Returns the turn id.

        The queue goes on in the same commit. Raises NotFound, CommandRejected `missing_run` if nothing runs.
        """
        changes = _Changes()

        def effect(tx: Tx) -> Json:
            session = find_session(tx, session_id)
            if session.active_run is None or turn_id not in (None, session.active_turn):
                raise _rejected(command_id, "missing_run", "no such turn is running")
            ended = session.active_turn
            self._end(tx, session, verb, "interrupted" if verb is Verb.INTERRUPT else "cancelled", changes)
            return {"turn_id": ended}

        name = "turn/interrupt" if verb is Verb.INTERRUPT else "turn/cancel"
        return (await self._apply(command_id, name, params, effect, changes))["turn_id"]

    async def interrupt_input(
        self, command_id: str, params: Json, *, session_id: str, request_id: str, answers: list[Json]
    ) -> None:
        """Takes a question back and leaves its Run resumable, all in one commit: a resume asks anew.

        `answers` are those that the person had given; they are shown, and nobody goes on from them. Raises NotFound,
        InvalidRequest, Conflict with the settlement if it is settled already.
        """
        changes = _Changes()

        def effect(tx: Tx) -> Json:
            session, request, at = find_session(tx, session_id), find_request(tx, request_id), self._clock.now_ms()
            if request.status != RequestStatus.OPEN:
                raise self._requests.lost(tx, request)
            run = tx.get(RunRecord, request.run)
            assert run is not None, "a request is made with its Run, and goes with it"
            kept = partly_answered(decode(request.questions_json), answers)
            said = {"decision": "interrupted", "answers": kept, "by": "user", "command_id": command_id}
            settle(tx, request, RequestStatus.VOIDED, said, at, command_id=command_id, answers=kept)
            retire_requests(tx, run, at, {request_id})
            if session.active_run == run.n:
                self._end(tx, session, Verb.INTERRUPT, "interrupted", changes)
            return {}

        await self._apply(command_id, "userInput/interrupt", params, effect, changes)

    async def unqueue(self, command_id: str, params: Json, *, session_id: str, turn_id: str) -> None:
        """Takes a queued turn back. Raises NotFound, CommandRejected `not_queued` for any other."""
        changes = _Changes()

        def effect(tx: Tx) -> Json:
            session, at = find_session(tx, session_id), self._clock.now_ms()
            for run in tx.find(RunRecord, session=session.n, status=RunStatus.PENDING):
                if run.turn_id == turn_id:
                    cancel_idle(tx, run, at)
                    changes.ended = run
                    return {}
            raise _rejected(command_id, "not_queued", "no such turn is queued")

        await self._apply(command_id, "turn/unqueue", params, effect, changes)

    async def cancel_workflow(self, command_id: str, params: Json, *, session_id: str, run_id: str) -> None:
        """Cancels a Run of the Session. Raises NotFound, CommandRejected `already_terminal`."""
        changes = _Changes()

        def effect(tx: Tx) -> Json:
            session, run = self._run(tx, session_id, run_id)
            if run.status in TERMINAL:
                raise _rejected(command_id, "already_terminal", f"run {run_id} is {run.status}")
            if session.active_run == run.n:
                self._end(tx, session, Verb.CANCEL, "cancelled", changes)
            else:
                cancel_idle(tx, run, self._clock.now_ms())
                changes.ended = run
            return {}

        await self._apply(command_id, "workflow/cancel", params, effect, changes)

    async def resume_workflow(self, command_id: str, params: Json, *, session_id: str, run_id: str) -> str:
        """Resumes an interrupted Run of the Session; the turn id of its new activation.

        A Run that a decision has resumed meanwhile is accepted with that activation's turn. Raises NotFound,
        SessionBusy, CommandRejected.
        """
        changes = _Changes()

        def effect(tx: Tx) -> Json:
            _, run = self._run(tx, session_id, run_id)
            if run.status != RunStatus.INTERRUPTED and run.woken_by == "decision":
                return {"turn_id": run.turn_id}
            try:
                opened = self._runs.open_resume(tx, run_id, self._runs.opening("workflow/resume", command_id))
            except NotInterrupted as no:
                raise _rejected(command_id, f"run_{no.data['status']}", no.message) from None
            changes.launched, changes.history = opened.run, opened.history
            return {"turn_id": opened.run.turn_id}

        return (await self._apply(command_id, "workflow/resume", params, effect, changes))["turn_id"]

    # -- inside -------------------------------------------------------------------------------------------------------

    async def _apply(
        self, command_id: str, verb: str, params: Json, effect: Callable[[Tx], Json], changes: _Changes
    ) -> Json:
        """Applies a command once; then stops what it ended and starts what it launched."""
        answer, _ = await self._ledger.apply(command_id, verb, params, effect, at=self._clock.now_ms())
        if changes.ended is not None:
            await self._supervisor.stop(changes.ended.n)
            self._supervisor.announce(changes.ended.n)
        if changes.launched is not None:
            self._supervisor.drive(changes.launched, changes.history)
        return answer

    def _end(
        self, tx: Tx, session: SessionRecord, verb: Verb, reason: str, changes: _Changes, *, go_on: bool = True
    ) -> None:
        assert session.active_run is not None, "the caller has looked"
        run, at = tx.get(RunRecord, session.active_run), self._clock.now_ms()
        assert run is not None, "a Session is held by a Run that exists"
        queue = self._supervisor.queue
        closed = close_activation(tx, run, verb, queue, at=at, result={"error": reason}, reason=reason, go_on=go_on)
        changes.launched = closed.launched
        changes.ended = run

    def _run(self, tx: Tx, session_id: str, run_id: str) -> tuple[SessionRecord, RunRecord]:
        session, run = find_session(tx, session_id), find_run(tx, run_id)
        if run.session != session.n:
            raise NotFound(f"there is no run {run_id} in this session", kind="run_not_found", run_id=run_id)
        return session, run

    async def _reference(self, session: SessionRecord) -> Json:
        """The Blueprint reference of the Session: its model, or the inline Blueprint that its Task was made with."""
        if not session.model_id.startswith("inline:"):
            return {"kind": "id", "id": session.model_id}
        task = await self._store.read(lambda reader: reader.get(TaskRecord, session.task))
        assert task is not None, "a Session is made with its Task"
        return decode(task.blueprint_json)


class _Changes(msgspec.Struct):
    """What a command's transaction leaves to do after its commit."""

    ended: RunRecord | None = None
    launched: RunRecord | None = None
    history: History | None = None
    """What is logged of the launched one, if that was read."""


def _rejected(command_id: str, reason: str, text: str) -> CommandRejected:
    return CommandRejected(text, reason=reason, command_id=command_id)
