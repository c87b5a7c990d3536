"""The SQLite store does what every store does."""

from pathlib import Path

import pytest
from store_kit import SqliteFactory

from refold.testing.conformance import StoreConformance


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def factory(self, ram: Path) -> SqliteFactory:
        return SqliteFactory(ram / "refold.db")
