"""kill -9 at random moments of a real server under load: what a Run survives, counted by an outside witness.

The witness is a ledger that every step's program appends to, one line per start and end, with O_APPEND and fsync. After
each kill it is compared with what the server had acknowledged before (rows that were readable over HTTP) and with what
it says after. `REFOLD_KILLS` sets the number of kills (default 8); the seed is printed, `REFOLD_SEED` repeats it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_kit import lines

from refold.client.api import Api, Refusal, Unreachable

KILLS = int(os.environ.get("REFOLD_KILLS", "8"))

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120 + 30 * KILLS)]

RUNS, STEPS = 4, 6

WORKER = r"""
import json, os, subprocess, sys
ledger, given = sys.argv[1], json.load(sys.stdin)
env = os.environ.get
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(30)"], stdout=-3, stderr=-3).pid
born = lambda pid: open("/proc/%d/stat" % pid).read().rsplit(")", 1)[1].split()[19]
alive = [[os.getpid(), born(os.getpid())], [child, born(child)]]
def note(event):
    line = dict(event=event, run=env("REFOLD_RUN_ID"), ref=env("REFOLD_STEP_REF"), occ=env("REFOLD_OCCURRENCE"),
                lane=env("REFOLD_LANE"), key=env("REFOLD_IDEMPOTENCY_KEY"), epoch=env("REFOLD_EPOCH"),
                given=given, alive=alive)
    fd = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, ("\n" + json.dumps(line) + "\n").encode())  # a line of its own also behind one that was cut off
    os.fsync(fd)
    os.close(fd)
note("start")
note("end")
print(json.dumps({"n": given["n"] + 1, "i": given.get("i")}))
"""


def path(at: str) -> Any:
    return {"op": "path", "at": at}


def blueprint(ledger: Path) -> Any:
    """A loop whose turns each fan out to three lanes, which ask the same; then one more step."""
    lane = {"kind": "step", "ref": "work", "in": path("$.state"), "out": path("$.got")}
    fan = {
        "kind": "fanout",
        "items": {"op": "lit", "value": [0, 1, 2]},
        "bind": path("$.i"),
        "body": lane,
        "join": "all",
        "out": path("$.lanes"),
    }
    count = {"op": "add", "lhs": path("$.state.n"), "rhs": {"op": "lit", "value": 1}}
    grow = {"kind": "assign", "at": path("$.state.n"), "value": count}
    last = {"kind": "step", "ref": "work", "in": path("$.state"), "out": path("$.last")}
    loop = {
        "kind": "loop",
        "counter": path("$.turn"),
        "cond": {"op": "lit", "value": True},
        "max": STEPS,
        "body": {"kind": "seq", "children": [fan, grow]},
    }
    program = {"program": sys.executable, "args": ["-I", "-S", "-c", WORKER, str(ledger)]}
    return {
        "id": "soak",
        "flow": {"kind": "seq", "children": [loop, last]},
        "agents": [{"name": "work", "kind": "subprocess", "spec": program}],
        "default_init_ctx": {"state": {"n": 0}},
    }


class Server:
    """One `refold serve` after the other on one home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None
        self.log = (home.parent / "serve.log").open("ab")

    def start(self) -> Api:
        (self.home / "server.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "refold", "serve", "--bind", "127.0.0.1:0", "--subprocess", "any"]
        environment = {**os.environ, "REFOLD_HOME": str(self.home)}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True
        )
        within(30, lambda: (self.home / "server.json").exists() or self.process.poll() is not None)
        said = json.loads((self.home / "server.json").read_text())
        return Api(said["url"], (self.home / "token").read_text().strip(), timeout=30)

    def kill(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.log.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with contextlib.closing(Server(tmp_path / "home")) as server:
        yield server


def within(secs: float, test: Any) -> Any:
    end = time.monotonic() + secs
    while not (found := test()):
        assert time.monotonic() < end, f"not within {secs} s"
        time.sleep(0.01)
    return found


def test_a_line_that_was_cut_off_is_no_line(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text('\n{"n": 1}\n\n{"n": {"a": 1}\n{"n": 2}\n\n{"n": 3')
    assert [line["n"] for line in lines(ledger)] == [1, 2]


def step_of(line: dict[str, Any]) -> tuple[Any, ...]:
    return (line["run"], line["ref"], json.dumps(line["given"], sort_keys=True), line["lane"], line["occ"])


def is_gone(pid: int, born: str) -> bool:
    """Whether the process that had this pid, and began then, is gone or a zombie: a pid may be another's by now."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat[0] == "Z" or stat[19] != born


def acknowledged(api: Api, runs: list[str]) -> set[str]:
    """The rows that a client can read: their hash, occurrence and lane name a step."""
    return {
        json.dumps([run, row["step_ref"], row["input_hash"], row["occurrence"], row["lane"]])
        for run in runs
        for row in api.get(f"/v1/runs/{run}/replay")["items"]
    }


def test_nothing_that_passed_is_lost_or_run_again_at_any_kill(server: Server, tmp_path: Path) -> None:
    """R1, R2, R3, R3b over random kills."""
    seed = int(os.environ.get("REFOLD_SEED", str(secrets.randbelow(10**6))))
    luck, ledger = random.Random(seed), tmp_path / "ledger"
    sys.stderr.write(f"REFOLD_SEED={seed} REFOLD_KILLS={KILLS}\n")
    body = {"blueprint": {"kind": "inline", "value": blueprint(ledger)}, "init_ctx": {}, "detach": True}
    runs: list[str] = []
    live: list[str] = []  # what is done is judged at the end: a thousand Runs are not read again after every kill
    told = 0
    api = server.start()
    for kill in range(1, KILLS + 1):
        while sum(api.get(f"/v1/runs/{run}")["status"] == "running" for run in live[-RUNS:]) < RUNS:
            live.append(api.post("/v1/tasks", body)["run_id"])
            runs.append(live[-1])
        time.sleep(luck.uniform(0, 0.7))  # the moment of the kill is the test's input, not a wait for something
        seen = acknowledged(api, live)
        server.kill()
        noted = lines(ledger)[told:]
        left = {(pid, born) for line in noted for pid, born in line["alive"]}
        within(2, lambda left=left: all(is_gone(pid, born) for pid, born in left))
        told += len(noted)
        api = server.start()
        kept = acknowledged(api, live)
        assert seen <= kept, f"acknowledged rows lost: {seen - kept}"
        for run in [*live]:
            record = api.get(f"/v1/runs/{run}")
            assert record["status"] in ("done", "interrupted"), record
            if record["status"] == "done":
                live.remove(run)
                continue
            assert record["result_ref"] == {"error": "server restart"}
            with contextlib.suppress(Refusal):
                api.post(f"/v1/runs/{run}/resume")
        if kill % 10 == 0:
            sys.stderr.write(f"{kill} of {KILLS} kills, {len(runs)} Runs, {told} lines in the ledger\n")
    for run in runs:
        within(60, lambda run=run: api.get(f"/v1/runs/{run}")["status"] == "done")
    judge(api, runs, lines(ledger))


def judge(api: Api, runs: list[str], noted: list[dict[str, Any]]) -> None:
    """Every step ran once per activation that it was cut off in, under one key, and its Run came to the one ctx."""
    starts = Counter(step_of(line) for line in noted if line["event"] == "start")
    keys: dict[tuple[Any, ...], set[str]] = {}
    for line in noted:
        keys.setdefault(step_of(line), set()).add(line["key"])
    assert all(len(each) == 1 for each in keys.values()), "a step changed its idempotency key"
    for run in runs:
        record = api.get(f"/v1/runs/{run}")
        rows = api.get(f"/v1/runs/{run}/replay")["items"]
        assert len(rows) == STEPS * 3 + 1
        own = {step: count for step, count in starts.items() if step[0] == run}
        assert len(own) == STEPS * 3 + 1
        crashes = record["activation"] - 1
        assert all(count <= 1 + crashes for count in own.values()), "a step ran more often than it was cut off"
        cut_off = Counter(
            (entry["step_ref"], entry["input_hash"], entry["occurrence"], json.dumps(entry["lane"]))
            for entry in record["step_entries"]
            if entry["status"] is None
        )
        again = sum(count - 1 for count in own.values())
        assert again <= sum(cut_off.values()), "a step that was not cut off ran again"
        final = record["result_ref"]
        assert final["state"] == {"n": STEPS} and final["turn"] == STEPS
        assert final["last"] == {"n": STEPS + 1, "i": None}
        assert [lane["got"]["n"] for lane in final["lanes"]] == [STEPS] * 3


def test_fifty_racing_resumes_have_one_winner(server: Server, tmp_path: Path) -> None:
    """R4: one 202, and the status of the winner's Run in every 409."""
    from concurrent.futures import ThreadPoolExecutor

    hold = tmp_path / "hold"
    hold.touch()
    wait = "import os, sys, time\nwhile os.path.exists(sys.argv[1]): time.sleep(0.02)\nprint(1)"
    agent = {"name": "wait", "kind": "subprocess", "spec": {"program": sys.executable, "args": ["-c", wait, str(hold)]}}
    flow = {"kind": "step", "ref": "wait", "in": {"op": "lit", "value": 1}, "out": path("$.x")}
    value = {"id": "race", "flow": flow, "agents": [agent]}
    api = server.start()
    run = api.post("/v1/tasks", {"blueprint": {"kind": "inline", "value": value}, "detach": True})["run_id"]
    within(20, lambda: api.get(f"/v1/runs/{run}")["step_entries"])
    server.kill()
    api = server.start()

    def resume(_: int) -> int:
        try:
            api.post(f"/v1/runs/{run}/resume")
        except Refusal as no:
            assert no.data["status"] == "running"
            return no.status
        except Unreachable as gone:
            raise AssertionError(gone.message) from gone
        return 202

    with ThreadPoolExecutor(50) as pool:
        came = Counter(pool.map(resume, range(50)))
    assert came == {202: 1, 409: 49}
    hold.unlink()
    within(20, lambda: api.get(f"/v1/runs/{run}")["status"] == "done")
