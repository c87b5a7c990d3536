"""The memory store does what every store does."""

import pytest
from store_kit import MemoryFactory

from refold.testing.conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def factory(self) -> MemoryFactory:
        return MemoryFactory()
