"""The audit that whatever is stored has to pass: it reads a whole store and says in words what does not fit together.

It knows nothing of how the rows came there, so it judges a store after a power loss, a race or a planted fault as it
judges any other. It holds for Runs that keep their replay log (not for `--replay off`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from refold.errors import StoreDamaged
from refold.records import (
    AttemptRow,
    AttemptStatus,
    CutRow,
    DecisionRow,
    LogType,
    ReplayRow,
    RequestRow,
    RequestStatus,
    RunRecord,
    RunStatus,
    SessionRecord,
    SplicedRow,
    genesis,
    log_hash,
    output_name,
)
from refold.store.base import Reader, verify_replay
from refold.store.values import expanded, output_text, value_text, with_launch


def audit(reader: Reader) -> list[str]:
    """What does not fit together in a store, in words; empty for one that keeps the laws."""
    return [said for check in _CHECKS for said in check(reader)]


def replay_rows(reader: Reader, run_n: int) -> list[ReplayRow | DecisionRow | CutRow]:
    """All that the chain of a Run covers, in its order."""
    rows = [row for kind in (ReplayRow, DecisionRow, CutRow) for row in reader.find(kind, run=run_n)]
    return sorted(rows, key=lambda row: row.ordinal)


def logs_are_dense_and_chained(reader: Reader) -> Iterator[str]:
    """Law 10: every log row follows the one before it, and the last one is where its Session says."""
    for session in reader.find(SessionRecord):
        seq, chain = 0, genesis(session.session_id)
        rows = reader.log(session.n, max(0, session.floor - 1))
        if session.floor and rows:  # what lies before the floor was taken away: the chain is trusted to begin there
            first, *rows = rows
            seq, chain = first.seq, first.hash
        for row in rows:
            seq += 1
            if row.seq != seq or log_hash(chain, row) != row.hash:
                yield f"{session.session_id}: log row {row.seq} does not follow row {seq - 1}"
            seq, chain = row.seq, row.hash
        if (seq, chain) != (session.seq, session.chain):
            yield f"{session.session_id}: its log ends at {seq}, its head says {session.seq}"


def _replay_logs_are_sealed(reader: Reader) -> Iterator[str]:
    for run in reader.find(RunRecord):
        yield from _damage(lambda run=run: verify_replay(run, replay_rows(reader, run.n)))


def what_is_named_stands_where_it_is_said_to(reader: Reader) -> Iterator[str]:
    """An output stands once; a name that leads nowhere is a loss, although the log that holds it is sound."""
    for session in reader.find(SessionRecord):
        for row in reader.log(session.n, 0):
            name = output_name(row)
            if name is not None:
                yield from _damage(lambda name=name: output_text(reader, name))
    for run in reader.find(RunRecord):
        yield from _damage(lambda run=run: with_launch(reader, run))
        yield from _damage(lambda run=run: expanded(reader, run.result_json))
    for spliced in reader.find(SplicedRow):
        yield from _damage(lambda digest=spliced.digest: value_text(reader, digest))


def _damage(read: Callable[[], object]) -> Iterator[str]:
    try:
        read()
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
    """Laws 3 and 5: a step has a row in the replay log if, and only if, its attempt passed, or a person answered it."""
    for run in reader.find(RunRecord):
        attempts, requests = reader.find(AttemptRow, run=run.n), reader.find(RequestRow, run=run.n, consumed=True)
        passed = sorted(_asked(attempt) for attempt in attempts if attempt.status == AttemptStatus.PASSED)
        answered = {_asked(request) for request in requests if request.source == "node"}
        logged = sorted(_asked(row) for row in reader.find(ReplayRow, run=run.n) if _asked(row) not in answered)
        if passed != logged:
            yield f"{run.run_id}: {len(passed)} attempts passed, {len(logged)} rows were logged: {passed} ≠ {logged}"


def _attempts_are_shown(reader: Reader) -> Iterator[str]:
    """Law 3: no attempt without the record that opens its item, no Pass without the one that closes it."""
    for session in reader.find(SessionRecord):
        log = reader.log(session.n, 0)  # once, however many Runs it tells of
        opened = {row.seq: row.item_id for row in log if row.type in _OPENINGS}
        closed = {row.origin for row in log if row.type == LogType.STEP_COMPLETED}
        for run in reader.find(RunRecord, session=session.n):
            for attempt in reader.find(AttemptRow, run=run.n):
                if attempt.opened < session.floor:
                    continue  # retention takes records away, never attempts
                if opened.get(attempt.opened) != attempt.step_id:
                    yield f"{run.run_id}: attempt {attempt.ordinal} is opened by no record"
                if attempt.status == AttemptStatus.PASSED and attempt.opened not in closed:
                    yield f"{run.run_id}: attempt {attempt.ordinal} passed, and its item is open"
                if attempt.ended_at is None and attempt.opened in closed:
                    yield f"{run.run_id}: attempt {attempt.ordinal} is open, and its item is closed"


def _requests_end_with_their_run(reader: Reader) -> Iterator[str]:
    """Design §8: each identity is asked once, and nobody is asked for a Run that will not go on from the answer."""
    for run in reader.find(RunRecord):
        requests = reader.find(RequestRow, run=run.n)
        identities = {(_asked(each), each.source, each.digest, each.nth) for each in requests}
        if len(identities) != len(requests):
            yield f"{run.run_id}: {len(requests)} requests of {len(identities)} identities"
        for each in requests:
            if each.status == RequestStatus.OPEN and (run.status in _ENDED or each.generation != run.generation):
                yield f"{run.run_id} is {run.status}: request {each.request_id} is open"
            if not each.consumed and run.status in _ENDED:
                yield f"{run.run_id} is {run.status}: the item of request {each.request_id} is open"


def _asked(row: AttemptRow | ReplayRow | RequestRow) -> tuple[int, str, str, int]:
    return row.generation, row.step_ref, row.input_hash, row.occurrence


_OPENINGS: Final = frozenset({LogType.STEP_DISPATCHED, LogType.APPROVAL_OPENED, LogType.INPUT_OPENED})
"""The records that open the item of a step."""

_ENDED: Final = frozenset({RunStatus.DONE, RunStatus.FAILED, RunStatus.CANCELLED})

_CHECKS: Final[tuple[Callable[[Reader], Iterator[str]], ...]] = (
    logs_are_dense_and_chained,
    _replay_logs_are_sealed,
    what_is_named_stands_where_it_is_said_to,
    _epochs_never_fall,
    _passes_are_what_passed,
    _attempts_are_shown,
    _requests_end_with_their_run,
)
