"""An output stands once: in its replay row. What shows it names it, and shows it as if it stood there, also once the
Run is deleted; a text that is not the one that was named is never shown for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from boundary_kit import Author, Counting, folded
from hypothesis import given
from hypothesis import strategies as st
from service_kit import Crew, House, Json, Line, Refused, ended, everything, faults, flow, path, result, step, uuid7

from refold import view
from refold.canonical import decode, encode
from refold.engine.agents import Report
from refold.errors import StoreDamaged
from refold.flowir import Pass
from refold.records import (
    INLINE_BYTES,
    NAMED_BYTES,
    AttemptStatus,
    ReplayRow,
    RunRecord,
    ValueRow,
    named_output,
    seal_log,
    shown_text,
)
from refold.service.app import App
from refold.service.reruns import RerunFrom
from refold.service.sessions import ViewSettings
from refold.service.tasks import NewTask
from refold.session import boundaries, find_session
from refold.store import MemoryStore, told
from refold.testing.history import sample

pytestmark = pytest.mark.anyio

HUGE = ViewSettings(history_budget_bytes=10**9, compact_events=10**9)
MARK = "stands once "


def long(length: int, n: int = 0) -> str:
    """A text of `length` bytes that says which it is."""
    return f"{MARK}{n} ".ljust(length, ".")


OUTPUTS: dict[str, Json] = {
    "beyond": long(INLINE_BYTES + 1, 4),  # the first one: no other stands in the head of the final ctx
    "short": long(NAMED_BYTES - 1, 1),
    "least": long(NAMED_BYTES, 2),
    "most": long(INLINE_BYTES, 3),
    "unicode": long(300, 5) + 'ünïcode € "quoted" \\ \n \u2028 𝄞',
    "object": {"says": long(1000, 6), "n": [1, 1.5, None, True], "ü": {}},
    "list": [long(1000, 7)],
    "number": 10**300,
    "like_json": encode({"says": long(400, 8)}),
}
"""What agents answer, by name."""


@pytest.fixture(params=["sqlite", "memory"])
async def place(request: pytest.FixtureRequest, home: House) -> AsyncIterator[House]:
    """Where Apps are opened, once on each back end."""
    if request.param == "memory":
        home = House()
        with home.without_processes():
            yield home
    else:
        yield home
    await home.close()


@pytest.fixture
def talkers(crew: Crew) -> Crew:
    """A crew whose members say what `OUTPUTS` has under their names."""
    for name, said in OUTPUTS.items():
        crew.acts[name] = lambda work, said=said: Report(Pass(said))
    return crew


async def told_all(app: App, line: Line) -> tuple[str, RunRecord]:
    """A Session in which every output was said in one Run; its id, and the Run."""
    nodes = [step(name, path("$.input"), f"$.{name}") for name in OUTPUTS]
    await app.blueprints.add(flow(*nodes, id="all"))
    session = await line.start("all")
    await line.turn_ended((await line.turn(session))["turnId"])
    (run,) = await app.runs.page(1)
    return session, run


def times(rows: dict[str, list[Any]], n: int) -> dict[str, int]:
    """In how many rows of each kind output `n` stands."""
    counts = {kind: sum(f"{MARK}{n} " in str(row) for row in found) for kind, found in rows.items()}
    return {kind: count for kind, count in counts.items() if count}


# -- once -------------------------------------------------------------------------------------------------------------


async def test_an_output_stands_in_its_replay_row_and_nowhere_else(place: House, talkers: Crew) -> None:
    app = await place.open(view=HUGE)
    async with Line(app) as line:
        session, run = await told_all(app, line)
        for name in ("one", "two"):  # the second boundary has the names from the first
            await line.command("session/compact", sessionId=session)
            await app.blueprints.add(flow(step("s"), id=name))
            await app.sessions.set_model(uuid7(), {"model": name}, session_id=session, model=name)
    rows = await everything(app)
    for n in (2, 3, 5, 6, 7, 8):
        assert times(rows, n) == {"ReplayRow": 1}, n
    assert times(rows, 4)["ReplayRow"] == 1
    assert [row.body for row in rows["ValueRow"] if row.body.startswith(MARK)] == [OUTPUTS["beyond"]]
    assert times(rows, 1).keys() >= {"ReplayRow", "LogRow", "ValueRow"}, "a name would hardly be shorter"
    assert (len(rows["BoundaryRow"]), len(rows["SplicedRow"])) == (2, 1)
    assert {name: result(run)[name] for name in OUTPUTS} == OUTPUTS
    assert await faults(app) == []


async def test_without_a_replay_log_an_output_stands_where_it_is_shown(place: House, talkers: Crew) -> None:
    app = await place.open(view=HUGE, replay=False)
    async with Line(app) as line:
        _, run = await told_all(app, line)
    rows = await everything(app)
    assert times(rows, 2).keys() == {"LogRow", "ValueRow"}, "the record, and the final ctx"
    assert (rows["ReplayRow"], rows["SplicedRow"]) == ([], [])
    assert {name: result(run)[name] for name in OUTPUTS} == OUTPUTS


async def test_a_resumed_run_does_not_repeat_what_was_said_before(place: House, talkers: Crew) -> None:
    app = await place.open(view=HUGE)
    talkers.hold("last")
    names = ("beyond", "most", "object", "list", "last")
    body = flow(*(step(name, out=f"$.{name}") for name in names))
    run = await app.tasks.launch(NewTask(blueprint={"kind": "inline", "value": body}, init_ctx={}))
    await talkers.begun("last")
    app = await place.reboot(app, view=HUGE)
    talkers.free("last")
    await app.runs.resume(run.run_id)
    done = await ended(app, run)
    assert {name: result(done)[name] for name in names if name != "last"} == {
        name: OUTPUTS[name] for name in names if name != "last"
    }
    rows = await everything(app)
    for n in (3, 6, 7):
        assert times(rows, n) == {"ReplayRow": 1}, n
    shown = await app.runs.replay(run.run_id, ctx=True)
    assert shown[-1].ctx["ctx"]["object"] == OUTPUTS["object"]


async def test_frames_and_snapshots_show_what_they_would_show_without_names(house: House, talkers: Crew) -> None:
    shown = []
    for replay in (True, False):
        app = await house.open(view=HUGE, replay=replay)
        async with Line(app) as line:
            session, _ = await told_all(app, line)
            await line.command("session/compact", sessionId=session)
            page = await line.page(session)
            history = (await line.resume(session, history="anchored"))["history"]
            assert history["mode"] == "anchoredSnapshot"
            assert history["snapshot"]["state"]["items"] == list(folded(page).items.values())
        outputs = [
            frame["params"]["item"]["visibleOutput"]
            for frame in page
            if frame["method"] == "item/completed" and frame["params"]["item"]["kind"] == "toolCall"
        ]
        whole = [said if isinstance(said, str) else encode(said) for said in OUTPUTS.values()]
        assert outputs == [view.clip(text, 1024) if len(text) > INLINE_BYTES else text for text in whole]
        shown.append(outputs)
        await house.crash(app)
    assert shown[0] == shown[1]


texts = st.one_of(
    st.sampled_from(list(OUTPUTS.values())), st.text(min_size=NAMED_BYTES), st.lists(st.text(min_size=60), min_size=5)
)


@given(texts)
async def test_a_named_output_renders_as_the_text_itself(said: Json) -> None:
    output_json = encode(said)
    text = shown_text(output_json)
    name = named_output(7, text)
    assert (name is None) == (not NAMED_BYTES <= len(text.encode()) <= INLINE_BYTES)
    members: dict[str, Any] = {"run": 3, "turn_id": "turn", "step_id": "ST-1", "origin": 1, "ms": 5}
    opened = view.step_dispatched(
        0, run=3, turn_id="turn", step_id="ST-1", ref="a", args="{}", attempt=1, occurrence=0, lane=(), input_hash="h"
    )
    opening = seal_log(1, 1, b"", opened)
    rows = [
        seal_log(1, 2, b"", view.step_completed(1, outcome=AttemptStatus.PASSED, output=payload, **members))
        for payload in (name or text, text)
    ]
    store = MemoryStore()
    await store.write(lambda tx: tx.insert(sample(ReplayRow, run=3, ordinal=7, step_output_json=output_json)))
    read = await store.read(lambda reader: told(reader, rows[0]))
    assert (read.body_json, read.hash) == (rows[1].body_json, rows[0].hash)
    frames = [view.render(row, opening, "s", lambda at, chain: str(at), "before") for row in (read, rows[1])]
    assert frames[0] == frames[1]


# -- a Run that is deleted --------------------------------------------------------------------------------------------


async def look(line: Line, session: str, item: str, refs: list[str]) -> Json:
    """All that a client can see of a Session: what is retained of its events, its states, and long texts."""
    return [
        await line.page(session, direction="backward"),
        [
            (await line.resume(session, history=preference))["history"]
            for preference in ("inline", "snapshot", "anchored")
        ],
        [await line.call("item/readOutput", sessionId=session, itemId=item, outputRef=ref) for ref in refs],
    ]


@pytest.mark.parametrize("retain", [0, 4])
async def test_a_run_that_is_deleted_leaves_what_clients_saw_of_it(place: House, talkers: Crew, retain: int) -> None:
    settings = ViewSettings(history_budget_bytes=10**9, compact_events=10**9, retain_events=retain)
    app = await place.open(view=settings)
    async with Line(app) as line:
        session, run = await told_all(app, line)
        await line.command("session/compact", sessionId=session)
        if retain:
            for _ in range(3):
                await line.turn_ended((await line.turn(session))["turnId"])
                await line.command("session/compact", sessionId=session)
        (answer,) = (
            item
            for item in (await line.resume(session, history="snapshot"))["history"]["snapshot"]["state"]["items"]
            if item["itemId"] == f"A-{run.turn_id}"
        )
        seen = await look(line, session, answer["itemId"], [answer["outputRef"]["id"]])
    await app.runs.delete(run.run_id)
    for again in range(2):
        async with Line(app) as line:
            assert await look(line, session, answer["itemId"], [answer["outputRef"]["id"]]) == seen, again
        app = await place.reboot(app, view=settings)
    rows = await everything(app)
    assert [row for row in rows["ReplayRow"] if row.run == run.n] == []
    assert [row for row in rows["SplicedRow"] if row.run == run.n] == []
    for text in map(shown_text, map(encode, OUTPUTS.values())):
        kept = len(text.encode()) >= NAMED_BYTES
        assert [row.body for row in rows["ValueRow"] if row.body == text] == [text] * kept, "also the long one: it was"
    assert await faults(app) == []


async def test_the_results_of_earlier_activations_go_with_their_run(place: House, talkers: Crew) -> None:
    app = await place.open(view=HUGE)
    async with Line(app) as line:
        _, run = await told_all(app, line)
    talkers.acts["like_json"] = lambda work: Report(Pass(long(400, 9)))
    await app.reruns.rerun(run.run_id, RerunFrom(from_step="like_json"))
    await ended(app, run)
    rows = await everything(app)
    assert len(rows["SplicedRow"]) == 2
    await app.runs.delete(run.run_id)
    rows = await everything(app)
    assert rows["SplicedRow"] == []
    assert await faults(app) == []


async def test_two_runs_that_end_alike_share_the_text_whichever_is_deleted_first(place: House, talkers: Crew) -> None:
    body = flow(*(step(name, out=f"$.{name}") for name in OUTPUTS))
    for first in (0, 1):
        app = await place.open(view=HUGE)
        runs = []
        for _ in range(2):
            new = NewTask(blueprint={"kind": "inline", "value": body}, init_ctx={"first": first})
            runs.append(await ended(app, await app.tasks.launch(new)))
        assert runs[0].result_json == runs[1].result_json
        (spliced,) = (row for row in (await everything(app))["SplicedRow"] if row.run in (runs[0].n, runs[1].n))
        await app.runs.delete(runs[first].run_id)
        stands = (await everything(app))["SplicedRow"]
        assert (spliced in stands) == (spliced.run != runs[first].n)
        other = await app.runs.get(runs[1 - first].run_id)
        assert other.result_json == runs[0].result_json
        await app.runs.delete(other.run_id)
        assert await faults(app) == []
        await place.crash(app)


# -- damage -----------------------------------------------------------------------------------------------------------


async def spoil(app: App, run: RunRecord, member: str) -> None:
    """Changes, or takes away, the row of the output `most`."""
    (row,) = [
        row for row in await app.store.read(lambda reader: reader.find(ReplayRow, run=run.n)) if row.step_ref == "most"
    ]
    changed = {"other text": encode(long(INLINE_BYTES, 9)), "no JSON": '"' + "x" * 300, "another kind": "[1]"}
    if member == "gone":
        await app.store.write(lambda tx: tx.delete(ReplayRow, run=run.n, ordinal=row.ordinal))
    else:
        await app.store.write(lambda tx: tx.update(ReplayRow, (run.n, row.ordinal), step_output_json=changed[member]))


@pytest.mark.parametrize("member", ["gone", "other text", "no JSON", "another kind"])
async def test_a_text_that_is_not_the_one_that_was_named_is_never_shown(
    place: House, talkers: Crew, member: str
) -> None:
    app = await place.open(view=HUGE)
    async with Line(app) as line:
        session, run = await told_all(app, line)
        await line.command("session/compact", sessionId=session)
        page = await line.page(session)
        answer = folded(page).items[f"A-{run.turn_id}"]
    await spoil(app, run, member)
    app = await place.reboot(app, view=HUGE)
    async with Line(app) as line:
        for ask in (
            line.page(session),
            line.page(session, direction="backward"),
            line.resume(session, history="snapshot"),
            line.resume(session, history="anchored"),
        ):
            with pytest.raises(Refused) as no:
                await ask
            assert (no.value.kind, no.value.data["reason"]) == ("internal", "storeDamaged")
    with pytest.raises(StoreDamaged):
        await app.runs.get(run.run_id)
    row = await app.store.read(lambda reader: boundaries.latest(reader, find_session(reader, session)))
    log = app.sessions._log
    loaded = await app.store.read(lambda reader: boundaries.load(reader, log, find_session(reader, session), row))
    assert loaded is None, "no rung"
    said = await faults(app)
    assert any("the output of row 4" in each for each in said), said
    assert any(answer["outputRef"]["id"] in each for each in said), said
    await app.runs.delete(run.run_id)
    async with Line(app) as line:
        with pytest.raises(Refused) as no:
            await line.page(session)
        assert no.value.data["reason"] == "storeDamaged", "deleting does not mend it"


async def test_a_boundary_is_installed_over_names_that_cannot_be_read(place: House, talkers: Crew) -> None:
    """What is damaged in the latest boundary costs the next one bytes, not its truth."""
    app = await place.open(view=HUGE)
    async with Line(app) as line:
        session, _ = await told_all(app, line)
        await line.command("session/compact", sessionId=session)
        await app.store.write(
            lambda tx: [
                tx.update(ValueRow, (name,), body="{")
                for name in decode(boundaries.latest(tx, find_session(tx, session)).segments_json)
            ]
        )
        await line.turn_ended((await line.turn(session))["turnId"])
        await line.command("session/compact", sessionId=session)
        page = await line.page(session)
    app = await place.reboot(app, view=HUGE)
    async with Line(app) as line:
        history = (await line.resume(session, history="anchored"))["history"]
        assert history["mode"] == "anchoredSnapshot"
        assert history["snapshot"]["state"]["items"] == list(folded(page).items.values())


async def test_an_item_that_was_completed_anew_is_kept_as_it_is_now() -> None:
    author = await Author().play(b"\x01")
    opened = await author.step()
    await author.end(opened, long(300, 1))
    await author.compact()
    await author.end(opened, "another text", revision=3)
    row = await author.compact()
    loaded = await author.read(lambda reader, session: boundaries.load(reader, author.log, session, row))
    shown = {item["itemId"]: item for item in loaded.snapshot["state"]["items"]}
    assert shown[opened]["visibleOutput"] == "another text"
    whole = folded([frame for _, frame in await author.placed(view.GENESIS)])
    assert shown == {name: item for name, item in whole.items.items() if name in shown}


# -- what it costs ----------------------------------------------------------------------------------------------------


async def test_a_growing_ctx_takes_less_than_four_times_what_was_said(home: House, talkers: Crew) -> None:
    """Steps that each add 1 KiB: rows, records, boundaries and the final ctx in one file, after its last checkpoint."""
    count = 600
    talkers.acts["grow"] = lambda work: Report(Pass(f"{work.directive} ".ljust(1024, ".")))
    app = await home.open()
    nodes = [step("grow", n, f"$.k{n}") for n in range(count)]
    run = await app.tasks.launch(NewTask(blueprint={"kind": "inline", "value": flow(*nodes)}, init_ctx={}))
    done = await ended(app, run)
    assert len(result(done)) == count
    rows = await everything(app)
    assert rows["BoundaryRow"], "by itself, between steps"
    await home.close()
    assert home.path is not None
    used = sum(file.stat().st_size for file in home.path.parent.iterdir())
    assert used <= 4 * count * 1024, used / (count * 1024)


async def test_an_anchored_resume_looks_up_each_output_once(place: House, talkers: Crew) -> None:
    app = await place.open(view=HUGE)
    await app.blueprints.add(flow(*(step("least", n, "$.last") for n in range(200)), id="many"))
    async with Line(app) as line:
        session = await line.start("many")
        await line.turn_ended((await line.turn(session))["turnId"])
        await line.command("session/compact", sessionId=session)
    app = await place.reboot(app, view=HUGE)

    def load(reader: Any) -> tuple[Counting, Any]:
        counting, found = Counting(reader), find_session(reader, session)
        return counting, boundaries.load(counting, app.sessions._log, found, boundaries.latest(counting, found))

    counted, loaded = await app.store.read(load)
    assert len(loaded.snapshot["state"]["items"]) > 200
    assert counted.of["ReplayRow"] == 200
    assert counted.rows <= 200 + 10
