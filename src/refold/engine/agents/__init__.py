"""Agents: who does the work of a step, a file per kind. `performer` makes the agent of a definition.

Not here: operators and people, who come and go (`service`), and what an attempt is (`engine.driver`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from refold.engine.agents.base import Agent, Assignment, Cause, Definition, Groups, Report, Tools, Unusable, allowed
from refold.engine.agents.builtin import BUILTINS, BuiltinAgent
from refold.engine.agents.operator import OPERATOR
from refold.engine.agents.python import FunctionAgent
from refold.engine.agents.subprocess import SubprocessAgent
from refold.engine.agents.template import TemplateAgent
from refold.engine.agents.wait import WaitAgent
from refold.flowir import WAIT
from refold.flowir.templates import template_of

__all__ = [
    "OPERATOR",
    "Agent",
    "Assignment",
    "Cause",
    "Definition",
    "Groups",
    "Report",
    "Tools",
    "allowed",
    "performer",
]


def performer(agent: Definition, tools: Tools) -> Agent:
    """The agent of a definition. One that cannot be performed here fails every attempt and says why."""
    make = KINDS.get(agent.kind)
    return make(agent, tools) if make else Unusable(f"agents of kind {agent.kind!r} cannot be performed by this server")


def _subprocess(agent: Definition, tools: Tools) -> Agent:
    named = agent.spec.get("template")
    if named is None:
        return SubprocessAgent(agent, tools)
    body = tools.secrets.resolve(tools.templates.get(named)) if isinstance(named, str) else named
    if body is None:
        return Unusable(f"no template {named!r}: declare [subprocesses.{named}] in the server's config.toml")
    return TemplateAgent(agent.spec, template_of(body), tools)


def _python(agent: Definition, tools: Tools) -> Agent:
    name: str = agent.spec["fn"]
    if name.startswith("builtin:"):
        return _builtin(name.removeprefix("builtin:"), agent)
    function = tools.app.get(name)
    if function is None:
        return Unusable(f"no function {name!r}: start the server with --app and the module that has it")
    return FunctionAgent(function, tools)


def _rust_fn(agent: Definition, tools: Tools) -> Agent:
    return _builtin(agent.spec["fn_id"], agent)


def _operator(agent: Definition, tools: Tools) -> Agent:
    return Unusable("operators cannot attach here: start a server") if tools.operators is None else tools.operators


def _builtin(name: str, agent: Definition) -> Agent:
    if name not in BUILTINS:
        return Unusable(f"no built-in function {name!r}: there are {', '.join(BUILTINS)}")
    return BuiltinAgent(name, agent)


KINDS: Final[Mapping[str, Callable[[Definition, Tools], Agent]]] = {
    "subprocess": _subprocess,
    "python": _python,
    "rust_fn": _rust_fn,
    OPERATOR: _operator,
    WAIT: WaitAgent,
}
"""Agent kind -> what makes its agents. `rust_fn` is the published name of the built-in ones (mse 1.6)."""
