"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio; a test file whose subject touches the loop itself asks for more of them."""
    return "asyncio"
