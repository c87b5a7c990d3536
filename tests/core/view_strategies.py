"""Random but legal Session logs, made only with refold's own builders and chains; and frames made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import length_hint
from typing import Any

import msgspec
from hypothesis import strategies as st

from refold.canonical import encode
from refold.records import AttemptStatus, LogRecord, LogRow, RequestRow, genesis, seal_log
from refold.testing.history import sample
from refold.view import (
    Frame,
    Mint,
    Outcome,
    Position,
    ViewState,
    apply,
    child,
    compacted,
    frames_after,
    minter,
    model_changed,
    name_changed,
    request_opened,
    request_settled,
    session_created,
    session_resumed,
    step_completed,
    step_dispatched,
    step_reattempted,
    step_retried,
    stow,
    turn_completed,
    turn_ended,
    turn_opened,
    turn_refused,
    turn_unqueued,
    turn_woken,
)

KEY = bytes(range(32))
SESSION = "0198f0aa-1111-7000-8000-0000000000aa"
OTHER_SESSION = "0198f0aa-2222-7000-8000-0000000000bb"
RUN_ID = "R-0123456789abcdef"
EPOCH_MS = 1_790_000_000_123


def uuid7(n: int) -> str:
    """The n-th id of a kind that is a UUIDv7."""
    return f"0198f0aa-3333-7000-8000-{n:012x}"


@dataclass
class Log:
    """A Session's log, and what its writer must know to go on legally."""

    session_id: str = SESSION
    rows: list[LogRow] = field(default_factory=list)
    turn: LogRow | None = None
    steps: dict[str, LogRow] = field(default_factory=dict)
    asked: dict[str, RequestRow] = field(default_factory=dict)
    """The requests that are open, by the steps that wait for them."""

    def append(self, record: LogRecord) -> LogRow:
        """Seals `record` into the next place."""
        chain = self.rows[-1].hash if self.rows else genesis(self.session_id)
        self.rows.append(seal_log(1, len(self.rows) + 1, chain, record))
        return self.rows[-1]

    @property
    def now(self) -> int:
        """A time that moves with the log."""
        return EPOCH_MS + 1_000 * len(self.rows)

    @property
    def mint(self) -> Mint:
        """What mints this Session's cursors."""
        return minter(KEY, self.session_id)

    def placed(self) -> list[tuple[Position, Frame]]:
        """All frames with their positions."""
        return list(frames_after(self.rows, {}, self.session_id, self.mint))

    def frames(self) -> list[Frame]:
        """All frames."""
        return [frame for _, frame in self.placed()]


LONG = {"plain": "x" * 9_000, "wide": "ünïcode € " * 1_000, "json": '{"a":[' + "1," * 5_000 + "1]}"}
SHORT = ("", "hi", "ünïcode €", '\x00\x1f"\\/\n', "\u2028\ufffd😀", "x" * 8_192, "x" * 8_191 + "é")
TEXTS = (*SHORT, *LONG.values())
LANES = ((), ((0, 1),), ((0, 1), (2, 3)))
texts = st.sampled_from(TEXTS)
Pick = Callable[[Sequence[Any]], Any]
"""Chooses one of some options."""

Op = Callable[[Pick, Log], None]


def _payload(pick: Pick) -> object:
    return stow(pick(TEXTS))[0]


def _create(pick: Pick, log: Log) -> None:
    source = pick(["default", "user"])
    log.append(session_created(log.now, model="echo", source=source, client="c", command=uuid7(0)))


def _resume(pick: Pick, log: Log) -> None:
    log.append(session_resumed(log.now, command=uuid7(len(log.rows))))


def _model(pick: Pick, log: Log) -> None:
    model = pick(["echo", "nap", "inline:0a"])
    log.append(model_changed(log.now, model=model, source="user", command=uuid7(len(log.rows))))


def _name(pick: Pick, log: Log) -> None:
    log.append(name_changed(log.now, name=pick(SHORT), command=uuid7(len(log.rows))))


def _compact(pick: Pick, log: Log) -> None:
    log.append(compacted(log.now, trigger=pick(["manual", "auto"]), command=pick([None, uuid7(999)])))


def _refuse(pick: Pick, log: Log) -> None:
    log.append(turn_refused(log.now, run=1, turn_id=uuid7(len(log.rows)), message=pick(TEXTS)))


def _unqueue(pick: Pick, log: Log) -> None:
    turn_id = uuid7(len(log.rows))
    log.append(turn_unqueued(log.now, run=1, turn_id=turn_id, command=turn_id))


def _open(pick: Pick, log: Log) -> None:
    turn_id = uuid7(len(log.rows))
    log.turn = log.append(
        turn_opened(
            log.now,
            run=1,
            turn_id=turn_id,
            command=turn_id,
            text=_payload(pick),
            display=pick((None, *SHORT)),
            run_id=RUN_ID,
            blueprint="echo",
            trigger="turn/start",
        )
    )


def _wake(pick: Pick, log: Log) -> None:
    log.turn = log.append(
        turn_woken(
            log.now,
            run=1,
            turn_id=uuid7(len(log.rows)),
            command=pick([None, uuid7(999)]),
            run_id=RUN_ID,
            blueprint="inline:0a",
            trigger="resume",
            resume_from=pick([None, RUN_ID]),
        )
    )


def _dispatch(pick: Pick, log: Log) -> None:
    step_id = f"ST-{len(log.rows):032x}"
    log.steps[step_id] = log.append(
        step_dispatched(
            log.now,
            run=1,
            turn_id=log.turn.turn_id,
            step_id=step_id,
            ref="worker",
            args=_payload(pick),
            attempt=1,
            occurrence=len(log.steps),
            lane=pick(LANES),
            input_hash="0a" * 32,
        )
    )


CHOICE = {"id": "yes", "label": "Yes", "decision": "approved"}
QUESTION = {
    "id": "q1",
    "header": "Tone",
    "question": "Which?",
    "selection": {"mode": "single"},
    "options": [{"label": "dry"}],
}


def _request(log: Log, kind: str, step_id: str) -> RequestRow:
    return sample(
        RequestRow,
        request_id=uuid7(len(log.rows)),
        kind=kind,
        run=1,
        turn_id=log.turn.turn_id,
        step_id=step_id,
        step_ref="@approve" if kind == "approval" else "person",
        title="Deploy?",
        choices_json=encode([CHOICE] if kind == "approval" else []),
        questions_json=encode([QUESTION] if kind == "input" else []),
    )


def _ask(pick: Pick, log: Log) -> None:
    step_id = f"ST-{len(log.rows):032x}"
    request = _request(log, pick(["approval", "input"]), step_id)
    log.steps[step_id] = log.append(request_opened(log.now, request, _payload(pick)))
    log.asked[step_id] = msgspec.structs.replace(request, opened=log.steps[step_id].seq)


DECISIONS = {"approval": ("approved", "denied", "timedOut", "abort"), "input": ("answered", "cancelled")}


def _settle(pick: Pick, log: Log) -> None:
    request = log.asked.pop(pick(sorted(log.asked)))
    answered = {"questionId": "q1", "selectedLabel": "dry"}
    log.append(
        request_settled(
            log.now,
            request,
            decision=pick(DECISIONS[request.kind]),
            command_id=pick([None, uuid7(999)]),
            answers=pick([(), (answered,)]) if request.kind == "input" else (),
            by=pick(["user", "policy"]),
        )
    )


def _complete(pick: Pick, log: Log, outcomes: tuple[AttemptStatus, ...] = tuple(AttemptStatus)) -> None:
    step_id = pick(sorted(log.steps.keys() - log.asked.keys()))
    outcome = pick(outcomes)
    good = outcome in (AttemptStatus.PASSED, AttemptStatus.SKIPPED)
    log.append(
        step_completed(
            log.now,
            run=1,
            turn_id=log.turn.turn_id,
            step_id=step_id,
            origin=log.steps.pop(step_id).seq,
            outcome=outcome,
            ms=len(log.rows),
            output=_payload(pick) if good else None,
            failure=None if good else (str(outcome), pick(TEXTS)),
        )
    )


def _retry(pick: Pick, log: Log) -> None:
    step_id = pick(sorted(log.steps.keys() - log.asked.keys()))
    of_step = {"run": 1, "turn_id": log.turn.turn_id, "step_id": step_id, "origin": log.steps[step_id].seq}
    log.append(
        step_retried(
            log.now,
            outcome=AttemptStatus.FAILED,
            ms=1,
            attempt=1,
            max_attempts=3,
            delay_ms=50,
            reason=pick(TEXTS),
            **of_step,
        )
    )
    if pick((True, False)):
        log.append(step_reattempted(log.now, ref="worker", attempt=2, **of_step))


def _finish(pick: Pick, log: Log) -> None:
    log.append(
        turn_completed(
            log.now, run=1, turn_id=log.turn.turn_id, origin=log.turn.seq, answer=_payload(pick), ms=len(log.rows)
        )
    )
    log.turn = None


def _end(pick: Pick, log: Log) -> None:
    children = [child(s, ref="worker", attempt=1, status="cancelled", failure=("lost", "gone")) for s in log.steps]
    while log.asked:
        _settle(pick, log)
    while log.steps:
        _complete(pick, log, (AttemptStatus.CANCELLED,))
    log.append(
        turn_ended(
            log.now,
            run=1,
            turn_id=log.turn.turn_id,
            origin=log.turn.seq,
            terminal=pick(["failed", "cancelled"]),
            reason="server restart",
            message=pick((None, *SHORT)),
            children=children,
            ms=7,
        )
    )
    log.turn = None


def _legal(log: Log) -> list[Op]:
    """What may happen next. Work is named more than once, so that logs are mostly work."""
    anytime = [_model, _resume, _unqueue, _name, _compact]
    if log.turn is None:
        return [_open, _wake, _open, _wake, _refuse, *anytime]
    work = [_dispatch, _dispatch, _dispatch, _ask] if len(log.steps) < 5 else []
    answer = [_settle] * 3 if log.asked else []
    done = [_complete, _complete, _complete, _retry] if log.steps.keys() - log.asked.keys() else []
    return [*work, *answer, *done, *([] if log.steps else [_finish]), _end, *anytime]


def written(choices: bytes, session_id: str = SESSION) -> Log:
    """The log that `choices` spell, one byte a choice. It stops anywhere: idle, or with a turn and steps open."""
    log, left = Log(session_id), iter(choices)

    def pick(options: Sequence[Any]) -> Any:
        return options[next(left, 0) % len(options)]

    _create(pick, log)
    while length_hint(left):
        pick(_legal(log))(pick, log)
    return log


def logs(max_size: int = 40, session_id: str = SESSION) -> st.SearchStrategy[Log]:
    """Legal logs, of up to `max_size` choices: about half as many records.

    One draw makes a whole log, since drawing every choice by itself takes ten times as long; its length is drawn first,
    since binaries of open length are nearly always short.
    """
    choices = st.integers(0, max_size).flatmap(lambda size: st.binary(min_size=size, max_size=size))
    return choices.map(partial(written, session_id=session_id))


def example_log() -> Log:
    """A fixed log that has every type of record, with short and long texts."""
    log, wide = Log(), partial(stow, LONG["wide"])
    turn, step = uuid7(1), "ST-" + "1" * 32
    log.append(session_created(log.now, model="echo", source="default", client="c", command=uuid7(0)))
    log.append(session_resumed(log.now, command=uuid7(2)))
    log.append(model_changed(log.now, model="nap", source="user", command=uuid7(3)))
    run = {"run": 1, "run_id": RUN_ID, "blueprint": "nap"}
    log.append(turn_opened(log.now, turn_id=turn, command=turn, text="hi", trigger="turn/start", display="Hi!", **run))
    for n, args in ((1, '{"a":1}'), (2, wide()[0])):
        log.append(
            step_dispatched(
                log.now,
                run=1,
                turn_id=turn,
                step_id=step[:-1] + str(n),
                ref="worker",
                args=args,
                attempt=1,
                occurrence=n - 1,
                lane=((0, n),),
                input_hash="0a" * 32,
            )
        )
    done = {"run": 1, "turn_id": turn}
    log.append(
        step_completed(
            log.now, step_id=step[:-1] + "2", origin=6, outcome=AttemptStatus.PASSED, output=wide()[0], ms=5, **done
        )
    )
    log.append(
        step_completed(
            log.now,
            step_id=step[:-1] + "1",
            origin=5,
            outcome=AttemptStatus.BLOCKED,
            failure=("blocked", "no"),
            status="rejected",
            ms=6,
            **done,
        )
    )
    log.append(turn_completed(log.now, origin=4, answer="bye", ms=9, **done))
    log.append(turn_woken(log.now, turn_id=uuid7(4), trigger="resume", resume_from=RUN_ID, **run))
    listed = [child(step, ref="worker", attempt=2, status="failed", failure=("failed", "boom"))]
    closed = {"run": 1, "turn_id": uuid7(4), "origin": 10, "ms": 3, "children": listed}
    log.append(turn_ended(log.now, terminal="failed", reason="flow error", message="boom", **closed))
    log.append(turn_refused(log.now, run=1, turn_id=uuid7(5), message="no such agent"))
    log.append(turn_unqueued(log.now, run=1, turn_id=uuid7(6), command=uuid7(6)))
    log.append(turn_woken(log.now, turn_id=uuid7(7), trigger="launch", **run))
    of_step = {"run": 1, "turn_id": uuid7(7), "step_id": step[:-1] + "3"}
    log.append(
        step_dispatched(
            log.now, ref="worker", args="1", attempt=1, occurrence=0, lane=(), input_hash="0b" * 32, **of_step
        )
    )
    failed = {"outcome": AttemptStatus.TIMEOUT, "reason": "too slow"}
    log.append(step_retried(log.now, ms=4, attempt=1, max_attempts=3, delay_ms=50, origin=15, **failed, **of_step))
    log.append(step_reattempted(log.now, ref="worker", attempt=2, origin=15, **of_step))
    log.append(name_changed(log.now, name="a name", command=uuid7(8)))
    log.append(compacted(log.now, trigger="manual", command=uuid7(9)))
    log.turn = log.rows[13]
    for n, (kind, decision) in enumerate((("approval", "approved"), ("input", "answered")), 4):
        request = _request(log, kind, step[:-1] + str(n))
        opened = log.append(request_opened(log.now, request, wide()[0]))
        request = msgspec.structs.replace(request, opened=opened.seq)
        log.append(request_settled(log.now, request, decision=decision, command_id=uuid7(n)))
    return log


def folded(frames: list[Frame]) -> ViewState:
    """The fold of frames that must all apply."""
    state = ViewState()
    for frame in frames:
        assert apply(state, frame) is Outcome.APPLIED, frame
    return state


def chained(*events: tuple[str, dict], linked: bool = True) -> list[Frame]:
    """Frames of `events`, each from a record of its own."""
    frames, prev = [], None
    for n, (method, members) in enumerate(events, 1):
        place = {"id": f"r{n}", "sequence": n}
        source = {"stream": {"kind": "session", "id": "s"}, "first": place, "last": place}
        params = {"sessionId": "s", "viewCursor": f"c{n}", "sourceRange": source} | members
        frames.append({"method": method, "params": params | ({"prevCursor": prev} if linked else {})})
        prev = f"c{n}"
    return frames


def item(item_id: str, revision: int, **members: object) -> dict:
    """The members of an item event."""
    return {"item": {"itemId": item_id, "kind": "toolCall", "revision": revision, "status": "inProgress", **members}}
