"""The log records of requests: approvals and user input, how each is built, and how it renders.

A request opens the item of its step: whoever comes late finds the item, and the request in it. Its settlement is a
record of its own; the item goes on from there, or ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from refold.canonical import Json, decode
from refold.records import LogRecord, LogRow, LogType, RequestRow
from refold.view.parts import Members, Part, Renderer, item, present, rfc3339
from refold.view.payload import Payload, args_text


def request_opened(at: int, request: RequestRow, args: Payload) -> LogRecord:
    """A person is asked. The question stands in the record, so that it can be asked again at any time.

    Args:
        at: when.
        request: the request.
        args: its action as JSON text, stowed: a person who is shown only the head of a long one is told so.
    """
    kind = LogType.APPROVAL_OPENED if request.kind == "approval" else LogType.INPUT_OPENED
    body = {
        "ref": request.step_ref,
        "args": args,
        "request_id": request.request_id,
        "title": request.title,
        "choices": decode(request.choices_json),
        "questions": decode(request.questions_json),
        "attempt": 0,
    }
    return LogRecord(type=kind, at=at, body=body, run=request.run, turn_id=request.turn_id, item_id=request.step_id)


def _approval_opened(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    return [_item_opened(row, body), ("approval/requested", _approval(row, body))]


def _approval(row: LogRow, body: Members) -> Members:
    return {
        "approvalId": body["request_id"],
        "turnId": row.turn_id,
        "taskId": row.item_id,
        "itemId": row.item_id,
        "toolCallId": row.item_id,
        "toolName": body["ref"],
        "rawArgs": args_text(body["args"]),
        "subject": {"kind": "tool", "toolName": body["title"] or body["ref"]},
        "currentRequirementId": {"approvalId": body["request_id"], "sourceIndex": 0},
        "availableChoices": [
            {
                "choiceId": choice["id"],
                "label": choice["label"],
                "decision": choice["decision"],
                "scope": "once",
                "acceptsFeedback": True,
            }
            for choice in body["choices"]
        ],
        "protectedWrite": False,
        "judgeEscalated": False,
    }


def _input_opened(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    asked = {
        "userInputId": body["request_id"],
        "itemId": row.item_id,
        "turnId": row.turn_id,
        "toolCallId": row.item_id,
        "toolName": body["ref"],
        "questions": body["questions"],
    }
    return [_item_opened(row, body), ("userInput/requested", asked)]


def request_settled(
    at: int,
    request: RequestRow,
    *,
    decision: str,
    command_id: str | None = None,
    answers: Json = (),
    reason: str | None = None,
    by: str = "user",
) -> LogRecord:
    """A request is settled.

    Args:
        at: when.
        request: the request.
        decision: for an approval the decision, `timedOut` or `abort`; for user input the outcome.
        command_id: the command that settled it.
        answers: of user input, by the names of the wire.
        reason: of user input that was cancelled, in the person's words.
        by: `user`, or `policy` where nobody decided.
    """
    kind = LogType.APPROVAL_RESOLVED if request.kind == "approval" else LogType.INPUT_SETTLED
    body = present(
        request_id=request.request_id,
        decision=decision,
        by=by,
        command=command_id,
        answers=list(answers),
        reason=reason,
    )
    return LogRecord(
        type=kind,
        at=at,
        body=body,
        run=request.run,
        turn_id=request.turn_id,
        item_id=request.step_id,
        origin=request.opened,
    )


def _approval_resolved(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    resolved = present(
        approvalId=body["request_id"],
        itemId=row.item_id,
        turnId=row.turn_id,
        decision=body["decision"],
        policyResult="allow" if body["decision"].startswith("approved") else "deny",
        resolvedBy=body["by"],
        decidedByCommandId=body.get("command"),
        decidedAt=rfc3339(row.at),
        stageEvidence=[],
    )
    return [("approval/resolved", resolved)]


def _input_settled(row: LogRow, body: Members, opening: LogRow | None) -> list[Part]:
    settled = {
        "userInputId": body["request_id"],
        "outcome": body["decision"],
        "answers": body["answers"],
        "clarification": None,
        "reason": body.get("reason"),
        "decidedByCommandId": body.get("command"),
        "decidedAt": rfc3339(row.at),
    }
    return [("userInput/settled", settled)]


def _item_opened(row: LogRow, body: Members) -> Part:
    call = item(
        row.item_id or "",
        "toolCall",
        row,
        revision=row.revision,
        status="inProgress",
        tool=body["ref"],
        callId=row.item_id,
        taskId=row.item_id,
        args=args_text(body["args"]),
        approvalId=body["request_id"] if row.type == LogType.APPROVAL_OPENED else None,
    )
    return "item/started", {"item": call}


RENDERERS: Final[Mapping[LogType, Renderer]] = {
    LogType.APPROVAL_OPENED: _approval_opened,
    LogType.APPROVAL_RESOLVED: _approval_resolved,
    LogType.INPUT_OPENED: _input_opened,
    LogType.INPUT_SETTLED: _input_settled,
}
