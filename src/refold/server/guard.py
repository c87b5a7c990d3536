"""The guard before every door: Host and Origin exact, then the token. It stands before routing and before `accept`.

A page in a browser can reach a loopback port: a foreign Origin, or a Host that was rebound to 127.0.0.1, must not get
as far as a route. Without a token nobody gets anything but `/healthz` (law 12). A WebSocket client that cannot set
headers gives the token as the subprotocol `refold.bearer.<token>`; it never stands in a URL, which ends up in logs.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from refold.canonical import encode
from refold.errors import Forbidden, RefoldError, Unauthorized
from refold.server.http_errors import body_of, status_of

OPEN: Final = frozenset({"/healthz"})
BEARER_PROTOCOL: Final = "refold.bearer."


class Guard:
    """ASGI middleware. `hosts` are the `host:port` spellings under which this server may be asked."""

    def __init__(self, app: ASGIApp, token: str, hosts: Sequence[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except RefoldError as error:
            await _refuse(scope, send, error)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("host") not in self._hosts:
            raise Forbidden("this server is not asked under that Host", kind="forbidden_host")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] not in self._hosts:
            raise Forbidden("pages of that Origin may not ask here", kind="forbidden_origin")
        if scope["path"] not in OPEN and not self._knows(headers):
            raise Unauthorized("no valid token: send `Authorization: Bearer` with the token of $REFOLD_HOME/token")

    def _knows(self, headers: dict[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            offered = headers.get("sec-websocket-protocol", "").split(",")
            given = next((p.strip()[len(BEARER_PROTOCOL) :] for p in offered if BEARER_PROTOCOL in p), "")
        return hmac.compare_digest(given.strip().encode(), self._token)


async def _refuse(scope: Scope, send: Send, error: RefoldError) -> None:
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    body = encode(body_of(error)).encode()
    head: dict[str, Any] = {
        "type": f"{kind}.start",
        "status": status_of(error),
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
    }
    await send(head)
    await send({"type": f"{kind}.body", "body": body})
