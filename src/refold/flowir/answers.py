"""What a person's answer means to the step that asked: an outcome, or leave to go on.

A driver and a dry replay read answers by this one function, so a preview cannot promise what a resume would not do.
Not here: what is asked, and of whom (`engine.asking`); who may settle a request (`service.requests`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.canonical import decode
from refold.flowir.messages import Blocked, Outcome, Pass
from refold.records import RequestRow

Json = Any

_GATES: Final = frozenset({"policy", "ambiguous"})
"""Sources whose approval lets a step be done. A node's approval is itself the step."""

_SHOWN: Final = ("choice", "by", "feedback")


def outcome_of(request: RequestRow, on_deny: str = "fail") -> Outcome | None:
    """What a settled request means to its step; None where the step may now be done.

    Args:
        request: the request, which is not open.
        on_deny: of the node that asked: whether the flow reads a denial (`continue`) or is blocked by it (`fail`).
    """
    said = decode(request.resolution_json or "{}")
    if request.kind == "input":
        return Pass(said["value"]) if said["decision"] == "answered" else Blocked(_refusal(said))
    decision = plain(said["decision"])
    answer = {name: said[name] for name in _SHOWN if name in said} | {"decision": decision}
    if request.source in _GATES:
        return None if decision == "approved" else Blocked(answer)
    if decision == "approved" or on_deny == "continue":
        return Pass(answer)
    return Blocked(answer)


def plain(decision: str) -> str:
    """What a flow reads: `approved`, `denied` or `expired`; the doors, and an author's choices, know finer words."""
    if decision == "expired":
        return decision
    return "approved" if decision.startswith("approved") else "denied"


def _refusal(said: Mapping[str, Json]) -> Json:
    return {name: said[name] for name in ("decision", "by", "reason") if name in said}
