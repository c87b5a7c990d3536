"""Wake-ups: a number per Session that says "look", never what there is to see.

The log is the only truth. A commit rings the bells of its Sessions; whoever waits reads the log after its own position.
The number is where the log ends: who has all up to there need not look. A lost or doubled ring costs a read, never an
event. Open the bell first, then read: what is appended in between rings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping


class Bell(asyncio.Event):
    """What one reader waits for."""

    head = 0
    """Where the log ended when it rang last, or as far as its reader has seen: nothing lies behind without a ring."""


class Hub:
    """The bells of all Sessions of this process, and which Sessions are loaded here."""

    def __init__(self) -> None:
        self._bells: dict[int, set[Bell]] = {}
        self._loaded: set[int] = set()
        self._used: set[int] = set()

    def ring(self, heads: Mapping[int, int]) -> None:
        """Wakes everybody who waits for one of these Sessions. The store calls it after each commit that appended."""
        self._used.update(heads)
        for session, head in heads.items():
            for bell in self._bells.get(session, ()):
                bell.head = head
                bell.set()

    def wake(self, session: int) -> None:
        """Wakes everybody who waits for a Session, for something that is not in its log."""
        self._used.add(session)
        for bell in self._bells.get(session, ()):
            bell.set()

    def open(self, session: int) -> Bell:
        """A bell that rings from now on. Give it back with `close`."""
        self._used.add(session)
        bell = Bell()
        self._bells.setdefault(session, set()).add(bell)
        return bell

    def close(self, session: int, bell: Bell) -> None:
        """Ends a bell."""
        self._used.add(session)
        bells = self._bells.get(session, set())
        bells.discard(bell)
        if not bells:
            self._bells.pop(session, None)

    def is_heard(self, session: int) -> bool:
        """Whether anybody waits for the Session."""
        return session in self._bells

    def is_loaded(self, session: int) -> bool:
        """Whether the Session is loaded: started, resumed or launched here."""
        return session in self._loaded

    def are_loaded(self, sessions: Iterable[int]) -> bool:
        """Whether all of them are loaded: asked after every commit."""
        return self._loaded.issuperset(sessions)

    def load(self, session: int) -> bool:
        """Loads a Session: commands may now be given to it. Tells whether that was news: of several only one loads."""
        self._used.add(session)
        if session in self._loaded:
            return False
        self._loaded.add(session)
        return True

    def unload(self, session: int) -> None:
        """Ends a load, or takes one back that could not be recorded."""
        self._loaded.discard(session)

    @property
    def loaded(self) -> tuple[int, ...]:
        """The Sessions that are loaded."""
        return tuple(self._loaded)

    def take_used(self) -> set[int]:
        """The Sessions that were read, written or loaded since this was asked last, and those that are read now."""
        used, self._used = self._used | self._bells.keys(), set()
        return used
