"""Runs: reading them, and the verbs that change how they stand.

Each verb is one control transaction: decide from the record (pure), compare-and-set, append to the log; after the
commit, start or stop the driver. If the process dies in between, boot recovery covers the gap.
"""

from __future__ import annotations

from typing import Any

import msgspec

from refold import view
from refold.canonical import decode
from refold.engine.activation import Opening, cancel_idle, close_activation, open_activation
from refold.engine.clock import Clock
from refold.engine.supervisor import Supervisor, load_history
from refold.errors import BlueprintInvalid, Conflict, InvalidJson, NotFound, Unprocessable
from refold.flowir import parse_blueprint, read_all
from refold.flowir.lifecycle import TERMINAL, Verb, plan_resume
from refold.records import (
    ActivationRow,
    AttemptRow,
    CutRow,
    DecisionRow,
    ReplayRow,
    RunRecord,
    RunStatus,
    parse_id,
)
from refold.service.programs import SubprocessMode
from refold.store import Reader, Store, Tx, expanded

Json = Any


class Resumed(msgspec.Struct, frozen=True):
    """What a resume answers: the Run as it now stands, and how many logged steps its flow will skip."""

    run: RunRecord
    replayed_steps: int


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
        self._subprocess = subprocess

    async def get(self, run_id: str) -> RunRecord:
        """Raises InvalidId, NotFound."""
        parse_id(run_id, "R")
        return await self._store.read(lambda reader: whole(reader, find_run(reader, run_id)))

    async def page(self, limit: int, before: int | None = None, **equals: Json) -> list[RunRecord]:
        """The newest Runs first, those made before the integer key `before`."""

        def read(reader: Reader) -> list[RunRecord]:
            rows = reader.find(RunRecord, newest_first=True, **equals)
            return [whole(reader, row) for row in rows if before is None or row.n < before][:limit]

        return await self._store.read(read)

    async def steps(self, run_id: str) -> list[AttemptRow]:
        """Every attempt of the Run's activations, in the order of their slots."""
        run = await self.get(run_id)
        return await self._store.read(lambda reader: reader.find(AttemptRow, run=run.n))

    async def replay(self, run_id: str, *, ctx: bool = False, everything: bool = False) -> list[LoggedStep]:
        """The live rows of the Run's replay log, checked against its chain; with `everything` the retired ones too.

        With `ctx` each comes with its whole dispatch Ctx. Raises StoreDamaged.
        """
        run = await self.get(run_id)
        if not run.rows:
            return []

        def read(reader: Reader) -> list[LoggedStep]:
            history = load_history(reader, find_run(reader, run_id))
            live = {row.ordinal for row in history.rows}
            found = read_all(history.all_rows) if ctx else ((row, None) for row in history.all_rows)
            return [
                LoggedStep(row, whole, row.ordinal in live) for row, whole in found if everything or row.ordinal in live
            ]

        return await self._store.read(read)

    async def trace(self, run_id: str) -> list[Json]:
        """What the engine did in this Run, over all its activations, in order."""
        run = await self.get(run_id)

        def read(reader: Reader) -> list[Json]:
            entries: list[Json] = []
            for activation in reader.find(ActivationRow, run=run.n):
                limit = None if activation.closed is None else activation.closed - activation.opened + 1
                entries += view.trace(activation, reader.log(run.session, activation.opened - 1, limit))
            return entries

        return await self._store.read(read)

    async def settled(self, run: RunRecord) -> RunRecord:
        """The record of `run` once it is neither pending nor running any more."""
        while run.status in ("pending", "running"):
            waiting = self._supervisor.settled(run.n)
            run = await self.get(run.run_id)  # read after the waiter is in place, so that no end is missed
            if run.status in ("pending", "running"):
                await waiting
                run = await self.get(run.run_id)
            else:
                waiting.cancel()
        return run

    async def resume(self, run_id: str, command_id: str | None = None) -> Resumed:
        """Re-enters an interrupted Run under its own id: logged steps are answered, the rest runs (202).

        Raises InvalidId, NotFound (404), NotInterrupted and SessionBusy (409), Unprocessable (422), StoreDamaged. Of N
        racing calls exactly one gets through: the change of status is a compare-and-set inside one transaction.
        """
        parse_id(run_id, "R")
        opening = self.opening("resume", command_id)
        resumed = await self._store.write(lambda tx: self.open_resume(tx, run_id, opening))
        self._supervisor.drive(resumed.run)
        return resumed

    def open_resume(self, tx: Tx, run_id: str, opening: Opening) -> Resumed:
        """The transaction of a resume; the caller drives the Run after the commit."""
        run = find_run(tx, run_id)
        if not self._replay:
            raise Conflict(
                "this server was started with --replay off, so there is nothing to resume from",
                kind="replay_disabled",
                status=run.status,
            )
        plan_resume(run)
        check_launch(run, self._subprocess)
        replayed = len(load_history(tx, run).rows)
        return Resumed(open_activation(tx, run, Verb.RESUME, opening, self._clock.now_ms()), replayed)

    async def cancel(self, run_id: str) -> RunRecord:
        """Ends a Run for good: `cancelled` is durable first, then its work is stopped and gone. Twice is once.

        Raises InvalidId, NotFound, Conflict for a Run that is done or failed.
        """
        parse_id(run_id, "R")
        at = self._clock.now_ms()

        def close(tx: Tx) -> tuple[RunRecord, RunRecord | None]:
            run = find_run(tx, run_id)
            if run.status == RunStatus.CANCELLED:
                return run, None
            if run.status == RunStatus.RUNNING:
                after = close_activation(
                    tx,
                    run,
                    Verb.CANCEL,
                    self._supervisor.queue,
                    at=at,
                    result={"error": "cancelled"},
                    reason="cancelled",
                )
            else:
                after = None
                cancel_idle(tx, run, at)
            return run, after

        run, after = await self._store.write(close)
        await self._supervisor.stop(run.n)
        self._supervisor.announce(run.n)
        if after is not None:
            self._supervisor.drive(after)
        return await self.get(run_id)

    async def delete(self, run_id: str) -> None:
        """Removes a Run that has ended, and all it owns: its replay log, its attempts, its activations.

        What clients saw of it stays in its Session's log. Raises InvalidId, NotFound, Conflict.
        """
        parse_id(run_id, "R")

        def remove(tx: Tx) -> None:
            run = find_run(tx, run_id)
            if run.status not in TERMINAL:
                raise Conflict(
                    f"run {run_id} is {run.status}; cancel it first", kind=f"run_{run.status}", status=run.status
                )
            for kind in (ReplayRow, DecisionRow, CutRow, AttemptRow, ActivationRow):
                tx.delete(kind, run=run.n)
            tx.delete(RunRecord, n=run.n)

        await self._store.write(remove)

    def opening(self, trigger: str, command_id: str | None) -> Opening:
        turn_id = command_id or self._clock.uuid7()
        return Opening(turn_id=turn_id, command_id=turn_id, trigger=trigger)


def whole(reader: Reader, run: RunRecord) -> RunRecord:
    """The record with its result, however long that is, in it."""
    return msgspec.structs.replace(run, result_json=expanded(reader, run.result_json))


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
