"""Writing, looking at, registering and running Blueprint files from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.cli.main import run

Json = Any
Cli = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.e2e


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs a command in a folder of its own, with a home of its own: exit code, stdout, stderr."""
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*tokens: str) -> tuple[int, str, str]:
        code = run(tokens)
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


def test_a_new_blueprint_has_no_faults_and_runs(cli: Cli) -> None:
    code, said, talk = cli("new", "hello")
    assert (code, said) == (0, "hello.blueprint.json\n")
    assert "refold run hello.blueprint.json" in talk
    code, found, _ = cli("lint", "hello.blueprint.json", "--json")
    assert (code, json.loads(found)) == (0, {"ok": True, "faults": [], "warnings": []})
    code, said, _ = cli("run", "hello.blueprint.json", "--ctx", '{"names": ["Ada", "Grace"]}')
    assert (code, json.loads(said)["output"]) == (0, {"said": ["Ada", "Grace"], "count": 2})


def test_a_file_that_is_there_is_left_as_it_is(cli: Cli) -> None:
    Path("hello.blueprint.json").write_text("mine")
    code, _, talk = cli("new", "hello")
    assert (code, Path("hello.blueprint.json").read_text()) == (6, "mine")
    assert "hello.blueprint.json is there already" in talk
    assert cli("new", "no name")[0] == 2
    assert cli("new", "x", "--folder", "gone")[0] == 2


def test_lint_tells_every_fault_with_its_place_and_what_to_do(cli: Cli) -> None:
    Path("bad.json").write_text(
        json.dumps({"id": "b", "flow": {"kind": "asign"}, "agents": [{"$agent_md": "gone.md"}]})
    )
    code, said, talk = cli("lint", "bad.json")
    assert (code, said) == (2, f"fault $.agents[0].$agent_md: there is no file 'gone.md' beneath {Path().absolute()}\n")
    assert "1 faults" in talk
    Path("gone.md").write_text("---\nname: a\n---\n")
    code, said, _ = cli("lint", "bad.json")
    assert code == 2
    assert "fault $.flow.kind: unknown kind 'asign' (did you mean 'assign'?)\n" in said
    assert cli("lint", "nothing.json")[0] == 2
    Path("bad.json").write_text("{")
    assert cli("lint", "bad.json")[0] == 2
    assert not Path("../home/store").exists(), "lint needs no store"


def test_lint_knows_the_templates_of_the_configuration(cli: Cli) -> None:
    agent = {"name": "a", "kind": "subprocess", "spec": {}, "runner": {"backend": "subprocess", "template": "say"}}
    flow = {"kind": "step", "ref": "a", "in": {"op": "lit", "value": "hi"}, "out": {"op": "path", "at": "$.said"}}
    Path("say.json").write_text(json.dumps({"id": "say", "flow": flow, "agents": [agent]}))
    code, said, _ = cli("lint", "say.json")
    assert code == 0
    assert "warning $.agents[0]: agents a name templates that are declared nowhere" in said
    Path("../home").mkdir(exist_ok=True)
    Path("../home/config.toml").write_text('[subprocesses.say]\nargv = ["printf", "%s!", "{prompt}"]\n')
    assert cli("lint", "say.json")[:2] == (0, "")
    code, said, _ = cli("run", "say.json")
    assert (code, json.loads(said)) == (0, {"said": "hi!"})
    Path("../home/config.toml").write_text("[subprocesses.say]\nargv = []\n")
    code, _, talk = cli("run", "say.json")
    assert code == 2
    assert "$.subprocesses.say.argv" in talk


def test_what_a_file_refers_to_is_registered_and_run_with_it(cli: Cli) -> None:
    Path("sub").mkdir()
    Path("sub/word.txt").write_text("from a file")
    flow = {
        "kind": "assign",
        "at": {"op": "path", "at": "$.word"},
        "value": {"op": "lit", "value": {"$file": "word.txt"}},
    }
    Path("sub/mine.json").write_text(json.dumps({"id": "mine", "flow": flow}))
    code, said, _ = cli("run", "sub/mine.json")
    assert (code, json.loads(said)) == (0, {"word": "from a file"})
    assert cli("blueprint", "add", "sub/mine.json")[0] == 0
    Path("sub/word.txt").unlink()
    code, said, _ = cli("run", "mine")
    assert (code, json.loads(said)) == (0, {"word": "from a file"})
    code, _, talk = cli("blueprint", "add", "sub/mine.json")
    assert code == 2
    assert "$.flow.value.value.$file: there is no file 'word.txt'" in talk


def test_a_registered_blueprint_from_its_first_version_to_the_archive(cli: Cli) -> None:
    cli("new", "hello")
    _, said, _ = cli("blueprint", "add", "hello.blueprint.json", "--json")
    first = json.loads(said)
    body = json.loads(Path("hello.blueprint.json").read_text()) | {"default_init_ctx": {"names": []}}
    Path("hello.blueprint.json").write_text(json.dumps(body))
    cli("blueprint", "add", "hello.blueprint.json")
    _, said, _ = cli("blueprint", "versions", "hello", "--json")
    listed = json.loads(said)["items"]
    assert listed[1] == first
    assert json.loads(cli("blueprint", "show", "hello")[1])["value"] == body
    shown = json.loads(cli("blueprint", "show", "hello", "--version", first["version"])[1])
    assert shown["value"]["default_init_ctx"] == {"names": ["World"]}
    assert cli("blueprint", "archive", "hello")[0] == 0
    assert cli("blueprint", "ls")[1] == ""
    assert cli("blueprint", "ls", "--archived")[1].endswith(" archived\n")
    assert cli("run", "hello")[0] == 6
    assert cli("blueprint", "add", "hello.blueprint.json")[0] == 6
    assert cli("blueprint", "unarchive", "hello")[0] == 0
    assert cli("run", "hello")[0] == 0
    assert cli("blueprint", "show", "gone")[0] == 5
