"""Subprocess templates: a program with placeholders, declared once and named by the runners of agents.

    {"name", "argv": [at least one], "stdin"?, "env"?: {}, "cwd"?,
     "output"?: {"format": "json", "result_ptr"?, "ok_from"?}}

Placeholders are a closed set, and filling them is pure substitution in one pass: a prompt that holds the text `{model}`
keeps it, and no value is ever read by a shell unless the template's author wrote one. A word in braces that is no
placeholder is a fault (`{promt}` would reach the program as it is); `{"a"`, `{1}` and `{ x }` are text.

Not here: starting the program (`engine.agents.template`), which runner an agent has (`runners`). Source of the rule:
mse 3.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from refold.canonical import encode, type_name
from refold.errors import FlowError
from refold.flowir.ir import Shape
from refold.flowir.messages import Blocked, Outcome, Pass
from refold.flowir.reading import (
    At,
    Fields,
    Reader,
    Reading,
    argument,
    choice,
    hint_for,
    mapping,
    may,
    members,
    name,
    need,
    obj,
    text,
    wrong_type,
)

Json = Any

PLACEHOLDERS: Final[Mapping[str, str]] = {
    "system": "the agent's system prompt",
    "system_file": "a file with the system prompt; give the agent profile.system_prompt",
    "prompt": "the directive as text",
    "model": "the agent's model; give it profile.model or runner.overrides.model",
    "tools_csv": "the agent's tools, with commas between",
    "work_dir": "the work_dir of the launch; launch with one",
    "task_id": "the step's id, as the format calls it: unique per step, so a good name for files",
    "attempt": "the number of the try, from 1",
}
"""Each with what it stands for, and what to do where it is missing."""

EXIT_CODE: Final = "exit_code"
_TOKEN: Final = re.compile(r"\{([a-z_]+)\}")


class Output(Shape, frozen=True):
    """How the printed JSON document is read. `ok_from` is `exit_code` or a JSON pointer to a boolean."""

    result_ptr: str = ""
    ok_from: str = EXIT_CODE


class Template(Shape, frozen=True, kw_only=True):
    """A template whose faults have been looked for; `output` None means that it prints its answer as it is."""

    name: str
    argv: tuple[str, ...]
    stdin: str | None = None
    env: Mapping[str, str] = {}
    cwd: str | None = None
    output: Output | None = None


# -- reading ----------------------------------------------------------------------------------------------------------


def with_placeholders(read: Reader) -> Reader:
    """`read`, and in what it gives every word in braces must be a placeholder."""

    def check(reading: Reading, value: Json, at: At) -> Json:
        got = read(reading, value, at)
        for word in _TOKEN.findall(got) if type(got) is str else ():
            if word not in PLACEHOLDERS:
                message = f"unknown placeholder {{{word[:80]}}}"
                reading.fault(at, "unknown_placeholder", message, hint_for(word, PLACEHOLDERS))
        return got

    return check


def _argv(reading: Reading, value: Json, at: At) -> Json:
    if type(value) is not list:
        return wrong_type(reading, value, at, "an array")
    if not value:
        return reading.fault(at, "bad_value", "expected the program and its arguments, got an empty array")
    for index, item in enumerate(value):
        with_placeholders(argument if index else name)(reading, item, at.item(index))
    return value


def _pointer(reading: Reading, value: Json, at: At) -> Json:
    if type(value) is str and value and not value.startswith("/"):
        return reading.fault(at, "bad_pointer", f"{value[:80]!r} is no JSON pointer", "a pointer is empty or /a/b")
    return text(reading, value, at)


def _ok_from(reading: Reading, value: Json, at: At) -> Json:
    return value if value == EXIT_CODE else _pointer(reading, value, at)


def _stream_mode(reading: Reading, value: Json, at: At) -> None:
    message = "stream_mode is not supported here"
    reading.fault(at, "option_unavailable", message, "print one answer, or one JSON document with `output`")


_STATS: Final[Fields] = {key: may(_pointer) for key in ("usage_ptr", "model_ptr", "num_turns_ptr")}
_OUTPUT: Final[Fields] = {
    "format": need(choice("json")),
    "result_ptr": may(_pointer),
    "ok_from": may(_ok_from),
    "stats": may(lambda reading, value, at: members(reading, value, at, _STATS)),
}
_TEMPLATE: Final[Fields] = {
    "name": need(name),
    "argv": need(_argv),
    "stdin": may(with_placeholders(text)),
    "env": may(mapping(with_placeholders(argument))),
    "cwd": may(with_placeholders(name)),
    "output": may(lambda reading, value, at: members(reading, value, at, _OUTPUT)),
    "stream_mode": may(_stream_mode),
}


def template(reading: Reading, value: Json, at: At) -> Json:
    """Reads one entry of `subprocesses`; gives it back as it was written, None if it has faults."""
    before = len(reading.faults)
    members(reading, value, at, _TEMPLATE)
    return value if len(reading.faults) == before else None


def check_templates(declared: Mapping[str, Json]) -> list[Json]:
    """The templates that a configuration declares, `{name: body without its name}`, as Blueprints write them.

    Raises:
        BlueprintInvalid: with every fault; paths begin at the configuration's own root.
    """
    reading, found = Reading(), []
    for own, body in declared.items():
        at = At().member("subprocesses").member(own)
        if obj(reading, body, at) is not None:
            found.append(template(reading, {**body, "name": own}, at))
    reading.finish("configuration")
    return found


def template_of(body: Json) -> Template:
    """The shape of a body that `template` has read without faults."""
    output = body.get("output")
    return Template(
        name=body["name"],
        argv=tuple(body["argv"]),
        stdin=body.get("stdin"),
        env=body.get("env") or {},
        cwd=body.get("cwd"),
        output=None if output is None else Output(output.get("result_ptr") or "", output.get("ok_from") or EXIT_CODE),
    )


# -- filling in -------------------------------------------------------------------------------------------------------


def placeholders(template: Template) -> frozenset[str]:
    """The placeholders that a template uses."""
    return frozenset(word for part in _texts(template) for word in _TOKEN.findall(part) if word in PLACEHOLDERS)


def fill(template: Template, values: Mapping[str, str]) -> Template:
    """The template with every placeholder replaced by its value.

    Raises:
        FlowError: it uses a placeholder that has no value; the text says how to give it one.
    """
    missing = sorted(placeholders(template) - values.keys())
    if missing:
        what = "; ".join(f"{{{word}}} is {PLACEHOLDERS[word]}" for word in missing)
        raise FlowError(f"template {template.name!r} cannot be filled in: {what}")

    def put(part: str) -> str:
        return _TOKEN.sub(lambda found: values.get(found[1], found[0]), part)

    return Template(
        name=template.name,
        argv=tuple(map(put, template.argv)),
        stdin=None if template.stdin is None else put(template.stdin),
        env={key: put(value) for key, value in template.env.items()},
        cwd=None if template.cwd is None else put(template.cwd),
        output=template.output,
    )


def _texts(template: Template) -> Iterator[str]:
    yield from template.argv
    yield from template.env.values()
    yield template.stdin or ""
    yield template.cwd or ""


# -- the answer -------------------------------------------------------------------------------------------------------


def answer(output: Output, document: Json) -> Outcome:
    """The outcome that a printed document stands for, of a program that ended well.

    Raises:
        FlowError: a pointer leads nowhere, or `ok_from` to something that is no boolean.
    """
    result = point(document, output.result_ptr)
    if output.ok_from == EXIT_CODE:
        return Pass(result)
    ok = point(document, output.ok_from)
    if type(ok) is not bool:
        raise FlowError(f"the output has {type_name(ok)} at {output.ok_from}, expected a boolean")
    return Pass(result) if ok else Blocked(result)


def point(document: Json, pointer: str) -> Json:
    """What a JSON pointer (RFC 6901) leads to; raises FlowError if that is nothing."""
    found = document
    for token in pointer.split("/")[1:]:
        key = token.replace("~1", "/").replace("~0", "~")
        if type(found) is dict and key in found:
            found = found[key]
        elif type(found) is list and re.fullmatch(r"0|[1-9][0-9]{0,15}", key) and int(key) < len(found):
            found = found[int(key)]
        else:
            raise FlowError(f"the output has nothing at {pointer}: {encode(document)[:200]}")
    return found
