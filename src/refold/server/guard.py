"""The guard before every door: Host and Origin exact, then the token. It stands before routing and before `accept`.

A page in a browser can reach a loopback port: a foreign Origin, or a Host that was rebound to 127.0.0.1, must not get
as far as a route. Without a token nobody gets anything but what the table leaves open (law 12). A WebSocket client that
cannot set headers gives the token as the subprotocol `refold.bearer.<token>`; it never stands in a URL, which ends up
in logs.

Which routes a known token opens is the row's to say (`http`); here it is only found out whose it is.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from refold.canonical import encode
from refold.errors import BadInput, Forbidden, RefoldError, Unauthorized
from refold.server.contract import SERVER
from refold.server.http_errors import body_of, status_of

BEARER_PROTOCOL: Final = "refold.bearer."
ONCE: Final = ("host", "origin", "authorization", "sec-websocket-protocol")
"""Headers that decide here. Given twice, another reader could believe the other one."""

SECURE: Final = ((b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store"))
"""What every answer carries unless it says otherwise itself."""


class Guard:
    """ASGI middleware.

    Args:
        app: what stands behind it.
        token: the server's own token.
        hosts: the `host:port` spellings under which this server may be asked; lower case.
        open_paths: what is answered without a token.
        operator_of: whose an operator's token is; None for nobody's.
    """

    def __init__(
        self,
        app: ASGIApp,
        token: str,
        hosts: Collection[str],
        open_paths: Collection[str],
        operator_of: Callable[[str], str | None],
    ) -> None:
        assert token, "an empty token would open every door"
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(hosts)
        self._open = frozenset(open_paths)
        self._operator_of = operator_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        send = _securing(send)
        try:
            scope["refold.who"] = self._check(scope)
        except RefoldError as error:
            await refuse(scope, send, error)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> str | None:
        """Who asks: SERVER, an operator's id, or None where nobody needs a token."""
        headers = _decisive(scope)
        if headers.get("host", "").lower() not in self._hosts | _own_address(scope):
            raise Forbidden("this server is not asked under that Host", kind="forbidden_host")
        origin = headers.get("origin")
        if origin is not None and not self._is_ours(origin.lower(), scope):
            raise Forbidden("pages of that Origin may not ask here", kind="forbidden_origin")
        if scope["path"] in self._open:
            return None
        given = _token(headers, scope["type"])
        if hmac.compare_digest(given.encode(), self._token):
            return SERVER
        who = self._operator_of(given)
        if who is None:
            raise Unauthorized("no valid token: send `Authorization: Bearer` with the token of $REFOLD_HOME/token")
        return who

    def _is_ours(self, origin: str, scope: Scope) -> bool:
        scheme, _, host = origin.partition("://")
        return scheme == "http" and host in self._hosts | _own_address(scope)


def _decisive(scope: Scope) -> Mapping[str, str]:
    """The headers that decide here. Raises BadInput for one that is given twice."""
    found: dict[str, str] = {}
    for raw_name, value in scope["headers"]:
        name = raw_name.decode("latin-1").lower()
        if name not in ONCE:
            continue
        if name in found:
            raise BadInput(f"header {name} is given twice", kind="invalid_request", member=name)
        found[name] = value.decode("latin-1")
    return found


def _own_address(scope: Scope) -> frozenset[str]:
    """The numeric address at which the connection came in: no name was resolved for it, so none was rebound."""
    host, port = scope.get("server") or ("", 0)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return frozenset()
    return frozenset({host_port(host, port)})


def host_port(host: str, port: int) -> str:
    """`host:port` as a Host header spells it; an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _token(headers: Mapping[str, str], kind: str) -> str:
    """The token that is given, empty if there is none."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    offered = headers.get("sec-websocket-protocol", "") if kind == "websocket" else ""
    protocols = (protocol.strip() for protocol in offered.split(","))
    return next((each.removeprefix(BEARER_PROTOCOL) for each in protocols if each.startswith(BEARER_PROTOCOL)), "")


def _securing(send: Send) -> Send:
    """`send` that adds the headers of `SECURE` to every answer that has none of its own."""

    async def secured(message: Message) -> None:
        if message["type"].endswith("http.response.start"):
            headers = list(message.get("headers", ()))
            named = {name.lower() for name, _ in headers}
            message = {**message, "headers": headers + [pair for pair in SECURE if pair[0] not in named]}
        await send(message)

    return secured


async def refuse(scope: Scope, send: Send, error: RefoldError) -> None:
    """Answers with `error`. A WebSocket whose server cannot carry an answer is closed before it is accepted: a 403."""
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": error.kind})
        return
    kind = "websocket.http.response" if scope["type"] == "websocket" else "http.response"
    status, body = status_of(error), encode(body_of(error)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    head: dict[str, Any] = {"type": f"{kind}.start", "status": status, "headers": headers}
    await send(head)
    await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else body})
