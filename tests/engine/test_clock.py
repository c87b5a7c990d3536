"""Ids have the shapes that `records` parses; the text of a time is exact to the millisecond."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.engine.clock import Clock, rfc3339
from refold.records import parse_id, parse_uuid7


@pytest.mark.parametrize("prefix", ["T", "R", "ST", "O"])
def test_minted_ids_are_ids(prefix: str) -> None:
    minted = [Clock().mint(f"{prefix}-") for _ in range(100)]
    assert [parse_id(each, prefix) for each in minted] == minted
    assert len(set(minted)) == 100


def test_uuids_are_uuid7_in_canonical_spelling_and_differ() -> None:
    minted = [Clock().uuid7() for _ in range(100)]
    assert [parse_uuid7(each, "turn id") for each in minted] == minted
    assert len(set(minted)) == 100


def test_the_wall_clock_counts_milliseconds_as_the_ids_do() -> None:
    before, minted, after = Clock().now_ms(), Clock().uuid7(), Clock().now_ms()
    assert before <= int(minted.replace("-", "")[:12], 16) <= after


def test_intervals_do_not_run_backwards() -> None:
    clock = Clock()
    readings = [clock.monotonic() for _ in range(1000)]
    assert readings == sorted(readings)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_769_860_800_001, "2026-01-31T12:00:00.001Z"),
        (1_769_860_800_999, "2026-01-31T12:00:00.999Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
    ],
)
def test_rfc3339(ms: int, text: str) -> None:
    assert rfc3339(ms) == text


@given(st.integers(min_value=0, max_value=253_402_300_799_999))
def test_rfc3339_tells_the_exact_millisecond(ms: int) -> None:
    since = datetime.fromisoformat(rfc3339(ms)) - datetime.fromisoformat("1970-01-01T00:00:00Z")
    assert since == timedelta(milliseconds=ms)
