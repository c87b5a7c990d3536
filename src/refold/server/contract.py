"""What a row of the route table says, and what an endpoint is given and answers.

An endpoint is a plain async function of `(app, ask)`: what came in has been read and checked against the row before it
is called, and what it raises is made into an answer after it. Routing, the OpenAPI document and the tests all read the
same rows, so none of them can say something else.

Not here: the rows (`routes`), how a request is read (`reading`), how the rows are served (`http`).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, Final, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from refold.errors import InvalidId
from refold.records import AGENT_NAME, ID_PATTERN, UUID7_PATTERN, parse_id, parse_uuid7
from refold.service.app import App
from refold.service.commands import Command

Json = Any
B = TypeVar("B")
Q = TypeVar("Q")

_VERSION: Final = re.compile("[0-9A-Za-z]+")
SERVER: Final = "server"
"""Who asks with the server's own token. An operator asks under its id; whoever has no token is None."""


class Scope(StrEnum):
    """Whose token opens a route."""

    OPEN = "open"
    """Nobody needs one."""
    SERVER = "server"
    OPERATOR = "operator"
    """An operator's, and the server's."""


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a route that takes none."""


class Ask(msgspec.Struct, Generic[B, Q], frozen=True, kw_only=True):
    """A request as an endpoint sees it: the ids of its path, its body and query in their structs, and who asks."""

    ids: Mapping[str, str]
    body: B
    query: Q
    who: str | None
    request: Request


def command_of(ask: Ask[Any, Any], verb: str) -> Command | None:
    """What the ledger keeps of a request: its verb, the ids of its path and its whole body; None without an id."""
    if ask.body.command_id is None:
        return None
    members = {name: value for name, value in msgspec.to_builtins(ask.body).items() if name != "command_id"}
    return Command(parse_uuid7(ask.body.command_id, "command id"), verb, {**ask.ids, **members})


class Media(msgspec.Struct, frozen=True):
    """In a row, instead of a type: an answer that is no JSON, and the media types that it may have."""

    types: tuple[str, ...]


class Text(msgspec.Struct, frozen=True):
    """An answer that is no JSON."""

    media_type: str
    body: bytes


Reply = tuple[int, Any] | Response
"""A status with a JSON value, a `Text` or None for no body; or, from an endpoint that streams, a whole response."""

Endpoint = Callable[[App, Ask[Any, Any]], Awaitable[Reply]]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One route.

    `body` is the struct that the body must fit, `Any` for any JSON value, None where a body is not read. `answers` maps
    each status of success to the type of what it carries: a `Media` if that is no JSON, None for nothing. `refuses`
    lists the statuses of its own errors; those that follow from the row itself (`statuses`) are not repeated.
    """

    verb: str
    path: str
    endpoint: Endpoint
    summary: str
    answers: Mapping[int, Any]
    body: Any = None
    query: type[msgspec.Struct] = NoQuery
    refuses: tuple[int, ...] = ()
    scope: Scope = Scope.SERVER

    @property
    def ids(self) -> list[str]:
        """The names of the path's parameters."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    @property
    def body_may_be_absent(self) -> bool:
        """Whether no body at all means an object without members: the struct needs none."""
        if not (isinstance(self.body, type) and issubclass(self.body, msgspec.Struct)):
            return False
        return not any(field.required for field in msgspec.structs.fields(self.body))

    @property
    def statuses(self) -> list[int]:
        """Every error status that this row can answer, ascending."""
        own = set(self.refuses)
        if self.scope is not Scope.OPEN:
            own |= {401}
        if self.ids:
            own |= {404}
        if self.body is not None:
            own |= {413, 415}
        return sorted(own | {400, 403})


class PathId(msgspec.Struct, frozen=True):
    """A parameter of a path: what it names, the pattern it matches, and the check that raises InvalidId."""

    names: str
    pattern: str
    check: Callable[[str], Any]


def _blueprint_id(text: str) -> None:
    if not AGENT_NAME.fullmatch(text):
        raise InvalidId(f"invalid blueprint id {text[:80]!r}: expected letters, digits, and any of _ . -", id=text[:80])


def _version(text: str) -> None:
    if not _VERSION.fullmatch(text):
        raise InvalidId(f"invalid version {text[:80]!r}: expected the hex digits of a hash", id=text[:80])


def _own(prefix: str, names: str) -> PathId:
    pattern = ID_PATTERN.pattern.replace("(T|R|ST|O)", prefix)
    return PathId(names, f"^{pattern}$", partial(parse_id, prefix=prefix))


def _uuid7(names: str) -> PathId:
    return PathId(names, f"^{UUID7_PATTERN.pattern}$", partial(parse_uuid7, noun=f"{names.split()[-1]} id"))


PATH_IDS: Final[Mapping[str, PathId]] = {
    "task_id": _own("T", "a Task"),
    "run_id": _own("R", "a Run"),
    "sid": _own("O", "an operator"),
    "session_id": _uuid7("a session"),
    "request_id": _uuid7("a request"),
    "blueprint_id": PathId("a Blueprint", f"^{AGENT_NAME.pattern}$", _blueprint_id),
    "version": PathId("a version of a Blueprint", f"^{_VERSION.pattern}$", _version),
}
"""Every parameter that a path may have. Ids never become paths or SQL text; a malformed one is a 400 all the same."""
