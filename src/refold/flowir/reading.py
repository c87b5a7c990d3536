"""Reading JSON into shapes without stopping at the first fault.

A *reader* turns a JSON value into what it stands for, or notes faults and returns None; nothing that was read beside a
fault is ever used. Field tables say which members an object has; `members` reads them all and rejects every other.
Which tables there are is in `parse` and `agents`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from refold.canonical import type_name
from refold.errors import BlueprintInvalid

Json = Any

_PLAIN_KEY: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


class Reading:
    """One pass over one document: the faults so far, and the names that references are checked against (None = not)."""

    def __init__(self, agents: frozenset[str] | None = None, metas: frozenset[str] | None = None) -> None:
        self.agents = agents
        self.metas = metas
        self.faults: list[dict[str, str | None]] = []

    def fault(self, at: At, kind: str, message: str, hint: str | None = None) -> None:
        """Notes a fault at a place."""
        self.faults.append({"path": at.path, "kind": kind, "message": message, "hint": hint})

    def finish(self, noun: str) -> None:
        """Raises BlueprintInvalid with every fault if there is one."""
        if self.faults:
            count, first = len(self.faults), self.faults[0]
            plural = "" if count == 1 else f" and {count - 1} more"
            raise BlueprintInvalid(f"invalid {noun}: {first['path']}: {first['message']}{plural}", faults=self.faults)


class At(msgspec.Struct, frozen=True):
    """A place in the document: the way to it, and inside how many nodes and expressions it lies.

    A place is made for every value that is read, and told for hardly one: its path is spelt when it is asked for.
    """

    before: At | None = None
    step: str | int = ""
    depth: int = 0

    def member(self, key: str) -> At:
        """The place of a member."""
        return At(self, key, self.depth)

    def item(self, index: int) -> At:
        """The place of an array item."""
        return At(self, index, self.depth)

    def deeper(self) -> At:
        """The same place, seen from one node or expression further in."""
        return At(self.before, self.step, self.depth + 1)

    @property
    def path(self) -> str:
        """Its JSON path."""
        steps, at = list[str](), self
        while at.before is not None:
            steps.append(_spelt(at.step))
            at = at.before
        return "$" + "".join(reversed(steps))


def _spelt(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN_KEY.fullmatch(step) else f"[{json.dumps(step, ensure_ascii=False)}]"


Reader = Callable[[Reading, Json, At], Any]


class Field(NamedTuple):
    """A member of an object: how it is read, what the shape calls it (None = the same), whether it must be there."""

    read: Reader
    attr: str | None = None
    required: bool = True


Fields = Mapping[str, Field]


def need(read: Reader, attr: str | None = None) -> Field:
    """A member that must be present."""
    return Field(read, attr)


def may(read: Reader, attr: str | None = None) -> Field:
    """A member that may be absent, or null, which means the same."""
    return Field(read, attr, required=False)


def members(
    reading: Reading, value: Json, at: At, fields: Fields, *, ignore: Iterable[str] = (), open_ended: bool = False
) -> dict[str, Any] | None:
    """Reads an object by its field table; notes missing and, unless `open_ended`, unknown members.

    Returns attr -> what was read, for the members that are present; None if the value is no object.
    """
    if not isinstance(value, dict):
        return wrong_type(reading, value, at, "an object")
    if not open_ended:
        for key in value:
            if key not in fields and key not in ignore:
                reading.fault(at.member(key), "unknown_key", f"unknown member {key!r}", hint_for(key, fields))
    got = {}
    for key, (read, attr, required) in fields.items():
        if key in value and (required or value[key] is not None):
            got[attr or key] = read(reading, value[key], at.member(key))
        elif required:
            reading.fault(at, "missing_key", f"member {key!r} is missing")
    return got


def hint_for(word: str, known: Iterable[str]) -> str:
    """What to write instead of an unknown word."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(names) or 'none'}"


def wrong_type(reading: Reading, value: Json, at: At, expected: str) -> None:
    """Notes a value of the wrong JSON type."""
    reading.fault(at, "wrong_type", f"expected {expected}, got {type_name(value)}")


# -- readers for plain values -----------------------------------------------------------------------------------------


def anything(reading: Reading, value: Json, at: At) -> Json:
    """Any JSON value, kept as it is."""
    return value


def of_type(kind: type, expected: str) -> Reader:
    """A value of exactly this Python type: True is no integer."""

    def read(reading: Reading, value: Json, at: At) -> Json:
        return value if type(value) is kind else wrong_type(reading, value, at, expected)

    return read


obj: Final = of_type(dict, "an object")
text: Final = of_type(str, "a string")
boolean: Final = of_type(bool, "a boolean")


def name(reading: Reading, value: Json, at: At) -> str | None:
    """A string that is not empty and holds no NUL (the operating system would cut it there)."""
    if type(value) is str and (not value or "\0" in value):
        return reading.fault(at, "bad_value", "expected a string that is not empty and holds no NUL character")
    return text(reading, value, at)


def argument(reading: Reading, value: Json, at: At) -> Json:
    """A string without NUL, as the operating system takes it, or `{"$secret": NAME}`, which becomes one at dispatch."""
    if type(value) is dict and list(value) == ["$secret"]:
        name(reading, value["$secret"], at.member("$secret"))
        return value
    return value if value == "" else name(reading, value, at)


def integer(low: int, high: int) -> Reader:
    """An integer between two bounds, both allowed. 3.0 is none."""

    def read(reading: Reading, value: Json, at: At) -> int | None:
        if type(value) is not int:
            return wrong_type(reading, value, at, "an integer")
        return _bounded(reading, value, at, low, high)

    return read


def number(low: float, high: float) -> Reader:
    """A number between two bounds, both allowed."""

    def read(reading: Reading, value: Json, at: At) -> int | float | None:
        if type(value) is not int and type(value) is not float:
            return wrong_type(reading, value, at, "a number")
        return _bounded(reading, value, at, low, high)

    return read


def _bounded(reading: Reading, value: Json, at: At, low: float, high: float) -> Json:
    if low <= value <= high:
        return value
    return reading.fault(at, "bad_value", f"expected {low} to {high}, got {str(value)[:40]}")


def choice(*values: str) -> Reader:
    """One of some words."""

    def read(reading: Reading, value: Json, at: At) -> str | None:
        if type(value) is not str:
            return wrong_type(reading, value, at, "a string")
        if value not in values:
            return reading.fault(at, "bad_value", f"unknown value {value[:80]!r}", hint_for(value, values))
        return value

    return read


def array(read_item: Reader) -> Reader:
    """An array; becomes a tuple."""

    def read(reading: Reading, value: Json, at: At) -> tuple[Any, ...] | None:
        if type(value) is not list:
            return wrong_type(reading, value, at, "an array")
        return tuple(read_item(reading, item, at.item(index)) for index, item in enumerate(value))

    return read


def mapping(read_value: Reader) -> Reader:
    """An object with keys of the author's choice."""

    def read(reading: Reading, value: Json, at: At) -> dict[str, Any] | None:
        if type(value) is not dict:
            return wrong_type(reading, value, at, "an object")
        return {key: read_value(reading, item, at.member(key)) for key, item in value.items()}

    return read
