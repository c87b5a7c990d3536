"""The driver: one obedient loop that carries one activation of a Run from where its log ends to its result.

    ask the machine ─▶ answer what is logged ─▶ commit ─▶ start what was granted ─▶ wait for any outcome ─▶ again

The machine decides, the store remembers, agents act. The order is the promise: an outcome is committed before anything
that follows from it is dispatched, answered or shown (law 1), and an attempt is committed before its agent starts
(law 2). All that became known in one turn of the loop, also by many lanes at once, goes into one commit (law 3); each
commit carries the epoch, so a driver that lost its Run writes nothing and stops (law 4). If a commit fails the machine
is thrown away with the driver: it has already moved past what was not written. What the last turn brought is committed
with the end of the Run, by who closes it.

Not here: rows and records (`scribe`), opening and closing (`activation`), what keeps drivers (`supervisor`), how agents
work (`agents`), whether a step is tried again (`retries`).
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from refold.engine.agents import OPERATOR, Agent, Assignment, Report, Tools, performer
from refold.engine.asking import Asked, Query, item_status, new_request, query_of
from refold.engine.clock import Clock
from refold.engine.desk import retire_requests
from refold.engine.inbox import Inbox
from refold.engine.questions import Questions
from refold.engine.retries import pause_before_retry, status_of
from refold.engine.scribe import Scribe, Try
from refold.engine.secrets import SecretMissing
from refold.engine.speech import Speech
from refold.flowir import (
    WAIT,
    Abandon,
    AgentDef,
    Blueprint,
    Command,
    Decision,
    Dispatch,
    Done,
    Failed,
    FlowMachine,
    Outcome,
    Pass,
    ReplayCursor,
    ambiguous,
    settle_hits,
)
from refold.flowir.answers import outcome_of
from refold.flowir.snapshots import dispatch_ctx
from refold.flowir.verdicts import violation
from refold.records import AttemptRow, AttemptStatus, RequestRow, RunRecord
from refold.store import StepCommit, Store

Json = Any


FOLDERS: Final = ("work_dir", "project_root")
"""The folders that a launch may name and its snapshot keeps, as an Assignment has them."""

WAITS: Final[Mapping[str, str]] = {OPERATOR: "operator", WAIT: "timer"}
"""Kinds of agents that only wait, and what for. Nothing works on this server meanwhile, so they take no slot."""


Message = Report | RequestRow | Failed | Exception | None
"""What comes into a driver's inbox, under the ticket that it is about. Failed: the step fails without an attempt."""


class Work(msgspec.Struct, kw_only=True):
    """A dispatch that no log answers: what it waits for, and what is being done about it.

    Without a `current` it waits for an answer or its first slot; with one that has a `status`, for its next try or a
    slot for it.
    """

    dispatch: Dispatch
    query: Query | None = None
    """What a person has to answer first."""
    request: RequestRow | None = None
    """The question, while it is not answered."""
    allowed_by: RequestRow | None = None
    """The answer that allows the step, until its first attempt is on record."""
    current: Try | None = None
    status: str | None = None
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None


class Role(NamedTuple):
    """What a ref stands for in this Run, looked up once: who performs it, its definition, and what slots it takes."""

    agent: AgentDef | None
    """None: no agent of the Blueprint, but something that every driver can do itself."""
    definition: AgentDef
    kind: str
    needs: str
    """The slots that it needs, which is the line that it waits in: behind those that need the same, never behind one
    that needs more."""


class Roles(dict[str, Role]):
    """The roles of a Run by ref, each made when it is first asked for."""

    def __init__(self, agents: Iterable[AgentDef]) -> None:
        super().__init__()
        self._agents = {agent.name: agent for agent in agents}

    def __missing__(self, ref: str) -> Role:
        agent = self._agents.get(ref)
        definition = agent or AgentDef(name=ref, kind=ref, spec={})
        kind = definition.kind
        needs = "none" if kind in WAITS else "process" if kind == "subprocess" else "step"
        role = self[ref] = Role(agent, definition, kind, needs)
        return role


class Driver:
    """Carries one activation. `drive` returns its result, or raises Fenced, CommitFailed or what a bug raised.

    After it, `take_last` hands over what is still to be written.
    """

    def __init__(
        self,
        run: RunRecord,
        blueprint: Blueprint,
        init_ctx: Json,
        cursor: ReplayCursor,
        attempts: Iterable[AttemptRow],
        requests: Iterable[RequestRow] = (),
        *,
        store: Store,
        clock: Clock,
        tools: Tools,
        replay: bool = True,
        folders: Mapping[str, str | None] | None = None,
    ) -> None:
        self._run = run
        self._folders: Mapping[str, Any] = folders or {}
        self._store = store
        self._clock = clock
        self._tools = tools
        self._cursor = cursor
        self._roles = Roles(blueprint.agents)
        self._performers: dict[str, Agent] = {}
        self._machine = FlowMachine(blueprint.flow, init_ctx, metas=blueprint.metas, decisions=cursor.decisions)
        self.outputs = cursor.outputs
        """The logged outputs, so that the final ctx names them."""
        self._scribe = Scribe(run, attempts, clock, replay=replay, outputs=self.outputs)
        self._asked = Asked(requests, run.generation)
        self._works: dict[int, Work] = {}
        self._waiting: dict[str, deque[int]] = {"none": deque(), "step": deque(), "process": deque()}
        self._queued = False
        """Whether it stands in line for slots."""
        self._said = run.waiting_on
        self._loop = asyncio.get_running_loop()  # kept: a look costs a system call, in each step
        self._inbox: Inbox[tuple[int, Message]] = Inbox(self._loop)
        self._questions = Questions(store, clock, tools.desk, self._hear)
        self._leaving: set[asyncio.Task[None]] = set()

    async def drive(self) -> Done | Failed:
        """Runs the flow to its result. Cancelling this stops all work that is under way and waits for its end."""
        try:
            self._obey(self._machine.start())
            while True:
                while self._machine.paused:  # long pure work: others get their turn, outcomes keep waiting
                    await asyncio.sleep(0)
                    self._obey(self._machine.proceed())
                if self._machine.result is not None and not self._leaving:
                    return self._machine.result
                self._grant()
                await self._write()
                self._questions.arm()
                if self._machine.result is not None:  # what lost takes its time to go; what won is on record before
                    return self._machine.result
                for ticket, report in await self._inbox.take():
                    self._heed(ticket, report)
        finally:
            await self._stop_all()

    def take_last(self) -> StepCommit | None:
        """What the last turn brought, for the commit that closes the Run; None if all is written."""
        return None if self._scribe.is_empty else self._scribe.take(None)[0]

    # -- deciding -----------------------------------------------------------------------------------------------------

    def _obey(self, commands: Iterable[Command]) -> None:
        """Answers what is logged; the rest is work, decisions, and losers to stop."""
        for command in settle_hits(self._machine, commands, self._cursor):
            match command:
                case Dispatch():
                    self._take_on(command)
                case Decision():
                    self._scribe.decided(command)
                case Abandon(ticket=ticket):
                    self._abandon(ticket)

    def _take_on(self, dispatch: Dispatch) -> None:
        """Puts a dispatch in line for its slot, unless a person has to be asked, or its policy refuses it, first."""
        agent, before = self._roles[dispatch.ref].agent, self._scribe.last.get(dispatch.key)
        cut_off = before if before is not None and before.status is None else None
        given_up = ambiguous(cut_off, agent) if cut_off is not None else None
        if given_up is not None:
            self._works[dispatch.ticket] = Work(dispatch=dispatch)
            self._hear(dispatch.ticket, given_up)
            return
        work = self._works[dispatch.ticket] = Work(dispatch=dispatch, query=query_of(dispatch, agent, cut_off))
        if work.query is None:
            self._line_up(work)
            return
        known = self._asked.standing(dispatch.key, work.query)
        work.request = known or self._ask(dispatch, work.query)
        self._questions.wait(dispatch.ticket, work.request, is_new=known is None)

    def _ask(self, dispatch: Dispatch, query: Query) -> RequestRow:
        times = self._asked.times(dispatch.key, query)
        request = new_request(query, dispatch, self._run, self._clock, times)
        self._scribe.ask(request)
        return request

    def _line_up(self, work: Work) -> None:
        self._waiting[self._roles[work.dispatch.ref].needs].append(work.dispatch.ticket)

    def _hear(self, ticket: int, message: Message) -> None:
        self._inbox.put((ticket, message))

    def _settled(self, work: Work, request: RequestRow) -> None:
        """Goes on from an answer: with what it says, or with the step that it allows."""
        assert work.query is not None, "only what was asked is answered"
        outcome, work.request = outcome_of(request, work.query.on_deny), None
        if outcome is None:  # the step goes on in the item that the question opened, unless it did so before a crash
            if not request.consumed:
                work.current, work.status, work.allowed_by = self._scribe.answered(work.dispatch, request), "", request
            self._line_up(work)
        elif request.consumed:  # a refusal that was shown already: it is no new event
            del self._works[work.dispatch.ticket]
            self._obey(self._machine.complete(work.dispatch.ticket, outcome))
        else:
            self._scribe.consume(request)
            self._finish(work.dispatch, self._scribe.answered(work.dispatch, request), Report(outcome), request)

    def _grant(self) -> None:
        """Opens an attempt for whatever is in line and fits; the rest stays in line, without one (law 2)."""
        took_slots = False
        for needs, line in self._waiting.items():
            while line:
                work = self._works.get(line[0])
                if work is None:  # its lane has lost meanwhile
                    line.popleft()
                    continue
                if not self._fits(work.dispatch.ref):
                    break
                took_slots |= needs != "none"
                line.popleft()
                if work.allowed_by is not None:
                    self._scribe.consume(work.allowed_by)
                    work.allowed_by = None
                work.current = self._scribe.open(work.dispatch, work.current, self._due(work.dispatch))
                work.status = None
        still_waits = any(self._waiting.values())
        if self._queued and (took_slots or not still_waits):
            self._tools.capacity.leave(self._wake)  # and behind the other drivers, if it waits for more
        if still_waits:
            self._tools.capacity.queue(self._wake)
        self._queued = still_waits

    def _heed(self, ticket: int, report: Message) -> None:
        """Takes a message: the report of an attempt, an answer, or (None) that a pause is over or a slot is free."""
        work = self._works.get(ticket)
        if isinstance(report, Report) and work is not None:
            self._end(work, report)
            return
        if isinstance(report, Exception):
            raise report
        if work is None:
            return  # its lane has lost meanwhile and its end is written, or it was only a wake-up
        if isinstance(report, RequestRow):
            self._settled(work, report)
            return
        if isinstance(report, Failed):
            del self._works[ticket]
            self._obey(self._machine.complete(ticket, report))
            return
        work.timer = None
        self._line_up(work)

    def _end(self, work: Work, report: Report) -> None:
        """Ends an attempt, and its step with it, unless that is tried again."""
        assert work.current is not None, "only an attempt reports"
        agent = self._roles[work.dispatch.ref].agent
        pause = pause_before_retry(agent, report, work.current.attempt.attempt)
        if pause is not None:
            self._retry_later(work, agent, report, pause)
            return
        self._finish(work.dispatch, work.current, report)

    def _finish(self, dispatch: Dispatch, done: Try, report: Report, answer: RequestRow | None = None) -> None:
        """Ends a step, by a report or a person's `answer`: logs its Pass, closes its item, tells the machine."""
        del self._works[dispatch.ticket]
        if isinstance(report.outcome, Pass):
            self._scribe.passed(done, report.outcome.value, done.given or self._dispatch_ctx(done))
        self._scribe.ended(done, report, None if answer is None else item_status(answer, report.outcome))
        self._obey(self._machine.complete(dispatch.ticket, report.outcome))

    def _retry_later(self, work: Work, agent: AgentDef | None, report: Report, pause: float) -> None:
        assert work.current is not None and agent is not None and agent.retry is not None, "a policy said so"
        self._scribe.retried(work.current, report, agent.retry.max_attempts, pause)
        work.status, work.task = status_of(report), None
        again = partial(self._inbox.put, (work.dispatch.ticket, None))
        work.timer = self._loop.call_later(pause, again)

    def _abandon(self, ticket: int) -> None:
        """Stops the work of a lane that lost, and ends what is shown of it."""
        work = self._works.pop(ticket)
        if work.timer is not None:
            work.timer.cancel()
        if work.request is not None:
            self._questions.leave(work.request)
            if not work.request.consumed and not self._scribe.unask(work.request):
                self._scribe.drop(work.request)
        if work.allowed_by is not None:
            self._scribe.consume(work.allowed_by)
        if work.current is None:
            return
        if work.task is not None:
            self._cancel(work.dispatch.ref, work.task)
            self._leaving.add(work.task)
        self._scribe.abandoned(work.current, AttemptStatus(work.status or AttemptStatus.CANCELLED))

    # -- acting -------------------------------------------------------------------------------------------------------

    async def _write(self) -> None:
        """Commits what this turn of the loop brought, and starts the attempts that are now on record."""
        waiting_on = self._waiting_on()
        if self._scribe.is_empty and (waiting_on == self._said or not self._inbox.is_empty):
            return
        step, opened, dropped = self._scribe.take(waiting_on)
        try:
            seqs = await self._commit(step, dropped)
        except BaseException:
            for attempt in opened:
                self._give(attempt.dispatch.ref)  # granted a slot, and never started
            raise
        self._said, spawn = waiting_on, self._loop.create_task
        for attempt, seq in zip(opened, seqs, strict=True):
            attempt.origin = attempt.origin or seq
            work = self._works[attempt.dispatch.ticket]
            name = f"{self._run.run_id} {attempt.attempt.step_ref}"
            work.task = spawn(self._perform(attempt), name=name)

    def _commit(self, step: StepCommit, dropped: Collection[str]) -> Awaitable[tuple[int, ...]]:
        """The step's commit; together with the end of what lanes that have lost were asking, if there is such."""
        if not dropped:
            return self._store.commit(step)
        return self._store.commit(step, lambda tx: retire_requests(tx, self._run, step.at, dropped))

    async def _perform(self, current: Try) -> None:
        """Does one attempt, in a task of its own, and reports."""
        dispatch = current.dispatch
        speech = Speech(
            self._tools.voice,
            self._tools.secrets,
            session=self._run.session,
            opened=current.origin,
            item_id=current.attempt.step_id,
            attempt=current.attempt.attempt,
        )
        try:
            report: Report | Exception = await self._within_time(current, speech)
        except SecretMissing as missing:
            report = Report(Failed(missing.message))
        except Exception as error:  # noqa: BLE001 - agents answer with reports; this is a bug, raised by the loop
            report = error
        finally:
            speech.close()
            self._give(dispatch.ref)
        self._inbox.put((dispatch.ticket, report))

    async def _within_time(self, current: Try, speech: Speech) -> Report:
        agent = self._roles[current.dispatch.ref].agent
        secs = agent.timeout_secs if agent is not None else None
        working = self._performer(current.dispatch.ref).perform(self._assignment(current, speech))
        if secs is None:
            report = await working
        else:
            limit = asyncio.timeout(secs)
            try:
                async with limit:
                    report = await working
            except TimeoutError:
                if not limit.expired():
                    raise
                return Report(Failed(f"timed out after {secs} s"), cause="timeout")
        outcome = _under_contract(agent, report.outcome)
        if self._tools.secrets.is_silent and outcome is report.outcome:
            return report
        said = msgspec.structs.asdict(outcome)
        clean = {name: self._tools.secrets.redact(member) for name, member in said.items()}
        return Report(msgspec.structs.replace(outcome, **clean), report.mended, report.cause)

    async def _stop_all(self) -> None:
        tasks = [work.task for work in self._works.values() if work.task is not None]
        for work in self._works.values():
            if work.timer is not None:
                work.timer.cancel()
            if work.task is not None:
                self._cancel(work.dispatch.ref, work.task)
        for opened in self._scribe.opened:
            self._give(opened.dispatch.ref)  # granted a slot, and never started
        self._tools.capacity.leave(self._wake)
        ending = [*tasks, *self._leaving, *self._questions.close()]
        if ending:
            await asyncio.gather(*ending, return_exceptions=True)

    def _cancel(self, ref: str, task: asyncio.Task[None]) -> None:
        """Stops an attempt. One that has not begun never will, so it cannot give its slot back itself."""
        coroutine = task.get_coro()
        assert inspect.iscoroutine(coroutine)
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
            self._give(ref)
        task.cancel()

    # -- what an attempt needs ----------------------------------------------------------------------------------------

    def _assignment(self, current: Try, speech: Speech) -> Assignment:
        dispatch, attempt, run = current.dispatch, current.attempt, self._run
        current.given = given = self._dispatch_ctx(current)
        return Assignment(
            run_id=run.run_id,
            step_id=attempt.step_id,
            step_ref=attempt.step_ref,
            attempt=attempt.attempt,
            occurrence=attempt.occurrence,
            lane=dispatch.lane,
            epoch=run.epoch,
            generation=attempt.generation,
            input_hash=attempt.input_hash,
            directive=self._tools.secrets.resolve(dispatch.directive),
            agent=self._roles[dispatch.ref].definition,
            ctx=given,
            emit=speech.emit,
            **self._folders,
            due_at=attempt.due_at,
        )

    def _performer(self, ref: str) -> Agent:
        if ref not in self._performers:
            agent = self._roles[ref].definition
            told = msgspec.structs.replace(agent, spec=self._tools.secrets.resolve(agent.spec))
            self._performers[ref] = performer(told, self._tools)
        return self._performers[ref]

    def _dispatch_ctx(self, current: Try) -> dict[str, Json]:
        dispatch, attempt = current.dispatch, current.attempt
        return dispatch_ctx(
            self._run.run_id,
            attempt.step_id,
            attempt.attempt,
            attempt.step_ref,
            dispatch.lane,
            dispatch.step_ctx,
            dispatch.ctx,
        )

    def _due(self, dispatch: Dispatch) -> int | None:
        """When a wait is over: what an earlier attempt has on record holds, however often the server died since."""
        if dispatch.ref != WAIT:
            return None
        before = self._scribe.last.get(dispatch.key)
        return before.due_at if before is not None else self._clock.due_ms(dispatch.directive)

    # -- slots --------------------------------------------------------------------------------------------------------

    def _fits(self, ref: str) -> bool:
        role = self._roles[ref]
        return role.needs == "none" or self._tools.capacity.take(role.kind)

    def _give(self, ref: str) -> None:
        role = self._roles[ref]
        if role.needs != "none":
            self._tools.capacity.give(role.kind)

    def _wake(self) -> None:
        self._inbox.put((-1, None))

    def _waiting_on(self) -> str | None:
        """What a Run whose steps all wait is waiting for; None while any of them is being done."""
        if not self._inbox.is_empty:  # what has come in is acted on at once
            return None
        kinds: set[str] = set()
        for work in self._works.values():
            if work.current is not None and work.status is None:
                kinds.add(kind := self._roles[work.dispatch.ref].kind)
                if kind not in WAITS:
                    return None
        if any(self._waiting.values()):
            return "capacity"
        asked = {work.request.kind for work in self._works.values() if work.request is not None}
        if asked:
            return "approval" if "approval" in asked else "input"
        if OPERATOR in kinds:
            return WAITS[OPERATOR]
        return "timer" if self._works else None


def _under_contract(agent: AgentDef | None, outcome: Outcome) -> Outcome:
    """What an outcome is under the agent's verdict contract: a pass that breaks it has failed."""
    if agent is None or not isinstance(outcome, Pass):
        return outcome
    wrong = violation(agent.verdict, outcome.value)
    return outcome if wrong is None else Failed(wrong)
