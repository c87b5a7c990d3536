"""Errors into HTTP: the one table from an error's `kind` to its status. A test asserts that it is total.

The body is `{"error": text, "kind", …data}`. An error of ours (5xx) tells its kind only: the text is for the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.errors import RefoldError

STATUS: Final[Mapping[str, int]] = {
    "internal": 500,
    "bad_input": 400,
    "invalid_json": 400,
    "invalid_id": 400,
    "invalid_request": 400,
    "config_invalid": 500,
    "import_invalid": 400,
    "blueprint_invalid": 422,
    "not_found": 404,
    "unauthorized": 401,
    "forbidden": 403,
    "conflict": 409,
    "run_not_interrupted": 409,
    "session_busy": 409,
    "command_id_conflict": 409,
    "command_rejected": 409,
    "run_over": 410,
    "unprocessable": 422,
    "cursor_refused": 410,
    "missing_anchor": 404,
    "boundary_pruned": 410,
    "view_truncated": 410,
    "flow_error": 500,
    "fenced": 409,
    "store_error": 500,
    "store_held": 409,
    "store_refused": 500,
    "store_damaged": 500,
    "commit_failed": 503,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "method_not_allowed": 405,
}


def status_of(error: RefoldError) -> int:
    """The status of the error's exact kind, or else of the nearest class above it."""
    kinds = (error.kind, *(cls.kind for cls in type(error).__mro__ if issubclass(cls, RefoldError)))
    return next(STATUS[kind] for kind in kinds if kind in STATUS)


def body_of(error: RefoldError) -> dict[str, Any]:
    """The body of the error."""
    if status_of(error) >= 500:
        return {"error": "the server could not do this; its log says why", "kind": error.kind}
    return {"error": error.message, "kind": error.kind, **error.data}
