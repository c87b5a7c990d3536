"""When a Session compacts by itself: it has grown enough, and who finds that out reads little."""

from __future__ import annotations

import itertools

import pytest
from boundary_kit import TALK, compacted, compactions, folded, just_compacted, latest, renamed, talk
from service_kit import Crew, House, Line, cursor_of

from refold import view
from refold.canonical import decode
from refold.records import BoundaryRow
from refold.service.sessions import ViewSettings
from refold.session import boundaries

pytestmark = pytest.mark.anyio


async def test_a_session_compacts_by_itself_when_it_has_grown(house: House, crew: Crew) -> None:
    app = await house.open(view=ViewSettings(compact_events=30))
    await app.blueprints.add(TALK)
    async with Line(app) as line:
        session = await line.start("talk")
        for n in range(20):
            await talk(line, session, str(n))
            await compacted(app)
        page = await line.page(session)
    found = await compactions(app, session)
    assert [item["trigger"] for item in found] == ["auto"] * len(found)
    rows = await app.store.read(lambda reader: reader.find(BoundaryRow))
    gaps = [later.seq - earlier.seq for earlier, later in itertools.pairwise(rows)]
    assert rows[0].seq >= 30
    assert all(30 <= gap <= 45 for gap in gaps)
    assert len(rows) == len(found) >= 2
    app = await house.reboot(app)
    async with Line(app) as line:
        history = (await line.resume(session))["history"]
        assert history["mode"] == "anchoredSnapshot"
        suffix = page[[cursor_of(frame) for frame in page].index(history["snapshot"]["viewCursor"]) + 1 :]
        assert view.fold_digest(folded(suffix, view.seed(history["snapshot"]))) == view.fold_digest(folded(page))


async def test_a_session_that_hardly_changed_does_not_compact_by_itself(house: House, crew: Crew) -> None:
    """A boundary rewrites segments: for a few events in a large state it would cost more than it saves."""
    app = await house.open(view=ViewSettings(compact_events=10))
    await app.blueprints.add(TALK)
    async with Line(app) as line:
        session = await just_compacted(app, line)
        row = await latest(app, session)
        items = len((await line.resume(session))["history"]["snapshot"]["state"]["items"])
        await renamed(app, session, items // 4 - 5)
        await compacted(app)
        assert await latest(app, session) == row
        await renamed(app, session, 15)
        await compacted(app)
        assert (await latest(app, session)).seq > row.seq


async def test_after_so_many_events_a_session_compacts_however_little_they_changed(
    house: House, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are folded at once: of a million items a quarter would be more than anybody waits for."""
    monkeypatch.setattr("refold.service.compaction.MOST_EVENTS", 14)
    app = await house.open(view=ViewSettings(compact_events=10))
    await app.blueprints.add(TALK)
    async with Line(app) as line:
        session = await just_compacted(app, line)
        row = await latest(app, session)
        await renamed(app, session, 12)
        await compacted(app)
        assert await latest(app, session) == row
        await renamed(app, session, 10)
        await compacted(app)
        assert (await latest(app, session)).seq > row.seq


async def test_a_new_server_sees_that_a_large_session_hardly_changed_without_reading_it(
    house: House, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit after a boot has it looked at: a resumed Run would wait for the fold of all its steps."""
    settings = ViewSettings(compact_events=10)
    app = await house.open(view=settings)
    await app.blueprints.add(TALK)
    async with Line(app) as line:
        session = await just_compacted(app, line)
    row = await latest(app, session)
    assert len(decode(row.segments_json)) > 1
    app = await house.reboot(app, view=settings)
    loaded, load = [], boundaries.load
    monkeypatch.setattr(boundaries, "load", lambda *given: (loaded.append(given), load(*given))[1])
    await renamed(app, session, 12)
    await compacted(app)
    assert await latest(app, session) == row
    assert not loaded
    await renamed(app, session, 40)
    await compacted(app)
    assert (await latest(app, session)).seq > row.seq
    assert not loaded, "a new boundary goes on from it as well"
