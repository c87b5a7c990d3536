"""agent.md: an agent as people write it, YAML frontmatter and the system prompt beneath it.

    ---
    name: reviewer
    model: small
    tools: Read, Grep
    ---
    You review what you are given.

becomes `{name, kind, spec: {}, profile: {system_prompt, model, tools}}`. Keys that the format does not know are kept in
`profile.extras`. Of YAML it takes what is JSON: no aliases (nine of them nested are a billion values), no key twice, no
dates (they are text). Source of the rule: mse 3.2.
"""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

from refold.canonical import decode_strict, encode
from refold.errors import BadInput

Json = Any

_PARTS: Final = re.compile(r"\A\ufeff?---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)(.*)\Z", re.DOTALL | re.MULTILINE)
_PROFILE: Final = ("description", "model", "effort", "tools", "worker_binding")
_AGENT: Final = ("name", "lints")


def parse_agent_md(text: str, kind: str) -> dict[str, Json]:
    """The agent that the text of an agent.md describes, as an entry of `agents`, of kind `kind`.

    Raises:
        BadInput: kind `bad_agent_md`: no frontmatter, no YAML, YAML that is no JSON, no name.
    """
    parts = _PARTS.match(text.replace("\r\n", "\n"))
    if parts is None:
        raise _bad("it does not begin with frontmatter between two lines of ---")
    front = _front(parts[1])
    if not isinstance(front.get("name"), str):
        raise _bad("its frontmatter has no name that is text")
    profile = {"system_prompt": parts[2].strip()} | {key: front[key] for key in _PROFILE if key in front}
    if isinstance(tools := profile.get("tools"), str):
        profile["tools"] = [tool for each in tools.split(",") if (tool := each.strip())]
    extras = {key: value for key, value in front.items() if key not in (*_PROFILE, *_AGENT)}
    agent = {key: front[key] for key in _AGENT if key in front}
    return agent | {"kind": kind, "spec": {}, "profile": profile | ({"extras": extras} if extras else {})}


def _front(text: str) -> dict[str, Json]:
    try:
        front = yaml.load(text, _Loader)
        front = decode_strict(encode(front))
    except yaml.YAMLError as error:
        raise _bad(f"its frontmatter is not YAML: {' '.join(str(error).split())[:300]}") from None
    except (BadInput, ValueError, RecursionError) as error:
        raise _bad(f"its frontmatter is not JSON: {error!s:.300}") from None
    if not isinstance(front, dict):
        raise _bad("its frontmatter is no mapping")
    return front


class _Loader(yaml.SafeLoader):
    """Safe YAML, without what JSON does not have."""

    yaml_implicit_resolvers: Final = {
        first: [(tag, pattern) for tag, pattern in found if not tag.endswith(":timestamp")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not taken")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        members = super().construct_mapping(node, deep)
        if len(members) < len(node.value):
            raise yaml.YAMLError("a key occurs twice")
        return members


def _bad(why: str) -> BadInput:
    return BadInput(f"not an agent.md: {why}", kind="bad_agent_md")
