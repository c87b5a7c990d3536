"""The dispatch Ctx of every logged step, stored so that n steps which add m bytes each cost O(n·m), not O(n²·m).

A stored snapshot names its attempt and says what changed in the flow ctx since an earlier row, its base:

    {"step": id, "try": n, "base": ordinal, "set": [[path, {"v": value}], [path, {"o": ordinal}], [path], …]}

A change sets a value, sets the output of an earlier row without repeating it, or (a path alone) removes a member. A
*whole* snapshot has no base: its changes begin at an empty ctx, and it names the Run. One is written when the deltas
since the last one have grown to its size, so that no row is far from one. What the row itself says (agent, lane) is not
repeated. Law: `read_all` gives back for every row exactly what `Writer` was given.

The base is the row before in the same lane, for a new lane that of the lane around it. Lanes that take turns would
otherwise repeat in every row all in which they differ: two lanes of 1,000 steps cost twelve times what they said.

Changes are found by identity: the machine writes copy-on-write, so an unchanged part is the same object. Equal parts
that are not the same object only make a delta longer, never wrong. Where they can be, the trail of the dispatch says: a
step that adds one answer to a ctx of 2,000 must not look at all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from refold.canonical import decode, encode_known
from refold.errors import StoreDamaged
from refold.flowir.ir import PathKeys
from refold.flowir.messages import Trail
from refold.flowir.outputs import Outputs
from refold.records import Lane, ReplayRow

Json = Any
Change = list[Json]
UNKNOWN: Final = Trail()
_ABSENT: Final = object()


def dispatch_ctx(
    run_id: str, step_id: str, attempt: int, agent: str, lane: Lane, step_ctx: Json, ctx: Json
) -> dict[str, Json]:
    """The dispatch Ctx (design §1): what the agent may see and what its row keeps. Never `operator`."""
    runtime = {"run_id": run_id, "step_ctx": step_ctx, "lane": lane}
    meta = {"runtime": runtime, "authz": {}, "observer": {}, "loop": {}}
    return {"run_id": run_id, "step_id": step_id, "attempt": attempt, "agent": agent, "meta": meta, "ctx": ctx}


Tree = dict[str, "Tree | None"]
"""Paths by their keys; None is a path's end: anything may be different there and below."""


class Base(NamedTuple):
    """What the next delta of a lane builds on, and how large its whole one and the deltas since are."""

    ticket: int
    ordinal: int
    ctx: Json
    whole_size: int
    delta_size: int


class Writer:
    """Makes the stored snapshots of one driver's rows, in the order of their ordinals.

    `outputs` are those that deltas may name. With what a resumed driver was answered among them, the whole snapshot
    that it begins with does not repeat what was said before.
    """

    def __init__(self, outputs: Outputs | None = None) -> None:
        self._bases: dict[Lane, Base] = {}
        self._outputs = Outputs() if outputs is None else outputs

    def write(self, ordinal: int, given: Mapping[str, Json], ticket: int = 0, trail: Trail = UNKNOWN) -> str:
        """The stored form of the dispatch Ctx of row `ordinal`; `ticket` and `trail` are those of its Dispatch."""
        ctx, runtime = given["ctx"], given["meta"]["runtime"]
        lane, step_ctx = runtime["lane"], runtime["step_ctx"]
        stored: dict[str, Json] = {"step": given["step_id"], "try": given["attempt"]}
        if step_ctx is not None:
            stored["step_ctx"] = step_ctx
        base = self._base_of(lane)
        if base is None or base.delta_size >= base.whole_size:
            text = encode_known(stored | {"run": given["run_id"], "set": self._whole(ctx)})
            self._bases[lane] = Base(ticket, ordinal, ctx, len(text), 0)
        else:
            within = _tree(trail.written) if trail.since == base.ticket else None
            text = encode_known(stored | {"base": base.ordinal, "set": self._changes(base.ctx, ctx, within)})
            self._bases[lane] = Base(ticket, ordinal, ctx, base.whole_size, base.delta_size + len(text))
        return text

    def passed(self, ordinal: int, output: Json, text: str) -> None:
        """Notes the output of row `ordinal`, so that later deltas name it."""
        self._outputs.note(ordinal, output, text)

    def _base_of(self, lane: Lane) -> Base | None:
        while (base := self._bases.get(lane)) is None and lane:
            lane = lane[:-1]
        return base

    def _whole(self, ctx: Json) -> list[Change]:
        if type(ctx) is not dict:
            return [[[], self._said(ctx)]]
        return [[[key], self._said(value)] for key, value in ctx.items()]

    def _changes(self, old: Json, new: Json, within: Tree | None = None) -> list[Change]:
        changes: list[Change] = []
        if type(old) is dict and type(new) is dict:
            self._compare(old, new, (), within, changes)
        elif old is not new:
            changes.append([[], self._said(new)])
        return changes

    def _compare(
        self, old: dict[str, Json], new: dict[str, Json], at: PathKeys, within: Tree | None, changes: list[Change]
    ) -> None:
        """Adds what makes `new` of `old`, both at `at`."""
        for key in (*old.keys() - new.keys(), *new) if within is None else within:
            now = new.get(key, _ABSENT)
            if (before := old.get(key, _ABSENT)) is now:
                continue
            if type(before) is dict and type(now) is dict:
                self._compare(before, now, (*at, key), within and within[key], changes)
            elif now is _ABSENT:
                changes.append([[*at, key]])
            else:
                changes.append([[*at, key], self._said(now)])

    def _said(self, value: Json) -> dict[str, Json]:
        ordinal = self._outputs.ordinal(value)
        return {"v": value} if ordinal is None else {"o": ordinal}


def _tree(paths: Iterable[PathKeys]) -> Tree | None:
    """The paths as a tree; one that lies below another adds nothing to it."""
    root: Tree = {}
    for keys in paths:
        if not keys:
            return None
        here = root
        for key in keys[:-1]:
            inner = here.setdefault(key, {})
            if inner is None:
                break
            here = inner
        else:
            here[keys[-1]] = None
    return root


def read_all(rows: Iterable[ReplayRow]) -> Iterator[tuple[ReplayRow, Json]]:
    """Yields each row with its whole dispatch Ctx. `rows` are all rows of a Run, ascending, cut ones included.

    Raises StoreDamaged for a delta whose base is not there.
    """
    ctxs: dict[int, Json] = {}
    outputs: dict[int, Json] = {}
    run_id = ""
    for row in rows:
        stored = decode(row.ctx_snapshot_json)
        base = stored.get("base")
        if base is not None and base not in ctxs:
            raise StoreDamaged(f"row {row.ordinal} builds on row {base}, which is not there", ordinal=row.ordinal)
        run_id = stored.get("run", run_id)
        ctxs[row.ordinal] = ctx = _patched({} if base is None else ctxs[base], stored["set"], outputs)
        outputs[row.ordinal] = decode(row.step_output_json)
        lane = decode(row.lane_json)
        yield row, dispatch_ctx(run_id, stored["step"], stored["try"], row.step_ref, lane, stored.get("step_ctx"), ctx)


def _patched(ctx: Json, changes: Iterable[Change], outputs: Mapping[int, Json]) -> Json:
    for at, *value in changes:
        if not value:
            ctx = _without(ctx, at)
        else:
            ctx = _with(ctx, at, outputs[value[0]["o"]] if "o" in value[0] else value[0]["v"])
    return ctx


def _with(ctx: Json, at: list[str], value: Json) -> Json:
    if not at:
        return value
    return ctx | {at[0]: _with(ctx.get(at[0]), at[1:], value)}


def _without(ctx: Json, at: list[str]) -> Json:
    if len(at) == 1:
        return {key: member for key, member in ctx.items() if key != at[0]}
    return ctx | {at[0]: _without(ctx[at[0]], at[1:])}
