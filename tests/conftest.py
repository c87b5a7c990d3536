"""What tests of all rooms share: what refold says about itself, and Hypothesis profiles.

`HYPOTHESIS_PROFILE=long pytest --timeout 0 tests/core` looks for longer.

`few` is that of `scripts/coverage-core`: the same examples every time, so that nothing is covered by luck.
"""

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from refold import diagnostics

QUIET = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("few", max_examples=20, derandomize=True, **QUIET)
settings.register_profile("dev", max_examples=200, **QUIET)
settings.register_profile("ci", max_examples=500, **QUIET)
settings.register_profile("long", max_examples=5000, **QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture
def said() -> Iterator[list[dict[str, Any]]]:
    """The events that are told in this test, without their times, as they come."""
    logger, entries = logging.getLogger(diagnostics.ROOT), list[dict[str, Any]]()

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            facts = getattr(record, "facts", {})
            entries.append({**facts, "event": record.getMessage(), "level": record.levelname.lower()})

    listening, level = Listening(), logger.level
    logger.addHandler(listening)
    logger.setLevel(logging.INFO)
    yield entries
    logger.setLevel(level)
    logger.removeHandler(listening)
