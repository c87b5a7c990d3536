"""Operators and a server that dies: their tokens, the attempt that was cut off, and the one in its place."""

from __future__ import annotations

import json
import signal

import pytest
from e2e_kit import PATIENCE_SECS, Home, Json, kill, step, within
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from refold.client.api import Api, Refusal

pytestmark = pytest.mark.e2e


def hand_over(home: Home) -> Json:
    """A Blueprint that has a program do something, then an operator."""
    agents = [home.worker("first"), {"name": "op", "kind": "operator", "spec": {}}]
    return {
        "id": "hand-over",
        "flow": {"kind": "seq", "children": [step("first"), step("op", "review")]},
        "agents": agents,
    }


def operated(home: Home, token: str) -> Api:
    """The HTTP door, under an operator's token."""
    return Api(home.server["url"], token, timeout=PATIENCE_SECS)


def socket_of(home: Home, sid: str, token: str) -> ClientConnection:
    url = home.server["url"].replace("http://", "ws://")
    return connect(f"{url}/v1/operators/{sid}/ws", additional_headers={"Authorization": f"Bearer {token}"})


def test_an_operator_outlives_a_kill_and_is_offered_the_step_again(home: Home) -> None:
    server = home.serve()
    me = home.api.post("/v1/operators", {"desc": "somebody"})
    run = home.launch(hand_over(home))
    with socket_of(home, me["sid"], me["token"]) as socket:
        offer = json.loads(socket.recv(PATIENCE_SECS))["offer"]
        kill(server)
        with pytest.raises(ConnectionClosed):
            socket.recv(PATIENCE_SECS)
    home.serve()
    said = {"step_id": offer["step_id"], "attempt": 1, "outcome": "pass", "value": "PASS"}
    with pytest.raises(Refusal) as refused:
        operated(home, me["token"]).post("/v1/worker/submit", said)
    assert (refused.value.status, refused.value.kind) == (409, "attempt_stale")
    assert refused.value.data["status"] == "interrupted"
    home.api.post(f"/v1/runs/{run}/resume")
    with socket_of(home, me["sid"], me["token"]) as socket:
        again = json.loads(socket.recv(PATIENCE_SECS))["offer"]
        assert (again["attempt"], again["idempotency_key"]) == (2, offer["idempotency_key"])
        socket.send(json.dumps({"type": "submit", **said, "step_id": again["step_id"], "attempt": 2}))
        assert json.loads(socket.recv(PATIENCE_SECS))["type"] == "accepted"
    assert home.reached(run, "done")["result_ref"]["op"] == "PASS"
    assert home.ran() == ["first"]


def test_a_submission_that_was_acknowledged_survives_a_kill(home: Home) -> None:
    server = home.serve()
    me = home.api.post("/v1/operators", {})
    blueprint = hand_over(home)
    blueprint["flow"]["children"].append(step("first", 2, "$.last"))
    run = home.launch(blueprint)
    offer = operated(home, me["token"]).get(f"/v1/operators/{me['sid']}/next?wait_secs=30")
    home.hold("first")
    said = {"step_id": offer["step_id"], "attempt": 1, "outcome": "pass", "value": "PASS"}
    operated(home, me["token"]).post("/v1/worker/submit", said)
    kill(server)
    home.free()
    home.serve()
    home.api.post(f"/v1/runs/{run}/resume")
    assert home.reached(run, "done")["result_ref"]["op"] == "PASS", "and nobody was asked again"


def test_an_orderly_end_sends_operators_home_at_once(home: Home) -> None:
    server = home.serve()
    me = home.api.post("/v1/operators", {})
    with socket_of(home, me["sid"], me["token"]) as socket:
        within("the socket", lambda: home.api.get("/v1/operators")["items"][0]["present"])
        server.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(PATIENCE_SECS)
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
    assert server.wait(PATIENCE_SECS) == 0
