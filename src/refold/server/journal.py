"""What a server says about itself, as lines of JSON on stderr: structlog renders what `diagnostics` hands to `logging`.

Who embeds an App has handlers of their own, and needs none of this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import structlog
from structlog.typing import EventDict

from refold import diagnostics


class JsonLines(logging.Handler):
    """Says each event as one line of JSON: its facts, then `event`, `level`, `timestamp` and maybe `exception`."""

    def __init__(self, say: Callable[[str], Any]) -> None:
        super().__init__()
        self._say = say
        self.setFormatter(
            structlog.stdlib.ProcessorFormatter(
                foreign_pre_chain=[
                    _with_facts,
                    structlog.stdlib.add_log_level,
                    structlog.processors.TimeStamper(fmt="iso", utc=True),
                ],
                processors=[
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    structlog.processors.format_exc_info,
                    structlog.processors.JSONRenderer(),
                ],
            )
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Says one line."""
        self._say(self.format(record))

    def attach(self) -> None:
        """Becomes the one place where this process says things."""
        logger = logging.getLogger(diagnostics.ROOT)
        logger.handlers = [self]
        logger.setLevel(logging.INFO)
        logger.propagate = False  # an app module may have given the root a handler of its own: that would say it twice


def _with_facts(logger: Any, method: str, event: EventDict) -> EventDict:
    record: logging.LogRecord = event["_record"]
    return {**getattr(record, "facts", {}), **event}
