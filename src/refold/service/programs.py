"""Which programs a launch may run: `--subprocess`, and the templates that the server's configuration declares.

| mode | what agents of kind `subprocess` may be |
|---|---|
| `any` | everything: a program that a Blueprint names is anybody's shell |
| `declared` | those whose runner names a template of the configuration |
| `off` | nothing |

A template that the Blueprint itself declares is a program that it names, also where the configuration has one of the
same name. Not here: what a Run may that was accepted before (`runs.check_launch`). Source of the rule: design §4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from refold.errors import Unprocessable
from refold.flowir import AgentDef, Blueprint
from refold.flowir.runners import SUBPROCESS
from refold.service.settings import SubprocessMode

Json = Any

_NOT_ALLOWED, _NOT_DECLARED = "program_not_allowed", "template_not_declared"
_SAYS: Final[Mapping[str, str]] = {
    _NOT_ALLOWED: "agents {names} run programs, and this server was started with --subprocess {mode}; "
    "start it with --subprocess any to allow programs in Blueprints",
    _NOT_DECLARED: "agents {names} name templates that are declared nowhere; "
    "declare each as [subprocesses.NAME] in the server's config.toml, or in the Blueprint",
}


class Programs:
    """What one server allows. `templates` are its own, by name."""

    def __init__(self, mode: SubprocessMode, templates: Mapping[str, Json]) -> None:
        self.mode: SubprocessMode = mode
        self._templates = templates

    def check(self, blueprint: Blueprint, mode: SubprocessMode | None = None) -> None:
        """Raises Unprocessable if a launch, under `mode` if not under the server's own, may not run the Blueprint."""
        found = list(self._problems(blueprint, mode or self.mode))
        if not found:
            return
        for kind, says in _SAYS.items():
            names = [agent.name for problem, _, agent in found if problem == kind]
            if names:
                raise Unprocessable(
                    says.format(names=", ".join(names), mode=mode or self.mode), kind=kind, agents=names
                )

    def warnings(self, blueprint: Blueprint) -> list[Json]:
        """What `check` would raise, as lint says it."""
        return [
            {
                "path": f"$.agents[{index}]",
                "kind": kind,
                "message": _SAYS[kind].format(names=agent.name, mode=self.mode).partition("; ")[0],
                "hint": _SAYS[kind].partition("; ")[2],
            }
            for kind, index, agent in self._problems(blueprint, self.mode)
        ]

    def _problems(self, blueprint: Blueprint, mode: SubprocessMode) -> Iterator[tuple[str, int, AgentDef]]:
        for index, agent in enumerate(blueprint.agents):
            if agent.kind != SUBPROCESS:
                continue
            named = agent.spec.get("template")
            if mode == "off" or (mode == "declared" and not isinstance(named, str)):
                yield _NOT_ALLOWED, index, agent
            elif isinstance(named, str) and named not in self._templates:
                yield _NOT_DECLARED, index, agent
