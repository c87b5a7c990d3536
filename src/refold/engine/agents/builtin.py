"""Agents that come with refold: `builtin:NAME` as the `fn` of kind `python`. Enough to try, test and measure flows.

| name | parameters | answer |
|---|---|---|
| echo | | the input |
| identity | | `{by: "baseline-identity", agent, echoed: the input as text}` |
| sleep | `secs`, `value` | `value` (the input if not given) after `secs` |
| fail | `message`, `times` | fails the first `times` attempts of a step (all if not given), then the input |
| stream | `text`, `chunk`, `delay_secs` | `text` (the input if not given), spoken `chunk` characters at a time |

Parameters stand in `spec`; same-named keys of an object input override them. Source of the rule: design §4.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from refold.canonical import encode
from refold.engine.agents.base import Assignment, Definition, Report
from refold.flowir import Failed, Outcome, Pass
from refold.records import Json

Parameters = Mapping[str, Json]
_LONG: Final = 1e9
"""Thirty years of seconds. An integer may be too large for a float, and no timer takes it then."""


class BadParameter(Exception):
    """A parameter of the wrong type or range; its text is the outcome's."""


@dataclass(frozen=True, slots=True)
class Builtin:
    """One row of `BUILTINS`: the parameters it knows, and what it does."""

    parameters: frozenset[str]
    perform: Callable[[Assignment, Parameters], Awaitable[Outcome]]


class BuiltinAgent:
    """Performs one of `BUILTINS`; a bad parameter fails the attempt."""

    def __init__(self, name: str, agent: Definition) -> None:
        self._name = name
        self._builtin = BUILTINS[name]
        self._spec = agent.spec

    async def perform(self, work: Assignment) -> Report:
        """Does what the table says."""
        given = work.directive if isinstance(work.directive, dict) else {}
        known = self._builtin.parameters
        parameters = {name: value for name, value in {**self._spec, **given}.items() if name in known}
        try:
            return Report(await self._builtin.perform(work, parameters))
        except BadParameter as error:
            return Report(Failed(f"builtin:{self._name}: {error}"))


async def _echo(work: Assignment, _: Parameters) -> Outcome:
    return Pass(work.directive)


async def _identity(work: Assignment, _: Parameters) -> Outcome:
    return Pass({"by": "baseline-identity", "agent": work.agent.name, "echoed": _as_text(work.directive)})


async def _sleep(work: Assignment, given: Parameters) -> Outcome:
    await asyncio.sleep(_number(given, "secs", 0))
    return Pass(given.get("value", work.directive))


async def _fail(work: Assignment, given: Parameters) -> Outcome:
    if work.attempt <= _number(given, "times", math.inf):
        return Failed(_text(given, "message", "told to fail"))
    return Pass(work.directive)


async def _stream(work: Assignment, given: Parameters) -> Outcome:
    text = _text(given, "text", _as_text(work.directive))
    size, delay = _whole(given, "chunk", 16), _number(given, "delay_secs", 0)
    for start in range(0, len(text), size):
        await asyncio.sleep(delay)
        if work.emit is not None:
            await work.emit(text[start : start + size])
    return Pass(text)


BUILTINS: Final[Mapping[str, Builtin]] = {
    "echo": Builtin(frozenset(), _echo),
    "identity": Builtin(frozenset(), _identity),
    "sleep": Builtin(frozenset({"secs", "value"}), _sleep),
    "fail": Builtin(frozenset({"message", "times"}), _fail),
    "stream": Builtin(frozenset({"text", "chunk", "delay_secs"}), _stream),
}


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else encode(value)


def _text(given: Parameters, name: str, default: str) -> str:
    value = given.get(name, default)
    if not isinstance(value, str):
        raise BadParameter(f"{name} must be a string, came {encode(value)}")
    return value


def _number(given: Parameters, name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise BadParameter(f"{name} must be a number that is not negative, came {encode(value)}")
    return min(value, _LONG)


def _whole(given: Parameters, name: str, default: int) -> int:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BadParameter(f"{name} must be a whole number from 1, came {encode(value)}")
    return value
