"""What one attempt says while it works, on its way to whoever listens.

Law: the pieces together are a beginning of what the item ends with, if the agent passes what it said. So a secret is
taken out here as it is out of an answer: what may be the beginning of one is held back until it is known.

Not here: who listens (`session.live`).
"""

from __future__ import annotations

from refold.engine.agents.output import mend
from refold.engine.secrets import Redactor, Secrets
from refold.engine.voice import Voice


class Speech:
    """One attempt's voice: hand `emit` to its agent, and call `close` when it has ended."""

    def __init__(
        self, voice: Voice, secrets: Secrets, *, session: int, opened: int, item_id: str, attempt: int
    ) -> None:
        self._voice = voice
        self._session = session
        self._opened = opened
        self._item_id = item_id
        self._attempt = attempt
        self._secrets = secrets
        self._redactor: Redactor | None = None
        """Made with the first piece: most attempts say nothing."""

    async def emit(self, text: str) -> None:
        """Says a piece."""
        if self._redactor is None:
            self._redactor = self._secrets.redactor()
        self._say(self._redactor.feed(mend(text)))

    def close(self) -> None:
        """Says what was held back, and ends."""
        if self._redactor is None:
            return
        self._say(self._redactor.rest())
        self._voice.end(self._session, self._item_id)

    def _say(self, text: str) -> None:
        if text:
            self._voice.say(self._session, self._opened, self._item_id, self._attempt, text)
