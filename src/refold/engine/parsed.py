"""Parsed Blueprints by their text: a launch, its driver and every later launch of the same body parse it once.

The key is the stored text, not the version: 3 and 3.0 have one canonical form and so one version, but `max: 3.0` is a
fault and `max: 3` is not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from refold.canonical import digest, encode_known
from refold.flowir import Blueprint, parse_blueprint

Json = Any

KEPT = 256


class Body(NamedTuple):
    """What a body says, and its version: its hash."""

    blueprint: Blueprint
    version: str


class Parsed:
    """Parses a body once, as long as it is among the last `KEPT` that were asked for."""

    def __init__(self) -> None:
        self._kept: dict[str, Body] = {}

    def get(self, value: Json) -> Body:
        """The Blueprint that `value`, a JSON value, describes; raises BlueprintInvalid."""
        text = encode_known(value)
        body = self._kept.pop(text, None)
        if body is None:
            body = Body(parse_blueprint(value), digest(value))
        self._kept[text] = body
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return body
