"""The log records of turns: how each is built, and how it renders.

A turn is one activation of a Run. It is shown as the turn itself, as a `workflow` item (`W-` + turn id), and where they
exist as the input (`U-`) and the final answer (`A-`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from refold.canonical import decode
from refold.records import LogRecord, LogRow, LogType
from refold.view.parts import Members, Part, Renderer, item, opened_by, present, turn_error
from refold.view.payload import Payload, clip, shown

MAX_CHILDREN: Final = 64
"""How many children a workflow item lists. A fan-out of 10,000 failed lanes must not make a frame of 10,000 entries."""


def turn_opened(
    at: int,
    *,
    run: int,
    turn_id: str,
    command: str,
    text: Payload,
    run_id: str,
    blueprint: str,
    trigger: str,
    display: str | None = None,
    resume_from: str | None = None,
) -> LogRecord:
    """An activation begins with a person's input.

    Args:
        at: when.
        run: the Run's integer key.
        turn_id: the turn.
        command: the command that wakes it.
        text: the input, stowed.
        run_id: the Run.
        blueprint: the model id that the Run runs under.
        trigger: what asked for the activation, such as `turn/start`.
        display: how to show the input, if not as `text`.
        resume_from: the Run that this activation continues; None if it is the first one.
    """
    body = present(
        command=command,
        text=text,
        display=None if display is None else clip(display),
        run_id=run_id,
        blueprint=blueprint,
        trigger=trigger,
        resume_from=resume_from,
    )
    return LogRecord(type=LogType.TURN_OPENED, at=at, body=body, run=run, turn_id=turn_id)


def _turn_opened(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    started, workflow = _turn_woken(row, body, opening)
    message = item(
        f"U-{row.turn_id}",
        "userMessage",
        row,
        revision=1,
        status="completed",
        commandId=body["command"],
        displayText=body.get("display"),
        **shown("text", body["text"]),
    )
    return [started, ("item/completed", {"item": message}), workflow]


def turn_woken(
    at: int,
    *,
    run: int,
    turn_id: str,
    run_id: str,
    blueprint: str,
    trigger: str,
    command: str | None = None,
    resume_from: str | None = None,
) -> LogRecord:
    """An activation begins without input: a launch over HTTP, a resume, a rerun. Members as in `turn_opened`."""
    body = present(
        command=command or turn_id, run_id=run_id, blueprint=blueprint, trigger=trigger, resume_from=resume_from
    )
    return LogRecord(type=LogType.TURN_WOKEN, at=at, body=body, run=run, turn_id=turn_id)


def _turn_woken(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    started = present(turnId=row.turn_id, commandId=body["command"], displayText=body.get("display"))
    workflow = _workflow(row, body, revision=1, status="inProgress", children=[])
    return [("turn/started", started), ("item/started", {"item": workflow})]


def turn_completed(
    at: int, *, run: int, turn_id: str, origin: int, answer: Payload, ms: int, children: Sequence[Members] = ()
) -> LogRecord:
    """An activation ends well.

    Args:
        at: when.
        run: the Run's integer key.
        turn_id: the turn.
        origin: the seq of the record that opened it.
        answer: the final answer, stowed.
        ms: how long it took.
        children: steps that failed on the way, each made by `step_log.child`.
    """
    body = {"answer": answer, "ms": ms, "children": list(children[:MAX_CHILDREN])}
    return LogRecord(type=LogType.TURN_COMPLETED, at=at, body=body, run=run, turn_id=turn_id, origin=origin, revision=2)


def _turn_completed(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    answer = item(
        f"A-{row.turn_id}",
        "agentMessage",
        row,
        revision=1,
        status="completed",
        messagePhase="finalAnswer",
        **shown("text", body["answer"]),
    )
    return [
        _workflow_closed(row, body, opening, status="completed"),
        ("item/completed", {"item": answer}),
        ("turn/completed", {"turnId": row.turn_id, "terminal": "completed", "durationMs": body["ms"]}),
    ]


def turn_ended(
    at: int,
    *,
    run: int,
    turn_id: str,
    origin: int,
    terminal: Literal["failed", "cancelled"],
    reason: str,
    ms: int,
    message: str | None = None,
    children: Sequence[Members] = (),
) -> LogRecord:
    """An activation ends without an answer: failed, cancelled, interrupted, or its server died.

    Args:
        at: when.
        run: the Run's integer key.
        turn_id: the turn.
        origin: the seq of the record that opened it.
        terminal: how the turn ends.
        reason: short and stable, such as `server restart`.
        ms: how long it took.
        message: what a person reads, if not `reason`. Clipped: the Run's result has the whole text.
        children: steps that failed or were still open, each made by `step_log.child`.
    """
    body = present(
        terminal=terminal,
        reason=reason,
        message=None if message is None else clip(message),
        ms=ms,
        children=list(children[:MAX_CHILDREN]),
    )
    return LogRecord(type=LogType.TURN_ENDED, at=at, body=body, run=run, turn_id=turn_id, origin=origin, revision=2)


def _turn_ended(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    terminal, message = body["terminal"], body.get("message", body["reason"])
    ended = present(
        turnId=row.turn_id,
        terminal=terminal,
        error=turn_error("runFailed", message) if terminal == "failed" else None,
        reason=body["reason"],
        durationMs=body["ms"],
    )
    return [_workflow_closed(row, body, opening, status=terminal, message=message), ("turn/completed", ended)]


def turn_refused(at: int, *, run: int, turn_id: str, message: str) -> LogRecord:
    """A queued turn cannot launch. It never started, so it has no workflow item to close."""
    return LogRecord(type=LogType.TURN_REFUSED, at=at, body={"message": clip(message)}, run=run, turn_id=turn_id)


def _turn_refused(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    error = turn_error("launchError", body["message"])
    return [("turn/completed", {"turnId": row.turn_id, "terminal": "failed", "error": error})]


def turn_unqueued(at: int, *, run: int, turn_id: str, command: str) -> LogRecord:
    """A queued turn is taken back. `command` is the turn/start that queued it, not the turn/unqueue."""
    return LogRecord(type=LogType.TURN_UNQUEUED, at=at, body={"command": command}, run=run, turn_id=turn_id)


def _turn_unqueued(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    return [("turn/unqueued", {"turnId": row.turn_id, "commandId": body["command"]})]


def workflow_item(turn_id: str | None) -> str:
    """Returns the id of the item that shows an activation as a whole."""
    return f"W-{turn_id}"


def _workflow(opened: LogRow, opening_body: Members, **members: Any) -> Members:
    return item(
        workflow_item(opened.turn_id),
        "workflow",
        opened,
        workflowRunId=opening_body["run_id"],
        entryId=opening_body["blueprint"],
        scriptId=opening_body["blueprint"],
        triggerSource=opening_body["trigger"],
        resumeFromRunId=opening_body.get("resume_from"),
        **members,
    )


def _workflow_closed(row: LogRow, body: Members, opening: LogRow | None, **members: Any) -> Part:
    opened = opened_by(row, opening)
    closed = _workflow(
        opened,
        decode(opened.body_json),
        revision=row.revision,
        durationMs=body["ms"],
        children=body["children"],
        **members,
    )
    return "item/completed", {"item": closed}


RENDERERS: Final[Mapping[LogType, Renderer]] = {
    LogType.TURN_OPENED: _turn_opened,
    LogType.TURN_WOKEN: _turn_woken,
    LogType.TURN_COMPLETED: _turn_completed,
    LogType.TURN_ENDED: _turn_ended,
    LogType.TURN_REFUSED: _turn_refused,
    LogType.TURN_UNQUEUED: _turn_unqueued,
}
