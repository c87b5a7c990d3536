"""What agents say while they work: who hears it, in which order, and that nothing durable depends on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from unittest import mock

import pytest
from muse_code.fold.session_fold import IgnoredMissingParams, IgnoredUnrecognizedMethod, SessionFold
from service_kit import (
    BROADCASTS,
    PATIENCE_SECS,
    Frame,
    House,
    Json,
    Line,
    cursor_of,
    encode,
    flow,
    lit,
    path,
    seq,
    step,
)
from view_kit import UNCOMPACTED, append, fold, stuck

from refold import view
from refold.service.app import App
from refold.session import Hub, Live
from refold.session.live import ENDED, WINDOW, Listener
from refold.view import Position

pytestmark = pytest.mark.anyio

TEXT = "".join(f"{n}, ünïcode; " for n in range(40))


class Speaker:
    """An agent that says what a test hands it, piece by piece, and passes all of it once it is told `None`."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self._said = asyncio.Event()

    async def talk(self, _: Json) -> AsyncIterator[str]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, Exception):
                raise piece
            yield piece
            self._said.set()

    async def say(self, piece: str | Exception | None) -> None:
        """Has it said, and waits until it was."""
        self._said.clear()
        self._pieces.put_nowait(piece)
        if isinstance(piece, str):
            await asyncio.wait_for(self._said.wait(), PATIENCE_SECS)


@pytest.fixture
def speaker() -> Speaker:
    return Speaker()


@pytest.fixture
async def app(house: House, speaker: Speaker) -> AsyncIterator[App]:
    app = await house.open(app={"t:talk": speaker.talk}, view=UNCOMPACTED)
    talks = {"name": "s", "kind": "python", "spec": {"fn": "t:talk"}}
    streams = {"name": "s", "kind": "python", "spec": {"fn": "builtin:stream", "text": TEXT, "chunk": 7}}
    lanes = {
        "kind": "fanout",
        "items": lit(["one " * 50, "two " * 50]),
        "bind": path("$.i"),
        "join": "all",
        "out": path("$.lanes"),
        "body": seq(step("s", path("$.i"))),
    }
    for name, nodes, agent in (
        ("talks", [step("s", 1, "$.output")], talks),
        ("retries", [step("s", 1, "$.output")], talks | {"retry": {"max_attempts": 2, "initial_secs": 0}}),
        ("streams", [step("s", 1, "$.output")], streams),
        ("lanes", [lanes], {"name": "s", "kind": "python", "spec": {"fn": "builtin:stream", "chunk": 9}}),
    ):
        await app.blueprints.add(flow(*nodes, id=name) | {"agents": [agent]})
    yield app


def told(line: Line, since: int = 0) -> list[Frame]:
    """Events and pieces, in order."""
    frames = [frame for frame in line.frames[since:] if "id" not in frame and frame["method"] not in BROADCASTS]
    return [{"method": frame["method"], "params": frame["params"]} for frame in frames]


def pieces(frames: list[Frame]) -> list[Json]:
    return [frame["params"] for frame in frames if frame["method"] == "item/delta"]


def said(frames: list[Frame]) -> str:
    return "".join(piece["delta"] for piece in pieces(frames))


async def opened(line: Line) -> Json:
    """The item of the step, once the line was told of it."""
    started = await line.until(
        lambda frame: frame.get("method") == "item/started" and frame["params"]["item"]["kind"] == "toolCall"
    )
    return started["params"]["item"]


async def heard(line: Line, text: str) -> None:
    await line.until(lambda _: said(told(line)) == text)


def outputs(frames: list[Frame]) -> dict[str, str]:
    """What items of steps ended with."""
    items = [frame["params"]["item"] for frame in frames if frame["method"] == "item/completed"]
    return {item["itemId"]: item.get("visibleOutput", "") for item in items if item["kind"] == "toolCall"}


@pytest.mark.parametrize("blueprint", ["streams", "lanes"])
async def test_the_pieces_of_an_item_are_its_output_and_come_before_its_end(app: App, blueprint: str) -> None:
    async with Line(app) as line:
        session = await line.start(blueprint)
        await line.turn_ended((await line.turn(session))["turnId"])
        frames = told(line)
        assert len(pieces(frames)) > 4
        assert all(piece["field"] == "output" and piece["delta"] for piece in pieces(frames))
        for item, output in outputs(frames).items():
            of_item = [frame for frame in frames if item in encode(frame["params"]) and "workflow" not in encode(frame)]
            assert said(of_item) == output
            methods = [frame["method"] for frame in of_item]
            assert methods == ["item/started", *["item/delta"] * (len(methods) - 2), "item/completed"]


async def test_the_official_client_has_what_was_said_and_the_same_state(app: App) -> None:
    async with Line(app) as line:
        session = await line.start("lanes")
        await line.turn_ended((await line.turn(session))["turnId"])
        page, frames, oracle = await line.page(session), told(line), SessionFold()
        for frame in frames:
            outcome = oracle.apply(frame)
            assert not isinstance(outcome, IgnoredUnrecognizedMethod | IgnoredMissingParams)
        for item, output in outputs(frames).items():
            assert oracle.items.accumulated(item, "output") == output
        assert [item["itemId"] for item in oracle.items.list()] == list(fold(page).items)


async def test_nothing_durable_depends_on_what_was_said(app: App) -> None:
    async with Line(app) as line:
        session = await line.start("streams")
        await line.turn_ended((await line.turn(session))["turnId"])
        page = await line.page(session)
        assert page[2:] == line.pushed(session)
        state, half = view.apply_all(view.ViewState(), page[:2]), 0
        for frame in told(line):
            outcome = view.apply(state, frame)
            half += outcome is view.Outcome.STREAMED
            assert outcome in (view.Outcome.APPLIED, view.Outcome.STREAMED)
        whole = await app.sessions.bookmark(session)
        assert half > 4 and state.texts == {}
        assert view.fold_digest(state) == whole["foldDigest"]


async def test_the_cursor_of_a_piece_is_its_own_and_means_the_position_before_it(app: App, speaker: Speaker) -> None:
    async with Line(app) as line:
        session = await line.start("talks")
        turn = (await line.turn(session))["turnId"]
        await opened(line)
        for piece in ("a", "b"):
            await speaker.say(piece)
            await heard(line, "ab"[: "ab".index(piece) + 1])
        events = line.pushed(session)
        cursors = [piece["viewCursor"] for piece in pieces(told(line))]
        assert len({*cursors, cursor_of(events[-1])}) == 3
        await speaker.say(None)
        await line.turn_ended(turn)
        after = line.pushed(session)[len(events) :]
        for cursor in cursors:
            assert await line.page(session, cursor=cursor) == after
            mark = len(line.frames)
            answer = await line.resume(session, cursor=cursor)
            assert answer["history"]["noneReason"] == "cursorSuffix"
            await line.until(lambda frame: frame.get("method") == "turn/completed", mark)
            assert line.pushed(session, mark) == after


async def test_who_comes_late_gets_the_whole_at_the_end_and_no_half(app: App, speaker: Speaker) -> None:
    async with Line(app) as line, Line(app) as late:
        session = await line.start("talks")
        turn = (await line.turn(session))["turnId"]
        await opened(line)
        await speaker.say("first ")
        await heard(line, "first ")
        snapshot = await late.resume(session, history="snapshot")
        await speaker.say("second")
        await heard(line, "first second")
        await speaker.say(None)
        await late.turn_ended(turn)
        assert pieces(told(late)) == []
        assert list(outputs(told(late)).values()) == ["first second"]
        state = view.seed(snapshot["history"]["snapshot"])
        for frame in late.pushed(session):
            assert view.apply(state, frame) is view.Outcome.APPLIED
        assert view.fold_digest(state) == (await app.sessions.bookmark(session))["foldDigest"]


async def test_who_comes_before_the_first_word_hears_it(app: App, speaker: Speaker) -> None:
    async with Line(app) as line, Line(app) as late:
        session = await line.start("talks")
        turn = (await line.turn(session))["turnId"]
        await opened(line)
        await late.resume(session)
        await speaker.say("all")
        await speaker.say(None)
        await late.turn_ended(turn)
        assert said(told(late)) == "all"


@pytest.mark.parametrize("size", [1000, WINDOW + 1000], ids=["some", "more than is kept"])
async def test_a_slow_reader_gets_one_long_piece_or_no_more_of_it(app: App, speaker: Speaker, size: int) -> None:
    async with Line(app) as line:
        session = await line.start("talks")
        turn = (await line.turn(session))["turnId"]
        await opened(line)
        line.ready.clear()
        await speaker.say("begin ")
        await line.blocked()
        for _ in range(100):
            await speaker.say("x" * (3 * size // 100))
        line.ready.set()
        if size > WINDOW:
            await speaker.say("and on")
        await speaker.say(None)
        await line.turn_ended(turn)
        got = pieces(told(line))
        assert said(told(line)) == ("begin " if size > WINDOW else "begin " + "x" * 3 * size)
        assert len(got) <= 2
        assert outputs(told(line)) != {}


async def test_a_retry_is_not_heard_after_an_attempt_that_was(app: App, speaker: Speaker) -> None:
    async with Line(app) as line:
        session = await line.start("retries")
        turn = (await line.turn(session))["turnId"]
        await opened(line)
        await speaker.say("wrong")
        await heard(line, "wrong")
        await speaker.say(ValueError("no"))
        await speaker.say("right")
        await speaker.say(None)
        await line.turn_ended(turn)
        assert said(told(line)) == "wrong"
        assert list(outputs(told(line)).values()) == ["right"]


async def test_a_retry_is_heard_if_nothing_was_said_before(app: App, speaker: Speaker) -> None:
    async with Line(app) as line:
        session = await line.start("retries")
        turn = (await line.turn(session))["turnId"]
        await opened(line)
        await speaker.say(ValueError("no"))
        await speaker.say("right")
        await speaker.say(None)
        await line.turn_ended(turn)
        assert said(told(line)) == "right"


async def test_what_is_cut_off_is_no_event_and_is_said_anew_by_the_next_activation(app: App, speaker: Speaker) -> None:
    async with Line(app) as line:
        session = await line.start("talks")
        turn = (await line.turn(session))["turnId"]
        first = await opened(line)
        await speaker.say("cut o")
        await heard(line, "cut o")
        await line.command("turn/interrupt", sessionId=session)
        ended = await line.turn_ended(turn)
        assert ended["terminal"] == "cancelled"
        mark = len(line.frames)
        (run,) = {frame["params"]["item"]["workflowRunId"] for frame in told(line)
                  if frame["params"].get("item", {}).get("kind") == "workflow"}  # fmt: skip
        again = (await line.command("workflow/resume", sessionId=session, workflowRunId=run))["turnId"]
        await speaker.say("whole")
        await speaker.say(None)
        await line.turn_ended(again, mark)
        assert said(told(line, mark)) == "whole"
        assert {piece["itemId"] for piece in pieces(told(line, mark))} != {first["itemId"]}


async def test_a_secret_is_taken_out_of_what_is_said_also_across_pieces(app: App, speaker: Speaker) -> None:
    with mock.patch.dict("os.environ", REFOLD_SECRET_KEY="s3cr3t", REFOLD_SECRET_LONG="s3cr3t-value"):
        for name in ("KEY", "LONG"):
            app._supervisor._tools.secrets.resolve({"$secret": name})
    async with Line(app) as line:
        session = await line.start("talks")
        turn = (await line.turn(session))["turnId"]
        await opened(line)
        for piece in ("my s3c", "r3t", "-val", "ue and s3c", "r3t end"):
            await speaker.say(piece)
            for _ in range(20):
                await asyncio.sleep(0)
        await speaker.say(None)
        await line.turn_ended(turn)
        assert said(told(line)) == "my [secret LONG] and [secret KEY] end"
        assert list(outputs(told(line)).values()) == [said(told(line))]
        assert "s3c" not in said(told(line))


async def test_a_client_may_opt_out(app: App) -> None:
    async with Line(app) as other:
        line = Line(app)
        await line._peer.__aenter__()
        capabilities = {"optOutNotificationMethods": ["item/delta"]}
        await line.call("initialize", clientInfo={"name": "t", "version": "1"}, capabilities=capabilities)
        await line.initialized()
        session = await other.start("streams")
        await line.resume(session)
        turn = (await other.turn(session))["turnId"]
        await line.turn_ended(turn)
        assert pieces(told(line)) == [] != pieces(told(other))
        await line.__aexit__()


async def test_a_generator_that_yields_no_text_fails_its_step(house: House) -> None:
    async def talk(_: Json) -> AsyncIterator[Json]:
        yield 7

    app = await house.open(app={"t:talk": talk})
    agent = {"name": "s", "kind": "python", "spec": {"fn": "t:talk"}}
    await app.blueprints.add(flow(step("s", 1), id="talks") | {"agents": [agent]})
    async with Line(app) as line:
        session = await line.start("talks")
        ended = await line.turn_ended((await line.turn(session))["turnId"])
        assert ended["terminal"] == "failed" and "yields text, not int" in ended["error"]["message"]


async def test_a_reader_that_jumped_hears_no_more_of_what_it_jumped_over(app: App, speaker: Speaker) -> None:
    """It would have the beginning twice: once as it was said, and once before it knows that there was more."""
    async with Line(app) as line:
        session = await line.start("talks")
        turn = (await line.turn(session))["turnId"]
        await opened(line)
        await speaker.say("begin ")
        await heard(line, "begin ")
        await stuck(app, line, session)
        await append(app, session, 10_050)
        await speaker.say("lost")
        line.ready.set()
        await line.until(lambda frame: frame.get("method") == "view/gap")
        await speaker.say(" and on")
        await speaker.say(None)
        await line.turn_ended(turn)
        assert said(told(line)) in ("begin ", "begin lost")
        assert list(outputs(told(line)).values()) == ["begin lost and on"]


def test_a_listener_hears_of_items_that_its_reader_knows_and_of_each_from_the_beginning() -> None:
    hub = Hub()
    live, _ = Live(hub), hub.open(1)
    live.say(1, 5, "old", 1, "before it came")
    listener = Listener(live, 1)
    live.say(1, 5, "old", 1, "after")
    live.say(1, 6, "new", 1, "a")
    live.say(2, 6, "of another session", 1, "a")
    assert listener.pieces(Position(5, 9)) == []
    (piece,) = listener.pieces(Position(6, 0))
    assert piece == ("new", 0, "a", 1)
    assert listener.pieces(Position(6, 0)) == [piece], "what is not taken is still owed"
    listener.take(piece)
    assert listener.pieces(Position(6, 0)) == []
    live.say(1, 6, "new", 1, "bc")
    assert listener.pieces(Position(6, 0)) == [("new", 1, "bc", 2)]
    assert listener.pieces(Position(7, 0)) == [("new", 1, "bc", 1)]
    listener.miss()
    live.say(1, 6, "new", 1, "d")
    assert listener.pieces(Position(7, 0)) == []


def test_what_is_kept_is_bounded() -> None:
    hub = Hub()
    live, bell = Live(hub), hub.open(1)
    for n in range(3 * ENDED):
        for _ in range(10):
            live.say(1, 1, f"item{n}", 1, "x" * WINDOW)
        live.end(1, f"item{n}")
        live.end(1, "never spoke")
    kept = [each.since(each.said - WINDOW) for each in live.of(1)]
    assert len(kept) == ENDED and all(kept)
    assert sum(len(each._kept) for each in live.of(1)) <= ENDED * 2 * WINDOW
    hub.close(1, bell)
    live.say(1, 1, "unheard", 1, "x" * WINDOW)
    assert next(each for each in live.of(1) if each.item_id == "unheard")._kept == ""
