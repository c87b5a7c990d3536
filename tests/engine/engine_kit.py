"""What the engine's tests share: assignments to give to agents, and eyes for processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refold.engine.agents import Assignment, Report, Tools, performer
from refold.records import Json


@dataclass(frozen=True)
class Definition:
    """An agent definition as a Blueprint holds it."""

    kind: str
    spec: Mapping[str, Json]
    name: str = "tester"


@dataclass
class Ledger:
    """Stands in for the reaper: writes down what it is told and kills nobody."""

    server_id: str = "server-under-test"
    told: list[tuple[str, int]] = field(default_factory=list)

    def register(self, pgid: int) -> None:
        self.told.append(("+", pgid))

    def unregister(self, pgid: int) -> None:
        self.told.append(("-", pgid))


def assignment(agent: Definition, directive: Json, **changes: Any) -> Assignment:
    """An assignment of `directive` to `agent`; what a test does not care about is filled in."""
    members: dict[str, Any] = {
        "run_id": "R-0123456789abcdef",
        "step_id": "ST-0123456789abcdef",
        "step_ref": agent.name,
        "attempt": 1,
        "occurrence": 0,
        "lane": (),
        "epoch": 1,
        "generation": 1,
        "input_hash": "",
        "ctx": {"run_id": "R-0123456789abcdef", "ctx": {}},
    }
    return Assignment(agent=agent, directive=directive, **(members | changes))


async def perform(agent: Definition, directive: Json = None, tools: Tools | None = None, **changes: Any) -> Report:
    """What `agent` makes of `directive`."""
    return await performer(agent, tools or Tools(reaper=Ledger())).perform(assignment(agent, directive, **changes))


def shell(script: str, **spec: Json) -> Definition:
    """An agent that runs a shell script."""
    return Definition("subprocess", {"program": "sh", "args": ["-c", script], **spec})


def is_alive(pid: int) -> bool:
    """Whether the process runs: it is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def marked(server_id: str) -> set[int]:
    """The processes alive that carry the id of this server in their environment."""
    mark, found = f"REFOLD_SERVER={server_id}".encode(), set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.add(int(process.name))
        except OSError:
            continue  # gone meanwhile, or not ours
    return found


def until(test: Callable[[], Any], secs: float) -> Any:
    """Polls until `test` answers something true and returns that; its last answer when time is up."""
    deadline = time.monotonic() + secs
    while not (found := test()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return found


async def until_async(test: Callable[[], Any], secs: float) -> Any:
    """As `until`, while the loop goes on."""
    deadline = time.monotonic() + secs
    while not (found := test()) and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    return found
