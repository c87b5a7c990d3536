"""Time and fresh ids: the only module that reads a clock or mints an id.

Two clocks, never mixed up (design law 11): `now_ms` is the wall clock, for display, `until` and due times across a
restart; `monotonic` measures intervals. Whatever needs either takes a `Clock` and asks it, so that a test can hand in
its own. Not here: the shapes of ids (`records`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import uuid_utils


class Clock:
    """The clocks of this machine and its source of ids."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC. It may jump, in both directions: nothing is decided by a difference."""
        return time.time_ns() // 1_000_000

    def due_ms(self, wait: Mapping[str, Any]) -> int:
        """When a wait that begins now is over: `{"secs": number}` from now, `{"until": RFC 3339 time}` then."""
        if "secs" in wait:
            return self.now_ms() + round(wait["secs"] * 1000)
        return round(datetime.fromisoformat(wait["until"].upper()).timestamp() * 1000)

    def monotonic(self) -> float:
        """Seconds that never run backwards; they mean nothing in another process."""
        return time.monotonic()

    def uuid7(self) -> str:
        """A new UUIDv7 (RFC 9562) in its canonical spelling: the id of a session, command, turn or request."""
        return str(uuid_utils.uuid7())

    def mint(self, prefix: str) -> str:
        """A new id: `prefix` (`T-`, `R-`, `ST-` or `O-`) and 32 hex digits."""
        return f"{prefix}{uuid_utils.uuid7().hex}"


def rfc3339(ms: int) -> str:
    """The RFC 3339 text of `ms`, in UTC with milliseconds: `2026-01-31T12:00:00.000Z`."""
    # Whole seconds and milliseconds apart: a float of seconds would round some milliseconds down.
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"
