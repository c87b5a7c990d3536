"""Our own samples: each runs and gives what it says, and each is ready to be registered.

And the published kinds that refold does not have: a Blueprint that names one is refused with a reason, not half run.
"""

from __future__ import annotations

import runpy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from service_kit import ended, result

from refold.cli.files import read_blueprint, read_json
from refold.flowir.agents import FOREIGN_KINDS, KINDS
from refold.flowir.lint import lint
from refold.service.app import App, Settings
from refold.service.programs import Programs
from refold.service.tasks import NewTask

Json = Any

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.blueprint.json"))

EXPECTED: dict[str, Json] = {
    "arithmetic": {"until": 5, "turns": 5, "sum": 10, "output": "much"},
    "fallback": {
        "input": "hello",
        "problem": "dispatcher error for ref 'fragile': dispatcher error for ref 'fragile': out of order",
        "answer": "hello",
        "patient": "hello",
        "output": "hello",
    },
    "fan-out": {
        "targets": ["core", "server", "cli"],
        "reports": [
            {"by": "baseline-identity", "agent": "check", "echoed": each} for each in ("core", "server", "cli")
        ],
        "asked": {"of": "reports"},
        "output": 3,
    },
    "first-of-many": {
        "sources": ["broken", "mirror"],
        "won": {"sources": ["broken", "mirror"], "source": "mirror", "answer": "mirror"},
        "output": "mirror",
    },
    "pause": {"before": True, "output": "waited"},
    "review-loop": {"verdict": "PASS", "opinion": "PASS", "rounds": 2, "draft": "a draft", "output": "a draft"},
    "template": {
        "text": "the harbour at dawn\n",
        "summary": {"said": "You say in one line what a text is about.", "task": "the harbour at dawn", "ok": True},
        "output": "You say in one line what a text is about.",
    },
}


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[App]:
    app = await App.open(Settings(subprocess="any"))
    yield app
    await app.close()


@pytest.mark.parametrize("name", EXPECTED)
async def test_an_example_gives_what_it_says(name: str, app: App) -> None:
    value = read_blueprint(EXAMPLES / f"{name}.blueprint.json")
    assert value["id"] == name
    run = await ended(app, await app.tasks.launch(NewTask(blueprint={"kind": "inline", "value": value})))
    assert result(run) == EXPECTED[name]


@pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
def test_an_example_has_no_faults_and_no_warnings(file: Path) -> None:
    found = lint(read_blueprint(file))
    assert found.blueprint is not None, found.faults
    assert (found.warnings, Programs("any", {}).warnings(found.blueprint)) == ((), [])
    assert file.name == f"{found.blueprint.id}.blueprint.json"


def test_the_example_in_python_builds_the_example_in_json() -> None:
    built = runpy.run_path(str(EXAMPLES / "review_loop.py"))["review_loop"]()
    assert built == read_json(EXAMPLES / "review-loop.blueprint.json")


@pytest.mark.parametrize("kind", sorted(FOREIGN_KINDS))
def test_a_published_kind_that_refold_does_not_have_says_so_and_what_there_is(kind: str) -> None:
    agent = {"name": "a", "kind": kind, "spec": {"source": "return 1"}}
    (fault,) = lint({"id": "b", "flow": {"kind": "seq", "children": []}, "agents": [agent]}).faults
    assert (fault["path"], fault["kind"]) == ("$.agents[0].kind", "agent_kind_unsupported")
    assert fault["message"] == f"agent kind '{kind}' is not supported here"
    assert all(known in fault["hint"] for known in KINDS)
