"""Replay keys: what makes two dispatches the same question.

The hash covers what is asked and where, never when: in a fan-out the lane is hashed with the directive, so lanes that
ask the same thing cannot swap answers when they ask in another order. Frozen (design §4): a change here makes every
stored log unreadable.
"""

from __future__ import annotations

from typing import Any

from refold.canonical import digest
from refold.records import Lane

Json = Any


def input_hash(directive: Json, lane: Lane = ()) -> str:
    """Returns the hex SHA-256 of the directive alone outside fan-outs, of `{"input", "lane"}` inside.

    Raises:
        InvalidJson: the directive is not a JSON value that can be written.
    """
    return digest({"input": directive, "lane": lane} if lane else directive)
