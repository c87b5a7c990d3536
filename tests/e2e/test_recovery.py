"""What the next server makes of what the last one left: closed turns, ends equal to the twin's, parted histories."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import sys
from collections import Counter
from pathlib import Path

import pytest
from e2e_kit import Home, Json, items_of, kill, within

from refold.canonical import canonical
from refold.client.session import CallRefused, SessionClient, Wire
from refold.view import Outcome, ViewState, apply, fold_digest

pytestmark = pytest.mark.e2e

KILLS = int(os.environ.get("REFOLD_KILLS", "5"))
STEPS = [f"s{n}" for n in range(12)]


def paged(wire: Wire, session: str) -> list[Json]:
    """Every event of a Session."""
    events: list[Json] = []
    asked: Json = {"sessionId": session, "limit": 100}
    while True:
        page = wire.call("view/page", asked)
        events += page["events"]
        if page["nextCursor"] is None:
            return events
        asked["cursor"] = page["nextCursor"]


def folded(events: list[Json]) -> ViewState:
    """The fold of events that must follow each other without a gap."""
    state = ViewState()
    for event in events:
        assert apply(state, event) in (Outcome.APPLIED, Outcome.UNKNOWN), event
    return state


def talk(wire: Wire, session: str, text: str) -> None:
    """A turn, to its end."""
    said = {"sessionId": session, "input": [{"type": "text", "text": text}]}
    turn = ("turn/completed", wire.command("turn/start", said)["turnId"])
    within(
        f"the end of {text!r}",
        lambda: turn in [(event["method"], event["params"].get("turnId")) for event in paged(wire, session)],
    )


def test_boot_recovery_closes_the_turn_and_what_is_open_and_twice_is_once(home: Home) -> None:
    server = home.serve()
    home.hold("b")
    run = home.launch(home.chain("a", "b"), input=1)
    home.began("b")
    session = home.api.get(f"/v1/runs/{run}")["session_id"]
    items = items_of(home.api.get(f"/v1/sessions/{session}")["snapshot"]).values()
    assert {item["kind"] for item in items if item["status"] == "inProgress"} == {"toolCall", "workflow"}
    kill(server)
    after = []
    for _ in range(2):
        server = home.serve()
        events = paged(home.wire(), session)
        after.append((events, home.api.get(f"/v1/runs/{run}"), home.api.get(f"/v1/runs/{run}/trace")))
        kill(server)
    assert after[0] == after[1], "a second boot finds nothing to do"
    events, record, trace = after[0]
    assert (record["status"], record["result_ref"]) == ("interrupted", {"error": "server restart"})
    assert trace["items"][-1]["payload"]["reason"] == "server restart"
    state = folded(events)
    assert state.active_turn is None
    assert (state.last_turn["terminal"], state.last_turn["reason"]) == ("cancelled", "server restart")
    assert {item["status"] for item in state.items.values()} == {"completed", "cancelled"}
    assert "run_resumable" in home.said()


def test_a_run_that_is_killed_again_and_again_ends_as_its_twin(home: Home) -> None:
    """One chain, killed at steps that luck chooses; a client comes back with its cursor after every kill."""
    seed = int(os.environ.get("REFOLD_SEED", str(secrets.randbelow(10**6))))
    sys.stderr.write(f"REFOLD_SEED={seed} REFOLD_KILLS={KILLS}\n")
    luck = random.Random(seed)
    at = sorted((luck.choice(STEPS) for _ in range(KILLS)), key=STEPS.index)
    server = home.serve()
    twin = home.reached(home.launch(home.chain(*STEPS), input=1), "done")
    home.hold(*at)
    run = home.launch(home.chain(*STEPS), input=1)
    client = SessionClient(home.wire(), home.api.get(f"/v1/runs/{run}")["session_id"])
    client.resume(home.wire())
    for n, name in enumerate(at):
        home.began(name, 2 + at[:n].count(name))  # once in the twin
        rows = home.api.get(f"/v1/runs/{run}/replay")["items"]
        client.receive(0)
        kill(server)
        if name not in at[n + 1 :]:
            home.free(name)
        server = home.serve()
        assert home.api.get(f"/v1/runs/{run}/replay")["items"] == rows, "what was read before is there after"
        assert client.resume(home.wire())["noneReason"] == "cursorSuffix"
        assert home.api.post(f"/v1/runs/{run}/resume")["replayed_steps"] == len(rows) == STEPS.index(name)
    record = home.reached(run, "done")
    assert canonical(record["result_ref"]) == canonical(twin["result_ref"])
    assert Counter(home.ran()) == Counter({name: 2 + at.count(name) for name in STEPS})
    keys = {(line["run_id"], line["name"]): line["idempotency_key"] for line in home.ledger()}
    assert all(line["idempotency_key"] == keys[line["run_id"], line["name"]] for line in home.ledger())
    assert len(set(keys.values())) == 2 * len(STEPS)
    client.catch_up()
    events = paged(home.wire(), client.session_id)
    assert client.digest == fold_digest(folded(events))
    assert client.folded == len(events), "no event twice, none left out"


def test_histories_that_part_do_not_know_each_others_cursors(home: Home, tmp_path: Path) -> None:
    """A store is copied, and both copies go on at the same time."""
    server = home.serve()
    home.api.post("/v1/blueprints", home.chain("a"))
    session = home.wire().command("session/start", {"modelId": "chain"})["session"]["sessionId"]
    talk(home.wire(), session, "common")
    common = cursors(home, session)
    server.terminate()
    server.wait()
    with contextlib.closing(home.copy(tmp_path / "twin")) as twin:
        for each in (home, twin):
            each.serve()
            wire = each.wire()
            wire.command("session/resume", {"sessionId": session})
            talk(wire, session, f"only in {each.folder.name}")
        ours, theirs = cursors(home, session) - common, cursors(twin, session) - common
        assert len(ours) == len(theirs) > 0
        assert not ours & theirs
        for wire, own, strange in ((home.wire(), ours, theirs), (twin.wire(), theirs, ours)):
            assert {answer(wire, session, cursor) for cursor in strange} == {"missingAnchor"}
            assert {answer(wire, session, cursor) for cursor in own | common} == {"cursorSuffix"}


def cursors(home: Home, session: str) -> set[str]:
    """The cursors of all events of a Session."""
    return {event["params"]["viewCursor"] for event in paged(home.wire(), session)}


def answer(wire: Wire, session: str, cursor: str) -> str:
    """What a resume at the cursor is answered."""
    try:
        served = wire.command("session/resume", {"sessionId": session, "cursor": cursor})
    except CallRefused as no:
        assert no.kind == "notFound"
        return no.data["reason"]
    return served["history"]["noneReason"]
