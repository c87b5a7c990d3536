"""A fresh App on disk, FULL, for what `readers` measures. The workloads of `speed` are in `inside` and `served`."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from refold.service.app import App, Settings
from refold.service.sessions import ViewSettings


@asynccontextmanager
async def open_app(*, compacts: bool = True) -> AsyncIterator[tuple[App, Path]]:
    """A fresh App on a store on disk, and its path; without compaction where what is measured is something else."""
    view = ViewSettings() if compacts else ViewSettings(compact_events=10**9)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "refold.db"
        app = await App.open(Settings(store=path, view=view, max_running_runs=1000, max_concurrent_steps=1000))
        try:
            yield app, path
        finally:
            await app.close()
