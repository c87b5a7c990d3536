"""The desk: where drivers wait for people, and who settles what is asked.

A request is a durable record; the desk is only the bell beside it. `settle` is the one compare-and-set through which a
request leaves `open`, whoever does it: a person over any door, an expiry, a rerun-from, a cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from refold import view
from refold.canonical import encode
from refold.errors import Conflict
from refold.records import AttemptStatus, RequestRow, RequestStatus, RunRecord
from refold.store import Tx, append_log

Json = Any

_SHOWN = {RequestStatus.EXPIRED: "timedOut", RequestStatus.VOIDED: "abort"}
_SHOWN_INPUT = {RequestStatus.EXPIRED: "timedOut", RequestStatus.VOIDED: "aborted"}
"""How an end that nobody decided is shown."""


class Desk:
    """The drivers of this process that wait for requests."""

    def __init__(self) -> None:
        self._waiting: dict[str, Callable[[RequestRow], None]] = {}
        self._tell_asked: Callable[[RequestRow], None] = lambda request: None

    def on_asked(self, tell: Callable[[RequestRow], None]) -> None:
        """Has `tell` called whenever a driver begins to wait for a request that is on record. It must not wait."""
        self._tell_asked = tell

    def asked(self, request: RequestRow) -> None:
        """A driver begins to wait for a request; after an interruption, it or another one does so again."""
        self._tell_asked(request)

    def wait(self, request_id: str, tell: Callable[[RequestRow], None]) -> None:
        """Has `tell` called when the request is settled."""
        self._waiting[request_id] = tell

    def leave(self, request_id: str) -> None:
        """Ends a wait."""
        self._waiting.pop(request_id, None)

    def ring(self, request: RequestRow) -> bool:
        """Tells whoever waits that the request is settled, after the commit. False if nobody does."""
        tell = self._waiting.pop(request.request_id, None)
        if tell is not None:
            tell(request)
        return tell is not None


def settle(
    tx: Tx,
    request: RequestRow,
    status: RequestStatus,
    resolution: Json,
    at: int,
    *,
    command_id: str | None = None,
    answers: Json = (),
) -> RequestRow:
    """Settles an open request and shows it; returns the record as it now stands.

    Raises Conflict with the resolution if it is settled already: the first valid answer wins.
    """
    if request.status != RequestStatus.OPEN:
        raise already_settled(request)
    decision, by = resolution["decision"], resolved_by(resolution)
    if by == "policy":
        decision = (_SHOWN_INPUT if request.kind == "input" else _SHOWN)[status]
    record = view.request_settled(
        at,
        request,
        decision=decision,
        command_id=command_id,
        answers=answers,
        reason=resolution.get("reason"),
        by=by,
    )
    (row,) = append_log(tx, request.session, [record])
    settled = msgspec.structs.replace(
        request, status=status, settled=row.seq, settled_at=at, resolution_json=encode(resolution)
    )
    changes = {name: getattr(settled, name) for name in ("status", "settled", "settled_at", "resolution_json")}
    if not tx.update(RequestRow, (request.n,), where={"status": RequestStatus.OPEN}, **changes):
        raise already_settled(request)
    return settled


def resolved_by(resolution: Json) -> str:
    """Who the view says has settled a request: `policy` where nobody did."""
    return "policy" if resolution["by"] == "refold" else "user"


def expire(request_id: str, at: int, tx: Tx) -> RequestRow:
    """Settles a request that nobody answered in time: its outcome is `expired`, and nothing says that a person denied.

    Raises Conflict if somebody did.
    """
    (request,) = tx.find(RequestRow, request_id=request_id)
    return settle(tx, request, RequestStatus.EXPIRED, {"decision": "expired", "by": "refold"}, at)


def retire_requests(tx: Tx, run: RunRecord, at: int, ids: Collection[str] | None = None) -> None:
    """Ends what a Run was asked and will not go on from, of these requests or of all: open ones are voided.

    Each such request has an item that is open; it closes here, once. The request counts as consumed from then on, or
    the next end of the Run would close its item again.
    """
    for request in tx.find(RequestRow, run=run.n, consumed=False):
        if ids is not None and request.request_id not in ids:
            continue
        if request.status == RequestStatus.OPEN:
            settle(tx, request, RequestStatus.VOIDED, {"decision": "void", "by": "refold"}, at)
        closed = view.step_completed(
            at,
            run=run.n,
            turn_id=run.turn_id or request.turn_id,
            step_id=request.step_id,
            origin=request.opened,
            outcome=AttemptStatus.CANCELLED,
            ms=max(0, at - request.opened_at),
        )
        append_log(tx, request.session, [closed])
        tx.update(RequestRow, (request.n,), consumed=True)


def already_settled(request: RequestRow) -> Conflict:
    """The loser's answer."""
    kind = "approval_already_resolved" if request.kind == "approval" else "user_input_already_settled"
    return Conflict(
        f"request {request.request_id} is {request.status}; the first answer counts",
        kind=kind,
        request_id=request.request_id,
        status=request.status,
    )
