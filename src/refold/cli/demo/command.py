"""The command and its story: serve, attach, launch, kill, serve again, come back, resume, compare, judge."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import quote_from_bytes

from cyclopts import Parameter

import refold
from refold.cli.demo import flow
from refold.cli.demo.checks import Evidence, StepFact, in_flight, judge, key_of, step_facts
from refold.cli.demo.picture import Story, draw
from refold.cli.demo.stage import DemoStuck, Entry, Stage
from refold.cli.demo.steps import shown
from refold.cli.doors import give, say
from refold.client.api import Api, Unreachable
from refold.client.session import SessionClient
from refold.errors import InvalidRequest

Json = Any
T = TypeVar("T")
Flag = Annotated[bool, Parameter(negative=())]

ACT_SECS: Final = 120.0
"""How long one act may take: to the kill, from the resume to the end."""
PULSE_SECS: Final = 0.02
"""How long to wait for frames before looking at the ledger again."""


def demo(folder: Path | None = None, *, keep: Flag = False, json: Flag = False) -> int:
    """Surveys a folder, is killed with kill -9 half way, resumes, and checks against a ledger that nothing ran twice.

    Parameters
    ----------
    folder
        The git repository or folder of text files to survey; default refold's own source.
    keep
        Keep the demo's home, with its store and its ledger, and say where it is.
    json
        One JSON object on stdout.
    """
    folder = (folder or Path(refold.__file__).parent).absolute()
    if not folder.is_dir():
        raise InvalidRequest(f"{shown(_quoted(folder))} is not a folder")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # as Ctrl-C: nothing of the demo outlives it
    home = Path(tempfile.mkdtemp(prefix="refold-demo-"))
    started = time.monotonic()
    try:
        with Story() as story, Stage(home) as stage:
            evidence = play(folder, stage, story)
    finally:
        if keep:
            say(f"kept: {home}")
        else:
            shutil.rmtree(home, ignore_errors=True)
    outcome = _outcome(folder, evidence) | {"secs": round(time.monotonic() - started, 2)}
    outcome |= {"home": str(home)} if keep else {}
    give(outcome) if json else draw(outcome)
    return 0 if outcome["ok"] else 1


def play(folder: Path, stage: Stage, story: Story) -> Evidence:
    """Plays the story once. Raises DemoStuck where it cannot go on."""
    client, run_id = _first_half(folder, stage, story)
    seen, early = _shown_passes(client), client.folded
    api = stage.serve()
    before = stage.ledger()
    _tell_ledger(before, story)
    restarted = api.get(f"/v1/runs/{run_id}")
    kept = frozenset(key_of(row) for row in api.get(f"/v1/runs/{run_id}/replay")["items"])
    story.tell("serve again", f"pid {stage.pid}; the Run is {restarted['status']}: {restarted['result_ref']}")
    history, resumed = _second_half(client, run_id, api, stage, story)
    digests, all_events = _compare(client, stage)
    return Evidence(
        run_id=run_id,
        before=before,
        after=stage.ledger()[len(before) :],
        kept=kept,
        seen=seen,
        restarted=restarted,
        resumed=resumed,
        finished=api.get(f"/v1/runs/{run_id}"),
        steps=tuple(api.get(f"/v1/runs/{run_id}/steps")["items"]),
        history=history,
        events=(early, client.folded - early),
        all_events=all_events,
        digests=digests,
    )


def _first_half(folder: Path, stage: Stage, story: Story) -> tuple[SessionClient, str]:
    """Serve, attach, launch, kill. The client, as it was cut off, and the run id."""
    api = stage.serve()
    story.tell("serve", f"pid {stage.pid}, {api.url}")
    api.post("/v1/blueprints", flow.survey(stage.work))
    client = SessionClient.start(stage.wire(), flow.NAME)
    story.tell("attach", f"a client follows session {client.session_id}")
    act, turn = Act(client, stage, story), client.turn(_quoted(folder), display=f"survey {shown(_quoted(folder))}")
    run_id = act.until("the launch", turn, lambda: _run_id(client))
    story.tell("launch", f"{run_id} surveys {shown(_quoted(folder))}")
    act.until("the kill", turn, lambda: any(entry.event == "held" for entry in stage.ledger()))
    stage.kill()
    story.tell("kill -9", f"pid {stage.pid} is dead")
    return client, run_id


def _second_half(client: SessionClient, run_id: str, api: Api, stage: Stage, story: Story) -> tuple[Json, Json]:
    """Come back, resume, end. What the client was served, and what the resume answered."""
    history = client.resume(stage.wire())
    story.tell("come back", f"with the old cursor: mode {history['mode']}, {history.get('noneReason')}")
    stage.open_gate()
    resumed = api.post(f"/v1/runs/{run_id}/resume")
    story.tell("resume", f"{run_id}; steps that are not run again: {resumed['replayed_steps']}")
    act, turn = Act(client, stage, story), api.get(f"/v1/runs/{run_id}")["turn_id"]
    act.until("the end", turn, lambda: act.ended == turn)
    story.tell("end", f"the turn is {client.state.last_turn and client.state.last_turn['terminal']}")
    return history, resumed


def _compare(client: SessionClient, stage: Stage) -> tuple[Mapping[str, str], int]:
    """Who folds to which digest, and how many events the whole view has."""
    wire = stage.wire()
    fresh, genesis = SessionClient(wire, client.session_id), SessionClient(wire, client.session_id)
    genesis.catch_up()
    snapshot = fresh.resume(wire, history="snapshot").get("snapshot") or {}
    digests = {
        "returning client": client.digest,
        "fresh client, from the first event": genesis.digest,
        "fresh client, from a snapshot": fresh.digest,
        "server": snapshot.get("foldDigest", "not served"),
    }
    return digests, genesis.folded


class Act:
    """Waiting that folds: the client receives, the ledger grows, the story shows how far they are."""

    def __init__(self, client: SessionClient, stage: Stage, story: Story) -> None:
        self._client = client
        self._stage = stage
        self._story = story

    @property
    def ended(self) -> str | None:
        """The turn that ended last, as the client sees it."""
        return (self._client.state.last_turn or {}).get("turnId")

    def until(self, what: str, turn: str, reached: Callable[[], T | None]) -> T:
        """Returns what `reached` returns as soon as that is true.

        Raises DemoStuck when it takes too long, or when `turn` has ended without it.
        """
        deadline = time.monotonic() + ACT_SECS
        while not (found := reached()):
            if self.ended == turn or time.monotonic() > deadline:
                last = self._client.state.last_turn
                raise DemoStuck(f"{what} did not come; last turn: {last}; the server's log: {self._stage.log_tail()}")
            self._client.receive(PULSE_SECS)
            self._story.progress(self._stage.ledger())
        return found


def _run_id(client: SessionClient) -> str | None:
    items = client.state.items.values()
    return next((item["workflowRunId"] for item in items if item["kind"] == "workflow"), None)


def _shown_passes(client: SessionClient) -> frozenset[str]:
    """Takes what still arrives from the dead server; the step ids that the client has been shown as passed."""
    try:
        while True:
            client.receive(PULSE_SECS)
    except Unreachable:
        items = client.state.items.values()
        return frozenset(i["itemId"] for i in items if i["kind"] == "toolCall" and i["status"] == "completed")


def _tell_ledger(before: tuple[Entry, ...], story: Story) -> None:
    cut_off = in_flight(before)
    ended = sum(entry.event == "end" for entry in before)
    names = ", ".join(sorted(f"{entry.ref} {list(entry.lane)}" if entry.lane else entry.ref for entry in cut_off))
    story.tell("ledger", f"{ended} of {_planned(before)} steps had ended; cut off: {names}")


def _planned(entries: tuple[Entry, ...]) -> int:
    return next((entry.planned for entry in entries if entry.planned is not None), 0)


def _outcome(folder: Path, evidence: Evidence) -> dict[str, Json]:
    """All facts, as `--json` gives them and `draw` shows them."""
    facts, checks, final = step_facts(evidence), judge(evidence), evidence.finished["result_ref"]
    done = evidence.finished["status"] == "done"
    return {
        "ok": all(check.holds for check in checks),
        "folder": shown(_quoted(folder)),
        "run_id": evidence.run_id,
        "session_id": evidence.finished["session_id"],
        "planned_steps": _planned(evidence.before),
        "ended_before_kill": sum(entry.event == "end" for entry in evidence.before),
        "cut_off": len(in_flight(evidence.before)),
        "replayed_steps": evidence.resumed["replayed_steps"],
        "steps": [_step(fact) for fact in _read_out(facts)],
        "events": {"before": evidence.events[0], "after": evidence.events[1], "all": evidence.all_events},
        "history": {"mode": evidence.history["mode"], "none_reason": evidence.history.get("noneReason")},
        "digests": dict(evidence.digests),
        "survey": final.get("survey", {}).get("total") if done else None,
        "answer": final["output"] if done else final,
        "checks": [{"check": check.says, "holds": check.holds, "faults": list(check.faults)} for check in checks],
    }


def _read_out(facts: list[StepFact]) -> Iterator[StepFact]:
    """In the order of dispatch, but the lanes of a fan-out sorted: theirs depends on who was faster."""
    for in_lanes, together in itertools.groupby(facts, key=lambda fact: bool(fact.lane)):
        group = list(together)
        yield from sorted(group, key=lambda fact: (fact.ref, fact.lane)) if in_lanes else group


def _step(fact: StepFact) -> Json:
    return {
        "step": fact.step,
        "step_ref": fact.ref,
        "lane": list(fact.lane),
        "occurrence": fact.occurrence,
        "verdict": fact.verdict,
        "executions": fact.before + fact.after,
    }


def _quoted(folder: Path) -> str:
    return quote_from_bytes(os.fsencode(folder))
