"""What answers look like over HTTP: a struct for each noun, and a function that fills it from a record.

The structs are the schema that the OpenAPI document shows; the functions give plain JSON. Members are never left out
because they are null: only what a route has not read is absent (`msgspec.UNSET`). Times are RFC 3339, UTC.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from refold.canonical import decode, encode
from refold.flowir.lint import Lint
from refold.records import (
    AttemptRow,
    AttemptStatus,
    BlueprintRecord,
    RequestRow,
    RequestStatus,
    RunRecord,
    RunStatus,
    TaskRecord,
)
from refold.service.listing import pinned
from refold.service.reruns import Preview as Previewed
from refold.service.runs import LoggedStep
from refold.view import rfc3339

Json = Any
T = TypeVar("T")
Lane = list[tuple[int, int]]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all answers."""


class Error(Shape, frozen=True, kw_only=True):
    """Every refusal, and every fault. `kind` is what a client branches on; further members depend on it."""

    error: str
    kind: str


class Page(Shape, Generic[T], frozen=True, kw_only=True):
    """A page of a list, and the cursor that leads to the next one; null on the last."""

    items: list[T]
    next_cursor: str | None


class Health(Shape, frozen=True, kw_only=True):
    """The server answers."""

    ok: Literal[True]


class Sweep(Shape, frozen=True, kw_only=True):
    """What the sweep of stale Runs did since the server began."""

    interrupted: int
    faults: int


class OperatorCounts(Shape, frozen=True, kw_only=True):
    """How many operators are attached and present, and how many steps wait for one."""

    attached: int
    present: int
    offers: int


class Status(Shape, frozen=True, kw_only=True):
    """How the server stands: Runs by status, its operators, and what its sweep found."""

    version: str
    runs: dict[RunStatus, int]
    stale_run_sweep: Sweep
    operators: OperatorCounts


class BlueprintName(Shape, frozen=True, kw_only=True):
    """Which Blueprint a Run runs; one that came inline has no id."""

    id: str | None
    version: str


class Step(Shape, frozen=True, kw_only=True):
    """One attempt of one step. `status` is null while it runs, and for ever where a crash cut it off."""

    step_id: str
    step_ref: str
    status: AttemptStatus | None
    attempt: int
    occurrence: int
    lane: Lane
    input_hash: str
    generation: int
    epoch: int
    started_at: str
    ended_at: str | None
    duration_ms: int | None


class Run(Shape, frozen=True, kw_only=True):
    """A Run. `result_ref` is its final ctx, or `{"error": …}`, once it has one."""

    run_id: str
    task_id: str
    session_id: str
    status: RunStatus
    waiting_on: str | None
    epoch: int
    generation: int
    activation: int
    turn_id: str | None
    result_ref: Json
    blueprint: BlueprintName | None
    labels: dict[str, str]
    created_at: str
    updated_at: str
    started_at: str | None
    ended_at: str | None
    degradations: list[Json]


class RunWithSteps(Run, frozen=True, kw_only=True):
    """A Run with every attempt of its steps."""

    step_entries: list[Step]


class ReplayRow(Shape, frozen=True, kw_only=True):
    """One row of the replay log: a step that passed. A row that is not live was cut, or its lane has lost."""

    run_id: str
    ordinal: int
    step_ref: str
    input_hash: str
    occurrence: int
    lane: Lane
    generation: int
    epoch: int
    live: bool
    step_output_json: str
    created_at: str
    ctx_snapshot_json: str | UnsetType = UNSET


class TraceEntry(Shape, frozen=True, kw_only=True):
    """One thing that the engine did in a Run."""

    seq: int
    ts: str
    kind: str
    payload: dict[str, Json]
    step_ref: str | UnsetType = UNSET
    step_id: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET


class PlannedStep(Shape, frozen=True, kw_only=True):
    """A step of a preview, and why it would be replayed or run."""

    step_ref: str
    occurrence: int
    lane: Lane
    input_hash: str
    plan: Literal["replayed", "runs"]
    why: str


class Preview(Shape, frozen=True, kw_only=True):
    """What a resume or rerun-from would do; nothing was done."""

    run_id: str
    activation: int
    steps: list[PlannedStep]
    replayed_steps: int
    dropped_steps: int


class Kicked(Shape, frozen=True, kw_only=True):
    """The Run that a kick made, and how it stood then."""

    task_id: str
    run_id: str
    session_id: str
    status: RunStatus


class Ended(Kicked, frozen=True, kw_only=True):
    """A Run that was waited for: `final_ctx` if it is done, else `error`."""

    final_ctx: Json | UnsetType = UNSET
    error: str | UnsetType = UNSET
    kind: str | UnsetType = UNSET


class TimedOut(Error, frozen=True, kw_only=True):
    """The Run is still going; its ids say where to ask for it."""

    task_id: str
    run_id: str
    session_id: str


class Resumed(Shape, frozen=True, kw_only=True):
    """A resume that was done: how many logged steps are not run again."""

    run_id: str
    task_id: str
    replayed_steps: int


class Rerun(Resumed, frozen=True, kw_only=True):
    """A rerun-from that was done: beside what is kept, how many rows were cut."""

    dropped_steps: int


class Cancelled(Shape, frozen=True, kw_only=True):
    """A Run that is cancelled."""

    run_id: str
    status: Literal["cancelled"]


class Deleted(Shape, frozen=True, kw_only=True):
    """A Run that is gone, with all it owned."""

    run_id: str
    deleted: Literal[True]


class Task(Shape, frozen=True, kw_only=True):
    """A Task. Its status is that of its Run launched last."""

    task_id: str
    session_id: str
    goal: str
    status: RunStatus
    work_dir: str | None
    project_root: str | None
    blueprint: dict[str, Json]
    init_ctx: Json
    labels: dict[str, str]
    created_at: str
    updated_at: str


class Blueprint(Shape, frozen=True, kw_only=True):
    """A version of a Blueprint; `value` is its body, which lists leave out."""

    id: str
    version: str
    created_at: str
    archived_at: str | None
    value: Json | UnsetType = UNSET


class Linted(Shape, frozen=True, kw_only=True):
    """What can be said of a Blueprint without running it; each finding is `{path, kind, message, hint}`."""

    ok: bool
    faults: list[dict[str, Json]]
    warnings: list[dict[str, Json]]


class Session(Shape, frozen=True, kw_only=True):
    """The whole state of a Session, as its protocol shows it, and when it was loaded cold."""

    session_id: str
    view_cursor: str
    snapshot: dict[str, Json]
    resumed: list[dict[str, Json]]


class Request(Shape, frozen=True, kw_only=True):
    """What a person is asked: an approval with its choices, or an input with its questions."""

    request_id: str
    kind: Literal["approval", "input"]
    source: str
    run_id: str
    task_id: str
    session_id: str
    step_ref: str
    title: str
    action: Json
    digest: str
    choices: list[dict[str, Json]]
    questions: list[dict[str, Json]]
    status: RequestStatus
    opened_at: str
    expires_at: str | None
    resolution: Json


class Settled(Request, frozen=True, kw_only=True):
    """A request that is settled by this answer, and whether its Run goes on by it at once."""

    resumed: bool


# -- from records -----------------------------------------------------------------------------------------------------


def run(record: RunRecord, attempts: list[AttemptRow] | None = None) -> Json:
    """A Run. In lists without its step entries."""
    members: dict[str, Any] = {
        "run_id": record.run_id,
        "task_id": record.task_id,
        "session_id": record.session_id,
        "status": record.status,
        "waiting_on": record.waiting_on,
        "epoch": record.epoch,
        "generation": record.generation,
        "activation": record.activation,
        "turn_id": record.turn_id,
        "result_ref": result(record),
        "blueprint": _blueprint(record),
        "labels": decode(record.labels_json),
        "created_at": rfc3339(record.created_at),
        "updated_at": rfc3339(record.updated_at),
        "started_at": _time(record.started_at),
        "ended_at": _time(record.ended_at),
        "degradations": [],
    }
    if attempts is None:
        return plain(Run(**members))
    return plain(RunWithSteps(**members, step_entries=[_step(attempt) for attempt in attempts]))


def result(record: RunRecord) -> Json:
    """The final ctx of a Run, or `{"error": …}`; None while it has neither."""
    return _maybe(record.result_json)


def step(attempt: AttemptRow) -> Json:
    """One attempt of one step."""
    return plain(_step(attempt))


def replay_row(logged: LoggedStep, run_id: str) -> Json:
    """One row of the replay log; its dispatch Ctx only where it was asked for."""
    row = logged.row
    shown = ReplayRow(
        run_id=run_id,
        ordinal=row.ordinal,
        step_ref=row.step_ref,
        input_hash=row.input_hash,
        occurrence=row.occurrence,
        lane=decode(row.lane_json),
        generation=row.generation,
        epoch=row.epoch,
        live=logged.live,
        step_output_json=row.step_output_json,
        created_at=rfc3339(row.created_at),
        ctx_snapshot_json=UNSET if logged.ctx is None else encode(logged.ctx),
    )
    return plain(shown)


def preview(found: Previewed) -> Json:
    """What a resume or rerun-from would do."""
    shown = Preview(
        run_id=found.run.run_id,
        activation=found.run.activation + 1,
        steps=[PlannedStep(**msgspec.structs.asdict(planned)) for planned in found.plan.steps],
        replayed_steps=found.replayed_steps,
        dropped_steps=found.dropped_steps,
    )
    return plain(shown)


def task(record: TaskRecord) -> Json:
    """A Task."""
    shown = Task(
        task_id=record.task_id,
        session_id=record.session_id,
        goal=record.goal,
        status=RunStatus(record.status),
        work_dir=record.work_dir,
        project_root=record.project_root,
        blueprint=decode(record.blueprint_json),
        init_ctx=decode(record.init_ctx_json),
        labels=decode(record.labels_json),
        created_at=rfc3339(record.created_at),
        updated_at=rfc3339(record.updated_at),
    )
    return plain(shown)


def blueprint(record: BlueprintRecord, *, body: bool) -> Json:
    """A version of a Blueprint; in lists without its body."""
    shown = Blueprint(
        id=record.blueprint_id,
        version=record.version,
        created_at=rfc3339(record.created_at),
        archived_at=_time(record.archived_at),
        value=decode(record.body_json) if body else UNSET,
    )
    return plain(shown)


def lint(found: Lint) -> Json:
    """What a lint found."""
    return plain(Linted(ok=not found.faults, faults=list(found.faults), warnings=list(found.warnings)))


def request(row: RequestRow) -> Json:
    """A request."""
    shown = Request(
        request_id=row.request_id,
        kind=row.kind,  # type: ignore[arg-type]  # one of the two, as the record says
        source=row.source,
        run_id=row.run_id,
        task_id=row.task_id,
        session_id=row.session_id,
        step_ref=row.step_ref,
        title=row.title,
        action=decode(row.action_json),
        digest=row.digest,
        choices=decode(row.choices_json),
        questions=decode(row.questions_json),
        status=RequestStatus(row.status),
        opened_at=rfc3339(row.opened_at),
        expires_at=_time(row.expires_at),
        resolution=_maybe(row.resolution_json),
    )
    return plain(shown)


def opened(base: str, row: RequestRow) -> Json:
    """What a person is told who is needed: the request, and where it is answered."""
    return {"event": "request.opened", "request": request(row), "url": f"{base}/v1/requests/{row.request_id}"}


def plain(shown: Shape) -> Json:
    """The JSON of an answer."""
    return msgspec.to_builtins(shown)


def _step(attempt: AttemptRow) -> Step:
    return Step(
        step_id=attempt.step_id,
        step_ref=attempt.step_ref,
        status=None if attempt.status is None else AttemptStatus(attempt.status),
        attempt=attempt.attempt,
        occurrence=attempt.occurrence,
        lane=decode(attempt.lane_json),
        input_hash=attempt.input_hash,
        generation=attempt.generation,
        epoch=attempt.epoch,
        started_at=rfc3339(attempt.started_at),
        ended_at=_time(attempt.ended_at),
        duration_ms=None if attempt.ended_at is None else max(0, attempt.ended_at - attempt.started_at),
    )


def _blueprint(record: RunRecord) -> BlueprintName | None:
    named = pinned(record)
    return None if named is None else BlueprintName(id=named.id, version=named.version)


def _maybe(text: str | None) -> Json:
    return None if text is None else decode(text)


def _time(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)
