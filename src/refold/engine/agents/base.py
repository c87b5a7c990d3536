"""What an agent is to the engine: it is given an `Assignment` and answers with a `Report`.

Laws:
- An agent's fault is an outcome (`Blocked`, `Failed`), never an exception. What is raised is a bug of refold.
- Cancelling the asyncio.Task that performs stops the work before the cancellation completes.
- What a `Report` holds is JSON that every store and frame can carry (`agents.output`).

Not here: which agents there are (`agents/__init__.py`), retries, time limits and capacity (`engine.driver`), what an
outcome means to the flow (`flowir.machine`).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

import msgspec

from refold.canonical import digest
from refold.engine.capacity import Capacity
from refold.engine.clock import Clock
from refold.engine.desk import Desk
from refold.engine.secrets import Secrets
from refold.engine.voice import SILENCE, Voice
from refold.flowir import Failed, Outcome, Verdict
from refold.records import Json, Lane

Cause = Literal["blocked", "error", "timeout"]

INHERITED: Final = frozenset(
    {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "TERM", "VIRTUAL_ENV"}
)
"""What agents inherit of the server's environment, beside `LC_*`."""


class Definition(Protocol):
    """What performing needs to know of an agent's definition; `flowir.AgentDef` is one."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def spec(self) -> Mapping[str, Json]: ...
    @property
    def profile(self) -> Mapping[str, Json] | None: ...
    @property
    def verdict(self) -> Verdict | None: ...


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of one step, as its agent gets it.

    `epoch` is the fencing token. `ctx` is the dispatch Ctx. `emit` takes pieces of text while the agent speaks, if
    anybody listens.
    """

    run_id: str
    step_id: str
    step_ref: str
    attempt: int
    """Counts from 1."""
    occurrence: int
    lane: Lane
    epoch: int
    generation: int
    input_hash: str
    directive: Json
    agent: Definition
    ctx: dict[str, Json]
    emit: Callable[[str], Awaitable[None]] | None = None
    work_dir: str | None = None
    project_root: str | None = None
    """The two folders that the launch named, if it did."""
    due_at: int | None = None
    """When a wait is over, in milliseconds since the epoch."""

    @property
    def idempotency_key(self) -> str:
        """What an agent hands to outside systems: the same over crashes, retries and takeovers, new after rerun-from.

        Made when it is asked for: most agents never do.
        """
        return digest([self.run_id, self.generation, self.step_ref, self.input_hash, self.occurrence])


class Report(msgspec.Struct, frozen=True):
    """How an attempt ended. `mended` tells that bad bytes or lone surrogates became U+FFFD: the item is marked."""

    outcome: Outcome
    mended: bool = False
    cause: Cause | None = None
    """What a retry policy calls it, where that does not follow from the outcome: a process that exits with an error
    blocks the flow, but nobody decided anything."""


class Agent(Protocol):
    """Does the work of one agent definition. One object serves all its attempts, also at the same time."""

    async def perform(self, work: Assignment) -> Report:
        """Does `work` and reports its outcome."""
        ...


class Groups(Protocol):
    """Who is told of process groups that must not outlive the server: `engine.reaper.Reaper`."""

    @property
    def server_id(self) -> str: ...
    def register(self, pgid: int) -> None: ...
    def unregister(self, pgid: int) -> None: ...


def allowed(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the server's environment that its agents inherit; its tokens and keys are not in it."""
    return {name: value for name, value in environ.items() if name in INHERITED or name.startswith("LC_")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What the server lends its agents."""

    reaper: Groups
    clock: Clock = field(default_factory=Clock)
    capacity: Capacity = field(default_factory=lambda: Capacity(64, 16))
    secrets: Secrets = field(default_factory=Secrets)
    desk: Desk = field(default_factory=Desk)
    voice: Voice = SILENCE
    """Who passes on what agents say while they work."""
    operators: Agent | None = None
    """Who performs the steps of attached operators, where operators can attach: `agents.operator.Offers`."""
    app: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """The functions of the loaded app modules by their names, `module:function`."""
    templates: Mapping[str, Json] = field(default_factory=dict)
    """The subprocess templates that the server's configuration declares, by name."""
    environment: Mapping[str, str] = field(default_factory=lambda: allowed(os.environ))
    output_bytes: int = 64 * 1024 * 1024
    """An output that is larger fails the step."""
    tail_bytes: int = 8 * 1024
    """How much of stdout and stderr a refusal shows."""
    grace_secs: float = 0.5
    """Between SIGTERM and SIGKILL when work is cancelled."""
    drain_secs: float = 0.5
    """How long what an agent left behind may still write after it exited."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """The agent of a definition that cannot be performed here: it fails every attempt and says why."""

    reason: str

    async def perform(self, work: Assignment) -> Report:
        """Fails with the reason."""
        return Report(Failed(self.reason))
