"""LangGraph with its SQLite checkpointer and `durability="sync"`. Runs in an environment of its own: see `peers`."""

from __future__ import annotations

import operator
import os
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

os.environ["LANGSMITH_TRACING"] = "false"
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from bench.sample import Figures, arrived, die, latency, main, payload, rate

Answer = Callable[[int], str]
CRASHED = "crashed"
THREADS = 20
"""A sync graph blocks its thread; more of them were not faster."""


class Latest(TypedDict):
    n: int
    until: int
    answer: str


class All(TypedDict):
    n: int
    until: int
    answer: Annotated[list[str], operator.add]


class Lanes(TypedDict):
    lanes: int
    answers: Annotated[list[str], operator.add]


def saver(folder: Path) -> SqliteSaver:
    made = SqliteSaver(sqlite3.connect(folder / "langgraph.db", check_same_thread=False))
    made.setup()
    return made


def in_turn(folder: Path, answer: Answer = payload, *, grows: bool = False) -> Any:
    """A graph of one node that goes round until `until`."""
    graph = StateGraph(All if grows else Latest)
    graph.add_node("step", lambda s: {"n": s["n"] + 1, "answer": [answer(s["n"])] if grows else answer(s["n"])})
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", lambda s: "step" if s["n"] < s["until"] else END)
    return graph.compile(checkpointer=saver(folder))


def invoke(graph: Any, thread: str, given: Any) -> None:
    config = {"configurable": {"thread_id": thread}, "recursion_limit": 10**6}
    graph.invoke(given, config, durability="sync")


def begin(steps: int, *, grows: bool = False) -> Any:
    return {"n": 0, "until": steps, "answer": [] if grows else ""}


def sequential(folder: Path, steps: int) -> Figures:
    marks = list[float]()

    def answer(n: int) -> str:
        marks.append(time.perf_counter())
        return payload(n)

    graph = in_turn(folder, answer)
    invoke(graph, "warm", begin(20))
    marks.clear()
    begun = time.perf_counter()
    invoke(graph, "measured", begin(steps))
    return rate(steps, time.perf_counter() - begun, marks)


def many(folder: Path, runs: int) -> Figures:
    graph = in_turn(folder)
    invoke(graph, "warm", begin(10))
    with ThreadPoolExecutor(THREADS) as pool:
        begun = time.perf_counter()
        list(pool.map(lambda n: invoke(graph, f"run {n}", begin(10)), range(runs)))
        return rate(10 * runs, time.perf_counter() - begun)


def fan_out(folder: Path, lanes: int) -> Figures:
    plan = StateGraph(Lanes)
    plan.add_node("fork", lambda s: {})
    plan.add_node("lane", lambda s: {"answers": [payload(s["n"])]})
    plan.add_edge(START, "fork")
    plan.add_conditional_edges("fork", lambda s: [Send("lane", {"n": n}) for n in range(s["lanes"])], ["lane"])
    plan.add_edge("lane", END)
    graph = plan.compile(checkpointer=saver(folder))
    invoke(graph, "warm", {"lanes": 3, "answers": []})
    begun = time.perf_counter()
    invoke(graph, "measured", {"lanes": lanes, "answers": []})
    return {"ms": 1000 * (time.perf_counter() - begun)}


def one_step(folder: Path, times: int) -> Figures:
    graph, took = in_turn(folder), list[float]()
    invoke(graph, "warm", begin(1))
    for n in range(times):
        begun = time.perf_counter()
        invoke(graph, f"run {n}", begin(1))
        took.append(time.perf_counter() - begun)
    return latency(took)


def growing_ctx(folder: Path, steps: int) -> Figures:
    graph = in_turn(folder, grows=True)
    begun = time.perf_counter()
    invoke(graph, "measured", begin(steps, grows=True))
    return {"secs": time.perf_counter() - begun}


def crash(folder: Path, at: int) -> Figures:
    graph = in_turn(folder, lambda n: payload(n) if n < at else str(die()))
    invoke(graph, CRASHED, begin(2 * at))
    raise AssertionError("it did not die")


def resume(folder: Path, _: int) -> Figures:
    invoke(in_turn(folder, lambda n: str(arrived(n))), CRASHED, None)
    raise AssertionError("nothing was left to do")


WORKS = {
    "seq": sequential,
    "many": many,
    "fan": fan_out,
    "lat": one_step,
    "ctx": growing_ctx,
    "crash": crash,
    "resume": resume,
}

if __name__ == "__main__":
    main(WORKS)
