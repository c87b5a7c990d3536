"""Messages that refold spells itself: params that msgspec cannot read off the package's types, and `initialize`.

Everything else on the wire has its type in `muse_code_msp`. A struct here is that package's type plus what prose adds
to it (ranges, patterns, lists that are not empty); a test compares the two member by member. Own structs never leave
this package: `methods.parse` gives plain dicts with the names of the wire.

Not here: which method takes which params (`methods`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, Literal

import muse_code_msp as msp
from msgspec import UNSET, Meta, Struct, UnsetType

from refold.protocol.codes import camel
from refold.protocol.jsonrpc import FRAME_LIMIT, Caps

Json = Any

BOOKMARKS: Final = "refoldBookmarks"
"""Our own capability: `view/caughtUp` notifications with the position and the digest of the state."""
GRANTABLE: Final = ("sessionListStream", "sessionRename", BOOKMARKS)
"""What a client gets if it asks for it. No other capability is ever granted."""

ClientName = Annotated[str, Meta(pattern=r"^[a-z0-9_]+\Z", max_length=128)]
ShortText = Annotated[str, Meta(max_length=128)]
PageLimit = Annotated[int, Meta(ge=1, le=1000)]
ListLimit = Annotated[int, Meta(ge=1, le=200)]
Offset = Annotated[int, Meta(ge=0)]
Length = Annotated[int, Meta(ge=1)]
TurnInput = Annotated[list[msp.TurnInputPart], Meta(min_length=1)]


class Params(Struct, rename="camel", frozen=True):
    """Base of all: snake_case here, camelCase on the wire; unknown members are ignored."""


# -- initialize -------------------------------------------------------------------------------------------------------


class ClientInfo(Params, frozen=True):
    """Who connects. Diagnostics only, never an authority; bounded since it is written to the log of a Session."""

    name: ClientName
    version: ShortText
    title: ShortText | UnsetType = UNSET


class ClientCapabilities(Params, frozen=True):
    """What a client would like. Unknown names are legal and have no effect."""

    experimental_api: bool | UnsetType = UNSET
    opt_out_notification_methods: list[str] | UnsetType = UNSET
    requested_capabilities: list[str] | UnsetType = UNSET
    user_input_dialogs: bool | UnsetType = UNSET


class InitializeParams(Params, frozen=True):
    """`initialize`."""

    client_info: ClientInfo
    capabilities: ClientCapabilities | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Limits(Caps):
    """What one connection may cost. The numbers are announced in the result of `initialize`.

    Attributes:
        frame_bytes: the cap on a frame, either way; 1,024 or more, so that every error fits.
        open_requests: calls of the client that are not yet answered.
        held_bytes: frames of ours that wait for `initialized`.
        reader_events: a subscription that is further behind jumps, and is owed one `view/gap`.
        reader_bytes: the same in bytes.
    """

    frame_bytes: int = FRAME_LIMIT
    open_requests: int = 256
    held_bytes: int = 8 * 1024 * 1024
    reader_events: int = 10_000
    reader_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HostInfo:
    """What this host says of itself. Clients compare `fingerprint` for equality: by default it is the package's."""

    version: str
    muse_home: str
    platform_os: Literal["linux", "macos", "windows"]
    name: str = "refold"
    durability: Literal["durable", "ephemeral"] = "durable"
    fingerprint: str = msp.SCHEMA_FINGERPRINT
    schema_version: int = msp.SCHEMA_VERSION
    limits: Limits = field(default_factory=Limits)

    @property
    def ephemeral(self) -> bool:
        """True if nothing outlives the process: then no method may promise that it does."""
        return self.durability == "ephemeral"


def initialize_result(host: HostInfo, granted: tuple[str, ...]) -> dict[str, Json]:
    """The result of `initialize`. `refoldLimits` is our own member; clients ignore what they do not know."""
    return {
        "serverInfo": {"name": host.name, "version": host.version},
        "userAgent": f"{host.name}/{host.version} ({host.platform_os})",
        "museHome": host.muse_home,
        "platformFamily": "windows" if host.platform_os == "windows" else "unix",
        "platformOs": host.platform_os,
        "schema": {"version": host.schema_version, "fingerprint": host.fingerprint},
        "grantedCapabilities": list(granted),
        "experimentalApi": False,
        "sessionDurability": host.durability,
        "refoldLimits": {camel(name): value for name, value in asdict(host.limits).items()},
    }


# -- sessions ---------------------------------------------------------------------------------------------------------


class StdioMcpServer(Params, frozen=True, tag_field="transport", tag="stdio"):
    """An MCP server that the host would start. Read so that a malformed one is told apart from an ungranted one."""

    command: str
    args: list[str] | UnsetType = UNSET
    env: dict[str, str] | UnsetType = UNSET
    framing: msp.SessionMcpStdioFraming | UnsetType = UNSET
    mode: msp.SessionMcpServerMode | UnsetType = UNSET


class HttpMcpServer(Params, frozen=True, tag_field="transport", tag="streamableHttp"):
    """An MCP server behind a URL."""

    url: str
    headers: dict[str, str] | UnsetType = UNSET
    mode: msp.SessionMcpServerMode | UnsetType = UNSET


class SessionConfig(Params, frozen=True):
    """The open configuration object of start and resume. The union is closed: an unknown transport is refused."""

    mcp_servers: dict[str, StdioMcpServer | HttpMcpServer] | UnsetType = UNSET


class SessionStartParams(Params, frozen=True):
    """`session/start`."""

    command_id: str
    approval_mode: msp.ApprovalMode | UnsetType | None = UNSET
    config: SessionConfig | UnsetType = UNSET
    model_id: str | UnsetType = UNSET
    permission_profile: str | UnsetType = UNSET
    provider_id: str | UnsetType | None = UNSET
    recovery_mode: msp.RecoveryMode | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    workspace_root: str | UnsetType = UNSET
    workspace_roots: list[str] | UnsetType = UNSET


class SessionResumeParams(Params, frozen=True):
    """`session/resume`."""

    command_id: str
    session_id: str
    config: SessionConfig | UnsetType = UNSET
    cursor: str | UnsetType | None = UNSET
    exclude_items: bool | UnsetType = UNSET
    history: msp.HistoryPreference | UnsetType = UNSET
    permission_profile: str | UnsetType = UNSET
    recovery_mode: msp.RecoveryMode | UnsetType = UNSET


class SessionListParams(Params, frozen=True):
    """`session/list`; its schema caps the page at 200."""

    cursor: str | UnsetType | None = UNSET
    filter: msp.SessionListFilter | UnsetType = UNSET
    limit: ListLimit | UnsetType = UNSET
    updated_after: str | UnsetType = UNSET
    workspace_root: str | UnsetType = UNSET


# -- turns, the view and outputs --------------------------------------------------------------------------------------


class TurnStartParams(Params, frozen=True):
    """`turn/start`; its input is not empty."""

    command_id: str
    input: TurnInput
    session_id: str
    display_text: str | UnsetType = UNSET
    if_busy: msp.IfBusy | UnsetType = UNSET
    reasoning_effort: msp.ReasoningEffort | UnsetType = UNSET
    user_shell: msp.TurnUserShell | UnsetType = UNSET
    workspace_roots: list[str] | UnsetType = UNSET


class TurnSteerParams(Params, frozen=True):
    """`turn/steer`; its input is not empty."""

    command_id: str
    expected_turn_id: str
    input: TurnInput
    session_id: str
    reasoning_effort: msp.ReasoningEffort | UnsetType = UNSET


class ViewPageParams(Params, frozen=True):
    """`view/page`; the limit is required and in 1..1000."""

    limit: PageLimit
    session_id: str
    anchor: msp.ViewPageAnchor | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    direction: msp.ViewPageDirection | UnsetType = UNSET


class ItemReadOutputParams(Params, frozen=True):
    """`item/readOutput`; offsets and lengths are counts of bytes."""

    item_id: str
    output_ref: str
    session_id: str
    length_bytes: Length | UnsetType = UNSET
    offset_bytes: Offset | UnsetType = UNSET
