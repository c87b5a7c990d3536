"""What a driver writes: rows, attempts and log records, gathered over one turn of its loop into one commit.

The scribe keeps the numbers that only one driver at a time may advance: the ordinal and chain of the replay log, the
ordinals of attempts and the count of tries per step. If a commit fails the scribe goes with its driver.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from refold import view
from refold.canonical import encode, encode_known
from refold.engine.agents import Report
from refold.engine.clock import Clock
from refold.engine.retries import status_of
from refold.flowir import Blocked, Decision, Dispatch, Failed, ReplayKey
from refold.flowir.outputs import Outputs
from refold.flowir.snapshots import Writer as SnapshotWriter
from refold.records import (
    AttemptRow,
    AttemptStatus,
    DecisionRow,
    LogRecord,
    ReplayRow,
    RequestRow,
    RunRecord,
    Sealed,
    ValueRow,
    named_output,
    seal,
)
from refold.store import AttemptEnd, AttemptOpen, Question, StepCommit

Json = Any


NO_LANE: Final = encode([])


class Try(msgspec.Struct, kw_only=True):
    """One attempt of one dispatch: what its row says, and where its item begins (`origin`, its seq once written).

    `logged` is the ordinal of its replay row, and `output` what that holds: nothing unless it has passed, and its Run
    keeps a replay log. `given` is the dispatch Ctx, once its agent was given it.
    """

    dispatch: Dispatch
    attempt: AttemptRow
    origin: int = 0
    logged: int = 0
    output: str | None = None
    given: dict[str, Json] | None = None


class Scribe:
    """Gathers what one driver writes. `take` hands it over as one StepCommit and begins anew."""

    def __init__(
        self,
        run: RunRecord,
        attempts: Iterable[AttemptRow],
        clock: Clock,
        *,
        replay: bool,
        outputs: Outputs | None = None,
    ) -> None:
        self._run = run
        self._clock = clock
        self._replay = replay
        self._rows, self._chain = run.rows, run.chain
        self._snapshots = SnapshotWriter(outputs)
        self._tries: dict[ReplayKey, int] = {}
        self.last: dict[ReplayKey, AttemptRow] = {}
        """The last attempt of each step before this activation, within the generation."""
        self._ordinal = 0
        for attempt in attempts:
            self._ordinal = max(self._ordinal, attempt.ordinal)
            if attempt.generation == run.generation:
                key = ReplayKey(attempt.step_ref, attempt.input_hash, attempt.occurrence)
                self._tries[key] = self._tries.get(key, 0) + 1
                self.last[key] = attempt
        self._begin()

    def _begin(self) -> None:
        self.opened: list[Try] = []
        self._opens: list[AttemptOpen] = []
        self._passes: list[ReplayRow] = []
        self._decisions: list[DecisionRow] = []
        self._ends: list[AttemptEnd] = []
        self._values: list[ValueRow] = []
        self._questions: list[Question] = []
        self._consumed: list[int] = []
        self._dropped: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        if self._opens or self._passes or self._ends:  # nearly always
            return False
        return not (self._decisions or self._questions or self._consumed or self._dropped)

    def take(self, waiting_on: str | None) -> tuple[StepCommit, list[Try], Collection[str]]:
        """What to commit, the attempts that it opens, and the requests to end with it; the scribe is empty again."""
        step = StepCommit(
            run=self._run.n,
            session=self._run.session,
            epoch=self._run.epoch,
            at=self._clock.now_ms(),
            passes=tuple(self._passes),
            decisions=tuple(self._decisions),
            rows_after=self._rows,
            chain_after=self._chain,
            waiting_on=waiting_on,
            ends=tuple(self._ends),
            opens=tuple(self._opens),
            questions=tuple(self._questions),
            consumed=tuple(self._consumed),
            values=tuple(self._values),
        )
        opened, dropped = self.opened, self._dropped
        self._begin()
        return step, opened, dropped

    # -- attempts -----------------------------------------------------------------------------------------------------

    def open(self, dispatch: Dispatch, before: Try | None = None, due_at: int | None = None) -> Try:
        """Opens the next attempt of a dispatch; `before` is the one that it tries again, under the same item."""
        key, at = dispatch.key, self._clock.now_ms()
        self._ordinal += 1
        self._tries[key] = tries = self._tries.get(key, 0) + 1
        attempt = AttemptRow(
            run=self._run.n,
            ordinal=self._ordinal,
            generation=self._run.generation,
            epoch=self._run.epoch,
            step_id=before.attempt.step_id if before else self._clock.mint("ST-"),
            step_ref=key.step_ref,
            input_hash=key.input_hash,
            occurrence=key.occurrence,
            attempt=tries,
            lane_json=encode(dispatch.lane) if dispatch.lane else NO_LANE,
            opened=before.origin if before else 0,
            started_at=at,
            status=None,
            ended_at=None,
            due_at=due_at,
        )
        record = self._reattempted(before, attempt) if before else self._dispatched(dispatch, attempt)
        self._opens.append(AttemptOpen(attempt=attempt, record=record))
        opened = Try(dispatch=dispatch, attempt=attempt, origin=before.origin if before else 0)
        self.opened.append(opened)
        return opened

    def ask(self, request: RequestRow) -> None:
        """Opens a request, and the item of its step."""
        args = self._stow(request.action_json, view.JSON_TEXT)
        self._questions.append(Question(request=request, record=view.request_opened(request.opened_at, request, args)))

    def consume(self, request: RequestRow) -> None:
        """Notes that the flow has gone on from an answer: from now on it is history."""
        self._consumed.append(request.n)

    def unask(self, request: RequestRow) -> bool:
        """Takes back a request that is not committed yet; False if it is, and people may have seen it."""
        before = len(self._questions)
        self._questions = [each for each in self._questions if each.request is not request]
        return len(self._questions) < before

    def drop(self, request: RequestRow) -> None:
        """Ends what a lane that lost has asked: nobody needs to answer it any more."""
        self._dropped.add(request.request_id)

    def answered(self, dispatch: Dispatch, request: RequestRow) -> Try:
        """What the item that a question opened goes on as, or ends as, once it is answered."""
        attempt = AttemptRow(
            run=self._run.n,
            ordinal=0,
            generation=self._run.generation,
            epoch=self._run.epoch,
            step_id=request.step_id,
            step_ref=request.step_ref,
            input_hash=request.input_hash,
            occurrence=request.occurrence,
            attempt=1,
            lane_json=request.lane_json,
            opened=request.opened,
            started_at=request.opened_at,
            status=None,
            ended_at=None,
        )
        return Try(dispatch=dispatch, attempt=attempt, origin=request.opened)

    def passed(self, done: Try, value: Json, ctx: Json) -> None:
        """Logs a Pass: its output, and the dispatch Ctx that it was made from."""
        if not self._replay:
            return
        attempt, ordinal, output = done.attempt, self._rows + 1, encode_known(value)
        snapshot = self._snapshots.write(ordinal, ctx, done.dispatch.ticket, done.dispatch.trail)
        self._snapshots.passed(ordinal, value, output)
        row = ReplayRow(
            run=self._run.n,
            ordinal=ordinal,
            generation=self._run.generation,
            epoch=self._run.epoch,
            step_ref=attempt.step_ref,
            input_hash=attempt.input_hash,
            occurrence=attempt.occurrence,
            lane_json=attempt.lane_json,
            ctx_snapshot_json=snapshot,
            step_output_json=output,
            created_at=self._clock.now_ms(),
        )
        self._passes.append(self._sealed(row))
        done.logged, done.output = ordinal, output

    def ended(self, done: Try, report: Report, shown: str | None = None) -> None:
        """Ends an attempt, and its item with it; `shown` is the item's status where a person's answer decided it."""
        outcome, status, at = report.outcome, status_of(report), self._clock.now_ms()
        said = outcome.text if isinstance(outcome, Failed) else outcome.value
        is_text = isinstance(said, str)
        text, media = (said, view.PLAIN_TEXT) if is_text else (done.output or encode_known(said), view.JSON_TEXT)
        failure = (str(status), text) if isinstance(outcome, Blocked | Failed) else None
        output = (named_output(done.logged, text) if done.logged else None) or self._stow(text, media)
        more = {"output": output, "failure": failure, "status": shown, "mended": report.mended}
        record = self._completed(done, status, at, **more)
        kept = None if status is AttemptStatus.PASSED else encode(said)
        self._ends.append(
            AttemptEnd(ordinal=done.attempt.ordinal or None, status=status, record=record, outcome_json=kept)
        )

    def abandoned(self, done: Try, status: AttemptStatus = AttemptStatus.CANCELLED) -> None:
        """Ends the item of a lane that lost; `status` is that of its last attempt, if that had ended before."""
        record = self._completed(done, AttemptStatus.CANCELLED, self._clock.now_ms())
        self._ends.append(AttemptEnd(ordinal=done.attempt.ordinal or None, status=status, record=record))

    def retried(self, done: Try, report: Report, max_attempts: int, pause: float) -> None:
        """Ends an attempt whose step is tried again after `pause` seconds; the item stays open."""
        outcome, status, at = report.outcome, status_of(report), self._clock.now_ms()
        said = outcome.text if isinstance(outcome, Failed) else outcome.value
        delay_ms = round(pause * 1000)
        record = view.step_retried(
            at,
            run=self._run.n,
            turn_id=self._turn_id,
            step_id=done.attempt.step_id,
            origin=done.origin,
            outcome=status,
            ms=max(0, at - done.attempt.started_at),
            attempt=done.attempt.attempt,
            max_attempts=max_attempts,
            delay_ms=delay_ms,
            reason=said if isinstance(said, str) else encode(said),
        )
        self._ends.append(
            AttemptEnd(
                ordinal=done.attempt.ordinal,
                status=status,
                record=record,
                outcome_json=encode(said),
                due_at=at + delay_ms,
            )
        )

    def decided(self, decision: Decision) -> None:
        """Logs the winner of an `any` or `race`."""
        if not self._replay:
            return
        row = DecisionRow(
            run=self._run.n,
            ordinal=self._rows + 1,
            generation=self._run.generation,
            epoch=self._run.epoch,
            lane_json=encode(decision.lane),
            fork=decision.fork,
            winner=decision.winner,
            created_at=self._clock.now_ms(),
        )
        self._decisions.append(self._sealed(row))

    # -- inside -------------------------------------------------------------------------------------------------------

    @property
    def _turn_id(self) -> str:
        assert self._run.turn_id is not None, "a running Run has a turn"
        return self._run.turn_id

    def _sealed(self, row: Sealed) -> Sealed:
        sealed = seal(self._chain, row)
        self._rows, self._chain = sealed.ordinal, sealed.hash
        return sealed

    def _stow(self, text: str, media: str) -> view.Payload:
        payload, value = view.stow(text, media)
        if value is not None:
            self._values.append(value)
        return payload

    def _dispatched(self, dispatch: Dispatch, attempt: AttemptRow) -> LogRecord:
        return view.step_dispatched(
            attempt.started_at,
            run=self._run.n,
            turn_id=self._turn_id,
            step_id=attempt.step_id,
            ref=attempt.step_ref,
            args=self._stow(encode(dispatch.directive), view.JSON_TEXT),
            attempt=attempt.attempt,
            occurrence=attempt.occurrence,
            lane=dispatch.lane,
            input_hash=attempt.input_hash,
        )

    def _reattempted(self, before: Try, attempt: AttemptRow) -> LogRecord:
        return view.step_reattempted(
            attempt.started_at,
            run=self._run.n,
            turn_id=self._turn_id,
            step_id=attempt.step_id,
            origin=before.origin,
            ref=attempt.step_ref,
            attempt=attempt.attempt,
        )

    def _completed(self, done: Try, outcome: AttemptStatus, at: int, **more: Json) -> LogRecord:
        return view.step_completed(
            at,
            run=self._run.n,
            turn_id=self._turn_id,
            step_id=done.attempt.step_id,
            origin=done.origin,
            outcome=outcome,
            ms=max(0, at - done.attempt.started_at),
            **more,
        )
