"""Agents of the kind `python`: functions of the app modules that the server was started with.

A function is called with the input and, if it has a second parameter that needs a value or is called `ctx`, with the
dispatch Ctx. `async` functions are awaited on the server's loop; the others run in a thread each. What it returns is
the Pass, what it raises is Failed. An `async` generator speaks: each text that it yields is streamed, and all of them
together are the Pass.

A thread cannot be stopped: when the work is cancelled, the function runs on and its answer is dropped. A function that
must stop is `async`, or a subprocess. Not here: loading modules (`service`), `builtin:` functions (`agents.builtin`).
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from refold.canonical import decode, encode
from refold.engine.agents.base import Assignment, Report, Tools
from refold.engine.agents.output import passed, raised

_MUTABLE: Final = frozenset({dict, list})
_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class FunctionAgent:
    """Calls one Python function per attempt."""

    def __init__(self, function: Callable[..., Any], tools: Tools) -> None:
        self._function = function
        self._tools = tools
        try:
            self._wants_ctx, self._speaks, self._is_async = _looked_at(function)
        except TypeError:  # an object without a hash
            self._wants_ctx, self._speaks, self._is_async = _look(function)

    async def perform(self, work: Assignment) -> Report:
        """Calls the function with copies of its arguments and reports what came of it."""
        arguments = [work.directive, work.ctx] if self._wants_ctx else [work.directive]
        if type(arguments[-1]) in _MUTABLE:
            # Copies, because the values belong to the flow: `input.pop("x")` would change what the next step reads.
            arguments = decode(encode(arguments))
        try:
            value = await (self._listen(work, arguments) if self._speaks else self._call(arguments))
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            return Report(raised(error, self._tools.tail_bytes))  # of an asyncio.Task of the function's own
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - its faults are outcomes
            return Report(raised(error, self._tools.tail_bytes))
        return passed(value, self._tools.output_bytes)

    async def _listen(self, work: Assignment, arguments: list[Any]) -> str:
        """Passes on what a generator yields, up to the size that an output may have."""
        said, left = [], self._tools.output_bytes
        async with contextlib.aclosing(self._function(*arguments)) as pieces:
            async for piece in pieces:
                if not isinstance(piece, str):
                    raise TypeError(f"an agent that streams yields text, not {type(piece).__name__}")
                said.append(piece)
                left -= len(piece)
                if left < 0:  # `passed` refuses it
                    break
                if work.emit is not None:
                    await work.emit(piece)
        return "".join(said)

    async def _call(self, arguments: list[Any]) -> Any:
        if self._is_async:
            return await self._function(*arguments)
        value = await _in_thread(self._function, arguments)
        return await value if inspect.isawaitable(value) else value


async def _in_thread(function: Callable[..., Any], arguments: list[Any]) -> Any:
    """Calls `function` in a thread of its own.

    Not in the loop's pool: a few functions that hang after their work was cancelled would fill it and stop all others,
    and the server's end would wait for them.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((value, error))

    def run() -> None:
        try:
            answer = context.run(function, *arguments), None
        except BaseException as error:  # noqa: BLE001 - nobody sees what ends in a thread; it is raised below
            answer = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the server has ended before the function
            loop.call_soon_threadsafe(settle, *answer)

    threading.Thread(target=run, name=f"agent {getattr(function, '__name__', '')}", daemon=True).start()
    value, error = await ended
    if error is not None:
        raise error
    return value


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _look(function: Callable[..., Any]) -> tuple[bool, bool, bool]:
    """Whether a function takes the ctx, whether it is a generator that speaks, and whether it is awaited."""
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  # an object with `async def __call__`
    )
    return _wants_ctx(function), inspect.isasyncgenfunction(function), is_async


_looked_at = lru_cache(maxsize=256)(_look)
"""Each Run makes agents of its own, and a look at a signature costs as much as half a step."""


def _wants_ctx(function: Callable[..., Any]) -> bool:
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.kind in _POSITIONAL]
    except (TypeError, ValueError):  # a function written in C that does not tell
        return False
    # `def f(text, verbose=False)` has a second parameter, and a truthy ctx is not what it is for.
    return len(parameters) > 1 and (parameters[1].default is inspect.Parameter.empty or parameters[1].name == "ctx")
