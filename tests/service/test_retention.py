"""Retention: what is taken away is said to be gone, and what is left is whole, on disk as in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from boundary_kit import Author, folded, told
from hypothesis import given
from hypothesis import strategies as st
from request_kit import approve, decide_over_msp, request_on
from service_kit import BROADCASTS, Crew, House, Json, Line, Refused, cursor_of, faults, flow, path, step, uuid7

from refold import view
from refold.records import BoundaryRow, LogRow, LogType, SessionRecord, ValueRow
from refold.service.app import App
from refold.service.sessions import ViewSettings
from refold.session import boundaries, find_session

pytestmark = pytest.mark.anyio

TALK = flow(step("s", path("$.input"), "$.output"), id="talk")
KEEP_ALL = ViewSettings(compact_events=10**9)
KEEP_ONE = ViewSettings(compact_events=10**9, retain_events=1)
TIGHT = ViewSettings(compact_events=10**9, retain_events=1, history_budget_bytes=64)


@pytest.fixture(params=["sqlite", "memory"])
async def place(request: pytest.FixtureRequest, home: House) -> AsyncIterator[House]:
    """A house on disk, and one in memory."""
    house = home if request.param == "sqlite" else House()
    with house.without_processes():
        yield house
        await house.close()


async def opened(house: House, view: ViewSettings = KEEP_ALL) -> App:
    app = await house.open(view=view)
    await app.blueprints.add(TALK)
    return app


async def talk(line: Line, session: str, *texts: str) -> None:
    for text in texts:
        await line.turn_ended((await line.turn(session, text))["turnId"])


async def compact(line: Line, session: str) -> str:
    """Installs a boundary; its anchor."""
    mark = len(line.frames)
    await line.command("session/compact", sessionId=session)
    done = await line.until(
        lambda frame: frame.get("method") == "item/completed" and frame["params"]["item"].get("outcome") == "compacted",
        mark,
    )
    return done["params"]["item"]["summarizedThrough"]


async def row_of(app: App, session: str) -> SessionRecord:
    return await app.store.read(lambda reader: find_session(reader, session))


async def rows(app: App, session: str) -> list[LogRow]:
    return await app.store.read(lambda reader: reader.find(LogRow, session=find_session(reader, session).n))


async def pruned(house: House, crew: Crew) -> tuple[App, str, list[Json]]:
    """A Session most of whose past was taken away at its load: with the whole view as it was before."""
    app = await opened(house)
    async with Line(app) as line:
        session = await line.start("talk")
        await talk(line, session, "one", "two")
        await compact(line, session)
        await talk(line, session, "three")
        page = await line.page(session)
    app = await house.reboot(app, view=KEEP_ONE)
    async with Line(app) as line:
        await line.resume(session)
    assert (await row_of(app, session)).floor > 0
    return app, session, page


async def earliest(app: App, session: str, page: list[Json]) -> int:
    """Where in the whole view the earliest position is that is still held."""
    floor = (await row_of(app, session)).floor
    return max(n for n, frame in enumerate(page) if frame["params"]["sourceRange"]["last"]["sequence"] == floor)


# -- what is gone, and what is left -----------------------------------------------------------------------------------


async def test_the_earliest_cursor_is_held_and_everything_before_it_is_truncated(place: House, crew: Crew) -> None:
    app, session, page = await pruned(place, crew)
    edge = await earliest(app, session, page)
    assert 5 < edge < len(page) - 5
    head = cursor_of(page[-1])
    for at, frame in enumerate(page):
        cursor = cursor_of(frame)
        async with Line(app) as line:
            calls = [("view/page", {"limit": 5, "cursor": cursor}), ("view/subscribe", {"after": cursor})]
            calls.append(("view/page", {"limit": 5, "cursor": cursor, "direction": "backward"}))
            if at < edge:
                for method, params in calls:
                    with pytest.raises(Refused) as no:
                        await line.call(method, sessionId=session, **params)
                    assert no.value.kind == "viewTruncated"
                    assert no.value.data["earliestCursor"] == cursor_of(page[edge])
                answer = (await line.resume(session, cursor=cursor))["history"]
                assert answer["mode"] == "anchoredSnapshot", "real, and stale: never a silent skip"
                continue
            answer = await line.resume(session, cursor=cursor)
            assert answer["history"]["noneReason"] == "cursorSuffix"
            if at + 1 < len(page):
                await line.until(lambda frame: frame.get("params", {}).get("viewCursor") == head)
            assert line.pushed(session) == page[at + 1 :]


async def test_pages_stop_right_on_both_sides(place: House, crew: Crew) -> None:
    app, session, page = await pruned(place, crew)
    edge = await earliest(app, session, page)
    kept = page[edge + 1 :]
    async with Line(app) as line:
        with pytest.raises(Refused, match="viewTruncated"):
            await line.call("view/page", sessionId=session, limit=5)
        for limit in range(1, len(kept) + 3):
            assert await line.page(session, limit, direction="backward") == kept
            assert await line.page(session, limit, cursor=cursor_of(page[edge])) == kept
            one = await line.call("view/page", sessionId=session, limit=limit, direction="backward")
            assert (one["nextCursor"] is None) == (limit >= len(kept))
        for at in range(edge, len(page)):
            back = await line.page(session, 3, cursor=cursor_of(page[at]), direction="backward")
            assert back == page[edge + 1 : at]


async def test_a_resume_that_nothing_fits_says_so_and_from_where_it_goes_on(place: House, crew: Crew) -> None:
    app, session, page = await pruned(place, crew)
    edge = await earliest(app, session, page)
    app = await place.reboot(app, view=TIGHT)
    async with Line(app) as line:
        with pytest.raises(Refused) as no:
            await line.resume(session, cursor=cursor_of(page[0]))
        assert (no.value.kind, no.value.data["earliestCursor"]) == ("viewTruncated", cursor_of(page[edge]))
        answer = await line.resume(session, cursor=no.value.data["earliestCursor"])
        assert answer["history"]["noneReason"] == "cursorSuffix", "the suffix is outside the budget"
        assert (await line.resume(session))["history"]["noneReason"] == "historyBudget"


async def test_the_state_after_a_restart_is_folded_from_the_boundary(place: House, crew: Crew) -> None:
    app, session, page = await pruned(place, crew)
    whole = folded(page)
    for _ in range(2):
        async with Line(app) as line:
            snapshot = (await line.resume(session, history="snapshot"))["history"]["snapshot"]
            assert snapshot["foldDigest"] == view.fold_digest(whole)
            assert view.fold_digest(view.seed(snapshot)) == view.fold_digest(whole)
            anchored = (await line.resume(session))["history"]["snapshot"]
            at = [cursor_of(frame) for frame in page].index(anchored["viewCursor"]) + 1
            assert view.fold_digest(folded(page[at:], view.seed(anchored))) == view.fold_digest(whole)
        app = await place.reboot(app, view=KEEP_ONE)
    assert await faults(app) == []


async def test_nothing_is_taken_that_must_stay(place: House, crew: Crew) -> None:
    """Without a boundary, or with enough of the newest rows wanted, all rows stay."""
    app = await opened(place, KEEP_ONE)
    async with Line(app) as line:
        session = await line.start("talk")
        await talk(line, session, "one", "two")
    app = await place.reboot(app, view=KEEP_ONE)
    async with Line(app) as line:
        await line.resume(session)
    assert (await row_of(app, session)).floor == 0
    before = await rows(app, session)
    app = await place.reboot(app, view=ViewSettings(retain_events=len(before)))
    async with Line(app) as line:
        await line.resume(session)
        await compact(line, session)
    assert (await rows(app, session))[: len(before)] == before


async def test_as_many_of_the_newest_rows_stay_as_are_wanted(place: House, crew: Crew) -> None:
    app = await opened(place, ViewSettings(compact_events=10**9, retain_events=12))
    async with Line(app) as line:
        session = await line.start("talk")
        for n in range(8):
            await talk(line, session, str(n))
            await compact(line, session)
            row, left = await row_of(app, session), await rows(app, session)
            assert row.seq - row.floor >= 12 or row.floor == 0
            assert row.floor == 0 or len(left) == row.seq - row.floor + 1
        assert row.floor > row.seq - 12 - 10, "and not many more"


# -- what is open across the floor ------------------------------------------------------------------------------------


async def test_what_is_open_can_still_be_closed(place: House, crew: Crew) -> None:
    """The step and its turn were opened behind the floor: their closing repeats what their opening says."""
    app = await opened(place, KEEP_ONE)
    async with Line(app) as line:
        session = await line.start("talk")
        await talk(line, session, "one", "two")
        before = await line.page(session)
        crew.hold("s")
        turn = (await line.turn(session, "three"))["turnId"]
        await crew.begun("s", 3)
        await compact(line, session)
        await compact_after_something(line, session)
        left = {row.type for row in await rows(app, session) if row.seq < find_floor(await row_of(app, session))}
        assert left == {LogType.TURN_OPENED, LogType.STEP_DISPATCHED}
        assert len(await rows(app, session)) < len(before)
        crew.free("s")
        await line.turn_ended(turn)
        seen = before[:2] + line.pushed(session)
        assert view.fold_digest(folded(seen)) == (await app.sessions.bookmark(session))["foldDigest"]
        closed = [frame["params"]["item"] for frame in seen if frame["method"] == "item/completed"]
        assert {"toolCall", "workflow"} <= {item["kind"] for item in closed[-3:]}
    app = await place.reboot(app, view=KEEP_ONE)
    async with Line(app) as line:
        await line.resume(session)
        assert (await app.sessions.bookmark(session))["foldDigest"] == view.fold_digest(folded(seen))
        await compact_after_something(line, session)
        gone = [row for row in await rows(app, session) if row.seq < (await row_of(app, session)).floor]
        assert gone == [], "what was kept for an open item goes when that is closed"


def find_floor(session: SessionRecord) -> int:
    assert session.floor > 0
    return session.floor


async def compact_after_something(line: Line, session: str) -> str:
    await line.command("session/setModel", sessionId=session, model={"modelId": "talk"})
    return await compact(line, session)


async def test_a_question_behind_the_floor_is_asked_as_it_was_and_can_be_answered(place: House, crew: Crew) -> None:
    app = await opened(place, KEEP_ONE)
    await app.blueprints.add(flow(step("s", 1), approve(), id="gate"))
    async with Line(app) as line:
        session = await line.start("gate")
        turn = (await line.turn(session))["turnId"]
        request = await request_on(line)
        await compact(line, session)
        await compact_after_something(line, session)
        assert (await row_of(app, session)).floor > request["sourceRange"]["last"]["sequence"]
        for _ in range(2):
            assert (await line.call("approval/listPending", sessionId=session))["approvals"] == [request]
    app = await place.reboot(app, view=KEEP_ONE)
    async with Line(app) as line:
        answer = await line.resume(session)
        assert [each["viewCursor"] for each in answer["pendingRequests"]] == [request["viewCursor"]]
        assert await request_on(line) == request
        pending = answer["history"]["snapshot"]["state"]["pendingApprovals"]
        assert [each["approvalId"] for each in pending] == [request["approvalId"]]
        await decide_over_msp(line, request)
        done = await line.until(
            lambda frame: frame.get("method") == "turn/completed" and frame["params"]["turnId"] != turn
        )
        assert done["params"]["terminal"] == "completed"
        assert (await app.sessions.bookmark(session))["viewCursor"] == cursor_of(done)
        await compact_after_something(line, session)
        await compact_after_something(line, session)
        with pytest.raises(Refused) as late:
            await decide_over_msp(line, request)
        resolution = late.value.data["resolution"]
        assert (late.value.kind, resolution["decision"]) == ("approvalAlreadyResolved", "approved")
        held = await line.call("view/page", sessionId=session, limit=1, cursor=resolution["viewCursor"])
        assert held["events"], "where it was shown is gone; the earliest position that is left stands for it"
    assert await faults(app) == []


async def test_a_reader_from_under_whom_rows_are_taken_is_told_of_the_gap(place: House, crew: Crew) -> None:
    """Nothing is skipped silently: what it has, what it lacks, and where it goes on are said."""
    app = await opened(place, KEEP_ONE)
    async with Line(app) as writer, Line(app) as reader:
        session = await writer.start("talk")
        await talk(writer, session, "one")
        before = await writer.page(session)
        await reader.resume(session, cursor=cursor_of(before[-1]))
        reader.ready.clear()
        await writer.command("session/setModel", sessionId=session, model={"modelId": "talk"})
        await reader.blocked()
        await talk(writer, session, "two", "three")
        await compact(writer, session)
        reader.ready.set()
        head = (await app.sessions.bookmark(session))["viewCursor"]
        await reader.until(lambda frame: frame.get("params", {}).get("viewCursor") == head)
        got = [frame for frame in reader.frames if "id" not in frame and frame["method"] not in BROADCASTS]
        gaps = [n for n, frame in enumerate(got) if frame["method"] == "view/gap"]
        assert len(gaps) == 1
        gap, last = got[gaps[0]]["params"], got[gaps[0] - 1]
        assert (gap["after"], gap["next"]) == (cursor_of(last), cursor_of(got[gaps[0] + 1]))
        with pytest.raises(Refused, match="viewTruncated"):
            await reader.call("view/page", sessionId=session, limit=5, cursor=gap["after"])
        snapshot = (await reader.resume(session))["history"]["snapshot"]
        after = await reader.page(session, cursor=snapshot["viewCursor"])
        whole = await app.sessions.bookmark(session)
        assert view.fold_digest(folded(after, view.seed(snapshot))) == whole["foldDigest"]


histories = st.integers(0, 60).flatmap(lambda size: st.binary(min_size=size, max_size=size))


@given(histories, histories, st.integers(1, 8))
def test_a_pruned_log_says_the_same_of_what_is_left(before: bytes, after: bytes, keep: int) -> None:
    """Whatever is open at the cut: the frames after it, the state, and every question are as they were."""
    asyncio.run(_prune_and_compare(before, after, keep))


async def _prune_and_compare(before: bytes, after: bytes, keep: int) -> None:
    author = await Author().play(before)
    row = await author.compact()
    await author.go_on(after)
    placed = await author.placed()
    whole = folded([frame for _, frame in placed])
    asks = {each.opened: await _asked(author, each.opened) for each in author.asked.values()}
    for _ in range(2):
        await author.store.write(
            lambda tx: boundaries.prune(tx, tx.get(SessionRecord, 1), retain_events=1, keep_boundaries=keep)
        )
    session = await author.store.read(lambda reader: reader.get(SessionRecord, 1))
    assert session.floor >= row.seq - 1 or session.floor == max(p.seq for p, _ in placed if p.seq < row.seq)
    left = [(position, frame) for position, frame in placed if position.seq > session.floor]
    author.log = type(author.log)(author.log._key, boundaries.start)
    floor = await author.read(author.log.floor)
    assert await author.placed(floor) == left
    assert await author.read(lambda reader, at: author.log.before(reader, at, None, 10**6)) == left
    assert told(await author.read(author.log.state)) == told(whole)
    assert {seq: await _asked(author, seq) for seq in asks} == asks


async def _asked(author: Author, seq: int) -> Json:
    return await author.read(lambda reader, session: author.log.asked(reader, session, seq))


# -- boundaries -------------------------------------------------------------------------------------------------------


async def test_only_the_newest_boundaries_are_kept(place: House, crew: Crew) -> None:
    app = await opened(place, ViewSettings(compact_events=10**9, keep_boundaries=2))
    anchors: list[str] = []
    async with Line(app) as line:
        session = await line.start("talk")
        for n in range(4):
            await talk(line, session, str(n))
            anchors.append(await compact(line, session))
        page = await line.page(session)
        cursors = [
            cursor_of(frame) for frame in page if frame["params"].get("item", {}).get("summarizedThrough") in anchors
        ]
        assert len(cursors) == 4
        for anchor in anchors[:2]:
            for method, params in (("session/resume", {"commandId": uuid7()}), ("view/page", {"limit": 5})):
                with pytest.raises(Refused) as no:
                    await line.call(method, sessionId=session, cursor=anchor, **params)
                assert (no.value.kind, no.value.data["latestBoundaryCursor"]) == ("boundaryPruned", cursors[-1])
                assert no.value.data["anchor"] == anchor
        for anchor, cursor in zip(anchors[2:], cursors[2:], strict=True):
            after = page[[cursor_of(frame) for frame in page].index(cursor) + 1 :]
            assert await line.page(session, cursor=anchor) == after
        for cursor in cursors:
            assert (await line.resume(session, cursor=cursor))["history"]["noneReason"] == "cursorSuffix", (
                "the event is not gone, only the boundary"
            )
    assert (await row_of(app, session)).floor == 0


async def test_a_boundary_behind_the_floor_is_pruned(place: House, crew: Crew) -> None:
    app = await opened(place, KEEP_ONE)
    async with Line(app) as line:
        session = await line.start("talk")
        await talk(line, session, "one")
        old = await compact(line, session)
        await talk(line, session, "two")
        new = await compact(line, session)
        with pytest.raises(Refused, match="boundaryPruned"):
            await line.call("view/page", sessionId=session, limit=5, cursor=old)
        assert await line.page(session, cursor=new) == []
    found = await app.store.read(lambda reader: reader.find(BoundaryRow))
    assert [row.pruned for row in found] == [True, False]


async def test_a_fold_begins_at_an_older_boundary_where_the_latest_is_damaged(place: House, crew: Crew) -> None:
    app = await opened(place, ViewSettings(compact_events=10**9, retain_events=10))
    async with Line(app) as line:
        session = await line.start("talk")
        for n in range(6):
            await talk(line, session, str(n))
            await compact(line, session)
        digest = (await app.sessions.bookmark(session))["foldDigest"]
    found = await app.store.read(lambda reader: reader.find(BoundaryRow, pruned=False))
    assert len(found) >= 2
    await app.store.write(lambda tx: _damage(tx, found[-1:]))
    app = await place.reboot(app, view=KEEP_ALL)
    assert (await app.sessions.bookmark(session))["foldDigest"] == digest
    async with Line(app) as line:
        assert (await line.resume(session))["history"]["mode"] == "inline"
    await app.store.write(lambda tx: _damage(tx, found))
    app = await place.reboot(app, view=KEEP_ALL)
    async with Line(app) as line:
        with pytest.raises(Refused) as no:
            await line.resume(session)
        assert (no.value.kind, no.value.data["reason"]) == ("internal", "storeDamaged"), "nothing is made up"


def _damage(tx: Any, found: list[BoundaryRow]) -> None:
    for row in found:
        tx.update(BoundaryRow, (row.session, row.seq), rest_json="{}")
    assert tx.count(ValueRow) > 0


async def test_a_run_is_traced_by_what_is_left_of_it(place: House, crew: Crew) -> None:
    """Rows are missing in the middle of an activation: the trace must not run on into the next one for them."""
    app = await opened(place, KEEP_ONE)
    crew.hold("s")
    async with Line(app) as line:
        session = await line.start("talk")
        turn = (await line.turn(session, "one"))["turnId"]
        await crew.begun("s")
        await compact(line, session)
        await compact_after_something(line, session)
        await line.command("turn/interrupt", sessionId=session)
        await line.turn_ended(turn)
        (run,) = await app.runs.page(5)
        crew.free("s")
        await app.runs.resume(run.run_id)
        await line.until(lambda frame: frame.get("params", {}).get("terminal") == "completed")
    trace = await app.runs.trace(run.run_id)
    assert [entry["kind"] for entry in trace] == [
        "core.run_started",
        "core.step_dispatched",
        "core.step_completed",
        "core.run_finished",
    ] * 2
    assert len({entry["seq"] for entry in trace}) == len(trace)
