"""What records look like over HTTP: one function a noun."""

from __future__ import annotations

from typing import Any

import msgspec

from refold.canonical import decode, encode
from refold.engine.activation import snapshot
from refold.flowir.lint import Lint
from refold.records import AttemptRow, BlueprintRecord, RunRecord, TaskRecord
from refold.service.reruns import Preview
from refold.service.runs import LoggedStep
from refold.view import rfc3339

Json = Any


def run(record: RunRecord, attempts: list[AttemptRow] | None = None) -> Json:
    """A Run. In lists without its step entries."""
    shown = {
        "run_id": record.run_id,
        "task_id": record.task_id,
        "session_id": record.session_id,
        "status": record.status,
        "waiting_on": record.waiting_on,
        "epoch": record.epoch,
        "generation": record.generation,
        "activation": record.activation,
        "turn_id": record.turn_id,
        "result_ref": _maybe(record.result_json),
        "blueprint": _blueprint(record),
        "labels": decode(record.labels_json),
        "created_at": rfc3339(record.created_at),
        "updated_at": rfc3339(record.updated_at),
        "started_at": _time(record.started_at),
        "ended_at": _time(record.ended_at),
        "degradations": [],
    }
    return shown if attempts is None else shown | {"step_entries": [step(attempt) for attempt in attempts]}


def step(attempt: AttemptRow) -> Json:
    """One attempt of one step. `status` is null while it runs, and for ever where a crash cut it off."""
    return {
        "step_id": attempt.step_id,
        "step_ref": attempt.step_ref,
        "status": attempt.status,
        "attempt": attempt.attempt,
        "occurrence": attempt.occurrence,
        "lane": decode(attempt.lane_json),
        "input_hash": attempt.input_hash,
        "generation": attempt.generation,
        "epoch": attempt.epoch,
        "started_at": rfc3339(attempt.started_at),
        "ended_at": _time(attempt.ended_at),
        "duration_ms": None if attempt.ended_at is None else max(0, attempt.ended_at - attempt.started_at),
    }


def replay_row(step: LoggedStep, run_id: str) -> Json:
    """One row of the replay log; its dispatch Ctx only where it was asked for."""
    row = step.row
    shown = {
        "run_id": run_id,
        "ordinal": row.ordinal,
        "step_ref": row.step_ref,
        "input_hash": row.input_hash,
        "occurrence": row.occurrence,
        "lane": decode(row.lane_json),
        "generation": row.generation,
        "epoch": row.epoch,
        "live": step.live,
        "step_output_json": row.step_output_json,
        "created_at": rfc3339(row.created_at),
    }
    return shown if step.ctx is None else shown | {"ctx_snapshot_json": encode(step.ctx)}


def preview(found: Preview) -> Json:
    """What a resume or rerun-from would do."""
    return {
        "run_id": found.run.run_id,
        "activation": found.run.activation + 1,
        "steps": [msgspec.to_builtins(step) for step in found.plan.steps],
        "replayed_steps": found.replayed_steps,
        "dropped_steps": found.dropped_steps,
    }


def task(record: TaskRecord) -> Json:
    """A Task."""
    return {
        "task_id": record.task_id,
        "session_id": record.session_id,
        "goal": record.goal,
        "status": record.status,
        "work_dir": record.work_dir,
        "project_root": record.project_root,
        "blueprint": decode(record.blueprint_json),
        "init_ctx": decode(record.init_ctx_json),
        "labels": decode(record.labels_json),
        "created_at": rfc3339(record.created_at),
        "updated_at": rfc3339(record.updated_at),
    }


def blueprint(record: BlueprintRecord, *, body: bool) -> Json:
    """A version of a Blueprint; in lists without its body."""
    shown = {
        "id": record.blueprint_id,
        "version": record.version,
        "created_at": rfc3339(record.created_at),
        "archived_at": _time(record.archived_at),
    }
    return shown | ({"value": decode(record.body_json)} if body else {})


def lint(found: Lint) -> Json:
    """What a lint found."""
    return {"ok": not found.faults, "faults": list(found.faults), "warnings": list(found.warnings)}


def _blueprint(record: RunRecord) -> Json:
    if record.input_json is None:
        return None
    named = snapshot(record)["blueprint"]
    return {"id": named["id"], "version": named["version"]}


def _maybe(text: str | None) -> Json:
    return None if text is None else decode(text)


def _time(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)
