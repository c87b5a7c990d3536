"""What a process says about itself: what a server's lines look like, and who hears nothing."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from refold import diagnostics
from refold.server.journal import JsonLines

Json = Any


@pytest.fixture
def lines() -> Any:
    """The lines that a server would say."""
    logger = logging.getLogger(diagnostics.ROOT)
    before = logger.handlers, logger.level, logger.propagate
    said = list[str]()
    JsonLines(said.append).attach()
    yield said
    logger.handlers, logger.level, logger.propagate = before


def test_an_event_is_one_line_of_json(lines: list[str]) -> None:
    diagnostics.Log("refold.engine").info("serving", url="http://x", store=None, odd={1}, text="two\nlines, 100 %s")
    (line,) = lines
    assert "\n" not in line
    said = json.loads(line)
    assert [*said] == ["url", "store", "odd", "text", "event", "level", "timestamp"]
    assert said | {"timestamp": ""} == {
        "url": "http://x",
        "store": None,
        "odd": "{1}",
        "text": "two\nlines, 100 %s",
        "event": "serving",
        "level": "info",
        "timestamp": "",
    }
    assert said["timestamp"].endswith("Z")


def test_a_handler_that_an_app_module_gives_to_the_root_is_not_told_as_well(lines: list[str]) -> None:
    heard = list[str]()
    handler = JsonLines(heard.append)
    logging.getLogger().addHandler(handler)
    diagnostics.Log("refold.engine").error("driver_fell")
    logging.getLogger().removeHandler(handler)
    assert (len(lines), heard) == (1, [])


def test_an_exception_is_told_with_its_traceback(lines: list[str]) -> None:
    try:
        raise ValueError("no such thing")
    except ValueError as error:
        diagnostics.Log("refold.rpc").error("call_failed", error=repr(error), exc_info=error)
    said = json.loads(lines[0])
    assert said["level"] == "error"
    assert "exc_info" not in said
    assert said["exception"].startswith("Traceback (most recent call last)")
    assert said["exception"].endswith("ValueError: no such thing")


def test_an_embedder_hears_warnings_and_its_stdout_is_its_own() -> None:
    code = """if True:
        from refold import diagnostics
        diagnostics.Log("refold.engine").info("run_resumable", run_id="R-1")
        diagnostics.Log("refold.engine").warning("request_not_told", run_id="R-1")
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "request_not_told\n")
