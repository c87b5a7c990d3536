"""What a process loads before it does anything: the time from its start to its work is mostly that of its imports.

Seconds are measured by `scripts/bench`; here is what does not depend on the machine. Each process below is asked at its
end what it has loaded. A name that appears in it was imported at the top of a module where only some need it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

from refold.server.lock import StoreLock

TALK: Final = "import sys, json; sys.stderr.write(json.dumps(sorted(sys.modules)))"
DOORS: Final = {"uvicorn", "starlette", "muse_code_msp", "websockets", "prometheus_client"}
ENGINE: Final = {"asyncio", "apsw", "refold.engine", "refold.session", "refold.service.app", "refold.store", "yaml"}
TERMINAL: Final = {"cyclopts", "rich", "pygments", "attr", "structlog"}

PROCESSES: Final[dict[str, tuple[str, set[str]]]] = {
    "an App in process": ("import refold.service.app", DOORS | TERMINAL | {"yaml", "refold.server", "refold.cli"}),
    "a server": ("import refold.server.host", TERMINAL | {"yaml", "prometheus_client", "refold.cli"}),
    "refold --help": ("from refold.cli.main import run; run(['--help'])", DOORS | ENGINE | {"msgspec", "ssl"}),
    "refold ls, of a server": ("from refold.cli.main import run; assert run(['ls']) == 0", DOORS | ENGINE),
    "refold export, of a server": (
        "from refold.cli.main import run; assert run(['export', 'R-0123456789abcdef']) == 0",
        DOORS | ENGINE,
    ),
    "a flow in Python": ("from refold import seq, step", DOORS | ENGINE | TERMINAL),
}


class Answer(BaseHTTPRequestHandler):
    """A server that has no Runs."""

    def do_GET(self) -> None:
        body = json.dumps({"items": [], "next_cursor": None}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing is said."""


@pytest.fixture
def home(tmp_path: Path) -> Any:
    """A home whose store somebody holds."""
    (tmp_path / "store").mkdir()
    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    lock = StoreLock(tmp_path / "store" / "refold.db")
    lock.acquire()
    lock.publish(f"http://127.0.0.1:{server.server_port}")
    yield tmp_path
    lock.release()
    server.shutdown()
    thread.join()
    server.server_close()


def loaded(code: str, home: Path) -> set[str]:
    """The modules of a process that has run `code`."""
    environment = {**os.environ, "REFOLD_HOME": str(home)}
    command = [sys.executable, "-c", f"{code}\n{TALK}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr))


@pytest.mark.parametrize("process", PROCESSES)
def test_a_process_loads_what_it_needs(process: str, home: Path) -> None:
    code, absent = PROCESSES[process]
    found = loaded(code, home) & absent
    assert not found, f"{process} loads {sorted(found)}"


def test_what_must_be_absent_is_there_to_be_loaded() -> None:
    """A name that nobody could import any more would forbid nothing."""
    names = set().union(*(absent for _, absent in PROCESSES.values()))
    assert not [name for name in names if importlib.util.find_spec(name) is None]
