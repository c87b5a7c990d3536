"""Lists of Runs: filters by status, Task, labels and text, against a model; and what a search costs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from http_kit import Door, assign, blueprint, launching, opened, step
from hypothesis import given
from hypothesis import strategies as st

from refold.records import RunRecord
from refold.service import listing
from refold.service.listing import Wanted, find_runs
from refold.store import MemoryStore
from refold.testing.history import sample

pytestmark = pytest.mark.anyio
Json = Any


async def ids(door: Door, **params: Json) -> list[str]:
    return [run["run_id"] for run in (await door.ask("GET", "/v1/runs", params=params))["items"]]


async def test_runs_are_found_by_status_task_label_and_text(door: Door) -> None:
    await door.ask("POST", "/v1/blueprints", blueprint(step("fail"), id="Nightly"), status=201)
    by_id = {"blueprint": {"kind": "id", "id": "Nightly"}, "goal": "Tidy the STRASSE", "labels": {"team": "Blue"}}
    one = await door.ask("POST", "/v1/tasks", by_id)
    two = await door.ask("POST", "/v1/tasks", launching(labels={"team": "red", "env": "prod"}))
    three = await door.ask("POST", "/v1/tasks", launching(labels={"env": "a=b"}))
    again = await door.ask("POST", f"/v1/tasks/{two['task_id']}/runs", status=201)
    one, two, three, again = (each["run_id"] for each in (one, two, three, again))
    task = (await door.ask("GET", f"/v1/runs/{two}"))["task_id"]
    for params, expected in (
        ({}, [again, three, two, one]),
        ({"status": "done"}, [again, three, two]),
        ({"status": "failed"}, [one]),
        ({"status": "pending"}, []),
        ({"task_id": task}, [again, two]),
        ({"task_id": task, "status": "failed"}, []),
        ({"task_id": "T-00000000000000ff"}, []),
        ({"label": "team"}, [again, two, one]),
        ({"label": "team=red"}, [again, two]),
        ({"label": ["team", "env=prod"]}, [again, two]),
        ({"label": ["team=red", "team=Blue"]}, []),
        ({"label": "team=blue"}, []),
        ({"label": "env=a=b"}, [three]),
        ({"label": "env="}, []),
        ({"label": "tea"}, []),
        ({"q": "nightLY"}, [one]),
        ({"q": "tidy"}, [one]),
        ({"q": "straße"}, [one]),
        ({"q": "blue"}, [one]),
        ({"q": two[-10:]}, [two]),
        ({"q": two[-10:].upper()}, [two]),
        ({"q": "team"}, []),
        ({"q": "R-"}, [again, three, two, one]),
        ({"q": "prod", "status": "done", "label": "team"}, [again, two]),
        ({"q": "%"}, []),
        ({"q": ""}, [again, three, two, one]),
    ):
        assert await ids(door, **params) == expected, params


# -- against a model --------------------------------------------------------------------------------------------------

words = st.sampled_from(["", "a", "b", "ab", "A", "ß", "ss"])
labels = st.dictionaries(words, words, max_size=3)
rows = st.lists(st.tuples(st.sampled_from(["done", "failed"]), labels, st.none() | words), max_size=12)
asked = st.builds(
    Wanted,
    status=st.none() | st.sampled_from(["done", "failed"]),
    labels=st.lists(st.tuples(words, st.none() | words), max_size=2).map(tuple),
    q=words,
)


@given(rows=rows, wanted=asked, limit=st.integers(1, 4), size=st.integers(1, 5), before=st.none() | st.integers(1, 14))
def test_a_search_finds_what_a_plain_filter_finds(
    rows: list[tuple[str, dict[str, str], str | None]], wanted: Wanted, limit: int, size: int, before: int | None
) -> None:
    from refold.canonical import encode

    def fits(n: int) -> bool:
        status, has, name = rows[n - 1]
        texts = [f"r-{n}", (name or "").casefold(), *(value.casefold() for value in has.values())]
        return (
            (before is None or n < before)
            and wanted.status in (None, status)
            and all(key in has and value in (None, has[key]) for key, value in wanted.labels)
            and any(wanted.q.casefold() in text for text in texts)
        )

    async def found() -> list[int]:
        store = MemoryStore()
        for n, (status, has, name) in enumerate(rows, 1):
            launch = None if name is None else encode({"blueprint": {"id": name or None, "version": "v", "value": {}}})
            members = {"status": status, "labels_json": encode(has), "input_json": launch, "result_json": None}
            run = sample(RunRecord, run_id=f"R-{n}", **members)
            await store.write(lambda tx, run=run: tx.insert(run))
        return [run.n for run in await find_runs(store, wanted, limit, before)]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(listing, "SLICE", size)
        assert asyncio.run(found()) == [n for n in range(len(rows), 0, -1) if fits(n)][:limit]


# -- what it costs ----------------------------------------------------------------------------------------------------


async def test_a_page_reads_one_row_more_than_it_shows(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "refold.db") as door:
        for n in range(8):
            await door.launch(assign("$.x", n))
        made: list[type] = []
        from refold.store import sqlite

        real = sqlite._rows
        monkeypatch.setattr(sqlite, "_rows", lambda kind, found: made.extend([kind] * len(found)) or real(kind, found))
        page = await door.ask("GET", "/v1/runs?limit=2")
        assert made.count(RunRecord) == 3
        made.clear()
        await door.ask("GET", "/v1/runs", params={"limit": 2, "cursor": page["next_cursor"]})
        assert made.count(RunRecord) == 3
        made.clear()
        await door.ask("GET", "/v1/tasks?limit=2")
        assert len(made) == 3


async def test_a_long_search_lets_others_have_their_turn(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(6):
        await door.launch()
    monkeypatch.setattr(listing, "SLICE", 1)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    meanwhile = asyncio.create_task(others())
    await find_runs(door.app.store, Wanted(q="nothing has this"), 1)
    meanwhile.cancel()
    assert turns >= 6
