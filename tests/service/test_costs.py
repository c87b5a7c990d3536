"""What a step, and what a Run, costs, counted instead of timed: the same on every machine, idle or not.

Two Runs of different length are carried through a whole App on SQLite, and the difference is divided by the difference
of their lengths: what a launch, an end or a boot costs is in neither. What a launch and an end cost together is counted
on a Run without steps, after another one like it. The figures in `MOST` and `MOST_OF_A_RUN` are what was counted, with
little room above; where one is exceeded a step or a Run has become more expensive, and where one falls far below it is
lowered.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import apsw
import orjson
import pytest
from msgspec import structs

from refold import canonical, view
from refold.canonical import digest
from refold.engine.activation import Queue
from refold.engine.driver import Driver
from refold.engine.inbox import Inbox
from refold.engine.parsed import Parsed
from refold.engine.scribe import Scribe
from refold.engine.supervisor import Supervisor
from refold.flowir import snapshots
from refold.records import AttemptRow, LogRow, ReplayRow, Row, RunRecord, ValueRow
from refold.service import app as composition
from refold.service import references, tasks
from refold.service.app import App, Settings
from refold.service.loads import Loads
from refold.service.sessions import ViewSettings
from refold.service.tasks import NewTask
from refold.session import log as session_log
from refold.store import SqliteStore, sqlite, values
from refold.store.sqlite import _SqliteTx

Json = Any
SHORT, LONG = 40, 140

MOST: Final = {
    "commits": 1.0,
    "syncs of the WAL": 1.0,
    "statements": 8.0,
    "reads beside the commit": 0.0,
    "bytes of WAL": 41_000.0,
    "JSON texts written": 9.0,
    "turns of the loop": 2.0,
}
"""`statements` are those of the writer, without its COMMITs; `reads` those of the connection that only reads."""

MOST_OF_A_RUN: Final = {
    "commits": 2.0,
    "statements": 22.0,
    "reads beside the commit": 0.0,
    "JSON texts written": 14.0,
    "turns of the loop": 6.0,
    "lines run": 1_195.0,
}
"""Of a Run without steps: its launch, its end, and the answer to who waits for it."""


WITH_THE_CTX: Final = ("lines run", "bytes of JSON written", "bytes of WAL", "bytes read")
"""What a step must not cost more of because the ctx is large. `lines run` are those of refold."""


class CountingLoop(asyncio.SelectorEventLoop):
    """A loop that counts its turns: each of them is a look at every socket, whatever is done in it."""

    turns = 0

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]


class CountingDisk(apsw.VFS):
    """The file system, with what is read, and what is written to a WAL and synced, counted."""

    def __init__(self, counted: Counter[str]) -> None:
        self.counted = counted
        super().__init__("counting", "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        return (_Wal if str(path).endswith("-wal") else _File)(self.counted, name, flags)


class _File(apsw.VFSFile):
    def __init__(self, counted: Counter[str], name: Any, flags: list[int]) -> None:
        self.counted = counted
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:
        self.counted["bytes read"] += amount
        return super().xRead(amount, offset)


class _Wal(_File):
    def xWrite(self, data: bytes, offset: int) -> None:
        self.counted["bytes of WAL"] += len(data)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self.counted["syncs of the WAL"] += 1
        super().xSync(flags)


async def answer(n: int) -> str:
    """About 1 KiB, another one for each step."""
    return base64.b64encode(hashlib.shake_128(b"%d" % n).digest(768)).decode()


def loop_of(steps: int) -> Json:
    body = {"kind": "step", "ref": "answer", "in": {"op": "path", "at": "$.n"}, "out": {"op": "path", "at": "$.r"}}
    counter = {"op": "path", "at": "$.n"}
    flow = {"kind": "loop", "counter": counter, "cond": {"op": "lit", "value": True}, "max": steps, "body": body}
    agent = {"name": "answer", "kind": "python", "spec": {"fn": "t:answer"}}
    return {"kind": "inline", "value": {"id": "costs", "flow": flow, "agents": [agent]}}


def lanes_of(lanes: int) -> Json:
    item, numbers = {"op": "path", "at": "$.i"}, {"op": "lit", "value": list(range(lanes))}
    body = {"kind": "step", "ref": "answer", "in": item, "out": {"op": "path", "at": "$.r"}}
    out = {"op": "path", "at": "$.all"}
    flow = {"kind": "fanout", "items": numbers, "bind": item, "body": body, "join": "all", "out": out}
    agent = {"name": "answer", "kind": "python", "spec": {"fn": "t:answer"}}
    return {"kind": "inline", "value": {"id": "costs", "flow": flow, "agents": [agent]}}


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What `carry` costs; counting begins where it is called."""
    counts: Counter[str] = Counter()

    def dumps(*args: Any, **how: Any) -> bytes:
        text = orjson.dumps(*args, **how)
        counts["JSON texts written"] += 1
        counts["bytes of JSON written"] += len(text)
        return text

    known = {name: getattr(orjson, name) for name in dir(orjson) if not name.startswith("__")}
    monkeypatch.setattr(canonical, "orjson", SimpleNamespace(**known | {"dumps": dumps}))
    return counts


def carry(
    steps: int,
    folder: Path,
    counts: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    members: int = 0,
    *,
    after_another: bool = False,
) -> Counter[str]:
    """What a Run of so many steps costs, from its launch, with so many members in its ctx, to its end.

    `after_another` like it, so that what a process does once is not counted.
    """
    disk, stores = CountingDisk(counts), list[Any]()

    def opened(path: Path) -> SqliteStore:
        stores.append(SqliteStore.open(path, vfs="counting"))
        return stores[-1]

    monkeypatch.setattr(composition, "SqliteStore", SimpleNamespace(open=opened))

    def statement(event: dict[str, Any]) -> None:
        counts["commits" if event["sql"] == "COMMIT" else "statements"] += 1

    def reading(event: dict[str, Any]) -> None:
        counts["reads beside the commit"] += 1

    async def run() -> None:
        settings = Settings(
            store=folder / f"{steps}.db", app={"t:answer": answer}, view=ViewSettings(compact_events=10**9)
        )
        app = await App.open(settings)
        try:
            if after_another:
                await app.runs.settled(await app.tasks.launch(NewTask(blueprint=loop_of(steps))))
            stores[0]._writer.trace_v2(apsw.SQLITE_TRACE_STMT, statement)
            stores[0]._reader.connection.trace_v2(apsw.SQLITE_TRACE_STMT, reading)
            counts.clear()
            before = loop.turns
            init_ctx = {f"m{n}": "x" * 1024 for n in range(members)}
            with lines_of_refold(counts):
                launched = await app.tasks.launch(NewTask(blueprint=loop_of(steps), init_ctx=init_ctx))
                ended = await app.runs.settled(launched)
            counts["turns of the loop"] = loop.turns - before
            assert ended.status == "done"
            found.update(counts)
        finally:
            await app.close()

    found: Counter[str] = Counter()
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        loop: Any = runner.get_loop()
        runner.run(run())
    disk.unregister()
    return found


@contextmanager
def lines_of_refold(counts: Counter[str]) -> Generator[None]:
    """Counts the lines of refold that run in the block."""

    def entered(frame: Any, event: str, arg: Any) -> Any:
        return line if "/refold/" in frame.f_code.co_filename else None

    def line(frame: Any, event: str, arg: Any) -> Any:
        counts["lines run"] += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(before)


def cost_of_a_step(
    folder: Path, counts: Counter[str], monkeypatch: pytest.MonkeyPatch, members: int = 0
) -> dict[str, float]:
    short, long = (carry(steps, folder, counts, monkeypatch, members) for steps in (SHORT, LONG))
    return {name: (long[name] - short[name]) / (LONG - SHORT) for name in {*MOST, *WITH_THE_CTX}}


def test_a_sequential_step_costs_no_more_than_it_did(
    counted: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = cost_of_a_step(tmp_path, counted, monkeypatch)
    over = {name: (cost[name], most) for name, most in MOST.items() if cost[name] > most}
    assert not over, f"a step now costs (figure, most): {over}; all figures: {cost}"
    assert cost["commits"] == cost["syncs of the WAL"] == 1.0, cost


def test_a_run_of_one_step_is_three_commits(
    counted: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launch, its attempt, and both ends at once."""
    cost = carry(1, tmp_path, counted, monkeypatch)
    assert (cost["commits"], cost["syncs of the WAL"]) == (3, 3), cost
    assert cost["statements"] <= 34, cost


def over_the_cost_of_a_run(
    folder: Path, counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[float, float]]:
    cost = carry(0, folder, counts, monkeypatch, after_another=True)
    return {name: (cost[name], most) for name, most in MOST_OF_A_RUN.items() if cost[name] > most}


def test_a_run_costs_no_more_than_it_did(
    counted: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = over_the_cost_of_a_run(tmp_path, counted, monkeypatch)
    assert not over, f"a Run without steps now costs (figure, most): {over}"


def test_a_step_costs_no_more_where_the_ctx_is_large(
    counted: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = what_grows_with_the_ctx(tmp_path, counted, monkeypatch)
    assert not over, f"(with 20 members, with 2,000): {over}"


def what_grows_with_the_ctx(
    folder: Path, counts: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, tuple[float, float]]:
    """What a step costs more of with 2,000 members of 1 KiB in its ctx than with 20; a page now and then is none."""
    costs = []
    for members in (20, 2_000):
        (folder / str(members)).mkdir()
        costs.append(cost_of_a_step(folder / str(members), counts, monkeypatch, members))
    small, large = costs
    return {name: (small[name], large[name]) for name in WITH_THE_CTX if large[name] > 1.02 * small[name] + 512}


# -- what a resume reads ----------------------------------------------------------------------------------------------

MOST_ROWS: Final = {ReplayRow: 1.0, AttemptRow: 1.0, LogRow: 0.0, ValueRow: 0.0}
"""Rows that are read for a logged step, from the boot after a crash to the first step that is run again."""


def rows_read(monkeypatch: pytest.MonkeyPatch) -> Counter[type[Row]]:
    """The rows that are read from now on, by kind."""
    reads: Counter[type[Row]] = Counter()
    made = sqlite._rows

    def counting(kind: type[Row], found: Any) -> Any:
        reads[kind] += len(found)
        return made(kind, found)

    monkeypatch.setattr(sqlite, "_rows", counting)
    return reads


def resumed(steps: int, folder: Path, monkeypatch: pytest.MonkeyPatch, *, auto: bool) -> Counter[type[Row]]:
    """What is read by a server that boots after a crash in the step after `steps`, and resumes, by itself or asked."""
    reads = rows_read(monkeypatch)

    async def run() -> None:
        reached = asyncio.Event()

        async def until(n: int) -> str:
            if n < steps:
                return await answer(n)
            reached.set()
            return await asyncio.Future[str]()

        settings = Settings(store=folder / f"{steps}.db", app={"t:answer": until})
        app = await App.open(settings)
        run = await app.tasks.launch(NewTask(blueprint=loop_of(steps + 1)))
        await reached.wait()
        await app.close()  # without draining: as a kill would leave it
        reached.clear()
        reads.clear()
        app = await App.open(structs.replace(settings, auto_resume=auto))
        try:
            assert auto or (await app.runs.resume(run.run_id)).replayed_steps == steps
            await reached.wait()
            found.update(reads)
        finally:
            await app.close()

    found: Counter[type[Row]] = Counter()
    asyncio.run(run())
    return found


@pytest.mark.parametrize("auto", [False, True], ids=["asked", "by itself"])
def test_a_resume_reads_what_is_logged_once(auto: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (resumed(steps, tmp_path, monkeypatch, auto=auto) for steps in (SHORT, LONG))
    cost = {kind: (long[kind] - short[kind]) / (LONG - SHORT) for kind in MOST_ROWS}
    assert cost == MOST_ROWS


# -- what an end reads -------------------------------------------------------------------------------------------------


def read_by_ends(waiting: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> float:
    """Records of Runs that are read for each of so many Runs, of which one at a time may run."""
    reads = rows_read(monkeypatch)

    async def run() -> None:
        app = await App.open(Settings(store=folder / f"{waiting}.db", app={"t:answer": answer}, max_running_runs=1))
        try:
            launches = [app.tasks.launch(NewTask(blueprint=loop_of(0))) for _ in range(waiting)]
            for launched in await asyncio.gather(*launches):
                assert (await app.runs.settled(launched)).status == "done"
        finally:
            await app.close()

    asyncio.run(run())
    return reads[RunRecord] / waiting


def test_an_end_reads_no_more_because_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (read_by_ends(waiting, tmp_path, monkeypatch) for waiting in (20, 200))
    assert many <= few + 1, (few, many)


# -- what a boundary costs --------------------------------------------------------------------------------------------

MOST_OF_A_BOUNDARY: Final = {
    loop_of: {"statements": 0.15, "lines run": 250.0},
    lanes_of: {"statements": 0.25, "lines run": 320.0},
}
"""For a step that it is the first to hold: two log rows, and the replay row that holds what the step said.

Lanes open and close in rows that are read apart, so each of them is made twice; of what opened them a few are read
at a time.
"""


def compacted(
    steps: int, folder: Path, monkeypatch: pytest.MonkeyPatch, flow: Callable[[int], Json] = loop_of
) -> Counter[str]:
    """What it costs to compact the Session of a Run of so many steps, all of which are new to its fold."""
    stores, found = list[Any](), Counter[str]()

    def opened(path: Path) -> SqliteStore:
        stores.append(SqliteStore.open(path))
        return stores[-1]

    monkeypatch.setattr(composition, "SqliteStore", SimpleNamespace(open=opened))

    def statement(event: dict[str, Any]) -> None:
        found["statements"] += 1

    async def run() -> None:
        settings = Settings(
            store=folder / f"{steps}.db", app={"t:answer": answer}, view=ViewSettings(compact_events=10**9)
        )
        app = await App.open(settings)
        try:
            ended = await app.runs.settled(await app.tasks.launch(NewTask(blueprint=flow(steps))))
            stores[0]._writer.trace_v2(apsw.SQLITE_TRACE_STMT, statement)
            with lines_of_refold(found):
                answered = await app.compaction.compact("c", {}, session_id=ended.session_id)
            assert answered == {"status": "accepted"}
        finally:
            await app.close()

    asyncio.run(run())
    return found


def cost_of_a_boundary(
    folder: Path, monkeypatch: pytest.MonkeyPatch, flow: Callable[[int], Json] = loop_of
) -> dict[str, float]:
    short, long = (compacted(steps, folder, monkeypatch, flow) for steps in (SHORT, LONG))
    return {name: (long[name] - short[name]) / (LONG - SHORT) for name in MOST_OF_A_BOUNDARY[flow]}


@pytest.mark.parametrize("flow", MOST_OF_A_BOUNDARY)
def test_a_boundary_costs_no_more_than_it_did(
    flow: Callable[[int], Json], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_log, "READ_ROWS", SHORT)
    cost = cost_of_a_boundary(tmp_path, monkeypatch, flow)
    over = {name: (cost[name], most) for name, most in MOST_OF_A_BOUNDARY[flow].items() if cost[name] > most}
    assert not over, f"a step in a boundary now costs (figure, most): {over}; all figures: {cost}"


# -- what the counters are worth: each of them sees its cost doubled --------------------------------------------------


def _twice(owner: Any, name: str, again: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Makes every call of `owner.name` do `again` first."""
    before = getattr(owner, name)

    def doubled(*args: Any) -> Any:
        again(*args)
        return before(*args)

    return lambda monkeypatch: monkeypatch.setattr(owner, name, doubled)


def _awaits_first(owner: Any, name: str, first: Callable[[], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Makes every call of the coroutine `owner.name` await `first()`."""
    before = getattr(owner, name)

    async def late(*args: Any) -> Any:
        await first()
        return await before(*args)

    return lambda monkeypatch: monkeypatch.setattr(owner, name, late)


def _commits_first(store: Any, _: Any) -> None:
    for text in ("BEGIN IMMEDIATE", "UPDATE run SET updated_at = updated_at + 1", "COMMIT"):
        store._writer.execute(text)


def _writes_much(store: Any, _: Any) -> None:
    text = "INSERT INTO meta (key, value) VALUES (?, zeroblob(50000))"
    store._writer.execute(text, (f"much {store._writer.total_changes()}",))


def _reports_late(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Inbox.take

    async def late(inbox: Inbox[Any]) -> Any:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await before(inbox)

    monkeypatch.setattr(Inbox, "take", late)


PLANTS: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "commits": _twice(SqliteStore, "_apply", _commits_first),
    "syncs of the WAL": _twice(SqliteStore, "_apply", _commits_first),
    "statements": _twice(_SqliteTx, "_change_all", lambda tx, *_: tx.connection.execute("SELECT 1")),
    "bytes of WAL": _twice(SqliteStore, "_apply", _writes_much),
    "JSON texts written": _twice(canonical, "_fast", canonical._fast),
    "turns of the loop": _reports_late,
}


@pytest.mark.parametrize("name", PLANTS)
def test_what_is_done_twice_is_seen(
    name: str, counted: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    PLANTS[name](monkeypatch)
    assert cost_of_a_step(tmp_path, counted, monkeypatch)[name] > MOST[name]


def _says_nothing_of_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Supervisor.announce
    monkeypatch.setattr(Supervisor, "announce", lambda supervisor, run_n, *_: before(supervisor, run_n))


def _loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Loads, "driven", lambda loads, run: None)


def _walks_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "_may_refer", lambda value: True)


PLANTS_OF_A_RUN: Final[dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]]] = {
    "who waits is told nothing, and reads": ("reads beside the commit", _says_nothing_of_the_end),
    "a Session is read so that it is loaded": ("reads beside the commit", _loads_nothing),
    "a body is hashed at each launch": ("JSON texts written", _twice(Parsed, "get", lambda _, value: digest(value))),
    "a body is walked at each launch": ("lines run", _walks_bodies),
    "a body is looked at part by part over and over": (
        "lines run",
        lambda monkeypatch: monkeypatch.setattr(tasks, "encode_known", canonical.encode),
    ),
    "what is queued is looked for twice": (
        "statements",
        _twice(Queue, "launch_next", lambda _, tx, *__: tx.find(RunRecord, status="pending", limit=1)),
    ),
    "an end is a gathering of nothing": (
        "turns of the loop",
        _awaits_first(Driver, "_stop_all", lambda: asyncio.gather(asyncio.sleep(0))),
    ),
}


@pytest.mark.parametrize("plant", PLANTS_OF_A_RUN)
def test_what_a_run_does_for_nothing_is_seen(
    plant: str, counted: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, break_it = PLANTS_OF_A_RUN[plant]
    break_it(monkeypatch)
    assert name in over_the_cost_of_a_run(tmp_path, counted, monkeypatch)


def _launched_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "stored_json", lambda text, most: (text, None))
    monkeypatch.setattr(tasks, "put_launch", lambda tx, run, text, most: text)


GROWTH: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "lines run": lambda monkeypatch: monkeypatch.setattr(snapshots, "_tree", lambda paths: None),
    "bytes of JSON written": _twice(Scribe, "passed", lambda scribe, done, value, ctx: canonical.encode(ctx)),
    "bytes read": _launched_in_the_record,
    "bytes of WAL": _launched_in_the_record,
}


@pytest.mark.parametrize("name", GROWTH)
def test_what_grows_with_the_ctx_is_seen(
    name: str, counted: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    GROWTH[name](monkeypatch)
    assert name in what_grows_with_the_ctx(tmp_path, counted, monkeypatch)


BOUNDARY_PLANTS: Final[dict[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "statements": lambda monkeypatch: monkeypatch.setattr(values, "AHEAD_ROWS", 1),
    "lines run": _twice(session_log, "catch_up", lambda state, *rest: view.catch_up(state.copy(), *rest)),
}


@pytest.mark.parametrize("name", BOUNDARY_PLANTS)
def test_what_a_boundary_costs_more_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    BOUNDARY_PLANTS[name](monkeypatch)
    assert cost_of_a_boundary(tmp_path, monkeypatch)[name] > MOST_OF_A_BOUNDARY[loop_of][name]
