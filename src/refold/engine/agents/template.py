"""Agents of the kind `subprocess` that a template runs: its placeholders are filled in for each attempt.

| what the program does | outcome |
|---|---|
| exits 0, no `output` declared | as any program: Pass of its stdout |
| exits 0, `output` declared | Pass of what `result_ptr` leads to; Blocked with it if `ok_from` leads to false |
| exits 0, and what it printed is no JSON, or a pointer leads nowhere | Failed |
| exits otherwise, cannot be started, prints too much | as any program |

It runs in the `cwd` of the runner, else of the template, else in the work_dir of the launch. The system prompt is
passed on as it is written: it is no template itself. Source of the rule: mse 3.4.
Not here: what a template is, and how it is filled in (`flowir.templates`).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Mapping
from typing import Final

import msgspec

from refold.canonical import decode_strict, encode
from refold.engine.agents.base import Assignment, Report, Tools
from refold.engine.agents.output import decoded, printed
from refold.engine.agents.subprocess import run
from refold.errors import FlowError, InvalidJson
from refold.flowir import Failed
from refold.flowir.templates import Output, Template, answer, fill, placeholders
from refold.records import Json

_OWN: Final = ("system", "model", "tools_csv")
"""The placeholders whose values are the agent's own."""
_EMPTY: Final = {"system": "", "tools_csv": ""}
"""Those of them that may be empty: an agent without tools has no tools, but one without a model has not said which."""


class TemplateAgent:
    """Runs `template` once per attempt; `spec` is what `flowir.runners` made of the agent."""

    def __init__(self, spec: Mapping[str, Json], template: Template, tools: Tools) -> None:
        cwd = spec.get("cwd") or template.cwd
        self._template = msgspec.structs.replace(template, cwd=cwd)
        self._own = _EMPTY | {name: spec[name] for name in _OWN if name in spec}
        self._tools = tools

    async def perform(self, work: Assignment) -> Report:
        """Fills the template in, runs it to its end and reports what that means."""
        with contextlib.ExitStack() as files:
            values = self._own | _of_attempt(work)
            if self._own["system"] and "system_file" in placeholders(self._template):
                values["system_file"] = files.enter_context(_file(self._own["system"]))
            try:
                filled = fill(self._template, values)
            except FlowError as error:
                return Report(Failed(error.message))
            return await run(
                work,
                self._tools,
                filled.argv,
                stdin=filled.stdin,
                env=filled.env,
                cwd=filled.cwd or work.work_dir,
                read=lambda data: _read(filled.output, data),
            )


def _of_attempt(work: Assignment) -> dict[str, str]:
    values = {
        "prompt": work.directive if isinstance(work.directive, str) else encode(work.directive),
        "task_id": work.step_id,
        "attempt": str(work.attempt),
    }
    return values if work.work_dir is None else values | {"work_dir": work.work_dir}


@contextlib.contextmanager
def _file(text: str) -> Generator[str]:
    """The name of a private file with `text`, which is gone after the attempt."""
    with tempfile.NamedTemporaryFile(prefix="refold-system-", suffix=".md") as file:
        file.write(text.encode())
        file.flush()
        yield file.name


def _read(output: Output | None, data: bytes) -> Report:
    if output is None:
        return printed(data)
    text, mended = decoded(data)
    try:
        return Report(answer(output, decode_strict(text)), mended)
    except InvalidJson as error:
        return Report(Failed(f"the template declares JSON output: {error.message}"), mended)
    except FlowError as error:
        return Report(Failed(error.message), mended)
