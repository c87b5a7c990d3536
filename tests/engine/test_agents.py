"""Agents that are functions, of an app and built in: what becomes of values, faults and cancellation."""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from engine_kit import Definition, Ledger, perform, until_async
from hypothesis import given
from hypothesis import strategies as st

from refold.engine.agents import Tools
from refold.flowir import Failed, Pass

pytestmark = pytest.mark.anyio

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def tools(**changes: Any) -> Tools:
    return Tools(reaper=Ledger(), **changes)


# -- python ------------------------------------------------------------------------------------------------------------


def python(name: str, **parameters: Any) -> Definition:
    return Definition("python", {"fn": name, **parameters})


async def call(function: Callable[..., Any], directive: Any = None, **changes: Any) -> Any:
    """The report of an agent that is `function`."""
    return await perform(python("module:function"), directive, tools(app={"module:function": function}, **changes))


async def test_plain_functions_run_beside_the_loop_and_async_ones_on_it() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")

    def plain(given: str) -> list[Any]:
        return [given, variable.get(), threading.get_ident()]

    async def coroutine(given: str) -> list[Any]:
        await asyncio.sleep(0)
        return plain(given)

    class Callable:
        async def __call__(self, given: str) -> list[Any]:
            return await coroutine(given)

    here = threading.get_ident()
    for function, inside in ((plain, False), (coroutine, True), (Callable(), True), (lambda x: coroutine(x), True)):
        given, seen, thread = (await call(function, "x")).outcome.value
        assert (given, seen, thread == here) == ("x", "here", inside)


async def test_more_functions_may_hang_than_a_pool_has_threads() -> None:
    crowd = threading.Barrier(40)
    reports = await asyncio.gather(*(call(lambda _: crowd.wait(10) * 0) for _ in range(40)))
    assert {report.outcome for report in reports} == {Pass(0)}


async def test_the_dispatch_ctx_is_for_functions_that_ask_for_it() -> None:
    ctx = {"run_id": "R-0123456789abcdef", "ctx": {}}

    async def optional(given: Any, ctx: Any = None) -> Any:
        return ctx

    def star(*given: Any) -> Any:
        return list(given)

    cases = [
        (lambda given: given, 1),
        (lambda given, context: context, ctx),
        (optional, ctx),
        (lambda given, verbose=False: verbose, False),
        (star, [1]),
        (lambda given, *more: list(more), []),
        (abs, 1),
        (bool, True),  # this one does not even tell what parameters it has
    ]
    for function, expected in cases:
        assert (await call(function, 1)).outcome == Pass(expected)


async def test_what_a_function_does_to_its_arguments_is_not_seen_outside() -> None:
    directive, ctx = {"list": [1]}, {"ctx": {"list": [1]}}
    kept: list[Any] = []

    def spoil(given: Any, ctx: Any) -> Any:
        given["list"].append(2)
        ctx["ctx"]["list"].append(2)
        kept.append(given)
        return given

    agent = python("m:spoil")
    report = await perform(agent, directive, tools(app={"m:spoil": spoil}), ctx=ctx)
    kept[0]["list"].append(3)
    assert (directive, ctx, report.outcome) == ({"list": [1]}, {"ctx": {"list": [1]}}, Pass({"list": [1, 2]}))


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no such thing"), "ValueError: no such thing"),
        (KeyError(), "KeyError"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (StopIteration(1), "RuntimeError: coroutine raised StopIteration"),
        (asyncio.CancelledError(), "CancelledError"),
        (TimeoutError("\ud800" + "x" * 200), "TimeoutError: \ufffd" + "x" * 99),
        (Unreadable(), "Unreadable: (its text cannot be read)"),
    ],
)
async def test_what_a_function_raises_fails_the_step(error: BaseException, text: str) -> None:
    def plain(_: Any) -> None:
        raise error

    async def coroutine(_: Any) -> None:
        await asyncio.sleep(0)
        raise error

    assert [(await call(function, tail_bytes=100)).outcome for function in (plain, coroutine)] == [Failed(text)] * 2


def loop() -> list[Any]:
    inside: list[Any] = []
    inside.append(inside)
    return inside


@pytest.mark.parametrize(
    ("value", "outcome", "mended"),
    [
        ((1, [2.5, (True, None)]), [1, [2.5, [True, None]]], False),
        ({"a": "\ud83d"}, {"a": "\ufffd"}, True),
        (("\ud83d\ude00", {"\udc00": 1}), ["😀", {"\ufffd": 1}], True),
        (2**64 + 1, 2**64 + 1, False),
        (math.nan, "output is not JSON: ", None),
        ([math.inf], "output is not JSON: ", None),
        ({1: 2}, "output is not JSON: ", None),
        ({1, 2}, "output is not JSON: ", None),
        (object(), "output is not JSON: ", None),
        (b"bytes", "output is not JSON: ", None),
        (10**64, "output is not JSON: ", None),
        (dict.fromkeys(["\ud800", "\ud801"]), "output is not JSON: two keys differ", None),
        (loop(), "output is not JSON: ", None),
        (["\ud800", loop()], "output is not JSON: ", None),
        ("é" * 500, "é" * 500, False),
        ("é" * 501, "output is larger than 1002 bytes", None),
    ],
)
async def test_what_a_function_returns_must_be_json(value: Any, outcome: Any, mended: bool | None) -> None:
    report = await call(lambda _: value, output_bytes=1002)
    if mended is None:
        assert isinstance(report.outcome, Failed)
        assert report.outcome.text.startswith(outcome)
    else:
        assert (report.outcome, report.mended) == (Pass(outcome), mended)


async def test_cancelling_an_async_function_stops_it() -> None:
    reached, stopped = asyncio.Event(), asyncio.Event()

    async def wait(_: Any) -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    task = asyncio.create_task(call(wait))
    await asyncio.wait_for(reached.wait(), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stopped.is_set()


async def test_a_cancelled_thread_is_not_waited_for_and_does_no_harm_when_it_ends() -> None:
    running, go_on = threading.Event(), threading.Event()

    def hang(_: Any) -> str:
        running.set()
        go_on.wait(10)
        return "too late"

    task = asyncio.create_task(call(hang))
    assert await until_async(running.is_set, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    threads = [thread for thread in threading.enumerate() if thread.name == "agent hang"]
    assert await until_async(lambda: not any(thread.is_alive() for thread in threads), 5)


# -- builtin -----------------------------------------------------------------------------------------------------------


def builtin(name: str, **parameters: Any) -> Definition:
    return python(f"builtin:{name}", **parameters)


@pytest.mark.parametrize(
    ("agent", "directive", "outcome"),
    [
        (builtin("echo"), {"a": [1]}, Pass({"a": [1]})),
        (builtin("identity"), "é", Pass({"by": "baseline-identity", "agent": "tester", "echoed": "é"})),
        (builtin("identity"), {"a": "é"}, Pass({"by": "baseline-identity", "agent": "tester", "echoed": '{"a":"é"}'})),
        (
            Definition("rust_fn", {"fn_id": "identity"}),
            1,
            Pass({"by": "baseline-identity", "agent": "tester", "echoed": "1"}),
        ),
        (builtin("sleep"), "in", Pass("in")),
        (builtin("sleep", secs=0.001, value=None), "in", Pass(None)),
        (builtin("sleep", secs=3600, value=1), {"secs": 0, "value": 2}, Pass(2)),
        (builtin("sleep", secs=-1), None, Failed("builtin:sleep: secs must be a number that is not negative, came -1")),
        (
            builtin("sleep", secs=True),
            None,
            Failed("builtin:sleep: secs must be a number that is not negative, came true"),
        ),
        (
            builtin("sleep"),
            {"secs": "1"},
            Failed('builtin:sleep: secs must be a number that is not negative, came "1"'),
        ),
        (builtin("fail"), None, Failed("told to fail")),
        (builtin("fail", message="a"), {"message": "b"}, Failed("b")),
        (builtin("fail", message=1), None, Failed("builtin:fail: message must be a string, came 1")),
        (builtin("stream", text="abc"), None, Pass("abc")),
        (builtin("stream"), "in", Pass("in")),
        (builtin("stream"), {"text": "abc", "unknown": 1}, Pass("abc")),
        (builtin("stream", chunk=0), "in", Failed("builtin:stream: chunk must be a whole number from 1, came 0")),
        (builtin("stream", chunk=1.5), "in", Failed("builtin:stream: chunk must be a whole number from 1, came 1.5")),
    ],
)
async def test_builtins(agent: Definition, directive: Any, outcome: Any) -> None:
    assert (await perform(agent, directive)).outcome == outcome


async def test_fail_fails_the_first_attempts_of_a_step_and_then_passes() -> None:
    agent = builtin("fail", message="not yet", times=2)
    outcomes = [(await perform(agent, "in", attempt=attempt)).outcome for attempt in (1, 2, 3, 4)]
    assert outcomes == [Failed("not yet"), Failed("not yet"), Pass("in"), Pass("in")]


async def test_sleep_takes_its_time_however_long() -> None:
    began = time.monotonic()
    await perform(builtin("sleep", secs=0.05))
    assert time.monotonic() - began >= 0.05
    task = asyncio.create_task(perform(builtin("sleep", secs=10**400)))
    assert not (await asyncio.wait([task], timeout=0.01))[0]
    task.cancel()


@given(text=texts, chunk=st.integers(1, 7))
async def test_a_stream_says_its_text_in_pieces(text: str, chunk: int) -> None:
    said: list[str] = []

    async def emit(piece: str) -> None:
        said.append(piece)

    report = await perform(builtin("stream", text=text, chunk=chunk), emit=emit)
    assert report.outcome == Pass("".join(said)) == Pass(text)
    assert all(len(piece) == chunk for piece in said[:-1])


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (Definition("lua", {}), "agents of kind 'lua' cannot be performed by this server"),
        (python("m:missing"), "no function 'm:missing': start the server with --app and the module that has it"),
        (builtin("missing"), "no built-in function 'missing': there are echo, identity, sleep, fail, stream"),
        (
            Definition("rust_fn", {"fn_id": "x"}),
            "no built-in function 'x': there are echo, identity, sleep, fail, stream",
        ),
    ],
)
async def test_an_agent_that_cannot_be_performed_fails_and_says_why(agent: Definition, reason: str) -> None:
    assert (await perform(agent)).outcome == Failed(reason)
