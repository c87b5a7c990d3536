"""What the tests of boundaries and retention share: histories written record by record, and a reader that counts.

An `Author` writes legal Session logs with refold's own builders, spelled by bytes, as no App could be made to: turns,
steps, retries, questions, markers, and boundaries wherever the bytes say. Beside it, what is asked of Sessions that an
App serves and compacts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import length_hint
from typing import Any, Final

import msgspec
from service_kit import Line, flow, path, step
from service_kit import uuid7 as new_uuid7

from refold import view
from refold.canonical import Json, encode
from refold.records import (
    AttemptStatus,
    BoundaryRow,
    LogRecord,
    LogRow,
    ReplayRow,
    RequestRow,
    SessionRecord,
    TaskRecord,
    genesis,
    named_output,
)
from refold.service.app import App
from refold.session import SessionLog, boundaries, find_session
from refold.store import MemoryStore, Reader, Tx, append_log
from refold.testing.history import sample
from refold.view import Frame, Position, ViewState

KEY: Final = bytes(range(32))
SESSION: Final = "0198f0aa-1111-7000-8000-0000000000aa"
RUN_ID: Final = "R-0123456789abcdef"
TEXTS: Final = ("", "hi", "ünïcode €", "x" * 9_000, "€" * 4_000, "named €" * 100)
Pick = Callable[[Sequence[Any]], Any]


def uuid7(n: int) -> str:
    """The n-th id of a kind that is a UUIDv7."""
    return f"0198f0aa-3333-7000-8000-{n:012x}"


class Author:
    """Writes a Session's log into a store in memory; `play` with bytes, one for each choice.

    `closes_again`: what is closed may be closed once more, of which retention knows nothing.
    """

    def __init__(self, *, closes_again: bool = False) -> None:
        self._closes_again = closes_again
        self.store = MemoryStore()
        self.log = SessionLog(KEY, boundaries.start)
        self.turn: LogRow | None = None
        self.steps: dict[str, LogRow] = {}
        self.closed: dict[str, LogRow] = {}
        self.asked: dict[str, RequestRow] = {}
        self.count = 0

    async def play(self, choices: bytes) -> Author:
        """Begins a log and writes what the choices spell. It stops anywhere: idle, or with items and questions open."""
        await self.store.write(lambda tx: self._begin(tx))
        return await self.go_on(choices)

    async def go_on(self, choices: bytes) -> Author:
        """Writes more."""
        left = iter(choices)

        def pick(options: Sequence[Any]) -> Any:
            return options[next(left, 0) % len(options)]

        while length_hint(left):
            await pick(self._legal())(pick)
        return self

    def _begin(self, tx: Any) -> None:
        task = tx.insert(sample(TaskRecord, task_id="T-1", session_id=SESSION))
        row = sample(SessionRecord, session_id=SESSION, task=task.n, chain=genesis(SESSION))
        session = tx.insert(row)
        append_log(
            tx, session.n, [view.session_created(0, model="echo", source="default", client="c", command=uuid7(0))]
        )

    async def append(self, record: LogRecord) -> LogRow:
        """Appends a record."""
        self.count += 1
        return await self.store.write(lambda tx: append_log(tx, 1, [record])[0])

    async def compact(self) -> BoundaryRow:
        """Installs a boundary."""
        record = view.compacted(self.count, trigger="manual")
        return await self.store.write(lambda tx: boundaries.install(tx, self.log, tx.get(SessionRecord, 1), record))

    async def read(self, fn: Callable[[Reader, SessionRecord], Any]) -> Any:
        """Reads with the Session's record."""
        return await self.store.read(lambda reader: fn(reader, reader.get(SessionRecord, 1)))

    async def placed(self, after: Position = view.GENESIS) -> list[tuple[Position, Frame]]:
        """All frames after a position, with their positions."""

        def walk(reader: Reader, session: SessionRecord) -> list[tuple[Position, Frame]]:
            found, at = [], after
            while batch := self.log.after(reader, session, at):
                assert batch[0][0] > at, "or this would never end"
                found += batch
                at = batch[-1][0]
            return found

        return await self.read(walk)

    # -- what may happen next -----------------------------------------------------------------------------------------

    def _legal(self) -> list[Any]:
        anytime = [self._model, self._name, self._mark, self._compact]
        if self.turn is None:
            return [self._open, self._wake, self._open, *anytime]
        work = [self._dispatch] * 3 + [self._ask] if len(self.steps) + len(self.asked) < 5 else []
        done = [self._complete] * 3 + [self._retry] if self.steps else []
        answers = [self._answer] * 2 if self.asked else []
        again = [self._again] if self.closed and self._closes_again else []
        return [*work, *done, *answers, *again, self._close, *anytime]

    async def _model(self, pick: Pick) -> None:
        await self.append(
            view.model_changed(self.count, model=pick(["echo", "nap"]), source="user", command=uuid7(self.count))
        )

    async def _name(self, pick: Pick) -> None:
        await self.append(view.name_changed(self.count, name=pick(["one", "two"]), command=uuid7(self.count)))

    async def _mark(self, pick: Pick) -> None:
        await self.append(view.session_resumed(self.count, command=uuid7(self.count)))

    async def _compact(self, pick: Pick) -> None:
        await self.compact()

    async def _open(self, pick: Pick) -> None:
        turn = uuid7(self.count)
        members = {"run_id": RUN_ID, "blueprint": "echo", "trigger": "turn/start", "command": turn}
        record = view.turn_opened(self.count, run=1, turn_id=turn, text=view.stow(pick(TEXTS))[0], **members)
        self.turn = await self.append(record)

    async def _wake(self, pick: Pick) -> None:
        members = {"run_id": RUN_ID, "blueprint": "echo", "trigger": "resume", "resume_from": RUN_ID}
        self.turn = await self.append(view.turn_woken(self.count, run=1, turn_id=uuid7(self.count), **members))

    async def _dispatch(self, pick: Pick) -> None:
        await self.step(pick(TEXTS))

    async def step(self, text: str = "hi") -> str:
        """Opens a step."""
        step_id = f"ST-{self.count:032x}"
        record = view.step_dispatched(
            self.count,
            run=1,
            turn_id=self.turn.turn_id,
            step_id=step_id,
            ref="worker",
            args=view.stow(encode(text))[0],
            attempt=1,
            occurrence=0,
            lane=(),
            input_hash="0a" * 32,
        )
        self.steps[step_id] = await self.append(record)
        return step_id

    async def end(self, step_id: str, text: str = "done", revision: int = 2) -> None:
        """Closes a step, as a Run with a replay log does. With a higher `revision` it may be closed once more."""
        opening = self.steps.pop(step_id) if revision == 2 else self.closed[step_id]
        self.closed[step_id] = opening
        row = sample(ReplayRow, run=1, ordinal=self.count, occurrence=self.count, step_output_json=encode(text))
        record = view.step_completed(
            self.count,
            run=1,
            turn_id=self.turn.turn_id,
            step_id=step_id,
            origin=opening.seq,
            outcome=AttemptStatus.PASSED,
            ms=1,
            output=named_output(row.ordinal, text) or view.stow(text)[0],
            revision=revision,
        )
        await self.store.write(lambda tx: tx.insert(row))
        await self.append(record)

    async def _complete(self, pick: Pick) -> None:
        await self.end(pick(sorted(self.steps)), pick(TEXTS))

    async def _again(self, pick: Pick) -> None:
        await self.end(pick(sorted(self.closed)), pick(TEXTS), revision=self.count + 3)

    async def _retry(self, pick: Pick) -> None:
        step_id = pick(sorted(self.steps))
        of_step = {"run": 1, "turn_id": self.turn.turn_id, "step_id": step_id, "origin": self.steps[step_id].seq}
        ended = {"outcome": AttemptStatus.FAILED, "ms": 1, "reason": "no", "max_attempts": 3, "delay_ms": 5}
        await self.append(view.step_retried(self.count, attempt=1, **ended, **of_step))
        await self.append(view.step_reattempted(self.count, attempt=2, ref="worker", **of_step))

    async def _ask(self, pick: Pick) -> None:
        kind, text = pick(["approval", "input"]), encode(pick(TEXTS))
        request = sample(
            RequestRow,
            request_id=uuid7(self.count),
            kind=kind,
            run=1,
            session=1,
            step_id=f"ST-{self.count:032x}",
            step_ref="@approve",
            turn_id=self.turn.turn_id,
            action_json=text,
            choices_json=encode([{"id": "yes", "label": "Yes", "decision": "approved"}]),
            questions_json="[]",
        )
        row = await self.append(view.request_opened(self.count, request, view.stow(text)[0]))
        self.asked[request.step_id] = msgspec.structs.replace(request, opened=row.seq)

    async def _answer(self, pick: Pick) -> None:
        request = self.asked.pop(pick(sorted(self.asked)))
        await self.append(view.request_settled(self.count, request, decision="approved"))
        self.steps[request.step_id] = await self.read(lambda reader, _: reader.get(LogRow, 1, request.opened))

    async def _close(self, pick: Pick) -> None:
        for step_id in sorted(self.steps):
            await self.end(step_id)
        of_turn = {"run": 1, "turn_id": self.turn.turn_id, "origin": self.turn.seq, "ms": 1}
        if pick([True, False]):
            await self.append(view.turn_completed(self.count, answer=view.stow(pick(TEXTS))[0], **of_turn))
        else:
            await self.append(view.turn_ended(self.count, terminal="failed", reason="no", **of_turn))
        self.turn = None


def folded(frames: Sequence[Frame], state: ViewState | None = None) -> ViewState:
    """The fold of frames that must all apply."""
    state = state or ViewState()
    for frame in frames:
        assert view.apply(state, frame) is view.Outcome.APPLIED, frame
    return state


def told(state: ViewState) -> Json:
    """All that a state says, to compare two."""
    return {"state": view.snapshot_state(state), "last": state.last_turn, "digest": view.fold_digest(state)}


class Counting:
    """A reader that counts the rows and bytes that it hands out."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.rows = self.bytes = 0
        self.of: dict[str, int] = {}

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        ask = getattr(self._reader, verb)

        def counted(*args: Any, **named: Any) -> Any:
            found = ask(*args, **named)
            for row in found if isinstance(found, list) else [found]:
                if isinstance(row, msgspec.Struct):
                    self.rows += 1
                    self.bytes += len(msgspec.msgpack.encode(row))
                    self.of[type(row).__name__] = self.of.get(type(row).__name__, 0) + 1
            return found

        return counted


# -- Sessions of an App ------------------------------------------------------------------------------------------------

TALK: Final = flow(step("s", path("$.input"), "$.output"), id="talk")


async def talk(line: Line, session: str, *texts: str) -> None:
    for text in texts:
        await line.turn_ended((await line.turn(session, text))["turnId"])


async def compact(line: Line, session: str) -> Json:
    return await line.command("session/compact", sessionId=session)


async def just_compacted(app: App, line: Line) -> str:
    """A Session of thirty turns, and nothing behind its last boundary."""
    session = await line.start("talk")
    await talk(line, session, *map(str, range(30)))
    await compacted(app)
    await compact(line, session)
    return session


async def latest(app: App, session: str) -> BoundaryRow:
    return await app.store.read(lambda reader: boundaries.latest(reader, find_session(reader, session)))


async def compacted(app: App) -> None:
    """Waits for the compactions that commits have set off."""
    await asyncio.gather(*app.compaction._compactions)


async def renamed(app: App, session: str, times: int) -> None:
    names = [view.name_changed(1, name=f"name {n:06}", command=new_uuid7()) for n in range(times)]

    def append(tx: Tx) -> None:
        append_log(tx, find_session(tx, session).n, names)

    await app.store.write(append)


async def compactions(app: App, session: str) -> list[Json]:
    page = await app.sessions.page(session, None, 100_000, backward=False)
    shown = [frame["params"].get("item", {}) for frame in page.frames]
    return [item for item in shown if item.get("kind") == "compaction" and item["status"] == "completed"]
