"""Secrets: `{"$secret": "NAME"}` in launch input or an agent's spec, resolved at dispatch and never stored.

What is stored, hashed and shown is the reference. What an agent answers may repeat the value: `redact` takes it out
before the outcome reaches the flow, the log or an error, for a flow ctx that held it would write it into everything
downstream. It knows a value as it is, as JSON spells it inside a text, and as the number that it may look like; a value
that an agent has encoded in another way is beyond it.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from refold.errors import RefoldError

Json = Any


class SecretMissing(RefoldError):
    """A secret that neither the environment nor the file knows."""

    kind = "secret_missing"


class Secrets:
    """Where secrets come from: `REFOLD_SECRET_<NAME>` of the environment, else `<NAME>` of the file (mode 0600).

    With `plain_names` a variable may also be named as it is. A server that lets Blueprints run any program loses
    nothing by it, since such a program can read the server's environment anyway; any other server would give a
    Blueprint whatever keys it happens to have.
    """

    def __init__(
        self, file: Path | None = None, environ: Mapping[str, str] = os.environ, *, plain_names: bool = False
    ) -> None:
        self._file = file
        self._environ = environ
        self._plain_names = plain_names
        self._told: dict[str, str] = {}
        self._known = re.compile("(?!)")

    @property
    def is_silent(self) -> bool:
        """Whether no secret was told so far, so that there is nothing to redact."""
        return not self._told

    def resolve(self, value: Json) -> Json:
        """Returns `value` with every reference replaced by what it names. Raises SecretMissing."""
        match value:
            case {"$secret": str(name)} if len(value) == 1:
                return self._tell(name)
            case dict():
                return {key: self.resolve(member) for key, member in value.items()}
            case list():
                return [self.resolve(item) for item in value]
        return value

    def redact(self, value: Json) -> Json:
        """Returns `value` without any secret that was told so far. The same object if there is none in it."""
        if not self._told:
            return value
        match value:
            case str():
                return self._known.sub(lambda found: self._mark(found[0]), value)
            case int() | float() if json.dumps(value) in self._told:
                return self._mark(json.dumps(value))
            case dict():
                return {self.redact(key): self.redact(member) for key, member in value.items()}
            case list() | tuple():
                return [self.redact(item) for item in value]
        return value

    def redactor(self) -> Redactor:
        """What takes secrets out of a text that comes in pieces."""
        return Redactor(self)

    def split(self, text: str) -> tuple[str, str]:
        """The beginning of `text` without secrets, and the end of it that may be the beginning of one."""
        longest = max(map(len, self._told), default=1)
        safe = max(0, len(text) - longest + 1)  # of a match that begins before it, every longer one would be there too
        clean, done = [], 0
        for found in self._known.finditer(text):
            if found.start() >= safe:
                break
            clean += [text[done : found.start()], self._mark(found[0])]
            done = found.end()
        end = max(safe, done)
        return "".join([*clean, text[done:end]]), text[end:]

    def _tell(self, name: str) -> str:
        secret = self._environ.get(f"REFOLD_SECRET_{name}") or self._filed().get(name)
        if not secret and self._plain_names:
            secret = self._environ.get(name)
        if not secret:
            raise SecretMissing(
                f"secret {name} is not set: give it as REFOLD_SECRET_{name}, or in secrets.toml", name=name
            )
        if secret not in self._told:
            spelled = (json.dumps(secret, ensure_ascii=ascii)[1:-1] for ascii in (True, False))
            self._told |= dict.fromkeys((secret, *spelled), name)
            longest_first = sorted(self._told, key=len, reverse=True)  # of "key" and "key-2" neither may leave a rest
            self._known = re.compile("|".join(map(re.escape, longest_first)))
        return secret

    def _mark(self, secret: str) -> str:
        return f"[secret {self._told[secret]}]"

    def _filed(self) -> Mapping[str, str]:
        if self._file is None or not self._file.exists():
            return {}
        try:
            filed = tomllib.loads(self._file.read_text())
        except (OSError, ValueError) as error:
            raise SecretMissing(f"{self._file.name} cannot be read: {error}") from error
        return {name: value for name, value in filed.items() if isinstance(value, str)}


class Redactor:
    """Takes secrets out of a text that comes in pieces, so that the pieces together are `redact` of the whole."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = ""

    def feed(self, piece: str) -> str:
        """What can be said by now: all but an end that may be the beginning of a secret."""
        clean, self._held = self._secrets.split(self._held + piece)
        return clean

    def rest(self) -> str:
        """What was held back, when nothing more comes."""
        held, self._held = self._held, ""
        return self._secrets.redact(held)
