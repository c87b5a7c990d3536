"""The outputs of logged steps, recognised wherever a flow carries them on, so that what is stored names their rows.

By identity: a flow writes copy-on-write, so an output stands in later ctxs as the very object that its step gave. An
equal value that is another object is not recognised; it is repeated then, which is longer, never wrong.

A text is *spliced* when outputs in it are named: a list of pieces of the text, and of ordinals in place of what the
rows say. Joined again it is the text, byte for byte, whatever was recognised.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from refold.canonical import encode_known

Json = Any
Splice = list[str | int]

REPEATED_BYTES: Final = 128
"""An output whose text is shorter is repeated: naming its row would not be shorter."""


class Outputs:
    """What one driver knows of the outputs in a Run's replay log: those it was answered with, and those it logged."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Json, int]] = {}

    def note(self, ordinal: int, output: Json, text: str) -> None:
        """Notes that row `ordinal` holds `output`, whose JSON is `text`."""
        if len(text) >= REPEATED_BYTES and isinstance(output, dict | list | str):
            self._known[id(output)] = (output, ordinal)  # the reference keeps the id from being given to another

    def ordinal(self, value: Json) -> int | None:
        """The row whose output `value` is; None if it is none, or a short one."""
        known = self._known.get(id(value))
        return None if known is None else known[1]

    def splice(self, value: Json, text: str) -> Splice | None:
        """Splices `text`, the JSON of `value`; None if naming does not make less than half of it."""
        parts: Splice = []
        at = kept = 0
        for output, ordinal in self._within(value):
            told = encode_known(output)
            found = text.find(told, at)
            if found < 0:  # a writer that spells it differently in here: it stays in the piece around it
                continue
            parts += [text[at:found], ordinal]
            kept, at = kept + found - at, found + len(told)
        parts.append(text[at:])
        return parts if 2 * (kept + len(text) - at) < len(text) else None

    def _within(self, value: Json) -> Iterator[tuple[Json, int]]:
        """The outputs inside of `value`, in the order in which JSON writes them."""
        left = [value]
        while left:
            value = left.pop()
            known = self._known.get(id(value))
            if known is not None:
                yield known
            elif isinstance(value, dict):
                left.extend(reversed(value.values()))
            elif isinstance(value, list):
                left.extend(reversed(value))
