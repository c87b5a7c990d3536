"""What requests carry: a struct for each body and each query, with the bounds that the schema shows too.

Bounds stand in the types, so that what is refused and what the OpenAPI document says cannot differ. Not here: what
answers look like (`shapes`), how a struct is filled (`reading`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from refold.records import UUID7_PATTERN, RequestStatus, RunStatus
from refold.server.paging import LONGEST_PAGE, PageQuery
from refold.service.reruns import Choice

Json = Any

MAX_SECS: Final = 1e9
"""About thirty years: beyond it, milliseconds since the epoch would leave the range of their column some day."""

Secs = Annotated[float, Meta(gt=0, le=MAX_SECS)]
CommandId = Annotated[
    str,
    Meta(
        pattern=f"^{UUID7_PATTERN.pattern}$",
        description="A UUIDv7 of the client's. Sent again with the same body it gets the same answer; nothing is done "
        "twice. With another body it is refused: 409 `command_id_conflict`.",
    ),
]
LabelName = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[^=]+$")]
LabelValue = Annotated[str, Meta(max_length=1024)]
Labels = Annotated[
    dict[LabelName, LabelValue], Meta(max_length=64, description="What lists can be filtered by; shared by all Runs.")
]
InitCtx = Annotated[Json, Meta(description="The flow ctx to begin with, on top of the Blueprint's own.")]
Detach = Annotated[bool, Meta(description="Answer 202 at once. Otherwise the answer comes when the Run has ended.")]
Ttl = Annotated[
    Secs, Meta(description="How long the Run may take from its launch on, restarts included; then it fails.")
]
Timeout = Annotated[
    Secs, Meta(description="How long this call waits for the Run, which goes on after a 504. Not with `detach`.")
]
Preview = Annotated[bool, Meta(description="Answer what would be replayed and what would run; change nothing.")]


class Inline(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="inline"):
    """A Blueprint in the request itself."""

    value: Json


class ById(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="id", omit_defaults=True):
    """A registered Blueprint: one version, or without `version` today's head."""

    id: str
    version: str | None = None


class Waiting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every kick may say about waiting for its Run."""

    detach: Detach = False
    timeout_secs: Timeout | None = None
    ttl_secs: Ttl | None = None
    command_id: CommandId | None = None

    def __post_init__(self) -> None:
        if self.detach and self.timeout_secs is not None:
            raise ValueError("`detach` does not wait, so it takes no `timeout_secs`; `ttl_secs` bounds the Run itself")


class LaunchBody(Waiting, frozen=True, kw_only=True):
    """A new Task, with its Session and its first Run."""

    blueprint: Inline | ById
    init_ctx: InitCtx = msgspec.field(default_factory=dict)
    goal: str = ""
    labels: Labels = msgspec.field(default_factory=dict)
    project_root: str | None = None
    work_dir: str | None = None


class RekickBody(Waiting, frozen=True, kw_only=True):
    """Another Run of a Task. `init_ctx_override` lies on top of the Task's own ctx."""

    init_ctx_override: Json = None


class CommandBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A verb that needs nothing but, if the client wants to repeat it safely, an id."""

    command_id: CommandId | None = None


class RerunBody(CommandBody, frozen=True, kw_only=True):
    """Where a rerun begins. `lane` are indexes, outermost first, or the pairs that rows show."""

    from_step: str
    occurrence: Annotated[int, Meta(ge=0)] | None = None
    lane: list[int | tuple[int, int]] | None = None
    input_hash: str | None = None
    step_id: str | None = None
    blueprint: Choice | None = None


class DecideBody(CommandBody, frozen=True, kw_only=True):
    """The answer to an approval: the id of a choice, or the decision that one of its choices has."""

    choice: str | None = None
    decision: str | None = None
    feedback: str | None = None

    def __post_init__(self) -> None:
        if (self.choice is None) is (self.decision is None):
            raise ValueError("give either `choice` or `decision`")


class AnswerBody(CommandBody, frozen=True, kw_only=True):
    """The answers to a user input: one for every question."""

    answers: list[dict[str, Json]]


# -- queries ----------------------------------------------------------------------------------------------------------


class PreviewQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the verb is to be done, or only told."""

    preview: Preview = False


class RunsQuery(PageQuery, frozen=True, kw_only=True):
    """Which Runs a list shows: those that every filter lets through, newest first."""

    status: RunStatus | None = None
    task_id: str | None = None
    label: Annotated[list[str], Meta(description="`name=value`, or `name` for any value; several must all hold.")] = (
        msgspec.field(default_factory=list)
    )
    q: Annotated[
        str, Meta(max_length=256, description="A text in the run id, goal, Blueprint id or a label value, in any case.")
    ] = ""


class BlueprintsQuery(PageQuery, frozen=True, kw_only=True):
    """Which Blueprints a list shows."""

    archived: Annotated[bool, Meta(description="Show those too that are archived.")] = False


class RequestsQuery(PageQuery, frozen=True, kw_only=True):
    """Which requests a list shows, newest first."""

    status: RequestStatus | None = None
    run_id: str | None = None


class EventsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events of a Session a stream begins after, and whether it goes on."""

    after: Annotated[str | None, Meta(description="A cursor; without it the stream begins at the first event.")] = None
    follow: Annotated[bool, Meta(description="Whether the stream waits for what comes.")] = True


class LogQuery(PageQuery, frozen=True, kw_only=True):
    """Which part of what a Run has written, oldest first."""

    limit: Annotated[int, Meta(ge=1, le=LONGEST_PAGE, description="The most rows that the page may have.")] = (
        LONGEST_PAGE
    )


class ReplayQuery(LogQuery, frozen=True, kw_only=True):
    """Which rows of the replay log, and how much of each."""

    ctx: Annotated[bool, Meta(description="With the whole dispatch Ctx of every row.")] = False
    all: Annotated[bool, Meta(description="With the rows that a rerun-from cut or a lost lane retired.")] = False
