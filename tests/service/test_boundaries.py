"""Boundaries: an anchored snapshot and what follows it is the fold from genesis, and costs what happened since."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest import mock

import msgspec
import pytest
from boundary_kit import (
    KEY,
    TALK,
    TEXTS,
    Author,
    Counting,
    compact,
    compacted,
    compactions,
    folded,
    latest,
    renamed,
    talk,
    told,
)
from hypothesis import given
from hypothesis import strategies as st
from muse_code import SessionFold
from service_kit import Crew, House, Json, Line, Refused, cursor_of, everything, faults, uuid7

from refold import records, view
from refold.canonical import canonical, decode, encode, encode_known
from refold.records import BoundaryRow, LogRow, SessionRecord, ValueRow
from refold.service.app import App
from refold.service.sessions import ViewSettings
from refold.session import SessionLog, boundaries, find_session
from refold.store import Reader, Tx
from refold.store import values as long_texts

HUGE = ViewSettings(compact_events=10**9, history_budget_bytes=10**9)


# -- the law ----------------------------------------------------------------------------------------------------------


def sdk_fold(events: list[Json]) -> Json:
    """What the official client makes of events: its items and the turn that is under way."""
    fold = SessionFold()
    for event in events:
        fold.apply({"method": event["method"], "params": event["params"]})
    items = json.loads(json.dumps(list(fold.items.list()), default=lambda each: getattr(each, "__dict__", str(each))))
    return {"items": items, "active": fold.active_turn_id}


def sdk_seed(snapshot: Json) -> list[Json]:
    """A snapshot as the events that seed the official client's fold."""
    at = {"sessionId": "s", "viewCursor": snapshot["viewCursor"]}
    seed = [{"method": "item/updated", "params": at | {"item": item}} for item in snapshot["state"]["items"]]
    if turn := snapshot["state"]["activeTurn"]:
        seed.append({"method": "turn/started", "params": at | turn})
    return seed


histories = st.integers(0, 60).flatmap(lambda size: st.binary(min_size=size, max_size=size))


@given(histories, st.integers(0, 10**6), st.sampled_from([2, 5, boundaries.SEGMENT]))
def test_a_boundary_and_what_follows_it_is_the_fold_from_genesis(choices: bytes, cut: int, segment: int) -> None:
    """At every boundary of any history, for every form of it and for our fold as for the official client's."""
    with mock.patch.object(boundaries, "SEGMENT", segment):
        asyncio.run(_compare(choices, cut))


async def _compare(choices: bytes, cut: int) -> None:
    author = await Author(closes_again=True).play(choices)
    await author.compact()
    placed = await author.placed()
    cut %= len(placed) + 1
    for row in await author.read(lambda reader, session: reader.find(BoundaryRow, session=session.n)):
        usable = await author.read(lambda reader, session, row=row: boundaries.load(reader, author.log, session, row))
        at = [position for position, _ in placed].index(usable.position) + 1
        prefix, suffix = [frame for _, frame in placed[:at]], [frame for _, frame in placed[at:]]
        assert usable.snapshot["viewCursor"] == prefix[-1]["params"]["viewCursor"]
        assert usable.snapshot["anchor"]["summarizedThrough"] == prefix[-1]["params"]["item"]["summarizedThrough"]
        assert usable.size == len(canonical(view.history(view.Rung.ANCHORED, usable.snapshot)))
        assert row.elided == len(canonical(view.history(view.Rung.ANCHORED, view.elide(usable.snapshot))))
        state, position = boundaries.seeded(usable)
        assert position == usable.position
        assert told(state) == told(folded(prefix))
        for more in (cut % (len(suffix) + 1), len(suffix)):
            assert told(folded(suffix[:more], boundaries.seeded(usable)[0])) == told(folded(prefix + suffix[:more]))
            assert sdk_fold(sdk_seed(usable.snapshot) + suffix[:more]) == sdk_fold(prefix + suffix[:more])
    start, position = await author.read(lambda reader, session: boundaries.start(reader, author.log, session))
    assert position == placed[-1][0], "a fold begins at the latest boundary"
    assert told(start) == told(folded([frame for _, frame in placed]))


@given(histories)
def test_a_log_reads_the_same_whether_its_state_was_kept_or_not(choices: bytes) -> None:
    async def compare() -> None:
        author = await Author().play(choices)
        cold = await author.read(author.log.fold)
        kept = await author.read(author.log.state)
        assert told(cold) == told(kept) == told(folded([frame for _, frame in await author.placed()]))

    asyncio.run(compare())


# -- segments ---------------------------------------------------------------------------------------------------------


async def values(author: Author) -> int:
    return len(await author.store.read(lambda reader: reader.find(ValueRow)))


async def written_by(author: Author) -> int:
    """How many values the next boundary writes."""
    before = await values(author)
    await author.compact()
    return await values(author) - before


@pytest.mark.anyio
async def test_what_has_not_changed_is_not_written_again() -> None:
    author = await Author().play(b"\x01")  # a turn under way
    first = await author.step()
    for _ in range(boundaries.SEGMENT * 4 - 3):
        await author.end(await author.step())
    assert await written_by(author) == 4
    await author.append(view.name_changed(1, name="nothing of an item", command=uuid7()))
    assert await written_by(author) == 1, "a new segment, for the item of this compaction"
    await author.end(await author.step())
    assert await written_by(author) == 1, "only the last one"
    await author.end(first)
    assert await written_by(author) == 2, "the first one, in which an item was closed, and the last one"


@given(histories, histories)
def test_a_boundary_after_a_boot_hands_on_no_damage(before: bytes, after: bytes) -> None:
    """What the one before lost is folded anew from the log, as long as that is whole."""

    async def compare() -> None:
        author = await Author().play(before)
        await author.compact()
        segments = decode((await author.read(boundaries.latest)).segments_json)
        await author.store.write(lambda tx: tx.delete(ValueRow, digest=segments[0]))
        author.log = SessionLog(KEY, boundaries.start)  # as another process has it
        await author.go_on(after)
        row = await author.compact()
        usable = await author.read(lambda reader, session: boundaries.load(reader, author.log, session, row))
        assert told(boundaries.seeded(usable)[0]) == told(folded([frame for _, frame in await author.placed()]))

    with mock.patch.object(boundaries, "SEGMENT", 2):
        asyncio.run(compare())


@pytest.mark.anyio
async def test_a_boundary_that_lacks_an_item_that_was_open_is_not_gone_on_from() -> None:
    author = await Author().play(b"\x01")  # a turn under way
    open_step = await author.step()
    row = await author.compact()

    def take_out(tx: Tx) -> None:
        segments = encode([boundaries._put_segment(tx, [{"itemId": "another"}])])
        stored = decode(row.rest_json)
        del stored["seal"]
        sealed = encode(stored | {"seal": boundaries._seal(row.seq, stored, segments)})
        tx.update(BoundaryRow, (row.session, row.seq), segments_json=segments, rest_json=sealed)

    await author.store.write(take_out)
    await author.end(open_step)
    row = await author.compact()
    usable = await author.read(lambda reader, session: boundaries.load(reader, author.log, session, row))
    assert [item["itemId"] for item in usable.snapshot["state"]["items"]][:2] == ["another", open_step]
    assert usable.snapshot["foldDigest"] == view.fold_digest(boundaries.seeded(usable)[0])


@pytest.mark.anyio
async def test_an_item_that_was_open_at_a_boundary_is_stored_in_the_next_as_any_other() -> None:
    author = await Author().play(b"\x01")  # a turn under way
    open_step = await author.step()
    await author.compact()
    await author.end(open_step, TEXTS[-1])
    await author.end(await author.step(), TEXTS[-1])
    row = await author.compact()
    (segment,) = decode(row.segments_json)
    stored = decode((await author.store.read(lambda reader: reader.get(ValueRow, segment))).body)
    outputs = [item["visibleOutput"] for item in stored if "visibleOutput" in item]
    assert len(outputs) == 2 and all(isinstance(each, list) for each in outputs), "named, for they stand in their rows"


@pytest.mark.anyio
async def test_a_boundary_costs_what_has_changed_and_not_what_the_session_weighs() -> None:
    read = dict[int, Counting]()
    for size in (3, 30):
        author = await Author().play(b"\x01")  # a turn under way
        open_step = await author.step()
        for _ in range(boundaries.SEGMENT * size):
            await author.end(await author.step())
        for _ in range(2):  # the second one looks whether the first is whole
            await author.compact()
        await author.end(await author.step())
        read[size] = await _read_by_compaction(author)
        assert not author.log._states, "no fold is kept"
        await author.end(open_step)
        closing = await _read_by_compaction(author)
        assert closing.rows - read[size].rows <= size + 4, "an item that was opened long ago is looked for"
    assert read[30].rows == read[3].rows
    assert read[30].bytes - read[3].bytes < 100 * 3 * (30 - 3), "but for the names of the segments"


async def _read_by_compaction(author: Author) -> Counting:
    counted: list[Counting] = []

    def install(tx: Tx) -> None:
        counted.append(Counting(tx))
        record = view.compacted(1, trigger="manual")
        boundaries.install(counted[0], author.log, tx.get(SessionRecord, 1), record)

    await author.store.write(install)
    return counted[0]


# -- damage -----------------------------------------------------------------------------------------------------------


def lose_segment(tx: Tx, row: BoundaryRow) -> None:
    tx.delete(ValueRow, digest=json.loads(row.segments_json)[0])


def damage_segment(tx: Tx, row: BoundaryRow) -> None:
    name = json.loads(row.segments_json)[0]
    body = tx.get(ValueRow, name).body
    tx.update(ValueRow, (name,), body=body.replace("completed", "cancelled", 1))


def swap_segments(tx: Tx, row: BoundaryRow) -> None:
    names = json.loads(row.segments_json)
    tx.update(BoundaryRow, (row.session, row.seq), segments_json=encode([names[0], *names]))


def damage_rest(tx: Tx, row: BoundaryRow) -> None:
    tx.update(BoundaryRow, (row.session, row.seq), rest_json=row.rest_json.replace('"turnCount":', '"turnCount":1', 1))


def cut_rest(tx: Tx, row: BoundaryRow) -> None:
    tx.update(BoundaryRow, (row.session, row.seq), rest_json=row.rest_json[:-9])


def empty_rest(tx: Tx, row: BoundaryRow) -> None:
    tx.update(BoundaryRow, (row.session, row.seq), rest_json="[]")


DAMAGES = [lose_segment, damage_segment, swap_segments, damage_rest, cut_rest, empty_rest]


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    app = await house.open(view=HUGE)
    await app.blueprints.add(TALK)
    yield app


@pytest.mark.anyio
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("older", [False, True], ids=["one boundary", "two boundaries"])
async def test_a_boundary_that_is_damaged_is_no_rung(
    house: House, app: App, crew: Crew, damage: Callable[[Tx, BoundaryRow], None], older: bool
) -> None:
    async with Line(app) as line:
        session = await line.start("talk")
        if older:
            await talk(line, session, "zero")
            await compact(line, session)
        await talk(line, session, "one")
        await compact(line, session)
        await talk(line, session, "two")
        page = await line.page(session)
    row = await latest(app, session)
    await app.store.write(lambda tx: damage(tx, row))
    for preference in ("auto", "anchored"):
        app = await house.reboot(app, view=HUGE)
        async with Line(app) as line:
            answer = (await line.resume(session, history=preference))["history"]
            assert answer["mode"] == "inline", "the next rung is served, and said to be"
            assert answer["items"] == list(folded(page).items.values())
            assert answer["snapshot"] is None
            assert await line.page(session) == page
            digest = (await line.resume(session, history="snapshot"))["history"]["snapshot"]["foldDigest"]
            assert digest == view.fold_digest(folded(page))


@pytest.mark.anyio
async def test_a_boundary_whose_record_is_lost_is_no_rung() -> None:
    author = await Author().play(b"\x01")
    await author.end(await author.step())
    row = await author.compact()
    await author.store.write(lambda tx: tx.delete(LogRow, session=1, seq=row.seq))
    assert await author.read(lambda reader, session: boundaries.load(reader, author.log, session, row)) is None
    assert await author.read(lambda reader, session: boundaries.cursor_of(reader, author.log, session, row)) is None


# -- what it costs ----------------------------------------------------------------------------------------------------


async def grown(app: App, line: Line, before: int, after: int) -> str:
    """A Session with a boundary, and so many events before and after it that open no item."""
    session = await line.start("talk")
    await talk(line, session, "an item or two")
    await renamed(app, session, before)
    await compact(line, session)
    await renamed(app, session, after)
    return session


async def cost(app: App, session: str, cursor: str | None = None, preference: str = "auto") -> tuple[Counting, Json]:
    """What a resume reads, and what it serves."""
    counted: list[Counting] = []
    read = app.store.read

    async def counting(fn: Callable[[Any], Any]) -> Any:
        def run(reader: Reader) -> Any:
            counted.append(Counting(reader))
            return fn(counted[-1])

        return await read(run)

    with mock.patch.object(app.store, "read", counting):
        served = await app.sessions.resume(
            uuid7(), {}, session_id=session, cursor=cursor, preference=preference, exclude_items=False
        )
    total = Counting(counted[0]._reader)
    total.rows, total.bytes = sum(each.rows for each in counted), sum(each.bytes for each in counted)
    total.of = dict(sum((Counter(each.of) for each in counted), Counter()))
    return total, served.history


@pytest.mark.anyio
async def test_an_anchored_resume_costs_what_happened_since_its_boundary(house: House, app: App, crew: Crew) -> None:
    sessions: dict[tuple[int, int], str] = {}
    async with Line(app) as line:
        for before, after in ((1_000, 10), (10_000, 10), (1_000, 400)):
            sessions[before, after] = await grown(app, line, before, after)
    app = await house.reboot(app, view=HUGE)
    found = {key: await cost(app, session) for key, session in sessions.items()}
    assert {history["mode"] for _, history in found.values()} == {"anchoredSnapshot"}
    costs = {key: counted for key, (counted, _) in found.items()}
    few, more_before, more_after = costs.values()
    assert more_before.rows == few.rows, "rows before the boundary are not read"
    assert abs(more_before.bytes - few.bytes) < 200, "but for the digits of their numbers"
    assert few.rows < 40
    per_event = (more_after.bytes - few.bytes) / 390
    assert 390 <= more_after.rows - few.rows <= 400
    assert 100 < per_event < 1_000


async def short_and_long(app: App) -> list[str]:
    """A Session of 10 turns and one of 100, with a boundary behind all but the last."""
    sessions = []
    async with Line(app) as line:
        for turns in (10, 100):
            sessions.append(await line.start("talk"))
            await talk(line, sessions[-1], *map(str, range(turns)))
            await compact(line, sessions[-1])
            await talk(line, sessions[-1], "one more")
    return sessions


@pytest.mark.anyio
async def test_a_cursor_costs_the_same_however_many_items_there_are(house: House, app: App, crew: Crew) -> None:
    """After a boot nothing is folded yet, and for what follows a cursor no item has to be."""
    sessions = await short_and_long(app)
    costs = []
    for session in sessions:
        app = await house.reboot(app, view=HUGE)
        async with Line(app) as line:
            cursor = cursor_of((await line.page(session))[-3])
        counted, history = await cost(app, session, cursor)
        assert history["noneReason"] == "cursorSuffix"
        assert ValueRow.__name__ not in counted.of, "no segment was read"
        costs.append(counted)
    few, many = costs
    assert few.of == many.of
    assert many.rows < 30
    assert abs(many.bytes - few.bytes) < 1_000, "but for digits, and the name of a segment for every 64 items"


@pytest.mark.anyio
@pytest.mark.parametrize("preference", ["auto", "anchored", "inline", "snapshot"])
async def test_that_nothing_fits_costs_the_same_however_much_there_is(
    house: House, app: App, crew: Crew, preference: str
) -> None:
    """No item is read to say that none is served, nor is one looked at once the Session is folded."""
    sessions, tight = await short_and_long(app), msgspec.structs.replace(HUGE, history_budget_bytes=500)
    costs = []
    for session in sessions:
        app = await house.reboot(app, view=tight)
        counted, history = await cost(app, session, preference=preference)
        assert history == {"mode": "none", "items": None, "snapshot": None, "noneReason": "historyBudget"}
        assert ValueRow.__name__ not in counted.of, "no segment was read"
        costs.append(counted)
    few, many = costs
    assert few.of == many.of
    assert many.rows < 30
    assert abs(many.bytes - few.bytes) < 1_000, "but for digits, and the name of a segment for every 64 items"


@pytest.mark.anyio
async def test_what_hardly_fits_or_hardly_does_not_is_weighed(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await line.start("talk")
        await talk(line, session, *map(str, range(30)))
        await compact(line, session)
        await talk(line, session, "one more")
        _, history = await cost(app, session, preference="snapshot")
    size = len(canonical(history))
    for budget, mode in ((size, "snapshot"), (size - 1, "none"), (size // 4, "none")):
        app = await house.reboot(app, view=msgspec.structs.replace(HUGE, history_budget_bytes=budget))
        assert (await cost(app, session, preference="snapshot"))[1]["mode"] == mode, budget


@pytest.mark.anyio
async def test_a_long_list_of_segments_stands_beside_its_boundary(
    house: House, app: App, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_texts, "stored_json", lambda text, most=100: records.stored_json(text, most))
    async with Line(app) as line:
        session = await line.start("talk")
        await talk(line, session, *map(str, range(100)))
        await compact(line, session)
        await talk(line, session, "one more")
        await compact(line, session)
    row = await latest(app, session)
    assert row.segments_json.startswith("@")
    app = await house.reboot(app, view=HUGE)
    assert (await cost(app, session))[1]["mode"] == "anchoredSnapshot"
    await app.store.write(lambda tx: tx.delete(ValueRow, digest=row.segments_json[1:]))
    app = await house.reboot(app, view=HUGE)
    assert (await cost(app, session, preference="anchored"))[1]["mode"] == "inline", "what it names is gone: no rung"


@pytest.mark.anyio
async def test_items_cost_their_own_bytes_once(house: House, app: App, crew: Crew) -> None:
    """A Session of ten times the items reads ten times the segments, and nothing else."""
    costs = []
    async with Line(app) as line:
        sessions = []
        for turns in (10, 100):
            sessions.append(await line.start("talk"))
            await talk(line, sessions[-1], *map(str, range(turns)))
            await compact(line, sessions[-1])
    app = await house.reboot(app, view=HUGE)
    for session in sessions:
        counted, history = await cost(app, session)
        costs.append((counted, len(canonical(history)), len(history["snapshot"]["state"]["items"])))
    (small, small_size, few), (large, large_size, many) = costs
    assert many > 9 * few
    assert large.rows - small.rows <= many / boundaries.SEGMENT + 1
    assert large.bytes - large_size <= small.bytes - small_size + many * 8


@pytest.mark.anyio
async def test_a_rung_is_chosen_without_encoding_what_it_serves(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await line.start("talk")
        await talk(line, session, *("x" * 500 for _ in range(30)))
        await compact(line, session)
    app = await house.reboot(app, view=HUGE)
    encoded: list[int] = []

    def counting(encoder: Callable[[Json], Any]) -> Callable[[Json], Any]:
        def encode_counted(value: Json) -> Any:
            text = encoder(value)
            encoded.append(len(text))
            return text

        return encode_counted

    names = {
        "refold.view.digest.canonical": canonical,
        "refold.view.snapshot.canonical": canonical,
        "refold.service.sessions.canonical": canonical,
        "refold.session.boundaries.canonical": canonical,
        "refold.session.boundaries.encode_known": encode_known,
    }
    with _all_patched({name: counting(encoder) for name, encoder in names.items()}):
        counted, history = await cost(app, session)
        assert len(canonical(history)) > 30_000
        assert sum(encoded) < 100, "cold"
        encoded.clear()
        await cost(app, session)
        assert sum(encoded) < 100, "warm"
        served = await app.sessions.resume(
            uuid7(), {}, session_id=session, cursor=None, preference="snapshot", exclude_items=False
        )
        assert served.history["mode"] == "snapshot"
        encoded.clear()
        await app.sessions.resume(
            uuid7(), {}, session_id=session, cursor=None, preference="snapshot", exclude_items=False
        )
        assert sum(encoded) < 10_000, "no item is encoded to be weighed again"
    assert counted.rows < 40 + 30, "and a row for each output"


def _all_patched(patches: dict[str, Any]) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for name, new in patches.items():
        stack.enter_context(mock.patch(name, new))
    return stack


@pytest.mark.anyio
async def test_what_waits_in_the_queue_is_in_every_snapshot(app: App, crew: Crew) -> None:
    """Queued turns are no events: an anchored snapshot must show those of today, not those of its boundary."""
    crew.hold("s")
    async with Line(app) as line:
        session = await line.start("talk")
        await line.turn(session, "one")
        await crew.begun("s")
        await compact(line, session)
        queued = (await line.turn(session, "two"))["turnId"]
        for preference in ("anchored", "snapshot"):
            history = (await line.resume(session, history=preference))["history"]
            shown = history["snapshot"]["state"]["queuedTurns"]
            assert [turn["turnId"] for turn in shown] == [queued], history["mode"]
        crew.free("s")
        await line.turn_ended(queued)


# -- installing -------------------------------------------------------------------------------------------------------


class Undo(Exception):
    """What a test raises inside a transaction."""


@pytest.mark.anyio
@pytest.mark.parametrize("in_memory", [False, True], ids=["sqlite", "memory"])
async def test_an_install_that_fails_leaves_no_trace(home: House, crew: Crew, in_memory: bool) -> None:
    house = House() if in_memory else home
    with house.without_processes():
        app = await house.open(view=HUGE)
        await app.blueprints.add(TALK)
        async with Line(app) as line:
            session = await line.start("talk")
            await talk(line, session, "one")
            digest = (await app.sessions.bookmark(session))["foldDigest"]
            before = await everything(app)

            def fails(tx: Tx) -> None:
                row = find_session(tx, session)
                boundaries.install(tx, app.sessions._log, row, view.compacted(1, trigger="manual"))
                raise Undo

            for _ in range(2):
                with pytest.raises(Undo):
                    await app.store.write(fails)
                assert await everything(app) == before
                assert (await app.sessions.bookmark(session))["foldDigest"] == digest
            await talk(line, session, "two")
            page = await line.page(session)
            bookmark = await app.sessions.bookmark(session)
            assert bookmark["foldDigest"] == view.fold_digest(folded(page))
            assert bookmark["viewCursor"] == cursor_of(page[-1])
        await house.close()


@pytest.mark.anyio
async def test_a_session_in_which_nothing_happened_is_not_compacted(house: House, app: App, crew: Crew) -> None:
    nothing = {"status": "noop", "reason": "no_compactable_history"}
    async with Line(app) as line:
        session = await line.start("talk")
        assert nothing.items() <= (await compact(line, session)).items()
        assert len(await line.page(session)) == 2, "a noop is no event"
        await talk(line, session, "one")
        command = {"commandId": uuid7(), "sessionId": session}
        accepted = await line.call("session/compact", **command)
        assert accepted["status"] == "accepted"
        page = await line.page(session)
        assert nothing.items() <= (await compact(line, session)).items()
    app = await house.reboot(app, view=HUGE)
    async with Line(app) as line:
        await line.resume(session)  # leaves a marker, which is no event of the view
        assert nothing.items() <= (await compact(line, session)).items()
        assert await line.call("session/compact", **command) == accepted
        assert await line.page(session) == page


@pytest.mark.anyio
async def test_a_page_after_the_boundary_needs_one(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await line.start("talk")
        with pytest.raises(Refused, match="noBoundary"):
            await line.call("view/page", sessionId=session, limit=5, anchor="latestCompaction")
        await talk(line, session, "one")
        await compact(line, session)
        await talk(line, session, "two")
        page = await line.page(session)
        answer = await line.call("view/page", sessionId=session, limit=1000, anchor="latestCompaction")
        at = [cursor_of(frame) for frame in page].index(answer["resolvedAnchor"]["boundaryCursor"])
        assert answer["events"] == page[at + 1 :]


@pytest.mark.anyio
async def test_what_a_boundary_does_not_change_is_not_written_again(
    house: House, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Session that runs for a day has thousands of segments, and each compaction changes the last few."""
    monkeypatch.setattr(boundaries, "SEGMENT", 4)
    put, written = boundaries._put_segment, list[int]()
    monkeypatch.setattr(boundaries, "_put_segment", lambda tx, items: (written.append(len(items)), put(tx, items))[1])
    app = await house.open(view=ViewSettings(compact_events=30))
    await app.blueprints.add(TALK)
    async with Line(app) as line:
        session = await line.start("talk")
        for n in range(40):
            await talk(line, session, str(n))
            await compacted(app)
        served = await line.resume(session, history="anchored")
        page = await line.page(session)
    found = await compactions(app, session)
    items = len(folded(page).items)
    assert len(found) > 3
    assert len(written) < items / 4 + 3 * len(found), "each segment once, and the last ones of each boundary"
    anchored = served["history"]["snapshot"]
    at = next(n for n, frame in enumerate(page, 1) if cursor_of(frame) == anchored["viewCursor"])
    assert anchored["state"]["items"] == list(folded(page[:at]).items.values())
    assert await faults(app) == []


@pytest.mark.anyio
async def test_states_are_kept_up_to_a_weight(house: House, crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred long Sessions must not stay in memory because somebody asked once how each of them stands."""
    monkeypatch.setattr("refold.session.log.KEPT_BYTES", 1)
    app = await house.open(view=ViewSettings(compact_events=30))
    await app.blueprints.add(TALK)
    async with Line(app) as line:
        sessions = [await line.start("talk") for _ in range(3)]
        for n in range(8):
            for session in sessions:
                await talk(line, session, str(n))
                await compacted(app)
        assert all([await compactions(app, session) for session in sessions])
        assert not app.sessions._log._states, "a compaction keeps none"
        for session in sessions:
            page = await line.page(session)
            bookmark = await app.sessions.bookmark(session)
            assert bookmark["foldDigest"] == view.fold_digest(folded(page))
        assert len(app.sessions._log._states) == 1
