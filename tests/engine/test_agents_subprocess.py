"""Agents that are programs: their input and output, their environment, their process group, their end.

Everything here runs on both event loops: on which one a server runs must not be felt.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from engine_kit import Definition, Ledger, is_alive, perform, shell, until, until_async
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.canonical import digest
from refold.engine.agents import Tools, allowed
from refold.engine.agents.output import mend, printed, tail
from refold.flowir import Blocked, Failed, Pass

pytestmark = pytest.mark.anyio

PYTHON = [sys.executable, "-I", "-S", "-c"]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
numbers = st.integers(-(10**60), 10**60) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=10)


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": request.param}


def program(script: str, **spec: Any) -> Definition:
    """An agent that runs a Python script."""
    return Definition("subprocess", {"program": PYTHON[0], "args": [*PYTHON[1:], script], **spec})


def tools(**changes: Any) -> Tools:
    return Tools(reaper=Ledger(), **changes)


# -- subprocess: what goes in and what comes out -----------------------------------------------------------------------


@given(directive=values)
@settings(max_examples=50)
async def test_a_program_that_prints_its_input_passes_it(directive: Any) -> None:
    report = await perform(shell("cat"), directive)
    assert report.outcome == Pass(directive)
    assert repr(report.outcome) == repr(Pass(directive))  # 1 stays 1 and True stays True
    assert not report.mended


async def test_the_directive_is_the_last_argument_without_stdin() -> None:
    agent = shell('printf %s "$1"; cat', args=["-c", 'printf %s "$1"; cat', "sh"], use_stdin=False)
    assert (await perform(agent, {"a": "ä"})).outcome == Pass({"a": "ä"})


@pytest.mark.parametrize(("script", "size"), [("cat", 3_000_000), ("exec true", 0)])
async def test_a_directive_larger_than_a_pipe_goes_in_and_may_be_ignored(script: str, size: int) -> None:
    report = await perform(shell(script), "x" * 3_000_000)
    assert isinstance(report.outcome, Pass)
    assert len(report.outcome.value) == size


@pytest.mark.parametrize(
    ("data", "value", "mended"),
    [
        (b'{"a": [1, 2.5]}\n', {"a": [1, 2.5]}, False),
        (b"  18446744073709551617 ", 2**64 + 1, False),
        (b'"text"', "text", False),
        (b"null", None, False),
        (b"", "", False),
        (b"hello\n", "hello\n", False),
        (b"NaN", "NaN", False),
        (b"[Infinity]", "[Infinity]", False),
        (b"1e400", "1e400", False),
        (b'{"a":1,"a":2}', '{"a":1,"a":2}', False),
        (b'{"a":1} {"a":2}', '{"a":1} {"a":2}', False),
        (b"[" * 65 + b"]" * 65, "[" * 65 + "]" * 65, False),
        (b"\xff!\n", "\ufffd!\n", True),
        (b'{"a": "\xff"}', {"a": "\ufffd"}, True),
        (rb'{"a": "\ud83d"}', {"a": "\ufffd"}, True),
        (rb'["\ud83d\ude00", "\\ud83d"]', ["😀", r"\ud83d"], False),
        (rb'{"\ud800":1,"\ud801":2}', r'{"\ud800":1,"\ud801":2}', False),
        (b'["\\ud83d", ' + b"[" * 64 + b"]" * 65, '["\\ud83d", ' + "[" * 64 + "]" * 65, False),
    ],
)
def test_what_a_program_prints_is_json_if_all_of_it_is(data: bytes, value: Any, mended: bool) -> None:
    report = printed(data)
    assert (report.outcome, report.mended) == (Pass(value), mended)


async def test_bytes_that_are_no_text_are_mended_in_every_outcome() -> None:
    passed = await perform(shell(r"printf '\377'"))
    assert (passed.outcome, passed.mended) == (Pass("\ufffd"), True)
    for stream in ("1", "2"):
        refused = await perform(shell(rf"printf '\377' >&{stream}; exit 1"))
        assert isinstance(refused.outcome, Blocked)
        assert "\ufffd" in refused.outcome.value.values()
        assert refused.mended


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("kill -9 $$", -signal.SIGKILL), ("kill -15 $$", -signal.SIGTERM)]
)
async def test_another_exit_than_0_is_a_refusal_with_what_was_said(script: str, code: int) -> None:
    report = await perform(shell(f"echo '[1]'; echo sorry >&2; {script}"))
    assert report.outcome == Blocked({"exit_code": code, "stdout": "[1]\n", "stderr": "sorry\n"})
    assert not report.mended


async def test_a_refusal_shows_the_ends_of_long_texts() -> None:
    script = "import os; [os.write(n, b'x' * 100000 + 'é'.encode() * 50) for n in (1, 2)]; raise SystemExit(1)"
    report = await perform(program(script), tools=tools(tail_bytes=99))
    assert report.outcome == Blocked({"exit_code": 1, "stdout": "é" * 49, "stderr": "é" * 49})
    assert not report.mended


@given(text=texts, limit=st.integers(1, 30))
def test_a_tail_is_a_whole_number_of_characters(text: str, limit: int) -> None:
    end = tail(text.encode(), limit).decode()
    assert text.endswith(end)
    assert len(end.encode()) <= limit
    assert len(text) == len(end) or len(text[-len(end) - 1 :].encode()) > limit


@given(text=st.text())
def test_mended_text_can_be_encoded_and_keeps_what_was_sound(text: str) -> None:
    assert mend(text).encode().decode() == mend(text)
    sound = "".join(character for character in text if not "\ud800" <= character <= "\udfff")
    assert mend(sound) == sound


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({"program": "no-such-program"}, "cannot start 'no-such-program': No such file or directory: no-such-program"),
        ({"program": "/etc/passwd"}, "cannot start '/etc/passwd': Permission denied: /etc/passwd"),
        ({"program": "sh", "cwd": "/no/such/place"}, "cannot start 'sh': No such file or directory: /no/such/place"),
        ({"program": "sh", "args": ["\0"]}, "cannot start 'sh': embedded null byte"),
    ],
)
async def test_a_program_that_cannot_be_started_fails(spec: dict[str, Any], reason: str) -> None:
    assert (await perform(Definition("subprocess", spec))).outcome == Failed(reason)


async def test_more_output_than_allowed_fails_and_ends_the_program() -> None:
    ledger = Ledger()
    report = await perform(shell("exec yes"), tools=Tools(reaper=ledger, output_bytes=1000))
    assert report.outcome == Failed("output is larger than 1000 bytes")
    assert not is_alive(ledger.told[0][1])


@pytest.mark.parametrize(("size", "kind"), [(1000, Pass), (1001, Failed)])
async def test_the_limit_itself_is_allowed(size: int, kind: type) -> None:
    report = await perform(shell(f"head -c {size} /dev/zero"), tools=tools(output_bytes=1000))
    assert type(report.outcome) is kind


async def test_a_program_may_talk_on_stderr_without_end() -> None:
    script = "head -c 5000000 /dev/zero >&2; echo fine"
    assert (await perform(shell(script), tools=tools(output_bytes=1000))).outcome == Pass("fine\n")


async def test_cwd_is_where_the_program_runs(tmp_path: Path) -> None:
    assert (await perform(shell("pwd -P", cwd=str(tmp_path)))).outcome == Pass(f"{tmp_path.resolve()}\n")


# -- subprocess: its environment ---------------------------------------------------------------------------------------


async def test_a_program_learns_which_attempt_it_is() -> None:
    script = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('REFOLD_')}))"
    known = {"run_id": "R-1", "step_id": "ST-2", "step_ref": "writer", "generation": 2, "input_hash": "h"}
    counted = {"attempt": 3, "occurrence": 4, "epoch": 5, "lane": ((7, 2), (0, 1))}
    agent = program(script, env={"REFOLD_SERVER": "forged", "REFOLD_MINE": "stays"})
    assert (await perform(agent, **known, **counted)).outcome == Pass(
        {
            "REFOLD_RUN_ID": "R-1",
            "REFOLD_STEP_ID": "ST-2",
            "REFOLD_STEP_REF": "writer",
            "REFOLD_IDEMPOTENCY_KEY": digest(["R-1", 2, "writer", "h", 4]),
            "REFOLD_ATTEMPT": "3",
            "REFOLD_OCCURRENCE": "4",
            "REFOLD_EPOCH": "5",
            "REFOLD_LANE": "[2,1]",
            "REFOLD_SERVER": "server-under-test",
            "REFOLD_MINE": "stays",
        }
    )


async def test_the_lane_is_an_empty_list_outside_fanouts() -> None:
    assert (await perform(shell('printf %s "$REFOLD_LANE"'))).outcome == Pass([])


async def test_a_program_sees_the_allowed_part_of_the_environment_and_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_SECRET_KEY", "hush")
    monkeypatch.setenv("API_TOKEN", "hush")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("USER", "server")
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    report = await perform(program(script, env={"MY_VARIABLE": "mine", "USER": "agent"}))
    assert isinstance(report.outcome, Pass)
    seen = report.outcome.value
    assert (seen["MY_VARIABLE"], seen["USER"], seen["LC_TIME"]) == ("mine", "agent", "C")
    assert seen["PATH"] == os.environ["PATH"]
    assert "hush" not in seen.values()


def test_the_allowed_part_of_an_environment_is_a_closed_list() -> None:
    names = ["PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "TERM", "VIRTUAL_ENV"]
    others = ["PYTHONPATH", "REFOLD_SERVER", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD", "XLC_ALL", "path"]
    assert list(allowed(dict.fromkeys(names + others, ""))) == names


# -- subprocess: its group ---------------------------------------------------------------------------------------------


async def test_a_program_has_its_own_session_and_group() -> None:
    report = await perform(program("import os; print([os.getpid(), os.getsid(0), os.getpgid(0)])"))
    assert isinstance(report.outcome, Pass)
    assert len(set(report.outcome.value)) == 1


async def test_the_group_is_recorded_until_the_leader_is_about_to_be_reaped() -> None:
    states: list[tuple[str, bool, bool]] = []

    class Watching(Ledger):
        def register(self, pgid: int) -> None:
            states.append(("+", is_alive(pgid), Path(f"/proc/{pgid}").exists()))

        def unregister(self, pgid: int) -> None:
            states.append(("-", is_alive(pgid), Path(f"/proc/{pgid}").exists()))

    await perform(shell("sleep 0.05"), tools=Tools(reaper=Watching()))
    # Not reaped yet: a number that the kernel has given to somebody else must not be on the record.
    assert states == [("+", True, True), ("-", False, True)]


async def test_a_grandchild_that_outlives_its_agent_is_killed_and_does_not_hang_the_step() -> None:
    report = await perform(shell("sleep 60 & echo $!"), tools=tools(drain_secs=0.05))
    assert isinstance(report.outcome, Pass)
    assert until(lambda: not is_alive(report.outcome.value), 5)


async def test_what_a_grandchild_says_a_moment_after_the_agents_exit_still_counts() -> None:
    report = await perform(shell("(sleep 0.1; echo late) & echo early"), tools=tools(drain_secs=10))
    assert report.outcome == Pass("early\nlate\n")


async def test_a_grandchild_in_a_session_of_its_own_does_not_hang_the_step(tmp_path: Path) -> None:
    script = """
import os, time
if os.fork() == 0:
    os.setsid()
    open("escaped", "w").write(str(os.getpid()))
    time.sleep(60)
while not os.path.exists("escaped") or not open("escaped").read():
    time.sleep(0.005)
os.write(1, b"done")
"""
    for _ in range(2):  # the second one gets the file descriptors of the first
        report = await perform(program(script, cwd=str(tmp_path)), tools=tools(drain_secs=0.05))
        escaped = int((tmp_path / "escaped").read_text())
        assert is_alive(escaped)
        os.kill(escaped, signal.SIGKILL)
        (tmp_path / "escaped").unlink()
        assert report.outcome == Pass("done")


async def test_what_was_said_before_the_exit_counts_also_when_the_loop_learns_all_of_it_at_once() -> None:
    ledger = Ledger()
    script = """
import fcntl, os, time
fcntl.fcntl(1, 1031, 1 << 20)  # F_SETPIPE_SZ: a pipe as large as they get
os.write(1, b"x" * (1 << 20))
if os.fork() == 0:
    time.sleep(60)
"""
    task = asyncio.create_task(perform(program(script), tools=Tools(reaper=ledger, drain_secs=0)))
    await asyncio.sleep(0)
    assert until(lambda: not is_alive(ledger.told[0][1]), 5)  # the loop stands still meanwhile
    assert (await task).outcome == Pass("x" * (1 << 20))


async def test_programs_leave_no_file_descriptors() -> None:
    await perform(shell("cat"))
    before = len(list(Path("/proc/self/fd").iterdir()))
    await asyncio.gather(*(perform(shell("cat"), n) for n in range(20)))
    await perform(Definition("subprocess", {"program": "no-such-program"}))
    await perform(shell("exec yes"), tools=tools(output_bytes=10))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_child_that_cannot_be_recorded_is_not_left_running() -> None:
    class Broken(Ledger):
        def register(self, pgid: int) -> None:
            super().register(pgid)
            raise ValueError("the reaper is closed")

    broken = Broken()
    report = await perform(shell("exec sleep 60"), tools=Tools(reaper=broken))
    assert report.outcome == Failed("cannot start 'sh': the reaper is closed")
    assert not Path(f"/proc/{broken.told[0][1]}").exists()


# -- cancellation ------------------------------------------------------------------------------------------------------


async def started(agent: Definition, ledger: Ledger, place: Path, **how: Any) -> asyncio.Task[Any]:
    """The task of an agent that has told that it runs, by a file `ready` in `place`."""
    task = asyncio.create_task(perform(agent, tools=Tools(reaper=ledger, **how)))
    assert await until_async((place / "ready").exists, 10)
    return task


async def test_cancelling_ends_the_whole_group_before_it_completes(tmp_path: Path) -> None:
    ledger = Ledger()
    task = await started(
        shell("sleep 60 & sleep 60 & echo $! > pid; mv pid ready; wait", cwd=str(tmp_path)), ledger, tmp_path
    )
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    leader, grandchild = ledger.told[0][1], int((tmp_path / "ready").read_text())
    assert not Path(f"/proc/{leader}").exists()
    assert until(lambda: not is_alive(grandchild), 1)
    assert ledger.told == [("+", leader), ("-", leader)]


async def test_cancelling_lets_a_program_clean_up(tmp_path: Path) -> None:
    script = "trap 'touch cleaned; exit' TERM; touch ready; while :; do sleep 0.01; done"
    task = await started(shell(script, cwd=str(tmp_path)), Ledger(), tmp_path, grace_secs=30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (tmp_path / "cleaned").exists()


async def test_a_program_that_ignores_the_signal_is_killed_however_often_its_work_is_cancelled(tmp_path: Path) -> None:
    ledger = Ledger()
    script = "trap '' TERM; touch ready; while :; do sleep 0.01; done"
    task = await started(shell(script, cwd=str(tmp_path)), ledger, tmp_path, grace_secs=0.2)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0.01)
    assert task.cancelled()
    assert not Path(f"/proc/{ledger.told[0][1]}").exists()


async def test_a_cancellation_while_a_grandchild_is_waited_for_is_not_lost(tmp_path: Path) -> None:
    ledger = Ledger()
    task = await started(shell("touch ready; sleep 60 &", cwd=str(tmp_path)), ledger, tmp_path, drain_secs=60)
    assert await until_async(lambda: not is_alive(ledger.told[0][1]), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
