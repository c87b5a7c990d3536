"""The state families of a view: facts of the Session that each event replaces wholesale, the newest one standing.

A family is keyed by the method of its event and shown as one member of a snapshot's state. An event that says what
holds by default (a goal set to null) leaves nothing behind, so that a state and its snapshot cannot differ in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, Final, NamedTuple

from refold.canonical import Json

Members = dict[str, Json]
Needs = Mapping[str, tuple[type, ...]]
"""Members that params must have, each of one of the types."""

_ABSENT: Final = object()

TEXT: Final = (str,)
NUMBER: Final = (int,)
TEXT_OR_NULL: Final = (str, NoneType)


class Family(NamedTuple):
    """One state family."""

    member: str
    """Its name in a snapshot's state."""
    needs: Needs
    show: Callable[[Members], Json]
    """Makes the member from the event's params."""
    default: Json = None
    """What holds before any event."""
    optional: bool = False
    """True if a snapshot leaves the member out where the default holds."""


def pick(*names: str) -> Callable[[Members], Members]:
    """Returns a function that keeps the members `names` of an object, as far as it has them."""
    return lambda params: {name: params[name] for name in names if name in params}


def _the(name: str) -> Callable[[Members], Json]:
    return lambda params: params[name]


def _approval_mode(params: Members) -> Members:
    return {"mode": params["mode"], "source": params["source"], "lastCommandId": params["commandId"]}


FAMILIES: Final[Mapping[str, Family]] = {
    "session/approvalModeChanged": Family(
        "approvalMode",
        {"mode": TEXT, "source": TEXT, "commandId": TEXT_OR_NULL},
        _approval_mode,
        {"mode": "promptUnmatched", "source": "startup", "lastCommandId": None},
    ),
    "session/branchChanged": Family(
        "branch", {"branch": TEXT_OR_NULL, "workspaceRoot": TEXT}, pick("branch", "workspaceRoot", "vcs")
    ),
    "session/contextUsage": Family(
        "contextUsage",
        {"pressure": TEXT, "usedTokens": NUMBER},
        pick("pressure", "usedTokens", "windowTokens"),
        optional=True,
    ),
    "session/goalChanged": Family("goal", {"goal": (dict, NoneType)}, _the("goal")),
    "session/modelChanged": Family(
        "effectiveModel",
        {"modelId": TEXT, "providerId": TEXT_OR_NULL, "source": TEXT},
        pick("modelId", "providerId", "source"),
    ),
    "session/nameChanged": Family("name", {"name": TEXT}, _the("name"), optional=True),
    "session/reasoningEffortChanged": Family(
        "reasoningEffort",
        {"reasoningEffort": TEXT, "source": TEXT},
        pick("reasoningEffort", "source"),
        optional=True,
    ),
    "session/todoListChanged": Family(
        "todoList",
        {"items": (list,), "revision": NUMBER, "sourceTool": TEXT},
        pick("items", "revision", "sourceTool"),
    ),
    "session/tokenUsage": Family(
        "tokenUsage",
        {"cumulative": (dict,)},
        _the("cumulative"),
        {"promptTokens": 0, "outputTokens": 0, "totalTokens": 0},
    ),
}


def has(params: Any, needs: Needs) -> bool:
    """Tells whether `params` has every member of `needs`, of a right type. True is not a number here."""
    for name, kinds in needs.items():  # noqa: SIM110 - every frame passes here, some twice: a generator costs as much
        if type(params.get(name, _ABSENT)) not in kinds:
            return False
    return True


def put(families: Members, method: str, value: Json) -> None:
    """Stores `value` as the family `method`; a default is stored as nothing."""
    if value == FAMILIES[method].default:
        families.pop(method, None)
    else:
        families[method] = value
