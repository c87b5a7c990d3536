"""Who runs the agents of kind `subprocess`: their own `spec`, or a template that a runner names.

An agent's runner is its `runner`, else the one that `runner_ref` names, else (if its `spec` names no program) the
`default_runner` of the Blueprint. Runners with other backends are kept as they are written: they say how an operator
works, which is the operator's business.

What reading makes of an agent with a template is a `spec` that says all its engine needs:

    {"template": body | name, "system"?, "model"?, "tools_csv"?, "cwd"?}

`template` is the body if the Blueprint declares it, else the name of one that the server must have. Source of the
rule: mse 1.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from refold.flowir.ir import AgentDef
from refold.flowir.reading import At, Fields, Reading, array, hint_for, may, members, name, need, obj, text, wrong_type
from refold.flowir.templates import with_placeholders

Json = Any

SUBPROCESS: Final = "subprocess"
"""The kind of agents, and the backend of runners, that this is about."""

_OVERRIDES: Final[Fields] = {"model": may(text), "tools": may(array(text)), "cwd": may(with_placeholders(name))}
_BY_TEMPLATE: Final[Fields] = {
    "backend": need(text),
    "template": need(name),
    "overrides": may(lambda reading, value, at: members(reading, value, at, _OVERRIDES)),
}
_PROFILE: Final[Fields] = {"system_prompt": may(text), "model": may(text), "tools": may(array(text))}


def runner(reading: Reading, value: Json, at: At) -> Json:
    """Reads a runner; gives it back as it was written."""
    if type(value) is not dict:
        return wrong_type(reading, value, at, "an object")
    if value.get("backend") == SUBPROCESS:
        members(reading, value, at, _BY_TEMPLATE)
    return value


def named_runner(reading: Reading, value: Json, at: At) -> Json:
    """Reads one entry of `runners`."""
    return members(reading, value, at, {"name": need(name), "runner": need(runner)})


def profile(reading: Reading, value: Json, at: At) -> Json:
    """Reads the profile of an agent; gives it back as it was written. Its other members are the author's own."""
    if obj(reading, value, at) is not None:
        members(reading, value, at, _PROFILE, open_ended=True)
    return value


class Runners:
    """The runners and templates of one Blueprint, for `employ`."""

    def __init__(self, runners: Iterable[Json] | None, default: str | None, templates: Iterable[Json] | None) -> None:
        self.named: Mapping[str, Json] = {each["name"]: each.get("runner") for each in runners or () if each}
        self.default = default
        self.templates: Mapping[str, Json] = {each["name"]: each for each in templates or () if each}

    def look_up(self, reading: Reading, ref: str, at: At) -> Json:
        """The runner of a name; notes a fault if there is none."""
        if ref in self.named:
            return self.named[ref]
        return reading.fault(at, "unresolved_runner_ref", f"no runner is named {ref[:80]!r}", hint_for(ref, self.named))


def employ(reading: Reading, agents: Sequence[AgentDef | None], runners: Runners) -> tuple[AgentDef | None, ...]:
    """The agents, those of kind `subprocess` with a `spec` that can be run; notes what stands in the way of that."""
    default = runners.default and runners.look_up(reading, runners.default, At().member("default_runner"))
    return tuple(
        agent
        if agent is None or agent.kind != SUBPROCESS
        else _employed(reading, agent, runners, default, At().member("agents").item(index))
        for index, agent in enumerate(agents)
    )


def _employed(reading: Reading, agent: AgentDef, runners: Runners, default: Json, at: At) -> AgentDef:
    chosen = agent.runner
    if chosen is None and agent.runner_ref is not None:
        chosen = runners.look_up(reading, agent.runner_ref, at.member("runner_ref"))
    if chosen is None and "program" not in agent.spec:
        chosen = default
    by_template = bool(chosen) and chosen.get("backend") == SUBPROCESS
    if by_template and not agent.spec:
        return msgspec.structs.replace(agent, spec=_spec(agent, chosen, runners.templates))
    if by_template:
        message = "a template and a spec are two programs"
        reading.fault(at.member("spec"), "members_disagree", message, "leave the spec empty, or the runner out")
    elif "program" not in agent.spec:
        message = "member 'program' is missing, and no runner names a template"
        reading.fault(at.member("spec"), "missing_key", message)
    return agent


def _spec(agent: AgentDef, chosen: Json, templates: Mapping[str, Json]) -> dict[str, Json]:
    own, over = agent.profile or {}, chosen.get("overrides") or {}
    tools = over.get("tools") or own.get("tools")
    spec = {
        "template": templates.get(chosen["template"], chosen["template"]),
        "system": own.get("system_prompt") or None,
        "model": over.get("model") or own.get("model"),
        "tools_csv": tools and ",".join(tools),
        "cwd": over.get("cwd"),
    }
    return {key: value for key, value in spec.items() if value is not None}
