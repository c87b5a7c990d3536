"""HTTP: one table of routes, and endpoints of a few lines: parse, call a service, shape the answer.

Bodies are read strictly (`canonical.decode_strict`) and converted to the struct of the route; whatever is wrong with
them is a typed 400 before any service is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from refold import __version__
from refold.canonical import decode_strict, encode
from refold.errors import InvalidRequest, RefoldError
from refold.records import RunRecord, RunStatus, parse_id
from refold.server import shapes
from refold.server.guard import Guard
from refold.server.http_errors import body_of, status_of
from refold.server.rpc import Rpc
from refold.server.websocket import endpoint
from refold.service.app import App
from refold.service.reruns import Choice, RerunFrom
from refold.service.tasks import NewTask

Json = Any
S = TypeVar("S", bound=msgspec.Struct)
log = structlog.get_logger("refold.http")

BODY_BYTES: Final = 10 * 1024 * 1024
SYNC_SECS: Final = 3600.0
"""How long a launch that is not detached waits for its Run; the Run goes on after it."""
PAGE: Final = 200
"""Rows of a list page, unless asked for fewer."""


class LaunchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/tasks`."""

    blueprint: Json
    init_ctx: Json = msgspec.field(default_factory=dict)
    goal: str = ""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    detach: bool = False
    timeout_secs: float | None = None
    project_root: str | None = None
    work_dir: str | None = None


class RekickBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/tasks/{id}/runs`."""

    init_ctx_override: Json = None
    detach: bool = False
    timeout_secs: float | None = None


class RerunBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/runs/{id}/rerun-from`. `lane` are indexes, or the pairs that rows show."""

    from_step: str
    occurrence: int | None = None
    lane: list[int | tuple[int, int]] | None = None
    input_hash: str | None = None
    step_id: str | None = None
    blueprint: Choice | None = None


def http_app(app: App, rpc: Rpc, token: str, hosts: Sequence[str]) -> Any:
    """The ASGI application, behind its guard."""
    api = _Api(app)
    routes: list[BaseRoute] = [Route(path, _endpoint(call), methods=[verb]) for verb, path, call in api.routes()]
    routes.append(WebSocketRoute("/v1/msp", endpoint(rpc)))
    inner = Starlette(routes=routes, exception_handlers={HTTPException: _not_routed})
    return Guard(inner, token, hosts)


class _Api:
    """The endpoints. Each takes a request and returns `(status, JSON)`."""

    def __init__(self, app: App) -> None:
        self._app = app

    def routes(self) -> list[tuple[str, str, Endpoint]]:
        """Verb, path, endpoint."""
        return [
            ("GET", "/healthz", self.healthz),
            ("GET", "/v1/status", self.status),
            ("POST", "/v1/blueprints", self.add_blueprint),
            ("GET", "/v1/blueprints", self.blueprints),
            ("POST", "/v1/blueprints/lint", self.lint),
            ("POST", "/v1/blueprints/{id}", self.add_blueprint),
            ("GET", "/v1/blueprints/{id}", self.blueprint),
            ("GET", "/v1/blueprints/{id}/versions", self.blueprint_versions),
            ("GET", "/v1/blueprints/{id}/versions/{version}", self.blueprint_version),
            ("POST", "/v1/blueprints/{id}/archive", self.archive),
            ("POST", "/v1/blueprints/{id}/unarchive", self.unarchive),
            ("POST", "/v1/tasks", self.launch),
            ("GET", "/v1/tasks", self.tasks),
            ("GET", "/v1/tasks/{id}", self.task),
            ("POST", "/v1/tasks/{id}/runs", self.rekick),
            ("GET", "/v1/runs", self.runs),
            ("GET", "/v1/runs/{id}", self.run),
            ("DELETE", "/v1/runs/{id}", self.delete),
            ("GET", "/v1/runs/{id}/steps", self.steps),
            ("GET", "/v1/runs/{id}/replay", self.replay),
            ("GET", "/v1/runs/{id}/trace", self.trace),
            ("POST", "/v1/runs/{id}/resume", self.resume),
            ("POST", "/v1/runs/{id}/rerun-from", self.rerun),
            ("POST", "/v1/runs/{id}/cancel", self.cancel),
            ("GET", "/v1/sessions/{id}", self.session),
        ]

    async def healthz(self, request: Request) -> Answer:
        return 200, {"ok": True}

    async def status(self, request: Request) -> Answer:
        return 200, {"version": __version__, **await self._app.status()}

    async def add_blueprint(self, request: Request) -> Answer:
        value = await _json(request)
        expected, own = request.path_params.get("id"), value.get("id") if isinstance(value, dict) else None
        if expected not in (None, own):
            raise InvalidRequest(f"the path names blueprint {expected!r}, the body {own!r}", member="id")
        return 201, shapes.blueprint(await self._app.blueprints.add(value), body=False)

    async def lint(self, request: Request) -> Answer:
        return 200, shapes.lint(self._app.blueprints.lint(await _json(request)))

    async def blueprints(self, request: Request) -> Answer:
        heads = await self._app.blueprints.heads(archived=request.query_params.get("archived") == "true")
        return 200, _whole([shapes.blueprint(head, body=False) for head in heads])

    async def blueprint(self, request: Request) -> Answer:
        return 200, shapes.blueprint(await self._app.blueprints.head(request.path_params["id"]), body=True)

    async def blueprint_versions(self, request: Request) -> Answer:
        limit, before = _page_of(request)
        rows = await self._app.blueprints.versions(request.path_params["id"], limit + 1, before)
        return 200, _paged([shapes.blueprint(row, body=False) for row in rows], rows, limit)

    async def blueprint_version(self, request: Request) -> Answer:
        row = await self._app.blueprints.version(request.path_params["id"], request.path_params["version"])
        return 200, shapes.blueprint(row, body=True)

    async def archive(self, request: Request) -> Answer:
        return 200, shapes.blueprint(await self._app.blueprints.archive(request.path_params["id"]), body=False)

    async def unarchive(self, request: Request) -> Answer:
        return 200, shapes.blueprint(await self._app.blueprints.unarchive(request.path_params["id"]), body=False)

    async def launch(self, request: Request) -> Answer:
        body = await _body(request, LaunchBody)
        new = NewTask(
            blueprint=body.blueprint,
            init_ctx=body.init_ctx,
            goal=body.goal,
            labels=body.labels,
            work_dir=body.work_dir,
            project_root=body.project_root,
        )
        return await self._wait(await self._app.tasks.launch(new), body.detach, body.timeout_secs, 200)

    async def rekick(self, request: Request) -> Answer:
        body = await _body(request, RekickBody)
        run = await self._app.tasks.rekick(request.path_params["id"], body.init_ctx_override)
        return await self._wait(run, body.detach, body.timeout_secs, 201)

    async def _wait(self, run: RunRecord, detach: bool, timeout_secs: float | None, status: int) -> Answer:
        """The answer to a kick: at once, or when the Run has ended; the Run goes on when the caller's time is over."""
        ids = {"task_id": run.task_id, "run_id": run.run_id, "session_id": run.session_id}
        if detach:
            return 202, ids | {"status": run.status}
        try:
            async with asyncio.timeout(timeout_secs or SYNC_SECS):
                run = await self._app.runs.settled(run)
        except TimeoutError:
            return 504, ids | {"error": "the Run is still going; ask for it later", "kind": "timeout"}
        return status, ids | {"status": run.status} | _ending(run)

    async def tasks(self, request: Request) -> Answer:
        limit, before = _page_of(request)
        rows = await self._app.tasks.page(limit + 1, before)
        return 200, _paged([shapes.task(row) for row in rows], rows, limit)

    async def task(self, request: Request) -> Answer:
        return 200, shapes.task(await self._app.tasks.get(request.path_params["id"]))

    async def runs(self, request: Request) -> Answer:
        limit, before = _page_of(request)
        asked = {name: request.query_params[name] for name in ("status", "task_id") if name in request.query_params}
        rows = await self._app.runs.page(limit + 1, before, **asked)
        return 200, _paged([shapes.run(row) for row in rows], rows, limit)

    async def run(self, request: Request) -> Answer:
        run_id = request.path_params["id"]
        return 200, shapes.run(await self._app.runs.get(run_id), await self._app.runs.steps(run_id))

    async def delete(self, request: Request) -> Answer:
        await self._app.runs.delete(request.path_params["id"])
        return 200, {"run_id": request.path_params["id"], "deleted": True}

    async def steps(self, request: Request) -> Answer:
        attempts = await self._app.runs.steps(request.path_params["id"])
        return 200, _whole([shapes.step(attempt) for attempt in attempts])

    async def replay(self, request: Request) -> Answer:
        run_id = request.path_params["id"]
        asked = {name: request.query_params.get(name) == "true" for name in ("ctx", "all")}
        steps = await self._app.runs.replay(run_id, ctx=asked["ctx"], everything=asked["all"])
        return 200, _whole([shapes.replay_row(step, run_id) for step in steps])

    async def trace(self, request: Request) -> Answer:
        return 200, _whole(await self._app.runs.trace(request.path_params["id"]))

    async def resume(self, request: Request) -> Answer:
        if _previews(request):
            return 200, shapes.preview(await self._app.reruns.preview_resume(request.path_params["id"]))
        resumed = await self._app.runs.resume(request.path_params["id"])
        ids = {"run_id": resumed.run.run_id, "task_id": resumed.run.task_id}
        return 202, ids | {"replayed_steps": resumed.replayed_steps}

    async def rerun(self, request: Request) -> Answer:
        run_id, body = parse_id(request.path_params["id"], "R"), await _body(request, RerunBody)
        lane = None if body.lane is None else tuple(at if isinstance(at, int) else at[1] for at in body.lane)
        wanted = RerunFrom(
            from_step=body.from_step,
            occurrence=body.occurrence,
            lane=lane,
            input_hash=body.input_hash,
            step_id=body.step_id,
            blueprint=body.blueprint,
        )
        if _previews(request):
            return 200, shapes.preview(await self._app.reruns.preview(run_id, wanted))
        done = await self._app.reruns.rerun(run_id, wanted)
        ids = {"run_id": run_id, "task_id": done.run.task_id}
        return 202, ids | {"replayed_steps": done.replayed_steps, "dropped_steps": done.dropped_steps}

    async def cancel(self, request: Request) -> Answer:
        before = await self._app.runs.get(request.path_params["id"])
        run = await self._app.runs.cancel(before.run_id)
        return 200 if before.status == RunStatus.CANCELLED else 202, {"run_id": run.run_id, "status": run.status}

    async def session(self, request: Request) -> Answer:
        served, resumed = await self._app.sessions.snapshot(request.path_params["id"])
        return 200, {
            "session_id": served.info.session.session_id,
            "view_cursor": served.cursor,
            "snapshot": served.history["snapshot"],
            "resumed": resumed,
        }


Answer = tuple[int, Json]
Endpoint = Callable[[Request], Awaitable[Answer]]


def _endpoint(call: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            status, body = await call(request)
        except RefoldError as error:
            status, body = status_of(error), body_of(error)
            if status >= 500:
                log.error("request_failed", path=request.url.path, kind=error.kind, error=error.message)
        except Exception as error:
            log.error("request_failed", path=request.url.path, error=repr(error), exc_info=error)
            status, body = 500, body_of(RefoldError("unexpected"))
        return Response(encode(body), status, media_type="application/json")

    return answer


async def _not_routed(request: Request, error: HTTPException) -> Response:
    kind = "method_not_allowed" if error.status_code == 405 else "not_found"
    body = {"error": f"nothing answers {request.method} {request.url.path}", "kind": kind}
    return Response(encode(body), error.status_code, media_type="application/json")


async def _json(request: Request) -> Json:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > BODY_BYTES:
            raise InvalidRequest(f"the body is longer than {BODY_BYTES} bytes", kind="body_too_large", limit=BODY_BYTES)
    return decode_strict(bytes(data))


async def _body(request: Request, shape: type[S]) -> S:
    try:
        return msgspec.convert(await _json(request), shape)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"the body does not fit: {error}") from None


def _previews(request: Request) -> bool:
    return request.query_params.get("preview") == "true"


def _ending(run: RunRecord) -> Mapping[str, Json]:
    result = shapes.run(run)["result_ref"]
    if run.status == RunStatus.DONE:
        return {"final_ctx": result}
    return result if isinstance(result, dict) else {"error": result}


def _page_of(request: Request) -> tuple[int, int | None]:
    try:
        limit = int(request.query_params.get("limit", PAGE))
        cursor = request.query_params.get("cursor")
        before = None if cursor is None else int(cursor)
    except ValueError:
        raise InvalidRequest("limit is a number, cursor is a next_cursor of this list") from None
    if not 1 <= limit <= 1000:
        raise InvalidRequest(f"limit is {limit}, expected 1 to 1000", member="limit")
    return limit, before


def _paged(items: list[Json], rows: Sequence[Any], limit: int) -> Json:
    more = len(rows) > limit
    return {"items": items[:limit], "next_cursor": str(rows[limit - 1].n) if more else None}


def _whole(items: list[Json]) -> Json:
    return {"items": items, "next_cursor": None}
