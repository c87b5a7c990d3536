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
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from refold.canonical import decode
from refold.flowir.answers import outcome_of
from refold.flowir.fanout import JOINS
from refold.flowir.ir import AgentDef, Blueprint, Branch, Fanout, Loop, Node, Seq, Try
from refold.flowir.machine import FlowMachine
from refold.flowir.messages import Abandon, Blocked, Command, Dispatch, Failed, Outcome, Pass, ReplayKey, Skip
from refold.flowir.replay import lane_of, live_rows, winners
from refold.records import AttemptRow, AttemptStatus, DecisionRow, Lane, ReplayRow, RequestRow, RequestStatus

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


class Refusal(msgspec.Struct, frozen=True):
    """What a step was answered last that is not logged. Unless it is asked again, a resume has that answer anew."""

    outcome: Outcome
    asked_again: bool = True
    why: str = ""
    """Why it stands, where it is not asked again."""


def refusals(
    attempts: Iterable[AttemptRow],
    agents: Iterable[AgentDef] = (),
    generation: int | None = None,
    requests: Iterable[RequestRow] = (),
) -> dict[ReplayKey, Refusal]:
    """The refusal of each step that did not pass when it answered last.

    An attempt that was cut off is no answer: a step that refused, and was being asked again when the server died, would
    refuse still. But if its agent must not do it twice, a resume in the same `generation` refuses it without asking. A
    step that waits for its next try has not refused yet. What a person has answered stands within its generation, also
    an approval that the flow has not gone on from yet.
    """
    named = {agent.name: agent for agent in agents}
    found: dict[ReplayKey, Refusal | None] = {}
    born: dict[ReplayKey, int] = {}
    for attempt in attempts:
        key = ReplayKey(attempt.step_ref, attempt.input_hash, attempt.occurrence)
        given_up = ambiguous(attempt, named.get(attempt.step_ref))
        if given_up is not None:
            found[key] = Refusal(given_up, attempt.generation != generation, _CUT_OFF)
        elif attempt.status is not None:
            found[key] = _refusal(attempt)
        born[key] = attempt.generation
    for request in requests:
        key = ReplayKey(request.step_ref, request.input_hash, request.occurrence)
        answer = outcome_of(request) if request.status in _ANSWERED else None
        if answer is not None and request.generation >= born.get(key, 0):
            found[key] = Refusal(answer, request.generation != generation, _PERSON)
    return {key: refusal for key, refusal in found.items() if refusal is not None}


def _refusal(attempt: AttemptRow) -> Refusal | None:
    if attempt.outcome_json is None or attempt.due_at is not None:
        return None
    return Refusal(_REFUSED[AttemptStatus(attempt.status)](decode(attempt.outcome_json)))


def ambiguous(attempt: AttemptRow, agent: AgentDef | None) -> Failed | None:
    """What a step is answered whose last attempt was cut off, if its agent must not do it twice; else None."""
    if attempt.status is not None or agent is None or agent.on_ambiguous != "fail":
        return None
    return Failed(f"attempt {attempt.attempt} was cut off by a crash and may have acted; on_ambiguous is fail")


def dry_replay(
    blueprint: Blueprint,
    init_ctx: Json,
    rows: Iterable[ReplayRow],
    decisions: Iterable[DecisionRow],
    refused: Mapping[ReplayKey, Refusal],
    target: Target | None = None,
) -> Plan:
    """Runs the flow on its log. Without a target it is the plan of a resume, which cuts nothing.

    A decision whose winning lane does not settle is up for decision again: then all its lanes run, also those whose
    rows it had retired. So the flow is run anew without such decisions, until all that are left stand.

    Args:
        blueprint: what will be executed.
        init_ctx: the initial flow ctx.
        rows: the rows that no cut has retired, those that a decision retires among them.
        decisions: the decisions that no cut has retired.
        refused: see `refusals`.
        target: what is run again.
    """
    rows, standing, dropped = list(rows), list(decisions), []
    while True:
        run = _DryRun(blueprint, init_ctx, live_rows(rows, standing), winners(standing), refused, target)
        run.to_its_end()
        undecided = run.undecided(live_rows(standing, standing)) if target else []
        if not undecided:
            return run.plan(tuple(dropped))
        standing = [row for row in standing if row not in undecided]
        dropped += undecided


class _DryRun:
    def __init__(
        self,
        blueprint: Blueprint,
        init_ctx: Json,
        rows: Iterable[ReplayRow],
        decisions: Mapping[tuple[Lane, int], int],
        refused: Mapping[ReplayKey, Refusal],
        target: Target | None,
    ) -> None:
        self._rows = {ReplayKey(row.step_ref, row.input_hash, row.occurrence): row for row in rows}
        self._refused = refused
        self._target = target
        flow = _all_lanes_at_once(blueprint.flow)
        self._machine = FlowMachine(flow, init_ctx, metas=blueprint.metas, decisions=decisions)
        self._steps: dict[int, PlannedStep] = {}
        self._kept: dict[ReplayKey, ReplayRow] = {}
        self._refusing: list[Lane] = []
        self._ended: dict[int, str] = {}
        self._withheld: dict[int, ReplayKey] = {}

    def to_its_end(self) -> None:
        """Answers what it can until every lane has settled or ended."""
        queue = deque(self._machine.start())
        while queue or self._machine.paused:
            if not queue:
                queue.extend(self._machine.proceed())
                continue
            command = queue.popleft()
            if isinstance(command, Dispatch):
                queue.extend(self._answer(command))
            elif isinstance(command, Abandon):
                self._forget(command.ticket)

    def undecided(self, decisions: Iterable[DecisionRow]) -> list[DecisionRow]:
        """Those of the logged decisions whose winning lane has not settled."""
        return [row for row in decisions if (lane_of(row), row.fork) not in self._machine.confirmed]

    def plan(self, dropped_decisions: tuple[DecisionRow, ...]) -> Plan:
        """What came of it. A rerun-from drops all live rows that were not consumed; a resume drops nothing."""
        gone = {key: row for key, row in self._rows.items() if key not in self._kept} if self._target else {}
        listed = set(self._withheld.values())
        return Plan(
            steps=(*self._steps.values(), *(_cut(row) for key, row in gone.items() if key not in listed)),
            kept=tuple(self._kept.values()),
            dropped=tuple(gone.values()),
            dropped_decisions=dropped_decisions,
            withheld=len(self._withheld),
            stopped_at=tuple(self._ended.values()),
        )

    def _answer(self, dispatch: Dispatch) -> list[Command]:
        """Decides one dispatch; what the machine commands after its answer, nothing if it ends its lane."""
        key = dispatch.key
        if self._target is not None and self._target.matches(dispatch):
            self._withheld[dispatch.ticket] = key
            return self._end(dispatch, "the target")
        row = self._rows.get(key)
        if row is not None:
            self._kept[key] = row
            why = "if it refuses again" if self._follows_refusal(dispatch.lane) else "logged"
            self._note(dispatch, REPLAYED, why)
            return self._machine.complete(dispatch.ticket, Pass(decode(row.step_output_json)))
        refusal = self._refused.get(key)
        if refusal is None:
            return self._end(dispatch, "never finished")
        outcome, asked_again = refusal.outcome, refusal.asked_again or self._target is not None
        if isinstance(outcome, Blocked) and dispatch.node is not None and dispatch.node.on_deny == "continue":
            outcome = Pass(outcome.value)
        if asked_again and isinstance(outcome, Pass):  # what is answered next time, nobody knows
            return self._end(dispatch, "asked again")
        if asked_again:
            self._note(dispatch, RUNS, "refused before, and is asked again")
            self._refusing.append(dispatch.lane)
        else:
            self._note(dispatch, REPLAYED, refusal.why)
        return self._machine.complete(dispatch.ticket, outcome)

    def _end(self, dispatch: Dispatch, why: str) -> list[Command]:
        self._note(dispatch, RUNS, why)
        self._ended[dispatch.ticket] = dispatch.ref
        return []

    def _forget(self, ticket: int) -> None:
        """Takes back a step of a lane that has lost meanwhile: it will not run."""
        if self._steps[ticket].plan == RUNS:
            del self._steps[ticket]
        self._ended.pop(ticket, None)
        self._withheld.pop(ticket, None)

    def _note(self, dispatch: Dispatch, plan: str, why: str) -> None:
        key = dispatch.key
        step = PlannedStep(key.step_ref, key.occurrence, dispatch.lane, key.input_hash, plan, why)
        self._steps[dispatch.ticket] = step

    def _follows_refusal(self, lane: Lane) -> bool:
        """Whether a refusal was answered in this lane, in one around it, or in one that it has joined."""
        return any(lane[: len(other)] == other or other[: len(lane)] == lane for other in self._refusing)


def _cut(row: ReplayRow) -> PlannedStep:
    return PlannedStep(row.step_ref, row.occurrence, lane_of(row), row.input_hash, RUNS, "downstream of the target")


def _all_lanes_at_once(node: Node) -> Node:
    """The flow without the limits of fan-outs in which every lane runs to its end anyway.

    With `concurrency` 1 a lane that is ended here would keep all later ones from being started, and their rows, which
    depend on nothing in it, would be cut. In an `any` or `race` later lanes do depend on it: they start only if it does
    not win.
    """
    match node:
        case Seq(children):
            return Seq(tuple(map(_all_lanes_at_once, children)))
        case Branch(cond, then, otherwise):
            return Branch(cond, _all_lanes_at_once(then), _all_lanes_at_once(otherwise))
        case Try(body, catch):
            return replace(node, body=_all_lanes_at_once(body), catch=_all_lanes_at_once(catch))
        case Loop(body=body):
            return replace(node, body=_all_lanes_at_once(body))
        case Fanout(body=body, join=join):
            concurrency = node.concurrency if JOINS[join].wins else None
            return replace(node, body=_all_lanes_at_once(body), concurrency=concurrency)
    return node


_CUT_OFF: Final = "cut off by a crash, and must not be done twice: it fails"
_PERSON: Final = "a person has answered, or did not in time, and is not asked again"
_ANSWERED: Final = frozenset({RequestStatus.RESOLVED, RequestStatus.EXPIRED})

_REFUSED: Mapping[AttemptStatus, Any] = {
    AttemptStatus.BLOCKED: Blocked,
    AttemptStatus.SKIPPED: Skip,
    AttemptStatus.FAILED: Failed,
    AttemptStatus.TIMEOUT: Failed,
}
