"""The log as the machine meets it: which rows are live, and feeding what is logged back in.

A row is *live* unless it was written in a lane that lost its `any` or `race`: the decision retires it, whenever the row
was written. Live rows that a finished replay never asked for are drift: the flow has taken another path than the log.

Not here: reading and sealing rows (`records`, `store`), writing new ones (`engine`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from refold.canonical import decode
from refold.flowir.machine import FlowMachine
from refold.flowir.messages import Abandon, Command, Dispatch, Pass, ReplayKey
from refold.flowir.outputs import Outputs
from refold.records import CutRow, DecisionRow, Lane, ReplayRow

Json = Any
Logged = TypeVar("Logged", ReplayRow, DecisionRow)
Decisions = Mapping[tuple[Lane, int], int]


class ReplayCursor:
    """A log to replay from. Decodes a row's output once, when it is asked for.

    `decisions` is what `FlowMachine` takes under that name; `outputs` knows again what was answered.
    """

    def __init__(self, rows: Iterable[ReplayRow], decisions: Iterable[DecisionRow] = ()) -> None:
        decided = list(decisions)
        self.decisions: Decisions = winners(decided)
        self._rows: dict[tuple[str, str, int], ReplayRow] = {
            (row.step_ref, row.input_hash, row.occurrence): row for row in live_rows(rows, decided)
        }
        self._asked: set[ReplayKey] = set()
        self.outputs = Outputs()

    def lookup(self, key: ReplayKey) -> tuple[bool, Json]:
        """Returns (True, output) if the step of this key has passed, else (False, None)."""
        row = self._rows.get(key)
        if row is None:
            return False, None
        self._asked.add(key)
        value = decode(row.step_output_json)
        self.outputs.note(row.ordinal, value, row.step_output_json)
        return True, value

    def unasked(self) -> list[ReplayRow]:
        """The live rows that were never looked up: drift, once the replay has finished."""
        return [row for key, row in self._rows.items() if key not in self._asked]


def uncut(rows: Iterable[Logged], cuts: Iterable[CutRow]) -> list[Logged]:
    """Returns the rows that no rerun-from has retired, in their order."""
    retired = {n for cut in cuts for first, last in decode(cut.retired_json) for n in range(first, last + 1)}
    return [row for row in rows if row.ordinal not in retired]


def winners(decisions: Iterable[DecisionRow]) -> Decisions:
    """Returns (lane, fork) -> winner."""
    return {(lane_of(row), row.fork): row.winner for row in decisions}


def live_rows(rows: Iterable[Logged], decisions: Iterable[DecisionRow]) -> list[Logged]:
    """Returns the rows, or decisions, that no decision has retired, in their order."""
    won = winners(decisions)
    if not won:
        return list(rows)
    return [row for row in rows if not _lost(lane_of(row), won)]


def _lost(lane: Lane, won: Decisions) -> bool:
    return any(won.get((lane[:depth], fork), index) != index for depth, (fork, index) in enumerate(lane))


def lane_of(row: ReplayRow | DecisionRow) -> Lane:
    """Returns the lane that a row was written in."""
    return tuple((fork, index) for fork, index in decode(row.lane_json))


def settle_hits(machine: FlowMachine, commands: Iterable[Command], cursor: ReplayCursor) -> list[Command]:
    """Answers every dispatch that the log knows, and what comes of it, until only the live world can answer.

    Returns what is left for the driver, in the order in which it was commanded: dispatches that no row answers,
    decisions, and the abandoned among those that the driver was given before. A dispatch that is given up within the
    call is not mentioned at all. If the machine is paused afterwards, `proceed` and settle what that returns.
    """
    left: dict[object, Command] = {}
    queue = deque(commands)
    while queue:
        command = queue.popleft()
        if type(command) is Dispatch:
            known, value = cursor.lookup(command.key)
            if known:
                queue.extend(machine.complete(command.ticket, Pass(value)))
            else:
                left[command.ticket] = command
        elif type(command) is not Abandon or left.pop(command.ticket, None) is None:
            left[command] = command
    return list(left.values())
