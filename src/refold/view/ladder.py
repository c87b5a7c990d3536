"""The ladder of a resume: in which forms history may be served, in which order they are tried, and what is reported.

`attempts` gives all rungs at once, `choose` takes the first that exists and fits, `history` reports the rung that was
taken: what is served is what is reported, never what was asked for.

Laws. With a larger budget the same or an earlier rung is taken. A resume at a stale cursor never ends at a rung that
serves nothing: the client would keep its state and silently miss events, so nothing fitting is the caller's
`ViewTruncated`. An anchored snapshot exists only where a boundary is installed and usable; it is never replaced by a
fold from genesis in its name.

Not here: making the snapshots (`snapshot`), whether a cursor is held (services: it depends on what is retained).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Final

from refold.canonical import Json


class Preference(StrEnum):
    """The form of history a client would like best."""

    AUTO = "auto"
    INLINE = "inline"
    SNAPSHOT = "snapshot"
    ANCHORED = "anchored"


class Anchor(StrEnum):
    """How the position that the request names stands."""

    ABSENT = "absent"
    """It names none."""
    HELD = "held"
    """Every durable event after it is retained."""
    STALE = "stale"
    """It was real, and some event after it is not retained any more."""


class Rung(StrEnum):
    """One form in which history is served. The first four carry it, the others say why they do not."""

    ANCHORED = "anchored"
    INLINE = "inline"
    SNAPSHOT = "snapshot"
    ELIDED = "elided"
    BUDGET = "budget"
    SUFFIX = "suffix"
    EXCLUDED = "excluded"


_LADDER: Final = (Rung.ANCHORED, Rung.INLINE, Rung.SNAPSHOT, Rung.ELIDED)
_PREFERRED: Final[Mapping[str, tuple[Rung, ...]]] = {
    Preference.AUTO: _LADDER,
    Preference.ANCHORED: _LADDER,
    Preference.INLINE: _LADDER[1:],
    Preference.SNAPSHOT: _LADDER[2:],
}
_SLOT: Final[Mapping[Rung, tuple[str, str]]] = {
    Rung.ANCHORED: ("anchoredSnapshot", "snapshot"),
    Rung.INLINE: ("inline", "items"),
    Rung.SNAPSHOT: ("snapshot", "snapshot"),
    Rung.ELIDED: ("snapshot", "snapshot"),
}
"""Mode on the wire, and the member that carries the payload. An elided snapshot is no mode of its own."""

_REASON: Final[Mapping[Rung, str]] = {
    Rung.BUDGET: "historyBudget",
    Rung.SUFFIX: "cursorSuffix",
    Rung.EXCLUDED: "excluded",
}
"""Why mode `none` is served."""


def attempts(preference: str, anchor: Anchor = Anchor.ABSENT, exclude_items: bool = False) -> tuple[Rung, ...]:
    """Returns the rungs to try, in order.

    A cursor decides before everything else: held, its suffix is all there is to serve, whatever was preferred or
    excluded; stale, the whole ladder is tried, and there is no last rung that always fits.
    """
    if anchor is Anchor.HELD:
        return (Rung.SUFFIX,)
    if anchor is Anchor.STALE:
        return _LADDER
    if exclude_items:
        return (Rung.EXCLUDED,)
    return (*_PREFERRED[preference], Rung.BUDGET)


def choose(rungs: tuple[Rung, ...], budget: int, size: Callable[[Rung], int | None]) -> Rung | None:
    """Returns the first rung that exists and fits, None if there is none.

    Args:
        rungs: from `attempts`.
        budget: the most bytes of history that one answer may carry. What carries none always fits.
        size: the bytes of the history that a rung would serve (`snapshot.weigh`), None if the rung does not exist.
            Asked in order and only as far as needed, so that a rung may be expensive to weigh.
    """
    for rung in rungs:
        if rung in _REASON:
            return rung
        weight = size(rung)
        if weight is not None and weight <= budget:
            return rung
    return None


def history(rung: Rung, payload: Json = None) -> dict[str, Json]:
    """Returns the history member of an answer that serves `rung`; `payload` is the items or the snapshot, if any."""
    if rung in _REASON:
        assert payload is None, "a payload under mode none would be served without being reported"
        return {"mode": "none", "items": None, "snapshot": None, "noneReason": _REASON[rung]}
    mode, member = _SLOT[rung]
    return {"mode": mode, "items": None, "snapshot": None, member: payload}
