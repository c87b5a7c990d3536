"""The door on a real socket: what the in-process tests of the guard say also holds behind the real server."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping

import pytest
from e2e_kit import Home, Json

pytestmark = pytest.mark.e2e

UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
LONG = 11 * 1024 * 1024


def exchange(home: Home, line: str, headers: Mapping[str, str], body: bytes = b"") -> tuple[int, Json]:
    """One request over a socket of its own: the status, and the JSON of the answer if it is JSON."""
    where = home.server["url"].removeprefix("http://")
    host, port = where.rsplit(":", 1)
    head = {"Host": where, "Connection": "close", "Content-Length": str(len(body))} | dict(headers)
    text = "\r\n".join([f"{line} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""])
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(text.encode() + body)
        answer = client.makefile("rb").read() if "Upgrade" not in headers else client.recv(65536)
    top, _, rest = answer.partition(b"\r\n\r\n")
    status = int(top.split()[1])
    return status, json.loads(rest) if b"application/json" in top and rest else None


def test_nobody_gets_in_without_the_right_host_origin_and_token(home: Home) -> None:
    home.serve()
    mine = {"Authorization": f"Bearer {home.token}"}
    cases: list[tuple[str, Mapping[str, str], int, str | None]] = [
        ("GET /healthz", {}, 200, None),
        ("GET /v1/status", mine, 200, None),
        ("GET /v1/status", {}, 401, "unauthorized"),
        ("GET /v1/status", {"Authorization": f"Bearer {home.token}x"}, 401, "unauthorized"),
        ("GET /v1/nowhere", {}, 401, "unauthorized"),
        ("GET /v1/nowhere", mine, 404, "not_found"),
        ("GET /healthz", {"Host": "rebound.example:7777"}, 403, "forbidden_host"),
        ("GET /v1/status", mine | {"Origin": "http://evil.example"}, 403, "forbidden_origin"),
        ("GET /v1/msp", UPGRADE, 401, "unauthorized"),
        ("GET /v1/msp", UPGRADE | mine | {"Origin": "http://evil.example"}, 403, "forbidden_origin"),
        ("GET /v1/msp", UPGRADE | mine | {"Host": "rebound.example"}, 403, "forbidden_host"),
        ("GET /v1/msp", UPGRADE | mine, 101, None),
    ]
    for line, headers, status, kind in cases:
        came, body = exchange(home, line, headers)
        assert (came, (body or {}).get("kind")) == (status, kind), (line, headers, body)


def test_a_body_that_is_too_long_is_refused_and_the_server_goes_on(home: Home) -> None:
    home.serve()
    mine = {"Authorization": f"Bearer {home.token}", "Content-Type": "application/json"}
    blueprint = b'{"blueprint":{"kind":"inline","value":"' + b"x" * LONG + b'"}}'
    status, body = exchange(home, "POST /v1/tasks", mine, blueprint)
    assert (status, body["kind"]) == (413, "body_too_large")
    assert home.api.get("/v1/tasks")["items"] == []
