"""Fixtures of the stores' tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.testing.faults import PowerVFS

pytest.register_assert_rewrite(*(f"refold.testing.{part}" for part in ("conformance", "rows", "damage")))


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio: the stores live in one asyncio loop."""
    return "asyncio"


@pytest.fixture
def ram(tmp_path: Path) -> Iterator[Path]:
    """A directory for many small files that are read once: in memory where there is one."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else tmp_path) as directory:
        yield Path(directory)


@pytest.fixture
def disk() -> Iterator[PowerVFS]:
    """A disk that records, counts and fails on demand."""
    with PowerVFS("power") as vfs:
        yield vfs
