"""The official client (muse-code-sdk), as it is published, against a host that is killed under it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from e2e_kit import PATIENCE_SECS, REFOLD, Home, Json
from muse_code import (
    MuseClient,
    MuseClientSpawnOptions,
    ResumeSessionOptions,
    SendUserTurnOptions,
    Session,
    SessionFold,
    StartSessionOptions,
    is_abnormal_host_death,
)

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]

STEPS = ("a", "b", "c")


class Client:
    """A client with a host process of its own, which holds the store or attaches to who does. `events` are all durable
    events that it was pushed."""

    def __init__(self, client: MuseClient[Any]) -> None:
        self.muse = client
        self.events: list[Json] = []
        self._moved = asyncio.Event()
        route = client._route

        def note(frame: Json) -> None:
            if "sourceRange" in frame.get("params", {}):
                self.events.append({"method": frame["method"], "params": frame["params"]})
                self._moved.set()
            route(frame)

        client._connection.on_notification(note)

    @classmethod
    async def spawn(cls, home: Home) -> Client:
        options = MuseClientSpawnOptions(
            muse_bin=REFOLD[0],
            args=[*REFOLD[1:], "msp", "--subprocess", "any"],
            client_info={"name": "tests", "version": "1"},
            env=dict(home.environment),
        )
        async with asyncio.timeout(PATIENCE_SECS):
            return cls(await MuseClient.spawn(options))

    async def seen(self, test: Callable[[Json], bool]) -> Json:
        """The first event that passes the test."""
        async with asyncio.timeout(PATIENCE_SECS):
            while not (found := [event for event in self.events if test(event)]):
                self._moved.clear()
                await self._moved.wait()
            return found[0]

    async def page(self, session_id: str) -> list[Json]:
        """All events of the Session."""
        events: list[Json] = []
        asked: Json = {"sessionId": session_id, "limit": 7}
        while True:
            page = await self.muse._connection.request("view/page", asked)
            events += page["events"]
            if page["nextCursor"] is None:
                return events
            asked["cursor"] = page["nextCursor"]


def say(text: str) -> SendUserTurnOptions:
    return SendUserTurnOptions(input=[{"type": "text", "text": text}])


def folded(events: list[Json]) -> SessionFold:
    """The client's own fold of events."""
    fold = SessionFold()
    for event in events:
        outcome = type(fold.apply(event)).__name__
        assert not outcome.startswith("Ignored"), (outcome, event)
    return fold


def shown(fold: Any) -> Json:
    """What a fold shows: its items, turns and state."""
    families = {name: fold.session_state.get(name) for name in fold.session_state.families()}
    turns = [vars(turn) if hasattr(turn, "__dict__") else str(turn) for turn in fold.turns()]
    told = {"items": list(fold.items.list()), "active": fold.active_turn_id, "turns": turns, "state": families}
    return json.loads(json.dumps(told, default=str))


def is_open(name: str) -> Callable[[Json], bool]:
    """Whether an event opens the item of a step."""
    return lambda event: event["method"] == "item/started" and event["params"]["item"].get("tool") == name


def ends(terminal: str) -> Callable[[Json], bool]:
    """Whether an event ends a turn so."""
    return lambda event: event["method"] == "turn/completed" and event["params"]["terminal"] == terminal


async def test_a_turn_is_seen_as_it_is_stored(home: Home) -> None:
    client = await Client.spawn(home)
    home.api.post("/v1/blueprints", home.chain(*STEPS))
    session: Session[Any] = await client.muse.start_session(StartSessionOptions(model_id="chain"))
    turn = await session.send_user_turn(say("grüße"))
    kinds = Counter([item["kind"] async for item in turn.items()])
    end = await asyncio.wait_for(turn.completed, PATIENCE_SECS)
    assert end.params["terminal"] == "completed"
    assert kinds["toolCall"] >= 3
    assert {"userMessage", "workflow", "agentMessage"} <= kinds.keys()
    page = await client.page(session.session_id)
    assert client.events == page[2:], "session/start covers its own two"
    live, paged = shown(session.fold), shown(folded(page))
    assert [live[part] for part in ("items", "active", "turns")] == [
        paged[part] for part in ("items", "active", "turns")
    ]
    await client.muse.close()
    assert (await client.muse.exit).kind == "cleanShutdown"


async def test_a_client_whose_host_is_killed_comes_back_with_its_cursor(home: Home) -> None:
    first = await Client.spawn(home)
    home.api.post("/v1/blueprints", home.chain(*STEPS))
    home.hold("b")
    session = await first.muse.start_session(StartSessionOptions(model_id="chain"))
    session_id = session.session_id
    await session.send_user_turn(say("carry on"))
    await first.seen(is_open("b"))
    await asyncio.to_thread(home.began, "b")
    covered = (await first.page(session_id))[:2]
    os.kill(home.server["pid"], signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_SECS):
        assert is_abnormal_host_death(await first.muse.exit)
    kept = covered + first.events
    home.free()

    second = await Client.spawn(home)
    session = await second.muse.resume_session(
        ResumeSessionOptions(session_id=session_id, cursor=kept[-1]["params"]["viewCursor"])
    )
    assert session.opening.result["history"]["noneReason"] == "cursorSuffix"
    await second.seen(ends("cancelled"))
    run_id = next(
        event["params"]["item"]["workflowRunId"]
        for event in kept
        if event["params"].get("item", {}).get("kind") == "workflow"
    )
    resumed = await asyncio.to_thread(home.api.post, f"/v1/runs/{run_id}/resume")
    assert resumed["replayed_steps"] == 1
    await second.seen(ends("completed"))
    assert home.ran() == ["a", "b", "b", "c"]
    page = await second.page(session_id)
    assert kept + second.events == page, "no event twice, none left out"
    whole = shown(folded(page))
    assert shown(folded(kept + second.events)) == whole
    assert whole["active"] is None
    assert {item["status"] for item in whole["items"]} == {"completed", "cancelled"}

    late = await Client.spawn(home)
    session = await late.muse.resume_session(ResumeSessionOptions(session_id=session_id))
    history = session.opening.result["history"]
    assert (history["mode"], history["items"]) == ("inline", whole["items"])
    turn = await session.send_user_turn(say("from the late one"))
    await asyncio.wait_for(turn.completed, PATIENCE_SECS)
    await second.seen(lambda event: ends("completed")(event) and event["params"]["turnId"] == turn.turn_id)
    page = await late.page(session_id)
    assert late.events == page[-len(late.events) :]
    assert kept + second.events == page
    for client in (late, second):
        await client.muse.close()
