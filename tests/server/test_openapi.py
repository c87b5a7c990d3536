"""The OpenAPI document: it is made from the table, complete, sound, and true of a server that runs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import httpx
import msgspec
import pytest
import schemathesis
from http_kit import TOKEN, Door, Server, assign, blueprint, launching, step
from hypothesis import HealthCheck, Phase, given, seed, settings
from jsonschema_rs import Draft202012Validator
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from refold.server.bodies import LaunchBody, RekickBody
from refold.server.contract import PATH_IDS, Media, NoQuery, Scope
from refold.server.openapi import document, table
from refold.server.routes import ROUTES

Json = Any
DOCUMENT = document()


def calls(rows: Sequence[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", rows, ids=[f"{row.verb} {row.path}" for row in rows])


named = calls(ROUTES)


def operation(row: Any) -> Json:
    return DOCUMENT["paths"][row.path][row.verb.lower()]


# -- the table --------------------------------------------------------------------------------------------------------


def test_no_route_is_there_twice() -> None:
    assert len({(row.verb, row.path) for row in ROUTES}) == len(ROUTES)


@named
def test_a_row_says_what_its_endpoint_takes(row: Any) -> None:
    """The table is what is checked and shown; the endpoint's own annotation is what it relies on."""
    body, query = get_args(get_type_hints(row.endpoint)["ask"])
    assert body == (type(None) if row.body is None else row.body)
    assert query is row.query


@named
def test_a_row_is_complete(row: Any) -> None:
    assert row.summary[0].isupper()
    assert not row.summary.endswith(".")
    assert row.answers
    assert set(row.ids) <= PATH_IDS.keys()
    for kind in (row.body, row.query):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            assert kind.__struct_config__.forbid_unknown_fields, f"{kind.__name__} would drop what it does not know"
            assert kind.__doc__


# -- the document -----------------------------------------------------------------------------------------------------


@named
def test_a_route_is_described(row: Any) -> None:
    shown = operation(row)
    assert {str(status) for status in row.answers} <= shown["responses"].keys()
    assert [each["name"] for each in shown["parameters"] if each["in"] == "path"] == row.ids
    assert ("requestBody" in shown) is (row.body is not None)
    assert ("security" in shown) is (row.scope is Scope.OPEN)
    assert ("401" in shown["responses"]) is (row.scope is not Scope.OPEN)
    for status, kind in row.answers.items():
        expected = [] if kind is None else kind.types if isinstance(kind, Media) else ["application/json"]
        assert list(shown["responses"][str(status)].get("content", [])) == list(expected)


def test_nothing_else_is_described() -> None:
    shown = {(verb.upper(), path) for path, verbs in DOCUMENT["paths"].items() for verb in verbs}
    assert shown == {(row.verb, row.path) for row in ROUTES}


def test_operations_have_names_of_their_own() -> None:
    names = [operation(row)["operationId"] for row in ROUTES]
    assert len(set(names)) == len(names)


def parts(value: Json) -> Iterator[Json]:
    yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from parts(each)


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    used = {each["$ref"] for each in parts(DOCUMENT) if isinstance(each, dict) and "$ref" in each}
    components = DOCUMENT["components"]
    known = {f"#/components/{kind}/{name}" for kind in ("schemas", "responses") for name in components[kind]}
    assert used <= known
    queries = {row.query.__name__ for row in ROUTES}
    assert {ref.rpartition("/")[2] for ref in known - used} <= queries, "nothing is described that is not used"
    for name, schema in components["schemas"].items():
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
        Draft202012Validator({**schema, "components": components})


def test_members_of_a_query_are_parameters_with_their_bounds() -> None:
    given = {each["name"]: each for each in DOCUMENT["paths"]["/v1/runs"]["get"]["parameters"]}
    assert given.keys() == {"status", "task_id", "label", "q", "limit", "cursor"}
    limit = given["limit"]["schema"]
    assert (limit["minimum"], limit["maximum"], limit["default"]) == (1, 1000, 200)
    assert given["label"]["schema"]["type"] == "array"
    assert given["cursor"]["schema"] == {"type": "string"}
    assert not any(each["required"] for each in given.values())


@pytest.mark.anyio
async def test_the_document_is_served(door: Door) -> None:
    assert await door.ask("GET", "/openapi.json") == json.loads(json.dumps(DOCUMENT))


# -- true of a server -------------------------------------------------------------------------------------------------

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
QUICK = settings(
    max_examples=6, phases=[Phase.generate], deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
"""Cases an operation. All of them together stay within half a minute."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("home")).serving() as server:
        yield server


@pytest.fixture(scope="module")
def known(server: Server) -> dict[str, list[str]]:
    """Things that are there, so that not every id that is tried names nothing."""
    with httpx.Client(base_url=server.url, headers=server.headers(), trust_env=False) as http:
        made = http.post("/v1/blueprints", json=blueprint(step("echo"), id="mine")).json()
        bodies = [launching(assign("$.x", 1)), launching(step("fail")), launching(step("echo"), labels={"a": "b"})]
        runs = [http.post("/v1/tasks", json=body).json() for body in bodies]
        asking = {"kind": "approve", "action": {"op": "lit", "value": 1}, "out": {"op": "path", "at": "$.ok"}}
        waiting = http.post("/v1/tasks", json=launching(asking, detach=True)).json()
        requests: list[Json] = []
        while not requests:
            requests = http.get("/v1/requests?status=open").json()["items"]
        operator = http.post("/v1/operators", json={}).json()
    return {
        "blueprint_id": ["mine"],
        "version": [made["version"]],
        "task_id": [each["task_id"] for each in runs],
        "run_id": [each["run_id"] for each in (*runs, waiting)],
        "session_id": [each["session_id"] for each in runs],
        "request_id": [each["request_id"] for each in requests],
        "sid": [operator["sid"]],
    }


SLOW = {"/v1/operators/{sid}/next": {"wait_secs": 0}, "/v1/sessions/{session_id}/events": {"follow": "false"}}
"""Queries that are overruled, because what they ask for is to be kept waiting."""
LAST_DELETES = sorted(ROUTES, key=lambda row: row.verb == "DELETE")
WAITING = (LaunchBody, RekickBody)


def described(row: Any) -> Any:
    """The operation of a row, as schemathesis reads the document."""
    return schemathesis.openapi.from_dict(dict(DOCUMENT))[row.path][row.verb]


@calls(LAST_DELETES)
def test_sound_requests_are_answered_as_the_document_says(
    row: Any, server: Server, known: dict[str, list[str]]
) -> None:
    turns = itertools.count()

    @seed(5)
    @settings(QUICK)
    @given(case=described(row).as_strategy(generation_mode=GenerationMode.POSITIVE))
    def check(case: schemathesis.Case) -> None:
        turn = next(turns)
        if turn % 3:  # most requests are about something that is there
            case.path_parameters = {name: known[name][turn % len(known[name])] for name in row.ids}
        case.query = {**(case.query or {}), **SLOW.get(row.path, {})}
        if row.body in WAITING and isinstance(case.body, dict) and not case.body.get("detach"):
            case.body["timeout_secs"] = 1
        case.call_and_validate(base_url=server.url, headers=server.headers(), checks=CHECKS, timeout=20)

    check()


@calls([row for row in LAST_DELETES if row.ids or row.body or row.query is not NoQuery])
def test_unsound_requests_are_refused_as_the_document_says(row: Any, server: Server) -> None:
    # `label=false` is counted as a boolean in the place of a text; in a query it is a text.
    takes_texts = any(each["schema"].get("type") == "array" for each in operation(row)["parameters"])

    @seed(5)
    @settings(QUICK)
    @given(case=described(row).as_strategy(generation_mode=GenerationMode.NEGATIVE))
    def check(case: schemathesis.Case) -> None:
        checks = [*CHECKS, *([] if takes_texts else [negative_data_rejection])]
        case.call_and_validate(base_url=server.url, headers=server.headers(), checks=checks, timeout=20)

    check()


@pytest.mark.parametrize("secret", ["", TOKEN])
def test_without_the_token_the_server_tells_nothing(server: Server, secret: str) -> None:
    with httpx.Client(base_url=server.url, trust_env=False) as http:
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        assert http.get("/openapi.json", headers=headers).status_code == 401
        assert http.get("/openapi.json", headers=server.headers()).json()["openapi"] == "3.1.0"


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_for_people_shows_every_route() -> None:
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    assert table() + "\n\n" in page, "write it anew: scripts/http-page"
