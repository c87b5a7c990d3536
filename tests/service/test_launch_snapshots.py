"""A launch snapshot that is too long for its Run's record: nothing but the record's length tells that it is."""

from __future__ import annotations

from typing import Any

import pytest
from service_kit import Crew, House, Line, ended, everything, faults, flow, launch, path, result, step, uuid7

from refold.errors import StoreDamaged
from refold.records import LAUNCH_BYTES, ActivationRow, LaunchRow, RunRecord
from refold.service.app import App
from refold.service.listing import EVERY, Wanted
from refold.service.reruns import RerunFrom
from refold.service.sessions import queued_turns
from refold.service.tasks import NewTask
from refold.session import find_session

pytestmark = pytest.mark.anyio

LONG = "x" * LAUNCH_BYTES
CHAIN = flow(step("a", path("$.given")), step("b", path("$.a")))


async def stored(app: App, run: RunRecord) -> RunRecord:
    """The record as it stands in its row."""
    found = await app.store.read(lambda reader: reader.get(RunRecord, run.n))
    assert found is not None
    return found


async def launches(app: App) -> list[LaunchRow]:
    return (await everything(app))["LaunchRow"]


async def test_it_stands_beside_the_record_and_is_read_as_if_it_stood_in_it(house: House, crew: Crew) -> None:
    app = await house.open()
    await app.blueprints.add(CHAIN)
    named = {"kind": "id", "id": "flow"}
    short, long = [
        await ended(app, await app.tasks.launch(NewTask(blueprint=named, init_ctx={"given": given})))
        for given in ("x", LONG)
    ]
    assert [len((await stored(app, run)).input_json or "") > 80 for run in (short, long)] == [True, False]
    assert [row.run for row in await launches(app)] == [long.n]
    assert result(long) == {"given": LONG} | {name: result(long)[name] for name in ("a", "b")}
    for wanted in (EVERY, Wanted(q="flow")):
        assert [LONG in (run.input_json or "") for run in await app.runs.page(10, None, wanted)] == [True, False]


async def test_a_step_writes_no_snapshot_from_the_first_byte_above_the_limit(house: House, crew: Crew) -> None:
    app = await house.open()
    bare = len((await ended(app, await launch(app, CHAIN, given=""))).input_json or "")
    runs = [await ended(app, await launch(app, CHAIN, given="x" * (LAUNCH_BYTES - bare + more))) for more in (0, 1)]
    assert [len(run.input_json or "") - LAUNCH_BYTES for run in runs] == [0, 1]
    assert [len((await stored(app, run)).input_json or "") for run in runs] == [LAUNCH_BYTES, len("@") + 64]


async def test_an_interrupted_run_is_resumed_and_rerun_from_it(house: House, crew: Crew) -> None:
    app = await house.open()
    crew.hold("b")
    run = await launch(app, CHAIN, given=LONG)
    await crew.begun("b")
    app = await house.reboot(app)
    crew.free("b")
    assert (await app.reruns.preview_resume(run.run_id)).replayed_steps == 1
    await app.runs.resume(run.run_id)
    first = await ended(app, run)
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="b"))
    assert result(await ended(app, run))["given"] == result(first)["given"] == LONG
    (activation,) = await app.store.read(lambda reader: reader.find(ActivationRow, run=run.n, activation=2))
    names = {activation.input_json, (await stored(app, run)).input_json}
    assert names == {f"@{row.digest}" for row in await launches(app)}, "each generation has its own"
    assert len(names) == 2
    assert await faults(app) == []


async def test_a_queued_turn_waits_with_it_and_may_be_taken_back(house: House, crew: Crew) -> None:
    app = await house.open()
    await app.blueprints.add(CHAIN | {"default_init_ctx": {"given": LONG}})
    crew.hold("a")
    async with Line(app) as line:
        session = await line.start("flow")
        turns = [(await line.turn(session, str(n)))["turnId"] for n in range(3)]
        queued = await app.store.read(lambda reader: queued_turns(reader, find_session(reader, session)))
        assert [turn["turnId"] for turn in queued] == turns[1:]
        await app.turns.unqueue(uuid7(), {}, session_id=session, turn_id=turns[2])
        crew.free("a")
        for turn in turns[:2]:
            await line.turn_ended(turn)
    assert [(result(run) or {}).get("given") for run in await app.runs.page(10)] == [None, LONG, LONG]
    assert await faults(app) == []


async def test_it_goes_with_its_run(house: House, crew: Crew) -> None:
    app = await house.open()
    one, other = [await ended(app, await launch(app, CHAIN, given=LONG)) for _ in range(2)]
    await app.reruns.rerun(one.run_id, RerunFrom(from_step="b"))
    await ended(app, one)
    assert len(await launches(app)) == 3
    await app.runs.delete(one.run_id)
    assert [row.run for row in await launches(app)] == [other.n]


@pytest.mark.parametrize("damage", ["gone", "another"])
async def test_damage_of_it_is_found_and_nothing_is_run_from_it(house: House, crew: Crew, damage: str) -> None:
    app = await house.open()
    run = await ended(app, await launch(app, CHAIN, given=LONG))

    def spoil(tx: Any) -> None:
        (row,) = tx.find(LaunchRow, run=run.n)
        tx.delete(LaunchRow, run=run.n)
        if damage == "another":
            tx.insert(LaunchRow(run=run.n, digest=row.digest, body=row.body.replace("x", "y")))

    await app.store.write(spoil)
    with pytest.raises(StoreDamaged, match="its launch snapshot is gone, or another text by now"):
        await app.reruns.rerun(run.run_id, RerunFrom(from_step="b"))
    assert ["launch snapshot" in fault for fault in await faults(app)] == [True]
