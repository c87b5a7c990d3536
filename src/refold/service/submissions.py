"""Submissions: what an operator says came of an attempt, and what it is told.

A submission counts once, for the attempt that it names. It is acknowledged when its outcome is on record and not
before; what follows from it is dispatched then too, so nothing is acknowledged that a crash could take back (law 1).

| what is found | answer |
|---|---|
| the attempt is on offer | its outcome, once it is durable; Unprocessable if it cannot be taken: the step waits on |
| no such step or attempt | NotFound |
| its Run has ended | Conflict `run_over`, with the Run's status (law 8) |
| the attempt has its answer already | Conflict `already_submitted`, with what was accepted |
| the attempt is over without one, or another has taken its place | Conflict `attempt_stale`, with the `current` one |
| the attempt is at work, and not an operator's | Conflict `not_offered` |

Not here: what an answer becomes (`engine.agents.operator`), who may submit (`server.guard`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from refold.canonical import decode
from refold.engine.agents.operator import Key, Offers, Said, report_of
from refold.engine.retries import status_of
from refold.engine.supervisor import Supervisor
from refold.errors import CommitFailed, Conflict, NotFound, RefoldError
from refold.flowir.lifecycle import TERMINAL
from refold.records import AttemptRow, AttemptStatus, ReplayRow, RunRecord, parse_id
from refold.service.runs import find_run
from refold.session import Hub
from refold.store import Reader, Store

Json = Any

SAID: Final[Mapping[str, Said]] = {
    AttemptStatus.PASSED: "pass",
    AttemptStatus.SKIPPED: "skip",
    AttemptStatus.BLOCKED: "blocked",
    AttemptStatus.FAILED: "fail",
}
"""What an attempt was told that ended so. One that ended otherwise was told nothing."""


class Submission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is submitted. `value` is the answer, or under `fail` the reason; `parts` are further named values."""

    step_id: str
    attempt: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    outcome: Said
    value: Json = None
    parts: dict[str, Json] | None = None


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What is acknowledged: the attempt, and how it ended."""

    run_id: str
    step_id: str
    attempt: int
    status: str


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt on record, its Run, and what was accepted for it or is done in its place."""

    run: RunRecord
    attempt: AttemptRow
    accepted: Json
    current: Json

    @property
    def ids(self) -> dict[str, Json]:
        """What every refusal names, with how the Run stands."""
        attempt = self.attempt
        ids = {"run_id": self.run.run_id, "step_id": attempt.step_id, "attempt": attempt.attempt}
        return ids | {"status": str(self.run.status)}


class Submissions:
    """Takes submissions."""

    def __init__(self, store: Store, supervisor: Supervisor, offers: Offers, hub: Hub, limit: int) -> None:
        self._store = store
        self._supervisor = supervisor
        self._offers = offers
        self._hub = hub
        self._limit = limit
        self._settling: set[Key] = set()

    async def submit(self, said: Submission, by: str | None = None) -> Accepted:
        """Settles an attempt. `by` is who submits: an operator's id, or whoever else has a token.

        Whoever submits first is heard, also an operator whose lease ran out: what was done is not thrown away.
        Raises as the table above says; CommitFailed if the store could not write it.
        """
        key = parse_id(said.step_id, "ST"), said.attempt
        offer = self._offers.find(*key)
        if offer is None:
            raise await self._refusal(key)
        report = report_of(offer.work, said.outcome, said.value, said.parts, self._limit)
        offer.settle(report, by)
        self._settling.add(key)
        try:
            attempt = await self._ended(offer.work.run_id, key)
        finally:
            self._settling.discard(key)
        status = status_of(report)
        if attempt.status != status:  # cancelled, timed out or cut off before it could be written
            raise await self._refusal(key)
        return Accepted(run_id=offer.work.run_id, step_id=key[0], attempt=key[1], status=status)

    async def _ended(self, run_id: str, key: Key) -> AttemptRow:
        """Waits for the end of an attempt on record. Raises CommitFailed if nobody is left who could write it."""
        run = await self._store.read(lambda reader: find_run(reader, run_id))
        bell, undriven = self._hub.open(run.session), self._supervisor.settled(run.n)
        undriven.add_done_callback(lambda _: bell.set())
        try:
            while True:
                bell.clear()
                is_driven = self._supervisor.is_driving(run.n)  # before the read: a driver writes, then goes
                (attempt,) = await self._store.read(lambda reader: _attempts(reader, key, run=run.n))
                if attempt.ended_at is not None:
                    return attempt
                if not is_driven:
                    raise CommitFailed(f"the answer to step {key[0]} could not be written; submit it again later")
                await bell.wait()
        finally:
            self._hub.close(run.session, bell)
            undriven.cancel()

    async def _refusal(self, key: Key) -> RefoldError:
        """Why an attempt that is not on offer cannot be settled, once its present submission is written."""
        found = await self._store.read(lambda reader: _find(reader, key))
        if found is None:
            return NotFound(f"there is no attempt {key[1]} of a step {key[0]}", kind="step_not_found", step_id=key[0])
        if key in self._settling:
            await self._ended(found.run.run_id, key)
            found = await self._store.read(lambda reader: _find(reader, key)) or found
        return _refused(found)


def _refused(found: _Found) -> Conflict:
    run, attempt = found.run, found.attempt
    if run.status in TERMINAL:
        return Conflict(
            f"run {run.run_id} is {run.status}; nothing is added to it",
            kind="run_over",
            **found.ids,
            accepted=found.accepted,
        )
    if attempt.status in SAID:
        return Conflict(
            f"attempt {attempt.attempt} of step {attempt.step_id} has its answer; the first one counts",
            kind="already_submitted",
            **found.ids,
            accepted=found.accepted,
        )
    if attempt.ended_at is None:
        return Conflict(
            f"attempt {attempt.attempt} of step {attempt.step_id} is not on offer",
            kind="not_offered",
            **found.ids,
        )
    return Conflict(
        f"attempt {attempt.attempt} of step {attempt.step_id} is over: {attempt.status or 'it was cut off'}",
        kind="attempt_stale",
        **found.ids,
        current=found.current,
    )


def _find(reader: Reader, key: Key) -> _Found | None:
    for attempt in _attempts(reader, key):
        run = reader.get(RunRecord, attempt.run)
        assert run is not None, "a Run is deleted together with its attempts"
        return _Found(run=run, attempt=attempt, accepted=_accepted(reader, attempt), current=_current(reader, attempt))
    return None


def _attempts(reader: Reader, key: Key, **equals: Json) -> list[AttemptRow]:
    return reader.find(AttemptRow, step_id=key[0], attempt=key[1], **equals)


def _accepted(reader: Reader, attempt: AttemptRow) -> Json:
    """What an attempt was answered; without `value` where nothing keeps it (`--replay off`)."""
    if attempt.status not in SAID:
        return None
    text = attempt.outcome_json
    if attempt.status == AttemptStatus.PASSED:
        text = next((row.step_output_json for row in reader.find(ReplayRow, run=attempt.run, **_step(attempt))), None)
    said = {"outcome": SAID[attempt.status]}
    return said if text is None else said | {"value": decode(text)}


def _current(reader: Reader, attempt: AttemptRow) -> Json:
    """The attempt of the same step that is open now, where a finished operator may take its work."""
    for other in reader.find(AttemptRow, run=attempt.run, ended_at=None, **_step(attempt)):
        return {"step_id": other.step_id, "attempt": other.attempt}
    return None


def _step(attempt: AttemptRow) -> dict[str, Json]:
    """What makes two attempts those of one step."""
    return {name: getattr(attempt, name) for name in ("generation", "step_ref", "input_hash", "occurrence")}
