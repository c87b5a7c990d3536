"""The dispatch Ctx of every logged step, stored so that n steps which add m bytes each cost O(n·m), not O(n²·m).

A stored snapshot is the envelope (the dispatch Ctx without its flow ctx) with either the whole flow ctx or what changed
since the row before:

    {"env": {…}, "ctx": {…}}                                        whole
    {"env": {…}, "base": ordinal, "set": [[path, {"v": value}], [path, {"o": ordinal}], [path], …]}     a delta

A change sets a value, sets the output of an earlier row without repeating it, or (a path alone) removes a member. A
whole one is written when the deltas since the last one have grown to its size. Law: `Reader` gives back for every row
exactly what `Writer` was given.

Changes are found by identity: the machine writes copy-on-write, so an unchanged part is the same object. Equal parts
that are not the same object only make a delta longer, never wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from refold.canonical import decode, encode
from refold.errors import StoreDamaged
from refold.flowir.path import PathKeys
from refold.records import ReplayRow

Json = Any
Change = list[Json]

REPEATED_BYTES: Final = 128
"""An output whose text is shorter is repeated in a delta: naming its row would not be shorter."""


class Writer:
    """Makes the stored snapshots of one driver's rows, in the order of their ordinals."""

    def __init__(self) -> None:
        self._base: int | None = None
        self._ctx: Json = None
        self._whole_size = 0
        self._delta_size = 0
        self._outputs: dict[int, tuple[Json, int]] = {}

    def write(self, ordinal: int, dispatch_ctx: Mapping[str, Json]) -> str:
        """The stored form of the dispatch Ctx of row `ordinal`."""
        envelope = {name: member for name, member in dispatch_ctx.items() if name != "ctx"}
        ctx = dispatch_ctx["ctx"]
        text = self._delta(envelope, ctx)
        if text is None:
            text = encode({"env": envelope, "ctx": ctx})
            self._whole_size, self._delta_size = len(text), 0
        self._base, self._ctx = ordinal, ctx
        return text

    def passed(self, ordinal: int, output: Json, text: str) -> None:
        """Notes the output of row `ordinal`, so that later deltas name it."""
        if len(text) >= REPEATED_BYTES and isinstance(output, dict | list | str):
            self._outputs[id(output)] = (output, ordinal)  # the reference keeps the id from being given to another

    def _delta(self, envelope: Json, ctx: Json) -> str | None:
        if self._base is None or self._delta_size >= self._whole_size:
            return None
        text = encode({"env": envelope, "base": self._base, "set": list(self._changes(self._ctx, ctx, ()))})
        self._delta_size += len(text)
        return text

    def _changes(self, old: Json, new: Json, at: PathKeys) -> Iterator[Change]:
        if old is new:
            return
        if type(old) is not dict or type(new) is not dict:
            known = self._outputs.get(id(new))
            yield [list(at), {"v": new} if known is None else {"o": known[1]}]
            return
        for key in old.keys() - new.keys():
            yield [[*at, key]]
        for key, value in new.items():
            if key not in old:
                known = self._outputs.get(id(value))
                yield [[*at, key], {"v": value} if known is None else {"o": known[1]}]
            elif old[key] is not value:
                yield from self._changes(old[key], value, (*at, key))


def read_all(rows: Iterable[ReplayRow]) -> Iterator[tuple[ReplayRow, Json]]:
    """Yields each row with its whole dispatch Ctx. `rows` are all rows of a Run, ascending, cut ones included.

    Raises StoreDamaged for a delta whose base is not there.
    """
    ctxs: dict[int, Json] = {}
    said: dict[int, Json] = {}
    for row in rows:
        stored = decode(row.ctx_snapshot_json)
        if "base" in stored:
            if stored["base"] not in ctxs:
                raise StoreDamaged(f"row {row.ordinal} builds on row {stored['base']}, which is not there")
            ctx = _patched(ctxs[stored["base"]], stored["set"], said)
        else:
            ctx = stored["ctx"]
        ctxs[row.ordinal] = ctx
        said[row.ordinal] = decode(row.step_output_json)
        yield row, stored["env"] | {"ctx": ctx}


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
