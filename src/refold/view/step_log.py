"""The log records of steps: how each is built, and how it renders. A step is a `toolCall` item under its own id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.canonical import decode
from refold.records import AttemptStatus, Lane, LogRecord, LogRow, LogType
from refold.view.parts import Members, Part, Renderer, item, opened_by, present
from refold.view.payload import Payload, args_text, clip, shown

ITEM_STATUS: Final[Mapping[AttemptStatus, str]] = {
    AttemptStatus.PASSED: "completed",
    AttemptStatus.SKIPPED: "completed",
    AttemptStatus.BLOCKED: "failed",
    AttemptStatus.FAILED: "failed",
    AttemptStatus.TIMEOUT: "timedOut",
    AttemptStatus.CANCELLED: "cancelled",
}
"""How the item of a step ends whose last attempt ended so."""


def step_dispatched(
    at: int,
    *,
    run: int,
    turn_id: str,
    step_id: str,
    ref: str,
    args: Payload,
    attempt: int,
    occurrence: int,
    lane: Lane,
    input_hash: str,
) -> LogRecord:
    """A step is given to its agent.

    Args:
        at: when.
        run: the Run's integer key.
        turn_id: the turn.
        step_id: the step.
        ref: the agent's name.
        args: the directive as JSON text, stowed.
        attempt: which try of this dispatch.
        occurrence: which dispatch of this question.
        lane: where in the flow.
        input_hash: the question's hash.
    """
    body = {
        "ref": ref,
        "args": args,
        "attempt": attempt,
        "occurrence": occurrence,
        "lane": [list(hop) for hop in lane],
        "input_hash": input_hash,
    }
    return LogRecord(type=LogType.STEP_DISPATCHED, at=at, body=body, run=run, turn_id=turn_id, item_id=step_id)


def _step_dispatched(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    return [("item/started", {"item": _tool_call(row, body, revision=row.revision, status="inProgress")})]


def step_retried(
    at: int,
    *,
    run: int,
    turn_id: str,
    step_id: str,
    origin: int,
    outcome: AttemptStatus,
    ms: int,
    attempt: int,
    max_attempts: int,
    delay_ms: int,
    reason: str,
) -> LogRecord:
    """An attempt did not pass, and its agent's policy has the step tried again; the item stays open.

    Args:
        at: when.
        run: the Run's integer key.
        turn_id: the turn.
        step_id: the step.
        origin: the seq of its `step_dispatched`.
        outcome: how the attempt ended.
        ms: how long it took.
        attempt: which try it was.
        max_attempts: how many there may be.
        delay_ms: until the next one.
        reason: for people.
    """
    body = {
        "outcome": str(outcome),
        "ms": ms,
        "attempt": attempt,
        "max_attempts": max_attempts,
        "delay_ms": delay_ms,
        "reason": clip(reason, 256),
    }
    return LogRecord(
        type=LogType.STEP_RETRIED, at=at, body=body, run=run, turn_id=turn_id, item_id=step_id, origin=origin
    )


def _step_retried(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    scheduled = {
        "turnId": row.turn_id,
        "attempt": body["attempt"],
        "maxAttempts": body["max_attempts"],
        "nextAttempt": body["attempt"] + 1,
        "reason": body["reason"],
        "retryDelayMs": body["delay_ms"],
        "errorKind": body["outcome"],
    }
    return [("turn/retryScheduled", scheduled)]


def step_reattempted(
    at: int, *, run: int, turn_id: str, step_id: str, origin: int, ref: str, attempt: int
) -> LogRecord:
    """The next attempt of a step begins. No frame: to a client the item was open all the while."""
    return LogRecord(
        type=LogType.STEP_REATTEMPTED,
        at=at,
        body={"ref": ref, "attempt": attempt},
        run=run,
        turn_id=turn_id,
        item_id=step_id,
        origin=origin,
    )


def _step_reattempted(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    return []


def step_completed(
    at: int,
    *,
    run: int,
    turn_id: str,
    step_id: str,
    origin: int,
    outcome: AttemptStatus,
    ms: int,
    output: Payload | None = None,
    failure: tuple[str, str] | None = None,
    status: str | None = None,
    revision: int = 2,
    mended: bool = False,
) -> LogRecord:
    """A step is over.

    Args:
        at: when.
        run: the Run's integer key.
        turn_id: the turn in which it ends; it may have begun in an earlier one.
        step_id: the step.
        origin: the seq of its `step_dispatched`.
        outcome: how its last attempt ended.
        ms: how long it took.
        output: the output, stowed; None if there is none.
        failure: kind and reason, for people.
        status: the item's status, where `ITEM_STATUS` does not know it: a step that was denied is `rejected`.
        revision: above that of every frame of the item so far.
        mended: whether what its agent said is shown with U+FFFD for what no text can hold.
    """
    body = present(
        status=status or ITEM_STATUS[outcome],
        outcome=str(outcome),
        output=output,
        failure=None if failure is None else {"kind": failure[0], "reason": clip(failure[1])},
        ms=ms,
        mended=mended or None,
    )
    return LogRecord(
        type=LogType.STEP_COMPLETED,
        at=at,
        body=body,
        run=run,
        turn_id=turn_id,
        item_id=step_id,
        origin=origin,
        revision=revision,
    )


def _step_completed(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    opened, failure = opened_by(row, opening), body.get("failure", {})
    call = _tool_call(
        opened,
        decode(opened.body_json),
        revision=row.revision,
        status=body["status"],
        durationMs=body["ms"],
        failureKind=failure.get("kind"),
        failureReason=failure.get("reason"),
        mended=body.get("mended"),
        **shown("visibleOutput", body.get("output")),
    )
    return [("item/completed", {"item": call})]


def child(step_id: str, *, ref: str, attempt: int, status: str, failure: tuple[str, str] | None = None) -> Members:
    """Returns a step as a workflow item lists it among its children."""
    kind, reason = failure or (None, None)
    return present(
        childId=step_id,
        attempt=attempt,
        status=status,
        label=ref,
        failureKind=kind,
        failureReason=None if reason is None else clip(reason, 256),
    )


def _tool_call(opened: LogRow, opening_body: Members, **members: Any) -> Members:
    assert opened.item_id is not None, "a row that opens an item names it"
    return item(
        opened.item_id,
        "toolCall",
        opened,
        tool=opening_body["ref"],
        callId=opened.item_id,
        taskId=opened.item_id,
        args=args_text(opening_body["args"]),
        approvalId=opening_body.get("request_id") if opened.type == LogType.APPROVAL_OPENED else None,
        **members,
    )


RENDERERS: Final[Mapping[LogType, Renderer]] = {
    LogType.STEP_DISPATCHED: _step_dispatched,
    LogType.STEP_RETRIED: _step_retried,
    LogType.STEP_REATTEMPTED: _step_reattempted,
    LogType.STEP_COMPLETED: _step_completed,
}
