"""What agents say while they work: text of open items, kept for a moment, and in memory only.

It is no event. Nothing is logged, nothing can be paged or asked for again; the item's end brings the whole. A reader
pulls what was said since it pulled last, as it pulls the log: a slow one gets longer pieces, and one that comes back
after more than `WINDOW` characters gets none of that item any more. So what a reader has of an item is always the
beginning of what was said, and never has a hole in it.

Not here: who speaks (`engine.speech`), what a piece looks like (`view.record`), who is told (`subscription`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from refold.session.hub import Hub
from refold.view import GENESIS, Position

WINDOW: Final = 64 * 1024
"""How many of the last characters of an item are kept."""

ENDED: Final = 64
"""How many items that have ended keep their text: until a reader in step has pulled the last of it."""


class Utterance:
    """What was said of one item, by the attempt that spoke first."""

    __slots__ = ("_kept", "attempt", "item_id", "opened", "said")

    def __init__(self, item_id: str, opened: int, attempt: int) -> None:
        self.item_id = item_id
        self.opened = opened
        """The seq of the record that opened the item."""
        self.attempt = attempt
        self.said = 0
        """How many characters were said in all."""
        self._kept = ""

    def add(self, text: str, *, keep: bool) -> None:
        """Takes a piece. Of one that nobody hears only the length is kept."""
        self.said += len(text)
        self._kept = self._kept + text if keep else ""
        if len(self._kept) > 2 * WINDOW:
            self._kept = self._kept[-WINDOW:]

    def since(self, start: int) -> str | None:
        """What was said from the character `start` on; None if the beginning of that is not kept any more."""
        missing = self.said - len(self._kept)
        return self._kept[start - missing :] if start >= missing else None


class Live:
    """The utterances of this process."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self.utterances: dict[int, dict[str, Utterance]] = {}
        """By Session and item; read only, by others: most readers learn here that nobody has said anything."""
        self._ended: deque[tuple[int, str]] = deque()

    def say(self, session: int, opened: int, item_id: str, attempt: int, text: str) -> None:
        """An attempt says more of its item, and whoever reads the Session is woken.

        A retry is not heard once an earlier attempt was: readers would have the two texts as one.
        """
        found = self.utterances.setdefault(session, {})
        utterance = found.get(item_id)
        if utterance is None:
            utterance = found[item_id] = Utterance(item_id, opened, attempt)
        if utterance.attempt == attempt:
            utterance.add(text, keep=self._hub.is_heard(session))
            self._hub.wake(session)

    def end(self, session: int, item_id: str) -> None:
        """An attempt has said all it will. Its item ends soon, or a retry goes on in silence."""
        if item_id not in self.utterances.get(session, ()):
            return
        self._ended.append((session, item_id))
        while len(self._ended) > ENDED:
            gone, item = self._ended.popleft()
            utterances = self.utterances.get(gone, {})
            utterances.pop(item, None)
            if not utterances:
                self.utterances.pop(gone, None)

    def of(self, session: int) -> Sequence[Utterance]:
        """What was said of the items of a Session that are open, or have just ended."""
        return tuple(self.utterances.get(session, {}).values())


class Piece(NamedTuple):
    """What a reader is told next of an item: from which character on, and as the how manieth after its position."""

    item_id: str
    start: int
    text: str
    fragment: int


class Listener:
    """What one reader has heard. It hears items from their beginning: what was said before it came, it never hears."""

    def __init__(self, live: Live, session: int) -> None:
        self._live = live
        self._session = session
        self._heard: dict[str, int] = {}
        """How many characters it has of each item."""
        self._deaf_to: set[str] = set()
        """Items of which it has missed something."""
        self._at = GENESIS
        self._fragments = 0
        self.miss()

    def hears(self, position: Position) -> bool:
        """Whether there are `pieces`."""
        return self._session in self._live.utterances and bool(self.pieces(position))

    def pieces(self, position: Position) -> list[Piece]:
        """What was said since, of items that a reader at `position` knows, one piece an item."""
        if position != self._at:
            self._at, self._fragments = position, 0
        utterances = self._live.of(self._session)
        now = {each.item_id for each in utterances}
        self._deaf_to &= now
        self._heard = {item: count for item, count in self._heard.items() if item in now}
        found: list[Piece] = []
        for each in utterances:
            heard = self._heard.get(each.item_id, 0)
            if each.item_id in self._deaf_to or each.opened > position.seq or heard == each.said:
                continue
            text = each.since(heard)
            if text is None:
                self._deaf_to.add(each.item_id)
            else:
                found.append(Piece(each.item_id, heard, text, self._fragments + len(found) + 1))
        return found

    def take(self, piece: Piece) -> None:
        """The reader has a piece."""
        self._heard[piece.item_id] = piece.start + len(piece.text)
        self._fragments = max(self._fragments, piece.fragment)

    def miss(self) -> None:
        """All that was said so far passes by: the reader has just come, or has jumped over what it was about."""
        self._deaf_to.update(each.item_id for each in self._live.of(self._session) if each.said)
