"""The flow machine: runs a flow without doing anything itself.

It *asks* by handing out commands and *learns* through `complete`; nothing in here waits, reads a clock or knows a
store. Whoever drives it owns the world.

Law: *replaying a complete log makes no call and yields the same ctx, whatever order completions arrive in.* It holds
because nothing that is kept depends on that order: a lane sees its own ctx only, joins look at indexes, winners are
logged, and keys hash the lane.

Pure work is metered, so that no flow can hold the driver's thread: after a slice of transitions the machine is `paused`
until `proceed` grants the next one. If a commit fails, throw the machine away: it has moved past what was written.

Not here: what nodes do (`nodes`), what joins do (`fanout`), the log (`replay`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Final

from refold.canonical import encode
from refold.errors import FlowError, InvalidJson
from refold.flowir.envelope import unwrap as unwrap_envelope
from refold.flowir.fanout import Gathering, Strand, unwrap
from refold.flowir.ir import Node
from refold.flowir.keys import input_hash
from refold.flowir.messages import (
    Abandon,
    Blocked,
    Command,
    Decision,
    Dispatch,
    Done,
    Failed,
    Outcome,
    Pass,
    ReplayKey,
    Result,
    Skip,
    Trail,
)
from refold.flowir.nodes import Ask, Fork, Meter, Pause, walk
from refold.records import Lane

Json = Any

SLICE: Final = 10_000
MAX_TRANSITIONS: Final = 10**7


class FlowMachine:
    """Runs `flow` from `ctx` to `result`.

    Args:
        flow: the flow, as `parse_flow` made it.
        ctx: the initial flow ctx. Neither it nor any other value that goes in or out is ever mutated.
        metas: what `$step_meta` envelopes refer to.
        decisions: (lane, fork) -> winning lane, from the log.
        slice: transitions per grant, before control goes back to the driver.
        max_transitions: transitions before the flow fails with an error that it cannot catch.
    """

    def __init__(
        self,
        flow: Node,
        ctx: Json,
        *,
        metas: Mapping[str, Mapping[str, Json]] | None = None,
        decisions: Mapping[tuple[Lane, int], int] | None = None,
        slice: int = SLICE,
        max_transitions: int = MAX_TRANSITIONS,
    ) -> None:
        self.result: Result | None = None
        self.confirmed: set[tuple[Lane, int]] = set()
        """The logged decisions whose winning lane has settled so far."""
        self._metas = metas or {}
        self._decisions = decisions or {}
        self._slice = slice
        self._unspent = max_transitions
        self._max_transitions = max_transitions
        self._meter = Meter()
        self._open: dict[int, Strand] = {}
        self._asked: dict[int, str] = {}
        self._abandoned: set[int] = set()
        self._tickets = 0
        self._seen: dict[tuple[str, str], int] = {}
        self._commands: list[Command] = []
        root = Strand(partial(walk, flow), ctx, self._meter)
        self._ready: deque[tuple[Strand, Json]] = deque([(root, None)])

    @property
    def paused(self) -> bool:
        """True while pure work waits for the next slice: call `proceed`."""
        return bool(self._ready)

    def start(self) -> list[Command]:
        """Begins. Returns the first commands."""
        return self.proceed()

    def proceed(self) -> list[Command]:
        """Grants a slice of transitions. Returns the commands that came of it."""
        if self.result is None and self._meter.left <= 0:
            self._meter.left = min(self._slice, self._unspent)
            self._unspent -= self._meter.left
        return self._run()

    def complete(self, ticket: int, outcome: Outcome) -> list[Command]:
        """Tells the machine how the dispatch under `ticket` ended. Returns the commands that came of it.

        The outcome of an abandoned ticket is ignored. While the machine is paused an outcome is kept, and nothing
        comes of it before `proceed`.

        Raises:
            LookupError: no dispatch is open under this ticket (a bug of the driver).
        """
        if ticket in self._abandoned:
            return []
        if ticket not in self._open:
            raise LookupError(f"no dispatch is open under ticket {ticket}")
        strand = self._open.pop(ticket)
        strand.ticket = None
        if type(outcome) is Pass:
            strand.passed(ticket)
        self._ready.append((strand, _ANSWERS[type(outcome)](self._asked.pop(ticket), outcome)))
        return self._run()

    def key_of(self, ref: str, directive: Json, lane: Lane) -> ReplayKey:
        """Allots the replay key of a dispatch: its occurrence counts equal questions, whatever came of them."""
        hashed = input_hash(directive, lane)
        occurrence = self._seen.get((ref, hashed), 0)
        self._seen[ref, hashed] = occurrence + 1
        return ReplayKey(ref, hashed, occurrence)

    # -- the loop -----------------------------------------------------------------------------------------------------

    def _run(self) -> list[Command]:
        while self._ready:
            strand, value = self._ready.popleft()
            if strand.over:
                continue
            request = self._resume(strand, value)
            if type(request) is Pause:
                self._ready.append((strand, None))
                if self._unspent <= 0:
                    self._fail(f"flow exceeded {self._max_transitions} transitions", "max_flow_transitions")
                break
            if request is not None:
                self._REQUESTS[type(request)](self, strand, request)
        commands, self._commands = self._commands, []
        return commands

    def _resume(self, strand: Strand, value: Json) -> Any:
        """Runs a strand up to its next request, which it returns, or to its end (None)."""
        try:
            return strand.steps.throw(value) if type(value) is FlowError else strand.steps.send(value)
        except StopIteration:
            self._settle(strand, Done(strand.ctx))
        except FlowError as error:
            self._settle(strand, Failed(error.message))
        return None

    def _ask(self, strand: Strand, request: Ask) -> None:
        ref = request.ref
        try:
            directive, step_ctx = unwrap_envelope(request.given, self._metas)
            key = self.key_of(ref, directive, strand.lane)
        except (FlowError, InvalidJson) as error:
            self._ready.appendleft((strand, _dispatcher_error(ref, error.message)))
            return
        self._tickets = ticket = strand.ticket = self._tickets + 1
        self._open[ticket] = strand
        self._asked[ticket] = ref
        self._commands.append(
            Dispatch(
                ticket=ticket,
                ref=ref,
                directive=directive,
                key=key,
                lane=strand.lane,
                ctx=strand.ctx,
                node=request.node,
                step_ctx=step_ctx,
                trail=Trail(strand.since, tuple(strand.written)),
            )
        )

    # -- fan-outs -----------------------------------------------------------------------------------------------------

    def _fork(self, strand: Strand, request: Fork) -> None:
        gathering = Gathering(request, strand, strand.forks)
        strand.forks += 1
        winner = self._decisions.get((strand.lane, gathering.number)) if gathering.join.wins else None
        if winner is not None:
            if winner not in gathering.waiting:
                where = f"fan-out {gathering.number} of lane {list(strand.lane)}"
                self._fail(f"the log names lane {winner} as winner of {where}, which has no such lane", "divergence")
                return
            gathering.waiting = range(winner, winner + 1)
        strand.gathering = gathering
        self._continue(gathering)

    def _continue(self, gathering: Gathering) -> None:
        """Starts the lanes that are due; resumes the parent if all have settled."""
        if gathering.complete:
            self._join(gathering, gathering.value)
            return
        self._ready.extendleft((lane, None) for lane in reversed(gathering.start()))

    def _settle(self, strand: Strand, outcome: Result) -> None:
        strand.over = True
        gathering = strand.home
        if gathering is None:
            self.result = outcome
        elif gathering.settle(strand.index, outcome):
            self._decide(gathering, strand.index, outcome)
        else:
            self._continue(gathering)

    def _decide(self, gathering: Gathering, winner: int, outcome: Result) -> None:
        lane, number = gathering.parent.lane, gathering.number
        if (lane, number) in self._decisions:
            self.confirmed.add((lane, number))
        else:
            self._commands.append(Decision(lane, number, winner))
        for loser in gathering.running.values():
            self._cancel(loser)
        self._join(gathering, lambda: unwrap(outcome))

    def _join(self, gathering: Gathering, value: Callable[[], Json]) -> None:
        parent = gathering.parent
        parent.gathering = None
        try:
            joined = value()
        except FlowError as error:
            joined = error
        self._ready.appendleft((parent, joined))

    def _cancel(self, strand: Strand) -> None:
        """Ends a strand and all that it has started."""
        strand.over = True
        strand.steps.close()
        if strand.ticket is not None:
            del self._open[strand.ticket], self._asked[strand.ticket]
            self._abandoned.add(strand.ticket)
            self._commands.append(Abandon(strand.ticket))
        if strand.gathering is not None:
            for lane in strand.gathering.running.values():
                self._cancel(lane)

    def _fail(self, text: str, kind: str) -> None:
        """Ends the whole flow with an error that no `try` sees."""
        self.result = Failed(text, kind)
        self._ready.clear()
        for strand in list(self._open.values()):
            self._cancel(strand)

    _REQUESTS: ClassVar[Mapping[type, Callable[..., None]]] = {Ask: _ask, Fork: _fork}


def _dispatcher_error(ref: str, why: str) -> FlowError:
    """The dispatcher names the ref, and the step that asked names it again: the text is as in flow.ir."""
    return FlowError(f"dispatcher error for ref '{ref}': dispatcher error for ref '{ref}': {why}")


_ANSWERS: Final[Mapping[type, Callable[[str, Any], Json]]] = {
    Pass: lambda ref, outcome: outcome.value,
    Skip: lambda ref, outcome: {"__mse_skip": True, "value": outcome.value},
    Blocked: lambda ref, outcome: _dispatcher_error(ref, f"blocked: {encode(outcome.value)}"),
    Failed: lambda ref, outcome: _dispatcher_error(ref, outcome.text),
}
