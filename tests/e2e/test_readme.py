"""The README and the examples say what is there."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from refold.cli.main import app
from refold.flowir import parse_blueprint
from refold.service.references import References

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = sorted((ROOT / "examples").glob("*.blueprint.json"))


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"`refold (\w+)|(?:^\$ |\$\()refold (\w+)", README, re.MULTILINE))
    commands = {first or second for first, second in named}
    assert {"run", "resume", "msp"} <= commands
    assert commands <= {name for name in app if not name.startswith("-")}


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/test", "scripts/venv", ".ci/run"])
def test_scripts_can_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_examples_have_no_faults(example: Path) -> None:
    parse_blueprint(References((example.parent,)).expand(json.loads(example.read_text())))


def test_the_flow_of_the_readme_has_no_faults() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", README, re.DOTALL)
    parse_blueprint(json.loads(block))
