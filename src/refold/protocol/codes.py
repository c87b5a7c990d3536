"""Errors into codes: the one table from an error's `kind` (`refold.errors`) to its MSP code, kind and data.

Laws: every (code, kind) of the table stands in `muse_code_msp.ERRORS`; every RefoldError has a row, its exact kind's or
else that of its class; a text that speaks of our inside never leaves. HTTP has its own table, in `server`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from refold.errors import RefoldError

Json = Any

TEXT_CHARS: Final = 400
"""Longer error texts are cut: some quote what the peer sent."""
ECHO_CHARS: Final = 256
"""Longer ids are not repeated from the params of a refused request."""


def camel(name: str) -> str:
    """`view_cursor` → `viewCursor`; a name without underscores stays as it is."""
    head, *tail = name.split("_")
    return head + "".join(map(str.capitalize, tail))


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """How the errors of one kind are told. Names are those of the wire.

    Attributes:
        code: the JSON-RPC code.
        kind: `data.kind`.
        members: told if the error knows them.
        echoed: told if the error or, failing that, the params of the refused request know them.
        nullable: told always, as null if unknown.
        details: told inside the free object `data.details`.
        fixed: told always, with these values.
        reason: makes `data.reason` of our kind where the error names none; None: no reason is told.
        retryable: `data.retryable`, unless the error says otherwise; None: it is left to the code.
        text: replaces message and reason of errors that are for the log.
    """

    code: int
    kind: str
    members: tuple[str, ...] = ()
    echoed: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    fixed: Mapping[str, Json] = field(default_factory=dict)
    reason: Callable[[str], str] | None = None
    retryable: bool | None = None
    text: str | None = None


def _rows(kinds: str, row: ErrorRow) -> dict[str, ErrorRow]:
    return dict.fromkeys(kinds.split(), row)


_BOUNDARY: Final = ("anchor", "latestBoundaryCursor")
_OUTPUT: Final = ("itemId", "outputRef")

ERRORS: Final[Mapping[str, ErrorRow]] = {
    # frames and the handshake
    "parse_error": ErrorRow(-32700, "parseError", members=("reason", "limitBytes")),
    "input_too_large": ErrorRow(-32002, "inputTooLarge", members=("limitBytes",)),
    "not_a_request": ErrorRow(-32600, "invalidRequest"),
    "not_initialized": ErrorRow(-32600, "notInitialized"),
    "already_initialized": ErrorRow(-32600, "alreadyInitialized"),
    "overloaded": ErrorRow(-32001, "overloaded", retryable=True),
    "backpressured": ErrorRow(-32031, "backpressured", members=("capacity",), retryable=True),
    # methods and params
    "method_not_found": ErrorRow(-32601, "methodNotFound"),
    **_rows(
        "capability_required unauthorized forbidden",
        ErrorRow(-32010, "capabilityRequired", members=("capability",), retryable=False),
    ),
    **_rows(
        "bad_input invalid_json invalid_id invalid_request invalid_params import_invalid blueprint_invalid",
        ErrorRow(-32602, "invalidParams", members=("reason", "alignedNextOffset"), details=("faults",)),
    ),
    # ids that name nothing
    **_rows(
        "not_found task_not_found run_not_found step_not_found turn_not_found item_not_found blueprint_not_found"
        " request_not_found operator_not_found",
        ErrorRow(-32011, "notFound", echoed=("sessionId",), reason=camel),
    ),
    "session_not_found": ErrorRow(-32020, "sessionNotFound", echoed=("sessionId",)),
    "approval_not_found": ErrorRow(-32050, "approvalNotFound", echoed=("approvalId",)),
    "user_input_not_found": ErrorRow(-32055, "userInputNotFound", echoed=("userInputId",)),
    "value_not_found": ErrorRow(-32041, "outputUnavailable", echoed=_OUTPUT, fixed={"availability": "missing"}),
    # sessions
    "session_in_use": ErrorRow(-32021, "sessionInUse", echoed=("sessionId",)),
    "session_ambiguous": ErrorRow(-32022, "sessionAmbiguous", members=("paths", "selector")),
    "fork_boundary_invalid": ErrorRow(-32023, "forkBoundaryInvalid", members=("lastTurnId",), echoed=("sessionId",)),
    "session_not_loaded": ErrorRow(-32024, "sessionNotLoaded", echoed=("sessionId",)),
    "session_stream_mismatch": ErrorRow(-32025, "sessionStreamMismatch", echoed=("sessionId",)),
    # positions in the view
    **_rows("cursor_refused missing_anchor", ErrorRow(-32011, "notFound", echoed=("sessionId",), reason=camel)),
    "boundary_pruned": ErrorRow(-32042, "boundaryPruned", nullable=_BOUNDARY),
    "boundary_unusable": ErrorRow(-32042, "boundaryUnusable", nullable=_BOUNDARY),
    "no_boundary": ErrorRow(-32042, "noBoundary", nullable=_BOUNDARY),
    "view_truncated": ErrorRow(-32040, "viewTruncated", echoed=("sessionId",), nullable=("earliestCursor",)),
    # commands that do not apply to the state they met
    **_rows(
        "conflict run_not_interrupted session_busy command_id_conflict command_rejected unprocessable"
        " replay_disabled divergence program_not_allowed step_not_reached no_head",
        ErrorRow(
            -32030,
            "commandRejected",
            echoed=("commandId",),
            details=("runId", "status"),
            reason=str,
            retryable=False,
        ),
    ),
    "interrupted": ErrorRow(-32013, "interrupted"),
    "cancelled": ErrorRow(-32014, "cancelled"),
    # stored outputs and answers that do not fit
    "output_unavailable": ErrorRow(-32041, "outputUnavailable", members=("availability",), echoed=_OUTPUT),
    "output_result_too_large": ErrorRow(-32603, "outputResultTooLarge", members=("limitBytes",), echoed=_OUTPUT),
    "page_event_too_large": ErrorRow(-32603, "pageEventTooLarge", members=("limitBytes", "viewCursor")),
    "frame_too_large": ErrorRow(-32603, "internal", members=("limitBytes",), reason=camel),
    # approvals and user input
    "approval_already_resolved": ErrorRow(
        -32051, "approvalAlreadyResolved", members=("resolution",), echoed=("approvalId",)
    ),
    "approval_choice_invalid": ErrorRow(-32052, "approvalChoiceInvalid", echoed=("approvalId", "choiceId")),
    "approval_requirement_stale": ErrorRow(
        -32053, "approvalRequirementStale", members=("currentRequirementId",), echoed=("approvalId",)
    ),
    "approval_reviewer_unavailable": ErrorRow(-32054, "approvalReviewerUnavailable", echoed=("approvalId",)),
    "user_input_already_settled": ErrorRow(
        -32056, "userInputAlreadySettled", members=("settlement",), echoed=("userInputId",)
    ),
    "user_input_answer_invalid": ErrorRow(-32057, "userInputAnswerInvalid", echoed=("userInputId",)),
    # our own trouble: the message is for the log
    **_rows(
        "internal config_invalid flow_error fenced",
        ErrorRow(-32603, "internal", reason=camel, text="internal error"),
    ),
    **_rows(
        "store_error store_held store_refused store_damaged",
        ErrorRow(-32603, "internal", reason=camel, text="the store cannot be used"),
    ),
    "commit_failed": ErrorRow(-32603, "internal", reason=camel, text="the store could not write; nothing was changed"),
}


def row_for(error: RefoldError) -> ErrorRow:
    """The row of the error's exact kind, or else of the nearest class above it. Total: `internal` is the last one."""
    kinds = (error.kind, *(cls.kind for cls in type(error).__mro__ if issubclass(cls, RefoldError)))
    return next(ERRORS[kind] for kind in kinds if kind in ERRORS)


def error_object(error: RefoldError, asked: Json = None) -> dict[str, Json]:
    """Returns the `error` member of an answer: `{code, message, data: {kind, …}}`.

    Args:
        error: what is told. Its data has snake_case names, at every depth.
        asked: the params of the refused request, whatever they are; an error need not repeat the ids that stand there.
    """
    row = row_for(error)
    known = _wire_names(error.data)
    data: dict[str, Json] = {"kind": row.kind, **row.fixed}
    if row.retryable is not None:
        data["retryable"] = known.get("retryable", row.retryable)
    if row.reason is not None:
        named = None if row.text else known.get("reason")
        data["reason"] = named or row.reason(error.kind)
    data |= _echo(row.echoed, asked)
    data |= {name: known[name] for name in (*row.members, *row.echoed) if known.get(name) is not None}
    data |= {name: known.get(name) for name in row.nullable}
    if details := {name: known[name] for name in row.details if name in known}:
        data["details"] = details
    return {"code": row.code, "message": (row.text or error.message)[:TEXT_CHARS], "data": data}


def _wire_names(value: Json) -> Json:
    """Renames the members of objects at every depth; values stay."""
    if isinstance(value, dict):
        return {camel(name): _wire_names(member) for name, member in value.items()}
    return [_wire_names(item) for item in value] if isinstance(value, list | tuple) else value


def _echo(names: tuple[str, ...], asked: Json) -> dict[str, str]:
    values = {name: asked.get(name) for name in names} if isinstance(asked, dict) else {}
    return {name: value for name, value in values.items() if isinstance(value, str) and len(value) <= ECHO_CHARS}
