"""Runs: reading them, and the verbs that change how they stand.

Each verb is one control transaction: decide from the record (pure), compare-and-set, append to the log; after the
commit, start or stop the driver. If the process dies in between, boot recovery covers the gap.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from refold import view
from refold.canonical import decode
from refold.engine.activation import Opening, cancel_idle, close_activation, open_activation
from refold.engine.clock import Clock
from refold.engine.supervisor import History, Supervisor, load_history
from refold.errors import BlueprintInvalid, Conflict, InvalidJson, NotFound, Unprocessable
from refold.flowir import parse_blueprint, read_all
from refold.flowir.lifecycle import TERMINAL, Verb, plan_resume
from refold.records import (
    ActivationRow,
    AttemptRow,
    CutRow,
    DecisionRow,
    LaunchRow,
    ReplayRow,
    RequestRow,
    RunRecord,
    RunStatus,
    parse_id,
)
from refold.service.commands import Command, Ledger, woken
from refold.service.listing import EVERY, Wanted, find_runs, whole
from refold.service.settings import SubprocessMode
from refold.store import Reader, Store, Tx, keep_outputs, with_launch

Json = Any


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume answers: how many logged steps its flow will skip."""

    run_id: str
    task_id: str
    replayed_steps: int


class Opened(msgspec.Struct, frozen=True):
    """A resume inside its transaction: the Run as it now stands, and what is logged of it, which its flow will skip."""

    run: RunRecord
    history: History


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """What a cancel answers, and whether the Run was cancelled before already."""

    run_id: str
    already: bool


class LoggedStep(msgspec.Struct, frozen=True):
    """A row of the replay log, its whole dispatch Ctx where that was asked for, and whether it is live."""

    row: ReplayRow
    ctx: Json
    live: bool


class Runs:
    """Reads and changes Runs."""

    def __init__(
        self, store: Store, clock: Clock, supervisor: Supervisor, subprocess: SubprocessMode, *, replay: bool = True
    ) -> None:
        self._replay = replay
        self._store = store
        self._clock = clock
        self._supervisor = supervisor
        self._subprocess: SubprocessMode = subprocess
        self._ledger = Ledger(store)

    async def get(self, run_id: str) -> RunRecord:
        """Raises InvalidId, NotFound."""
        parse_id(run_id, "R")
        return await self._store.read(lambda reader: whole(reader, find_run(reader, run_id)))

    async def page(self, limit: int, before: int | None = None, wanted: Wanted = EVERY) -> list[RunRecord]:
        """The newest Runs first, those made before the integer key `before`."""
        return await find_runs(self._store, wanted, limit, before)

    async def steps(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[AttemptRow]:
        """Every attempt of the Run's activations, in the order of their slots, from the ordinal `after` on."""
        run = await self.get(run_id)
        return await self._store.read(lambda reader: reader.find(AttemptRow, run=run.n, after=after, limit=limit))

    async def replay(
        self, run_id: str, *, ctx: bool = False, everything: bool = False, after: int = 0, limit: int | None = None
    ) -> list[LoggedStep]:
        """The live rows of the Run's replay log, from the ordinal `after` on; with `everything` the retired ones too.

        The whole log is checked against its chain. With `ctx` each row comes with its whole dispatch Ctx. Raises
        StoreDamaged.
        """
        parse_id(run_id, "R")
        return await self._store.read(
            lambda reader: list(
                itertools.islice(logged_steps(reader, run_id, ctx=ctx, everything=everything, after=after), limit)
            )
        )

    async def trace(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Json]:
        """What the engine did in this Run, over all its activations, in order, from the seq `after` on."""
        parse_id(run_id, "R")
        return await self._store.read(lambda reader: list(itertools.islice(traced(reader, run_id, after), limit)))

    async def settled(self, run: RunRecord) -> RunRecord:
        """The record of `run` once it is neither pending nor running any more."""
        while run.status in ("pending", "running"):
            waiting = self._supervisor.settled(run.n)
            if not self._supervisor.is_driving(run.n):  # else its end is still to be announced
                run = await self.get(run.run_id)  # read after the waiter is in place, so that no end is missed
                if run.status not in ("pending", "running"):
                    waiting.cancel()
                    break
            run = await waiting or await self.get(run.run_id)
        return run

    async def resume(self, run_id: str, command: Command | None = None) -> Resumed:
        """Re-enters an interrupted Run under its own id: logged steps are answered, the rest runs (202).

        Raises InvalidId, NotFound (404), NotInterrupted, SessionBusy and CommandConflict (409), Unprocessable (422),
        StoreDamaged. Of N racing calls exactly one gets through: the change of status is a compare-and-set inside one
        transaction.
        """
        parse_id(run_id, "R")
        opening = woken(self._clock, "resume", command)
        driven: list[Opened] = []

        def effect(tx: Tx) -> Json:
            opened = self.open_resume(tx, run_id, opening)
            driven[:] = [opened]
            return {"run_id": run_id, "task_id": opened.run.task_id, "replayed_steps": len(opened.history.rows)}

        answer, _ = await self._ledger.once(command, effect, at=self._clock.now_ms())
        for opened in driven:
            self._supervisor.drive(opened.run, opened.history)
        return Resumed(**answer)

    def open_resume(self, tx: Tx, run_id: str, opening: Opening) -> Opened:
        """The transaction of a resume; the caller drives the Run after the commit."""
        run = with_launch(tx, find_run(tx, run_id))
        if not self._replay:
            raise Conflict(
                "this server was started with --replay off, so there is nothing to resume from",
                kind="replay_disabled",
                status=run.status,
            )
        plan_resume(run)
        check_launch(run, self._subprocess)
        history = load_history(tx, run)
        return Opened(open_activation(tx, run, Verb.RESUME, opening, self._clock.now_ms()), history)

    async def cancel(self, run_id: str, command: Command | None = None) -> Cancelled:
        """Ends a Run for good: `cancelled` is durable first, then its work is stopped and gone. Twice is once.

        Raises InvalidId, NotFound, Conflict for a Run that is done or failed, CommandConflict.
        """
        parse_id(run_id, "R")
        at = self._clock.now_ms()
        stopped: list[tuple[RunRecord, RunRecord | None]] = []

        def effect(tx: Tx) -> Json:
            run = find_run(tx, run_id)
            stopped[:] = [(run, self._close(tx, run, at))]
            return {"run_id": run_id, "already": run.status == RunStatus.CANCELLED}

        answer, _ = await self._ledger.once(command, effect, at=at)
        for run, after in stopped:
            await self._supervisor.stop(run.n)
            self._supervisor.announce(run.n)
            if after is not None:
                self._supervisor.drive(after)
        return Cancelled(**answer)

    def _close(self, tx: Tx, run: RunRecord, at: int) -> RunRecord | None:
        """Cancels a Run that is not cancelled yet; the next Run of its queue if that is launched by it."""
        if run.status == RunStatus.CANCELLED:
            return None
        if run.status != RunStatus.RUNNING:
            cancel_idle(tx, run, at)
            return None
        queue, result = self._supervisor.queue, {"error": "cancelled"}
        return close_activation(tx, run, Verb.CANCEL, queue, at=at, result=result, reason="cancelled").launched

    async def delete(self, run_id: str) -> None:
        """Removes a Run that has ended, and all it owns: its replay log, attempts, activations, launch snapshots.

        What clients saw of it stays in its Session's log. Raises InvalidId, NotFound, Conflict.
        """
        parse_id(run_id, "R")

        def remove(tx: Tx) -> None:
            run = find_run(tx, run_id)
            if run.status not in TERMINAL:
                raise Conflict(
                    f"run {run_id} is {run.status}; cancel it first", kind=f"run_{run.status}", status=run.status
                )
            keep_outputs(tx, run)
            for kind in (ReplayRow, DecisionRow, CutRow, AttemptRow, ActivationRow, RequestRow, LaunchRow):
                tx.delete(kind, run=run.n)
            tx.delete(RunRecord, n=run.n)

        await self._store.write(remove)

    def opening(self, trigger: str, command_id: str | None) -> Opening:
        turn_id = command_id or self._clock.uuid7()
        return Opening(turn_id=turn_id, command_id=turn_id, trigger=trigger)


def logged_steps(reader: Reader, run_id: str, *, ctx: bool, everything: bool, after: int = 0) -> Iterator[LoggedStep]:
    """The rows of a Run's replay log as `Runs.replay` gives them. Raises NotFound, StoreDamaged."""
    history = load_history(reader, find_run(reader, run_id))
    live = {row.ordinal for row in history.rows}
    found = read_all(history.all_rows) if ctx else ((row, None) for row in history.all_rows)
    return (
        LoggedStep(row, envelope, row.ordinal in live)
        for row, envelope in found
        if row.ordinal > after and (everything or row.ordinal in live)
    )


def traced(reader: Reader, run_id: str, after: int = 0) -> Iterator[Json]:
    """The trace of a Run as `Runs.trace` gives it. Raises NotFound."""
    run = find_run(reader, run_id)
    activations = reader.find(ActivationRow, run=run.n)
    asked = (each for each in activations if each.closed is None or each.closed > after)
    told = itertools.chain.from_iterable(_told(reader, run, each) for each in asked)
    return (entry for entry in told if entry["seq"] > after)


def _told(reader: Reader, run: RunRecord, activation: ActivationRow) -> list[Json]:
    """The trace of one activation."""
    length = None if activation.closed is None else activation.closed - activation.opened + 1
    rows = reader.log(run.session, activation.opened - 1, length)
    if activation.closed is not None:  # where retention has taken rows, as many rows reach into the next activation
        rows = [row for row in rows if row.seq <= activation.closed]
    return view.trace(activation, rows)


class _Pinned(msgspec.Struct):
    """The Blueprint of a launch snapshot."""

    id: str | None
    version: str
    value: Json


class _Launch(msgspec.Struct):
    """What a launch snapshot must hold so that a driver can go on from it."""

    blueprint: _Pinned
    init_ctx: Json
    subprocess: SubprocessMode
    ttl_secs: float | None = None
    ttl_from: int | None = None
    work_dir: str | None = None
    project_root: str | None = None


def find_run(reader: Reader, run_id: str) -> RunRecord:
    """The record of a Run as it is stored; raises NotFound."""
    found = reader.find(RunRecord, run_id=run_id)
    if not found:
        raise NotFound(f"there is no run {run_id}", kind="run_not_found", run_id=run_id)
    return found[0]


def check_launch(run: RunRecord, subprocess: SubprocessMode) -> None:
    """Raises Unprocessable if the launch snapshot cannot be read, or programs are off now.

    A Run that was accepted under `--subprocess any` goes on under `declared`: the permission was given at launch. `off`
    is an operator's emergency brake and stops it too.
    """
    if run.input_json is None:
        raise Unprocessable(
            f"run {run.run_id} has no recorded launch input, so nothing to run it from; kick its Task again",
            kind="no_launch_input",
            run_id=run.run_id,
            status=run.status,
        )
    try:
        launch = msgspec.convert(decode(run.input_json), _Launch)
        blueprint = parse_blueprint(launch.blueprint.value)
    except (InvalidJson, BlueprintInvalid, msgspec.ValidationError) as error:
        raise Unprocessable(
            f"the launch input of run {run.run_id} cannot be decoded: {error}", kind="launch_input_undecodable"
        ) from error
    if subprocess == "off" and any(agent.kind == "subprocess" for agent in blueprint.agents):
        raise Unprocessable(
            f"run {run.run_id} runs programs, and this server was started with --subprocess off",
            kind="program_not_allowed",
        )
