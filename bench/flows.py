"""The workloads as Blueprints, for refold in process and over HTTP alike."""

from __future__ import annotations

from typing import Any

Json = Any
AGENTS = [
    {"name": "answer", "kind": "python", "spec": {"fn": "bench.agents:answer"}},
    {"name": "answer_until", "kind": "python", "spec": {"fn": "bench.agents:answer_until"}},
]


def blueprint(flow: Json) -> Json:
    """A Blueprint reference that carries its body."""
    return {"kind": "inline", "value": {"id": "bench", "flow": flow, "agents": AGENTS}}


def loop(count: int, ref: str = "answer") -> Json:
    """`count` steps one after the other; each is asked its number, and its answer takes the place of the one before."""
    body = step(path("$.n"), "$.r", ref)
    return {"kind": "loop", "counter": path("$.n"), "cond": lit(True), "max": count, "body": body}


def fan_out(lanes: int) -> Json:
    """`lanes` steps side by side."""
    items = lit(list(range(lanes)))
    body = step(path("$.item"), "$.r")
    return {"kind": "fanout", "items": items, "bind": path("$.item"), "body": body, "join": "all", "out": path("$.all")}


def growing(count: int) -> Json:
    """`count` steps, each of which adds its answer to the ctx."""
    return {"kind": "seq", "children": [step(lit(n), f"$.k{n}") for n in range(count)]}


def step(given: Json, out: str, ref: str = "answer") -> Json:
    return {"kind": "step", "ref": ref, "in": given, "out": path(out)}


def waits_for_a_person() -> Json:
    """A step that nobody answers: what an idle Run is."""
    return {"kind": "approve", "action": lit("bench"), "out": path("$.ok")}


def path(at: str) -> Json:
    return {"op": "path", "at": at}


def lit(value: Json) -> Json:
    return {"op": "lit", "value": value}
