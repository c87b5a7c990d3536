"""The command ledger: a command id applies once and answers the same for ever, over every door and every restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_kit import Crew, House, Json, Line, Refused, flow, path, step, uuid7

from refold.canonical import encode
from refold.records import CommandRow, RunRecord, SessionRecord
from refold.service.app import App

pytestmark = pytest.mark.anyio

TALK = flow(step("s", path("$.input"), "$.output"), id="talk")


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    app = await house.open()
    await app.blueprints.add(TALK)
    yield app


def say(text: str) -> Json:
    return [{"type": "text", "text": text}]


async def count(app: App, kind: type) -> int:
    return await app.store.read(lambda reader: len(reader.find(kind)))


async def test_a_retried_turn_is_the_same_turn_also_after_a_restart(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await line.start("talk")
        command = {"commandId": uuid7(), "sessionId": session, "input": say("once")}
        ack = await line.call("turn/start", **command)
        assert (ack["turnId"], ack["status"]) == (command["commandId"], "accepted")
        assert await line.call("turn/start", **command) == ack
        await line.turn_ended(ack["turnId"])
        assert await line.call("turn/start", **command) == ack
    app = await house.reboot(app)
    async with Line(app) as line:
        assert await line.call("turn/start", **command) == ack, "also before the Session is loaded"
        await line.resume(session)
        assert await line.call("turn/start", **command) == ack
    assert await count(app, RunRecord) == 1


async def test_a_retried_start_is_the_same_session(house: House, app: App, crew: Crew) -> None:
    command = {"commandId": uuid7(), "modelId": "talk"}
    async with Line(app) as line:
        first = await line.call("session/start", **command)
        again = await line.call("session/start", **command)
        assert (again["session"]["sessionId"], again["viewCursor"]) == (
            first["session"]["sessionId"],
            first["viewCursor"],
        )
    app = await house.reboot(app)
    async with Line(app) as line:
        again = await line.call("session/start", **command)
        assert again["viewCursor"] == first["viewCursor"]
    assert await count(app, SessionRecord) == 1


async def test_concurrent_duplicates_apply_once(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await line.start("talk")
        command = {"commandId": uuid7(), "sessionId": session, "input": say("once")}
        lines = [Line(app) for _ in range(10)]
        for each in lines:
            await each.__aenter__()
        answers = await asyncio.gather(*(each.call("turn/start", **command) for each in lines))
        assert len({encode(each) for each in answers}) == 1
        for each in lines:
            await each.__aexit__()
    assert await count(app, RunRecord) == 1


async def test_an_id_that_was_used_with_another_body_is_a_conflict(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await line.start("talk")
        ack = await line.turn(session, "once")
        used = ack["commandId"]
        bodies: list[tuple[str, Json]] = [
            ("turn/start", {"sessionId": session, "input": say("something else")}),
            ("turn/start", {"sessionId": session, "input": say("once"), "displayText": "once"}),
            ("session/start", {"modelId": "talk"}),
        ]
        for method, params in bodies:
            with pytest.raises(Refused) as no:
                await line.call(method, commandId=used, **params)
            assert (no.value.kind, no.value.data["reason"], no.value.data["commandId"]) == (
                "commandRejected",
                "command_id_conflict",
                used,
            )
    assert (await count(app, RunRecord), await count(app, SessionRecord)) == (1, 1)


async def test_a_rejection_is_an_answer_too(house: House, app: App, crew: Crew) -> None:
    crew.hold("s")
    async with Line(app) as line:
        session = await line.start("talk")
        turn = await line.turn(session, "one")
        steer = {"commandId": uuid7(), "sessionId": session, "input": say("two"), "ifBusy": "steer"}
        with pytest.raises(Refused) as first:
            await line.call("turn/start", **steer)
        crew.free("s")
        await line.turn_ended(turn["turnId"])
        with pytest.raises(Refused) as later:
            await line.call("turn/start", **steer)  # now it would be possible
        assert later.value.data == first.value.data
    app = await house.reboot(app)
    async with Line(app) as line:
        with pytest.raises(Refused) as after:
            await line.call("turn/start", **steer)
        assert after.value.data == first.value.data
    assert await count(app, RunRecord) == 1


async def test_what_was_refused_before_it_was_taken_in_may_be_tried_again(app: App, crew: Crew) -> None:
    command = {"commandId": uuid7(), "modelId": "later"}
    async with Line(app) as line:
        with pytest.raises(Refused) as no:
            await line.call("session/start", **command)
        assert (no.value.kind, no.value.data["reason"]) == ("notFound", "blueprintNotFound")
        assert await count(app, CommandRow) == 0
        await app.blueprints.add(TALK | {"id": "later"})
        assert (await line.call("session/start", **command))["session"]["modelId"] == "later"


async def test_one_resume_command_leaves_one_marker(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await line.start("talk")
    command = {"commandId": uuid7(), "sessionId": session}
    for _ in range(3):
        app = await house.reboot(app)
        async with Line(app) as line:
            await line.call("session/resume", **command)
    _, marks = await app.sessions.snapshot(session)
    assert [mark["command"] for mark in marks] == [command["commandId"]]


# -- in any order -----------------------------------------------------------------------------------------------------

SESSION = uuid7()
COMMANDS: Mapping[str, tuple[str, Json]] = {
    "start": ("session/start", {"commandId": uuid7(), "sessionId": SESSION, "modelId": "talk"}),
    "start taken": ("session/start", {"commandId": uuid7(), "sessionId": SESSION, "modelId": "talk"}),
    "turn": ("turn/start", {"commandId": uuid7(), "sessionId": SESSION, "input": say("one")}),
    "steer": ("turn/start", {"commandId": uuid7(), "sessionId": SESSION, "input": say("two"), "ifBusy": "steer"}),
}
COMMANDS |= {"turn, other body": ("turn/start", COMMANDS["turn"][1] | {"input": say("other")})}  # type: ignore[operator]
STEPS = [*COMMANDS, "reboot", "end"]


@settings(max_examples=60)
@given(st.lists(st.sampled_from(STEPS), max_size=16))
def test_an_answer_never_changes(steps: list[str]) -> None:
    """Of every command: what it was answered the first time it was taken in, it is answered ever after."""
    asyncio.run(_play(steps))


async def _play(steps: list[str]) -> None:
    answers: dict[str, Json] = {}
    crew, house = Crew(), House()
    with house.without_processes(), crew.as_python():
        crew.hold("s")
        app = await house.open()
        await app.blueprints.add(TALK)
        for each in steps:
            if each == "reboot":
                app = await house.reboot(app)
            elif each == "end":
                crew.free("s")
                crew.hold("s")
            else:
                answer = await _answer(app, *COMMANDS[each])
                if answer is not None:
                    assert answers.setdefault(each, answer) == answer
        ids = {row.command_id for row in await app.store.read(lambda reader: reader.find(CommandRow))}
        runs = await count(app, RunRecord)
        await house.close()
    taken_in = {COMMANDS[each][1]["commandId"] for each in answers}
    assert ids & {params["commandId"] for _, params in COMMANDS.values()} == taken_in
    accepted = [each for each in answers if COMMANDS[each][0] == "turn/start" and "rejected" not in answers[each]]
    assert runs == len(accepted)


async def _answer(app: App, method: str, params: Json) -> Json:
    """What is answered for ever; None for a refusal that leaves no trace."""
    async with Line(app) as line:
        try:
            if method == "turn/start":
                await line.resume(SESSION)
            said = await line.call(method, **params)
        except Refused as no:
            return {"rejected": no.data} if no.kind == "commandRejected" else None
    return said["session"]["sessionId"] if method == "session/start" else said
