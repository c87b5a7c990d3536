"""HTTP: how the table of routes is served.

A request goes through the guard, then to its row: the token's scope, the ids of the path, the query and the body are
checked in this order, each with a typed refusal, before the endpoint is called. An error of the caller's is answered
with its kind and data and is not logged; one of ours is logged under an id, and the answer tells only that id.

Not here: the routes (`routes`), the endpoints (`api`), how a request is read (`reading`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute, websocket_session
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope
from starlette.websockets import WebSocket

from refold import diagnostics
from refold.canonical import encode
from refold.errors import Forbidden, RefoldError
from refold.server import operator_socket
from refold.server.contract import SERVER, Ask, Row, Scope, Text
from refold.server.guard import Guard, refuse
from refold.server.http_errors import body_of, status_of
from refold.server.reading import body_of as read_body
from refold.server.reading import ids_of, query_of
from refold.server.routes import ROUTES
from refold.server.rpc import Rpc
from refold.server.websocket import endpoint
from refold.service.app import App

Json = Any
Serve = Callable[[Request], Awaitable[Response]]
log = diagnostics.Log("refold.http")


def http_app(app: App, rpc: Rpc, token: str, hosts: Sequence[str]) -> ASGIApp:
    """The ASGI application, behind its guard. `hosts` are the `host:port` under which this server may be asked."""
    sockets = [
        WebSocketRoute("/v1/msp", Socket(endpoint(rpc), Scope.SERVER)),
        WebSocketRoute("/v1/operators/{sid}/ws", Socket(operator_socket.endpoint(app), Scope.OPERATOR)),
    ]
    inner = Starlette(routes=[*routes(app), *sockets], exception_handlers={HTTPException: _not_routed})
    inner.router.redirect_slashes = False  # a redirect would name the Host that was asked for, and lose the body
    open_paths = frozenset(row.path for row in ROUTES if row.scope is Scope.OPEN)
    return Guard(inner, token, hosts, open_paths, app.operators.sid_of)


def routes(app: App, rows: Iterable[Row] = ROUTES) -> list[BaseRoute]:
    """Starlette's routes: one a path, so that a 405 knows every verb of it, and HEAD wherever there is GET."""
    by_path = attrgetter("path")  # "{" sorts after every letter: `/v1/blueprints/lint` is not the Blueprint `lint`
    return [_route(app, path, list(of_path)) for path, of_path in groupby(sorted(rows, key=by_path), by_path)]


def _route(app: App, path: str, rows: Sequence[Row]) -> Route:
    verbs = {row.verb: _serve(app, row) for row in rows}

    async def dispatch(request: Request) -> Response:
        return await verbs["GET" if request.method == "HEAD" else request.method](request)

    return Route(path, dispatch, methods=list(verbs))


def _serve(app: App, row: Row) -> Serve:
    async def serve(request: Request) -> Response:
        try:
            return await _answer(app, row, request)
        except RefoldError as error:
            status = status_of(error)
            return _json(status, _fault(app, request, error) if status >= 500 else body_of(error))
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to read it
        except Exception as error:  # noqa: BLE001 - the outermost frame of a request: nothing above could answer it
            return _json(500, _fault(app, request, error))

    return serve


async def _answer(app: App, row: Row, request: Request) -> Response:
    who = request.scope["refold.who"]
    _check_scope(row.scope, who)
    ask = Ask(
        ids=ids_of(request),
        query=query_of(request, row.query),
        body=await read_body(request, row),
        who=who,
        request=request,
    )
    reply = await row.endpoint(app, ask)
    return reply if isinstance(reply, Response) else _response(*reply)


def _response(status: int, said: Json) -> Response:
    if said is None:
        return Response(status_code=status)
    if isinstance(said, Text):
        return Response(said.body, status, media_type=said.media_type)
    return _json(status, said)


def _json(status: int, said: Json) -> Response:
    return Response(encode(said), status, media_type="application/json")


def _fault(app: App, request: Request, error: Exception) -> Mapping[str, Json]:
    """Logs an error of ours under a new id; what the caller is told of it."""
    told = error if isinstance(error, RefoldError) else RefoldError(repr(error))
    request_id = app.clock.uuid7()
    log.error(
        "request_failed",
        request_id=request_id,
        method=request.method,
        path=request.url.path,
        kind=told.kind,
        error=told.message,
        exc_info=error,
    )
    return {**body_of(told), "request_id": request_id}


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "that is what it is registered for"
    kind = "method_not_allowed" if error.status_code == 405 else "not_found"
    said = {"error": f"nothing answers {request.method} {request.url.path[:200]}", "kind": kind}
    return Response(encode(said), error.status_code, dict(error.headers or {}), media_type="application/json")


# -- scopes -----------------------------------------------------------------------------------------------------------


def _check_scope(scope: Scope, who: str | None) -> None:
    """Raises Forbidden for an operator's token on a route of the server's. Who has no token was refused before."""
    if scope is Scope.SERVER and who != SERVER:
        raise Forbidden("an operator's token does not open this; use the server's", kind="forbidden_scope")


class Socket:
    """The ASGI endpoint of a WebSocket that needs a token of `scope`.

    It is refused before it is accepted, also by what `serve` raises before it accepts.
    """

    def __init__(self, serve: Callable[[WebSocket], Awaitable[None]], scope: Scope) -> None:
        self._serve = websocket_session(serve)
        self._needs = scope

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        try:
            _check_scope(self._needs, scope["refold.who"])
            await self._serve(scope, receive, send)
        except RefoldError as error:
            await refuse(scope, send, error)
