"""The method table: what a client may call here, with which params, and what a host like this one withholds.

`TABLE` has a row for every method of `muse_code_msp.METHODS`. A row says what *can* be served. What is served today is
the set of handlers that a `Connection` is given: a row without one answers `methodNotFound`, like a method that nobody
knows. `find` and `parse` are the two steps from a name and raw params to a typed call.

Not here: what the methods do (`server.rpc` and the services), the handshake (`connection`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import msgspec
import muse_code_msp as msp

from refold.errors import RefoldError
from refold.protocol import messages
from refold.records import parse_uuid7

Json = Any
Params = dict[str, Json]
"""Params with the names of the wire: known members only, checked, nothing filled in."""

NAME_CHARS: Final = 80
"""Longer method names are cut where an error repeats them."""


class Availability(Enum):
    """Whether a method belongs to what refold is."""

    SERVED = "served"
    """Works where there is a handler."""
    GATED = "gated"
    """Needs a capability that is never granted."""
    ABSENT = "absent"
    """Outside refold's plane."""


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One method.

    Attributes:
        name: as on the wire.
        params: what `msgspec.convert` reads them as.
        mutating: it carries a `commandId`, a UUIDv7, and applies once.
        availability: whether it belongs to what refold is.
        capability: what the connection must have been granted.
        member_capability: the same for the use of one member, as `(path, capability)`.
        durable_only: withheld by a host whose Sessions end with it.
        check: returns what is wrong between members, or None.
        too_large: the error kind of an answer above the frame cap.
    """

    name: str
    params: Any
    mutating: bool = False
    availability: Availability = Availability.SERVED
    capability: str | None = None
    member_capability: tuple[str, str] | None = None
    durable_only: bool = False
    check: Callable[[Params], str | None] | None = None
    too_large: str = "frame_too_large"


# -- checks between members -------------------------------------------------------------------------------------------


def _page_is_sound(params: Params) -> str | None:
    if "anchor" not in params:
        return None
    if "cursor" in params:
        return "`anchor` and `cursor` exclude each other"
    known = msp.VIEW_PAGE_ANCHOR_KNOWN_VALUES
    return None if params["anchor"] in known else f"unknown `anchor`; known: {', '.join(known)}"


def _text_parts_have_text(params: Params) -> str | None:
    faults = (
        f"`input[{index}]` is of type text and has no `text`"
        for index, part in enumerate(params["input"])
        if part["type"] == "text" and "text" not in part
    )
    return next(faults, None)


# -- the table --------------------------------------------------------------------------------------------------------


def _command(name: str, params: Any, **more: Any) -> MethodRow:
    return MethodRow(name, params, mutating=True, **more)


def _gated(name: str, capability: str) -> MethodRow:
    return _foreign(name, Availability.GATED, capability)


def _absent(name: str) -> MethodRow:
    return _foreign(name, Availability.ABSENT)


def _foreign(name: str, availability: Availability, capability: str | None = None) -> MethodRow:
    spec = msp.METHODS[name]["params"]
    params = getattr(msp, spec) if spec else dict[str, Json]
    mutating = "commandId" in getattr(params, "__required_keys__", ())
    return MethodRow(name, params, mutating, availability, capability)


_MCP: Final = ("config.mcpServers", "sessionMcp")
_SHELL: Final = ("userShell", "userShell")

_OURS: Final = (
    MethodRow("initialize", messages.InitializeParams),
    # sessions
    _command("session/start", messages.SessionStartParams, member_capability=_MCP),
    _command("session/resume", messages.SessionResumeParams, member_capability=_MCP, durable_only=True),
    _command("session/fork", msp.SessionForkParams, durable_only=True),
    _command("session/leave", msp.SessionLeaveParams),
    _command("session/compact", msp.SessionCompactParams),
    _command("session/setModel", msp.SessionSetModelParams),
    _command("session/rename", msp.SessionRenameParams, capability="sessionRename", durable_only=True),
    MethodRow("session/read", msp.SessionReadParams, durable_only=True),
    MethodRow("session/list", messages.SessionListParams),
    MethodRow("model/list", msp.ModelListParams),
    # the view
    MethodRow("view/subscribe", msp.ViewSubscribeParams),
    MethodRow("view/unsubscribe", msp.ViewUnsubscribeParams),
    MethodRow("view/page", messages.ViewPageParams, check=_page_is_sound),
    MethodRow("item/readOutput", messages.ItemReadOutputParams, too_large="output_result_too_large"),
    # turns
    _command("turn/start", messages.TurnStartParams, check=_text_parts_have_text, member_capability=_SHELL),
    _command("turn/steer", messages.TurnSteerParams, check=_text_parts_have_text),
    _command("turn/cancel", msp.TurnCancelParams),
    _command("turn/interrupt", msp.TurnInterruptParams),
    _command("turn/unqueue", msp.TurnUnqueueParams),
    _command("workflow/cancel", msp.WorkflowCancelParams),
    _command("workflow/resume", msp.WorkflowResumeParams),
    # requests to people
    _command("approval/decide", msp.ApprovalDecideParams),
    MethodRow("approval/listPending", msp.ApprovalListPendingParams),
    _command("userInput/answer", msp.UserInputAnswerParams),
    _command("userInput/cancel", msp.UserInputCancelParams),
    _command("userInput/interrupt", msp.UserInputInterruptParams),
    # what needs a capability that this host never grants
    _gated("session/userShell", "userShell"),
    _gated("feedback/submit", "feedback"),
    _gated("computerUseSetup/read", "computerUseSetup"),
    _gated("computerUseSetup/start", "computerUseSetup"),
    _gated("computerUseSetup/check", "computerUseHostSetup"),
)

TABLE: Final[Mapping[str, MethodRow]] = {name: _absent(name) for name in msp.METHODS} | {row.name: row for row in _OURS}
"""Every method of the package, by name."""

SERVABLE: Final = frozenset(
    name for name, row in TABLE.items() if row.availability is Availability.SERVED and name != "initialize"
)
"""What a handler may be written for. The connection answers `initialize` itself."""

CLIENT_NOTIFICATIONS: Final[Mapping[str, Any]] = {"userInput/engaged": msp.UserInputEngagedParams}
"""What a client may notify, beside `initialized`. Others are ignored, as MSP wants."""

PROTECTED: Final = frozenset({"approval/resolved", "userInput/settled", "view/gap", "session/leaveCompleted"})
"""Notifications that no client can opt out of: without them it waits for ever, or misses that it missed something."""

NOTIFICATION_CAPABILITIES: Final[Mapping[str, str]] = {"session/listChanged": "sessionListStream"}
"""Notifications that only connections with a grant receive."""


# -- from a name and raw params to a call -----------------------------------------------------------------------------


def find(name: str, handlers: Collection[str], granted: Collection[str], ephemeral: bool) -> MethodRow:
    """Returns the row of a method that is served here and open to this connection.

    Raises:
        RefoldError: `method_not_found`, or `capability_required` with `data["capability"]`.
    """
    row = TABLE.get(name)
    if row is None or not _exists(row, handlers, ephemeral):
        raise RefoldError(f"this host does not serve {name[:NAME_CHARS]}", kind="method_not_found")
    if row.capability is not None and row.capability not in granted:
        raise _ungranted(name, row.capability)
    return row


def grantable(handlers: Collection[str], ephemeral: bool) -> list[str]:
    """What `initialize` grants to those who ask. A capability whose method is not served here would be a lie."""
    opened = {row.capability: row for row in TABLE.values() if row.capability}
    return [name for name in messages.GRANTABLE if name not in opened or _exists(opened[name], handlers, ephemeral)]


def parse(row: MethodRow, raw: Json, granted: Collection[str] = ()) -> Params:
    """Returns the params of a call, checked; unknown members are dropped.

    Raises:
        RefoldError: `invalid_params` or `invalid_id` with a text that names the member; `capability_required` if they
            use a member that was not granted.
    """
    params = convert(row.name, row.params, raw)
    if row.mutating:
        parse_uuid7(params["commandId"], "commandId")
    if row.check is not None and (fault := row.check(params)) is not None:
        raise _invalid(row.name, fault)
    if row.member_capability is not None:
        path, capability = row.member_capability
        if _used(params, path) and capability not in granted:
            raise _ungranted(f"{row.name} with {path}", capability)
    return params


def convert(name: str, shape: Any, raw: Json) -> Params:
    """Reads `raw` as `shape` and gives it back as a plain dict with the names of the wire.

    Null stands for no params: some clients write every member of a request.

    Raises:
        RefoldError: `invalid_params`.
    """
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        raise _invalid(name, "params are an object")
    try:
        return msgspec.to_builtins(msgspec.convert(raw, shape))
    except msgspec.ValidationError as error:
        raise _invalid(name, str(error)) from None


def _exists(row: MethodRow, handlers: Collection[str], ephemeral: bool) -> bool:
    if row.durable_only and ephemeral:
        return False
    return row.name in handlers or row.availability is Availability.GATED


def _used(params: Params, path: str) -> bool:
    """Tells whether a member is there and not empty: an empty map of servers asks for nothing."""
    value: Json = params
    for name in path.split("."):
        value = value.get(name, {})
    return bool(value)


def _ungranted(what: str, capability: str) -> RefoldError:
    return RefoldError(
        f"{what} requires the {capability} capability", kind="capability_required", capability=capability
    )


def _invalid(name: str, text: str) -> RefoldError:
    return RefoldError(f"{name}: {text}", kind="invalid_params")
