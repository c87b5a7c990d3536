"""kill -9 while agents are being born: nothing of them survives the server, and the check would see it if it did."""

from __future__ import annotations

import os
import random
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest
from e2e_kit import Home, Json, kill, marked, within

pytestmark = pytest.mark.e2e

AGENTS = 50
GONE_SECS = 2.0

BROOD = 'printf \'{"event":"start","name":"brood","server":"%s"}\\n\' "$REFOLD_SERVER" >> "$0"; sleep 600 & sleep 600'
"""An agent that notes whose it is, and has a child."""

NO_REAPER = """
import refold.engine.reaper, sys
refold.engine.reaper._SCRIPT = sys.argv.pop(1)
from refold.cli.main import main
main()
"""


def brood(home: Home) -> Json:
    """A Blueprint that starts all its agents at once."""
    agent = {
        "name": "brood",
        "kind": "subprocess",
        "spec": {"program": "sh", "args": ["-c", BROOD, str(home.bench / "ledger")]},
    }
    fan = {
        "kind": "fanout",
        "items": {"op": "lit", "value": list(range(AGENTS))},
        "bind": {"op": "path", "at": "$.i"},
        "join": "all",
        "out": {"op": "path", "at": "$.out"},
        "body": {"kind": "step", "ref": "brood", "in": {"op": "lit", "value": 1}, "out": {"op": "path", "at": "$.x"}},
    }
    return {"id": "brood", "flow": fan, "agents": [agent]}


def killed_while_they_start(home: Home, born: int, **how: list[str]) -> str:
    """A server that is killed when `born` of its agents have come to life; its id."""
    home.folder.mkdir(mode=0o700, exist_ok=True)
    (home.folder / "config.toml").write_text(f"max_concurrent_steps = {AGENTS}\nmax_subprocesses = {AGENTS}\n")
    server = home.serve(**how)
    home.launch(brood(home))
    within(f"{born} agents", lambda: len(home.ledger()) >= born)
    kill(server)
    return home.ledger()[0]["server"]


@pytest.mark.parametrize("moment", ["at the first", "in between", "at the last"])
def test_no_agent_survives_its_server(home: Home, moment: str) -> None:
    seed = int(os.environ.get("REFOLD_SEED", str(secrets.randbelow(10**6))))
    sys.stderr.write(f"REFOLD_SEED={seed}\n")
    born = {"at the first": 1, "in between": random.Random(seed).randrange(2, AGENTS - 5), "at the last": AGENTS}[
        moment
    ]
    server_id = killed_while_they_start(home, born)
    within("nothing of the killed server is left", lambda: not marked(server_id), GONE_SECS)


def test_without_a_reaper_the_check_finds_what_is_left(home: Home, tmp_path: Path) -> None:
    idle = tmp_path / "idle.py"
    idle.write_text("import sys\nsys.stdin.read()\n")
    server_id = killed_while_they_start(home, AGENTS, command=[sys.executable, "-c", NO_REAPER, str(idle)])
    end = time.monotonic() + GONE_SECS
    while time.monotonic() < end:
        assert len(marked(server_id)) >= 2 * AGENTS
    for pid in marked(server_id):
        os.kill(pid, signal.SIGKILL)
    within("they are gone", lambda: not marked(server_id))
