"""How requests are read and answers shaped, whatever the route: queries, bodies, ids, verbs, caps, pages, faults."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from http_kit import NO_RUN, NO_TASK, Door, assign, launching, step
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from refold.canonical import canonical
from refold.errors import CommitFailed, InvalidRequest, RefoldError
from refold.server import http, reading
from refold.server.bodies import ReplayQuery, RunsQuery
from refold.server.http_errors import STATUS
from refold.server.paging import PageQuery, page, place
from refold.server.reading import query_of
from refold.server.routes import ROUTES

pytestmark = pytest.mark.anyio
Json = Any


# -- queries ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "member"),
    [
        ("/v1/runs?limt=5", "limt"),
        ("/v1/runs?limit=0", "limit"),
        ("/v1/runs?limit=1001", "limit"),
        ("/v1/runs?limit=-1", "limit"),
        ("/v1/runs?limit=", "limit"),
        ("/v1/runs?limit=many", "limit"),
        ("/v1/runs?limit=null", "limit"),
        ("/v1/runs?limit=true", "limit"),
        ("/v1/runs?limit=1.5", "limit"),
        ("/v1/runs?limit=%D9%A5", "limit"),
        ("/v1/runs?limit=" + "9" * 100, "limit"),
        ("/v1/runs?limit=5&limit=5", "limit"),
        ("/v1/runs?status=finished", "status"),
        ("/v1/runs?status=", "status"),
        ("/v1/runs?status=null", "status"),
        ("/v1/runs?status=done&status=failed", "status"),
        ("/v1/runs?label=", "label"),
        ("/v1/runs?label=%3Dx", "label"),
        ("/v1/runs?q=" + "x" * 257, "q"),
        ("/v1/runs?cursor=", "cursor"),
        ("/v1/runs?cursor=5", "cursor"),
        ("/v1/requests?status=closed", "status"),
        (f"/v1/runs/{NO_RUN}/replay?ctx=yes", "ctx"),
        (f"/v1/runs/{NO_RUN}/replay?all=1", "all"),
        (f"/v1/runs/{NO_RUN}/steps?ctx=true", "ctx"),
        (f"/v1/runs/{NO_RUN}?limit=5", "limit"),
        ("/v1/blueprints?archived=TRUE", "archived"),
        ("/v1/status?x", "x"),
        ("/healthz?x=1", "x"),
    ],
)
async def test_a_query_that_is_not_understood_is_refused(door: Door, path: str, member: str) -> None:
    came = await door.ask("GET", path, status=400)
    assert (came["kind"], came["member"]) == ("invalid_cursor" if member == "cursor" else "invalid_request", member)


async def test_a_query_on_a_verb_is_read_as_strictly(door: Door) -> None:
    assert (await door.ask("POST", f"/v1/runs/{NO_RUN}/resume?preview=1", status=400))["member"] == "preview"
    assert (await door.ask("POST", f"/v1/runs/{NO_RUN}/cancel?preview=true", status=400))["member"] == "preview"


@pytest.mark.parametrize("path", ["/v1/runs?task_id=nonsense", "/v1/requests?run_id=R-x"])
async def test_an_id_in_a_query_has_the_shape_of_its_kind(door: Door, path: str) -> None:
    assert (await door.ask("GET", path, status=400))["kind"] == "invalid_id"


def asked(query: str) -> Request:
    """A request with this query string."""
    return Request({"type": "http", "query_string": query.encode(), "headers": []})


@given(st.text(max_size=20), st.text(max_size=20))
def test_every_query_is_understood_or_refused(name: str, value: str) -> None:
    from urllib.parse import urlencode

    for shape in (RunsQuery, ReplayQuery):
        for pair in ((name, value), ("limit", value), ("label", value), ("status", value)):
            try:
                found = query_of(asked(urlencode([pair])), shape)
            except InvalidRequest:
                continue
            assert pair[0] in shape.__struct_fields__
            assert 1 <= found.limit <= 1000


def test_members_are_read_by_their_type() -> None:
    found = query_of(asked("limit=7&label=a%3D1&label=b&q=&status=done"), RunsQuery)
    assert found == RunsQuery(limit=7, label=["a=1", "b"], status="done")
    assert query_of(asked("ctx=true&all=false"), ReplayQuery) == ReplayQuery(ctx=True)


# -- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "members",
    [
        {"blueprint": None},
        {"blueprint": {"kind": "file", "path": "/etc/passwd"}},
        {"blueprint": {"kind": "inline"}},
        {"blueprint": {"kind": "id", "id": 5}},
        {"blueprint": {"kind": "id", "id": "x", "more": 1}},
        {"blueprints": 1},
        {"goal": 5},
        {"labels": {"": "x"}},
        {"labels": {"a=b": "x"}},
        {"labels": {"a": 5}},
        {"labels": {"a": "x" * 1025}},
        {"labels": {str(n): "" for n in range(65)}},
        {"labels": ["a"]},
        {"detach": "yes"},
        {"detach": 1},
        {"timeout_secs": 0},
        {"timeout_secs": -1},
        {"timeout_secs": 1e10},
        {"timeout_secs": "5"},
        {"timeout_secs": True},
        {"ttl_secs": 0},
        {"ttl_secs": -0.5},
        {"ttl_secs": 10**60},
        {"detach": True, "timeout_secs": 5},
        {"command_id": "once"},
        {"command_id": "0198a5c0-0000-7000-8000-00000000000G"},
        {"command_id": "0198A5C0-0000-7000-8000-000000000000"},
        {"command_id": "0198a5c0-0000-4000-8000-000000000000"},
        {"command_id": "0198a5c0-0000-7000-8000-000000000000\n"},
    ],
    ids=lambda members: json.dumps(members)[:60],
)
async def test_a_launch_that_does_not_fit_is_refused_and_nothing_is_made(door: Door, members: Json) -> None:
    came = await door.ask("POST", "/v1/tasks", launching() | members, status=400)
    assert came["kind"] in ("invalid_request", "invalid_id")
    assert came["error"]
    for path in ("/v1/tasks", "/v1/runs"):
        assert (await door.ask("GET", path))["items"] == []


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b"[]", "invalid_request"),
        (b"null", "invalid_request"),
        (b'{"blueprint":1,"blueprint":2}', "invalid_json"),
        (b"[" * 65 + b"]" * 65, "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (json.dumps({str(n): n for n in range(10_001)}).encode(), "invalid_json"),
        (b'{"ttl_secs":' + b"9" * 65 + b"}", "invalid_json"),
        (b'{"ttl_secs":NaN}', "invalid_json"),
        (b'{"ttl_secs":1e400}', "invalid_json"),
        (b'{"goal":"\xff"}', "invalid_json"),
        (b'{"goal":"\\ud800"}', "invalid_json"),
        (b"\xef\xbb\xbf{}", "invalid_json"),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_a_body_that_is_not_json_as_it_is_accepted_here(door: Door, data: bytes, kind: str) -> None:
    for path in ("/v1/tasks", f"/v1/runs/{NO_RUN}/rerun-from"):
        assert (await door.ask("POST", path, content=data, status=400))["kind"] == kind


async def test_no_body_is_a_body_with_its_defaults_where_none_is_needed(door: Door) -> None:
    task = (await door.launch())["task_id"]
    assert (await door.ask("POST", f"/v1/tasks/{task}/runs", content=b"", status=201))["status"] == "done"
    assert (await door.ask("POST", f"/v1/tasks/{task}/runs", {}, status=201))["status"] == "done"
    assert (await door.ask("POST", f"/v1/runs/{NO_RUN}/cancel", [], status=400))["kind"] == "invalid_request"


async def test_a_body_longer_than_the_cap_is_refused(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps(launching(goal="x" * 1000)).encode()
    monkeypatch.setattr(reading, "BODY_BYTES", len(body))
    assert (await door.ask("POST", "/v1/tasks", content=body))["status"] == "done"
    came = await door.ask("POST", "/v1/tasks", content=body + b" ", status=413)
    assert (came["kind"], came["limit"]) == ("body_too_large", len(body))
    pieces: list[bytes] = []

    async def endless() -> Any:
        for _ in range(1000):
            pieces.append(b" " * 1000)
            yield pieces[-1]

    monkeypatch.setattr(reading, "PATIENCE_BYTES", 4 * len(body))
    assert (await door.ask("POST", "/v1/tasks", content=endless(), status=413))["kind"] == "body_too_large"
    assert len(pieces) < 10


async def test_the_cap_is_ten_mebibytes(door: Door) -> None:
    goal = "x" * (reading.BODY_BYTES - 10_000)
    assert (await door.ask("POST", "/v1/tasks", launching(goal=goal)))["status"] == "done"
    assert (await door.ask("POST", "/v1/tasks", launching(goal=goal + goal), status=413))["kind"] == "body_too_large"


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/problem+json", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/jsonx", 415),
        ("", 415),
    ],
)
async def test_a_body_that_says_it_is_no_json_is_not_read_as_json(door: Door, media_type: str, status: int) -> None:
    body = json.dumps(launching()).encode()
    headers = {"Content-Type": media_type}
    came = await door.ask("POST", "/v1/tasks", content=body, headers=headers, status=status)
    assert came.get("kind", came.get("status")) == ("done" if status == 200 else "unsupported_media_type")


async def test_a_body_that_says_nothing_is_json(door: Door) -> None:
    assert (await door.ask("POST", "/v1/tasks", content=json.dumps(launching()).encode()))["status"] == "done"


# -- ids --------------------------------------------------------------------------------------------------------------

MALFORMED = ["nonsense", "R-1", "R-00000000000000fg", "R-00000000000000FF", "%00", "R-" + "0" * 33, "'", "*", "%0A"]
WITH_IDS = [row for row in ROUTES if row.ids and row.ids[0] != "blueprint_id"]


@pytest.mark.parametrize("row", WITH_IDS, ids=lambda row: f"{row.verb} {row.path}")
async def test_a_malformed_id_is_a_400_on_every_route(door: Door, row: Any) -> None:
    (name,) = row.ids
    for bad in MALFORMED:
        came = await door.send(row.verb, row.path.replace(f"{{{name}}}", bad), content=b"")
        assert (came.status_code, came.json()["kind"]) == (400, "invalid_id"), came.text


@pytest.mark.parametrize("bad", ["a b", "a'b", "%00", "é", "a:b", "a%0A"])
async def test_blueprint_ids_and_versions_are_names(door: Door, bad: str) -> None:
    for path in (f"/v1/blueprints/{bad}", f"/v1/blueprints/{bad}/versions/0", f"/v1/blueprints/b/versions/{bad}"):
        assert (await door.ask("GET", path, status=400))["kind"] == "invalid_id"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (f"/v1/runs/{NO_RUN}", "run_not_found"),
        (f"/v1/runs/{NO_RUN}/trace", "run_not_found"),
        (f"/v1/tasks/{NO_TASK}", "task_not_found"),
        ("/v1/sessions/01890000-0000-7000-8000-000000000000", "session_not_found"),
        ("/v1/requests/01890000-0000-7000-8000-000000000000", "request_not_found"),
        ("/v1/blueprints/none", "blueprint_not_found"),
        ("/v1/nothing", "not_found"),
        ("/v1/runs/", "not_found"),
        ("/v1//runs", "not_found"),
        ("/", "not_found"),
    ],
)
async def test_what_is_not_there_is_named(door: Door, path: str, kind: str) -> None:
    assert (await door.ask("GET", path, status=404))["kind"] == kind


# -- verbs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted({row.path for row in ROUTES}))
async def test_a_wrong_verb_is_told_the_right_ones(door: Door, path: str) -> None:
    allowed = {row.verb for row in ROUTES if row.path == path}
    allowed |= {"HEAD"} if "GET" in allowed else set()
    wrong = {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "QUERY"} - allowed
    if path == "/v1/blueprints/lint":
        wrong -= {"GET"}  # this asks for a Blueprint of the id `lint`
    for verb in wrong:
        answer = await door.send(verb, path.replace("{", "").replace("}", ""))
        assert answer.status_code == 405
        assert set(answer.headers["allow"].split(", ")) == allowed
        assert answer.json()["kind"] == "method_not_allowed"


async def test_head_is_there_wherever_get_is(door: Door) -> None:
    run_id = (await door.launch())["run_id"]
    for path in ("/healthz", "/v1/runs", f"/v1/runs/{run_id}", "/metrics", "/openapi.json"):
        head, whole = await door.send("HEAD", path), await door.send("GET", path)
        assert (head.status_code, head.headers["content-type"]) == (200, whole.headers["content-type"])
    assert (await door.send("HEAD", f"/v1/runs/{NO_RUN}")).status_code == 404
    assert (await door.send("HEAD", "/v1/runs/nonsense")).status_code == 400


# -- pages ------------------------------------------------------------------------------------------------------------


async def walk(door: Door, path: str, limit: int) -> list[Json]:
    """All items of a list, page by page."""
    items, cursor = [], None
    while True:
        came = await door.ask("GET", path, params={"limit": limit} | ({"cursor": cursor} if cursor else {}))
        assert cursor is None or came["items"], "a cursor leads to something"
        assert len(came["items"]) <= limit
        items += came["items"]
        cursor = came["next_cursor"]
        if cursor is None:
            return items
        assert len(came["items"]) == limit


async def test_pages_of_every_list_add_up_to_the_list(door: Door) -> None:
    for word in ("a", "b", "c"):
        await door.ask("POST", "/v1/blueprints", {"id": f"b-{word}", "flow": assign("$.x", word)}, status=201)
        await door.ask("POST", "/v1/blueprints", {"id": "mine", "flow": assign("$.x", word)}, status=201)
    runs = [await door.launch(step("echo"), assign("$.x", n), step("echo"), step("echo")) for n in range(5)]
    run = f"/v1/runs/{runs[0]['run_id']}"
    lists = {
        "/v1/runs": 5,
        "/v1/tasks": 5,
        "/v1/blueprints": 4,
        "/v1/blueprints/mine/versions": 3,
        f"{run}/steps": 3,
        f"{run}/replay": 3,
        f"{run}/trace": 8,
    }
    for path, count in lists.items():
        whole = await walk(door, path, 1000)
        assert len(whole) == count, path
        for limit in (1, 2, 3, count, count + 1):
            assert await walk(door, path, limit) == whole, (path, limit)
    assert [each["run_id"] for each in await walk(door, "/v1/runs", 2)] == [each["run_id"] for each in runs[::-1]]


async def test_a_walk_is_not_disturbed_by_what_is_made_meanwhile(door: Door) -> None:
    first = [(await door.launch())["run_id"] for _ in range(4)]
    page = await door.ask("GET", "/v1/runs?limit=2")
    await door.launch()
    rest = await door.ask("GET", "/v1/runs", params={"limit": 2, "cursor": page["next_cursor"]})
    assert [each["run_id"] for each in page["items"] + rest["items"]] == first[::-1]


async def test_a_cursor_belongs_to_its_list_and_its_filters(door: Door) -> None:
    for _ in range(3):
        run = await door.launch()
    cursor = (await door.ask("GET", "/v1/runs?limit=1"))["next_cursor"]
    assert not cursor.isdecimal()
    await door.ask("GET", f"/v1/runs?limit=3&cursor={cursor}")  # another limit is the same question
    for path in ("/v1/tasks?", "/v1/runs?status=done&", "/v1/runs?q=R&", f"/v1/runs/{run['run_id']}/trace?"):
        came = await door.ask("GET", f"{path}cursor={cursor}", status=400)
        assert (came["kind"], came["member"]) == ("invalid_cursor", "cursor")


NUMBERS = PageQuery(limit=3)


@given(st.integers(1, 2**63 - 1) | st.text(min_size=1, max_size=20))
def test_a_cursor_leads_back_to_its_place(at: Json) -> None:
    cursor = page("list", NUMBERS, [0, 1, at, 3], lambda row: row, str)["next_cursor"]
    assert place("list", PageQuery(cursor=cursor)) == at
    with pytest.raises(InvalidRequest):
        place("other list", PageQuery(cursor=cursor))


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: base64.urlsafe_b64encode(data).decode()))
def test_whatever_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        place("list", PageQuery(cursor=text))


@given(st.integers(0, 200), st.characters())
def test_another_spelling_of_a_cursor_is_none(at: int, extra: str) -> None:
    cursor = page("list", NUMBERS, [0, 1, 2, 3], lambda row: row, str)["next_cursor"]
    at %= len(cursor) + 1
    with pytest.raises(InvalidRequest):
        place("list", PageQuery(cursor=cursor[:at] + extra + cursor[at:]))


@pytest.mark.parametrize("at", [0, -1, 2**63, 2**80, 1.5, True, None, [], {}])
def test_a_forged_place_never_reaches_the_store(at: Json) -> None:
    named = json.loads(base64.urlsafe_b64decode(page("l", NUMBERS, [0, 1, 2, 3], lambda r: r, str)["next_cursor"]))[0]
    with pytest.raises(InvalidRequest):
        place("l", PageQuery(cursor=base64.urlsafe_b64encode(canonical([named, at])).decode()))


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "status", "kind"),
    [
        (ValueError("a secret of the inside"), 500, "internal"),
        (CommitFailed("a secret of the inside"), 503, "commit_failed"),
        (RefoldError("a secret of the inside"), 500, "internal"),
    ],
)
async def test_a_fault_of_ours_is_logged_under_the_id_that_the_answer_tells(
    door: Door, monkeypatch: pytest.MonkeyPatch, raised: Exception, status: int, kind: str, said: list[Json]
) -> None:
    async def fall(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(door.app.tasks, "page", fall)
    came = await door.ask("GET", "/v1/tasks?limit=5", status=status)
    assert "secret" not in json.dumps(came)
    (entry,) = said
    assert (came["kind"], entry["request_id"]) == (kind, came["request_id"])
    assert (entry["method"], entry["path"], entry["level"]) == ("GET", "/v1/tasks", "error")
    assert "a secret of the inside" in entry["error"]


async def test_an_error_of_the_callers_is_not_logged(door: Door, said: list[Json]) -> None:
    await door.ask("GET", "/v1/runs/nonsense", status=400)
    await door.ask("GET", f"/v1/runs/{NO_RUN}", status=404)
    await door.ask("POST", "/v1/tasks", {}, status=400)
    assert said == []


async def test_a_client_that_hangs_up_in_the_middle_of_its_body_is_no_fault(door: Door, said: list[Json]) -> None:
    messages = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])
    sent: list[Json] = []

    async def receive() -> Json:
        return next(messages)

    async def send(message: Json) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1:7777"), (b"authorization", b"Bearer token")]
    scope = {"type": "http", "method": "POST", "path": "/v1/tasks", "query_string": b"", "headers": headers}
    await door.asgi(scope, receive, send)
    assert (said, sent[0]["status"]) == ([], 400)


def test_every_kind_of_error_has_a_status() -> None:
    def below(kind: type[RefoldError]) -> set[type[RefoldError]]:
        return {kind, *(each for sub in kind.__subclasses__() for each in below(sub))}

    missing = {kind.kind for kind in below(RefoldError) if kind.__module__.startswith("refold.errors")} - set(STATUS)
    assert not missing
    assert http.status_of(reading.BodyTooLarge()) == 413
