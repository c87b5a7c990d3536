"""A Session's log that is not what was written: no door shows it, and no door takes it for the end of the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from service_kit import Crew, House, Json, Line, Refused
from view_kit import UNCOMPACTED, grown

from refold.canonical import decode, encode
from refold.records import LogRow, LogType, SessionRecord
from refold.service.app import App
from refold.store import Tx

pytestmark = pytest.mark.anyio

Damage = Callable[[Tx, LogRow], object]


@pytest.fixture
async def app(house: House, crew: Crew) -> App:
    app = await house.open(view=UNCOMPACTED)
    await app.blueprints.add({"id": "rich", "flow": {"kind": "seq", "children": []}, "agents": []})
    return app


def change_text(tx: Tx, row: LogRow) -> None:
    """What still is a sound record, with another text in it."""
    body = decode(row.body_json)
    tx.update(LogRow, (row.session, row.seq), body_json=encode(body | {"text": "what nobody said"}))


def change_turn(tx: Tx, row: LogRow) -> None:
    tx.update(LogRow, (row.session, row.seq), turn_id="0198f0aa-3333-7000-8000-00000000ffff")


def lose(tx: Tx, row: LogRow) -> None:
    tx.delete(LogRow, session=row.session, seq=row.seq)


def lose_the_end(tx: Tx, row: LogRow) -> None:
    tx.delete(LogRow, session=row.session, seq=tx.log(row.session, row.seq)[-1].seq)


async def page_forward(line: Line, session: str) -> Json:
    return await line.page(session, limit=3)


async def page_backward(line: Line, session: str) -> Json:
    return await line.page(session, limit=3, direction="backward")


async def whole_history(line: Line, session: str) -> Json:
    return await line.resume(session, historyPreference="inline")


async def snapshot(line: Line, session: str) -> Json:
    return await line.resume(session, historyPreference="snapshot")


DOORS = [page_forward, page_backward, whole_history, snapshot]


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("damage", [change_text, change_turn, lose, lose_the_end], ids=lambda damage: damage.__name__)
async def test_a_changed_row_is_shown_at_no_door(
    house: House, app: App, damage: Damage, door: Callable[[Line, str], Awaitable[Json]]
) -> None:
    async with Line(app) as line:
        sound, session = await grown(line), await grown(line)

    def spoil(tx: Tx) -> None:
        (record,) = tx.find(SessionRecord, session_id=session)
        damage(tx, [row for row in tx.log(record.n, 0) if row.type == LogType.TURN_OPENED][-1])

    await app.store.write(spoil)
    app = await house.reboot(app, view=UNCOMPACTED)
    async with Line(app) as line:
        with pytest.raises(Refused) as refused:
            await door(line, session)
        assert refused.value.data["reason"] == "storeDamaged"
        assert await door(line, sound)
