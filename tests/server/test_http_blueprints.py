"""Blueprints over HTTP: the routes, their statuses and shapes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from refold.errors import ConfigInvalid
from refold.flowir.build import assign, blueprint
from refold.server.config import Config, Home
from refold.server.http import http_app
from refold.server.rpc import Rpc
from refold.server.settings import settings
from refold.service.app import App, Settings

Json = Any

pytestmark = pytest.mark.anyio

HOST, TOKEN = "127.0.0.1:7777", "token"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a door that opens on an empty store."""
    app = await App.open(Settings())
    door = http_app(app, Rpc(app, "/home"), TOKEN, [HOST])
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(door), base_url=f"http://{HOST}", headers=headers
    ) as client:
        yield client
    await app.close()


def mine(word: str) -> Json:
    return blueprint("mine", assign("$.word", word))


async def ask(http: httpx.AsyncClient, verb: str, path: str, body: Json = None, status: int = 200) -> Json:
    answer = await http.request(verb, f"/v1/blueprints{path}", **({} if body is None else {"json": body}))
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_a_blueprint_is_registered_with_or_without_its_id_in_the_path(http: httpx.AsyncClient) -> None:
    first = await ask(http, "POST", "", mine("one"), 201)
    assert await ask(http, "POST", "/mine", mine("one"), 201) == first
    assert first.keys() == {"id", "version", "created_at", "archived_at"}
    refused = await ask(http, "POST", "/other", mine("two"), 400)
    assert (refused["kind"], refused["member"]) == ("invalid_request", "id")
    assert (await ask(http, "POST", "/other", 5, 400))["kind"] == "invalid_request"
    assert await ask(http, "GET", "/mine") == first | {"value": mine("one")}


async def test_versions_are_listed_page_by_page_and_can_be_read(http: httpx.AsyncClient) -> None:
    made = [await ask(http, "POST", "", mine(word), 201) for word in ("one", "two", "three")]
    assert await ask(http, "GET", "") == {"items": [made[2]], "next_cursor": None}
    page = await ask(http, "GET", "/mine/versions?limit=2")
    rest = await ask(http, "GET", f"/mine/versions?limit=2&cursor={page['next_cursor']}")
    assert [*page["items"], *rest["items"]] == made[::-1]
    assert rest["next_cursor"] is None
    old = await ask(http, "GET", f"/mine/versions/{made[0]['version']}")
    assert old == made[0] | {"value": mine("one")}
    for path in (f"/mine/versions/{'0' * 64}", "/gone/versions", "/gone", "/gone/versions/x"):
        assert (await ask(http, "GET", path, status=404))["kind"] == "blueprint_not_found"


async def test_archive_and_back(http: httpx.AsyncClient) -> None:
    made = await ask(http, "POST", "", mine("one"), 201)
    archived = await ask(http, "POST", "/mine/archive")
    assert archived["archived_at"] is not None
    assert archived == made | {"archived_at": archived["archived_at"]}
    assert (await ask(http, "GET", ""))["items"] == []
    assert (await ask(http, "GET", "?archived=true"))["items"] == [archived]
    launch = await http.post("/v1/tasks", json={"blueprint": {"kind": "id", "id": "mine"}})
    assert (launch.status_code, launch.json()["kind"], launch.json()["id"]) == (409, "blueprint_archived", "mine")
    assert (await ask(http, "POST", "/mine", mine("two"), 409))["kind"] == "blueprint_archived"
    assert await ask(http, "POST", "/mine/unarchive") == made
    launch = await http.post("/v1/tasks", json={"blueprint": {"kind": "id", "id": "mine"}})
    assert (launch.status_code, launch.json()["final_ctx"]) == (200, {"word": "one"})
    for verb in ("archive", "unarchive"):
        assert (await ask(http, "POST", f"/gone/{verb}", status=404))["kind"] == "blueprint_not_found"


async def test_lint_answers_200_whatever_it_finds(http: httpx.AsyncClient) -> None:
    assert await ask(http, "POST", "/lint", mine("one")) == {"ok": True, "faults": [], "warnings": []}
    found = await ask(http, "POST", "/lint", mine("one") | {"flow": {"kind": "seqq"}})
    (fault,) = found["faults"]
    assert (found["ok"], fault["path"], fault["kind"]) == (False, "$.flow.kind", "unknown_kind")
    assert fault.keys() == {"path", "kind", "message", "hint"}
    referring = await ask(http, "POST", "/lint", mine({"$file": "/etc/hostname"}))
    assert [fault["kind"] for fault in referring["faults"]] == ["reference_refused"]
    assert (await ask(http, "GET", ""))["items"] == []


async def test_a_faulty_blueprint_is_refused_with_every_fault(http: httpx.AsyncClient) -> None:
    refused = await ask(http, "POST", "", {"id": "mine", "flow": {"kind": "x"}, "more": 1}, 422)
    assert refused["kind"] == "blueprint_invalid"
    assert [fault["path"] for fault in refused["faults"]] == ["$.more", "$.flow.kind"]


async def test_the_folders_of_a_launch_are_shown_by_its_task(http: httpx.AsyncClient) -> None:
    ask = {"blueprint": {"kind": "inline", "value": mine("one")}, "work_dir": "/w", "project_root": "/p"}
    launched = (await http.post("/v1/tasks", json=ask)).json()
    task = (await http.get(f"/v1/tasks/{launched['task_id']}")).json()
    assert (task["work_dir"], task["project_root"]) == ("/w", "/p")


# -- what the configuration says of them ------------------------------------------------------------------------------


def test_roots_and_templates_of_the_configuration_reach_the_app(tmp_path: Path) -> None:
    told = settings(
        Config(blueprint_roots=[str(tmp_path)], subprocesses={"say": {"argv": ["true"]}}), Home(tmp_path / "home")
    )
    assert told.blueprint_roots == (tmp_path,)
    assert told.templates == {"say": {"name": "say", "argv": ["true"]}}


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"blueprint_roots": ["/no/such/folder"]}, "blueprint_roots: /no/such/folder is no folder"),
        ({"subprocesses": {"say": {"argv": ["x"], "stdin": "{y}"}}}, r"\$\.subprocesses\.say\.stdin"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused_at_start(config: Json, text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match=text):
        settings(Config(**config), Home(tmp_path))
