"""A copy says what the original said, whatever a Session has been through; what does not fit together becomes none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from request_kit import approve, asked, asking
from service_kit import Crew, House, Json, Line, ended, everything, faults, flow, launch, lit, path, seq, step

from refold import view
from refold.canonical import decode, encode
from refold.cli import peek
from refold.engine.agents import Report
from refold.errors import ImportInvalid, InvalidId, NotFound, StoreDamaged, StoreRefused
from refold.flowir import Blocked, Pass
from refold.records import (
    INLINE_BYTES,
    ActivationRow,
    AttemptRow,
    BoundaryRow,
    CutRow,
    DecisionRow,
    LaunchRow,
    LogRow,
    MetaRow,
    ReplayRow,
    RequestRow,
    Row,
    RunRecord,
    SessionRecord,
    SplicedRow,
    TaskRecord,
    ValueRow,
)
from refold.server import shapes
from refold.service import copies
from refold.service.app import App
from refold.service.reruns import RerunFrom
from refold.service.sessions import ViewSettings
from refold.session import SessionLog, boundaries, find_session
from refold.store import MemoryStore, Reader, SqliteStore, portable
from refold.store.audit import audit
from refold.store.schema import COPY

pytestmark = pytest.mark.anyio

LONG: Final = "€𝄞 long \u2028 " * INLINE_BYTES
BIG: Final = 10**60 + 1


@pytest.fixture
async def app(house: House, crew: Crew) -> AsyncIterator[App]:
    for name, said in {"long": LONG, "big": BIG, "odd": {'é"\\\0': [2**53 + 1, 1e300]}}.items():
        crew.acts[name] = lambda work, said=said: Report(Pass(said))
    crew.acts["named"] = lambda work: Report(Pass("named " * 100 + work.idempotency_key))  # another one in each Run
    yield await house.open(view=ViewSettings(compact_events=10**9))


# -- what a Session may have been through -----------------------------------------------------------------------------

Past = Callable[[App, House, Crew], Awaitable[tuple[App, str]]]


async def one_step(app: App, house: House, crew: Crew) -> tuple[App, str]:
    return app, (await ended(app, await launch(app, flow(step("a", 1))))).run_id


async def outputs_of_all_sizes(app: App, house: House, crew: Crew) -> tuple[App, str]:
    nodes = [step(name, path("$.input")) for name in ("long", "big", "named", "odd", "long")]
    return app, (await ended(app, await launch(app, flow(*nodes), input=LONG, n=BIG))).run_id


async def a_result_in_pieces_of_another_task(app: App, house: House, crew: Crew) -> tuple[App, str]:
    """Equal results are stored once: the pieces are those of the first Run, which is not in the file."""
    runs = [await ended(app, await launch(app, flow(step("long")))) for _ in range(2)]
    spliced = await app.store.read(lambda reader: reader.find(SplicedRow))
    assert spliced and runs[1].n not in {row.run for row in spliced}, "else this tests nothing"
    return app, runs[1].run_id


async def lanes_of_which_one_wins(app: App, house: House, crew: Crew) -> tuple[App, str]:
    race = {"kind": "fanout", "items": lit([1, 2]), "bind": path("$.i"), "join": "race", "out": path("$.won")}
    run = await launch(app, flow(race | {"body": seq(step("a", path("$.i")), step("named"))}, step("b")))
    return app, (await ended(app, run)).run_id


async def a_failure(app: App, house: House, crew: Crew) -> tuple[App, str]:
    crew.acts["refuses"] = lambda work: Report(Blocked("żółć " * 10_000))
    return app, (await ended(app, await launch(app, flow(step("b"), step("refuses"))))).run_id


async def reruns(app: App, house: House, crew: Crew) -> tuple[App, str]:
    run = await ended(app, await launch(app, flow(step("a"), step("long"), step("named")), input=LONG))
    for name in ("long", "named"):
        await app.reruns.rerun(run.run_id, RerunFrom(from_step=name))
        await ended(app, run)
    return app, run.run_id


async def a_crash_and_a_resume(app: App, house: House, crew: Crew) -> tuple[App, str]:
    crew.hold("b")
    run = await launch(app, flow(step("a"), step("b"), step("long")))
    await crew.begun("b")
    app = await house.reboot(app)
    crew.free()
    await app.runs.resume(run.run_id)
    return app, (await ended(app, run)).run_id


async def running(app: App, house: House, crew: Crew) -> tuple[App, str]:
    crew.hold("b")
    run = await launch(app, flow(step("a"), step("b")))
    await crew.begun("b")
    return app, run.run_id


async def waiting_for_a_person(app: App, house: House, crew: Crew) -> tuple[App, str]:
    run = await launch(app, flow(step("a"), approve({"what": LONG}), step("b")))
    await asked(app, run)
    return app, run.run_id


async def answered(app: App, house: House, crew: Crew) -> tuple[App, str]:
    run = await launch(app, asking(step("a"), approve(), step("person", 1), step("b")))
    (request,) = await asked(app, run)
    await app.requests.decide(request.request_id, choice="approve", feedback="żółć")
    (request,) = await asked(app, run)
    (question,) = decode(request.questions_json)
    await app.requests.answer(request.request_id, [{"questionId": question["id"], "selectedLabel": "red"}])
    return app, (await ended(app, run)).run_id


async def runs_in_a_queue(app: App, house: House, crew: Crew) -> tuple[App, str]:
    """Several Runs of one Task: done, running, and waiting for their turn."""
    run = await ended(app, await launch(app, flow(step("a"), step("named"))))
    crew.hold("a")
    for _ in range(2):
        await app.tasks.rekick(run.task_id)
    await crew.begun("a", 2)
    return app, run.run_id


async def turns(app: App, house: House, crew: Crew) -> tuple[App, str]:
    """A Session with prompts, long ones too, and boundaries between."""
    await app.blueprints.add(flow(step("long", path("$.input")), step("named", path("$.previous")), id="talk"))
    async with Line(app) as line:
        session = await line.start("talk")
        for text in ("one", LONG, "three"):
            await line.turn_ended((await line.turn(session, text))["turnId"])
            await line.command("session/compact", sessionId=session)
        await line.turn_ended((await line.turn(session, "last"))["turnId"])
    return app, (await app.runs.page(1))[0].run_id


async def retention(app: App, house: House, crew: Crew) -> tuple[App, str]:
    """Most of the log was taken away; its state stands in a boundary."""
    app, run_id = await turns(app, house, crew)
    session_id = (await app.runs.get(run_id)).session_id
    app = await house.reboot(app, view=ViewSettings(compact_events=10**9, retain_events=1))
    async with Line(app) as line:
        await line.resume(session_id)
    session = await app.store.read(lambda reader: find_session(reader, session_id))
    assert session.floor > 1, "else this tests nothing"
    return app, run_id


async def a_deleted_neighbour(app: App, house: House, crew: Crew) -> tuple[App, str]:
    """A Run of the same Session is gone: what the log names of it stands in the value table now."""
    return await _alone(*await turns(app, house, crew))


async def a_deleted_neighbour_behind_retention(app: App, house: House, crew: Crew) -> tuple[App, str]:
    """Now only a segment of a boundary names what it put out."""
    return await _alone(*await retention(app, house, crew))


async def _alone(app: App, run_id: str) -> tuple[App, str]:
    session_id = (await app.runs.get(run_id)).session_id
    for run in await app.runs.page(100):
        if run.session_id == session_id and run.run_id != run_id:
            await app.runs.delete(run.run_id)
    return app, run_id


PASTS: Final[tuple[Past, ...]] = (
    one_step,
    outputs_of_all_sizes,
    a_result_in_pieces_of_another_task,
    lanes_of_which_one_wins,
    a_failure,
    reruns,
    a_crash_and_a_resume,
    running,
    waiting_for_a_person,
    answered,
    runs_in_a_queue,
    turns,
    retention,
    a_deleted_neighbour,
    a_deleted_neighbour_behind_retention,
)
pasts = pytest.mark.parametrize("past", PASTS, ids=lambda past: past.__name__)


# -- what is said -----------------------------------------------------------------------------------------------------


def said(reader: Reader, run_id: str) -> Json:
    """All that is told of a Run and its Session, and the digest of the fold, from the beginning and from a boundary."""
    document = peek.document_in(reader, run_id)
    session = find_session(reader, document["run"]["session_id"])
    key = reader.get(MetaRow, copies.MAC_KEY)
    assert key is not None
    log = SessionLog(key.value, boundaries.start)
    state = log.fold(reader, session)
    texts = {ref for item in state.items.values() for ref in view.texts_of_item(item)}
    found = {
        "document": document,
        "fold": view.fold_digest(state),
        "events": list(peek.events_in(reader, session.session_id, log.earliest(reader, session))),
        "texts": {ref: copies.value_text(reader, ref) for ref in texts},
        "requests": [shapes.request(row) for row in reader.find(RequestRow, session=session.n)],
        "runs": [peek.run_in(reader, run.run_id) for run in reader.find(RunRecord, session=session.n)],
        "boundaries": [boundaries.load(reader, log, session, row) for row in reader.find(BoundaryRow)],
    }
    if not session.floor:
        found["from genesis"] = view.fold_digest(SessionLog(key.value).fold(reader, session))
    return found


async def imported(app: App, run_id: str, folder: Path) -> tuple[portable.Portable, Path]:
    """A copy of the Run, as `refold import` makes it."""
    found = copies.checked(await app.copies.export(run_id))
    SqliteStore.make_copy(folder / "copy.db", copies.copy_of(found))
    return found, folder / "copy.db"


@pasts
async def test_a_copy_says_what_the_original_said(
    app: App, house: House, crew: Crew, tmp_path: Path, past: Past
) -> None:
    app, run_id = await past(app, house, crew)
    _, copy = await imported(app, run_id, tmp_path)
    expected = await app.store.read(lambda reader: said(reader, run_id))
    assert await SqliteStore.peek(copy, lambda reader: said(reader, run_id)) == expected
    assert await SqliteStore.peek(copy, audit) == await faults(app) == []
    crew.free()


@pasts
async def test_a_copy_holds_rows_of_the_store_and_nothing_that_is_not_of_this_session(
    app: App, house: House, crew: Crew, tmp_path: Path, past: Past
) -> None:
    app, run_id = await past(app, house, crew)
    await app.ledger.once(None, lambda tx: None, at=0)
    stranger = await ended(app, await launch(app, flow(step("stranger"))))
    found, _ = await imported(app, run_id, tmp_path)
    stored = await everything(app)
    for row in found.rows:
        # A text in pieces goes out whole if the pieces do not; nothing else is any different.
        assert row in stored[type(row).__name__] or isinstance(row, ValueRow), row
    assert b"stranger" not in portable.write(found.rows, **ABOUT)
    assert stranger.run_id.encode() not in portable.write(found.rows, **ABOUT)
    crew.free()


ABOUT: Final = {"run_id": "", "session_id": "", "task_id": "", "exported_at": ""}


async def test_the_pasts_have_a_row_of_every_kind(house: House, app: App, crew: Crew, tmp_path: Path) -> None:
    """Else the tests above would say nothing of a kind."""
    kinds: set[type[Row]] = set()
    for past in PASTS:
        app, run_id = await past(app, house, crew)
        kinds |= {type(row) for row in portable.read(await app.copies.export(run_id)).rows}
        crew.free()
    assert kinds == set(portable.KINDS.values())


async def test_what_is_exported_twice_has_the_same_rows(app: App, house: House, crew: Crew) -> None:
    app, run_id = await turns(app, house, crew)
    one, two = [portable.read(await app.copies.export(run_id)).rows for _ in range(2)]
    assert one == two


async def test_a_cursor_of_the_original_leads_on_in_the_copy(
    app: App, house: House, crew: Crew, tmp_path: Path
) -> None:
    app, run_id = await turns(app, house, crew)
    _, copy = await imported(app, run_id, tmp_path)
    session_id = (await app.runs.get(run_id)).session_id
    async with Line(app) as line:
        page = await line.page(session_id)
    for at in range(0, len(page), 7):
        after = page[at]["params"]["viewCursor"]
        found = await SqliteStore.peek(copy, lambda reader, after=after: list(peek.events_in(reader, run_id, after)))
        assert found == page[at + 1 :]


async def test_a_file_can_be_exported_from_a_copy_again(app: App, house: House, crew: Crew, tmp_path: Path) -> None:
    app, run_id = await reruns(app, house, crew)
    found, copy = await imported(app, run_id, tmp_path)
    rows = await SqliteStore.peek(copy, lambda reader: copies.collect(reader, run_id))
    assert rows == found.rows


@pytest.mark.parametrize(("run_id", "error"), [("R-00000000000000ff", NotFound), ("../x", InvalidId)])
async def test_what_is_not_there_is_not_exported(app: App, run_id: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        await app.copies.export(run_id)


# -- a copy never runs ------------------------------------------------------------------------------------------------


async def test_a_copy_is_held_by_nobody_and_its_run_stays_as_it_was(
    app: App, house: House, crew: Crew, tmp_path: Path
) -> None:
    app, run_id = await running(app, house, crew)
    _, copy = await imported(app, run_id, tmp_path)
    before = copy.read_bytes()
    elsewhere = House(copy)
    with elsewhere.without_processes(), pytest.raises(StoreRefused, match="its Run would run twice"):
        await elsewhere.open(auto_resume=True)
    assert copy.read_bytes() == before
    run = await SqliteStore.peek(copy, lambda reader: peek.run_in(reader, run_id))
    assert (run["status"], [each["status"] for each in run["step_entries"]]) == ("running", ["passed", None])
    crew.free()
    assert (await ended(app, await app.runs.get(run_id))).status == "done"
    assert crew.times("b") == 1


async def test_planted_a_copy_without_its_mark_runs_a_second_time(
    app: App, house: House, crew: Crew, tmp_path: Path
) -> None:
    """What the mark is for: both go on, under one idempotency key."""
    app, run_id = await running(app, house, crew)
    found = copies.checked(await app.copies.export(run_id))
    SqliteStore.make_copy(tmp_path / "copy.db", found.rows)
    elsewhere = House(tmp_path / "copy.db")
    with elsewhere.without_processes():
        twin = await elsewhere.open(auto_resume=True)
        crew.free()
        for each in (app, twin):
            assert (await ended(each, await each.runs.get(run_id))).status == "done"
        await elsewhere.close()
    assert len({work.idempotency_key for work in crew.of("b")}) == 1 < crew.times("b")


async def test_a_copy_knows_the_file_that_it_was_made_of(app: App, house: House, crew: Crew, tmp_path: Path) -> None:
    app, run_id = await one_step(app, house, crew)
    found, copy = await imported(app, run_id, tmp_path)
    with mock.patch.object(app.clock, "now_ms", lambda: 0):
        later = copies.checked(await app.copies.export(run_id))
    for file, is_it in ((found, True), (later, False)):
        assert await SqliteStore.peek(copy, lambda reader, file=file: copies.is_copy_of(reader, file)) is is_it
    assert await SqliteStore.peek(copy, copies.is_copy)
    assert not await app.store.read(copies.is_copy)
    assert not await app.store.read(lambda reader: copies.is_copy_of(reader, found))


# -- what does not fit together ---------------------------------------------------------------------------------------

Rows = list[Row]


def changed(kind: type[Row], /, **changes: Any) -> Callable[[Rows], Rows]:
    """The rows with other members in the last one of a kind."""

    def change(rows: Rows) -> Rows:
        at = max(n for n, row in enumerate(rows) if type(row) is kind)
        return [*rows[:at], msgspec.structs.replace(rows[at], **changes), *rows[at + 1 :]]

    return change


def without(kind: type[Row]) -> Callable[[Rows], Rows]:
    """The rows without the last one of a kind."""

    def drop(rows: Rows) -> Rows:
        at = max(n for n, row in enumerate(rows) if type(row) is kind)
        return [*rows[:at], *rows[at + 1 :]]

    return drop


def twice(kind: type[Row]) -> Callable[[Rows], Rows]:
    return lambda rows: [*rows, next(row for row in rows if type(row) is kind)]


CHANGES: Final[dict[str, tuple[Callable[[Rows], Rows], str]]] = {
    "a log row says something else": (changed(LogRow, body_json="{}"), "does not follow row"),
    "the last log row is gone": (without(LogRow), "its log ends at"),
    "the head says another seq": (changed(SessionRecord, seq=1), "its log ends at"),
    "an output is another one": (changed(ReplayRow, step_output_json="1"), "of its replay log does not match"),
    "a passed step is gone": (without(ReplayRow), "its replay log ends at row"),
    "a cut is gone": (without(CutRow), "of its replay log does not match"),
    "a decision is gone": (without(DecisionRow), "of its replay log does not match"),
    "a decision is another one": (changed(DecisionRow, winner=7), "of its replay log does not match"),
    "the end of a replay log is another one": (changed(RunRecord, rows=0), "its replay log ends at"),
    "a long text is another one": (changed(ValueRow, body="x"), "does not match its digest"),
    "a long text is gone": (without(ValueRow), "is not there"),
    "pieces are others": (changed(SplicedRow, parts_json="[]"), "does not match its digest"),
    "pieces are those of a stranger": (changed(SplicedRow, run=99), "spliced: a row of a Run that is not there"),
    "a launch snapshot is another one": (changed(LaunchRow, body="{}"), "launch snapshot"),
    "a launch snapshot is gone": (without(LaunchRow), "launch snapshot"),
    "an attempt is a stranger's": (changed(AttemptRow, run=99), "attempt: a row of a Run that is not there"),
    "a request is a stranger's": (changed(RequestRow, run=99), "request: a row of a Run that is not there"),
    "a log row is another Session's": (changed(LogRow, session=99), "log: a row of another Session"),
    "a log row is of no known type": (changed(LogRow, type="new"), "does not know"),
    "a Run is another Task's": (changed(RunRecord, task_id="T-00000000000000ff"), "is of another Task or Session"),
    "the Run is not there": (changed(RunRecord, run_id="R-00000000000000ff"), "expected one, one and"),
    "there is no Task": (without(TaskRecord), "0 Tasks"),
    "there are two Sessions": (twice(SessionRecord), "2 Sessions"),
    "a row is there twice": (twice(ActivationRow), "is there already"),
    "the key of cursors is gone": (without(MetaRow), "the key that seals cursors"),
    "the key of cursors is empty": (changed(MetaRow, value=b""), "the key that seals cursors"),
    "a mark is there": (lambda rows: [*rows, MetaRow(key=COPY, value=b"")], "the key that seals cursors"),
}


async def _sound(app: App, crew: Crew) -> tuple[Rows, str]:
    """The rows of a Run that has some of every kind that is judged, and its id."""
    race = {"kind": "fanout", "items": lit([1, 2]), "bind": path("$.i"), "join": "race", "out": path("$.won")}
    nodes = (race | {"body": step("a", path("$.i"))}, approve(), step("long"), step("named"))
    run = await launch(app, flow(*nodes), input=LONG[: 2 * INLINE_BYTES])
    (request,) = await asked(app, run)
    await app.requests.decide(request.request_id, choice="approve")
    await ended(app, run)
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="long"))
    await ended(app, run)
    return portable.read(await app.copies.export(run.run_id)).rows, run.run_id


def _file(rows: Rows, run_id: str) -> bytes:
    """A file of these rows, with the digest that goes with them."""
    names = {"session_id": "0198f0aa-1111-7000-8000-0000000000aa", "task_id": "T-0123456789abcdef"}
    return portable.write(rows, run_id=run_id, exported_at="", **names)


def refusal(data: bytes) -> str:
    """What a file is refused with; nothing if it is not."""
    try:
        copies.checked(data)
    except ImportInvalid as error:
        return error.message
    return ""


async def test_what_does_not_fit_together_becomes_no_copy(app: App, crew: Crew) -> None:
    rows, run_id = await _sound(app, crew)
    assert copies.checked(_file(rows, run_id)).rows == rows
    for name, (change, expected) in CHANGES.items():
        assert expected in refusal(_file(change(rows), run_id)), name


async def test_planted_without_the_check_of_chains_it_would_become_one(app: App, crew: Crew) -> None:
    rows, run_id = await _sound(app, crew)
    for check, kind in (("_unsealed", ReplayRow), ("logs_are_dense_and_chained", LogRow)):
        member = "at" if kind is LogRow else "created_at"
        damaged = _file(changed(kind, **{member: 1})(rows), run_id)
        with pytest.raises(ImportInvalid):
            copies.checked(damaged)
        with mock.patch.object(copies, check, lambda given: iter(())):
            copies.checked(damaged)


async def test_a_body_that_is_no_object_is_refused_though_its_chain_holds(app: App, crew: Crew) -> None:
    """Nobody but a forger writes it: whoever writes a file can compute every hash."""
    rows, run_id = await _sound(app, crew)
    for body in ("[]", "no JSON"):
        with (
            mock.patch.object(copies, "logs_are_dense_and_chained", lambda reader: iter(())),
            pytest.raises(ImportInvalid),
        ):
            copies.checked(_file(changed(LogRow, body_json=body)(rows), run_id))


ODD: Final[dict[str, tuple[Any, ...]]] = {
    "bytes": (b"", b"\xff" * 32),
    "int": (0, -(2**63), None),
    "str": ("", "@", "@x", "[]", "{}", "\0", None),
}


async def test_whatever_a_member_says_a_file_is_taken_or_refused_with_a_reason(app: App, crew: Crew) -> None:
    """Members that no chain covers reach every check; none of them may fall over what it did not expect."""
    rows, run_id = await _sound(app, crew)
    taken = 0
    for kind in {type(row) for row in rows}:
        for name in kind.__struct_fields__:
            declared = kind.__annotations__[name].removesuffix(" | None")
            for value in ODD.get(declared, (True,)):
                with contextlib.suppress(ImportInvalid):
                    copies.checked(_file(changed(kind, **{name: value})(rows), run_id))
                    taken += 1
    assert taken, "a goal may be any text"


@pytest.fixture(scope="module")
def file() -> bytes:
    """The file of a small Run, made once."""

    async def make() -> bytes:
        house = House()
        with house.without_processes():
            app = await house.open()
            run = await ended(app, await launch(app, flow(step("a", "é")), n=BIG))
            data = await app.copies.export(run.run_id)
            await house.close()
            return data

    return asyncio.run(make())


@settings(max_examples=200)
@given(st.data())
def test_a_file_that_was_changed_anywhere_becomes_no_copy(file: bytes, data: st.DataObject) -> None:
    at, mask = data.draw(st.integers(0, len(file) - 1)), data.draw(st.integers(1, 255))
    spoilt = [
        file[:at] + bytes([file[at] ^ mask]) + file[at + 1 :],
        file[:at] + file[at + 1 :],
        file[:at] + bytes([mask]) + file[at:],
        file[:at],
    ]
    for each in spoilt:
        if each != file:
            with pytest.raises(ImportInvalid):
                copies.checked(each)


# -- what is damaged is not exported ----------------------------------------------------------------------------------

DAMAGES: Final[dict[str, Callable[[Any, RunRecord], object]]] = {
    "a log row": lambda tx, run: tx.update(LogRow, (run.session, 2), body_json="no JSON"),
    "a replay row": lambda tx, run: tx.update(ReplayRow, (run.n, 1), step_output_json='"other"'),
    "a launch snapshot": lambda tx, run: tx.delete(LaunchRow, run=run.n),
    "a result": lambda tx, run: tx.delete(SplicedRow, run=run.n),
    "a long text": lambda tx, run: _delete_values(tx),
    "the Task": lambda tx, run: tx.delete(TaskRecord, n=run.task),
}


def _delete_values(tx: Any) -> None:
    for row in tx.find(ValueRow):
        tx.delete(ValueRow, digest=row.digest)


@pytest.mark.parametrize("name", DAMAGES)
async def test_what_is_damaged_is_not_exported(app: App, crew: Crew, name: str) -> None:
    run = await ended(app, await launch(app, flow(step("a"), step("long"), step("named")), input=LONG))
    await app.copies.export(run.run_id)
    await app.store.write(lambda tx: DAMAGES[name](tx, run))
    with pytest.raises(StoreDamaged):
        await app.copies.export(run.run_id)


async def test_a_damaged_boundary_is_left_out_and_the_rest_is_whole(
    app: App, house: House, crew: Crew, tmp_path: Path
) -> None:
    """It makes a rung unusable, in the original as in the copy; the log says everything all the same."""
    app, run_id = await turns(app, house, crew)
    session_id = (await app.runs.get(run_id)).session_id

    def spoil(tx: Any) -> None:
        newest = tx.find(BoundaryRow, newest_first=True, limit=1)[0]
        tx.delete(ValueRow, digest=next(boundaries.named_texts(tx, newest)))

    await app.store.write(spoil)
    _, copy = await imported(app, run_id, tmp_path)

    def folded(reader: Reader) -> tuple[str, list[bool]]:
        session = find_session(reader, session_id)
        log = SessionLog(bytes(32), boundaries.start)
        rows = reader.find(BoundaryRow, session=session.n)
        return view.fold_digest(SessionLog(bytes(32)).fold(reader, session)), [
            boundaries.load(reader, log, session, row) is not None for row in rows
        ]

    expected = await app.store.read(folded)
    assert await SqliteStore.peek(copy, folded) == expected
    assert expected[1] == [True, True, False]


async def test_a_store_in_memory_is_exported_as_well(crew: Crew, tmp_path: Path) -> None:
    house = House()
    with house.without_processes():
        app = await house.open()
        assert isinstance(app.store._store, MemoryStore)
        run = await ended(app, await launch(app, flow(step("a"))))
        await imported(app, run.run_id, tmp_path)
        await house.close()


async def test_a_run_that_kept_no_replay_log_is_exported_as_well(house: House, crew: Crew, tmp_path: Path) -> None:
    app = await house.open(replay=False)
    run = await ended(app, await launch(app, flow(step("a"), step("b"))))
    _, copy = await imported(app, run.run_id, tmp_path)
    document = await SqliteStore.peek(copy, lambda reader: peek.document_in(reader, run.run_id))
    assert (document["replay"], document["run"]["status"]) == ([], "done")
    assert encode(document)
