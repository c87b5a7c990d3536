"""The trace of a Run: what its engine did, in order, told from the same log rows that clients see as frames.

    core.run_started {mode} · core.step_dispatched · core.step_completed {status, duration_ms, replayed} ·
    core.run_finished {status, reason?}

A step that is answered from the replay log leaves no record, so every entry here was executed: `replayed` is false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from refold.canonical import Json, decode
from refold.records import ActivationRow, LogRow, LogType
from refold.view.parts import Members, rfc3339


def trace(activation: ActivationRow, rows: Iterable[LogRow]) -> list[Members]:
    """Returns the entries of one activation: `{seq, ts, kind, step_ref?, attempt?, payload}`.

    Args:
        activation: the activation.
        rows: the Session's rows from its opening to its closing, in order; those of other Runs are left out.
    """
    entries: list[Members] = []
    steps: dict[str | None, Members] = {}
    for row in rows:
        tell = _ENTRIES.get(LogType(row.type))
        if tell is None or row.run != activation.run:
            continue
        body = decode(row.body_json)
        if "ref" in body:
            steps[row.item_id] = {"step_ref": body["ref"], "attempt": body["attempt"]}
        kind, payload = tell(activation, body)
        about = steps.get(row.item_id, {}) | ({"step_id": row.item_id} if row.item_id else {})
        entries.append({"seq": row.seq, "ts": rfc3339(row.at), "kind": kind, **about, "payload": payload})
    return entries


def _started(activation: ActivationRow, body: Members) -> tuple[str, Json]:
    about = {"activation": activation.activation, "generation": activation.generation, "epoch": activation.epoch}
    return "core.run_started", {"mode": activation.verb, "turn_id": activation.turn_id, **about}


def _dispatched(activation: ActivationRow, body: Members) -> tuple[str, Json]:
    return "core.step_dispatched", {name: body[name] for name in ("occurrence", "lane", "input_hash") if name in body}


def _completed(activation: ActivationRow, body: Members) -> tuple[str, Json]:
    return "core.step_completed", {"status": body["outcome"], "duration_ms": body["ms"], "replayed": False}


def _finished(activation: ActivationRow, body: Members) -> tuple[str, Json]:
    reason = {"reason": body["reason"]} if body.get("reason") else {}
    return "core.run_finished", {"status": activation.status, **reason}


_ENTRIES: Final[Mapping[LogType, Callable[[ActivationRow, Members], tuple[str, Json]]]] = {
    LogType.TURN_OPENED: _started,
    LogType.TURN_WOKEN: _started,
    LogType.STEP_DISPATCHED: _dispatched,
    LogType.STEP_REATTEMPTED: _dispatched,
    LogType.STEP_RETRIED: _completed,
    LogType.STEP_COMPLETED: _completed,
    LogType.TURN_COMPLETED: _finished,
    LogType.TURN_ENDED: _finished,
}
