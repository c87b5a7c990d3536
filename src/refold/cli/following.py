"""Waiting for a Run from the command line: until it ends, or until it needs a person.

Not here: starting it (`runs`), answering what it asks (`requests`), its events as they come (`watching`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from refold.canonical import encode
from refold.cli.doors import give, say
from refold.client.api import Api

Json = Any

EXIT: Final[Mapping[str, int]] = {"done": 0, "failed": 1, "cancelled": 1, "interrupted": 4}
WAITING: Final = 3
"""The exit code of a command whose Run waits for a person."""

POLL_SECS: Final = 0.05
ACTION_CHARS: Final = 400
"""How much of an action a terminal is shown; `--json` gives the whole."""


def follow(api: Api, run_id: str, *, as_json: bool, wait: bool = False) -> int:
    """Waits for the Run's result, prints it, and returns the exit code.

    A Run that waits for a person is shown with what it asks, and left; with `wait` it is waited for all the same.
    """
    seen = -1
    while (record := api.get(f"/v1/runs/{run_id}"))["status"] in ("running", "pending"):
        if record["waiting_on"] in ("approval", "input") and not wait:
            return _needs_a_person(api, record, as_json=as_json)
        ended = sum(step["ended_at"] is not None for step in record["step_entries"])
        if sys.stderr.isatty() and ended != seen:
            sys.stderr.write(f"\r{run_id}  {record['status']}  {ended} steps ended ")
            sys.stderr.flush()
        seen = ended
        time.sleep(POLL_SECS)
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    code = EXIT[record["status"]]
    if as_json:
        give({"run_id": run_id, "task_id": record["task_id"], "status": record["status"], **_ending(record)})
    else:
        give(record["result_ref"])
    if code:
        say(f"{run_id} {record['status']}: {record['result_ref']}")
    if record["status"] == "interrupted":
        say(f"go on with: refold resume {run_id}")
    return code


def show_request(request: Json) -> None:
    """Shows a person what is asked, and how to answer."""
    say(f"{request['request_id']}  {request['kind']}  {request['title'] or request['step_ref']}")
    action = encode(request["action"])
    say(f"  {action[:ACTION_CHARS]}{' …' if len(action) > ACTION_CHARS else ''}")
    for choice in request["choices"]:
        say(f"  {choice['id']}: {choice['label']} ({choice['decision']})")
    for question in request["questions"]:
        say(f"  {question['question']}  {' | '.join(option['label'] for option in question['options'])}")
    if request["expires_at"] is not None:
        say(f"  until {request['expires_at']}")
    say(f"answer with: {_HOW[request['kind']].format(id=request['request_id'])}")


_HOW: Final[Mapping[str, str]] = {
    "approval": "refold approve {id} [--deny | --choice ID] [--feedback TEXT]",
    "input": "refold answer {id} --label LABEL… | --text TEXT",
}


def _needs_a_person(api: Api, record: Json, *, as_json: bool) -> int:
    open_ones = api.get(f"/v1/requests?status=open&run_id={record['run_id']}")["items"]
    say(f"{record['run_id']} waits for a person ({record['waiting_on']})")
    for request in reversed(open_ones):  # the oldest first
        show_request(request)
    if as_json:
        names = ("run_id", "task_id", "status", "waiting_on")
        give({name: record[name] for name in names} | {"requests": open_ones[::-1]})
    return WAITING


def _ending(record: Json) -> Json:
    return {"final_ctx" if record["status"] == "done" else "result_ref": record["result_ref"]}
