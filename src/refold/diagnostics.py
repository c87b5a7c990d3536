"""What a process says about itself to whoever operates it: named events with facts, through the library `logging`.

    log = diagnostics.Log("refold.engine")
    log.warning("driver_fell", run_id=run.run_id, exception=text)

Where it goes is for the process to decide, as with every library: by handlers of the logger `refold`, whose records
carry the facts as `facts`. Below a warning nothing is said where nobody has asked for it.

Not here: the lines of a server (`server.journal`), what clients are told (`view`), what is counted (`service.metrics`).
"""

from __future__ import annotations

import logging
from typing import Any

ROOT = "refold"
"""The logger above all of ours."""


class Log:
    """Says events under one name. A fact `exc_info` is an exception, and is told with its traceback."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def info(self, event: str, **facts: Any) -> None:
        """Says what an operator may want to know."""
        self._say(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        """Says what an operator should look at."""
        self._say(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        """Says what went wrong."""
        self._say(logging.ERROR, event, facts)

    def _say(self, level: int, event: str, facts: dict[str, Any]) -> None:
        error = facts.pop("exc_info", None)
        self._logger.log(level, event, exc_info=error, extra={"facts": facts})
