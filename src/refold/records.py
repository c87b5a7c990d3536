"""What is written to disk: ids, statuses, records, rows and log records, and the chains that seal them.

*Records* (`TaskRecord`, `SessionRecord`, `RunRecord`, …) describe how things stand and may change. *Rows* of the replay
log and of the Session log are appended and never changed (design law 7). Times are integers, milliseconds since the
epoch, UTC. Members that end in `_json` hold compact JSON text. `n` is a record's integer key inside one store; only
an export file has it outside (`store.portable`), everybody else is told the text ids.

A log record is refold's own compact form of one durable event: never a wire frame, never a cursor. `view.record`
renders it into frames; how many is fixed by its type (`FRAMES`), so that a position `(seq, k)` is stable for ever.

Not here: JSON itself (`canonical`), who may change what (`flowir.lifecycle`), SQL (`store`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from refold.canonical import canonical_row, decode, encode_known
from refold.errors import InvalidId

Json = Any
Lane = tuple[tuple[int, int], ...]
"""Where a step runs: `((fork, index), …)`, outermost fan-out first; empty outside fan-outs."""

ID_PATTERN: Final = re.compile(r"(T|R|ST|O)-[0-9a-f]{16,32}")
UUID7_PATTERN: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
AGENT_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
INLINE_BYTES: Final = 8 * 1024
"""A value whose text is longer lives once in the content-addressed table; rows hold its digest and a prefix."""
NAMED_BYTES: Final = 256
"""From here to `INLINE_BYTES` the output of a logged step stands in its replay row only, and is named elsewhere.

A name takes about 90 bytes, and reading it a look-up: below this, repeating the text costs less than it saves.
"""
LAUNCH_BYTES: Final = 1024
"""A launch snapshot that is longer stands beside its Run's record, which every step writes anew."""


def genesis(owner_id: str) -> bytes:
    """The chain value before the first row of the Run or Session `owner_id`: rows of another one never fit."""
    return hashlib.sha256(owner_id.encode()).digest()


def parse_id(text: str, prefix: str) -> str:
    """Returns `text` if it is an id with `prefix` (`T`, `R`, `ST`, `O`); raises InvalidId otherwise."""
    if not ID_PATTERN.fullmatch(text) or not text.startswith(prefix + "-"):
        raise InvalidId(f"invalid id {text[:80]!r}: expected {prefix}- and 16 to 32 hex digits", id=text[:80])
    return text


def parse_uuid7(text: str, noun: str) -> str:
    """Returns `text` if it is a UUIDv7 in its canonical spelling (RFC 9562); raises InvalidId otherwise."""
    if not UUID7_PATTERN.fullmatch(text):
        raise InvalidId(f"invalid {noun} {text[:80]!r}: expected a lower-case UUIDv7", id=text[:80])
    return text


class RunStatus(StrEnum):
    """How a Run stands. `flowir.lifecycle` holds the only table of what follows what."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"


class RequestStatus(StrEnum):
    """How a request stands. Only an open one can be settled; it is settled once."""

    OPEN = "open"
    RESOLVED = "resolved"
    EXPIRED = "expired"
    VOIDED = "voided"


class AttemptStatus(StrEnum):
    """How an attempt ended. An attempt without a status was cut off by a crash, or runs at this moment."""

    PASSED = "passed"
    BLOCKED = "blocked"
    SKIPPED = "skipped"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


class LogType(StrEnum):
    """The types of log records. A type's number of frames (`FRAMES`) never changes once released."""

    SESSION_CREATED = "session.created"
    SESSION_RESUMED = "session.resumed"
    MODEL_CHANGED = "model.changed"
    NAME_CHANGED = "name.changed"
    COMPACTED = "session.compacted"
    TURN_OPENED = "turn.opened"
    TURN_WOKEN = "turn.woken"
    TURN_COMPLETED = "turn.completed"
    TURN_ENDED = "turn.ended"
    TURN_REFUSED = "turn.refused"
    TURN_UNQUEUED = "turn.unqueued"
    STEP_DISPATCHED = "step.dispatched"
    STEP_RETRIED = "step.retried"
    STEP_REATTEMPTED = "step.reattempted"
    STEP_COMPLETED = "step.completed"
    APPROVAL_OPENED = "approval.opened"
    APPROVAL_RESOLVED = "approval.resolved"
    INPUT_OPENED = "input.opened"
    INPUT_SETTLED = "input.settled"


FRAMES: Final[Mapping[str, int]] = {
    LogType.SESSION_CREATED: 2,  # modelChanged, approvalModeChanged
    LogType.SESSION_RESUMED: 0,  # the durable marker of a cold load; not an event of the view
    LogType.MODEL_CHANGED: 1,
    LogType.NAME_CHANGED: 1,
    LogType.COMPACTED: 2,  # the compaction item opened and closed; the latter's cursor is the boundary
    LogType.TURN_OPENED: 3,  # turn/started, userMessage, workflow opened
    LogType.TURN_WOKEN: 2,  # as above without input: turn/started, workflow opened
    LogType.TURN_COMPLETED: 3,  # workflow closed, agentMessage, turn/completed
    LogType.TURN_ENDED: 2,  # failed or cancelled: workflow closed, turn/completed
    LogType.TURN_REFUSED: 1,  # a queued turn that could not launch: turn/completed failed
    LogType.TURN_UNQUEUED: 1,
    LogType.STEP_DISPATCHED: 1,  # toolCall opened
    LogType.STEP_RETRIED: 1,  # an attempt ended, the next one is scheduled: turn/retryScheduled
    LogType.STEP_REATTEMPTED: 0,  # the next attempt begins; the item is open all the while
    LogType.STEP_COMPLETED: 1,  # toolCall closed
    LogType.APPROVAL_OPENED: 2,  # toolCall opened, approval/requested
    LogType.APPROVAL_RESOLVED: 1,
    LogType.INPUT_OPENED: 2,  # toolCall opened, userInput/requested
    LogType.INPUT_SETTLED: 1,
}


def stored_json(text: str, most: int = INLINE_BYTES) -> tuple[str, str | None]:
    """What a row holds of JSON text: the text, or `@` and a digest if it has more bytes than `most`, and then the
    digest.

    No JSON text begins with `@`. `store.expanded` gives the text back.
    """
    raw = text.encode()
    if len(raw) <= most:
        return text, None
    digest = hashlib.sha256(raw).hexdigest()
    return f"@{digest}", digest


class Row(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Base of everything that is stored. Two are equal if all members are.

    Array-like, so that a row of a table converts as it comes, without a dict between. Not seen by the collector:
    nothing that a row holds can hold the row.
    """


class BlueprintRecord(Row, frozen=True, kw_only=True):
    """One version of a registered Blueprint. The newest row of a `blueprint_id` is its head."""

    n: int = 0
    blueprint_id: str
    version: str
    body_json: str
    created_at: int
    archived_at: int | None = None
    """Of the head: since when the id is archived. It takes no versions and no launches then; its Runs go on."""


class TaskRecord(Row, frozen=True, kw_only=True):
    """One work item: goal, Blueprint reference and input ctx. Kicked any number of times; owns one Session."""

    n: int = 0
    task_id: str
    session_id: str
    goal: str
    blueprint_json: str
    init_ctx_json: str
    labels_json: str
    status: str
    created_at: int
    updated_at: int
    work_dir: str | None = None
    project_root: str | None = None
    """The folders that the launch named: every Run of the Task hands them to its agents."""


class Head(NamedTuple):
    """Where a Session's log ends: the seq and the hash of its last row, and when the Session last changed."""

    seq: int
    chain: bytes
    updated_at: int


class SessionRecord(Row, frozen=True, kw_only=True):
    """The head of one Session log. `seq` and `chain` are those of its last row (0 and `genesis` when it is empty).

    `active_run` is the Run whose activation holds the Session: at most one at a time (design §5). `launched` counts the
    Runs that were ever launched in it, `turns` the turns that ended.
    """

    n: int = 0
    session_id: str
    task: int
    seq: int
    chain: bytes
    active_run: int | None
    active_turn: str | None
    floor: int = 0
    """The seq of the first row that is retained; the cursor of its last frame is the earliest held one. 0: all are."""
    held: bool
    """True while the queue waits for an operator's kick (after boot, sweep or shutdown)."""
    launched: int
    turns: int
    model_id: str
    workspace_root: str | None
    name: str | None
    created_at: int
    updated_at: int

    @property
    def head(self) -> Head:
        """Where its log ends."""
        return Head(self.seq, self.chain, self.updated_at)


class RunRecord(Row, frozen=True, kw_only=True):
    """One kick of a Task; keeps its id over resumes and reruns.

    `epoch` is the fencing token: +1 per activation. `generation` is +1 per rerun-from. `rows` and `chain` seal the
    replay log: how many rows (passes and decisions) it has and the hash of the last one.
    """

    n: int = 0
    run_id: str
    task: int
    task_id: str
    session: int
    session_id: str
    status: str
    waiting_on: str | None
    epoch: int
    generation: int
    activation: int
    turn_id: str | None
    woken_by: str = ""
    """What asked for its present activation: `turn/start`, `http`, `resume`, `decision`, `rerun-from` …"""
    opened: int
    """The Session seq of the record that opened the present turn; 0 while pending."""
    input_json: str | None
    """The launch snapshot, with the resolved Blueprint body: what a resume needs, whatever was edited since.

    JSON text, or the name of the `LaunchRow` that holds it (`stored_json`); `store.with_launch` gives the text.
    """
    result_json: str | None
    """The final ctx, or `{"error": text}`: JSON text, or the name of the value row that holds it (`stored_json`)."""
    rows: int
    chain: bytes
    labels_json: str
    resume_wanted: str | None = None
    """A decision came while the Session was busy: the Run resumes as this turn, before any kick, once it can."""
    created_at: int
    updated_at: int
    started_at: int | None
    """When the Run was launched; None while it is pending."""
    activated_at: int
    """When its present activation opened; 0 while pending."""
    ended_at: int | None


class AttemptRow(Row, frozen=True, kw_only=True):
    """One try of one dispatch. Written before the dispatch, in the commit that grants its slot (law 2)."""

    run: int
    ordinal: int
    generation: int
    epoch: int
    step_id: str
    step_ref: str
    input_hash: str
    occurrence: int
    attempt: int
    lane_json: str
    opened: int
    """The Session seq of its `step.dispatched` record. The store fills it in at commit."""
    started_at: int
    status: str | None
    ended_at: int | None
    outcome_json: str | None = None
    """What it answered, unless it passed (the replay log has that) or was cut off: a dry replay answers with it."""
    due_at: int | None = None
    """By the wall clock, so that it holds across a restart: when a `@wait` is over, or the next try is due after this
    one. A step whose last attempt ended with a `due_at` is still open."""


class ActivationRow(Row, frozen=True, kw_only=True):
    """One continuous drive of a Run, from its opening to its end: the history that the Run's record has no room for."""

    run: int
    activation: int
    generation: int
    epoch: int
    verb: str
    turn_id: str
    opened: int
    """The Session seq of the record that opened its turn; all its records lie from there to `closed`."""
    closed: int | None
    opened_at: int
    input_json: str | None
    """The launch snapshot that it ran with, once a later generation took another, as the Run's record had it."""
    status: str | None
    result_json: str | None
    """Its result, once a later activation has taken its place in the Run's record; as there."""
    closed_at: int | None


class ReplayRow(Row, frozen=True, kw_only=True):
    """One passed step. Only Pass outcomes are logged (law 5): a logged refusal would poison every later replay."""

    run: int
    ordinal: int
    generation: int
    epoch: int
    step_ref: str
    input_hash: str
    occurrence: int
    lane_json: str
    ctx_snapshot_json: str
    step_output_json: str
    created_at: int
    hash: bytes = b""


class DecisionRow(Row, frozen=True, kw_only=True):
    """Which lane won an `any` or `race`. It retires the rows of the losing lanes by naming the winner."""

    run: int
    ordinal: int
    generation: int
    epoch: int
    lane_json: str
    fork: int
    winner: int
    created_at: int
    hash: bytes = b""


class CutRow(Row, frozen=True, kw_only=True):
    """A rerun-from: it retires rows and decisions of earlier generations by naming their ordinals (law 7).

    `retired_json` holds `[[first, last], …]`, ascending. Nothing is deleted: what was cut stays auditable.
    """

    run: int
    ordinal: int
    generation: int
    epoch: int
    retired_json: str
    created_at: int
    hash: bytes = b""


class BoundaryRow(Row, frozen=True, kw_only=True):
    """A compaction boundary: the folded state at the record `seq`, from which an anchored snapshot is served.

    The items stand in immutable segments, content-addressed values, so that only segments with a changed item are
    written anew. `segments_json` lists their names, or names the value that does (`stored_json`): there is a name for
    every 64 items, and who comes with a cursor reads the row only. `rest_json` is the state without its items, and what
    a snapshot leaves out. Byte counts are those of a history that serves it, whole and elided, so that a rung is chosen
    without reading them.
    """

    session: int
    seq: int
    at: int
    rest_json: str
    segments_json: str
    size: int
    elided: int
    pruned: bool = False
    """Retention has taken it: an anchor that names it is answered with the latest one."""


class RequestRow(Row, frozen=True, kw_only=True):
    """A pending approval or user input: one durable record, settled once, by whoever answers first (design §8).

    Its identity is (run, generation, step_ref, input_hash, occurrence, source, digest, nth): a resume that comes to the
    same question finds it, so nobody is asked twice. It is bound to the digest of the canonical action that is shown.
    """

    n: int = 0
    request_id: str
    kind: str
    """`approval` or `input`."""
    source: str
    """Why it is asked: `node`, `policy`, `agent`, `budget` or `ambiguous`."""
    run: int
    run_id: str
    task_id: str
    session: int
    session_id: str
    generation: int
    step_id: str
    step_ref: str
    input_hash: str
    occurrence: int
    lane_json: str
    nth: int
    turn_id: str
    title: str
    action_json: str
    digest: str
    choices_json: str
    questions_json: str
    status: str
    opened: int
    """The Session seq of the record that opened it. The store fills it in at commit."""
    opened_at: int
    expires_at: int | None
    settled: int | None
    """The Session seq of the record that settled it."""
    settled_at: int | None
    resolution_json: str | None
    consumed: bool = False
    """Whether the flow has gone on from the answer. Until then a resume goes on from it, in the same item."""


class CommandRow(Row, frozen=True, kw_only=True):
    """What a command id was answered, for ever (law 9). `digest` is of the canonical {verb, params}."""

    command_id: str
    digest: str
    answer_json: str
    created_at: int


class ValueRow(Row, frozen=True, kw_only=True):
    """A text too long to stand in a row; `digest` is its hex SHA-256."""

    digest: str
    body: str


class LaunchRow(Row, frozen=True, kw_only=True):
    """A launch snapshot too long to stand in its Run's record, which every step writes; `digest` is its hex SHA-256.

    No `ValueRow`: those are shared and stay, and this goes with its Run.
    """

    run: int
    digest: str
    body: str


class SplicedRow(Row, frozen=True, kw_only=True):
    """A text too long to stand in a row, most of which is outputs of one Run: they are named instead of repeated.

    `parts_json` holds pieces of the text, and ordinals in place of what rows of the Run's replay log say. Joined they
    are the text, whose hex SHA-256 is `digest`.
    """

    digest: str
    run: int
    parts_json: str


class MetaRow(Row, frozen=True, kw_only=True):
    """A fact about the store itself, such as its MAC key."""

    key: str
    value: bytes


class LogRecord(Row, frozen=True, kw_only=True):
    """A log record before it has a place: `Tx.append` and `Store.commit` give it its seq and its hash.

    `origin` is the seq of the record that opened the item or turn which this one closes, None if it opens one or
    stands alone. `turn_id` and `item_id` are None where the type has none.
    """

    type: str
    at: int
    body: dict[str, Json]
    run: int | None = None
    turn_id: str | None = None
    item_id: str | None = None
    revision: int = 1
    origin: int | None = None


class LogRow(Row, frozen=True, kw_only=True):
    """A log record in its place. Each row extends the Session's hash chain; insert order is commit order."""

    session: int
    seq: int
    type: str
    at: int
    run: int | None
    turn_id: str | None
    item_id: str | None
    revision: int
    origin: int | None
    body_json: str
    hash: bytes

    @property
    def frames(self) -> int:
        """How many frames this row renders to."""
        return FRAMES[self.type]


class OutputName(NamedTuple):
    """Where the output of a logged step stands: in this row of this Run's replay log. `ref` is the text's SHA-256.

    Once the Run is deleted, the text stands in the value table under `ref`.
    """

    run: int
    ordinal: int
    ref: str


def named_output(ordinal: int, text: str) -> dict[str, Json] | None:
    """What a log record says instead of `text`, the output of replay row `ordinal`; None if it is to say the text.

    A long text is not named: it is shown by its head, so it has a value row of its own.
    """
    raw = text.encode()
    if not NAMED_BYTES <= len(raw) <= INLINE_BYTES:
        return None
    return {"row": ordinal, "ref": hashlib.sha256(raw).hexdigest()}


def output_name(row: LogRow) -> OutputName | None:
    """The output that a log row names; None if it says it, or has none."""
    if row.type != LogType.STEP_COMPLETED or '"row":' not in row.body_json:
        return None  # in most rows a look at the text is enough: inside a JSON string the quotes are escaped
    return name_in(row, decode(row.body_json))


def name_in(row: LogRow, body: dict[str, Json]) -> OutputName | None:
    """`output_name` of a row whose body is at hand."""
    if row.type != LogType.STEP_COMPLETED or row.run is None:
        return None
    output = body.get("output")
    return OutputName(row.run, output["row"], output["ref"]) if isinstance(output, dict) and "row" in output else None


def shown_text(output_json: str) -> str:
    """The output of a replay row as people are shown it: a text as it is, anything else as JSON."""
    return decode(output_json) if output_json.startswith('"') else output_json


Sealed = TypeVar("Sealed", ReplayRow, DecisionRow, CutRow)


def _link(chain: bytes, members: list[Json]) -> bytes:
    return hashlib.sha256(chain + canonical_row(members)).digest()


def seal(chain: bytes, row: Sealed) -> Sealed:
    """Returns `row` with its hash, which covers every member and the `chain` before it (law 10)."""
    return msgspec.structs.replace(row, hash=replay_hash(chain, row))


def replay_hash(chain: bytes, row: ReplayRow | DecisionRow | CutRow) -> bytes:
    """The hash that `row` must carry after `chain`. A flipped bit in any member, or a missing row, changes it."""
    _run, *members, _hash = msgspec.structs.astuple(row)
    return _link(chain, [type(row).__name__, *members])


def seal_log(session: int, seq: int, chain: bytes, record: LogRecord) -> LogRow:
    """Gives `record` its place at `seq`, after the row whose hash is `chain`."""
    body, kind = encode_known(record.body), str(record.type)  # exactly a str, as the store gives it back
    return LogRow(
        session=session,
        seq=seq,
        type=kind,
        at=record.at,
        run=record.run,
        turn_id=record.turn_id,
        item_id=record.item_id,
        revision=record.revision,
        origin=record.origin,
        body_json=body,
        hash=_log_link(chain, seq, kind, record, body),
    )


def log_hash(chain: bytes, row: LogRow) -> bytes:
    """The hash that `row` must carry after `chain`. The integer keys are left out: a copied store keeps its chains."""
    return _log_link(chain, row.seq, row.type, row, row.body_json)


def _log_link(chain: bytes, seq: int, kind: str, row: LogRow | LogRecord, body: str) -> bytes:
    return _link(chain, [seq, kind, row.at, row.turn_id, row.item_id, row.revision, row.origin, body])
