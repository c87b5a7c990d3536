"""Activations: how a drive of a Run opens and closes, as functions of one transaction.

An activation is a turn of the Run's Session: it opens with the Run becoming `running` and closes with it becoming
anything else. Both happen here and nowhere else, so that status, Task, Session, log and queue move in one commit:

* opening takes the Session (one activation at a time), raises the epoch and appends the record that opens the turn;
* closing ends what the activation left open, appends the record that closes the turn, gives the Session back, and, for
  the ends that say so, launches the next pending Run of the queue.

Not here: whether it may happen (`flowir.lifecycle`), the steps in between (`driver`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import msgspec

from refold import view
from refold.canonical import decode, encode_known
from refold.engine.desk import retire_requests
from refold.errors import Fenced, SessionBusy, StoreDamaged
from refold.flowir.lifecycle import TERMINAL, Verb, next_status
from refold.flowir.outputs import Outputs
from refold.records import (
    ActivationRow,
    AttemptRow,
    AttemptStatus,
    CutRow,
    LogRecord,
    RunRecord,
    RunStatus,
    SessionRecord,
    TaskRecord,
    seal,
)
from refold.store import Tx, append_log, expanded, put_json, put_launch, put_value, with_launch

Json = Any

LAUNCHES_NEXT: Final = frozenset({Verb.FINISH, Verb.FAIL, Verb.CANCEL})
"""The ends after which the queue goes on by itself; after an interruption it is held until an operator's kick."""

_QUIET: Final = frozenset({AttemptStatus.PASSED, AttemptStatus.SKIPPED})
"""How an attempt ended that a closed workflow item does not list."""

PREVIOUS_LEVELS: Final = 8
"""How many turns back `$.previous.previous…` reaches: without a bound every turn would carry all turns before it."""

PREVIOUS_BYTES: Final = 64 * 1024
"""How long `$.previous` may be, as text, before copies of earlier turns are taken out of it."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """How an activation begins: the turn it is, the command that woke it, the text that came with it."""

    turn_id: str
    command_id: str
    trigger: str
    text: str | None = None
    display: str | None = None


class Closed(NamedTuple):
    """What the end of an activation leaves."""

    run: RunRecord
    """The Run as it now stands, with its whole result in it, and its launch snapshot as the caller's record had it."""
    launched: RunRecord | None
    """The next Run of the queue, if that was launched."""


def session_of(tx: Tx, run: RunRecord) -> SessionRecord:
    """The Session row of `run`."""
    session = tx.get(SessionRecord, run.session)
    if session is None:
        raise StoreDamaged(f"run {run.run_id} names session {run.session_id}, which is not stored", run_id=run.run_id)
    return session


def require_idle(tx: Tx, run: RunRecord, session: SessionRecord | None = None) -> SessionRecord:
    """The Session row of `run`; raises SessionBusy if another activation holds it. `session`: see `open_activation`."""
    session = session or session_of(tx, run)
    if session.active_run is not None:
        holder = tx.get(RunRecord, session.active_run)
        busy = holder.run_id if holder else None
        raise SessionBusy(f"session {run.session_id} is busy with run {busy}; wait for it or cancel it", run_id=busy)
    return session


def open_activation(
    tx: Tx, run: RunRecord, verb: Verb, opening: Opening, at: int, session: SessionRecord | None = None
) -> RunRecord:
    """Opens the next activation of `run` and returns its record as it now stands, with its launch snapshot in it.

    `session` is the Session's row, from callers that have just read it. Raises SessionBusy if another activation holds
    it, Conflict if the table has no such step, StoreDamaged.
    """
    status, session = next_status(run.status, verb), require_idle(tx, run, session)
    run = with_launch(tx, run)
    (row,) = append_log(
        tx,
        session.n,
        [_turn_record(tx, run, verb, opening, at)],
        head=session.head,
        active_run=run.n,
        active_turn=opening.turn_id,
        held=False,
        launched=session.launched + (verb is Verb.LAUNCH),
    )
    running = _change_run(
        tx,
        run,
        status=status,
        waiting_on=None,
        epoch=run.epoch + 1,
        activation=run.activation + 1,
        turn_id=opening.turn_id,
        woken_by=opening.trigger,
        resume_wanted=None,
        opened=row.seq,
        result_json=None,
        updated_at=at,
        activated_at=at,
        started_at=run.started_at if run.started_at is not None else at,
        ended_at=None,
    )
    if run.result_json is not None:  # the record makes room for the next result; its history keeps this one
        tx.update(ActivationRow, (run.n, run.activation), result_json=run.result_json)
    tx.insert(
        ActivationRow(
            run=run.n,
            activation=running.activation,
            generation=running.generation,
            epoch=running.epoch,
            verb=verb,
            turn_id=opening.turn_id,
            opened=row.seq,
            closed=None,
            opened_at=at,
            input_json=None,
            status=None,
            result_json=None,
            closed_at=None,
        )
    )
    tx.update(TaskRecord, (run.task,), status=status, updated_at=at)
    return running


def begin_generation(tx: Tx, run: RunRecord, retired: list[list[int]], input_json: str, at: int) -> RunRecord:
    """Begins a generation of `run`: appends the cut that retires rows, and takes a new launch snapshot.

    Nothing is deleted; `retired` names ordinals as `CutRow` does. The caller opens the activation in the same commit.
    """
    cut = seal(
        run.chain,
        CutRow(
            run=run.n,
            ordinal=run.rows + 1,
            generation=run.generation + 1,
            epoch=run.epoch + 1,
            retired_json=encode_known(retired),
            created_at=at,
        ),
    )
    tx.insert(cut)
    retire_requests(tx, run, at)
    begun = _change_run(
        tx,
        run,
        generation=cut.generation,
        rows=cut.ordinal,
        chain=cut.hash,
        input_json=put_launch(tx, run.n, input_json),
    )
    tx.update(ActivationRow, (run.n, run.activation), input_json=run.input_json)
    return begun


def close_activation(
    tx: Tx,
    run: RunRecord,
    verb: Verb,
    queue: Queue,
    *,
    at: int,
    result: Json,
    outputs: Outputs | None = None,
    reason: str = "",
    go_on: bool | None = None,
) -> Closed:
    """Closes the activation of `run` as it stands in the store, and launches the next Run of the queue if one may go.

    `result` is the final ctx, or `{"error": text}`; what it holds of the logged `outputs` is not stored once more.
    `reason` says briefly why there is no final ctx. Raises Fenced if the Run is no longer in that activation. `go_on`
    says whether the queue launches in the same commit; without it the end decides (`LAUNCHES_NEXT`).
    """
    now = tx.get(RunRecord, run.n)
    if now is None or (now.status, now.epoch) != (RunStatus.RUNNING, run.epoch):
        raise Fenced(f"run {run.run_id} is no longer in activation {run.activation}", run_id=run.run_id)
    status = next_status(now.status, verb)
    goes_on = verb in LAUNCHES_NEXT if go_on is None else go_on
    result_json = encode_known(result)
    splice = None if outputs is None else partial(outputs.splice, result, result_json)
    stored = put_json(tx, result_json, now.n, splice)  # first: the answer that the record names may be the same text
    records, children = _end_attempts(tx, now, at)
    if verb is not Verb.INTERRUPT:  # a request outlives a crash, and is asked again under the same id
        retire_requests(tx, now, at)
    session = session_of(tx, now)  # last: a request that is retired appends
    idle = {"active_run": None, "active_turn": None, "held": not goes_on, "turns": session.turns + 1}
    closing = _closing(tx, now, status, result, result_json, reason, children, at)
    end = append_log(tx, session.n, [*records, closing], head=session.head, **idle)[-1]
    closed = _change_run(
        tx,
        now,
        status=status,
        waiting_on=None,
        result_json=stored,
        updated_at=at,
        ended_at=at if status in TERMINAL else None,
    )
    tx.update(ActivationRow, (now.n, now.activation), status=status, closed=end.seq, closed_at=at)
    tx.update(TaskRecord, (now.task,), status=status, updated_at=at)
    whole = msgspec.structs.replace(closed, input_json=run.input_json, result_json=result_json)
    if not goes_on:
        return Closed(whole, None)
    session = msgspec.structs.replace(session, seq=end.seq, chain=end.hash, updated_at=at, **idle)
    return Closed(whole, queue.launch_next(tx, session, at))


def cancel_idle(tx: Tx, run: RunRecord, at: int) -> None:
    """Cancels a Run that has no activation: a pending one leaves the queue, an interrupted one will not be resumed.

    Raises Conflict for one that is done or failed.
    """
    status = next_status(run.status, Verb.CANCEL)
    if run.status == RunStatus.PENDING and snapshot(with_launch(tx, run))["kick"].get("text") is not None:
        unqueued = view.turn_unqueued(at, run=run.n, turn_id=turn_of(run), command=turn_of(run))
        append_log(tx, run.session, [unqueued])
    retire_requests(tx, run, at)
    result = encode_known({"error": "cancelled"})
    _change_run(tx, run, status=status, waiting_on=None, result_json=result, updated_at=at, ended_at=at)
    # A Task stands as its Run that was activated last: a queued turn that is taken back must not end the running one.
    if run.opened >= max(each.opened for each in tx.find(RunRecord, session=run.session)):
        tx.update(TaskRecord, (run.task,), status=status, updated_at=at)


_READ_AT_ONCE: Final = 4
"""Runs in line that are read together: mostly the first can go, and thousands may stand behind it."""


class Queue:
    """Which pending Run is launched next: the oldest of an idle Session, while fewer than `max_running` run."""

    def __init__(self, max_running: int = 200) -> None:
        self._max_running = max_running

    def launch_next(self, tx: Tx, session: SessionRecord, at: int) -> RunRecord | None:
        """Launches a pending Run of this Session, else one of another that waits for capacity; None if none may go.

        `session` is the row of the Session as it now stands, idle. A Run that a decision wants resumed goes before all
        of them. One that only capacity holds back says so from then on.
        """
        if session.launched > 1:  # else none but the one that has just ended was ever launched, and none waits for it
            for run in tx.find(RunRecord, session=session.n, status=RunStatus.INTERRUPTED):
                if run.resume_wanted is not None:
                    opening = Opening(turn_id=run.resume_wanted, command_id=run.resume_wanted, trigger="decision")
                    return open_activation(tx, run, Verb.RESUME, opening, at, session)
        if not tx.find(RunRecord, status=RunStatus.PENDING, limit=1):  # nearly always: one look instead of two
            return None
        for run in tx.find(RunRecord, session=session.n, status=RunStatus.PENDING, limit=1):
            return self.launch(tx, run, at, session)
        return self.launch_waiting(tx, at)

    def launch_waiting(self, tx: Tx, at: int) -> RunRecord | None:
        """Launches a Run that only capacity held back: its Session is idle, and not held; None if none may go.

        What every end owes the others, also one that holds its own Session.
        """
        after = 0
        while waiting := tx.find(
            RunRecord, status=RunStatus.PENDING, waiting_on="capacity", after=after, limit=_READ_AT_ONCE
        ):
            for run in waiting:
                session = session_of(tx, run)
                if session.active_run is None and not session.held:
                    return self.launch(tx, run, at, session)
            after = waiting[-1].n
        return None

    def launch(self, tx: Tx, run: RunRecord, at: int, session: SessionRecord) -> RunRecord | None:
        """Launches this pending Run, whose Session stands like this, idle, if there is capacity."""
        if tx.count(RunRecord, status=RunStatus.RUNNING) < self._max_running:
            told = with_launch(tx, run)
            return open_activation(tx, _completed(tx, told, session), Verb.LAUNCH, _queued_opening(told), at, session)
        tx.update(RunRecord, (run.n,), waiting_on="capacity")
        return None


def blueprint_name(run: RunRecord) -> str:
    """The Blueprint of the Run's snapshot as people see it: `id`, or `inline:<version>` where it has none."""
    blueprint = snapshot(run)["blueprint"]
    return blueprint["id"] if blueprint.get("id") else f"inline:{blueprint['version']}"


def snapshot(run: RunRecord) -> Mapping[str, Json]:
    """The launch snapshot of a Run that has one, read from a record that has it in it (`store.with_launch`)."""
    assert run.input_json is not None, "callers have asked lifecycle first"
    return _decoded(run.input_json)


@lru_cache(maxsize=1)
def _decoded(text: str) -> Mapping[str, Json]:
    """A launch asks several things about one snapshot, one after the other. Nobody changes what it is given."""
    return decode(text)


def turn_of(run: RunRecord) -> str:
    """The present turn of a Run; of a pending one, the turn that it will be."""
    assert run.turn_id is not None, "a kick names a turn, and so does every activation"
    return run.turn_id


def answer_text(ctx: Json, text: str) -> str:
    """The final answer that people see: `$.output` as text, else as JSON, else the ctx as JSON, its `text`.

    Source of the rule: design §7.
    """
    said = ctx.get("output", ctx) if isinstance(ctx, Mapping) else ctx
    if isinstance(said, str):
        return said
    return text if said is ctx else encode_known(said)


def _turn_record(tx: Tx, run: RunRecord, verb: Verb, opening: Opening, at: int) -> LogRecord:
    members: dict[str, Any] = {
        "run": run.n,
        "turn_id": opening.turn_id,
        "command": opening.command_id,
        "run_id": run.run_id,
        "blueprint": blueprint_name(run),
        "trigger": opening.trigger,
        "resume_from": run.run_id if verb is not Verb.LAUNCH else None,
    }
    if opening.text is None:
        return view.turn_woken(at, **members)
    return view.turn_opened(at, text=_stowed(tx, opening.text), display=opening.display, **members)


def _stowed(tx: Tx, text: str) -> view.Payload:
    """The payload of `text`; what is too long to stand in a record is stored beside it, in the same commit."""
    payload, value = view.stow(text, view.PLAIN_TEXT)
    if value is not None:
        put_value(tx, value)
    return payload


def _queued_opening(run: RunRecord) -> Opening:
    kick = snapshot(run)["kick"]
    return Opening(
        turn_id=kick["turn_id"],
        command_id=kick["command_id"],
        trigger=kick["trigger"],
        text=kick.get("text"),
        display=kick.get("display"),
    )


def _completed(tx: Tx, run: RunRecord, session: SessionRecord) -> RunRecord:
    """Fills in what only the moment of launch knows: the number of the turn and the ctx that the last done Run left."""
    launch = snapshot(run)
    if launch["kick"].get("text") is None:
        return run
    known = {"turn": session.launched + 1, "previous": _previous_ctx(tx, session.n)}
    input_json = encode_known({**launch, "init_ctx": launch["init_ctx"] | known})
    stored = put_launch(tx, run.n, input_json)
    tx.update(RunRecord, (run.n,), input_json=stored)  # a resume starts from the very same ctx
    return msgspec.structs.replace(run, input_json=input_json)


def _previous_ctx(tx: Tx, session_n: int) -> Json:
    for run in tx.find(RunRecord, session=session_n, status=RunStatus.DONE, newest_first=True, limit=1):
        text = expanded(tx, run.result_json) or "null"
        ctx = decode(text)
        return _bounded(ctx if len(text) <= PREVIOUS_BYTES else _uncopied(ctx), PREVIOUS_LEVELS)
    return None


def _bounded(ctx: Json, levels: int) -> Json:
    """The ctx with so many more turns behind it."""
    if not isinstance(ctx, dict) or "previous" not in ctx:
        return ctx
    return ctx | {"previous": _bounded(ctx["previous"], levels - 1) if levels else None}


def _uncopied(ctx: Json) -> Json:
    """The ctx with each turn before it in one place. Lanes begin with the whole ctx, and end as values in it: three of
    them would remember the turn before three times more, that one its own three times, and so on."""
    if not isinstance(ctx, dict) or "previous" not in ctx:
        return ctx
    own = ctx["previous"]
    return {name: _uncopied(own) if name == "previous" else _without(value, own) for name, value in ctx.items()}


def _without(value: Json, previous: Json) -> Json:
    if isinstance(value, list):
        return [_without(each, previous) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: None if name == "previous" and inside == previous else _without(inside, previous)
        for name, inside in value.items()
    }


def _end_attempts(tx: Tx, run: RunRecord, at: int) -> tuple[list[LogRecord], list[Json]]:
    """Ends what the activation left running: its items close as cancelled, its attempts keep no status.

    An attempt without a status is ambiguous: nobody knows how far its side effects got. With the records, the children
    that the closed workflow item lists: what was still open, and what failed.
    """
    records, children = [], []
    # Of most steps there is nothing to say: they passed at once. A later try is read whatever came of it, for it is the
    # last word on its step.
    at_once = {"status": AttemptStatus.PASSED, "attempt": 1}
    last = {attempt.step_id: attempt for attempt in tx.find(AttemptRow, run=run.n, epoch=run.epoch, but=at_once)}
    for attempt in last.values():
        status = AttemptStatus(attempt.status or AttemptStatus.CANCELLED)
        if attempt.ended_at is None:
            tx.update(AttemptRow, (run.n, attempt.ordinal), ended_at=at)
        if attempt.ended_at is None or attempt.due_at is not None:  # between two tries an item is open as well
            status = AttemptStatus.CANCELLED
            records.append(
                view.step_completed(
                    at,
                    run=run.n,
                    turn_id=turn_of(run),
                    step_id=attempt.step_id,
                    origin=attempt.opened,
                    outcome=status,
                    ms=max(0, at - attempt.started_at),
                )
            )
        if status not in _QUIET:
            shown = view.ITEM_STATUS[status]
            children.append(view.child(attempt.step_id, ref=attempt.step_ref, attempt=attempt.attempt, status=shown))
    return records, children


def _closing(
    tx: Tx, run: RunRecord, status: RunStatus, result: Json, text: str, reason: str, children: list[Json], at: int
) -> LogRecord:
    members: dict[str, Any] = {
        "run": run.n,
        "turn_id": turn_of(run),
        "origin": run.opened,
        "ms": max(0, at - run.activated_at),
        "children": children,
    }
    if status is RunStatus.DONE:
        return view.turn_completed(at, answer=_stowed(tx, answer_text(result, text)), **members)
    return view.turn_ended(
        at,
        terminal="failed" if status is RunStatus.FAILED else "cancelled",
        reason=reason,
        message=result["error"],
        **members,
    )


def _change_run(tx: Tx, before: RunRecord, **changes: Any) -> RunRecord:
    """The record with these changes, written if the Run stands as `before` says; raises Fenced."""
    if not tx.update(RunRecord, (before.n,), where={"status": before.status, "epoch": before.epoch}, **changes):
        raise Fenced(f"run {before.run_id} changed meanwhile", run_id=before.run_id)
    return msgspec.structs.replace(before, **changes)
