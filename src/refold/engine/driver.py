"""The driver: one obedient loop that carries one activation of a Run from where its log ends to its result.

    ask the machine ─▶ answer what is logged ─▶ commit ─▶ start what was granted ─▶ wait for any outcome ─▶ again

The machine decides, the store remembers, agents act. The order is the promise: an outcome is committed before anything
that follows from it is dispatched, answered or shown (law 1), and an attempt is committed before its agent starts
(law 2). All that became known in one turn of the loop, also by many lanes at once, goes into one commit (law 3); each
commit carries the epoch, so a driver that lost its Run writes nothing and stops (law 4). If a commit fails the machine
is thrown away with the driver: it has already moved past what was not written.

Not here: opening and closing (`activation`), what keeps drivers (`supervisor`), how agents work (`agents`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from refold import view
from refold.canonical import digest, encode
from refold.engine.agents import Assignment, Report, Tools, performer
from refold.engine.clock import Clock
from refold.flowir import (
    Abandon,
    AgentDef,
    Blocked,
    Blueprint,
    Decision,
    Dispatch,
    Done,
    Failed,
    FlowMachine,
    Outcome,
    Pass,
    ReplayCursor,
    Skip,
    settle_hits,
)
from refold.records import (
    AttemptRow,
    AttemptStatus,
    DecisionRow,
    LogRecord,
    ReplayRow,
    RunRecord,
    Sealed,
    ValueRow,
    seal,
)
from refold.store import AttemptEnd, AttemptOpen, StepCommit, Store

Json = Any

_ENDS: Mapping[type[Outcome], AttemptStatus] = {
    Pass: AttemptStatus.PASSED,
    Skip: AttemptStatus.SKIPPED,
    Blocked: AttemptStatus.BLOCKED,
    Failed: AttemptStatus.FAILED,
}


class Work(msgspec.Struct):
    """A dispatch that was granted its attempt: what is committed of it, and the task that does it."""

    dispatch: Dispatch
    attempt: AttemptRow
    opened: int = 0
    task: asyncio.Task[Any] | None = None


class Batch:
    """What one turn of the loop has to write."""

    def __init__(self) -> None:
        self.passes: list[ReplayRow] = []
        self.decisions: list[DecisionRow] = []
        self.ends: list[AttemptEnd] = []
        self.opens: list[Work] = []
        self.values: list[ValueRow] = []

    def __bool__(self) -> bool:
        return bool(self.passes or self.decisions or self.ends or self.opens)


class Driver:
    """Carries one activation. `drive` returns its result, or raises Fenced, CommitFailed or what a bug raised."""

    def __init__(
        self,
        run: RunRecord,
        blueprint: Blueprint,
        init_ctx: Json,
        cursor: ReplayCursor,
        attempts: Iterable[AttemptRow],
        *,
        store: Store,
        clock: Clock,
        tools: Tools,
    ) -> None:
        self._run = run
        self._store = store
        self._clock = clock
        self._cursor = cursor
        self._agents: Mapping[str, AgentDef] = {agent.name: agent for agent in blueprint.agents}
        self._perform = {name: performer(agent, tools) for name, agent in self._agents.items()}
        self._machine = FlowMachine(blueprint.flow, init_ctx, metas=blueprint.metas, decisions=cursor.decisions)
        self._rows, self._chain = run.rows, run.chain
        self._tries: Counter[tuple[str, str, int]] = Counter()
        self._ordinal = 0
        for attempt in attempts:
            self._ordinal = max(self._ordinal, attempt.ordinal)
            if attempt.generation == run.generation:
                self._tries[attempt.step_ref, attempt.input_hash, attempt.occurrence] += 1
        self._open: dict[int, Work] = {}
        self._settled: asyncio.Queue[tuple[int, Outcome | Exception]] = asyncio.Queue()
        self._leaving: set[asyncio.Task[Any]] = set()

    async def drive(self) -> Done | Failed:
        """Runs the flow to its result. Cancelling this stops all work that is under way and waits for its end."""
        try:
            batch = Batch()
            self._obey(self._machine.start(), batch)
            while True:
                while self._machine.paused:  # long pure work: others get their turn, outcomes keep waiting
                    await asyncio.sleep(0)
                    self._obey(self._machine.proceed(), batch)
                if batch:
                    await self._write(batch)
                if self._machine.result is not None:
                    return self._machine.result
                batch = Batch()
                for ticket, report in await self._reports():
                    self._complete(ticket, report, batch)
        finally:
            await self._stop_all()

    def _obey(self, commands: Iterable[Any], batch: Batch) -> None:
        """Answers what is logged; the rest goes into the batch as decisions, attempts and ends of losers."""
        for command in settle_hits(self._machine, commands, self._cursor):
            match command:
                case Dispatch():
                    batch.opens.append(self._grant(command))
                case Decision():
                    batch.decisions.append(self._decided(command))
                case Abandon(ticket=ticket):
                    self._abandon(ticket, batch)

    def _complete(self, ticket: int, report: Report | Exception, batch: Batch) -> None:
        work = self._open.pop(ticket, None)
        if work is None:
            return  # its lane has lost meanwhile; the end is written already
        if isinstance(report, Exception):
            raise report
        outcome, at = report.outcome, self._clock.now_ms()
        if isinstance(outcome, Pass):
            batch.passes.append(self._passed(work, outcome, at))
        self._end(work, report, at, batch)
        self._obey(self._machine.complete(ticket, outcome), batch)

    def _abandon(self, ticket: int, batch: Batch) -> None:
        granted = next((work for work in batch.opens if work.dispatch.ticket == ticket), None)
        if granted is not None:
            batch.opens.remove(granted)  # asked for and given up within one turn of the loop: it never was
            return
        work = self._open.pop(ticket)
        if work.task is not None:
            work.task.cancel()
            self._leaving.add(work.task)
        record = self._ended(work, AttemptStatus.CANCELLED, self._clock.now_ms())
        batch.ends.append(AttemptEnd(ordinal=work.attempt.ordinal, status=AttemptStatus.CANCELLED, record=record))

    async def _reports(self) -> list[tuple[int, Report | Exception]]:
        """Waits for one outcome and takes all that are there, so that lanes which end together share a commit."""
        reports = [await self._settled.get()]
        while not self._settled.empty():
            reports.append(self._settled.get_nowait())
        return reports

    async def _write(self, batch: Batch) -> None:
        step = StepCommit(
            run=self._run.n,
            session=self._run.session,
            epoch=self._run.epoch,
            at=self._clock.now_ms(),
            passes=tuple(batch.passes),
            decisions=tuple(batch.decisions),
            rows_after=self._rows,
            chain_after=self._chain,
            ends=tuple(batch.ends),
            opens=tuple(self._opening(work, batch) for work in batch.opens),
            values=tuple(batch.values),
        )
        seqs = await self._store.commit(step)
        for work, seq in zip(batch.opens, seqs, strict=True):
            work.opened = seq
            self._open[work.dispatch.ticket] = work
            work.task = asyncio.create_task(self._work(work), name=f"{self._run.run_id} {work.attempt.step_ref}")

    async def _work(self, work: Work) -> None:
        dispatch, attempt, run = work.dispatch, work.attempt, self._run
        assignment = Assignment(
            run_id=run.run_id,
            step_id=attempt.step_id,
            step_ref=attempt.step_ref,
            attempt=attempt.attempt,
            occurrence=attempt.occurrence,
            lane=dispatch.lane,
            epoch=run.epoch,
            idempotency_key=idempotency_key(run, dispatch),
            directive=dispatch.directive,
            agent=self._agents[dispatch.ref],
            ctx=self._dispatch_ctx(work),
        )
        try:
            report: Report | Exception = await self._perform[dispatch.ref].perform(assignment)
        except Exception as error:  # noqa: BLE001 - agents answer with reports; this is a bug, raised by the loop
            report = error
        self._settled.put_nowait((dispatch.ticket, report))

    async def _stop_all(self) -> None:
        tasks = [work.task for work in self._open.values() if work.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._leaving, return_exceptions=True)

    # -- rows and records ---------------------------------------------------------------------------------------------

    def _grant(self, dispatch: Dispatch) -> Work:
        key = dispatch.key
        self._ordinal += 1
        self._tries[key] += 1
        attempt = AttemptRow(
            run=self._run.n,
            ordinal=self._ordinal,
            generation=self._run.generation,
            epoch=self._run.epoch,
            step_id=self._clock.mint("ST-"),
            step_ref=key.step_ref,
            input_hash=key.input_hash,
            occurrence=key.occurrence,
            attempt=self._tries[key],
            lane_json=encode(dispatch.lane),
            opened=0,
            started_at=self._clock.now_ms(),
            status=None,
            ended_at=None,
        )
        return Work(dispatch=dispatch, attempt=attempt)

    def _opening(self, work: Work, batch: Batch) -> AttemptOpen:
        args = self._stow(encode(work.dispatch.directive), view.JSON_TEXT, batch)
        record = view.step_dispatched(
            work.attempt.started_at,
            run=self._run.n,
            turn_id=self._run.turn_id,
            step_id=work.attempt.step_id,
            ref=work.attempt.step_ref,
            args=args,
            attempt=work.attempt.attempt,
            occurrence=work.attempt.occurrence,
            lane=work.dispatch.lane,
            input_hash=work.attempt.input_hash,
        )
        return AttemptOpen(attempt=work.attempt, record=record)

    def _passed(self, work: Work, outcome: Pass, at: int) -> ReplayRow:
        attempt = work.attempt
        row = ReplayRow(
            run=self._run.n,
            ordinal=self._rows + 1,
            generation=self._run.generation,
            epoch=self._run.epoch,
            step_ref=attempt.step_ref,
            input_hash=attempt.input_hash,
            occurrence=attempt.occurrence,
            lane_json=attempt.lane_json,
            ctx_snapshot_json=encode(self._dispatch_ctx(work)),
            step_output_json=encode(outcome.value),
            created_at=at,
        )
        return self._sealed(row)

    def _decided(self, decision: Decision) -> DecisionRow:
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
        return self._sealed(row)

    def _sealed(self, row: Sealed) -> Sealed:
        sealed = seal(self._chain, row)
        self._rows, self._chain = sealed.ordinal, sealed.hash
        return sealed

    def _end(self, work: Work, report: Report, at: int, batch: Batch) -> None:
        outcome = report.outcome
        status = _ENDS[type(outcome)]
        said = outcome.text if isinstance(outcome, Failed) else outcome.value
        text, media = (said, view.PLAIN_TEXT) if isinstance(said, str) else (encode(said), view.JSON_TEXT)
        failure = (str(status), text) if isinstance(outcome, Blocked | Failed) else None
        output = self._stow(text, media, batch)
        record = self._ended(work, status, at, output=output, failure=failure)
        kept = None if isinstance(outcome, Pass) else encode(said)
        batch.ends.append(AttemptEnd(ordinal=work.attempt.ordinal, status=status, record=record, outcome_json=kept))

    def _stow(self, text: str, media: str, batch: Batch) -> view.Payload:
        payload, value = view.stow(text, media)
        if value is not None:
            batch.values.append(value)
        return payload

    def _ended(self, work: Work, status: AttemptStatus, at: int, **more: Json) -> LogRecord:
        return view.step_completed(
            at,
            run=self._run.n,
            turn_id=self._run.turn_id,
            step_id=work.attempt.step_id,
            origin=work.opened,
            outcome=status,
            ms=max(0, at - work.attempt.started_at),
            **more,
        )

    def _dispatch_ctx(self, work: Work) -> dict[str, Json]:
        """The dispatch Ctx (design §1): what the agent may see, and what the replay row keeps. Never `operator`."""
        dispatch, attempt = work.dispatch, work.attempt
        runtime = {"run_id": self._run.run_id, "step_ctx": dispatch.step_ctx, "lane": dispatch.lane}
        return {
            "run_id": self._run.run_id,
            "step_id": attempt.step_id,
            "attempt": attempt.attempt,
            "agent": attempt.step_ref,
            "meta": {"runtime": runtime, "authz": {}, "observer": {}, "loop": {}},
            "ctx": dispatch.ctx,
        }


def idempotency_key(run: RunRecord, dispatch: Dispatch) -> str:
    """The key an agent hands to outside systems: the same over crashes, retries and takeovers, new after rerun-from."""
    key = dispatch.key
    return digest([run.run_id, run.generation, key.step_ref, key.input_hash, key.occurrence])
