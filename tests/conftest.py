"""Hypothesis profiles: `HYPOTHESIS_PROFILE=long pytest --timeout 0 tests/core` looks for longer.

`few` is that of `scripts/coverage-core`: the same examples every time, so that nothing is covered by luck.
"""

import os

from hypothesis import HealthCheck, settings

QUIET = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("few", max_examples=20, derandomize=True, **QUIET)
settings.register_profile("dev", max_examples=200, **QUIET)
settings.register_profile("ci", max_examples=500, **QUIET)
settings.register_profile("long", max_examples=5000, **QUIET)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
