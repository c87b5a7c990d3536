"""Every typed error of refold: a `kind`, a text, and data to branch on.

    RefoldError
    ├── BadInput            the caller sent something that cannot be accepted; nothing was changed
    │   ├── InvalidJson         not JSON as refold accepts it (NaN, duplicate keys, depth, surrogates …)
    │   ├── InvalidId           an id that does not have the shape of its kind
    │   ├── InvalidRequest      a request whose members are missing, unknown or of the wrong type
    │   ├── ConfigInvalid       a configuration file or flag that cannot be used
    │   ├── ImportInvalid       a file that is not, or not any more, what `refold export` wrote
    │   └── BlueprintInvalid    a Blueprint with faults; `faults` lists every one with its JSON path
    ├── NotFound            an id of the right shape that names nothing
    ├── Unauthorized        no token, or a wrong one
    ├── Forbidden           a token that may not do this, or a Host or Origin that may not ask
    ├── Conflict            a true statement about the state forbids the call; the state is unchanged
    │   ├── NotInterrupted      resume of a Run that is not interrupted, or a race that was lost
    │   ├── SessionBusy         another activation runs in the Session
    │   ├── CommandConflict     a command id that was used before with another body
    │   └── CommandRejected     a command that does not apply to the state it met
    ├── Unprocessable       well-formed, but there is nothing to act on (no launch input, no such step)
    ├── CursorRefused       the three typed "no"s of a read that is anchored at a position
    │   ├── MissingAnchor       the cursor never existed in this Session's view
    │   ├── BoundaryPruned      the compaction anchor existed, and retention has pruned its boundary
    │   └── ViewTruncated       the position predates what is retained, or what fits the budget
    ├── FlowError           an evaluation ended in an error; its text is the flow's to catch
    ├── Fenced              a driver wrote with an epoch that is no longer the Run's
    └── StoreError          the store cannot be used, or a commit did not happen
        ├── StoreHeld           another process holds it
        ├── StoreRefused        newer, foreign, read-only: not opened, not touched
        ├── StoreDamaged        a hash or a chain does not match
        └── CommitFailed        disk full or I/O error: nothing of the batch is acknowledged

This module knows no HTTP and no JSON-RPC: `server/http_errors.py` and `protocol/codes.py` each map `kind`, and one test
asserts that both maps are total.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RefoldError(Exception):
    """Base of all typed errors. `kind` names the state a caller branches on, `data` describes it."""

    kind: ClassVar[str] = "internal"

    def __init__(self, message: str, *, kind: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data
        if kind is not None:
            self.kind = kind  # type: ignore[misc]  # an instance may be more exact than its class


class BadInput(RefoldError):
    """The caller sent something that cannot be accepted; nothing was changed."""

    kind = "bad_input"


class InvalidJson(BadInput):
    """Text that is not JSON as refold accepts it."""

    kind = "invalid_json"


class InvalidId(BadInput):
    """An id that does not have the shape of its kind."""

    kind = "invalid_id"


class InvalidRequest(BadInput):
    """A request whose members are missing, unknown or of the wrong type."""

    kind = "invalid_request"


class ConfigInvalid(BadInput):
    """A configuration file or flag that cannot be used."""

    kind = "config_invalid"


class ImportInvalid(BadInput):
    """A file that is not, or not any more, what `refold export` wrote: another format, cut off, or changed."""

    kind = "import_invalid"


class BlueprintInvalid(BadInput):
    """A Blueprint with faults. `data["faults"]` holds every fault: `{path, kind, message, hint}`."""

    kind = "blueprint_invalid"


class NotFound(RefoldError):
    """An id of the right shape that names nothing. `kind` is `<noun>_not_found`."""

    kind = "not_found"


class Unauthorized(RefoldError):
    """No token, or a wrong one."""

    kind = "unauthorized"


class Forbidden(RefoldError):
    """A token that may not do this, or a Host or Origin that may not ask."""

    kind = "forbidden"


class Conflict(RefoldError):
    """A true statement about the state forbids the call; the state is unchanged."""

    kind = "conflict"


class NotInterrupted(Conflict):
    """Resume of a Run that is not interrupted, or a race that was lost. `data["status"]` is the Run's status."""

    kind = "run_not_interrupted"


class SessionBusy(Conflict):
    """Another activation runs in the Session. `data["run_id"]` names its Run."""

    kind = "session_busy"


class CommandConflict(Conflict):
    """A command id that was used before with another body."""

    kind = "command_id_conflict"


class CommandRejected(Conflict):
    """A command that does not apply to the state it met. `data["reason"]` is a snake_case word."""

    kind = "command_rejected"


class Unprocessable(RefoldError):
    """Well-formed, but there is nothing to act on: no launch input, no such step."""

    kind = "unprocessable"


class CursorRefused(RefoldError):
    """Base of the three typed "no"s of a read that is anchored at a position."""

    kind = "cursor_refused"


class MissingAnchor(CursorRefused):
    """The cursor never existed in this Session's view. Says nothing about why, so nothing leaks."""

    kind = "missing_anchor"

    def __init__(self, session_id: str) -> None:
        super().__init__("unknown cursor anchor", session_id=session_id)


class BoundaryPruned(CursorRefused):
    """A compaction anchor whose boundary is gone. `kind` may be no_boundary or boundary_unusable as well."""

    kind = "boundary_pruned"


class ViewTruncated(CursorRefused):
    """The position predates what is retained, or what fits the budget. `data["earliest_cursor"]` may be None."""

    kind = "view_truncated"


class FlowError(RefoldError):
    """An evaluation ended in an error. Its text is what `try` writes at `err_at` and what a failed Run reports."""

    kind = "flow_error"


class Fenced(RefoldError):
    """A driver wrote with an epoch that is no longer the Run's: it must stop, another one owns the Run."""

    kind = "fenced"


class StoreError(RefoldError):
    """The store cannot be used, or a commit did not happen."""

    kind = "store_error"


class StoreHeld(StoreError):
    """Another process holds the store. `data` has `pid` and `url` where they are known."""

    kind = "store_held"


class StoreRefused(StoreError):
    """Newer, foreign or read-only: not opened, not touched."""

    kind = "store_refused"


class StoreDamaged(StoreError):
    """A hash or a chain does not match what is stored."""

    kind = "store_damaged"


class CommitFailed(StoreError):
    """Disk full or I/O error: nothing of the batch may be acknowledged.

    A full disk leaves nothing of it. After an error at the sync itself the whole batch, never a part, can be found by
    whoever opens the store next: SQLite cannot know whether its last frame reached the disk.
    """

    kind = "commit_failed"
