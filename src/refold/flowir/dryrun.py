"""The dry replay: what a resume or a rerun-from would do, found by running the machine on the log without any agent.

A dispatch that the log knows is answered by it. One whose last attempt refused is answered with that refusal, for the
flow may have caught it and gone another way. Everything else ends its lane: the target of a rerun-from, which is
withheld, and steps that never finished. What the machine has consumed by then is what is *kept*; what it has not, a
rerun-from cuts (design §5). So siblings in other lanes stay, everything downstream of the target goes, and a step that
failed, which has no row, can be the target.

The same run gives the preview and the plan that is executed, so they cannot differ. Pure: rows in, plan out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from refold.canonical import decode
from refold.flowir.ir import Blueprint
from refold.flowir.machine import FlowMachine
from refold.flowir.messages import Blocked, Dispatch, Failed, Outcome, Pass, ReplayKey, Skip
from refold.flowir.replay import lane_of, winners
from refold.records import AttemptRow, AttemptStatus, DecisionRow, Lane, ReplayRow

Json = Any

REPLAYED, RUNS = "replayed", "runs"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Which dispatches a rerun-from withholds: those of `step_ref`, narrowed by what else is given.

    In each lane the first one that matches ends the lane, so the first in dispatch order is the one that counts.
    `lane` are indexes, outermost first; None means every lane.
    """

    step_ref: str
    lane: tuple[int, ...] | None = None
    occurrence: int | None = None
    input_hash: str | None = None

    def matches(self, dispatch: Dispatch) -> bool:
        """Whether this dispatch is withheld."""
        key = dispatch.key
        return (
            key.step_ref == self.step_ref
            and self.lane in (None, tuple(index for _, index in dispatch.lane))
            and self.occurrence in (None, key.occurrence)
            and self.input_hash in (None, key.input_hash)
        )


class PlannedStep(msgspec.Struct, frozen=True):
    """One line of a preview."""

    step_ref: str
    occurrence: int
    lane: Lane
    input_hash: str
    plan: str
    why: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen. `withheld` counts the targets that were reached, `stopped_at` names what ended lanes."""

    steps: tuple[PlannedStep, ...]
    kept: tuple[ReplayRow, ...]
    dropped: tuple[ReplayRow, ...]
    dropped_decisions: tuple[DecisionRow, ...]
    withheld: int
    stopped_at: tuple[str, ...]

    @property
    def retired(self) -> list[list[int]]:
        """The ordinals of what a cut retires, as `[[first, last], …]`, ascending."""
        spans: list[list[int]] = []
        for ordinal in sorted(row.ordinal for row in (*self.dropped, *self.dropped_decisions)):
            if spans and ordinal == spans[-1][1] + 1:
                spans[-1][1] = ordinal
            else:
                spans.append([ordinal, ordinal])
        return spans


def refusals(attempts: Iterable[AttemptRow]) -> dict[ReplayKey, Outcome]:
    """The outcome of each step whose last attempt ended without a Pass. One that was cut off has no outcome."""
    last = {ReplayKey(each.step_ref, each.input_hash, each.occurrence): each for each in attempts}
    return {
        key: _REFUSED[AttemptStatus(attempt.status)](decode(attempt.outcome_json))
        for key, attempt in last.items()
        if attempt.status is not None and attempt.outcome_json is not None
    }


def dry_replay(
    blueprint: Blueprint,
    init_ctx: Json,
    rows: Iterable[ReplayRow],
    decisions: Iterable[DecisionRow],
    refused: Mapping[ReplayKey, Outcome],
    target: Target | None = None,
) -> Plan:
    """Runs the flow on its live rows and decisions. Without a target it is the plan of a resume, which cuts nothing."""
    return _DryRun(blueprint, init_ctx, list(rows), list(decisions), refused, target).plan()


class _DryRun:
    def __init__(
        self,
        blueprint: Blueprint,
        init_ctx: Json,
        rows: list[ReplayRow],
        decisions: list[DecisionRow],
        refused: Mapping[ReplayKey, Outcome],
        target: Target | None,
    ) -> None:
        self._rows = {ReplayKey(row.step_ref, row.input_hash, row.occurrence): row for row in rows}
        self._decisions = decisions
        self._refused = refused
        self._target = target
        self._machine = FlowMachine(blueprint.flow, init_ctx, metas=blueprint.metas, decisions=winners(decisions))
        self._steps: list[PlannedStep] = []
        self._kept: dict[ReplayKey, ReplayRow] = {}
        self._tainted: list[Lane] = []
        self._withheld: set[ReplayKey] = set()
        self._stopped: list[str] = []

    def plan(self) -> Plan:
        queue = deque(self._machine.start())
        while queue or self._machine.paused:
            if not queue:
                queue.extend(self._machine.proceed())
                continue
            command = queue.popleft()
            if isinstance(command, Dispatch):
                queue.extend(self._answer(command))
        gone = {key: row for key, row in self._rows.items() if key not in self._kept} if self._target else {}
        return Plan(
            steps=(*self._steps, *(_cut(row) for key, row in gone.items() if key not in self._withheld)),
            kept=tuple(self._kept.values()),
            dropped=tuple(gone.values()),
            dropped_decisions=tuple(row for row in self._decisions if self._target and not self._settled(row)),
            withheld=len(self._withheld),
            stopped_at=tuple(self._stopped),
        )

    def _settled(self, decision: DecisionRow) -> bool:
        """Whether the winning lane of a logged decision settled here; one that did not is up for decision again."""
        return (lane_of(decision), decision.fork) in self._machine.confirmed

    def _answer(self, dispatch: Dispatch) -> list[Any]:
        """Decides one dispatch; what the machine commands after its answer, nothing if it ends its lane."""
        key = dispatch.key
        if self._target is not None and self._target.matches(dispatch):
            self._withheld.add(key)
            return self._stop(dispatch, "the target")
        row = self._rows.get(key)
        if row is not None:
            self._kept[key] = row
            why = "if it refuses again" if self._follows_refusal(dispatch.lane) else "logged"
            self._note(dispatch, REPLAYED, why)
            return self._machine.complete(dispatch.ticket, Pass(decode(row.step_output_json)))
        refusal = self._refused.get(key)
        if refusal is None:
            return self._stop(dispatch, "never finished")
        self._note(dispatch, RUNS, "refused before, and is asked again")
        self._tainted.append(dispatch.lane)
        return self._machine.complete(dispatch.ticket, refusal)

    def _stop(self, dispatch: Dispatch, why: str) -> list[Any]:
        self._note(dispatch, RUNS, why)
        self._stopped.append(dispatch.ref)
        return []

    def _note(self, dispatch: Dispatch, plan: str, why: str) -> None:
        key = dispatch.key
        self._steps.append(PlannedStep(key.step_ref, key.occurrence, dispatch.lane, key.input_hash, plan, why))

    def _follows_refusal(self, lane: Lane) -> bool:
        """Whether a refusal was answered in this lane, in one around it, or in one that it has joined."""
        return any(lane[: len(other)] == other or other[: len(lane)] == lane for other in self._tainted)


def _cut(row: ReplayRow) -> PlannedStep:
    return PlannedStep(row.step_ref, row.occurrence, lane_of(row), row.input_hash, RUNS, "downstream of the target")


_REFUSED: Mapping[AttemptStatus, Any] = {
    AttemptStatus.BLOCKED: Blocked,
    AttemptStatus.SKIPPED: Skip,
    AttemptStatus.FAILED: Failed,
    AttemptStatus.TIMEOUT: Failed,
}
