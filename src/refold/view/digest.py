"""The fold digest: two folds of one Session agree exactly if their digests do, and so do a client's and the server's.

    <sum of SHA-256(canonical item), modulo 2**256, in hex>.<SHA-256(canonical rest), in hex>

The sum makes an item's change cost that item, not the Session. It does not depend on the items' order, which their
first openings fix anyway. The rest is small and hashed whole. What the rest is: `snapshot.fold_digest`.

The same pass counts bytes: how long the items are as canonical JSON, whole and elided, so that a rung of the resume
ladder is chosen without encoding what is then not sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from refold.canonical import Json, canonical

ELIDED_MEMBERS: Final = frozenset({"visibleOutput", "text"})
"""The payload of an item with an `outputRef`: an elided snapshot leaves it out, item/readOutput gives it back."""

_MODULUS: Final = 1 << 256


class Leaf(NamedTuple):
    """What is known of one item: its hash as a number, its bytes, and its bytes without payload."""

    hash: int
    size: int
    elided: int


@dataclass(frozen=True, slots=True)
class Totals:
    """Over all items: the sum of the hashes, and the bytes of the items as a JSON array, whole and elided."""

    sum: int
    size: int
    elided: int


class Tally:
    """Keeps the totals over a fold's items. `touch` is called per change, `totals` pays for what changed since."""

    __slots__ = ("_elided", "_elsewhere", "_leaves", "_size", "_sum", "_touched")

    def __init__(self) -> None:
        self._leaves: dict[str, Leaf] = {}
        self._touched: set[str] = set()
        self._sum = self._size = self._elided = 0
        self._elsewhere = 0
        """How many items count that the fold does not hold."""

    @classmethod
    def of_some(cls, held: Iterable[Json], whole: Totals, count: int) -> Tally:
        """Returns the tally of a fold that holds only some of `count` items, whose totals are `whole`."""
        tally = cls()
        tally._leaves = {item["itemId"]: _leaf(item) for item in held}
        tally._elsewhere = count - len(tally._leaves)
        around = _around(count)
        tally._sum, tally._size, tally._elided = whole.sum, whole.size - around, whole.elided - around
        return tally

    def touch(self, item_id: str) -> None:
        """Notes that the item has changed. Items are never taken away."""
        self._touched.add(item_id)

    def totals(self, items: Mapping[str, Json]) -> Totals:
        """Returns the totals over `items`, which are those of the fold that calls `touch`."""
        for item_id in self._touched:
            new, old = _leaf(items[item_id]), self._leaves.get(item_id, Leaf(0, 0, 0))
            self._leaves[item_id] = new
            self._sum = (self._sum + new.hash - old.hash) % _MODULUS
            self._size += new.size - old.size
            self._elided += new.elided - old.elided
        self._touched.clear()
        around = _around(self._elsewhere + len(self._leaves))
        return Totals(self._sum, self._size + around, self._elided + around)

    @property
    def weight(self) -> int:
        """The bytes of all items as `totals` found them last."""
        return self._size

    def copy(self) -> Tally:
        """Returns a tally that goes its own way from here."""
        twin = Tally()
        twin._leaves, twin._touched = dict(self._leaves), set(self._touched)
        twin._sum, twin._size, twin._elided = self._sum, self._size, self._elided
        twin._elsewhere = self._elsewhere
        return twin


def _around(count: int) -> int:
    """The brackets and commas of an array of so many items."""
    return 2 + max(0, count - 1)


def join(items_sum: int, rest: Json) -> str:
    """Returns the digest text of the sum over the items and of the rest."""
    return f"{items_sum:064x}.{hashlib.sha256(canonical(rest)).hexdigest()}"


def items_sum(text: str) -> int:
    """Returns the sum over the items that `join` put into a digest text."""
    return int(text.partition(".")[0], 16)


def elide_item(item: Json) -> Json:
    """Returns `item` without its payload if that can be read by reference, otherwise `item` itself."""
    if "outputRef" not in item:
        return item
    return {name: value for name, value in item.items() if name not in ELIDED_MEMBERS}


def _leaf(item: Json) -> Leaf:
    text = canonical(item)
    slim = elide_item(item)
    elided = len(text) if slim is item else len(canonical(slim))
    return Leaf(int.from_bytes(hashlib.sha256(text).digest()), len(text), elided)
