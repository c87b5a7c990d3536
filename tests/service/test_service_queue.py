"""The queue of a Session: one activation at a time, and what the next turn knows of those before it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from service_kit import Crew, House, Line, Refused, ended, faults, flow, lit, path, result, step

from refold.canonical import decode, encode
from refold.engine import activation
from refold.engine.agents import Assignment, Report
from refold.flowir import Failed, Pass
from refold.records import LogRow, LogType, RunRecord, RunStatus, SessionRecord
from refold.service.app import App
from refold.store import Reader

pytestmark = pytest.mark.anyio

TALK = flow(step("s", path("$"), "$.output"), id="talk")
S = RunStatus


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    app = await house.open()
    await app.blueprints.add(TALK)
    yield app


async def runs(app: App) -> list[RunRecord]:
    return await app.store.read(lambda reader: reader.find(RunRecord))


async def statuses(app: App) -> list[str]:
    return [run.status for run in await runs(app)]


def bug(work: Assignment) -> Report:
    raise LookupError("a bug in an agent")


async def queued(line: Line, crew: Crew, *texts: str) -> tuple[str, list[str]]:
    """A Session whose first turn is under way and has others behind it: its id, and all turn ids."""
    crew.hold("s")
    session = await line.start("talk")
    answers = [await line.turn(session, text) for text in texts]
    await crew.begun("s")
    assert [each["disposition"] for each in answers] == ["started", *["queued"] * (len(texts) - 1)]
    return session, [each["turnId"] for each in answers]


async def test_turns_run_one_after_the_other_in_their_order(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session, turns = await queued(line, crew, "one", "two", "three")
        assert await statuses(app) == [S.RUNNING, S.PENDING, S.PENDING]
        snapshot = (await line.resume(session, history="snapshot"))["history"]["snapshot"]["state"]
        assert [turn["turnId"] for turn in snapshot["queuedTurns"]] == turns[1:]
        crew.free("s")
        await line.turn_ended(turns[-1])
        assert [work.directive["input"] for work in crew.of("s")] == ["one", "two", "three"]
        starts = [frame for frame in line.pushed(session) if frame["method"].startswith("turn/")]
        assert [(frame["method"], frame["params"]["turnId"]) for frame in starts] == [
            (method, turn) for turn in turns for method in ("turn/started", "turn/completed")
        ]
        assert await faults(app) == []


@pytest.mark.parametrize("end", ["done", "failed", "cancelled"])
async def test_the_next_turn_launches_in_the_commit_of_the_end(app: App, crew: Crew, end: str) -> None:
    stalls: list[Any] = []
    write = app.store.write

    async def watched(fn: Callable[..., Any]) -> Any:
        done = await write(fn)
        stalls.extend(await app.store.read(stalled))
        return done

    async with Line(app) as line:
        _, turns = await queued(line, crew, "one", "two")
        app.store.write = watched
        if end == "cancelled":
            await app.runs.cancel((await runs(app))[0].run_id)
        elif end == "failed":
            crew.acts["s"] = lambda work: Report(Failed("no"))
        crew.free("s")
        await line.turn_ended(turns[-1])
        assert stalls == [], "a Session was idle, not held, and had a Run in its queue"
        log = await app.store.read(lambda reader: reader.find(LogRow))
        order = [row.type for row in log if row.type.startswith("turn.")]
        closed = LogType.TURN_COMPLETED if end == "done" else LogType.TURN_ENDED
        assert order[:3] == [LogType.TURN_OPENED, closed, LogType.TURN_OPENED]


def stalled(reader: Reader) -> list[RunRecord]:
    """Pending Runs that nothing holds back."""
    idle = {each.n for each in reader.find(SessionRecord) if each.active_run is None and not each.held}
    return [run for run in reader.find(RunRecord, status=S.PENDING) if run.session in idle]


@pytest.mark.parametrize("end", ["fall", "crash", "shutdown"])
async def test_after_an_interruption_the_queue_is_held_until_a_kick(
    house: House, app: App, crew: Crew, end: str
) -> None:
    async with Line(app) as line:
        session, _ = await queued(line, crew, "one", "two")
        first = (await runs(app))[0]
        if end == "fall":
            crew.acts["s"] = bug
            crew.free("s")
            await ended(app, first)
            crew.acts.clear()
            crew.hold("s")
    if end == "shutdown":
        await app.drain()
    if end != "fall":
        app = await house.reboot(app)
    assert await statuses(app) == [S.INTERRUPTED, S.PENDING]
    await app.runs.cancel(first.run_id)
    assert await statuses(app) == [S.CANCELLED, S.PENDING], "a cancel is no kick"
    async with Line(app) as line:
        await line.resume(session)
        kick = await line.turn(session, "three")
        assert kick["disposition"] == "queued", "the kick lets the queue go; the older turn goes first"
        assert await statuses(app) == [S.CANCELLED, S.RUNNING, S.PENDING]
        crew.free("s")
        await line.turn_ended(kick["turnId"])
    assert [work.directive["input"] for work in crew.of("s")] == ["one", "two", "three"]
    assert await statuses(app) == [S.CANCELLED, S.DONE, S.DONE]
    assert await faults(app) == []


async def test_a_resume_runs_its_own_run_first_and_then_the_queue(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        await queued(line, crew, "one", "two")
    app = await house.reboot(app)
    first, second = await runs(app)
    await app.runs.resume(first.run_id)
    await crew.begun("s", 2)
    assert await statuses(app) == [S.RUNNING, S.PENDING]
    crew.free("s")
    await ended(app, second)
    assert [work.directive["input"] for work in crew.of("s")] == ["one", "one", "two"]


async def test_a_turn_knows_its_number_and_what_the_last_done_one_left(app: App, crew: Crew) -> None:
    def act(work: Assignment) -> Report:
        text = work.directive["input"]
        return Report(Failed("no") if text == "two" else Pass(f"heard {text}"))

    crew.acts["s"] = act
    async with Line(app) as line:
        session, turns = await queued(line, crew, "one", "two", "three")
        crew.free("s")
        await line.turn_ended(turns[-1])
        await line.turn_ended((await line.turn(session, "four"))["turnId"])
    asked = [work.directive for work in crew.of("s")]
    finals = [result(run) for run in await runs(app)]
    assert [each["turn"] for each in asked] == [1, 2, 3, 4]
    assert [each["previous"] for each in asked] == [None, finals[0], finals[0], finals[2]]
    assert await statuses(app) == [S.DONE, S.FAILED, S.DONE, S.DONE]


async def test_what_a_turn_remembers_is_bounded(app: App, crew: Crew) -> None:
    crew.acts["s"] = lambda work: Report(Pass("said"))
    async with Line(app) as line:
        session = await line.start("talk")
        for n in range(14):
            await line.turn_ended((await line.turn(session, str(n)))["turnId"])
    depths = []
    for work in crew.of("s"):
        ctx, depth = work.directive, 0
        while (ctx := ctx["previous"]) is not None:
            depth += 1
        depths.append(depth)
    assert depths == [min(n, 9) for n in range(14)]


async def test_a_turn_remembers_what_a_step_was_given_whole(app: App, crew: Crew) -> None:
    """The final ctx is handed on as it is, also where its outputs repeat the turn before."""
    crew.acts["s"] = lambda work: Report(Pass(work.directive))
    await app.blueprints.add(flow(step("s", path("$"), "$.output"), id="echoes"))
    async with Line(app) as line:
        session = await line.start("echoes")
        for n in range(3):
            await line.turn_ended((await line.turn(session, str(n)))["turnId"])
    one, two, three = (work.directive for work in crew.of("s"))
    assert (two["previous"], three["previous"]) == (one | {"output": one}, two | {"output": two})


async def test_lanes_do_not_multiply_what_a_turn_remembers(
    app: App, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes begin with the whole ctx and end as values in it: 3 lanes, 12 turns, and 3¹² copies of the first turn."""
    monkeypatch.setattr(activation, "PREVIOUS_BYTES", 0)
    lanes = {
        "kind": "fanout",
        "items": lit([1, 2, 3]),
        "bind": path("$.i"),
        "join": "all",
        "out": path("$.lanes"),
        "body": step("s", path("$.input")),
    }
    await app.blueprints.add(flow(lanes, id="lanes"))
    async with Line(app) as line:
        session = await line.start("lanes")
        for n in range(12):
            await line.turn_ended((await line.turn(session, str(n)))["turnId"])
    launched = [await app.runs.get(run.run_id) for run in await runs(app)]
    told = [decode(run.input_json or "")["init_ctx"] for run in launched]
    sizes = [len(encode(ctx)) for ctx in told]
    assert max(sizes) < 20 * sizes[1]
    for before, ctx in itertools.pairwise(told):
        assert [lane["s"]["got"] for lane in ctx["previous"]["lanes"]] == [before["input"]] * 3
        assert [lane["previous"] for lane in ctx["previous"]["lanes"]] == [None] * 3
        assert ctx["previous"]["input"] == before["input"]


async def test_a_queued_turn_that_is_cancelled_leaves_the_queue_and_says_so(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session, turns = await queued(line, crew, "one", "two", "three")
        second = (await runs(app))[1]
        await app.runs.cancel(second.run_id)
        unqueued = await line.until(lambda frame: frame.get("method") == "turn/unqueued")
        assert (unqueued["params"]["turnId"], unqueued["params"]["commandId"]) == (turns[1], turns[1])
        crew.free("s")
        await line.turn_ended(turns[-1])
        assert [work.directive["input"] for work in crew.of("s")] == ["one", "three"]
        page = await line.page(session)
        assert turns[1] not in [frame["params"]["turnId"] for frame in page if frame["method"] == "turn/started"]
    assert await statuses(app) == [S.DONE, S.CANCELLED, S.DONE]


async def test_a_steer_that_no_agent_takes_is_rejected_and_named(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session, _ = await queued(line, crew, "one")
        with pytest.raises(Refused, match="steer_unsupported"):
            await line.turn(session, "two", ifBusy="steer")
        assert await statuses(app) == [S.RUNNING]


async def test_a_turn_that_replaces_the_running_one_goes_ahead_of_the_queue(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session, turns = await queued(line, crew, "one", "two")
        third = await line.turn(session, "three", ifBusy="replace")
        assert third["disposition"] == "started"
        assert (await line.turn_ended(turns[0]))["terminal"] == "cancelled"
        crew.free("s")
        await line.turn_ended(turns[1])
    assert [work.directive["input"] for work in crew.of("s")] == ["one", "three", "two"]
    assert await statuses(app) == [S.CANCELLED, S.DONE, S.DONE]
    assert await faults(app) == []


async def test_a_turn_of_a_session_that_is_not_loaded_is_refused(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await line.start("talk")
    app = await house.reboot(app)
    async with Line(app) as line:
        with pytest.raises(Refused, match="sessionNotLoaded"):
            await line.turn(session)
        assert await statuses(app) == []
        await line.resume(session)
        assert (await line.turn(session))["disposition"] == "started"
