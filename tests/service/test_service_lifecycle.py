"""What may become of a Run: whatever is done to a Session's Runs, in whatever order, the one table decides it.

A model in a few lines stands beside the App. After every verb the two must agree on the status of every Run, of the
Task and of the queue; a verb that the model refuses must leave the store as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_kit import Crew, House, answer, ended, everything, faults, flow, launch, step

from refold.engine.agents import Assignment, Report
from refold.errors import Conflict, NotInterrupted, SessionBusy
from refold.flowir import Failed
from refold.flowir.lifecycle import TRANSITIONS, Verb
from refold.records import RunRecord, RunStatus, SessionRecord, TaskRecord
from refold.service.app import App
from refold.service.reruns import RerunFrom
from refold.store import Reader

S = RunStatus
STOPPED = {S.DONE, S.FAILED, S.CANCELLED, S.INTERRUPTED}
ENDS = ("finish", "fail", "fall")
VERBS = (*ENDS, "kick", "crash", "shutdown", "resume", "cancel", "rerun")


@dataclass
class Model:
    """How one Session stands: the Runs in the order of their kicks, the active one, and the one activated last."""

    statuses: list[RunStatus] = field(default_factory=lambda: [S.RUNNING])
    active: int | None = 0
    last: int = 0

    def refusal(self, verb: str, run: int) -> type[Exception] | None:
        """What the verb is refused with, None if it is not."""
        status = self.statuses[run]
        match verb:
            case "resume" if status is not S.INTERRUPTED:
                return NotInterrupted
            case "rerun" if status not in STOPPED:
                return Conflict
            case "resume" | "rerun" if self.active is not None:
                return SessionBusy
            case "cancel" if status in (S.DONE, S.FAILED):
                return Conflict
        return None

    def apply(self, verb: str, run: int) -> None:
        """Does a verb that is not refused."""
        match verb:
            case "kick":
                self.statuses.append(S.PENDING)
                self._launch_next()
            case "resume" | "rerun":
                self._activate(run)
            case "cancel":
                self.statuses[run] = S.CANCELLED
                if self.active == run:
                    self.active = None
                    self._launch_next()
            case "finish" | "fail" if self.active is not None:
                self.statuses[self.active] = {"finish": S.DONE, "fail": S.FAILED}[verb]
                self.active = None
                self._launch_next()
            case "fall" | "crash" | "shutdown" if self.active is not None:
                self.statuses[self.active] = S.INTERRUPTED
                self.active = None

    def _launch_next(self) -> None:
        if self.active is None and S.PENDING in self.statuses:
            self._activate(self.statuses.index(S.PENDING))

    def _activate(self, run: int) -> None:
        self.statuses[run], self.active, self.last = S.RUNNING, run, run


def fail(work: Assignment) -> Report:
    return Report(Failed("told to fail"))


def fall(work: Assignment) -> Report:
    raise RuntimeError("a bug in an agent")


class Story:
    """An App whose Runs all wait in step `s` while they run, and the verbs on it by the model's names."""

    def __init__(self, house: House, crew: Crew) -> None:
        self.house = house
        self.crew = crew
        self.app: App
        self.runs: list[RunRecord] = []

    async def begin(self) -> None:
        self.crew.hold("s")
        self.app = await self.house.open()
        self.runs = [await launch(self.app, flow(step("s", 1)))]
        await self.settle()

    async def do(self, verb: str, run: int) -> None:
        """Does a verb on the Run number `run`, and waits until its consequences have come to rest."""
        run_id = self.runs[run].run_id
        verbs: Mapping[str, Callable[[], Awaitable[object]]] = {
            "kick": self._kick,
            "crash": self._crash,
            "shutdown": self._shutdown,
            "resume": lambda: self.app.runs.resume(run_id),
            "cancel": lambda: self.app.runs.cancel(run_id),
            "rerun": lambda: self.app.reruns.rerun(run_id, RerunFrom(from_step="s")),
            "finish": lambda: self._end(answer),
            "fail": lambda: self._end(fail),
            "fall": lambda: self._end(fall),
        }
        await verbs[verb]()
        await self.settle()

    async def _kick(self) -> None:
        self.runs.append(await self.app.tasks.rekick(self.runs[0].task_id))

    async def _crash(self) -> None:
        self.app = await self.house.reboot(self.app)

    async def _shutdown(self) -> None:
        await self.app.drain()
        await self._crash()

    async def _end(self, act: Callable[[Assignment], Report]) -> None:
        active = await self.active()
        if active is not None:
            self.crew.acts["s"] = act
            self.crew.free("s")
            self.crew.hold("s")
            await ended(self.app, active)

    async def active(self) -> RunRecord | None:
        running = [run for run in await self.standing() if run.status == S.RUNNING]
        assert len(running) <= 1, "two activations in one Session"
        return running[0] if running else None

    async def settle(self) -> None:
        """Until the active Run, if there is one, waits in its step: then nothing moves any more."""
        if (active := await self.active()) is not None:
            here = (active.run_id, active.epoch)
            await self.crew.until(lambda: here in [(work.run_id, work.epoch) for work in self.crew.seen])

    async def standing(self) -> list[RunRecord]:
        return await self.app.store.read(lambda reader: reader.find(RunRecord))


async def agree(story: Story, model: Model) -> None:
    """The App and the model say the same."""

    def read(reader: Reader) -> tuple[list[RunRecord], TaskRecord, SessionRecord]:
        return reader.find(RunRecord), reader.find(TaskRecord)[0], reader.find(SessionRecord)[0]

    runs, task, session = await story.app.store.read(read)
    assert [run.status for run in runs] == model.statuses
    assert session.active_run == (None if model.active is None else runs[model.active].n)
    assert task.status == model.statuses[model.last], "a Task stands as its Run that was activated last"


async def play(verbs: list[tuple[str, int]], story: Story) -> None:
    model = Model()
    await story.begin()
    await agree(story, model)
    for verb, number in verbs:
        run = number % len(model.statuses)
        refusal = model.refusal(verb, run)
        if refusal is None:
            model.apply(verb, run)
            await story.do(verb, run)
        else:
            before = await everything(story.app)
            with pytest.raises(refusal):
                await story.do(verb, run)
            assert await everything(story.app) == before
        await agree(story, model)
    assert await faults(story.app) == []


@contextlib.contextmanager
def a_story() -> Iterator[Story]:
    """A story in memory, for a property: its own crew, no processes."""
    crew = Crew()
    with crew.as_python(), House().without_processes() as house:
        yield Story(house, crew)


def tell(go: Callable[[Story], Awaitable[None]]) -> None:
    """Runs `go` on a story of its own."""

    async def run() -> None:
        with a_story() as story:
            try:
                await go(story)
            finally:
                await story.house.close()

    asyncio.run(run())


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 4)), max_size=14))
def test_every_sequence_of_verbs_goes_by_the_table(verbs: list[tuple[str, int]]) -> None:
    tell(lambda story: play(verbs, story))


TO_REACH: Mapping[RunStatus, tuple[str, ...]] = {
    S.RUNNING: (),
    S.DONE: ("finish",),
    S.FAILED: ("fail",),
    S.INTERRUPTED: ("fall",),
    S.CANCELLED: ("cancel",),
}
"""How the first Run of a story gets to a status."""

ASKED = [row for row in TRANSITIONS if row[1] in (Verb.CANCEL, Verb.RESUME, Verb.RERUN) and row[0] in TO_REACH]
"""The rows of the table that a caller asks for by name."""


@pytest.mark.parametrize(("status", "verb"), ASKED)
def test_no_verb_finds_another_way_than_the_table(status: RunStatus, verb: Verb) -> None:
    async def go(story: Story) -> None:
        await story.begin()
        for each in TO_REACH[status]:
            await story.do(each, 0)
        before = await everything(story.app)
        with mock.patch.dict(TRANSITIONS):
            del TRANSITIONS[status, verb]
            with pytest.raises(Conflict):
                await story.do(verb, 0)
        assert await everything(story.app) == before
        await story.do(verb, 0)
        assert [run.status for run in await story.standing()] == [TRANSITIONS[status, verb]]

    tell(go)


def test_a_launch_that_the_table_refuses_creates_nothing() -> None:
    async def go(story: Story) -> None:
        await story.begin()
        await story.do("finish", 0)
        before = await everything(story.app)
        with mock.patch.dict(TRANSITIONS):
            del TRANSITIONS[S.PENDING, Verb.LAUNCH]
            with pytest.raises(Conflict):
                await story.do("kick", 0)
        assert await everything(story.app) == before

    tell(go)


@pytest.mark.parametrize("verbs", [("kick",), (), ("fall",)], ids=["pending", "running", "interrupted"])
def test_cancel_is_for_good_and_twice_is_once(verbs: tuple[str, ...]) -> None:
    async def go(story: Story) -> None:
        await story.begin()
        for each in verbs:
            await story.do(each, 0)
        run = len(story.runs) - 1
        await story.do("cancel", run)
        once = await everything(story.app)
        await story.do("cancel", run)
        assert await everything(story.app) == once
        await story.do("crash", run)
        with pytest.raises(NotInterrupted) as no:
            await story.do("resume", run)
        assert no.value.data["status"] == S.CANCELLED
        assert (await story.standing())[run].result_json == '{"error":"cancelled"}'

    tell(go)
