"""Agents of the kind `subprocess`: a program that is given the directive as JSON and prints its answer.

| what the program does | outcome |
|---|---|
| exits 0 | Pass of its stdout: the JSON value if all of it is one, else the text exactly as printed |
| exits otherwise, or dies by a signal | Blocked `{exit_code, stdout, stderr}` with the ends of both |
| cannot be started, or prints too much | Failed |

Its environment is an allow-list of the server's, then `env` of its spec, then the `REFOLD_` variables: these name the
attempt, and the server it must not outlive (`engine.reaper`). Source of the rule: design §4, mse 3.4.
Not here: processes as such (`agents.process`), which programs a server runs at all (`service`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from refold.canonical import encode
from refold.engine.agents.base import Assignment, Definition, Report, Tools
from refold.engine.agents.output import decoded, printed, tail, too_large
from refold.engine.agents.process import Process
from refold.flowir import Blocked, Failed
from refold.records import Json


class SubprocessAgent:
    """Runs `spec` `{program, args?, use_stdin?, env?, cwd?}` once per attempt, in a process group of its own.

    Cancelling the work ends the group before the cancellation completes.
    """

    def __init__(self, agent: Definition, tools: Tools) -> None:
        self._spec = agent.spec
        self._tools = tools

    async def perform(self, work: Assignment) -> Report:
        """Runs the program to its end and reports what that means."""
        spec, directive = self._spec, encode(work.directive)
        argv, on_stdin = [spec["program"], *(spec.get("args") or ())], spec.get("use_stdin") is not False
        return await run(
            work,
            self._tools,
            argv if on_stdin else [*argv, directive],
            stdin=directive if on_stdin else None,
            env=spec.get("env") or {},
            cwd=spec.get("cwd"),
            read=printed,
        )


async def run(
    work: Assignment,
    tools: Tools,
    argv: Sequence[str],
    *,
    stdin: str | None,
    env: Mapping[str, str],
    cwd: str | None,
    read: Callable[[bytes], Report],
) -> Report:
    """Runs a program for an attempt, to its end; `read` says what its output means if it ended well."""
    try:
        process = Process(
            argv,
            stdin=None if stdin is None else stdin.encode(),
            env={**tools.environment, **env, **_variables(work, tools.reaper.server_id)},
            cwd=cwd,
            reaper=tools.reaper,
            output_bytes=tools.output_bytes,
            tail_bytes=tools.tail_bytes,
        )
    except (OSError, ValueError) as error:
        return Report(Failed(f"cannot start {argv[0]!r}: {_reason(error)}"))
    try:
        await process.finished(tools.drain_secs)
    finally:
        await process.stop(tools.grace_secs)
    return _refusal(process, tools) or read(bytes(process.stdout))


def _variables(work: Assignment, server_id: str) -> Mapping[str, str]:
    """The variables that tell a program which attempt it is. `REFOLD_LANE` holds the indexes alone, such as `[2]`."""
    return {
        "REFOLD_RUN_ID": work.run_id,
        "REFOLD_STEP_ID": work.step_id,
        "REFOLD_STEP_REF": work.step_ref,
        "REFOLD_ATTEMPT": str(work.attempt),
        "REFOLD_OCCURRENCE": str(work.occurrence),
        "REFOLD_LANE": encode([index for _, index in work.lane]),
        "REFOLD_EPOCH": str(work.epoch),
        "REFOLD_IDEMPOTENCY_KEY": work.idempotency_key,
        "REFOLD_SERVER": server_id,
    }


def _refusal(process: Process, tools: Tools) -> Report | None:
    """What a program that did not end well means; None for one that did."""
    if process.excessive:
        return Report(too_large(tools.output_bytes))
    if process.exit_code == 0:
        return None
    stdout, bad_stdout = decoded(tail(process.stdout, tools.tail_bytes))
    stderr, bad_stderr = decoded(tail(process.stderr, tools.tail_bytes))
    refusal: dict[str, Json] = {"exit_code": process.exit_code, "stdout": stdout, "stderr": stderr}
    return Report(Blocked(refusal), bad_stdout or bad_stderr, cause="error")


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    return str(error)
