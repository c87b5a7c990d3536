"""What a process says about itself to whoever operates it: named events with facts, through the library `logging`.

    log = diagnostics.Log("refold.engine")
    log.warning("driver_fell", run_id=run.run_id, exception=text)

Where it goes is for the process to decide, as with every library: by handlers of the logger `refold`, whose records
carry the facts as `facts`. A server has `JsonLines`. Below a warning nothing is said where nobody has asked for it.

Not here: what clients are told (`view`), what is counted (`service.metrics`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
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


class JsonLines(logging.Handler):
    """Says each event as one line of JSON: its facts, then `event`, `level`, `timestamp` and maybe `exception`."""

    def __init__(self, say: Callable[[str], Any]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Says one line."""
        said = entry(record)
        if record.exc_info:
            said["exception"] = logging.Formatter().formatException(record.exc_info)
        self._say(json.dumps(said, default=repr))

    def attach(self) -> None:
        """Becomes the one place where this process says things."""
        logger = logging.getLogger(ROOT)
        logger.handlers = [self]
        logger.setLevel(logging.INFO)
        logger.propagate = False  # an app module may have given the root a handler of its own: that would say it twice


def entry(record: logging.LogRecord) -> dict[str, Any]:
    """An event as one flat object."""
    at = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
    named = {"event": record.getMessage(), "level": record.levelname.lower(), "timestamp": at}
    return {**getattr(record, "facts", {}), **named}
