"""Fixtures of the tests with real processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_kit import Home


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the official client does."""
    return "asyncio"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """A REFOLD_HOME of this test's own; whatever it started is killed at the end."""
    with contextlib.closing(Home(tmp_path / "home")) as home:
        yield home
