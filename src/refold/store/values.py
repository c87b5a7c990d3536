"""Long texts, and outputs that stand once: how they are stored beside a row, named in it, and read back checked.

| a text | stands in | and elsewhere there is |
|---|---|---|
| up to `INLINE_BYTES` | the row that says it | - |
| the output of a logged step, from `NAMED_BYTES` on | its replay row | its name (`OutputName`) |
| longer | the value table, under its digest | `@` and the digest, or its head |
| longer, and mostly outputs of one Run | pieces of it, in the table of spliced texts | the same |
| the launch snapshot of a Run, above `LAUNCH_BYTES` | the table of launches, as long as its Run | `@` and the digest |

Law: what is read back is, byte for byte, what was stored; anything else raises StoreDamaged.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from refold.canonical import Json, decode, encode_known
from refold.errors import InvalidJson, StoreDamaged
from refold.records import (
    INLINE_BYTES,
    LAUNCH_BYTES,
    NAMED_BYTES,
    ActivationRow,
    LaunchRow,
    LogRow,
    OutputName,
    ReplayRow,
    RunRecord,
    SplicedRow,
    ValueRow,
    name_in,
    output_name,
    shown_text,
    stored_json,
)
from refold.store.base import Reader, Tx

AHEAD_ROWS: Final = 32
"""Replay rows that are read at once for their outputs. What else they hold may be long, and is in memory with them."""


def put_json(tx: Tx, text: str, run_n: int = 0, splice: Callable[[], Sequence[str | int] | None] | None = None) -> str:
    """Stores JSON text that is too long for a row beside it, once, and returns what the row holds.

    If it can be spliced, which only a long text is asked for, its pieces are stored, and the rows of the Run `run_n`
    stand for the rest.
    """
    stored, digest = stored_json(text)
    if digest is None:
        return stored
    if splice is not None and tx.get(ValueRow, digest) is None and (parts := splice()) is not None:
        tx.put(SplicedRow(digest=digest, run=run_n, parts_json=encode_known(parts)))
    put_value(tx, ValueRow(digest=digest, body=text))
    return stored


def put_value(tx: Tx, value: ValueRow) -> None:
    """Stores a long text, unless it stands already, whole or in pieces."""
    if tx.get(SplicedRow, value.digest) is None:
        tx.put(value)


def expanded(reader: Reader, stored: str | None) -> str | None:
    """The JSON text that a row holds or names; raises StoreDamaged if what it names is gone, or is another text."""
    if stored is None or not stored.startswith("@"):
        return stored
    text = value_text(reader, stored[1:])
    if text is None:
        raise StoreDamaged(f"value {stored[1:]} is not stored", digest=stored[1:])
    return text


def put_launch(tx: Tx, run_n: int, text: str, most: int = LAUNCH_BYTES) -> str:
    """Stores the launch snapshot of a Run beside its record if it has more bytes than `most`; what the record holds."""
    stored, digest = stored_json(text, most)
    if digest is not None:
        tx.put(LaunchRow(run=run_n, digest=digest, body=text))
    return stored


def with_launch(reader: Reader, run: RunRecord) -> RunRecord:
    """The record with its launch snapshot, however long that is, in it; raises StoreDamaged as `expanded`."""
    stored = run.input_json
    if stored is None or not stored.startswith("@"):
        return run
    row = reader.get(LaunchRow, run.n, stored[1:])
    if row is None or _digest(row.body) != row.digest:
        raise StoreDamaged(
            f"run {run.run_id}: its launch snapshot is gone, or another text by now",
            run_id=run.run_id,
            digest=stored[1:],
        )
    return msgspec.structs.replace(run, input_json=row.body)


def value_text(reader: Reader, digest: str) -> str | None:
    """The text of this digest, None if none is stored; raises StoreDamaged if it is another text by now."""
    value = reader.get(ValueRow, digest)
    if value is not None:
        text = value.body
    elif (spliced := reader.get(SplicedRow, digest)) is not None:
        text = _joined(reader, spliced)
    else:
        return None
    if text is None or _digest(text) != digest:
        raise StoreDamaged(f"value {digest} does not match its digest", digest=digest)
    return text


def _joined(reader: Reader, spliced: SplicedRow) -> str | None:
    """The text in one piece; None if it is damaged, or a row that it names is gone."""
    row_at = _reading_ahead(reader)
    pieces: list[str] = []
    try:
        for part in decode(spliced.parts_json):
            if isinstance(part, str):
                pieces.append(part)
            elif (row := row_at(spliced.run, part)) is not None:
                pieces.append(row.step_output_json)
            else:
                return None
        return "".join(pieces)
    except (InvalidJson, TypeError):  # whatever shape the damage has
        return None


def told(reader: Reader, row: LogRow) -> LogRow:
    """The log row as if it said the output that it names: what is rendered. Raises StoreDamaged as `output_text`."""
    name = output_name(row)
    if name is None:
        return row
    return msgspec.structs.replace(
        row, body_json=encode_known(decode(row.body_json) | {"output": output_text(reader, name)})
    )


def bodies(reader: Reader) -> Callable[[LogRow], dict[str, Json]]:
    """What gives the body of `told(reader, row)`, as a value, of rows that are asked for in their order.

    Steps pass in the order of their replay rows, so these are read some at a time.
    """
    row_at = _reading_ahead(reader)

    def body_of(row: LogRow) -> dict[str, Json]:
        body = decode(row.body_json)
        name = name_in(row, body)
        if name is None:
            return body
        return body | {"output": _text_of(reader, name, row_at(name.run, name.ordinal))}

    return body_of


def _reading_ahead(reader: Reader) -> Callable[[int, int], ReplayRow | None]:
    """What gives replay rows by Run and ordinal, and reads some more once two are asked for that follow each other."""
    near: dict[tuple[int, int], ReplayRow] = {}
    last = (0, 0)

    def row_at(run: int, ordinal: int) -> ReplayRow | None:
        nonlocal last
        if (run, ordinal) not in near:
            limit = AHEAD_ROWS if last == (run, ordinal - 1) else 1
            near.clear()
            for row in reader.find(ReplayRow, run=run, after=ordinal - 1, limit=limit):
                near[run, row.ordinal] = row
        last = (run, ordinal)
        return near.get(last)

    return row_at


def output_text(reader: Reader, name: OutputName) -> str:
    """The output of this name, as people are shown it.

    Raises StoreDamaged if it stands neither in its row nor in the value table: a text that does not match `ref` is
    never shown for it.
    """
    return _text_of(reader, name, reader.get(ReplayRow, name.run, name.ordinal))


def _text_of(reader: Reader, name: OutputName, row: ReplayRow | None) -> str:
    text = None if row is None else _shown(row)
    if text is None or _digest(text) != name.ref:
        text = value_text(reader, name.ref)
    if text is None:
        raise StoreDamaged(
            f"the output of row {name.ordinal} of run key {name.run} is gone, or another text by now",
            ordinal=name.ordinal,
            digest=name.ref,
        )
    return text


def keep_outputs(tx: Tx, run: RunRecord) -> None:
    """Moves what is named of a Run's replay log to the value table, before the log is deleted.

    Which outputs, by size alone: every one of such a size is named by the record that shows it, and the folds of its
    Session show it for ever, also where retention has taken that record. Spliced are the results of its activations.
    What is damaged stays damaged: a Run can be deleted for all that.
    """
    results = [run.result_json, *(each.result_json for each in tx.find(ActivationRow, run=run.n))]
    for stored in filter(None, results):
        spliced = tx.get(SplicedRow, stored[1:])
        if spliced is not None and spliced.run == run.n:
            with contextlib.suppress(StoreDamaged):
                tx.put(ValueRow(digest=spliced.digest, body=expanded(tx, stored) or ""))
                tx.delete(SplicedRow, digest=spliced.digest)
    for row in tx.find(ReplayRow, run=run.n):
        text = _shown(row)
        if text is not None and NAMED_BYTES <= len(text.encode()) <= INLINE_BYTES:
            tx.put(ValueRow(digest=_digest(text), body=text))


def _shown(row: ReplayRow) -> str | None:
    try:
        return shown_text(row.step_output_json)
    except InvalidJson:  # a flipped bit
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
