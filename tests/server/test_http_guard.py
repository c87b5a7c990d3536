"""Who gets as far as a route: Host and Origin exact, then the token; every route, every verb, every socket (law 12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from http_kit import HOST, NO_RUN, TOKEN, Door, opened

from refold.server.contract import Scope
from refold.server.guard import host_port
from refold.server.routes import ROUTES

pytestmark = pytest.mark.anyio

EXAMPLES = {
    "task_id": "T-00000000000000ff",
    "run_id": NO_RUN,
    "sid": "O-00000000000000ff",
    "session_id": "01890000-0000-7000-8000-000000000000",
    "request_id": "01890000-0000-7000-8000-000000000000",
    "blueprint_id": "echo",
    "version": "0" * 64,
}
CLOSED = [row for row in ROUTES if row.scope is not Scope.OPEN]


def of(path: str) -> str:
    """The path with an id of the right shape for each of its parameters."""
    return "/".join(EXAMPLES[part[1:-1]] if part.startswith("{") else part for part in path.split("/"))


async def shake(door: Door, path: str, headers: Mapping[str, str], *, extensions: bool = True) -> list[dict[str, Any]]:
    """What the door sends to a WebSocket handshake, up to its decision."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "subprotocols": [each.strip() for each in headers.get("Sec-WebSocket-Protocol", "").split(",")],
        "server": ("127.0.0.1", 7777),
        "extensions": {"websocket.http.response": {}} if extensions else {},
    }
    messages = iter([{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}])

    async def receive() -> dict[str, Any]:
        return next(messages)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await door.asgi(scope, receive, send)
    return sent


# -- tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", CLOSED, ids=lambda row: f"{row.verb} {row.path}")
async def test_a_route_needs_a_token(door: Door, row: Any) -> None:
    for token in ("", "wrong", TOKEN + "x", TOKEN.upper()):
        answer = await door.send(row.verb, of(row.path), token=token)
        assert (answer.status_code, answer.json()["kind"]) == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"
    assert (await door.send(row.verb, of(row.path), content=b"")).status_code != 401


async def test_what_is_no_route_needs_a_token_too(door: Door) -> None:
    for path in ("/", "/v1", "/v1/nothing", "/healthz/x", "//healthz", "/HEALTHZ", "/docs"):
        assert (await door.send("GET", path, token="")).status_code == 401, path
    assert (await door.send("GET", "/healthz", token="")).json() == {"ok": True}


@pytest.mark.parametrize(
    "header",
    [f"bearer {TOKEN}", f"BEARER {TOKEN}", f"Bearer  {TOKEN} "],
)
async def test_the_scheme_is_read_in_any_case(door: Door, header: str) -> None:
    assert (await door.send("GET", "/v1/status", token="", headers={"Authorization": header})).status_code == 200


@pytest.mark.parametrize("header", [f"Basic {TOKEN}", TOKEN, "Bearer", f"Bearer {TOKEN} x", f"Token {TOKEN}"])
async def test_another_scheme_is_no_token(door: Door, header: str) -> None:
    assert (await door.send("GET", "/v1/status", token="", headers={"Authorization": header})).status_code == 401


async def test_a_token_in_the_url_or_in_a_protocol_header_of_a_plain_request_is_none(door: Door) -> None:
    assert (await door.send("GET", f"/v1/status?token={TOKEN}", token="")).status_code == 401
    headers = {"Sec-WebSocket-Protocol": f"refold.bearer.{TOKEN}"}
    assert (await door.send("GET", "/v1/status", token="", headers=headers)).status_code == 401


async def test_an_operators_token_opens_its_routes_only(door: Door) -> None:
    _, token = await door.app.operators.attach()
    for row in CLOSED:
        answer = await door.send(row.verb, of(row.path), token=token)
        refused = (answer.status_code, answer.json().get("kind")) == (403, "forbidden_scope")
        assert refused or row.scope is Scope.OPERATOR, (row.path, answer.text)
    assert (await shake(door, "/v1/msp", {"Host": HOST, "Authorization": f"Bearer {token}"}))[0]["status"] == 403


# -- Host and Origin --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", [HOST, "localhost:7777", "LocalHost:7777", "[::1]:7777"])
async def test_the_names_of_this_server_are_heard(door: Door, host: str) -> None:
    assert (await door.send("GET", "/healthz", headers={"Host": host})).status_code == 200
    for page in (f"http://{host}", f"HTTP://{host}"):
        assert (await door.send("GET", "/healthz", headers={"Host": HOST, "Origin": page})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:7778",
        "127.0.0.1.evil.example:7777",
        "localhost",
        "localhost:77777",
        "::1:7777",
        "[::1]",
        "x@127.0.0.1:7777",
        "127.0.0.1:7777,evil",
        "0.0.0.0:7777",
    ],
)
async def test_no_other_name_is(door: Door, host: str) -> None:
    """A name that was rebound to 127.0.0.1 still stands in the Host header."""
    answer = await door.send("GET", "/healthz", headers={"Host": host})
    assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden_host")


async def test_an_empty_name_is_none(door: Door) -> None:
    for headers, kind in (({"Host": ""}, "forbidden_host"), ({"Origin": ""}, "forbidden_origin")):
        assert (await door.ask("GET", "/healthz", headers=headers, status=403))["kind"] == kind


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "null",
        "https://127.0.0.1:7777",
        "http://127.0.0.1",
        "http://127.0.0.1:7777/",
        "file://",
        "http://127.0.0.1:7777.evil.example",
        "ws://127.0.0.1:7777",
        "127.0.0.1:7777",
        "http://[::1]",
    ],
)
async def test_pages_of_other_origins_may_not_ask(door: Door, origin: str) -> None:
    answer = await door.send("GET", "/healthz", headers={"Origin": origin})
    assert (answer.status_code, answer.json()["kind"]) == (403, "forbidden_origin")
    headers = {"Host": HOST, "Origin": origin, "Authorization": f"Bearer {TOKEN}"}
    assert (await shake(door, "/v1/msp", headers))[0]["status"] == 403


async def test_a_header_that_decides_is_not_given_twice(door: Door) -> None:
    for name, value in (("Host", HOST), ("Origin", f"http://{HOST}"), ("Authorization", f"Bearer {TOKEN}")):
        pairs = [("Host", HOST), ("Authorization", f"Bearer {TOKEN}"), ("Origin", f"http://{HOST}"), (name, value)]
        answer = await door._client.request("GET", "/v1/status", headers=pairs)
        assert (answer.status_code, answer.json()["member"]) == (400, name.lower())


async def test_a_door_on_every_address_is_asked_under_the_one_that_was_used() -> None:
    async with opened() as door:
        for server, host, status in (
            (("10.1.2.3", 80), "10.1.2.3:80", 200),
            (("2001:db8::1", 80), "[2001:db8::1]:80", 200),
            (("10.1.2.3", 80), "10.1.2.4:80", 403),
            (("rebound.example", 80), "rebound.example:80", 403),
            (("/run/socket", None), "/run/socket:None", 403),
            (None, "None:None", 403),
        ):
            sent: list[dict[str, Any]] = []

            async def send(message: dict[str, Any], sent: list[dict[str, Any]] = sent) -> None:
                sent.append(message)

            async def receive() -> dict[str, Any]:
                return {"type": "http.request", "body": b""}

            scope = {"type": "http", "method": "GET", "path": "/healthz", "query_string": b"", "server": server}
            await door.asgi({**scope, "headers": [(b"host", host.encode())]}, receive, send)
            assert sent[0]["status"] == status, (server, host)


def test_an_ipv6_address_stands_in_brackets() -> None:
    assert (host_port("::1", 7), host_port("1.2.3.4", 7), host_port("localhost", 7)) == (
        "[::1]:7",
        "1.2.3.4:7",
        "localhost:7",
    )


# -- sockets ----------------------------------------------------------------------------------------------------------


async def test_a_socket_is_accepted_with_a_header_or_a_subprotocol(door: Door) -> None:
    bearer = {"Host": HOST, "Authorization": f"Bearer {TOKEN}"}
    assert (await shake(door, "/v1/msp", bearer))[0]["type"] == "websocket.accept"
    protocol = f"refold.bearer.{TOKEN}"
    (accepted, *_) = await shake(door, "/v1/msp", {"Host": HOST, "Sec-WebSocket-Protocol": f"other, {protocol}"})
    assert (accepted["type"], accepted["subprotocol"]) == ("websocket.accept", protocol)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": HOST}, 401),
        ({"Host": HOST, "Sec-WebSocket-Protocol": "refold.bearer.wrong"}, 401),
        ({"Host": HOST, "Sec-WebSocket-Protocol": f"xrefold.bearer.{TOKEN}"}, 401),
        ({"Host": "evil.example", "Authorization": f"Bearer {TOKEN}"}, 403),
    ],
)
async def test_a_socket_is_refused_before_it_is_accepted(door: Door, headers: dict[str, str], status: int) -> None:
    (start, body) = await shake(door, "/v1/msp", headers)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", status)
    assert b'"kind"' in body["body"]
    (closed,) = await shake(door, "/v1/msp", headers, extensions=False)
    assert closed["type"] == "websocket.close"


# -- what every answer carries ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "path", "token"), [("GET", "/healthz", ""), ("GET", "/v1/status", ""), ("GET", "/x", TOKEN)]
)
async def test_answers_are_not_sniffed_and_not_kept(door: Door, verb: str, path: str, token: str) -> None:
    headers = (await door.send(verb, path, token=token)).headers
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    assert headers["content-type"] == "application/json"
