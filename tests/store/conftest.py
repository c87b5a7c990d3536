"""Fixtures of the stores' tests."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("refold.testing.conformance")


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio: the stores live in one asyncio loop."""
    return "asyncio"
