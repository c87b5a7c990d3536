"""Agents that a template runs: what the program is given, what its output means, what is left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from engine_kit import Definition, Ledger, perform

from refold.engine.agents import Report, Tools
from refold.engine.secrets import Secrets
from refold.flowir import Blocked, Failed, Pass
from refold.records import Json

pytestmark = pytest.mark.anyio

JSON = {"format": "json"}


def templated(script: str, spec: Json | None = None, **template: Json) -> Definition:
    """An agent whose template runs a shell script."""
    body = {"name": "t", "argv": ["sh", "-c", script, "sh"], **template}
    return Definition("subprocess", {"template": body, **(spec or {})})


async def said(agent: Definition, directive: Json = None, **changes: Any) -> Json:
    """What the agent passes."""
    report = await perform(agent, directive, **changes)
    assert isinstance(report.outcome, Pass), report
    return report.outcome.value


async def refused(agent: Definition, **changes: Any) -> str:
    """The text with which the agent fails."""
    report = await perform(agent, **changes)
    assert isinstance(report.outcome, Failed), report
    return report.outcome.text


# -- what the program is given ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directive", "prompt"), [("a $HOME `id` {model}", "a $HOME `id` {model}"), ({"a": 1}, '{"a":1}')]
)
async def test_the_prompt_goes_in_as_it_is(directive: Json, prompt: str) -> None:
    assert await said(templated('printf "<%s>" "$(cat)"', stdin="{prompt}"), directive) == f"<{prompt}>"
    in_argument = {"argv": ["printf", "<%s>", "{prompt}"]}
    assert await said(templated("", **in_argument), directive) == f"<{prompt}>"
    assert await said(templated('printf "<%s>" "$P"', env={"P": "{prompt}"}), directive) == f"<{prompt}>"


async def test_without_stdin_there_is_nothing_to_read() -> None:
    assert await said(templated("cat; printf end"), "prompt") == "end"


async def test_every_placeholder_has_its_value(tmp_path: Path) -> None:
    spec = {"system": "be brief", "model": "small", "tools_csv": "Read,Grep"}
    words = "{system}|{model}|{tools_csv}|{task_id}|{attempt}|{work_dir}"
    agent = templated("", spec, argv=["printf", "%s", words])
    came = await said(agent, attempt=3, work_dir=str(tmp_path))
    assert came == f"be brief|small|Read,Grep|ST-0123456789abcdef|3|{tmp_path}"


async def test_an_agent_without_a_prompt_or_tools_has_empty_ones() -> None:
    assert await said(templated("", argv=["printf", "<%s>", "{system}{tools_csv}"])) == "<>"


async def test_the_system_prompt_is_in_a_private_file_that_is_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    script = 'stat -c %a "$F"; cat "$F"'
    agent = templated(script, {"system": "be brief\nand kind"}, env={"F": "{system_file}"})
    assert await said(agent) == "600\nbe brief\nand kind"
    assert await refused(templated("true", {"system": "x"}, env={"F": "{system_file}"}, cwd="/nowhere/at/all"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("word", "what"),
    [("model", "profile.model"), ("work_dir", "launch with one"), ("system_file", "profile.system_prompt")],
)
async def test_a_placeholder_without_a_value_fails_before_anything_is_started(word: str, what: str) -> None:
    ledger = Ledger()
    agent = templated("touch started", env={"X": f"{{{word}}}"})
    text = await refused(agent, tools=Tools(reaper=ledger))
    assert f"template 't' cannot be filled in: {{{word}}} is " in text
    assert what in text
    assert ledger.told == []


async def test_it_runs_where_the_runner_says_else_the_template_else_the_launch(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in ("runner", "template", "launch")}
    for folder in folders.values():
        folder.mkdir()
    where = {name: str(folder) for name, folder in folders.items()}
    work = {"work_dir": where["launch"]}
    assert await said(templated("printf %s $PWD"), **work) == where["launch"]
    assert await said(templated("printf %s $PWD", cwd="{work_dir}/../template"), **work) == where["template"]
    own = {"cwd": where["runner"]}
    assert await said(templated("printf %s $PWD", own, cwd=where["template"]), **work) == where["runner"]


async def test_the_attempt_is_told_in_variables_that_a_template_cannot_forge() -> None:
    agent = templated('printf %s "$REFOLD_STEP_ID"', env={"REFOLD_STEP_ID": "forged"})
    assert await said(agent) == "ST-0123456789abcdef"


# -- what its output means --------------------------------------------------------------------------------------------


async def outcome(script: str, **output: Json) -> Any:
    report = await perform(templated(script, output=JSON | output))
    return report.outcome


async def test_declared_json_is_read_by_its_pointers() -> None:
    script = """printf '{"result": [1, 2], "ok": true, "bad": false}'"""
    assert await outcome(script, result_ptr="/result") == Pass([1, 2])
    assert await outcome(script, result_ptr="/result/1", ok_from="/ok") == Pass(2)
    assert await outcome(script, result_ptr="/result", ok_from="/bad") == Blocked([1, 2])
    assert await outcome("printf '[1]'") == Pass([1])


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("printf hello", "declares JSON output"),
        ("printf ''", "declares JSON output"),
        ("""printf '{"a":1}{"a":2}'""", "declares JSON output"),
        ("""printf '{"results": 1}'""", "nothing at /result"),
        ("""printf '{"result": 1, "ok": 1}'""", "number at /ok, expected a boolean"),
    ],
)
async def test_output_that_is_not_what_was_declared_fails(script: str, text: str) -> None:
    came = await outcome(script, result_ptr="/result", ok_from="/ok")
    assert isinstance(came, Failed)
    assert text in came.text


async def test_an_exit_with_an_error_is_a_refusal_whatever_was_printed() -> None:
    came = await outcome("""printf '{"ok": true}'; exit 3""", ok_from="/ok")
    assert came == Blocked({"exit_code": 3, "stdout": '{"ok": true}', "stderr": ""})


async def test_without_a_declared_output_it_prints_its_answer_like_any_program() -> None:
    assert await said(templated("""printf '{"a": [1]}'""")) == {"a": [1]}
    assert await said(templated("echo hello")) == "hello\n"


async def test_bytes_that_are_no_text_are_mended_and_marked() -> None:
    report = await perform(templated(r"""printf '{"a": "\377"}'""", output=JSON))
    assert report == Report(Pass({"a": "\ufffd"}), mended=True)


# -- templates of the server ------------------------------------------------------------------------------------------


async def test_a_template_named_by_name_is_the_servers() -> None:
    templates = {"t": {"name": "t", "argv": ["printf", "%s", "{prompt}"]}}
    tools = Tools(reaper=Ledger(), templates=templates)
    assert await said(Definition("subprocess", {"template": "t"}), "hi", tools=tools) == "hi"


async def test_a_template_that_the_server_does_not_have_fails_and_says_what_to_do() -> None:
    assert "[subprocesses.gone]" in await refused(Definition("subprocess", {"template": "gone"}))


async def test_secrets_of_a_servers_template_are_told_at_dispatch() -> None:
    body = {"name": "t", "argv": ["sh", "-c", "printf %s $KEY"], "env": {"KEY": {"$secret": "K"}}}
    secrets = Secrets(environ={"REFOLD_SECRET_K": "hush"})
    tools = Tools(reaper=Ledger(), templates={"t": body}, secrets=secrets)
    assert await said(Definition("subprocess", {"template": "t"}), tools=tools) == "hush"
