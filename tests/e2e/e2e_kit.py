"""What the tests with real processes share: a home and what is started on it, a program that obeys files, eyes for
processes.

Steps run a small program. It notes its start in a ledger, waits while a file of its name lies in the `hold` folder,
notes its end and answers. So a test says at which step a kill meets a Run, and an outside witness counts what ran.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from refold.client.api import Api
from refold.client.session import Wire

Json = Any
REFOLD: Final = [sys.executable, "-m", "refold"]
PATIENCE_SECS: Final = 30.0

WORKER: Final = r"""
import json, os, sys, time
folder, name, given = sys.argv[1], sys.argv[2], json.load(sys.stdin)
def note(event):
    line = dict(event=event, name=name, given=given, pid=os.getpid(), **{
        key.lower(): os.environ["REFOLD_" + key] for key in ("RUN_ID", "OCCURRENCE", "IDEMPOTENCY_KEY", "SERVER")})
    fd = os.open(folder + "/ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, ("\n" + json.dumps(line) + "\n").encode())  # a line of its own also behind one that was cut off
note("start")
while os.path.exists(folder + "/hold/" + name):
    time.sleep(0.01)
note("end")
print(json.dumps({"by": name, "got": given}))
"""


def within(what: str, test: Callable[[], Any], secs: float = PATIENCE_SECS) -> Any:
    """Polls until `test` answers something true, and returns that; fails when time is up."""
    end = time.monotonic() + secs
    while not (found := test()):
        assert time.monotonic() < end, f"not within {secs:g} s: {what}"
        time.sleep(0.01)
    return found


def lines(ledger: Path) -> list[dict[str, Any]]:
    """What the steps have noted, in their order.

    A line without its end is still being written, or its step was killed as it wrote it: a write that crosses a page is
    seen in two parts, and a kill may come between them. Such a step has not done yet what it was about to note.
    """
    *ended, _ = (ledger.read_text() if ledger.exists() else "").split("\n")
    noted = []
    for line in filter(None, ended):
        with contextlib.suppress(json.JSONDecodeError):
            noted.append(json.loads(line))
    return noted


def path(at: str) -> Json:
    return {"op": "path", "at": at}


def step(ref: str, given: Json = None, out: str | None = None) -> Json:
    expression = given if isinstance(given, dict) and "op" in given else {"op": "lit", "value": given}
    return {"kind": "step", "ref": ref, "in": expression, "out": path(out or f"$.{ref}")}


class Home:
    """One REFOLD_HOME, the processes on it, and the folder through which their steps are told to wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bench = folder.parent / "bench"
        (self.bench / "hold").mkdir(parents=True, exist_ok=True)
        self.environment: Mapping[str, str] = {**os.environ, "REFOLD_HOME": str(folder)}
        self._log = (folder.parent / "server.log").open("ab")
        self._started: list[subprocess.Popen[bytes]] = []
        self._wires: list[Wire] = []

    # -- processes ----------------------------------------------------------------------------------------------------

    def spawn(self, command: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        """Starts a process on this home, in a session of its own."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": self._log, "stderr": self._log} | how
        process = subprocess.Popen(command, env=self.environment, start_new_session=True, **streams)
        self._started.append(process)
        return process

    def serve(self, *flags: str, command: Sequence[str] = REFOLD, **how: Any) -> subprocess.Popen[bytes]:
        """Starts a server and returns once its door is open."""
        (self.folder / "server.json").unlink(missing_ok=True)
        process = self.spawn([*command, "serve", "--bind", "127.0.0.1:0", "--subprocess", "any", *flags], **how)
        within("server.json", lambda: self.server_file.exists() or process.poll() is not None)
        assert process.poll() is None, self.said()
        return process

    def run(self, *arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
        """Runs a command to its end."""
        return subprocess.run(
            [*REFOLD, *arguments],
            env=self.environment,
            input=input,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECS,
        )

    def close(self) -> None:
        """Kills what is left on this home, and every process that its servers' agents left."""
        for wire in self._wires:
            wire.close()
        for pid in carrying(f"REFOLD_HOME={self.folder}"):
            if b"reaper_process" not in Path(f"/proc/{pid}/cmdline").read_bytes():  # that one ends by itself, in order
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
        for server_id in {line["server"] for line in self.ledger()}:
            for pid in marked(server_id):
                os.kill(pid, signal.SIGKILL)
        self._log.close()

    # -- doors --------------------------------------------------------------------------------------------------------

    @property
    def server_file(self) -> Path:
        return self.folder / "server.json"

    @property
    def server(self) -> Json:
        """What server.json says."""
        return json.loads(self.server_file.read_text())

    @property
    def token(self) -> str:
        return (self.folder / "token").read_text().strip()

    @property
    def api(self) -> Api:
        """The HTTP door of whoever holds the store."""
        return Api(self.server["url"], self.token, timeout=PATIENCE_SECS)

    def wire(self) -> Wire:
        """A connection of the protocol to whoever holds the store."""
        self._wires.append(Wire(self.server["url"], self.token))
        return self._wires[-1]

    def said(self) -> str:
        """What the processes said."""
        return (self.folder.parent / "server.log").read_text()

    # -- work ---------------------------------------------------------------------------------------------------------

    def worker(self, name: str) -> Json:
        """An agent that runs the program under this name."""
        arguments = ["-I", "-S", "-c", WORKER, str(self.bench), name]
        return {"name": name, "kind": "subprocess", "spec": {"program": sys.executable, "args": arguments}}

    def chain(self, *names: str, id: str = "chain") -> Json:
        """A Blueprint of steps, each fed with what the one before it answered."""
        fed = ["$.input", *(f"$.{name}" for name in names)]
        steps = [step(name, path(at)) for name, at in zip(names, fed, strict=False)]
        agents = [self.worker(name) for name in names]
        return {"id": id, "flow": {"kind": "seq", "children": steps}, "agents": agents}

    def launch(self, blueprint: Json, **ctx: Json) -> str:
        """Launches a Blueprint, detached; the Run's id."""
        body = {"blueprint": {"kind": "inline", "value": blueprint}, "init_ctx": ctx, "detach": True}
        return self.api.post("/v1/tasks", body)["run_id"]

    def hold(self, *names: str) -> None:
        """Steps of these names wait from now on."""
        for name in names:
            (self.bench / "hold" / name).touch()

    def free(self, *names: str) -> None:
        """Steps of these names wait no more; without any, none does."""
        for name in names or [file.name for file in (self.bench / "hold").iterdir()]:
            (self.bench / "hold" / name).unlink()

    def ledger(self, event: str = "start") -> list[Json]:
        """What the programs noted, in order."""
        return [line for line in lines(self.bench / "ledger") if line["event"] == event]

    def began(self, name: str, times: int = 1) -> None:
        """Waits until the program ran under this name so often."""
        within(f"{times} start(s) of {name}", lambda: self.ran().count(name) >= times)

    def ran(self) -> list[str]:
        """The names under which the program was started, in order."""
        return [line["name"] for line in self.ledger()]

    def reached(self, run_id: str, status: str) -> Json:
        """The Run once it has this status."""
        found = within(
            f"{run_id} {status}",
            lambda: (run := self.api.get(f"/v1/runs/{run_id}"))["status"] not in ("pending", "running") and run,
        )
        assert found["status"] == status, found
        return found

    def copy(self, folder: Path) -> Home:
        """Another home with the same content. Nobody may hold the store."""
        shutil.copytree(self.folder, folder)
        twin = Home(folder)
        twin.server_file.unlink(missing_ok=True)
        return twin


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9, and the end of it."""
    process.kill()
    process.wait(PATIENCE_SECS)


def marked(server_id: str) -> set[int]:
    """The processes alive that this server's agents are, or have started."""
    return carrying(f"REFOLD_SERVER={server_id}")


def carrying(entry: str) -> set[int]:
    """The processes alive that have this entry in their environment."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if entry.encode() in (process / "environ").read_bytes().split(b"\0"):
                found.add(int(process.name))
        except OSError:
            continue  # gone meanwhile, a zombie, or not ours
    return found


def items_of(snapshot: Json) -> Mapping[str, Json]:
    """The items of a snapshot by their ids."""
    return {item["itemId"]: item for item in snapshot["state"]["items"]}
