"""Rows, a Run, and the factory of stores that the stores' tests write them to.

`next_step` plays the driver: it reads how the Run stands and makes the commit that a driver would make then, so a test
goes on after a reopen, a refusal or a power loss without keeping anything in mind.

Not here: agents and flows (a step's output is its number), and whether what is stored is right (`store.audit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, Final, Protocol, TypeVar, get_args, get_type_hints

import msgspec

from refold import view
from refold.canonical import digest, encode
from refold.records import (
    AttemptRow,
    AttemptStatus,
    CutRow,
    DecisionRow,
    LogRecord,
    LogType,
    ReplayRow,
    Row,
    RunRecord,
    RunStatus,
    SessionRecord,
    TaskRecord,
    ValueRow,
    genesis,
    seal,
)
from refold.store import AttemptEnd, AttemptOpen, Reader, StepCommit, Store, Tx

R = TypeVar("R", bound=Row)

SHARED: Final = ValueRow(digest=digest("shared"), body="shared")
"""The long value that every step names: stored by the first commit, met again by all others."""

_EMPTY: Final[Mapping[Any, Any]] = {int: 0, str: "", bytes: b"", bool: False}
_HARD: Final[Mapping[Any, Any]] = {int: 2**53 + 1, str: 'é\0"𝕏', bytes: b"\x00\xff", bool: True}


# -- rows -------------------------------------------------------------------------------------------------------------


def sample(kind: type[R], /, **members: Any) -> R:
    """A row of `kind` with these members; the rest is empty, so that a new member breaks no test."""
    return kind(**{name: _empty(hint) for name, hint in get_type_hints(kind).items()} | members)


def _empty(hint: Any) -> Any:
    return None if NoneType in get_args(hint) else _EMPTY[hint]


def filled(kind: type[R], /, salt: int = 0, **members: Any) -> R:
    """A row with something hard to keep in every member; another `salt` is another row in all of them but flags."""
    return kind(**{name: _hard(hint, salt) for name, hint in get_type_hints(kind).items()} | members)


def _hard(hint: Any, salt: int) -> Any:
    match _HARD[_plain(hint)]:
        case bool():
            return True
        case int() as number:
            return number + salt
        case str() as text:
            return text + str(salt)
        case data:
            return data + b"%d" % salt


def _plain(hint: Any) -> Any:
    """The type of a member's values, None apart."""
    return next(each for each in get_args(hint) or [hint] if each is not NoneType)


def note(text: str) -> LogRecord:
    """A log record that says `text`."""
    return LogRecord(type=LogType.SESSION_RESUMED, at=7, body={"text": text})


class Undone(Exception):
    """What a test raises inside its own write, to undo it."""


def fail() -> None:
    """Raises Undone, where only an expression can stand."""
    raise Undone


# -- stores -----------------------------------------------------------------------------------------------------------


class StoreFactory(Protocol):
    """Opens one and the same store, and reaches around it."""

    async def open(self) -> Store:
        """The store as it stands. The one opened before was closed, or its process died."""
        ...

    def raw_get(self, kind: type[R], *key: Any) -> R | None:
        """The row with this primary key as it lies on the disk, not asking the store."""
        ...

    def raw_set(self, kind: type[Row], key: tuple[Any, ...], row: Row | None) -> None:
        """Puts `row` in the place of the row with this primary key, behind the store's back; None removes that row."""
        ...


async def reopened(factory: StoreFactory, store: Store) -> Store:
    """Closes `store` and opens it again."""
    await store.close()
    return await factory.open()


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


async def cut(store: Store, run_n: int) -> None:
    """Appends the row of a rerun-from that retires nothing."""

    def append(tx: Tx) -> None:
        run = tx.get(RunRecord, run_n)
        assert run is not None, "begun before"
        place = {"run": run.n, "ordinal": run.rows + 1, "generation": run.generation, "epoch": run.epoch}
        row = seal(run.chain, sample(CutRow, retired_json="[]", **place))
        tx.insert(row)
        tx.update(RunRecord, (run.n,), rows=row.ordinal, chain=row.hash)

    await store.write(append)


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
    output = {"lane_json": "[]", "step_output_json": encode(attempt.ordinal), "created_at": at}
    return seal(run.chain, msgspec.structs.replace(row, **output))


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
