"""The notification hook as a whole server has it: from its configuration to a program that runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from refold.canonical import decode
from refold.errors import ConfigInvalid
from refold.server.config import Config, Home, load
from refold.server.host import hold
from refold.server.settings import settings
from refold.service.tasks import NewTask

pytestmark = pytest.mark.anyio

APPENDS = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"
ASKS = {"kind": "approve", "action": {"op": "lit", "value": "deploy"}, "out": {"op": "path", "at": "$.ok"}}


async def lines(file: Path, count: int) -> list[str]:
    """The lines of a file once there are so many."""
    async with asyncio.timeout(20):
        while not file.exists() or file.read_text().count("\n") < count:
            await asyncio.sleep(0.005)
    return file.read_text().splitlines()


async def test_a_program_is_run_once_per_request_over_restarts(tmp_path: Path) -> None:
    told, home = tmp_path / "told", Home(tmp_path / "home")
    config = Config(
        bind="127.0.0.1:0", store=str(tmp_path / "s.db"), notify_command=[sys.executable, "-c", APPENDS, str(told)]
    )
    blueprint = {"kind": "inline", "value": {"id": "asks", "flow": ASKS, "agents": []}}
    async with hold(config, home) as host:
        run = await host.app.tasks.launch(NewTask(blueprint=blueprint, init_ctx={}))
        (line,) = await lines(told, 1)
        said = decode(line)
        assert said["request"]["run_id"] == run.run_id
        assert said["url"] == f"{host.url}/v1/requests/{said['request']['request_id']}"
        while not host.app.metrics.requests_told["ok"]:
            await asyncio.sleep(0.005)
    async with hold(config, home) as host:
        await host.app.runs.resume(run.run_id)
        await host.app.tasks.launch(NewTask(blueprint=blueprint, init_ctx={}))
        first, second = await lines(told, 2)
        ids = [decode(each)["request"]["request_id"] for each in (first, second)]
        assert len(set(ids)) == 2, "the one that the resume asks again is not told again"


def test_the_file_names_a_hook_and_flags_go_before_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('notify_command = ["a", "-b"]\nnotify_url = "https://a.example/x"\n')
    home = Home(tmp_path)
    told = settings(load(home), home)
    assert (told.notify_command, told.notify_url) == (("a", "-b"), "https://a.example/x")
    told = settings(load(home, {"notify_command": ["c"], "notify_url": "http://localhost/"}), home)
    assert (told.notify_command, told.notify_url) == (("c",), "http://localhost/")


def test_an_address_that_would_cross_the_network_in_the_clear_ends_the_start(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with pytest.raises(ConfigInvalid, match="plain http"):
        settings(load(home, {"notify_url": "http://a.example/"}), home)
