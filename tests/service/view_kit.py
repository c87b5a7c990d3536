"""What the tests of views share: Blueprints that leave something of each kind in a view, and the fold of it."""

from __future__ import annotations

from service_kit import Crew, Frame, House, Line, flow, lit, path, seq, step

from refold import view
from refold.engine.agents import Assignment, Report
from refold.flowir import Failed, Pass
from refold.records import LogRow
from refold.service.app import App
from refold.service.sessions import ViewSettings
from refold.session import find_session
from refold.store import append_log

UNCOMPACTED = ViewSettings(compact_events=1_000_000)
"""Sessions that do not compact by themselves, where a test counts their rows."""

LANES = {
    "kind": "fanout",
    "items": lit([1, 2, 3]),
    "bind": path("$.i"),
    "join": "all",
    "out": path("$.lanes"),
    "body": seq(step("lane", path("$.i")), step("lane", path("$.i"))),
}
GUARDED = {"kind": "try", "body": step("shy", 1), "catch": seq(), "err_at": path("$.err")}
RICH = flow(step("s", path("$.input")), GUARDED, LANES, step("big", 1), step("s", 2, "$.output"), id="rich")


MANY = flow(*(step("s", n, f"$.s{n}") for n in range(12)), id="many")


def long_text(work: Assignment) -> Report:
    return Report(Pass("ünïcode line of a long output\n" * 600))


ACTS = {"big": long_text, "shy": lambda work: Report(Failed("shy"))}
"""What the agents of RICH do."""


async def rich_app(house: House, crew: Crew) -> App:
    """An App that has those Blueprints, and agents for them."""
    app = await house.open(view=UNCOMPACTED)
    crew.acts |= ACTS
    await app.blueprints.add(RICH)
    await app.blueprints.add(MANY)
    return app


async def grown(line: Line, turns: int = 2, model: str = "rich") -> str:
    """A Session with some turns behind it."""
    session = await line.start(model)
    for n in range(turns):
        await line.turn_ended((await line.turn(session, f"turn {n}"))["turnId"])
    return session


def fold(frames: list[Frame]) -> view.ViewState:
    state = view.ViewState()
    for frame in frames:
        assert view.apply(state, frame) in (view.Outcome.APPLIED, view.Outcome.UNKNOWN), frame
    return state


async def log_rows(app: App, session: str) -> list[LogRow]:
    return await app.store.read(lambda reader: reader.log(find_session(reader, session).n, 0))


async def append(app: App, session: str, count: int, size: int = 1) -> None:
    """Appends so many events with bodies of about so many bytes, a thousand to a commit."""
    n = (await app.store.read(lambda reader: find_session(reader, session))).n
    for start in range(0, count, 1000):
        records = [
            view.model_changed(0, model="m" * size, source="user", command=f"{start}")
            for _ in range(min(1000, count - start))
        ]
        await app.store.write(lambda tx, records=records: append_log(tx, n, records))


async def stuck(app: App, line: Line, session: str) -> int:
    """Has a line stand still with a frame in its hands; where the frames after it will be."""
    line.ready.clear()
    await append(app, session, 1)
    await line.blocked()
    return len(line.frames)
