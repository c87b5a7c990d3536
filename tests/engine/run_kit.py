"""What the tests of drivers share: a bench on which Runs are driven without a server, and agents that obey a test.

A `Bench` is what one process holds of a store: a supervisor, its tools, a clock that stands. `crash` takes it away as
kill -9 does, `boot` is the next process. A `Crew` is every agent of kind `python`. A `Door` stands before the store: it
keeps what was committed, and holds or fails it where a test wants that. Nothing sleeps; what is waited for is polled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engine_kit import Ledger, until_async

from refold import view
from refold.canonical import decode, encode
from refold.engine import agents as kinds
from refold.engine.activation import Opening, close_activation, open_activation
from refold.engine.agents import Assignment, Report, Tools
from refold.engine.capacity import Capacity
from refold.engine.clock import Clock
from refold.engine.secrets import Secrets
from refold.engine.supervisor import Supervisor
from refold.engine.sweeps import SERVER_RESTART, interrupt_running
from refold.errors import CommitFailed
from refold.flowir import Pass
from refold.flowir.lifecycle import Verb
from refold.records import (
    AttemptRow,
    LogRow,
    LogType,
    ReplayRow,
    RunRecord,
    SessionRecord,
    TaskRecord,
    genesis,
)
from refold.store import MemoryStore, SqliteStore, StepCommit, Store
from refold.store.audit import audit
from refold.testing.history import sample

Json = Any
Act = Callable[[Assignment], Report | Awaitable[Report]]

PATIENCE_SECS = 20.0
NOON = 1_790_000_000_000


# -- flows ------------------------------------------------------------------------------------------------------------


def path(at: str) -> Json:
    return {"op": "path", "at": at}


def lit(value: Json) -> Json:
    return {"op": "lit", "value": value}


def step(ref: str, given: Json = None, out: str | None = None) -> Json:
    """A step; `given` is a path where it starts with `$`, else a literal."""
    value = path(given) if isinstance(given, str) and given.startswith("$") else lit(given)
    return {"kind": "step", "ref": ref, "in": value, "out": path(out or f"$.{ref}")}


def seq(*nodes: Json) -> Json:
    return {"kind": "seq", "children": list(nodes)}


def fanout(items: list[Json], body: Json, join: str = "all", **more: Json) -> Json:
    return {
        "kind": "fanout",
        "items": lit(items),
        "bind": path("$.i"),
        "body": body,
        "join": join,
        "out": path("$.r"),
    } | more


def first_or(first: Json, other: Json) -> Json:
    """What lane 0 of a fan-out does, and what the others do."""
    cond = {"op": "eq", "lhs": path("$.i"), "rhs": lit(0)}
    return {"kind": "branch", "cond": cond, "then": first, "else": other}


def guard(body: Json, catch: Json | None = None) -> Json:
    return {"kind": "try", "body": body, "catch": catch or seq(), "err_at": path("$.err")}


def agent(name: str, **policy: Json) -> Json:
    """One of the crew, with its `retry`, `timeout_secs` and so on."""
    return {"name": name, "kind": "python", "spec": {"fn": "builtin:echo"}} | policy


def _refs(node: Json) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(_refs, node))
    if not isinstance(node, dict):
        return set()
    own = {node["ref"]} if node.get("kind") == "step" else set()
    return own.union(*(_refs(part) for part in node.values()))


# -- agents -----------------------------------------------------------------------------------------------------------


class Crew:
    """Performs every step of kind `python`: by `acts` for its name, else it passes what it was given."""

    def __init__(self) -> None:
        self.acts: dict[str, Act] = {}
        self.seen: list[Assignment] = []
        self.at_work = 0
        self.most_at_work = 0
        self.stopped: list[Assignment] = []

    async def perform(self, work: Assignment) -> Report:
        self.seen.append(work)
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        try:
            report = self.acts.get(work.step_ref, passes)(work)
            return report if isinstance(report, Report) else await report
        except asyncio.CancelledError:
            self.stopped.append(work)
            raise
        finally:
            self.at_work -= 1

    def hold(self, *names: str) -> asyncio.Event:
        """Steps of these names pass once the event is set."""
        gate = asyncio.Event()

        async def wait(work: Assignment) -> Report:
            await gate.wait()
            return passes(work)

        self.acts |= dict.fromkeys(names, wait)
        return gate

    def times(self, name: str) -> int:
        return sum(work.step_ref == name for work in self.seen)


def passes(work: Assignment) -> Report:
    """What a member of the crew answers."""
    return Report(Pass(work.directive))


# -- the store --------------------------------------------------------------------------------------------------------


class Door:
    """A store in front of a store. `steps` are the commits of drivers that got through."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.steps: list[StepCommit] = []
        self.failures = 0
        self.shuts_before: int | None = None
        """The number of commits that still get through before the disk is full."""
        self.gate = asyncio.Event()
        self.gate.set()
        self.at_gate = 0

    async def commit(self, step: StepCommit, also: Any = None) -> tuple[int, ...]:
        self.at_gate += 1
        await self.gate.wait()
        self.at_gate -= 1
        self._check()
        seqs = await self.inner.commit(step, also)
        self.steps.append(step)
        return seqs

    async def write(self, fn: Callable[..., Any]) -> Any:
        self._check(writes=0)
        return await self.inner.write(fn)

    def _check(self, writes: int = 1) -> None:
        if self.shuts_before is None:
            return
        if self.shuts_before > 0:
            self.shuts_before -= writes
            return
        self.failures += 1
        raise CommitFailed("the disk is full")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


# -- the bench --------------------------------------------------------------------------------------------------------


class StandingClock(Clock):
    """A wall clock that a test moves."""

    def __init__(self) -> None:
        self.ms = NOON

    def now_ms(self) -> int:
        return self.ms


class Bench:
    """What one process holds of a store."""

    def __init__(self, store: Store, clock: StandingClock, crew: Crew, **tools: Any) -> None:
        self.door = store if isinstance(store, Door) else Door(store)
        self.store: Any = self.door
        self.clock = clock
        self.crew = crew
        self.replay = tools.pop("replay", True)
        self.capacity = tools.setdefault("capacity", Capacity(64, 16))
        tools.setdefault("secrets", Secrets(environ={}))
        self.tools = Tools(reaper=Ledger(), clock=clock, **tools)
        self.supervisor = Supervisor(self.store, clock, self.tools, replay=self.replay)

    def again(self, **tools: Any) -> Bench:
        """Another process on the same store."""
        return Bench(self.door, self.clock, self.crew, **tools)

    # -- what is done ----------------------------------------------------------------------------------------------

    async def launch(self, flow: Json, *agents: Json, **ctx: Json) -> RunRecord:
        """Creates a Task with its Session and a Run, launches and drives it. The crew performs what is not listed."""
        listed = {each["name"] for each in agents}
        crew = [agent(name) for name in sorted(_refs(flow) - listed)]
        value = {"id": "test", "flow": flow, "agents": [*agents, *crew]}
        run = await self.store.write(lambda tx: self._launch(tx, value, ctx))
        self.supervisor.drive(run)
        return run

    def _launch(self, tx: Any, value: Json, ctx: Json) -> RunRecord:
        mint = self.clock.mint
        session_id, task_id, run_id = self.clock.uuid7(), mint("T-"), mint("R-")
        task = tx.insert(sample(TaskRecord, task_id=task_id, session_id=session_id, status="pending"))
        session = tx.insert(
            sample(SessionRecord, session_id=session_id, task=task.n, chain=genesis(session_id), active_run=None)
        )
        launch = {
            "blueprint": {"id": "test", "version": "0", "value": value},
            "init_ctx": ctx,
            "subprocess": "any",
            "kick": msgspec.to_builtins(self.opening()),
        }
        owners = {"task": task.n, "task_id": task_id, "session": session.n, "session_id": session_id}
        run = tx.insert(
            sample(
                RunRecord,
                run_id=run_id,
                status="pending",
                generation=1,
                turn_id=self.clock.uuid7(),
                input_json=encode(launch),
                chain=genesis(run_id),
                labels_json="{}",
                created_at=self.clock.ms,
                **owners,
            )
        )
        return open_activation(tx, run, Verb.LAUNCH, self.opening(), self.clock.ms)

    def opening(self) -> Opening:
        """How an activation begins that nobody asked for in words."""
        turn_id = self.clock.uuid7()
        return Opening(turn_id=turn_id, command_id=turn_id, trigger="test")

    async def boot(self) -> None:
        """What a process does first: interrupts what a dead one left."""
        await self.store.write(lambda tx: interrupt_running(tx, SERVER_RESTART, self.clock.ms))

    async def crash(self, **tools: Any) -> Bench:
        """Takes this process away with everything it was doing, and boots the next one."""
        await self.supervisor.stop_all()
        after = self.again(**tools)
        await after.boot()
        return after

    async def resume(self, run: RunRecord) -> RunRecord:
        """Resumes an interrupted Run and drives it."""

        def resume(tx: Any) -> RunRecord:
            return open_activation(tx, tx.get(RunRecord, run.n), Verb.RESUME, self.opening(), self.clock.ms)

        resumed = await self.store.write(resume)
        self.supervisor.drive(resumed)
        return resumed

    async def cancel(self, run: RunRecord) -> None:
        """Cancels a running Run: durable first, then its work is stopped."""
        result = {"at": self.clock.ms, "result": {"error": "cancelled"}, "reason": "cancelled"}
        await self.store.write(lambda tx: close_activation(tx, run, Verb.CANCEL, self.supervisor.queue, **result))
        await self.supervisor.stop(run.n)

    async def ended(self, run: RunRecord) -> RunRecord:
        """The Run once it is not running any more."""
        async with asyncio.timeout(PATIENCE_SECS):
            while True:
                settled = self.supervisor.settled(run.n)
                now = await self.get(run)
                if now.status != "running":
                    settled.cancel()
                    return now
                await settled

    # -- what is seen ----------------------------------------------------------------------------------------------

    async def get(self, run: RunRecord) -> RunRecord:
        return await self.store.read(lambda reader: reader.get(RunRecord, run.n))

    async def attempts(self, run: RunRecord) -> list[AttemptRow]:
        return await self.store.read(lambda reader: reader.find(AttemptRow, run=run.n))

    async def rows(self, run: RunRecord) -> list[ReplayRow]:
        return await self.store.read(lambda reader: reader.find(ReplayRow, run=run.n))

    async def log(self, run: RunRecord) -> list[LogRow]:
        return await self.store.read(lambda reader: reader.log(run.session, 0))

    async def frames(self, run: RunRecord) -> list[Json]:
        """What clients see, in order."""
        log = await self.log(run)
        return [
            frame for _, frame in view.frames_after(log, {}, run.session_id, view.minter(b"k" * 32, run.session_id))
        ]

    async def faults(self) -> list[str]:
        """What the audit finds; empty while the laws hold."""
        return await self.store.read(audit)

    async def waits_on(self, run: RunRecord, what: str | None) -> None:
        """Waits until the Run says on record what it waits for."""

        async def said() -> bool:
            return (await self.get(run)).waiting_on == what

        await eventually(said)


def result(run: RunRecord) -> Json:
    """The final ctx of a Run that is done, or its error."""
    return decode(run.result_json or "null")


async def eventually(test: Callable[[], Any]) -> Any:
    """Waits until the test, which may be a coroutine function, answers something true."""
    async with asyncio.timeout(PATIENCE_SECS):
        while True:
            found = test()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return found
            await until_async(lambda: False, 0.002)


def free_slots(capacity: Capacity, kind: str = "python") -> int:
    """How many slots are free: takes all of them, and gives them back."""
    taken = 0
    while capacity.take(kind):
        taken += 1
    for _ in range(taken):
        capacity.give(kind)
    return taken


def assert_items_closed_once(log: list[LogRow]) -> None:
    """Every item of a step was opened once and closed once."""
    opened = Counter(row.item_id for row in log if row.type == LogType.STEP_DISPATCHED)
    closed = Counter(row.item_id for row in log if row.type == LogType.STEP_COMPLETED)
    assert opened == closed
    assert set(opened.values()) <= {1}


@contextlib.asynccontextmanager
async def bench_of(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **tools: Any) -> AsyncIterator[Bench]:
    """A bench on a `memory` or `sqlite` store. What it leaves has to pass the audit, with every slot free again."""
    crew = Crew()
    monkeypatch.setitem(kinds.KINDS, "python", lambda definition, tools: crew)
    store = MemoryStore() if kind == "memory" else SqliteStore.open(tmp_path / "store" / "refold.db")
    bench = Bench(store, StandingClock(), crew, **tools)
    before = free_slots(bench.capacity)
    try:
        yield bench
        await bench.supervisor.stop_all()
        assert free_slots(bench.capacity) == before
        assert bench.crew.at_work == 0
        assert await bench.faults() == []
    finally:
        await bench.supervisor.stop_all()
        await store.close()
