"""The part of the conformance suite that damages a replay log behind the store's back, and asks whether it is found.

A cursor built from a damaged log would hand a wrong answer to the flow as if it had been paid for (law 10).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from refold.canonical import encode
from refold.errors import StoreDamaged
from refold.records import (
    CutRow,
    DecisionRow,
    OutputName,
    ReplayRow,
    Row,
    RunRecord,
    SplicedRow,
    ValueRow,
    named_output,
    seal,
)
from refold.store import Reader, Tx, expanded, keep_outputs, output_text, put_json, verify_replay
from refold.store.audit import replay_rows
from refold.testing.history import StoreFactory, advance, begin, cut, reopened, sample

REPLAY_MEMBERS: Final = [
    (kind, name) for kind in (ReplayRow, DecisionRow, CutRow) for name in kind.__struct_fields__ if name != "run"
]


@pytest.mark.anyio
class DamageConformance:
    """A part of `conformance.StoreConformance`; join that."""

    @pytest.mark.parametrize(
        ("kind", "member"), REPLAY_MEMBERS, ids=lambda value: value if isinstance(value, str) else value.__name__
    )
    async def test_a_flipped_byte_in_a_replay_log_is_found(
        self, factory: StoreFactory, kind: type[Row], member: str
    ) -> None:
        run, rows = await self._sealed(factory)
        victim: Any = next(row for row in rows[2:] if isinstance(row, kind))
        flipped = msgspec.structs.replace(victim, **{member: _flip(getattr(victim, member))})
        factory.raw_set(kind, (run.n, victim.ordinal), flipped)
        await self._is_refused(factory, run)

    @pytest.mark.parametrize("ordinal", range(1, 8))
    async def test_a_missing_row_of_a_replay_log_is_found(self, factory: StoreFactory, ordinal: int) -> None:
        run, rows = await self._sealed(factory)
        factory.raw_set(type(rows[ordinal - 1]), (run.n, ordinal), None)
        await self._is_refused(factory, run)

    async def test_the_rows_of_another_run_are_found(self, factory: StoreFactory) -> None:
        run, rows = await self._sealed(factory, "a")
        _, others = await self._sealed(factory, "b")
        for row, other in zip(rows, others, strict=True):
            factory.raw_set(type(row), (run.n, row.ordinal), msgspec.structs.replace(other, run=run.n))
        await self._is_refused(factory, run)

    async def test_a_last_row_that_was_sealed_anew_is_found(self, factory: StoreFactory) -> None:
        run, rows = await self._sealed(factory)
        forged = seal(rows[-2].hash, msgspec.structs.replace(rows[-1], created_at=9))
        factory.raw_set(type(forged), (run.n, forged.ordinal), forged)
        await self._is_refused(factory, run)

    @pytest.mark.parametrize("member", ["rows", "chain"])
    async def test_a_flipped_byte_in_the_head_is_found(self, factory: StoreFactory, member: str) -> None:
        run, _ = await self._sealed(factory)
        head = factory.raw_get(RunRecord, run.n)
        assert head is not None
        flipped = msgspec.structs.replace(head, **{member: _flip(getattr(head, member))})
        factory.raw_set(RunRecord, (run.n,), flipped)
        await self._is_refused(factory, run)

    async def test_an_older_copy_of_the_head_is_found(self, factory: StoreFactory) -> None:
        run, rows = await self._sealed(factory)
        head = factory.raw_get(RunRecord, run.n)
        assert head is not None
        factory.raw_set(RunRecord, (run.n,), msgspec.structs.replace(head, rows=4, chain=rows[3].hash))
        await self._is_refused(factory, run)

    async def test_an_untouched_replay_log_is_not_refused(self, factory: StoreFactory) -> None:
        run, rows = await self._sealed(factory)
        store = await factory.open()
        head, found = await store.read(lambda reader: (reader.get(RunRecord, run.n), replay_rows(reader, run.n)))
        assert head is not None
        assert found == rows
        verify_replay(head, found)

    async def test_a_long_text_lies_beside_the_row_and_is_found_if_it_is_not_what_it_was(
        self, factory: StoreFactory
    ) -> None:
        short, long = encode("x" * 10), encode("x" * 10_000)
        store = await factory.open()
        stored = [await store.write(lambda tx, text=text: put_json(tx, text)) for text in (short, long, long)]
        store = await reopened(factory, store)
        told = await store.read(lambda reader: [expanded(reader, text) for text in (None, *stored)])
        assert told == [None, short, long, long]
        assert len(stored[1]) < 100
        (value,) = await store.read(lambda reader: reader.find(ValueRow))
        for spoilt in (ValueRow(digest=value.digest, body=encode("y" * 10_000)), None):
            factory.raw_set(ValueRow, (value.digest,), spoilt)
            with pytest.raises(StoreDamaged):
                await store.read(lambda reader: expanded(reader, stored[1]))

    async def test_a_text_in_pieces_is_read_back_whole_and_is_found_if_a_row_in_it_is_not_what_it_was(
        self, factory: StoreFactory
    ) -> None:
        said = encode("x" * 10_000)
        store = await factory.open()
        row = sample(ReplayRow, run=1, ordinal=2, step_output_json=said)
        await store.write(lambda tx: tx.insert(row))
        text = f'{{"a":{said},"b":{said}}}'
        splice: list[str | int] = ['{"a":', 2, ',"b":', 2, "}"]
        stored = await store.write(lambda tx: put_json(tx, text, 1, lambda: splice))
        assert await store.write(lambda tx: put_json(tx, text)) == stored
        store = await reopened(factory, store)
        assert await store.read(lambda reader: expanded(reader, stored)) == text
        assert await store.read(lambda reader: reader.find(ValueRow)) == []
        pieces = factory.raw_get(SplicedRow, stored[1:])
        assert pieces is not None
        for damage in ("{", "[null]", '["other"]', "5"):
            factory.raw_set(SplicedRow, (stored[1:],), msgspec.structs.replace(pieces, parts_json=damage))
            with pytest.raises(StoreDamaged):
                await store.read(lambda reader: expanded(reader, stored))
        factory.raw_set(SplicedRow, (stored[1:],), pieces)
        assert await store.read(lambda reader: expanded(reader, stored)) == text
        for spoilt in (msgspec.structs.replace(row, step_output_json=encode("y")), None):
            factory.raw_set(ReplayRow, (1, 2), spoilt)
            with pytest.raises(StoreDamaged):
                await store.read(lambda reader: expanded(reader, stored))

    async def test_a_text_that_stands_whole_is_not_stored_in_pieces_as_well(self, factory: StoreFactory) -> None:
        text = encode("x" * 10_000)
        store = await factory.open()
        ways = (None, lambda: None, lambda: [text])
        stored = [await store.write(lambda tx, splice=each: put_json(tx, text, 1, splice)) for each in ways]
        assert len({*stored}) == 1
        assert await store.read(lambda reader: reader.find(SplicedRow)) == []
        assert await store.read(lambda reader: expanded(reader, stored[0])) == text

    async def test_a_named_output_stands_in_its_row_or_once_the_log_is_deleted_under_its_digest(
        self, factory: StoreFactory
    ) -> None:
        store = await factory.open()
        run = await begin(store)
        text = "x" * 1000
        row = sample(ReplayRow, run=run.n, ordinal=1, step_output_json=encode(text))
        named = named_output(1, text)
        assert named is not None
        name = OutputName(run.n, named["row"], named["ref"])
        await store.write(lambda tx: tx.insert(row))
        assert await store.read(lambda reader: output_text(reader, name)) == text

        def forget(tx: Tx) -> None:
            keep_outputs(tx, run)
            tx.delete(ReplayRow, run=run.n)

        await store.write(forget)
        store = await reopened(factory, store)
        assert await store.read(lambda reader: output_text(reader, name)) == text
        await store.write(lambda tx: tx.insert(msgspec.structs.replace(row, step_output_json=encode("y"))))
        assert await store.read(lambda reader: output_text(reader, name)) == text, "another row has its place"
        for spoilt in (ValueRow(digest=name.ref, body="z"), None):
            factory.raw_set(ValueRow, (name.ref,), spoilt)
            with pytest.raises(StoreDamaged):
                await store.read(lambda reader: output_text(reader, name))

    async def _sealed(self, factory: StoreFactory, name: str = "a") -> tuple[RunRecord, list[Any]]:
        """A Run whose replay log has seven rows: three passes, three decisions and a cut. Its store is closed."""
        store = await factory.open()
        run = await begin(store, name)
        for _ in range(4):
            await advance(store, run.n)
        await cut(store, run.n)
        rows = await store.read(lambda reader: replay_rows(reader, run.n))
        await store.close()
        assert len(rows) == 7
        return run, rows

    async def _is_refused(self, factory: StoreFactory, run: RunRecord) -> None:
        def verify(reader: Reader) -> None:
            head = reader.get(RunRecord, run.n)
            assert head is not None
            verify_replay(head, replay_rows(reader, run.n))

        store = await factory.open()
        with pytest.raises(StoreDamaged):
            await store.read(verify)
        await store.close()


def _flip(value: Any) -> Any:
    """`value` with one bit turned."""
    if isinstance(value, bytes):
        return bytes([value[0] ^ 1]) + value[1:]
    return value ^ 1 if isinstance(value, int) else chr(ord(value[:1] or " ") ^ 1) + value[1:]
