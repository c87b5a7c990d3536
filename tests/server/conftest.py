"""Fixtures of the tests of the doors."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from http_kit import Door, opened


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio: the server lives in one asyncio loop."""
    return "asyncio"


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    """A door on an empty store in memory."""
    async with opened() as door:
        yield door
