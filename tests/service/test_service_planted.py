"""Planted faults: each law here is shown to hold, and its checker to see when it does not.

Every test runs twice, as the code is and with one line of it taken out. The second run is what makes the first count.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from unittest import mock

import pytest
from service_kit import (
    Crew,
    House,
    Line,
    Refused,
    answer,
    cursor_of,
    ended,
    flow,
    launch,
    lit,
    path,
    result,
    seq,
    step,
    uuid7,
)

from refold.canonical import digest
from refold.engine.agents import Assignment, Report
from refold.flowir import Pass
from refold.records import SessionRecord
from refold.service.sessions import Sessions
from refold.session import Subscription
from refold.view import Position

pytestmark = pytest.mark.anyio

TALK = flow(step("s", path("$.input"), "$.output"), id="talk")
Fault = Callable[[], AbstractContextManager[object]]


def planted(fault: Fault) -> pytest.MarkDecorator:
    """Runs a test as things are, and with the fault; `sound` says which it is."""
    return pytest.mark.parametrize(("fault", "sound"), [(nullcontext, True), (fault, False)], ids=["sound", "planted"])


async def turn(line: Line, session: str, text: str) -> None:
    await line.turn_ended((await line.turn(session, text))["turnId"])


async def takes(line: Line, session: str, cursor: str) -> bool:
    """Whether calls that name the cursor are answered by anything but the one refusal; all of them, or none."""
    said = []
    for method, params in (
        ("session/resume", {"cursor": cursor, "commandId": uuid7()}),
        ("view/page", {"cursor": cursor, "limit": 5}),
        ("view/subscribe", {"after": cursor}),
    ):
        try:
            await line.call(method, sessionId=session, **params)
            said.append(True)
        except Refused as no:
            unknown = {"kind": "notFound", "reason": "missingAnchor", "sessionId": session}
            said.append((no.code, no.data) != (-32011, unknown))
    assert len(set(said)) == 1
    return said[0]


# -- cursors ----------------------------------------------------------------------------------------------------------


@planted(lambda: mock.patch("refold.session.log.holds", lambda claim, row: True))
async def test_a_cursor_of_another_history_is_unknown(crew: Crew, fault: Fault, sound: bool) -> None:
    """A store is copied and both go on: what each wrote after the copy is nothing to the other."""
    ours, theirs = House(), House()
    with ours.without_processes():
        app = await ours.open()
        await app.blueprints.add(TALK)
        async with Line(app) as line:
            session = await line.start("talk")
            await turn(line, session, "common")
            common = cursor_of((await line.page(session))[-1])
        theirs.copy_of(ours)
        app = await ours.reboot(app)
        async with Line(app) as line:
            await line.resume(session)
            await turn(line, session, "ours")
            after = [cursor_of(frame) for frame in (await line.page(session, cursor=common))]
    with theirs.without_processes():
        twin = await theirs.open()
        async with Line(twin) as line:
            await line.resume(session)
            await turn(line, session, "theirs")
            assert await takes(line, session, common)
            with fault():
                taken = [await takes(line, session, cursor) for cursor in after]
        assert taken == [not sound] * len(after)
    await ours.close()
    await theirs.close()


def forged(cursor: str) -> Iterator[str]:
    """Cursors that a client makes of its own one: another frame of the row, another fragment, a byte of each part."""
    data = bytearray(base64.urlsafe_b64decode(cursor))
    seq_at, k_at, fragment_at = 17, 25, 26
    for at in (k_at, fragment_at + 3):
        copy = bytearray(data)
        copy[at] ^= 1
        yield base64.urlsafe_b64encode(copy).decode()
    assert data[seq_at:k_at] != bytes(8)


@planted(lambda: mock.patch("refold.view.cursor._is_own", lambda *_: True))
async def test_a_forged_cursor_is_unknown(house: House, crew: Crew, fault: Fault, sound: bool) -> None:
    app = await house.open()
    await app.blueprints.add(TALK)
    async with Line(app) as line:
        session = await line.start("talk")
        await turn(line, session, "hello")
        page = await line.page(session)
        (opened,) = [frame for frame in page if frame["method"] == "turn/started"]
        own = cursor_of(opened)  # frame 0 of a row that has more
        assert await takes(line, session, own)
        with fault():
            assert [await takes(line, session, each) for each in forged(own)] == [not sound] * 2


async def test_whatever_is_no_cursor_of_this_session_gets_one_answer(house: House, crew: Crew) -> None:
    app = await house.open()
    await app.blueprints.add(TALK)
    async with Line(app) as line:
        session, other = await line.start("talk"), await line.start("talk")
        await turn(line, session, "hello")
        own = cursor_of((await line.page(session))[3])
        foreign = cursor_of((await line.page(other))[0])
        strange = [foreign, "", "not a cursor", own[:-1], own + "A", own[:-1] + ("A" if own[-1] != "A" else "B"),
                   own.swapcase(), own + "=", " " + own, own.replace("-", "+").replace("_", "/") + " "]  # fmt: skip
        assert not any([await takes(line, session, each) for each in strange])
        assert await takes(line, session, own)


# -- suffixes ---------------------------------------------------------------------------------------------------------


def starting_at() -> AbstractContextManager[object]:
    """A suffix that begins at its cursor instead of after it."""
    subscription = Sessions.subscription

    def wrong(self: Sessions, session: SessionRecord, after: Position, **more: bool) -> Subscription:
        return subscription(self, session, Position(after.seq, after.k - 1), **more)

    return mock.patch.object(Sessions, "subscription", wrong)


@planted(starting_at)
async def test_a_suffix_begins_strictly_after_its_cursor(house: House, crew: Crew, fault: Fault, sound: bool) -> None:
    app = await house.open()
    await app.blueprints.add(TALK)
    async with Line(app) as line:
        session = await line.start("talk")
        await turn(line, session, "hello")
        page = await line.page(session)
        (at,) = [at for at, frame in enumerate(page) if frame["params"].get("item", {}).get("kind") == "userMessage"]
    with fault():
        async with Line(app) as line:
            await line.resume(session, cursor=cursor_of(page[at]))
            first = await line.until(lambda frame: "sourceRange" in frame.get("params", {}))
        assert (cursor_of(first) == cursor_of(page[at + 1])) is sound


# -- lanes ------------------------------------------------------------------------------------------------------------


@planted(lambda: mock.patch("refold.flowir.machine.input_hash", lambda directive, lane=(): digest(directive)))
async def test_lanes_that_ask_the_same_keep_their_own_answers(
    house: House, crew: Crew, fault: Fault, sound: bool
) -> None:
    """Three lanes reach equal steps in the order 2, 1, 0; after the crash they reach them in the order 0, 1, 2."""
    gates = [asyncio.Event() for _ in range(3)]

    async def in_turn(work: Assignment) -> Report:
        await gates[work.lane[0][1]].wait()
        return answer(work)

    async def ask(work: Assignment) -> Report:
        lane = work.lane[0][1]
        if lane:
            gates[lane - 1].set()  # the next one may come
        return Report(Pass({"for": lane}))

    crew.acts |= {"pre": in_turn, "ask": ask}
    lanes = {
        "kind": "fanout",
        "items": lit([0, 1, 2]),
        "bind": path("$.i"),
        "join": "all",
        "out": path("$.out"),
        "body": seq(step("pre", path("$.i")), step("ask", "the same")),
    }
    with fault():
        app = await house.open()
        crew.hold("last")
        run = await launch(app, flow(lanes, step("last", 1)))
        gates[2].set()
        await crew.begun("last")
        app = await house.reboot(app)
        assert [work.lane[0][1] for work in crew.of("ask")] == [2, 1, 0]
        crew.free("last")
        await app.runs.resume(run.run_id)
        out = result(await ended(app, run))["out"]
    assert crew.times("ask") == 3, "all of them are answered from the log"
    assert ([each["ask"]["for"] for each in out] == [0, 1, 2]) is sound
