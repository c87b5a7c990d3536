"""Random but legal Session logs, made only with refold's own builders and chains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from hypothesis import strategies as st

from refold.records import AttemptStatus, LogRecord, LogRow, genesis, seal_log
from refold.view import (
    Frame,
    Mint,
    Position,
    child,
    frames_after,
    minter,
    model_changed,
    session_created,
    session_resumed,
    step_completed,
    step_dispatched,
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
texts = st.one_of(st.text(max_size=12), st.sampled_from(sorted(LONG.values())))
lanes = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=2).map(tuple)
Op = Callable[[st.DrawFn, Log], None]


def _payload(draw: st.DrawFn) -> object:
    return stow(draw(texts))[0]


def _create(draw: st.DrawFn, log: Log) -> None:
    source = draw(st.sampled_from(["default", "user"]))
    log.append(session_created(log.now, model="echo", source=source, client="c", command=uuid7(0)))


def _resume(draw: st.DrawFn, log: Log) -> None:
    log.append(session_resumed(log.now, command=uuid7(len(log.rows))))


def _model(draw: st.DrawFn, log: Log) -> None:
    model = draw(st.sampled_from(["echo", "nap", "inline:0a"]))
    log.append(model_changed(log.now, model=model, source="user", command=uuid7(len(log.rows))))


def _refuse(draw: st.DrawFn, log: Log) -> None:
    log.append(turn_refused(log.now, run=1, turn_id=uuid7(len(log.rows)), message=draw(texts)))


def _unqueue(draw: st.DrawFn, log: Log) -> None:
    turn_id = uuid7(len(log.rows))
    log.append(turn_unqueued(log.now, run=1, turn_id=turn_id, command=turn_id))


def _open(draw: st.DrawFn, log: Log) -> None:
    turn_id = uuid7(len(log.rows))
    log.turn = log.append(
        turn_opened(
            log.now,
            run=1,
            turn_id=turn_id,
            command=turn_id,
            text=_payload(draw),
            display=draw(st.none() | texts),
            run_id=RUN_ID,
            blueprint="echo",
            trigger="turn/start",
        )
    )


def _wake(draw: st.DrawFn, log: Log) -> None:
    log.turn = log.append(
        turn_woken(
            log.now,
            run=1,
            turn_id=uuid7(len(log.rows)),
            command=draw(st.none() | st.just(uuid7(999))),
            run_id=RUN_ID,
            blueprint="inline:0a",
            trigger="resume",
            resume_from=draw(st.none() | st.just(RUN_ID)),
        )
    )


def _dispatch(draw: st.DrawFn, log: Log) -> None:
    step_id = f"ST-{len(log.rows):032x}"
    log.steps[step_id] = log.append(
        step_dispatched(
            log.now,
            run=1,
            turn_id=log.turn.turn_id,
            step_id=step_id,
            ref="worker",
            args=_payload(draw),
            attempt=1,
            occurrence=draw(st.integers(0, 3)),
            lane=draw(lanes),
            input_hash="0a" * 32,
        )
    )


def _complete(draw: st.DrawFn, log: Log, outcomes: tuple[AttemptStatus, ...] = tuple(AttemptStatus)) -> None:
    step_id = draw(st.sampled_from(sorted(log.steps)))
    outcome = draw(st.sampled_from(outcomes))
    good = outcome in (AttemptStatus.PASSED, AttemptStatus.SKIPPED)
    log.append(
        step_completed(
            log.now,
            run=1,
            turn_id=log.turn.turn_id,
            step_id=step_id,
            origin=log.steps.pop(step_id).seq,
            outcome=outcome,
            ms=draw(st.integers(0, 10_000)),
            output=_payload(draw) if good else None,
            failure=None if good else (str(outcome), draw(texts)),
        )
    )


def _finish(draw: st.DrawFn, log: Log) -> None:
    log.append(
        turn_completed(
            log.now, run=1, turn_id=log.turn.turn_id, origin=log.turn.seq, answer=_payload(draw), ms=len(log.rows)
        )
    )
    log.turn = None


def _end(draw: st.DrawFn, log: Log) -> None:
    children = [child(s, ref="worker", attempt=1, status="cancelled", failure=("lost", "gone")) for s in log.steps]
    while log.steps:
        _complete(draw, log, (AttemptStatus.CANCELLED,))
    log.append(
        turn_ended(
            log.now,
            run=1,
            turn_id=log.turn.turn_id,
            origin=log.turn.seq,
            terminal=draw(st.sampled_from(["failed", "cancelled"])),
            reason="server restart",
            message=draw(st.none() | texts),
            children=children,
            ms=7,
        )
    )
    log.turn = None


def _legal(log: Log) -> list[Op]:
    """What may happen next. Work is named more than once, so that logs are mostly work."""
    anytime = [_model, _resume, _unqueue]
    if log.turn is None:
        return [_open, _wake, _open, _wake, _refuse, *anytime]
    work = [_dispatch] * 3 if len(log.steps) < 5 else []
    done = [_complete] * 3 if log.steps else [_finish]
    return [*work, *done, _end, *anytime]


@st.composite
def logs(draw: st.DrawFn, session_id: str = SESSION, max_ops: int = 24) -> Log:
    """A legal log that stops anywhere: idle, or with a turn and steps open."""
    log = Log(session_id)
    _create(draw, log)
    for _ in range(draw(st.integers(0, max_ops))):
        draw(st.sampled_from(_legal(log)))(draw, log)
    return log


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
    return log
