"""A question to a person outlives every process: its server, the next one, and the command that asked it."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2e_kit import Home, Json, kill, path, step, within

from refold.client.api import Refusal
from refold.client.session import CallRefused, Wire

pytestmark = pytest.mark.e2e


def gate(home: Home, **members: Json) -> Json:
    """A step, a question to a person, and another step."""
    approve = {"kind": "approve", "action": {"op": "lit", "value": {"deploy": "it"}}, "title": "Ship it?"}
    nodes = [step("a", 1), approve | {"out": path("$.ok")} | members, step("b", path("$.ok.decision"))]
    return {"id": "gate", "flow": {"kind": "seq", "children": nodes}, "agents": [home.worker("a"), home.worker("b")]}


def asking(home: Home, **spec: Json) -> Json:
    """A question with labels to a person, and a step that is given the answer."""
    person = {"name": "person", "kind": "human", "spec": {"question": "Which?", "options": ["red", "blue"]} | spec}
    nodes = [step("person", 1), step("b", path("$.person"))]
    return {"id": "ask", "flow": {"kind": "seq", "children": nodes}, "agents": [person, home.worker("b")]}


def asked(home: Home, run_id: str) -> Json:
    """The one open request of a Run, once there is one."""

    def find() -> Json:
        return home.api.get(f"/v1/requests?status=open&run_id={run_id}")["items"]

    (request,) = within(f"a question of {run_id}", find)
    return request


def pending(home: Home, session_id: str) -> Json:
    """What the Session's snapshot points at as open."""
    return home.api.get(f"/v1/sessions/{session_id}")["snapshot"]["state"]["pendingApprovals"]


def gave(done: object) -> Json:
    """The JSON that a command wrote."""
    return json.loads(done.stdout)  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["kill -9", "an orderly end"])
def test_a_question_survives_its_server_and_the_decision_goes_on_from_it(home: Home, how: str) -> None:
    server = home.serve()
    run = home.launch(gate(home))
    request = asked(home, run)
    (pointer,) = pending(home, request["session_id"])
    within("the run to say so", lambda: home.api.get(f"/v1/runs/{run}")["waiting_on"] == "approval")
    for _ in range(2):
        if how == "kill -9":
            kill(server)
        else:
            server.send_signal(signal.SIGTERM)
            server.wait(20)
        server = home.serve()
        record = home.api.get(f"/v1/runs/{run}")
        assert record["status"] == "interrupted"
        assert asked(home, run) == request, "the same id, the same question, open since then"
        assert pending(home, request["session_id"]) == [pointer], "and the same place in the view"
    done = home.api.post(f"/v1/requests/{request['request_id']}/decide", {"choice": "approve", "feedback": "good"})
    assert (done["resumed"], done["status"], done["resolution"]["decision"]) == (True, "resolved", "approved")
    ended = home.reached(run, "done")
    assert ended["result_ref"]["ok"] == {
        "decision": "approved",
        "choice": "approve",
        "by": "user",
        "feedback": "good",
    }
    assert home.ran() == ["a", "b"], "nothing ran twice"
    assert pending(home, request["session_id"]) == []


LATER = r"""
import sys, time
from pathlib import Path
from refold.cli.main import main
from refold.engine.clock import Clock
from refold.engine.sweeps import StaleSweep
hours, swept = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
now_ms, sweep = Clock.now_ms, StaleSweep.sweep
Clock.now_ms = lambda clock: now_ms(clock) + 3_600_000 * int(hours.read_text())
async def counted(self):
    at = hours.read_text()
    found = await sweep(self)
    with swept.open("a") as file:
        file.write(at + "\n")
    return found
StaleSweep.sweep = counted
main()
"""
"""A server whose wall clock is as many hours ahead as a file says, and which notes at what hour it has swept."""


def test_a_question_waits_over_a_kill_and_a_day_and_a_stranger_answers_it_once(home: Home) -> None:
    server = home.serve()
    run = home.launch(gate(home))
    request = asked(home, run)
    kill(server)
    hours, swept = home.bench / "hours", home.bench / "swept"
    hours.write_text("0")
    swept.write_text("")
    ahead = [sys.executable, "-c", LATER, str(hours), str(swept)]
    home.serve("--auto-resume", "--sweep-period-secs", "0.05", command=ahead)
    within("the run to wait again", lambda: home.api.get(f"/v1/runs/{run}")["waiting_on"] == "approval")
    hours.write_text("26")
    within("two sweeps of the next day", lambda: swept.read_text().split().count("26") >= 2)
    record = home.api.get(f"/v1/runs/{run}")
    assert (record["status"], record["waiting_on"]) == ("running", "approval"), "nobody took it for dead"
    assert home.api.get("/v1/status")["stale_run_sweep"] == {"interrupted": 0, "faults": 0}
    assert asked(home, run) == request

    stranger, session = home.wire(), request["session_id"]
    answer = stranger.command("session/resume", {"sessionId": session})
    assert [each["approvalId"] for each in answer["pendingRequests"]] == [request["request_id"]]
    question = within("the question", lambda: _asked_over(stranger, stranger.next(1)))
    assert question["approvalId"] == request["request_id"]
    (choice,) = [each for each in question["availableChoices"] if each["decision"] == "approved"]
    decision = {
        "sessionId": session,
        "approvalId": question["approvalId"],
        "choiceId": choice["choiceId"],
        "requirementId": question["currentRequirementId"],
    }
    stranger.command("approval/decide", decision)
    ended = home.reached(run, "done")
    assert (ended["result_ref"]["ok"]["decision"], ended["activation"]) == ("approved", 2)
    assert home.ran() == ["a", "b"], "it went on once, and nothing ran twice"
    with pytest.raises(CallRefused) as late:
        stranger.command("approval/decide", decision)
    assert late.value.kind == "approvalAlreadyResolved"
    page = stranger.call("view/page", {"sessionId": session, "limit": 1_000})["events"]
    about = [
        (frame["method"], frame["params"]["approvalId"]) for frame in page if frame["method"].startswith("approval/")
    ]
    assert about == [(method, request["request_id"]) for method in ("approval/requested", "approval/resolved")]


def _asked_over(wire: Wire, frame: Json) -> Json:
    """The params of a frame that asks for an approval."""
    return frame["params"] if frame is not None and frame["method"] == "approval/request" else None


def test_of_many_who_decide_at_once_one_wins_and_all_are_told(home: Home) -> None:
    home.serve()
    run = home.launch(gate(home, on_deny="continue"))
    request = asked(home, run)
    where = f"/v1/requests/{request['request_id']}/decide"

    def decide(n: int) -> Json:
        try:
            return home.api.post(where, {"choice": "approve" if n % 2 else "deny"})
        except Refusal as refusal:
            return refusal

    with ThreadPoolExecutor(16) as people:
        answers = list(people.map(decide, range(16)))
    (won,) = [each for each in answers if isinstance(each, Mapping)]
    decision = won["resolution"]["decision"]
    for lost in answers:
        if lost is not won:
            assert (lost.status, lost.kind) == (409, "approval_already_resolved")
            assert lost.data["resolution"]["decision"] == decision
    assert home.reached(run, "done")["result_ref"]["ok"]["decision"] == decision
    assert home.ran() == ["a", "b"]


def test_a_command_whose_run_needs_a_person_says_so_and_the_next_command_goes_on(home: Home) -> None:
    """No server at all: each command holds the store for its own length."""
    file = home.bench / "gate.json"
    file.write_text(json.dumps(gate(home)))
    first = home.run("run", str(file), "--json")
    assert first.returncode == 3, first.stderr
    said = gave(first)
    assert (said["status"], said["waiting_on"]) == ("running", "approval")
    (request,) = said["requests"]
    assert request["action"] == {"deploy": "it"}
    for shown in ("Ship it?", '{"deploy":"it"}', f"refold approve {request['request_id']}"):
        assert shown in first.stderr
    again = home.run("resume", said["run_id"], "--json")
    assert (again.returncode, gave(again)["requests"][0]["request_id"]) == (3, request["request_id"])
    assert home.run("approve", request["request_id"], "--choice", "maybe").returncode == 2
    assert home.run("approve", request["request_id"], "--choice", "deny", "--deny").returncode == 2
    assert home.run("answer", request["request_id"], "--text", "yes").returncode == 2
    done = home.run("approve", request["request_id"], "--feedback", "well done")
    assert done.returncode == 0, done.stderr
    assert gave(done)["ok"]["feedback"] == "well done"
    assert home.ran() == ["a", "b"]
    late = home.run("approve", request["request_id"], "--deny")
    assert (late.returncode, "the first answer counts" in late.stderr) == (6, True)
    assert home.run("approve", said["run_id"]).returncode == 2, "a run is no request"


def test_a_denial_from_the_command_line_fails_the_run(home: Home) -> None:
    file = home.bench / "gate.json"
    file.write_text(json.dumps(gate(home)))
    request = gave(home.run("run", str(file), "--json"))["requests"][0]["request_id"]
    denied = home.run("approve", request, "--deny", "--feedback", "not today")
    assert (denied.returncode, "not today" in denied.stderr) == (1, True)


@pytest.mark.parametrize(
    ("spec", "words", "value"),
    [
        ({}, ("--label", "blue"), "blue"),
        ({}, ("--text", "green, please", "--note", "sorry"), "green, please"),
        ({"selection": "multiple"}, ("--label", "blue", "red"), ["blue", "red"]),
        ({"selection": "multiple"}, ("--label", "blue", "--label", "red"), ["blue", "red"]),
    ],
)
def test_a_question_is_answered_from_the_command_line(
    home: Home, spec: Json, words: tuple[str, ...], value: Json
) -> None:
    file = home.bench / "ask.json"
    file.write_text(json.dumps(asking(home, **spec)))
    first = home.run("run", str(file), "--json")
    assert (first.returncode, gave(first)["waiting_on"]) == (3, "input")
    request = gave(first)["requests"][0]["request_id"]
    done = home.run("answer", request, *words)
    assert (done.returncode, gave(done)["person"]) == (0, value), done.stderr


def test_an_answer_that_is_none_is_a_usage_error_and_changes_nothing(home: Home) -> None:
    home.serve()
    run = home.launch(asking(home))
    request = asked(home, run)
    for wrong in ((), ("--label", "red", "--text", "red"), ("--label", "green"), ("--label", "red", "blue")):
        assert home.run("answer", request["request_id"], *wrong).returncode == 2
    assert asked(home, run) == request


def test_with_a_server_a_command_comes_back_at_once_and_waits_if_told(home: Home) -> None:
    home.serve()
    home.hold("b")
    file = home.bench / "gate.json"
    file.write_text(json.dumps(gate(home)))
    first = home.run("run", str(file), "--json")
    assert first.returncode == 3
    run, request = gave(first)["run_id"], gave(first)["requests"][0]["request_id"]
    assert home.api.get(f"/v1/runs/{run}")["status"] == "running", "the server goes on waiting"
    decided = home.run("approve", request, "--json")
    assert (decided.returncode, gave(decided)["resumed"]) == (0, True)
    home.began("b")
    home.free("b")
    home.reached(run, "done")
    second = home.run("run", str(file), "--json")
    waited = home.run("approve", gave(second)["requests"][0]["request_id"], "--wait", "--json")
    assert (waited.returncode, gave(waited)["status"]) == (0, "done")
