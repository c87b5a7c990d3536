"""Agents as a Blueprint names them: the kinds that refold runs, and what `spec` holds for each.

Not here: how an agent of a kind works (`engine.agents`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from refold.flowir.ir import AgentDef, Retry
from refold.flowir.reading import (
    At,
    Fields,
    Reading,
    argument,
    array,
    boolean,
    choice,
    hint_for,
    integer,
    mapping,
    may,
    members,
    name,
    need,
    number,
    obj,
    text,
)
from refold.flowir.runners import profile, runner
from refold.flowir.verdicts import verdict
from refold.records import AGENT_NAME

Json = Any

_MAX_SECS: Final = 10**9


def option(reading: Reading, value: Json, at: At) -> Json:
    """An option of a question: its label, or `{label, description?}`."""
    if type(value) is str:
        return name(reading, value, at)
    return members(reading, value, at, {"label": need(name), "description": may(text)})


class Spec(NamedTuple):
    """What `spec` holds for a kind. `open_ended`: its other members are the author's own parameters."""

    fields: Fields
    open_ended: bool = False


KINDS: Final[Mapping[str, Spec]] = {
    "subprocess": Spec(
        {
            "program": may(name),
            "args": may(array(argument)),
            "use_stdin": may(boolean),
            "env": may(mapping(argument)),
            "cwd": may(name),
        }
    ),
    "python": Spec({"fn": need(name)}, open_ended=True),
    "rust_fn": Spec({"fn_id": need(choice("identity"))}),
    "operator": Spec(
        {"instructions": may(text), "submit_format": may(choice("fold", "text", "json"))},
        open_ended=True,
    ),
    "human": Spec(
        {
            "question": need(text),
            "header": may(text),
            "options": may(array(option)),
            "selection": may(choice("single", "multiple")),
        }
    ),
}
LATER_KINDS: Final = frozenset({"llm", "acp", "mcp", "http"})
FOREIGN_KINDS: Final = frozenset({"lua", "agent_block"})
"""Kinds of the format that need a runtime which refold does not have."""

_RETRY: Final[Fields] = {
    "max_attempts": may(integer(1, 1000)),
    "initial_secs": may(number(0, _MAX_SECS)),
    "max_secs": may(number(0, _MAX_SECS)),
    "multiplier": may(number(1, 1000)),
    "retry_on": may(array(choice("blocked", "error", "timeout"))),
}


def _agent_name(reading: Reading, value: Json, at: At) -> str | None:
    if type(value) is str and not AGENT_NAME.fullmatch(value):
        message = f"agent name {value[:80]!r} is not a name"
        return reading.fault(at, "bad_agent_name", message, "use letters, digits, and any of _ . -")
    return text(reading, value, at)


def _kind(reading: Reading, value: Json, at: At) -> str | None:
    if type(value) is not str or value in KINDS:
        return text(reading, value, at)
    available = f"use one of {', '.join(sorted(KINDS))}"
    if value in LATER_KINDS:
        return reading.fault(at, "agent_kind_unavailable", f"agent kind {value!r} is not available yet", available)
    if value in FOREIGN_KINDS:
        return reading.fault(at, "agent_kind_unsupported", f"agent kind {value!r} is not supported here", available)
    return reading.fault(at, "unknown_kind", f"unknown agent kind {value[:80]!r}", hint_for(value, KINDS))


def _retry(reading: Reading, value: Json, at: At) -> Retry | None:
    got = members(reading, value, at, _RETRY)
    return None if got is None else Retry(**got)


_AGENT: Final[Fields] = {
    "name": need(_agent_name),
    "kind": need(_kind),
    "spec": need(obj),
    "profile": may(profile),
    "meta": may(obj),
    "runner": may(runner),
    "runner_ref": may(text),
    "verdict": may(verdict),
    "lints": may(obj),
    "retry": may(_retry),
    "timeout_secs": may(number(0.001, _MAX_SECS)),
    "on_ambiguous": may(choice("retry", "ask", "fail")),
    "approval": may(choice("never", "on_write", "required")),
}


def agent(reading: Reading, value: Json, at: At) -> AgentDef | None:
    """Reads one entry of `agents`."""
    before = len(reading.faults)
    got = members(reading, value, at, _AGENT)
    if got is None:
        return None
    spec, kind = got.get("spec"), KINDS.get(got.get("kind") or "")
    if spec is not None and kind is not None:
        members(reading, spec, at.member("spec"), kind.fields, open_ended=kind.open_ended)
    return AgentDef(**got) if len(reading.faults) == before else None
