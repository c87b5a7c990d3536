"""How people see the demo: the story as it happens on stderr, the picture of it on stdout at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from refold.cli.demo.stage import Entry

Json = Any

_STYLES: Final = {"replayed": "green", "ran": "", "ran twice": "yellow"}
_COLUMN: Final = 22


class Story:
    """Tells act after act. Use it as a context: on a terminal it also shows how far the steps are."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("") if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()

    def tell(self, act: str, text: str) -> None:
        """One act: a word or two, and what came of it."""
        self._console.print(Text(f"{act:<12}", style="bold").append(text, style="not bold"), soft_wrap=True)

    def progress(self, ledger: Iterable[Entry]) -> None:
        """How far the steps are."""
        if self._status is not None:
            seen = Counter(entry.event for entry in ledger)
            self._status.update(f"{seen['end']} steps ended, {seen['start'] - seen['end']} begun")


def draw(outcome: Json) -> None:
    """The picture: every step, what the survey found, every check, and the sum."""
    console = Console(highlight=False)
    steps = outcome["steps"]
    console.print(Columns([_step(step) for step in steps], column_first=True, width=_COLUMN))
    _say(console, "")
    _say(console, outcome["answer"] if isinstance(outcome["answer"], str) else str(outcome["answer"]))
    _say(console, "")
    console.print(_checks(outcome["checks"]))
    verdicts = Counter(step["verdict"] for step in steps)
    held = sum(check["holds"] for check in outcome["checks"])
    told = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    _say(console, f"\n{told}; {held} of {len(outcome['checks'])} checks hold; {outcome['secs']} s")


def _step(step: Json) -> Text:
    verdict = step["verdict"]
    return Text(f"{step['step']:<12}").append(verdict, style=_STYLES.get(verdict, "red"))


def _checks(checks: list[Json]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for check in checks:
        mark = Text("holds", style="green") if check["holds"] else Text("FAILS", style="bold red")
        table.add_row(mark, Text("\n".join([check["check"], *check["faults"]])))
    return table


def _say(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)
