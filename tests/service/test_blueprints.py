"""Registered Blueprints: versions, archive, lint, and what a launch may run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from service_kit import Crew, House, Line, Refused, ended, everything, flow, launch, path, result, seq, step, uuid7

from refold.canonical import digest
from refold.engine.agents import Report
from refold.errors import BlueprintInvalid, Conflict, InvalidJson, InvalidRequest, NotFound, Unprocessable
from refold.flowir import Pass, Skip
from refold.flowir.templates import check_templates
from refold.records import RunStatus
from refold.service.app import App
from refold.service.reruns import RerunFrom
from refold.service.tasks import NewTask

Json = Any

pytestmark = pytest.mark.anyio


def mine(word: Json) -> Json:
    return flow(step("a", word), id="mine")


def by_id(**more: Json) -> NewTask:
    return NewTask(blueprint={"kind": "id", "id": "mine", **more})


@pytest.fixture
async def app(house: House, crew: Crew) -> App:
    return await house.open()


# -- versions ---------------------------------------------------------------------------------------------------------


async def test_the_newest_version_is_the_head_and_all_are_kept(app: App) -> None:
    first = await app.blueprints.add(mine("one"))
    second = await app.blueprints.add(mine("two"))
    assert first.version == digest(mine("one"))
    assert await app.blueprints.head("mine") == second
    assert await app.blueprints.version("mine", first.version) == first
    assert await app.blueprints.versions("mine", 10) == [second, first]
    assert await app.blueprints.versions("mine", 1) == [second]
    assert await app.blueprints.versions("mine", 10, second.n) == [first]


async def test_what_is_the_head_stays_it_and_what_was_it_can_be_again(app: App) -> None:
    first = await app.blueprints.add(mine("one"))
    assert await app.blueprints.add(mine("one")) == first
    second = await app.blueprints.add(mine("two"))
    again = await app.blueprints.add(mine("one"))
    assert (again.version, again.n > second.n) == (first.version, True)
    assert [row.version for row in await app.blueprints.versions("mine", 10)] == [
        first.version,
        second.version,
        first.version,
    ]


async def test_equal_bodies_have_one_version_however_they_are_written(app: App) -> None:
    first = await app.blueprints.add(mine("one"))
    shuffled = dict(reversed(mine("one").items()))
    assert await app.blueprints.add(shuffled) == first


async def test_what_is_not_there_is_not_found(app: App) -> None:
    await app.blueprints.add(mine("one"))
    asked = app.blueprints
    for reading in (
        asked.head("gone"),
        asked.versions("gone", 10),
        asked.version("gone", "0" * 64),
        asked.version("mine", "0" * 64),
        asked.archive("gone"),
        asked.unarchive("gone"),
        app.tasks.launch(by_id(version="0" * 64)),
    ):
        with pytest.raises(NotFound) as caught:
            await reading
        assert caught.value.kind == "blueprint_not_found"


async def test_a_faulty_blueprint_or_id_registers_nothing(app: App) -> None:
    before = await everything(app)
    for value, at in ((mine("one") | {"flow": 5}, "$.flow"), (mine("one") | {"id": "a/b"}, "$.id")):
        with pytest.raises(BlueprintInvalid) as caught:
            await app.blueprints.add(value)
        assert [fault["path"] for fault in caught.value.data["faults"]] == [at]
    assert await everything(app) == before


async def test_a_reference_of_another_shape_is_refused(app: App) -> None:
    for reference in ({"kind": "id"}, {"kind": "id", "id": "mine", "x": 1}, {"kind": "git"}, 5):
        with pytest.raises(InvalidRequest):
            await app.tasks.launch(NewTask(blueprint=reference))


# -- archive ----------------------------------------------------------------------------------------------------------


async def refused_as_archived(acting: Any) -> None:
    with pytest.raises(Conflict) as caught:
        await acting
    assert (caught.value.kind, caught.value.data) == ("blueprint_archived", {"id": "mine"})
    assert "unarchive mine" in caught.value.message


async def test_an_archived_blueprint_takes_no_versions_and_no_launches(app: App) -> None:
    first = await app.blueprints.add(mine("one"))
    task = await ended(app, await app.tasks.launch(by_id()))
    archived = await app.blueprints.archive("mine")
    assert archived.archived_at is not None
    before = await everything(app)
    for acting in (
        app.blueprints.add(mine("two")),
        app.blueprints.add(mine("one")),
        app.tasks.launch(by_id()),
        app.tasks.launch(by_id(version=first.version)),
        app.tasks.rekick(task.task_id),
        app.reruns.rerun(task.run_id, RerunFrom(from_step="a", blueprint="head")),
    ):
        await refused_as_archived(acting)
    assert await everything(app) == before


async def test_an_archived_blueprint_is_in_no_list_but_can_still_be_read(app: App) -> None:
    first, other = await app.blueprints.add(mine("one")), await app.blueprints.add(flow(id="other"))
    archived = await app.blueprints.archive("mine")
    assert await app.blueprints.heads() == [other]
    assert await app.blueprints.heads(archived=True) == [archived, other]
    assert await app.blueprints.head("mine") == archived
    assert (await app.blueprints.version("mine", first.version)).body_json == first.body_json


async def test_twice_is_once_and_back_again(app: App) -> None:
    await app.blueprints.add(mine("one"))
    assert await app.blueprints.archive("mine") == await app.blueprints.archive("mine")
    back = await app.blueprints.unarchive("mine")
    assert (back.archived_at, await app.blueprints.unarchive("mine")) == (None, back)
    assert (await ended(app, await app.tasks.launch(by_id()))).status == RunStatus.DONE


async def test_runs_that_have_it_go_on_and_are_resumed(house: House, app: App, crew: Crew) -> None:
    await app.blueprints.add(mine("one"))
    crew.hold("a")
    run = await app.tasks.launch(by_id())
    await crew.begun("a")
    queued = await app.tasks.rekick(run.task_id)
    await app.blueprints.archive("mine")
    app = await house.reboot(app)
    await app.runs.resume(run.run_id)
    crew.free("a")
    assert result(await ended(app, run)) == {"a": {"by": "a", "got": "one"}}
    assert (await ended(app, queued)).status == RunStatus.DONE
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="a", blueprint="pinned"))
    assert (await ended(app, run)).status == RunStatus.DONE


async def test_it_becomes_the_model_of_no_new_session(app: App) -> None:
    await app.blueprints.add(mine("one"))
    async with Line(app) as line:
        command = uuid7()
        started = await line.command("session/start", modelId="mine", commandId=command)
        session_id = started["session"]["sessionId"]
        await app.blueprints.archive("mine")
        for acting in (line.command("session/start", modelId="mine"), line.turn(session_id)):
            with pytest.raises(Refused) as caught:
                await acting
            assert (caught.value.kind, caught.value.data["reason"]) == ("commandRejected", "blueprint_archived")
        assert (await line.call("model/list"))["models"] == []
        again = await line.command("session/start", modelId="mine", commandId=command)
        assert again["session"]["sessionId"] == session_id, "a command that was applied is answered the same for ever"
        await app.blueprints.unarchive("mine")
        turn = await line.turn(session_id)
        assert (await line.turn_ended(turn["turnId"]))["terminal"] == "completed"


async def test_of_racing_registrations_and_an_archive_nothing_is_lost(app: App) -> None:
    await app.blueprints.add(mine("zero"))
    words = ["one", "two", "three"]
    acts = [*(app.blueprints.add(mine(word)) for word in words), app.blueprints.archive("mine")]
    came = await asyncio.gather(*acts, return_exceptions=True)
    added = {row.version for row in came[:-1] if not isinstance(row, BaseException)}
    assert all(isinstance(row, Conflict) for row in came[:-1] if isinstance(row, BaseException))
    rows = await app.blueprints.versions("mine", 10)
    assert added <= {row.version for row in rows}
    assert [row.archived_at is not None for row in rows] == [True] + [False] * (len(rows) - 1)


# -- lint -------------------------------------------------------------------------------------------------------------


async def test_lint_tells_faults_and_warnings_and_registers_nothing(house: House, app: App) -> None:
    before = await everything(app)
    found = app.blueprints.lint({"id": "b", "flow": {"kind": "sq"}})
    assert [(fault["path"], fault["hint"]) for fault in found.faults] == [("$.flow.kind", "did you mean 'seq'?")]
    assert app.blueprints.lint(5).faults
    program = mine("one") | {"agents": [{"name": "a", "kind": "subprocess", "spec": {"program": "true"}}]}
    found = app.blueprints.lint(program)
    assert found.faults == ()
    assert [(each["path"], each["kind"]) for each in found.warnings] == [("$.agents[0]", "program_not_allowed")]
    assert "--subprocess any" in found.warnings[0]["hint"]
    assert await everything(app) == before


# -- references -------------------------------------------------------------------------------------------------------


async def test_the_expanded_body_is_what_is_stored_hashed_and_run(house: House, crew: Crew, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "word.txt").write_text("from a file")
    app = await house.open(blueprint_roots=(root,))
    referring = mine("") | {"flow": seq(step("a", {"op": "lit", "value": {"$file": "word.txt"}}))}
    expanded = mine("from a file")
    assert (await app.blueprints.add(referring)).version == digest(expanded)
    run = await launch(app, referring)
    assert result(await ended(app, run)) == {"a": {"by": "a", "got": "from a file"}}
    (root / "word.txt").write_text("changed since")
    again = await app.tasks.rekick(run.task_id)
    assert result(await ended(app, again)) == {"a": {"by": "a", "got": "from a file"}}
    (root / "word.txt").unlink()
    with pytest.raises(BlueprintInvalid):
        await app.blueprints.add(referring)
    assert [fault["kind"] for fault in app.blueprints.lint(referring).faults] == ["reference_not_found"]


async def test_without_roots_a_reference_is_refused_and_nothing_is_made(app: App) -> None:
    before = await everything(app)
    with pytest.raises(BlueprintInvalid):
        await launch(app, mine("") | {"default_init_ctx": {"$file": "word.txt"}})
    assert await everything(app) == before


# -- what may run -----------------------------------------------------------------------------------------------------

TEMPLATES = {"say": check_templates({"say": {"argv": ["printf", "%s", "{prompt}"]}})[0]}
BARE = {"name": "a", "kind": "subprocess", "spec": {"program": "true"}}
BY_NAME = {"name": "a", "kind": "subprocess", "spec": {}, "runner": {"backend": "subprocess", "template": "say"}}
UNKNOWN = BY_NAME | {"runner": {"backend": "subprocess", "template": "gone"}}


def with_agent(agent: Json, **more: Json) -> Json:
    return mine("hi") | {"agents": [agent], **more}


@pytest.mark.parametrize(
    ("mode", "value", "kind"),
    [
        ("declared", with_agent(BARE), "program_not_allowed"),
        ("declared", with_agent(BY_NAME, subprocesses=[TEMPLATES["say"]]), "program_not_allowed"),
        ("declared", with_agent(UNKNOWN), "template_not_declared"),
        ("any", with_agent(UNKNOWN), "template_not_declared"),
        ("off", with_agent(BARE), "program_not_allowed"),
        ("off", with_agent(BY_NAME), "program_not_allowed"),
    ],
)
async def test_what_a_server_does_not_allow_is_refused_at_every_door(
    mode: str, value: Json, kind: str, house: House, crew: Crew
) -> None:
    app = await house.open(subprocess=mode, templates=TEMPLATES)
    await app.blueprints.add(value)
    before = await everything(app)
    for reference in ({"kind": "inline", "value": value}, {"kind": "id", "id": "mine"}):
        with pytest.raises(Unprocessable) as caught:
            await app.tasks.launch(NewTask(blueprint=reference))
        assert (caught.value.kind, caught.value.data) == (kind, {"agents": ["a"]})
    assert await everything(app) == before
    assert [each["kind"] for each in app.blueprints.lint(value).warnings] == [kind]
    async with Line(app) as line:
        session_id = await line.start("mine")
        with pytest.raises(Refused) as refused:
            await line.turn(session_id)
        assert refused.value.data["reason"] == kind


@pytest.mark.parametrize(
    ("mode", "value"),
    [
        ("declared", with_agent(BY_NAME)),
        ("any", with_agent(BY_NAME)),
        ("any", with_agent(BARE)),
        ("any", with_agent(UNKNOWN, subprocesses=[TEMPLATES["say"] | {"name": "gone"}])),
    ],
)
async def test_what_a_server_allows_has_no_warnings(mode: str, value: Json, house: House, crew: Crew) -> None:
    app = await house.open(subprocess=mode, templates=TEMPLATES)
    assert app.blueprints.lint(value).warnings == ()
    app.blueprints.programs.check((await app.blueprints.resolve({"kind": "inline", "value": value})).blueprint)


# -- the folders of a launch ------------------------------------------------------------------------------------------


async def test_every_run_of_a_task_hands_its_folders_to_its_agents(house: House, app: App, crew: Crew) -> None:
    reference = {"kind": "inline", "value": mine("one")}
    run = await ended(app, await app.tasks.launch(NewTask(blueprint=reference, work_dir="/w", project_root="/p")))
    app = await house.reboot(app)
    await ended(app, await app.tasks.rekick(run.task_id))
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="a"))
    await ended(app, run)
    assert [(work.work_dir, work.project_root) for work in crew.of("a")] == [("/w", "/p")] * 3


async def test_a_strict_blueprint_insists_on_a_folder(app: App) -> None:
    strict = {"kind": "inline", "value": mine("one") | {"check_policy": "strict"}}
    with pytest.raises(Unprocessable) as caught:
        await app.tasks.launch(NewTask(blueprint=strict))
    assert caught.value.kind == "work_dir_required"
    for folder in ({"work_dir": "/w"}, {"project_root": "/p"}):
        run = await app.tasks.launch(NewTask(blueprint=strict, **folder))
        assert (await ended(app, run)).status == RunStatus.DONE


# -- verdicts ---------------------------------------------------------------------------------------------------------


async def test_a_pass_that_breaks_its_contract_is_a_failure_and_is_not_logged(app: App, crew: Crew) -> None:
    crew.acts["a"] = lambda work: Report(Pass(work.directive))
    guarded = {
        "kind": "try",
        "body": step("a", path("$.say")),
        "catch": seq(),
        "err_at": path("$.err"),
    }
    value = mine("") | {"flow": guarded}
    value["agents"][0] |= {"verdict": {"channel": "body", "values": ["PASS", "BLOCKED"]}}
    kept = await ended(app, await launch(app, value, say="PASS"))
    assert result(kept) == {"say": "PASS", "a": "PASS"}
    broken = await ended(app, await launch(app, value, say="PAS"))
    said = result(broken)
    assert 'verdict contract: expected one of PASS, BLOCKED in the body, got "PAS"' in said["err"]
    assert "a" not in said
    assert [len(await app.runs.replay(run.run_id)) for run in (kept, broken)] == [1, 0]


async def test_a_refusal_needs_no_verdict(app: App, crew: Crew) -> None:
    crew.acts["a"] = lambda work: Report(Skip("not today"))
    value = mine("x")
    value["agents"][0] |= {"verdict": {"channel": "body", "values": ["PASS"]}}
    assert (await ended(app, await launch(app, value))).status == RunStatus.DONE


@pytest.mark.parametrize(
    "given",
    [
        lambda: NewTask(blueprint={"kind": "inline", "value": mine(float("nan"))}),
        lambda: NewTask(blueprint={"kind": "inline", "value": mine([{"x": [UUID(int=1)]}])}),
        lambda: NewTask(blueprint={"kind": "inline", "value": mine("one")}, init_ctx={"x": float("inf")}),
        lambda: NewTask(blueprint={"kind": "inline", "value": mine("one")}, labels={"x": "\ud800"}),
        lambda: NewTask(blueprint={"kind": "inline", "value": mine("one")}, ttl_secs=float("nan")),
    ],
    ids=["its body", "its body within", "its ctx", "its labels", "its ttl"],
)
async def test_what_no_json_can_say_is_not_launched_as_null(app: App, given: Callable[[], NewTask]) -> None:
    """Also where the body that it would be taken for is known: orjson says null for NaN, and a text for a UUID."""
    for value in (mine("one"), mine(None), mine([{"x": [str(UUID(int=1))]}])):
        await ended(app, await app.tasks.launch(NewTask(blueprint={"kind": "inline", "value": value})))
    before = await everything(app)
    with pytest.raises(InvalidJson):
        await app.tasks.launch(given())
    assert await everything(app) == before


async def test_what_no_json_can_say_overrides_nothing(app: App) -> None:
    task = await ended(app, await app.tasks.launch(NewTask(blueprint={"kind": "inline", "value": mine("one")})))
    before = await everything(app)
    with pytest.raises(InvalidJson):
        await app.tasks.rekick(task.task_id, {"x": float("nan")})
    assert await everything(app) == before
