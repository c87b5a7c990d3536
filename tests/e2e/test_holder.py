"""Who holds a store: one process, until it ends; how it ends, and what becomes of those who attached to it."""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import socket
import subprocess

import pytest
from e2e_kit import PATIENCE_SECS, REFOLD, Home, Json, items_of, kill, within

pytestmark = pytest.mark.e2e

HELLO = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"clientInfo": {"name": "tests", "version": "1"}}}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "session/list", "params": {}}


def speak(home: Home) -> subprocess.Popen[bytes]:
    """A `refold msp` that has answered: whether it holds the store or attached to who does, it is there."""
    process = home.spawn([*REFOLD, "msp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert ask(process, HELLO)["result"]["serverInfo"]["name"] == "refold"
    return process


def ask(process: subprocess.Popen[bytes], frame: Json) -> Json:
    """The answer to one request."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(frame).encode() + b"\n")
    process.stdin.flush()
    ready, _, _ = select.select([process.stdout], [], [], PATIENCE_SECS)
    assert ready, "no answer"
    return json.loads(process.stdout.readline())


def ended(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process that ends by itself."""
    return process.wait(PATIENCE_SECS)


def test_attached_clients_end_with_69_when_the_holder_dies_and_attach_anew(home: Home) -> None:
    server = home.serve()
    attached = [speak(home) for _ in range(3)]
    assert [ask(each, LIST)["result"]["sessions"] for each in attached] == [[], [], []]
    kill(server)
    assert [ended(each) for each in attached] == [69, 69, 69]
    home.serve()
    assert ask(speak(home), LIST)["result"]["sessions"] == []


def test_a_log_that_nobody_reads_any_more_stops_no_server(home: Home) -> None:
    """The pipe to a log collector that has died: each line raises in who writes it, unless it is dropped."""
    reading, writing = os.pipe()
    os.close(reading)
    server = home.serve(stderr=writing)
    os.close(writing)
    home.reached(home.launch(home.chain("a"), input=1), "done")
    server.terminate()  # talks too
    assert ended(server) == 0


def test_attached_clients_end_with_69_when_the_holder_leaves_in_order(home: Home) -> None:
    server = home.serve()
    attached = speak(home)
    server.terminate()
    assert ended(attached) == 69
    assert ended(server) == 0


def test_an_attached_client_ends_with_its_input_and_the_holder_stays(home: Home) -> None:
    server = home.serve()
    attached = speak(home)
    assert attached.stdin is not None
    attached.stdin.close()
    assert ended(attached) == 0
    assert server.poll() is None
    assert home.api.get("/v1/status")["version"]


@pytest.mark.parametrize("served", [True, False], ids=["attached", "holding"])
def test_questions_from_a_pipe_are_all_answered(home: Home, served: bool) -> None:
    """The input has ended long before the answers are there."""
    if served:
        home.serve()
    questions = [HELLO, {"jsonrpc": "2.0", "method": "initialized"}, *({**LIST, "id": n} for n in range(2, 40))]
    said = home.run("msp", input="".join(json.dumps(each) + "\n" for each in questions))
    assert said.returncode == 0
    assert [json.loads(line)["id"] for line in said.stdout.splitlines()] == list(range(1, 40))


def test_a_second_server_is_refused_names_the_holder_and_touches_nothing(home: Home) -> None:
    server = home.serve()
    home.hold("b")
    run = home.launch(home.chain("a", "b"), input=1)
    home.began("b")
    announced, record = home.server_file.read_bytes(), home.api.get(f"/v1/runs/{run}")
    refused = home.run("serve", "--bind", "127.0.0.1:0")
    assert refused.returncode == 6
    assert str(server.pid) in refused.stderr
    assert home.server["url"] in refused.stderr
    assert (home.server_file.read_bytes(), home.api.get(f"/v1/runs/{run}")) == (announced, record)
    assert record["status"] == "running"
    home.free()
    home.reached(run, "done")
    assert home.ran() == ["a", "b"]


def test_a_speaking_process_holds_the_store_where_nobody_does(home: Home) -> None:
    holder = speak(home)
    assert home.server["pid"] == holder.pid
    refused = home.run("serve", "--bind", "127.0.0.1:0")
    assert (refused.returncode, str(holder.pid) in refused.stderr) == (6, True)
    guest = speak(home)
    assert holder.stdin is not None
    holder.stdin.close()
    assert ended(holder) == 0
    assert ended(guest) == 69
    assert not home.server_file.exists()


def test_a_killed_holder_frees_the_store(home: Home) -> None:
    first = home.serve()
    run = home.reached(home.launch(home.chain("a"), input=1), "done")["run_id"]
    stale = home.server
    kill(first)
    assert home.server == stale, "nobody was left to take it back"
    listed = json.loads(home.run("ls", "--json").stdout)
    assert [each["run_id"] for each in listed["items"]] == [run], "a stale server.json is ignored"
    second = home.serve()
    assert home.server["pid"] == second.pid != first.pid
    assert home.api.get(f"/v1/runs/{run}")["status"] == "done"


def test_sigterm_drains(home: Home) -> None:
    server = home.serve()
    home.hold("b")
    run = home.launch(home.chain("a", "b", "c"), input=1)
    home.began("b")
    session = home.api.get(f"/v1/runs/{run}")["session_id"]
    server.terminate()
    assert ended(server) == 0
    assert not home.server_file.exists()
    home.free()
    home.serve()
    record = home.api.get(f"/v1/runs/{run}")
    assert (record["status"], record["result_ref"]) == ("interrupted", {"error": "server shutdown"})
    trace = home.api.get(f"/v1/runs/{run}/trace")["items"]
    assert trace[-1]["kind"] == "core.run_finished"
    assert trace[-1]["payload"]["reason"] == "server shutdown"
    snapshot = home.api.get(f"/v1/sessions/{session}")["snapshot"]
    assert snapshot["state"]["activeTurn"] is None
    assert {item["status"] for item in items_of(snapshot).values()} == {"completed", "cancelled"}
    assert home.api.post(f"/v1/runs/{run}/resume")["replayed_steps"] == 1
    home.reached(run, "done")
    assert home.ran() == ["a", "b", "b", "c"]


def deaf(home: Home) -> socket.socket:
    """A WebSocket client that never reads, nor answers when it is told that the server leaves."""
    where = home.server["url"].removeprefix("http://")
    host, port = where.rsplit(":", 1)
    client = socket.create_connection((host, int(port)))
    head = {
        "Host": where,
        "Authorization": f"Bearer {home.token}",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
    }
    lines = ["GET /v1/msp HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
    client.sendall("\r\n".join(lines).encode())
    assert client.recv(12) == b"HTTP/1.1 101"
    return client


@pytest.mark.parametrize(("signals", "code"), [(1, 0), (2, 130)])
def test_a_client_that_does_not_listen_holds_the_end_up_but_not_for_ever(home: Home, signals: int, code: int) -> None:
    server = home.serve()
    with deaf(home):
        server.terminate()
        within("it has let go of server.json", lambda: not home.server_file.exists())
        for _ in range(signals - 1):
            server.send_signal(signal.SIGINT)  # a second signal does not wait
        assert ended(server) == code
    assert home.run("ls").returncode == 0, "the store is free"
