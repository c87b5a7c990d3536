"""Operators over HTTP and their socket: tokens and what they open, the long poll, submissions and their statuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

import httpx
import pytest

from refold.canonical import decode, encode
from refold.server.http import http_app
from refold.server.rpc import Rpc
from refold.service.app import App, Settings
from refold.service.tasks import NewTask

Json = Any

pytestmark = pytest.mark.anyio

HOST, TOKEN = "127.0.0.1:7777", "token"
PATIENCE_SECS = 20.0
NOBODY, NOWHERE = "O-00000000000000ff", "ST-00000000000000ff"


def with_operator(*directives: Json, **members: Json) -> Json:
    """A Blueprint that has an operator do one thing after the other."""
    steps = [
        {"kind": "step", "ref": "op", "in": {"op": "lit", "value": each}, "out": {"op": "path", "at": f"$.r{n}"}}
        for n, each in enumerate(directives)
    ]
    agent = {"name": "op", "kind": "operator", "spec": {"instructions": "carefully"}, **members}
    return {"id": "ops", "flow": {"kind": "seq", "children": steps}, "agents": [agent]}


def at_once(*items: Json) -> Json:
    """A Blueprint that has operators do things side by side."""
    body = {"kind": "step", "ref": "op", "in": {"op": "path", "at": "$.i"}, "out": {"op": "path", "at": "$.r"}}
    fanout = {
        "kind": "fanout",
        "items": {"op": "lit", "value": list(items)},
        "bind": {"op": "path", "at": "$.i"},
        "body": body,
        "join": "all",
        "out": {"op": "path", "at": "$.out"},
    }
    return with_operator() | {"flow": fanout}


class Door:
    """A door that is open on an empty store, and who knocks: the server's own client."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.asgi = http_app(app, Rpc(app, "/home"), TOKEN, [HOST])

    async def ask(
        self, verb: str, path: str, body: Json = None, status: int = 200, *, token: str = TOKEN, **query: Any
    ) -> Json:
        """The JSON of an answer that must have this status; None where it has no body."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        transport = httpx.ASGITransport(self.asgi)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers) as client:
            more = {} if body is None else {"json": body}
            answer = await client.request(verb, path, params=query, timeout=PATIENCE_SECS, **more)
        assert answer.status_code == status, answer.text
        return answer.json() if answer.content else None

    async def attach(self, **body: Json) -> tuple[str, str]:
        """A new operator and its token."""
        came = await self.ask("POST", "/v1/operators", body, 201)
        return came["sid"], came["token"]

    async def launch(self, blueprint: Json) -> str:
        """The id of a Run that has just begun."""
        return (await self.app.tasks.launch(NewTask(blueprint={"kind": "inline", "value": blueprint}))).run_id

    async def next(self, sid: str, token: str = TOKEN, **query: Any) -> Json:
        """The next offer, which must come."""
        return await self.ask("GET", f"/v1/operators/{sid}/next", token=token, wait_secs=PATIENCE_SECS, **query)

    async def submit(self, offer: Json, status: int = 200, *, token: str = TOKEN, **said: Json) -> Json:
        """What a submission for this offer is answered."""
        body = {"step_id": offer["step_id"], "attempt": offer["attempt"], "outcome": "pass", **said}
        return await self.ask("POST", "/v1/worker/submit", body, status, token=token)

    async def final(self, run_id: str) -> Json:
        """The final ctx of a Run, once it is done."""
        run = await asyncio.wait_for(self.app.runs.settled(await self.app.runs.get(run_id)), PATIENCE_SECS)
        assert run.status == "done", run.result_json
        return decode(run.result_json)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    app = await App.open(Settings())
    yield Door(app)
    await app.close()


# -- the long poll ----------------------------------------------------------------------------------------------------


async def test_an_operator_attaches_takes_a_step_and_submits(door: Door) -> None:
    sid, token = await door.attach(desc="somebody")
    assert await door.ask("GET", f"/v1/operators/{sid}/next", token=token, status=204, wait_secs=0) is None
    run_id = await door.launch(with_operator({"n": 1}))
    offer = await door.next(sid, token)
    assert offer == {
        "run_id": run_id,
        "step_id": offer["step_id"],
        "attempt": 1,
        "step_ref": "op",
        "occurrence": 0,
        "lane": [],
        "epoch": 1,
        "idempotency_key": offer["idempotency_key"],
        "directive": {"n": 1},
        "agent": {"name": "op", "spec": {"instructions": "carefully"}, "profile": None, "verdict": None},
        "ctx": offer["ctx"],
        "work_dir": None,
        "project_root": None,
    }
    assert offer["ctx"]["ctx"] == {} and offer["ctx"]["meta"]["runtime"]["run_id"] == run_id
    held = {"run_id": run_id, "step_id": offer["step_id"], "attempt": 1}
    (listed,) = (await door.ask("GET", "/v1/operators"))["items"]
    created = listed.pop("created_at")
    assert listed == {"sid": sid, "desc": "somebody", "lease_secs": 300, "present": False, "holds": [held]}
    assert created.endswith("Z") and token not in str(listed)
    assert (await door.ask("GET", f"/v1/runs/{run_id}"))["waiting_on"] == "operator"
    assert (await door.ask("GET", "/v1/status"))["operators"] == {"attached": 1, "present": 0, "offers": 1}
    assert await door.submit(offer, token=token, value='{"a": 1}') == held | {"status": "passed"}
    assert await door.final(run_id) == {"r0": {"a": 1}}


async def test_a_poll_is_answered_when_there_is_something_to_do(door: Door) -> None:
    sid, token = await door.attach()
    waiting = asyncio.create_task(door.next(sid, token))
    while not door.app.operators.counts()["present"]:
        await asyncio.sleep(0)
    await door.launch(with_operator("later"))
    assert (await waiting)["directive"] == "later"


async def test_what_a_poll_does_not_name_is_given_again(door: Door) -> None:
    sid, token = await door.attach()
    await door.launch(at_once(0, 1))
    first = await door.next(sid, token)
    assert await door.next(sid, token) == first, "the answer got lost on the way"
    second = await door.next(sid, token, holding=[first["step_id"]])
    assert second["step_id"] != first["step_id"]
    both = [first["step_id"], second["step_id"]]
    await door.ask("GET", f"/v1/operators/{sid}/next", token=token, status=204, holding=both, wait_secs=0)


async def test_a_poll_whose_client_has_gone_takes_nothing(door: Door) -> None:
    sid, token = await door.attach()
    gone: asyncio.Queue[Json] = asyncio.Queue()
    sent: list[Json] = []

    async def send(message: Json) -> None:
        sent.append(message)

    gone.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    scope = {**_scope("http", f"/v1/operators/{sid}/next", token, "wait_secs=60"), "method": "GET"}
    poll = asyncio.create_task(door.asgi(scope, gone.get, send))
    while not door.app.operators.counts()["present"]:
        await asyncio.sleep(0)
    gone.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(poll, PATIENCE_SECS)
    assert door.app.operators.counts()["present"] == 0
    await door.launch(with_operator("x"))
    other, _ = await door.attach()
    assert (await door.next(other))["directive"] == "x", "nobody else got it"


@pytest.mark.parametrize(
    "query", [{"wait_secs": 60.5}, {"wait_secs": -1}, {"wait_secs": "long"}, {"holding": "x"}, {"hold": 1}]
)
async def test_a_poll_that_asks_for_what_there_is_not_is_refused(door: Door, query: Json) -> None:
    sid, token = await door.attach()
    refused = await door.ask("GET", f"/v1/operators/{sid}/next", token=token, status=400, **query)
    assert refused["kind"] == "invalid_request"


@pytest.mark.parametrize("body", [{"lease_secs": 0}, {"lease_secs": 86401}, {"desc": "x" * 1025}, {"seat": 1}, []])
async def test_an_attachment_that_does_not_fit_is_refused_and_attaches_nobody(door: Door, body: Json) -> None:
    await door.ask("POST", "/v1/operators", body, 400)
    assert (await door.ask("GET", "/v1/operators"))["items"] == []


async def test_operators_are_listed_in_pages(door: Door) -> None:
    sids = [(await door.attach())[0] for _ in range(3)]
    first = await door.ask("GET", "/v1/operators", limit=2)
    rest = await door.ask("GET", "/v1/operators", limit=2, cursor=first["next_cursor"])
    assert [each["sid"] for page in (first, rest) for each in page["items"]] == sids
    assert rest["next_cursor"] is None


# -- submissions ------------------------------------------------------------------------------------------------------


async def test_each_refusal_of_a_submission_has_its_status_and_kind(door: Door) -> None:
    sid, token = await door.attach()
    contract = {"channel": "body", "values": ["PASS"]}
    run_id = await door.launch(with_operator("one", "two", verdict=contract))
    one = await door.next(sid, token)
    refused = await door.submit(one, 422, value="PAS")
    assert (refused["kind"], refused["values"]) == ("contract_violated", ["PASS"])
    assert (await door.submit(one, token=token, value="PASS"))["status"] == "passed"
    ids = {"run_id": run_id, "step_id": one["step_id"], "attempt": 1}
    refused = await door.submit(one, 409, value="PASS")
    assert refused.pop("error") and refused == {
        "kind": "already_submitted",
        **ids,
        "status": "running",
        "accepted": {"outcome": "pass", "value": "PASS"},
    }
    assert (await door.submit(one | {"step_id": NOWHERE}, 404))["kind"] == "step_not_found"
    assert (await door.submit(one | {"attempt": 2}, 404))["kind"] == "step_not_found"
    two = await door.next(sid, token)
    await door.ask("POST", f"/v1/runs/{run_id}/cancel", status=202)
    refused = await door.submit(two, 410, value="PASS")
    assert (refused["kind"], refused["status"], refused["accepted"]) == ("run_over", "cancelled", None)


@pytest.mark.parametrize(
    "said",
    [
        {"attempt": 0},
        {"attempt": 2**63},
        {"attempt": "1"},
        {"step_id": "op"},
        {"outcome": "done"},
        {"outcome": None},
        {"parts": []},
        {"verdict": "PASS"},
    ],
)
async def test_a_submission_that_does_not_fit_is_refused_and_the_step_goes_on_waiting(door: Door, said: Json) -> None:
    sid, token = await door.attach()
    await door.launch(with_operator("x"))
    offer = await door.next(sid, token)
    await door.submit(offer, 400, token=token, **said)
    await door.submit(offer, token=token)


async def test_after_the_lease_another_one_may_do_it_and_the_first_answer_counts(door: Door) -> None:
    slow, slow_token = await door.attach(lease_secs=0.01)
    other, other_token = await door.attach()
    run_id = await door.launch(with_operator("x"))
    offer = await door.next(slow, slow_token)
    assert await door.next(other, other_token) == offer
    await door.submit(offer, token=slow_token, value="slow")
    assert await door.final(run_id) == {"r0": "slow"}
    refused = await door.submit(offer, 410, token=other_token, value="other")
    assert refused["accepted"] == {"outcome": "pass", "value": "slow"}


# -- tokens -----------------------------------------------------------------------------------------------------------


async def test_an_operators_token_opens_its_own_offers_and_submitting_and_nothing_else(door: Door) -> None:
    sid, token = await door.attach()
    other, other_token = await door.attach()
    run_id = await door.launch(with_operator("x"))
    for verb, path in (
        ("GET", f"/v1/operators/{sid}/next"),
        ("DELETE", f"/v1/operators/{sid}"),
        ("GET", "/v1/operators"),
        ("POST", "/v1/operators"),
        ("GET", "/v1/runs"),
        ("POST", f"/v1/runs/{run_id}/cancel"),
        ("POST", "/v1/tasks"),
        ("GET", "/v1/status"),
        ("GET", "/openapi.json"),
    ):
        refused = await door.ask(verb, path, {} if verb == "POST" else None, 403, token=other_token)
        assert refused["kind"] == "forbidden_scope", path
    offer = await door.next(other)
    assert offer["directive"] == "x", "the server's token opens everything"
    await door.submit(offer, token=token)


async def test_without_a_token_nobody_operates(door: Door) -> None:
    sid, token = await door.attach()
    for wrong in ("", "x" + token, token[:-1], sid):
        for verb, path in (
            ("GET", f"/v1/operators/{sid}/next"),
            ("GET", f"/v1/operators/{NOBODY}/next"),
            ("DELETE", f"/v1/operators/{sid}"),
            ("POST", "/v1/worker/submit"),
            ("POST", "/v1/operators"),
        ):
            await door.ask(verb, path, {} if verb == "POST" else None, 401, token=wrong)


async def test_an_operator_that_is_ended_is_unknown(door: Door) -> None:
    sid, token = await door.attach()
    assert await door.ask("DELETE", f"/v1/operators/{sid}", token=token) == {"sid": sid, "deleted": True}
    await door.ask("GET", f"/v1/operators/{sid}/next", token=token, status=401)
    for verb, path in (("GET", f"/v1/operators/{sid}/next"), ("DELETE", f"/v1/operators/{sid}")):
        assert (await door.ask(verb, path, status=404))["kind"] == "operator_not_found"
    assert (await door.ask("GET", "/v1/operators/x/next", status=400))["kind"] == "invalid_id"


# -- the socket -------------------------------------------------------------------------------------------------------


def _scope(kind: str, path: str, token: str, query: str = "", *, by_protocol: bool = False) -> Json:
    headers = [(b"host", HOST.encode())]
    if by_protocol:
        headers.append((b"sec-websocket-protocol", f"refold.bearer.{token}".encode()))
    elif token:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    return {
        "type": kind,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": kind,
        "query_string": query.encode(),
        "headers": headers,
        "subprotocols": [f"refold.bearer.{token}"] if by_protocol else [],
        "extensions": {"websocket.http.response": {}},
    }


class Wire:
    """One socket of an operator. `came` is what the server said and nobody has read yet."""

    def __init__(self, door: Door, sid: str, token: str, query: str = "", *, by_protocol: bool = False) -> None:
        self._in: asyncio.Queue[Json] = asyncio.Queue()
        self._came: asyncio.Queue[Json] = asyncio.Queue()
        scope = _scope("websocket", f"/v1/operators/{sid}/ws", token, query, by_protocol=by_protocol)
        self._in.put_nowait({"type": "websocket.connect"})
        self._served = asyncio.create_task(door.asgi(scope, self._in.get, self._came.put))

    async def __aenter__(self) -> Self:
        self.accepted = await self.message()
        assert self.accepted["type"] == "websocket.accept"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.leave()

    async def leave(self) -> None:
        """The client goes away."""
        self._in.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.wait_for(self._served, PATIENCE_SECS)

    async def message(self) -> Json:
        """The next thing that the server sends, whatever it is."""
        return await asyncio.wait_for(self._came.get(), PATIENCE_SECS)

    async def frame(self) -> Json:
        """The next frame."""
        return decode((await self.message())["text"])

    async def offer(self) -> Json:
        """The next frame, which must be an offer."""
        frame = await self.frame()
        assert frame.keys() == {"type", "offer"} and frame["type"] == "offer"
        return frame["offer"]

    def say(self, frame: Json) -> None:
        """Sends a frame, or a text as it is."""
        text = frame if isinstance(frame, str) else encode(frame)
        self._in.put_nowait({"type": "websocket.receive", "text": text})

    async def submit(self, offer: Json, **said: Json) -> Json:
        """What a submission is answered."""
        self.say(
            {"type": "submit", "step_id": offer["step_id"], "attempt": offer["attempt"], "outcome": "pass", **said}
        )
        return await self.frame()

    @property
    def is_silent(self) -> bool:
        """Whether there is nothing unread."""
        return self._came.empty()


async def refusal(wire: Wire) -> tuple[int, Json]:
    """The answer to a socket that is not accepted."""
    start, body = await wire.message(), await wire.message()
    assert start["type"] == "websocket.http.response.start"
    return start["status"], decode(body["body"])


async def test_a_socket_is_sent_offers_one_after_the_other_and_hears_submissions(door: Door) -> None:
    sid, token = await door.attach()
    async with Wire(door, sid, token, by_protocol=True) as wire:
        assert wire.accepted["subprotocol"] == f"refold.bearer.{token}"
        run_id = await door.launch(at_once("a", "b"))
        first = await wire.offer()
        assert wire.is_silent, "one at a time"
        ids = {"run_id": run_id, "step_id": first["step_id"], "attempt": 1}
        assert await wire.submit(first, value=1) == {"type": "accepted", **ids, "status": "passed"}
        second = await wire.offer()
        assert [first["directive"], second["directive"]] == ["a", "b"]
        await wire.submit(second, value=2)
        assert [lane["r"] for lane in (await door.final(run_id))["out"]] == [1, 2]


async def test_a_socket_is_sent_as_many_at_once_as_it_asked_for(door: Door) -> None:
    sid, token = await door.attach()
    async with Wire(door, sid, token, "at_once=2") as wire:
        await door.launch(at_once("a", "b", "c"))
        first, second = await wire.offer(), await wire.offer()
        assert len((await door.ask("GET", "/v1/operators"))["items"][0]["holds"]) == 2
        assert (await wire.submit(second))["type"] == "accepted"
        assert [first["directive"], second["directive"], (await wire.offer())["directive"]] == ["a", "b", "c"]


async def test_a_socket_is_told_when_its_work_is_over_without_it(door: Door) -> None:
    sid, token = await door.attach()
    async with Wire(door, sid, token) as wire:
        run_id = await door.launch(with_operator("x"))
        offer = await wire.offer()
        await door.ask("POST", f"/v1/runs/{run_id}/cancel", status=202)
        assert await wire.frame() == {"type": "gone", "step_id": offer["step_id"], "attempt": 1}
        refused = await wire.submit(offer)
        assert (refused["type"], refused["code"], refused["kind"]) == ("refused", 410, "run_over")
        assert (refused["step_id"], refused["status"]) == (offer["step_id"], "cancelled")


async def test_what_an_operator_submits_over_another_door_is_not_gone_to_its_socket(door: Door) -> None:
    sid, token = await door.attach()
    async with Wire(door, sid, token) as wire:
        await door.launch(at_once("a", "b"))
        await door.submit(await wire.offer(), token=token)
        assert (await wire.offer())["directive"] == "b"


@pytest.mark.parametrize(
    ("frame", "code", "kind"),
    [
        ("{", 400, "invalid_json"),
        ('{"type":"submit","type":"submit"}', 400, "invalid_json"),
        ([], 400, "invalid_request"),
        ({"type": "take"}, 400, "invalid_request"),
        ({"type": "submit", "step_id": "op", "attempt": 1, "outcome": "pass"}, 400, "invalid_id"),
        ({"type": "submit", "step_id": NOWHERE, "attempt": 1, "outcome": "pass"}, 404, "step_not_found"),
    ],
)
async def test_a_frame_that_cannot_be_taken_is_answered_and_the_socket_stays_open(
    door: Door, frame: Json, code: int, kind: str
) -> None:
    sid, token = await door.attach()
    async with Wire(door, sid, token) as wire:
        wire.say(frame)
        refused = await wire.frame()
        assert (refused["type"], refused["code"], refused["kind"]) == ("refused", code, kind)
        await door.launch(with_operator("x"))
        assert (await wire.submit(await wire.offer()))["type"] == "accepted"


async def test_an_open_socket_holds_for_ever_and_a_closed_one_for_its_lease(door: Door) -> None:
    sid, token = await door.attach(lease_secs=0.01)
    other, _ = await door.attach()
    async with Wire(door, sid, token) as wire:
        await door.launch(with_operator("x"))
        offer = await wire.offer()
        await door.ask("GET", f"/v1/operators/{other}/next", status=204, wait_secs=0.05)
    assert await door.next(other) == offer


async def test_a_socket_that_comes_back_is_sent_again_what_it_does_not_name(door: Door) -> None:
    sid, token = await door.attach()
    async with Wire(door, sid, token, "at_once=2") as wire:
        run_id = await door.launch(at_once("a", "b"))
        first, second = await wire.offer(), await wire.offer()
    async with Wire(door, sid, token, f"at_once=2&holding={first['step_id']}") as wire:
        assert await wire.offer() == second, "and not the first, on which the operator is at work"
        await wire.submit(first)
        await wire.submit(second)
    await door.final(run_id)


async def test_what_a_socket_still_holds_takes_room(door: Door) -> None:
    sid, token = await door.attach()
    async with Wire(door, sid, token) as wire:
        await door.launch(at_once("a", "b"))
        first = await wire.offer()
    async with Wire(door, sid, token, f"holding={first['step_id']}") as wire:
        assert (await wire.submit(first))["type"] == "accepted"
        assert (await wire.offer())["directive"] == "b"
        assert wire.is_silent


@pytest.mark.parametrize(
    ("sid", "token", "query", "status", "kind"),
    [
        ("own", "", "", 401, "unauthorized"),
        ("own", "wrong", "", 401, "unauthorized"),
        ("own", "other", "", 403, "forbidden_scope"),
        (NOBODY, TOKEN, "", 404, "operator_not_found"),
        ("x", TOKEN, "", 400, "invalid_id"),
        ("own", "own", "at_once=0", 400, "invalid_request"),
        ("own", "own", "at_once=65", 400, "invalid_request"),
        ("own", "own", "holding=x", 400, "invalid_request"),
    ],
)
async def test_a_socket_is_refused_before_it_is_accepted(
    door: Door, sid: str, token: str, query: str, status: int, kind: str
) -> None:
    own, own_token = await door.attach()
    _, other_token = await door.attach()
    named = {"own": own_token, "other": other_token}
    wire = Wire(door, own if sid == "own" else sid, named.get(token, token), query)
    came, said = await refusal(wire)
    assert (came, said["kind"]) == (status, kind)


async def test_a_socket_ends_with_its_operator_also_while_it_has_no_room(door: Door) -> None:
    sid, token = await door.attach()
    other, _ = await door.attach()
    async with Wire(door, sid, token) as wire:
        await door.launch(with_operator("x"))
        offer = await wire.offer()
        await door.ask("DELETE", f"/v1/operators/{sid}")
        closed = await wire.message()
        assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
        assert await door.next(other) == offer


async def test_sockets_and_polls_end_with_the_server(door: Door) -> None:
    sid, token = await door.attach()
    poller, poller_token = await door.attach()
    async with Wire(door, sid, token) as wire:
        await door.launch(with_operator("x"))
        await wire.offer()
        poll = asyncio.create_task(
            door.ask("GET", f"/v1/operators/{poller}/next", token=poller_token, status=204, wait_secs=PATIENCE_SECS)
        )
        while door.app.operators.counts()["present"] < 2:
            await asyncio.sleep(0)
        await door.app.drain()
        assert await poll is None
        while (message := await wire.message())["type"] != "websocket.close":
            assert decode(message["text"])["type"] == "gone", "the attempt was stopped a moment before"
        assert message["code"] == 1001
