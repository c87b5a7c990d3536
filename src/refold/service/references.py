"""References in Blueprints, `{"$file": "rel"}` and `{"$agent_md": "rel", …siblings}`, replaced by what they name.

    {"$file": rel}               becomes the text of the file
    {"$agent_md": rel, …more}    becomes the agent that the file describes, with the members of `more` over its own

What is stored, hashed and run is the expanded body: a reference never outlives the moment when it is read. A reference
is read beneath a root, or it is a fault; there is no third way. Law: no byte of a file outside the roots is ever read,
whatever the reference says, whatever links lie beneath the roots, and whoever moves them meanwhile.

Each root is tried in order, first as it is, then beneath each of the Blueprint's `blueprint_ref_includes`; the first
file that is there counts. Source of the rule: mse 3.2, design §9.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from refold.canonical import decode, encode, encode_known
from refold.errors import BadInput
from refold.flowir.reading import At, Reading

Json = Any

TOTAL_BYTES: Final = 10 * 1024 * 1024
"""All that one Blueprint may read: a body of small references to a large file would grow without end."""
AGENT_KIND: Final = "operator"
"""The kind of an agent.md's agent where neither the reference nor the Blueprint names one."""

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO would be waited for


class References:
    """Expands the references of Blueprints beneath some roots; without roots every reference is a fault."""

    def __init__(self, roots: Sequence[Path] = ()) -> None:
        self._roots = tuple(roots)

    def expand(self, value: Json) -> Json:
        """`value` without references: a copy, or itself if it has none.

        Raises:
            BlueprintInvalid: with a fault for every reference that cannot be read.
            InvalidJson: `value` is no JSON value.
        """
        if not _may_refer(value):
            return value
        expansion = _Expansion(self._roots, value)
        expanded = expansion.walk(value, At())
        expansion.reading.finish("blueprint")
        return expanded


def _may_refer(value: Json) -> bool:
    """Whether there may be something to expand: most launches name nothing, and pay for a look at their text only."""
    text = encode_known(value)
    if decode(text) != value:  # NaN, which would be null by now; to compare is quicker than to look at every part
        text = encode(value)
    return '"$file"' in text or '"$agent_md"' in text


class _Expansion:
    """One pass over one Blueprint."""

    def __init__(self, roots: tuple[Path, ...], value: Json) -> None:
        self.reading = Reading()
        top = value if isinstance(value, dict) else {}
        kind, includes = top.get("default_agent_kind"), top.get("blueprint_ref_includes")
        self._kind = kind if isinstance(kind, str) else AGENT_KIND
        self._roots = roots
        folders = includes if isinstance(includes, list) else []
        self._folders = ["", *(each for each in folders if isinstance(each, str))]
        self._left = TOTAL_BYTES

    def walk(self, value: Json, at: At) -> Json:
        match value:
            case {"$file": ref} if len(value) == 1:
                return self._text(ref, at.member("$file"))
            case {"$agent_md": ref, **siblings}:
                agent = self._agent(ref, at.member("$agent_md"))
                return agent | {key: self.walk(each, at.member(key)) for key, each in siblings.items()}
            case dict():
                return {key: self.walk(each, at.member(key)) for key, each in value.items()}
            case list():
                return [self.walk(each, at.item(index)) for index, each in enumerate(value)]
        return value

    def _agent(self, ref: Json, at: At) -> dict[str, Json]:
        # Imported here: few Blueprints name such a file, and every process would load a YAML parser for it.
        from refold.service.agent_md import parse_agent_md

        text = self._text(ref, at)
        try:
            return {} if text is None else parse_agent_md(text, self._kind)
        except BadInput as error:
            self.reading.fault(at, error.kind, f"{str(ref)[:80]!r}: {error.message}")
            return {}

    def _text(self, ref: Json, at: At) -> str | None:
        """The text that a reference names; notes a fault if there is none."""
        try:
            data = self._found(ref)
        except _Refused as refusal:
            return self.reading.fault(at, refusal.kind, str(refusal), refusal.hint)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return self.reading.fault(at, "reference_unreadable", f"{ref!r} is not UTF-8 text")

    def _found(self, ref: Json) -> bytes:
        _check(ref)
        if not self._roots:
            hint = "embed what it names, or set blueprint_roots in the server's config.toml"
            raise _Refused("reference_not_read", f"{ref!r} is not read: no roots are configured", hint)
        for folder in self._folders:
            for root in self._roots:
                name = f"{folder}/{ref}" if folder else ref
                _check(name)
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    data = _read_beneath(root, name, self._left)
                    self._left -= len(data)
                    return data
        raise _Refused("reference_not_found", f"there is no file {ref!r} beneath {', '.join(map(str, self._roots))}")


class _Refused(Exception):
    """A reference that is not read, and why."""

    def __init__(self, kind: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.hint = hint


def _check(ref: Json) -> None:
    """Raises _Refused for what is no relative path into a folder, before anything is asked of the file system."""
    if not isinstance(ref, str) or not ref or "\0" in ref:
        raise _Refused("reference_refused", "a reference is the relative path of a file")
    if PurePosixPath(ref).is_absolute() or ".." in PurePosixPath(ref).parts:
        hint = "references are relative and stay beneath their root"
        raise _Refused("reference_refused", f"{ref[:80]!r} leads outside", hint)


def _read_beneath(root: Path, name: str, limit: int) -> bytes:
    """The bytes of the file `name` beneath `root`.

    Links are followed while they stay beneath the root. The path that they resolve to is then opened part by part, each
    relative to the one before and none through a link: one that is put there after the look is refused by the kernel.

    Raises:
        FileNotFoundError, NotADirectoryError: there is no such file.
        _Refused: it lies outside, is no plain file, has more than `limit` bytes, or may not be read.
    """
    try:
        top = root.resolve(strict=True)
        target = (top / name).resolve(strict=True)
        if not target.is_relative_to(top) or target == top:
            raise _Refused("reference_refused", f"{name[:80]!r} leads outside", "a link leads out of the root")
        with contextlib.ExitStack() as opened:
            found = _descend(top, target.relative_to(top).parts)
            opened.callback(os.close, found)
            if not stat.S_ISREG(os.fstat(found).st_mode):
                raise _Refused("reference_unreadable", f"{name[:80]!r} is no plain file")
            with open(found, "rb", closefd=False) as file:
                data = file.read(limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, RuntimeError) as error:  # a loop of links is a RuntimeError
        raise _Refused("reference_unreadable", f"{name[:80]!r} cannot be read: {error}") from None
    if len(data) > limit:
        raise _Refused("reference_too_large", f"{name[:80]!r} is too large: {TOTAL_BYTES} bytes are read in all")
    return data


def _descend(top: Path, parts: Sequence[str]) -> int:
    """A descriptor of the file `parts` lead to from `top`; raises OSError."""
    folder = os.open(top, _DIRECTORY)
    for part in parts[:-1]:
        try:
            deeper = os.open(part, _DIRECTORY, dir_fd=folder)
        finally:
            os.close(folder)
        folder = deeper
    try:
        return os.open(parts[-1], _FILE, dir_fd=folder)
    finally:
        os.close(folder)
