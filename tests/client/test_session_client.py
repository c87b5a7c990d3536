"""The Session client: whatever is lost, repeated or served in which form, its state is the fold of the view."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.sync.server import ServerConnection, serve

from refold.client.api import Unreachable
from refold.client.session import CallRefused, SessionClient, Wire
from refold.view import ViewState, apply_all, elide, fold_digest, view_snapshot

Json = Any
SESSION = "0198f0aa-1111-7000-8000-0000000000aa"
PAGE = 3
"""Smaller than any real page, so that catching up takes several."""


def event(n: int) -> Json:
    """The n-th event of a view, from 1: it changes one of five items."""
    params = {
        "sessionId": SESSION,
        "viewCursor": f"c{n}",
        "prevCursor": f"c{n - 1}" if n > 1 else None,
        "sourceRange": {"last": {"sequence": n}},
        "item": {"itemId": f"I{n % 5}", "revision": n, "outputRef": {"id": f"{n}"}, "visibleOutput": f"text {n}"},
    }
    return {"method": "item/updated", "params": params}


def fold(events: list[Json]) -> ViewState:
    return apply_all(ViewState(), events)


class Host:
    """A wire to a host that holds `events`, serves `history` to a resume, and pushes what a test says."""

    def __init__(self, events: list[Json], history: Json = None) -> None:
        self.events = events
        self.history = history
        self.pushes: list[Json] = []
        self.asked: list[tuple[str, Json]] = []

    def call(self, method: str, params: Json) -> Json:
        self.asked.append((method, params))
        assert method == "view/page"
        cursors = [None, *(each["params"]["viewCursor"] for each in self.events)]
        start = cursors.index(params.get("cursor"))
        page = self.events[start : start + PAGE]
        more = start + PAGE < len(self.events)
        return {"events": page, "nextCursor": page[-1]["params"]["viewCursor"] if more else None}

    def command(self, method: str, params: Json) -> Json:
        self.asked.append((method, params))
        return {"history": self.history, "session": {"sessionId": SESSION}, "turnId": "turn 1"}

    def next(self, secs: float) -> Json:
        return self.pushes.pop(0) if self.pushes else None


SUFFIX = {"mode": "none", "items": None, "snapshot": None, "noneReason": "cursorSuffix"}


def served(mode: str, snapshot: Json = None) -> Json:
    return {"mode": mode, "items": None, "snapshot": snapshot}


@given(st.integers(1, 12), st.data())
def test_the_state_is_the_fold_of_a_prefix_whatever_arrives(size: int, data: st.DataObject) -> None:
    events = [event(n) for n in range(1, size + 1)]
    pushed = data.draw(st.lists(st.sampled_from(events), max_size=20))
    host = Host(events)
    client = SessionClient(host, SESSION)
    for push in pushed:
        host.pushes = [push]
        assert client.receive(0)
        assert client.digest == fold_digest(fold(events[: client.folded]))
    host.pushes = [events[-1]]
    client.receive(0)
    assert (client.folded, client.digest) == (size, fold_digest(fold(events)))


def test_an_announced_gap_is_paged() -> None:
    events = [event(n) for n in range(1, 8)]
    host = Host(events)
    client = SessionClient(host, SESSION)
    host.pushes = [events[0], {"method": "view/gap", "params": {"sessionId": SESSION}}]
    client.receive(0)
    assert client.folded == 7
    assert [params.get("cursor") for _, params in host.asked] == ["c1", "c4"]


def test_nothing_arrived_is_said() -> None:
    assert not SessionClient(Host([]), SESSION).receive(0)


def test_a_started_session_begins_with_what_its_answer_covers() -> None:
    events = [event(1), event(2)]
    client = SessionClient.start(Host(events), "survey")
    assert (client.session_id, client.folded) == (SESSION, 2)


def test_a_suffix_leaves_the_state_and_its_cursor_is_what_is_asked_with() -> None:
    events = [event(n) for n in range(1, 6)]
    client = SessionClient(Host(events), SESSION)
    client.catch_up()
    host = Host([*events, event(6)], SUFFIX)
    assert client.resume(host) is SUFFIX
    assert host.asked == [("session/resume", {"sessionId": SESSION, "history": "auto", "cursor": "c5"})]
    host.pushes = [event(6)]
    client.receive(0)
    assert (client.folded, client.state.cursor) == (6, "c6")


SNAPSHOT = view_snapshot(fold([event(n) for n in range(1, 6)]))


@pytest.mark.parametrize(
    ("history", "pages"),
    [
        (served("snapshot", SNAPSHOT), 0),
        (served("snapshot", elide(SNAPSHOT)), 2),  # without the payloads its digest does not fit
        (served("inline"), 2),
        (served("a mode of next year"), 2),
        ({"mode": "none", "items": None, "snapshot": None, "noneReason": "historyBudget"}, 2),
    ],
    ids=["snapshot", "elided", "inline", "unknown", "budget"],
)
def test_every_form_of_history_leads_to_the_same_state(history: Json, pages: int) -> None:
    events = [event(n) for n in range(1, 6)]
    host = Host(events, history)
    client = SessionClient(host, SESSION)
    client.resume(host)
    assert client.digest == fold_digest(fold(events))
    assert sum(method == "view/page" for method, _ in host.asked) == pages


def test_a_stale_state_is_dropped_when_the_host_serves_anew() -> None:
    client = SessionClient(Host([event(1)]), SESSION)
    client.catch_up()
    other = [event(n) for n in range(2, 6)]
    other[0]["params"]["prevCursor"] = None
    client.resume(Host(other, served("inline")))
    assert client.digest == fold_digest(fold(other))


def test_a_turn_carries_text_and_what_people_see_of_it() -> None:
    host = Host([])
    assert SessionClient(host, SESSION).turn("/a%0Ab", display="survey") == "turn 1"
    ((method, params),) = host.asked
    assert method == "turn/start"
    assert params == {
        "sessionId": SESSION,
        "input": [{"type": "text", "text": "/a%0Ab"}],
        "displayText": "survey",
    }


# -- the wire ---------------------------------------------------------------------------------------------------------


@contextmanager
def serving(answer: Callable[[ServerConnection, Json], None]) -> Iterator[str]:
    """A host on a real socket that calls `answer` for every frame after the handshake; its URL."""

    def serve_one(socket: ServerConnection) -> None:
        for text in socket:
            frame = json.loads(text)
            if frame["method"] == "initialize":
                socket.send(json.dumps({"jsonrpc": "2.0", "id": frame["id"], "result": {}}))
            elif "id" in frame:
                answer(socket, frame)

    with serve(serve_one, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        server.shutdown()
        thread.join()


def test_what_arrives_before_an_answer_is_kept_in_order() -> None:
    def answer(socket: ServerConnection, frame: Json) -> None:
        for n in (1, 2):
            socket.send(json.dumps(event(n)))
        socket.send(json.dumps({"jsonrpc": "2.0", "id": frame["id"], "result": {"n": 7}}))

    with serving(answer) as url:
        wire = Wire(url, "token")
        assert wire.call("session/read", {}) == {"n": 7}
        assert [wire.next(0), wire.next(0), wire.next(0)] == [event(1), event(2), None]
        wire.close()


def test_a_refusal_has_the_kind_of_the_host() -> None:
    error = {"code": -32011, "message": "no such thing", "data": {"kind": "notFound", "resource": "session"}}

    def answer(socket: ServerConnection, frame: Json) -> None:
        socket.send(json.dumps({"jsonrpc": "2.0", "id": frame["id"], "error": error}))

    with serving(answer) as url:
        wire = Wire(url, "token")
        with pytest.raises(CallRefused, match="session/read: no such thing") as refused:
            wire.call("session/read", {})
        assert (refused.value.kind, refused.value.data) == ("notFound", {"resource": "session"})
        wire.close()


def test_a_host_that_goes_away_is_unreachable_for_calls_and_pushes() -> None:
    with serving(lambda socket, frame: socket.close()) as url:
        wire = Wire(url, "token")
        with pytest.raises(Unreachable):
            wire.call("session/read", {})
        with pytest.raises(Unreachable):
            wire.next(1)
        with pytest.raises(Unreachable):
            wire.call("session/read", {})
    with pytest.raises(Unreachable):
        Wire(url, "token")


def test_a_host_that_does_not_answer_counts_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda socket, frame: None) as url:
        wire = Wire(url, "token")
        monkeypatch.setattr("refold.client.session.CALL_SECS", 0.05)
        with pytest.raises(Unreachable, match=r"did not answer session/read within 0\.05 s"):
            wire.call("session/read", {})
        wire.close()
