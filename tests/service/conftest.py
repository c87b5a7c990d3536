"""Fixtures of the services' tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from service_kit import Crew, House


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio: the services live in one asyncio loop."""
    return "asyncio"


@pytest.fixture
def crew() -> Iterator[Crew]:
    """Agents under the test's thumb, in the place of all Python agents."""
    crew = Crew()
    with crew.as_python():
        yield crew


@pytest.fixture
def home(tmp_path: Path) -> Iterator[House]:
    """Where this test's Apps open one SQLite store after the other."""
    house = House(tmp_path / "store" / "refold.db")
    with house.without_processes():
        yield house


@pytest.fixture
async def house(home: House) -> AsyncIterator[House]:
    """As `home`; what is still open at the end is closed."""
    yield home
    await home.close()
