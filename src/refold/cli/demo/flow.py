"""The Blueprint of the demo: a survey of a folder, as a loop over batches with a fan-out in each.

    list ─▶ while chunks are left: take a batch ─▶ per chunk: count ─▶ sum  ─▶ merge ─▶ … ─▶ report

`list`, `count` and `report` are subprocesses, `take`, `sum` and `merge` are Python functions of the server.
The flow never holds a file name list: `list` writes that to a file, and chunks are ranges of its lines.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

from refold.cli.demo import steps

Json = Any

NAME: Final = "survey"
APP: Final = steps.__name__
"""The module that the server loads for the Python steps."""
MAX_ROUNDS: Final = 10_000


def survey(work: Path) -> Json:
    """The Blueprint; its steps keep their ledger in the folder `work`."""
    return {
        "id": NAME,
        "flow": _seq(
            _step("list", "$.input", "$.listing"),
            {"kind": "assign", "at": _path("$.queue.left"), "value": _path("$.listing.chunks")},
            {
                "kind": "loop",
                "counter": _path("$.rounds"),
                "cond": {"op": "gt", "lhs": {"op": "len", "arg": _path("$.queue.left")}, "rhs": _value(0)},
                "max": MAX_ROUNDS,
                "body": _round(),
            },
            _step("report", "$", "$.output"),
        ),
        "agents": [
            *(_program(verb, work) for verb in steps.PROGRAMS),
            *(_function(name) for name in ("take", "sum", "merge")),
        ],
    }


def _round() -> Json:
    lane = _seq(
        _step("count", "$.chunk", "$.counted"),
        _step("sum", "$.counted", "$"),  # a lane's result is its whole ctx: only the sum is wanted
    )
    return _seq(
        _step("take", "$.queue.left", "$.queue"),
        {
            "kind": "fanout",
            "items": _path("$.queue.batch"),
            "bind": _path("$.chunk"),
            "body": lane,
            "join": "all",
            "out": _path("$.survey.parts"),
        },
        _step("merge", "$.survey", "$.survey"),
    )


def _program(verb: str, work: Path) -> Json:
    # Isolated, without site-packages: starting the interpreter is most of what such a step costs.
    spec = {
        "program": sys.executable,
        "args": ["-I", "-S", steps.__file__, verb],
        "env": {steps.WORK_VARIABLE: str(work)},
    }
    return {"name": verb, "kind": "subprocess", "spec": spec}


def _function(name: str) -> Json:
    return {"name": name, "kind": "python", "spec": {"fn": f"{APP}:{name}_step"}}


def _seq(*children: Json) -> Json:
    return {"kind": "seq", "children": list(children)}


def _step(ref: str, given: str, out: str) -> Json:
    return {"kind": "step", "ref": ref, "in": _path(given), "out": _path(out)}


def _path(at: str) -> Json:
    return {"op": "path", "at": at}


def _value(value: Json) -> Json:
    return {"op": "lit", "value": value}
