"""Who passes on what agents say while they work. `session.live` does; the engine knows no more of it than this."""

from __future__ import annotations

from typing import Final, Protocol


class Voice(Protocol):
    """Who passes on what is said; it never waits."""

    def say(self, session: int, opened: int, item_id: str, attempt: int, text: str) -> None:
        """More of an item: whose Session, the seq of the record that opened it, which try of it speaks."""
        ...

    def end(self, session: int, item_id: str) -> None:
        """Nothing more will be said by the attempt that spoke."""
        ...


class _Silence:
    """Nobody listens."""

    def say(self, session: int, opened: int, item_id: str, attempt: int, text: str) -> None:
        pass

    def end(self, session: int, item_id: str) -> None:
        pass


SILENCE: Final[Voice] = _Silence()
