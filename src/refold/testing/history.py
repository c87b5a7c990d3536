"""A Run as the stores' tests write it, and the audit that whatever is stored has to pass.

`next_step` plays the driver: it reads how the Run stands and makes the commit that a driver would make then, so a test
goes on after a reopen, a refusal or a power loss without keeping anything in mind. `audit` reads a whole store and says
in words what does not fit together; it knows nothing of how the rows came there.

Not here: agents and flows. A step's output is its number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_type_hints

from refold import view
from refold.canonical import digest, encode
from refold.errors import StoreDamaged
from refold.records import (
    AttemptRow,
    AttemptStatus,
    CutRow,
    DecisionRow,
    LogType,
    ReplayRow,
    Row,
    RunRecord,
    RunStatus,
    SessionRecord,
    TaskRecord,
    ValueRow,
    genesis,
    log_hash,
    seal,
)
from refold.store import AttemptEnd, AttemptOpen, Reader, StepCommit, Store, Tx, verify_replay

R = TypeVar("R", bound=Row)

SHARED: Final = ValueRow(digest=digest("shared"), body="shared")
"""The long value that every step names: stored by the first commit, met again by all others."""

_EMPTY: Final[dict[Any, Any]] = {int: 0, str: "", bytes: b"", bool: False}


def sample(kind: type[R], **members: Any) -> R:
    """A row of `kind` with these members; the rest is empty, so that a new member breaks no test."""
    return kind(**{name: _empty(hint) for name, hint in get_type_hints(kind).items()} | members)


def _empty(hint: Any) -> Any:
    return None if isinstance(hint, UnionType) and NoneType in get_args(hint) else _EMPTY[hint]


# -- writing ----------------------------------------------------------------------------------------------------------


async def begin(store: Store, name: str = "a", **members: Any) -> RunRecord:
    """Creates a Task, its Session and a Run that a driver of epoch 1 carries."""
    return await store.write(lambda tx: begin_in(tx, name, **members))


def begin_in(tx: Tx, name: str, **members: Any) -> RunRecord:
    """`begin`, inside a transaction."""
    task = tx.insert(sample(TaskRecord, task_id=f"T-{name}", session_id=f"S-{name}"))
    session = tx.insert(
        sample(SessionRecord, session_id=f"S-{name}", task=task.n, chain=genesis(f"S-{name}"), held=True)
    )
    standing: dict[str, Any] = {"status": RunStatus.RUNNING, "epoch": 1, "generation": 1}
    owners = {"task": task.n, "task_id": task.task_id, "session": session.n, "session_id": session.session_id}
    run = sample(RunRecord, run_id=f"R-{name}", chain=genesis(f"R-{name}"), **owners, **standing | members)
    return tx.insert(run)


async def advance(store: Store, run_n: int) -> StepCommit:
    """Commits the Run's next step and returns it; raises what the commit raises."""
    step = await store.read(lambda reader: next_step(reader, run_n))
    await store.commit(step)
    return step


def next_step(reader: Reader, run_n: int, **changes: Any) -> StepCommit:
    """The commit that a driver makes next: the open attempt passes, a lane is decided, another attempt opens."""
    run = reader.get(RunRecord, run_n)
    assert run is not None, "begun before"
    attempts = reader.find(AttemptRow, run=run_n)
    at, epoch = 1000 + len(attempts), changes.get("epoch", run.epoch)
    passes = [_passed(run, attempt, epoch, at) for attempt in attempts if attempt.ended_at is None]
    decisions = [_decided(run, row, at) for row in passes]
    members: dict[str, Any] = {
        "run": run.n,
        "session": run.session,
        "epoch": epoch,
        "at": at,
        "passes": tuple(passes),
        "decisions": tuple(decisions),
        "rows_after": run.rows + len(passes) + len(decisions),
        "chain_after": decisions[-1].hash if decisions else run.chain,
        "ends": tuple(_ended(run, attempt, at) for attempt in attempts if attempt.ended_at is None),
        "opens": (_opened(run, len(attempts) + 1, epoch, at),),
        "values": (SHARED,),
    }
    return StepCommit(**members | changes)


def _passed(run: RunRecord, attempt: AttemptRow, epoch: int, at: int) -> ReplayRow:
    asked = {name: getattr(attempt, name) for name in ("run", "generation", "step_ref", "input_hash", "occurrence")}
    row = sample(ReplayRow, ordinal=run.rows + 1, epoch=epoch, **asked)
    return seal(run.chain, _replace(row, lane_json="[]", step_output_json=encode(attempt.ordinal), created_at=at))


def _decided(run: RunRecord, after: ReplayRow, at: int) -> DecisionRow:
    place = {"run": run.n, "ordinal": after.ordinal + 1, "generation": after.generation, "epoch": after.epoch}
    return seal(after.hash, sample(DecisionRow, lane_json="[]", fork=after.ordinal, created_at=at, **place))


def _ended(run: RunRecord, attempt: AttemptRow, at: int) -> AttemptEnd:
    record = view.step_completed(
        at,
        run=run.n,
        turn_id="turn",
        step_id=attempt.step_id,
        origin=attempt.opened,
        outcome=AttemptStatus.PASSED,
        ms=at - attempt.started_at,
    )
    return AttemptEnd(ordinal=attempt.ordinal, status=AttemptStatus.PASSED, record=record)


def _opened(run: RunRecord, ordinal: int, epoch: int, at: int) -> AttemptOpen:
    step_id, input_hash = f"ST-{run.run_id}-{ordinal}", digest(ordinal)
    record = view.step_dispatched(
        at,
        run=run.n,
        turn_id="turn",
        step_id=step_id,
        ref="agent",
        args=encode(ordinal),
        attempt=1,
        occurrence=0,
        lane=(),
        input_hash=input_hash,
    )
    asked = {"step_id": step_id, "step_ref": "agent", "input_hash": input_hash, "generation": run.generation}
    attempt = sample(AttemptRow, run=run.n, ordinal=ordinal, epoch=epoch, attempt=1, started_at=at, **asked)
    return AttemptOpen(attempt=attempt, record=record)


def _replace(row: R, **changes: Any) -> R:
    return type(row)(**{name: getattr(row, name) for name in row.__struct_fields__} | changes)


# -- reading ----------------------------------------------------------------------------------------------------------


def audit(reader: Reader) -> list[str]:
    """What does not fit together in a store, in words; empty for one that keeps the laws."""
    return [said for check in _CHECKS for said in check(reader)]


def replay_rows(reader: Reader, run_n: int) -> list[ReplayRow | DecisionRow | CutRow]:
    """All that the chain of a Run covers, in its order."""
    rows = [row for kind in (ReplayRow, DecisionRow, CutRow) for row in reader.find(kind, run=run_n)]
    return sorted(rows, key=lambda row: row.ordinal)


def _logs_are_dense_and_chained(reader: Reader) -> Iterator[str]:
    for session in reader.find(SessionRecord):
        seq, chain = 0, genesis(session.session_id)
        for row in reader.log(session.n, 0):
            seq += 1
            if row.seq != seq or log_hash(chain, row) != row.hash:
                yield f"{session.session_id}: log row {row.seq} does not follow row {seq - 1}"
            seq, chain = row.seq, row.hash
        if (seq, chain) != (session.seq, session.chain):
            yield f"{session.session_id}: its log ends at {seq}, its head says {session.seq}"


def _replay_logs_are_sealed(reader: Reader) -> Iterator[str]:
    for run in reader.find(RunRecord):
        try:
            verify_replay(run, replay_rows(reader, run.n))
        except StoreDamaged as damage:
            yield damage.message


def _epochs_never_fall(reader: Reader) -> Iterator[str]:
    """R4: once a driver has written, nothing of an older one follows."""
    for run in reader.find(RunRecord):
        for rows in (replay_rows(reader, run.n), reader.find(AttemptRow, run=run.n)):
            epochs = [row.epoch for row in rows]
            if epochs != sorted(epochs) or any(epoch > run.epoch for epoch in epochs):
                yield f"{run.run_id} of epoch {run.epoch}: rows of epochs {epochs}"


def _passes_are_what_passed(reader: Reader) -> Iterator[str]:
    """Laws 3 and 5: a step has a row in the replay log if, and only if, its attempt passed."""
    for run in reader.find(RunRecord):
        attempts = reader.find(AttemptRow, run=run.n)
        passed = sorted(_asked(attempt) for attempt in attempts if attempt.status == AttemptStatus.PASSED)
        logged = sorted(_asked(row) for row in reader.find(ReplayRow, run=run.n))
        if passed != logged:
            yield f"{run.run_id}: {len(passed)} attempts passed, {len(logged)} rows were logged: {passed} ≠ {logged}"


def _attempts_are_shown(reader: Reader) -> Iterator[str]:
    """Law 3: no attempt without the record that opens it, no end without the one that closes it."""
    for run in reader.find(RunRecord):
        log = reader.log(run.session, 0)
        opened = {row.seq: row.item_id for row in log if row.type == LogType.STEP_DISPATCHED}
        closed = {row.origin for row in log if row.type == LogType.STEP_COMPLETED}
        for attempt in reader.find(AttemptRow, run=run.n):
            if opened.get(attempt.opened) != attempt.step_id:
                yield f"{run.run_id}: attempt {attempt.ordinal} is opened by no record"
            if (attempt.ended_at is not None) != (attempt.opened in closed):
                yield f"{run.run_id}: attempt {attempt.ordinal} and its record disagree on whether it is over"


def _asked(row: AttemptRow | ReplayRow) -> tuple[int, str, str, int]:
    return row.generation, row.step_ref, row.input_hash, row.occurrence


_CHECKS: Final[tuple[Callable[[Reader], Iterator[str]], ...]] = (
    _logs_are_dense_and_chained,
    _replay_logs_are_sealed,
    _epochs_never_fall,
    _passes_are_what_passed,
    _attempts_are_shown,
)
