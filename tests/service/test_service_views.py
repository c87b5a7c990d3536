"""What readers of a Session are served: pages, pushes, snapshots and suffixes are all one history, whatever happens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from service_kit import (
    PATIENCE_SECS,
    Crew,
    House,
    Json,
    Line,
    Refused,
    cursor_of,
    uuid7,
)
from view_kit import fold, grown, log_rows, rich_app

from refold import view
from refold.canonical import canonical
from refold.engine.agents import Report
from refold.flowir import Pass
from refold.service.app import App
from refold.service.sessions import ViewSettings
from refold.session import find_session
from refold.store import Reader, append_log

pytestmark = pytest.mark.anyio


@pytest.fixture
async def app(house: House, crew: Crew) -> App:
    return await rich_app(house, crew)


# -- one history ------------------------------------------------------------------------------------------------------


async def test_what_was_pushed_is_what_is_paged_both_ways(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await grown(line)
        page = await line.page(session)
        assert line.pushed(session) == page[2:], "session/start covers the first two"
        assert [frame["params"]["prevCursor"] for frame in page] == [None, *map(cursor_of, page[:-1])]
        for limit in (1, 2, 3, 7, 1000):
            assert await line.page(session, limit) == page
            assert await line.page(session, limit, direction="backward") == page
        for cut, frame in enumerate(page):
            at = {"cursor": cursor_of(frame)}
            assert await line.page(session, 5, **at) == page[cut + 1 :]
            assert await line.page(session, 5, direction="backward", **at) == page[:cut]


async def test_a_restart_changes_no_byte_of_it(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await grown(line)
        page = await line.page(session)
    app = await house.reboot(app)
    async with Line(app) as line:
        assert await line.page(session) == page
        await line.resume(session)
        assert await line.page(session) == page


async def test_a_suffix_is_strictly_after_its_cursor_at_every_cut(house: House, app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await grown(line, 1)
        page = await line.page(session)
        whole = fold(page)
    for cut in range(len(page)):
        app = await house.reboot(app) if cut % 10 == 0 else app
        async with Line(app) as line:
            answer = await line.resume(session, cursor=cursor_of(page[cut]))
            assert (answer["history"]["mode"], answer["history"]["noneReason"]) == ("none", "cursorSuffix")
            assert answer["viewCursor"] == cursor_of(page[-1])
            if cut + 1 < len(page):
                await line.until(lambda frame: frame.get("params", {}).get("viewCursor") == whole.cursor)
            assert line.pushed(session) == page[cut + 1 :]
            assert view.fold_digest(fold(page[: cut + 1] + line.pushed(session))) == view.fold_digest(whole)


@pytest.mark.parametrize("seed", range(4))
async def test_slow_readers_of_a_fast_writer_get_everything_once(app: App, crew: Crew, seed: int) -> None:
    chance = random.Random(seed)
    async with Line(app) as writer:
        session = await grown(writer, 1, "many")
        kept = await writer.page(session)
        readers = [Line(app) for _ in range(5)]
        starts = [chance.randrange(len(kept)) for _ in readers]
        for reader, start in zip(readers, starts, strict=True):
            await reader.__aenter__()
            await reader.resume(session, cursor=cursor_of(kept[start]))

        for reader in readers[1:]:
            reader.lag = lambda: chance.randrange(12)
        turns = [(await writer.turn(session, str(n)))["turnId"] for n in range(6)]
        for reader in readers:
            await reader.turn_ended(turns[-1])
        page = await writer.page(session)
        for reader, start in zip(readers, starts, strict=True):
            assert reader.pushed(session) == page[start + 1 :]
            await reader.__aexit__()
        assert len(page) > len(kept) + 6 * 24


@pytest.mark.parametrize("behind", [0, 1])
async def test_what_is_appended_between_the_bell_and_the_read_is_delivered(app: App, crew: Crew, behind: int) -> None:
    """A read has given what there is, and before anybody can look something comes in: nobody rings again for it."""
    async with Line(app) as line:
        session = await grown(line, 1)
    row = await app.store.read(lambda reader: find_session(reader, session))
    places = [view.Position(each.seq, k) for each in await log_rows(app, session) for k in range(each.frames)]
    subscription = app.sessions.subscription(row, places[-1 - behind])
    read, late = app.store.read, iter([True])

    async def slow(fn: Callable[[Reader], Any]) -> Any:
        found = await read(fn)
        if next(late, False):
            at = app.clock.now_ms()
            await app.store.write(
                lambda tx: append_log(tx, row.n, [view.model_changed(at, model="m", source="user", command=uuid7())])
            )
        return found

    app.store.read = slow
    told: list[str] = []
    async with asyncio.timeout(PATIENCE_SECS):
        async for batch in subscription.frames():
            told += [each.frame["method"] for each in batch.frames]
            if len(told) > behind:
                break
    assert told[behind:] == ["session/modelChanged"]
    subscription.close()


# -- the ladder -------------------------------------------------------------------------------------------------------

FORMS = {"auto": "inline", "inline": "inline", "anchored": "inline", "snapshot": "snapshot"}
"""What each preference is served where everything fits; no Session has a boundary yet."""


def bytes_of(value: Json) -> int:
    return len(canonical(value))


def elided(history: Json) -> Json:
    """An elided form of a served snapshot, made by the test's own hands."""
    snapshot = history["snapshot"]
    items = [
        {
            name: member
            for name, member in item.items()
            if "outputRef" not in item or name not in ("visibleOutput", "text")
        }
        for item in snapshot["state"]["items"]
    ]
    return history | {"snapshot": snapshot | {"state": snapshot["state"] | {"items": items}}}


def served_within(budget: int, forms: dict[str, Json], preference: str) -> Json:
    """What the ladder must serve: the first form, from the preferred one downwards, that fits."""
    ladder = ["inline", "snapshot", "elided"]
    for form in ladder[ladder.index(FORMS[preference]) :]:
        if bytes_of(forms[form]) <= budget:
            return forms[form]
    return {"mode": "none", "items": None, "snapshot": None, "noneReason": "historyBudget"}


@pytest.mark.parametrize("preference", FORMS)
async def test_what_is_served_is_what_is_reported_at_every_budget(
    house: House, app: App, crew: Crew, preference: str
) -> None:
    async with Line(app) as line:
        session = await grown(line, 1)
        page = await line.page(session)
        inline, snapshot = [(await line.resume(session, history=form))["history"] for form in ("inline", "snapshot")]
    whole = fold(page)
    forms = {"inline": inline, "snapshot": snapshot, "elided": elided(snapshot)}
    assert inline == {"mode": "inline", "items": list(whole.items.values()), "snapshot": None}
    assert view.fold_digest(view.seed(snapshot["snapshot"])) == view.fold_digest(whole)
    sizes = sorted({bytes_of(form) for form in forms.values()})
    assert len(sizes) == 3, "the forms differ in size, or the test shows nothing"
    budgets = {0, 64, *(size + more for size in sizes for more in (-1, 0, 1)), 4 * 1024 * 1024}
    for budget in sorted(budgets):
        app = await house.reboot(app, view=ViewSettings(history_budget_bytes=budget))
        async with Line(app) as line:
            answer = await line.resume(session, history=preference)
            assert answer["history"] == served_within(budget, forms, preference)
            assert answer["viewCursor"] == whole.cursor
            carried = bytes_of(answer["history"]) if answer["history"]["mode"] != "none" else 0
            assert carried <= budget
            suffix = (await line.resume(session, history=preference, cursor=cursor_of(page[0])))["history"]
            assert suffix["noneReason"] == "cursorSuffix", "a held cursor is served outside the budget"
            left_out = (await line.resume(session, history=preference, excludeItems=True))["history"]
            assert (left_out["mode"], left_out["noneReason"]) == ("none", "excluded")


async def test_a_snapshot_and_what_follows_it_is_the_fold_from_genesis(app: App, crew: Crew) -> None:
    """Snapshots at as many moments of a running Session as there are commits in it."""
    snapshots: list[Json] = []
    commit = app.store.commit

    async def watched(step: Any, also: Any = None) -> Any:
        seqs = await commit(step, also)
        served, _ = await app.sessions.snapshot(session)
        snapshots.append(served.history["snapshot"])
        return seqs

    async with Line(app) as line:
        session = await line.start("rich")
        app.store.commit = watched
        await line.turn_ended((await line.turn(session))["turnId"])
        page = await line.page(session)
    cursors, whole = [cursor_of(frame) for frame in page], fold(page)
    assert len({snapshot["viewCursor"] for snapshot in snapshots}) == len(snapshots) >= 6
    for snapshot in snapshots:
        at = cursors.index(snapshot["viewCursor"]) + 1
        assert snapshot["foldDigest"] == view.fold_digest(fold(page[:at]))
        state = view.seed(snapshot)
        for frame in page[at:]:
            assert view.apply(state, frame) is view.Outcome.APPLIED
        assert view.fold_digest(state) == view.fold_digest(whole)


async def test_the_payload_that_an_elided_snapshot_leaves_out_can_be_read(app: App, crew: Crew) -> None:
    async with Line(app) as line:
        session = await grown(line, 1)
        (big,) = [
            frame["params"]["item"]
            for frame in await line.page(session)
            if "outputRef" in frame["params"].get("item", {})
        ]
        text, size = "", big["outputRef"]["byteLen"]
        while len(text.encode()) < size:
            slice_ = {"offsetBytes": len(text.encode()), "lengthBytes": 4099}
            part = await _read(line, session, big, slice_)
            text += part["content"]
            assert part["eof"] == (len(text.encode()) == size)
    assert text == "ünïcode line of a long output\n" * 600
    assert text.startswith(big["visibleOutput"])


async def _read(line: Line, session: str, item: Json, slice_: Json) -> Json:
    """A slice; where it would cut a character in two, the error says how long it may be."""
    reference = {"sessionId": session, "itemId": item["itemId"], "outputRef": item["outputRef"]["id"]}
    try:
        return await line.call("item/readOutput", **reference, **slice_)
    except Refused as no:
        aligned = no.data["alignedNextOffset"] - slice_["offsetBytes"]
        return await line.call("item/readOutput", **reference, **slice_ | {"lengthBytes": aligned})


async def test_an_item_says_that_its_output_was_mended_and_no_other_does(app: App, crew: Crew) -> None:
    crew.acts["s"] = lambda work: Report(Pass("\ufffd"), mended=work.directive == 2)
    async with Line(app) as line:
        session = await grown(line, 1)
        marks = [
            (frame["params"]["item"]["args"], frame["params"]["item"].get("mended"))
            for frame in await line.page(session)
            if frame["method"] == "item/completed" and frame["params"]["item"]["kind"] == "toolCall"
        ]
        assert [mark for mark in marks if mark[1] is not None] == [("2", True)]
        assert len(marks) > 3
