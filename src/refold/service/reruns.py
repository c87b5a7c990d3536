"""Rerun-from and the previews: a dry replay on a read decides, one transaction checks that it still holds and acts.

What is executed equals the preview, because both are the same plan (`flowir.dryrun`).
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import msgspec

from refold.canonical import decode, encode
from refold.engine.activation import Opening, begin_generation, open_activation, require_idle, snapshot
from refold.engine.clock import Clock
from refold.engine.supervisor import History, Supervisor, load_history
from refold.errors import NotFound, Unprocessable
from refold.flowir import Blueprint, Plan, Target, dry_replay, parse_blueprint, refusals, steps_of
from refold.flowir.lifecycle import Verb, next_status, plan_resume
from refold.records import AttemptRow, RequestRow, RunRecord, TaskRecord, parse_id
from refold.service.blueprints import Blueprints, Resolved
from refold.service.commands import Command, Ledger, later, woken
from refold.service.runs import check_launch, find_run
from refold.service.settings import SubprocessMode
from refold.store import Reader, Store, Tx, with_launch

Json = Any
Choice = Literal["pinned", "head"]


class RerunFrom(msgspec.Struct, frozen=True, kw_only=True):
    """Where a rerun begins, and with which Blueprint: the snapshot's (`pinned`) or today's (`head`)."""

    from_step: str
    occurrence: int | None = None
    lane: tuple[int, ...] | None = None
    input_hash: str | None = None
    step_id: str | None = None
    blueprint: Choice | None = None


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume or rerun-from would do; nothing was done."""

    run: RunRecord
    plan: Plan
    replayed_steps: int
    dropped_steps: int


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """What a rerun-from answers: how many rows it keeps, and how many it cut."""

    run_id: str
    task_id: str
    replayed_steps: int
    dropped_steps: int


class _Moved(Exception):
    """The Run has moved since its plan was drawn. Raised inside a transaction, so that it leaves no trace."""


class _Past(msgspec.Struct, frozen=True):
    """What a plan is drawn from: the log of a Run, its attempts, and what was asked in it."""

    history: History
    attempts: list[AttemptRow]
    requests: list[RequestRow]


class _Drawn(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, the record it was made for, and the snapshot that the new generation would take."""

    run: RunRecord
    plan: Plan
    input_json: str


class Reruns:
    """Plans and executes rerun-from; previews both verbs that re-enter a Run."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        supervisor: Supervisor,
        blueprints: Blueprints,
        subprocess: SubprocessMode,
    ) -> None:
        self._store = store
        self._clock = clock
        self._supervisor = supervisor
        self._blueprints = blueprints
        self._subprocess: SubprocessMode = subprocess
        self._ledger = Ledger(store)

    async def preview_resume(self, run_id: str) -> Preview:
        """What a resume would answer from the log and what it would run. Errors as `Runs.resume`."""
        run, past = await self._read(run_id)
        plan_resume(run)
        check_launch(run, self._subprocess)
        launch = snapshot(run)
        plan = _dry(run, past, parse_blueprint(launch["blueprint"]["value"]), launch["init_ctx"], None)
        return Preview(run=run, plan=plan, replayed_steps=len(past.history.rows), dropped_steps=0)

    async def preview(self, run_id: str, wanted: RerunFrom) -> Preview:
        """What a rerun-from would keep, cut and run. Errors as `rerun`."""
        drawn = await self._draw(run_id, wanted)
        return _shown(drawn)

    async def rerun(self, run_id: str, wanted: RerunFrom, command: Command | None = None) -> Rerun:
        """Executes a chosen step, and everything downstream of it, again, under the same run id in a new generation.

        Raises InvalidId, NotFound, Conflict (pending, running, session busy), CommandConflict, Unprocessable (no such
        step, not reached, no head), BlueprintInvalid: nothing is changed then.
        """
        opening = woken(self._clock, "rerun-from", command)
        while True:
            with contextlib.suppress(_Moved):
                return await self._once(run_id, wanted, opening, command)

    async def _once(self, run_id: str, wanted: RerunFrom, opening: Opening, command: Command | None) -> Rerun:
        """Draws a plan and executes it. Raises _Moved if it must be drawn anew."""
        plan = await later(self._draw(run_id, wanted))
        driven: list[RunRecord] = []

        def effect(tx: Tx) -> Json:
            drawn = plan()
            driven[:] = [self._open(tx, drawn, opening)]
            shown = _shown(drawn)
            counts = {"replayed_steps": shown.replayed_steps, "dropped_steps": shown.dropped_steps}
            return {"run_id": run_id, "task_id": drawn.run.task_id, **counts}

        answer, _ = await self._ledger.once(command, effect, at=self._clock.now_ms())
        for run in driven:
            self._supervisor.drive(run)
        return Rerun(**answer)

    def _open(self, tx: Tx, drawn: _Drawn, opening: Opening) -> RunRecord:
        """The transaction. Raises _Moved, SessionBusy."""
        now, at = find_run(tx, drawn.run.run_id), self._clock.now_ms()
        if (now.epoch, now.chain, now.status) != (drawn.run.epoch, drawn.run.chain, drawn.run.status):
            raise _Moved
        require_idle(tx, now)  # before anything is written: the ledger keeps this refusal as the answer
        begun = begin_generation(tx, now, drawn.plan.retired, drawn.input_json, at)
        return open_activation(tx, begun, Verb.RERUN, opening, at)

    async def _draw(self, run_id: str, wanted: RerunFrom) -> _Drawn:
        run, past = await self._read(run_id)
        next_status(run.status, Verb.RERUN)
        check_launch(run, self._subprocess)
        launch = snapshot(run)
        resolved = await self._chosen(run, launch, wanted.blueprint)
        target = _target(wanted, resolved.blueprint, past)
        plan = _dry(run, past, resolved.blueprint, launch["init_ctx"], target)
        if not plan.withheld:
            raise Unprocessable(
                f"run {run.run_id} does not reach step {wanted.from_step!r}: it stops at "
                f"{', '.join(plan.stopped_at) or 'its end'}; name a step that it reaches",
                kind="step_not_reached",
                stopped_at=list(plan.stopped_at),
            )
        begun = {**launch, "blueprint": resolved.snapshot(), "ttl_from": self._clock.now_ms()}
        return _Drawn(run=run, plan=plan, input_json=encode(begun))

    async def _chosen(self, run: RunRecord, launch: Json, choice: Choice | None) -> Resolved:
        """The Blueprint of the new generation. Without a choice a Task that follows its head goes on following it."""
        task = await self._store.read(lambda reader: reader.get(TaskRecord, run.task))
        assert task is not None, "a Run is made with its Task"
        reference = decode(task.blueprint_json)
        follows_head = reference["kind"] == "id" and reference.get("version") is None
        if (choice or ("head" if follows_head else "pinned")) == "pinned":
            pinned = launch["blueprint"]
            return Resolved(**pinned, blueprint=parse_blueprint(pinned["value"]))
        if reference["kind"] != "id":
            raise Unprocessable(
                f"run {run.run_id} was launched with an inline Blueprint, which has no head; use the pinned one",
                kind="no_head",
            )
        head = await self._blueprints.resolve({"kind": "id", "id": reference["id"]})
        self._blueprints.programs.check(head.blueprint, launch["subprocess"])
        return head

    async def _read(self, run_id: str) -> tuple[RunRecord, _Past]:
        parse_id(run_id, "R")

        def read(reader: Reader) -> tuple[RunRecord, _Past]:
            run = with_launch(reader, find_run(reader, run_id))
            attempts, requests = reader.find(AttemptRow, run=run.n), reader.find(RequestRow, run=run.n)
            return run, _Past(load_history(reader, run), attempts, requests)

        return await self._store.read(read)


def _dry(run: RunRecord, past: _Past, blueprint: Blueprint, init_ctx: Json, target: Target | None) -> Plan:
    refused = refusals(past.attempts, blueprint.agents, run.generation, past.requests)
    return dry_replay(blueprint, init_ctx, past.history.uncut, past.history.decisions, refused, target)


def _target(wanted: RerunFrom, blueprint: Blueprint, past: _Past) -> Target:
    if wanted.from_step not in {step.ref for step in steps_of(blueprint.flow)}:
        raise Unprocessable(f"the flow has no step {wanted.from_step[:80]!r}", kind="no_such_step")
    occurrence, input_hash, lane = wanted.occurrence, wanted.input_hash, wanted.lane
    if wanted.step_id is not None:
        named = [attempt for attempt in past.attempts if attempt.step_id == wanted.step_id]
        if not named or named[0].step_ref != wanted.from_step:
            raise NotFound(f"this Run has no step {wanted.step_id[:80]!r}", kind="step_not_found")
        occurrence, input_hash = named[0].occurrence, named[0].input_hash
    return Target(step_ref=wanted.from_step, lane=lane, occurrence=occurrence, input_hash=input_hash)


def _shown(drawn: _Drawn) -> Preview:
    return Preview(
        run=drawn.run,
        plan=drawn.plan,
        replayed_steps=len(drawn.plan.kept),
        dropped_steps=len(drawn.plan.dropped),
    )
