"""Configuration: flag > environment > file > default, and the home folder with its token and server.json.

The file is `$REFOLD_HOME/config.toml`. An unknown key is a start-up error that names it: a mistyped limit that is
silently ignored is no limit. The environment names a key as `REFOLD_<KEY>`, and gives numbers, booleans, lists and
tables as JSON. Every command reads this, also one that only asks a server, so it imports nothing that works; what an
App makes of it is `server.settings`.
"""

from __future__ import annotations

import os
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from refold.canonical import decode_strict, encode
from refold.errors import ConfigInvalid, InvalidJson
from refold.service.settings import IDLE_SECS, SubprocessMode

TOKEN_BYTES: Final = 32


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key. `replay_store_path` is the published name of `store`."""

    bind: str = "127.0.0.1:7777"
    store: str | None = None
    replay_store_path: str | None = None
    ephemeral: bool = False
    subprocess: SubprocessMode = "declared"
    default_blueprint: str | None = None
    history_budget_bytes: Annotated[int, Meta(ge=1)] = 4 * 1024 * 1024
    keep_boundaries: Annotated[int, Meta(ge=1)] = 8
    retain_events: Annotated[int, Meta(ge=0)] = 0
    app: list[str] = []
    subprocesses: dict[str, Any] = {}
    """The templates that `--subprocess declared` allows: a table `[subprocesses.NAME]` each."""
    blueprint_roots: list[str] = []
    """The folders beneath which references in Blueprints that come over HTTP are read."""
    replay: Literal["on", "off"] = "on"
    max_running_runs: Annotated[int, Meta(ge=1)] = 200
    max_concurrent_steps: Annotated[int, Meta(ge=1)] = 64
    max_subprocesses: Annotated[int, Meta(ge=1)] = 16
    stale_run_sweep_secs: Annotated[int, Meta(ge=0)] = 3900
    sweep_period_secs: Annotated[float, Meta(gt=0)] = 60.0
    auto_resume: bool = False
    resume_on_decision: bool = True
    idle_unload_secs: Annotated[float, Meta(gt=0)] = IDLE_SECS
    """How long a loaded Session that nobody uses stays loaded."""
    notify_command: list[str] = []
    """A program and its arguments, run when a Run begins to wait for a person."""
    notify_url: str | None = None
    """A web address that is told the same by POST: https, or http on this machine."""
    notify_timeout_secs: Annotated[float, Meta(gt=0, le=300)] = 10.0


class Home:
    """`$REFOLD_HOME` (default `~/.refold`): folders 0700, files 0600, made when first needed."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(os.environ.get("REFOLD_HOME") or Path.home() / ".refold")

    def make(self) -> None:
        """Makes the folder."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def token(self) -> str:
        """The token that opens this home's doors; minted once. Raises ConfigInvalid for a file that holds none."""
        self.make()
        file = self.path / "token"
        if not file.exists():
            self._mint(file)
        token = file.read_text().strip()
        if not token:
            raise ConfigInvalid(f"{file} is empty, and an empty token would open every door; delete the file")
        return token

    def _mint(self, file: Path) -> None:
        """Makes the file with all of its content at once: who comes meanwhile must not read an empty token."""
        draft = file.with_name(f"token.{os.getpid()}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
        try:
            file.hardlink_to(draft)
        except FileExistsError:
            pass  # another process was first; its token it is
        finally:
            draft.unlink()

    @property
    def server_file(self) -> Path:
        """Where the holder says how to reach it."""
        return self.path / "server.json"

    def server(self) -> dict[str, Any]:
        """What server.json says; empty if there is none. It may be stale: the store's lock decides."""
        try:
            said = decode_strict(self.server_file.read_bytes())
        except (FileNotFoundError, InvalidJson):
            return {}
        return said if isinstance(said, dict) else {}

    def announce(self, server: Mapping[str, Any]) -> None:
        """Writes server.json whole or not at all: a reader never sees half of it."""
        draft = self.server_file.with_suffix(f".{os.getpid()}")
        draft.touch(mode=0o600)
        draft.write_text(encode(dict(server)) + "\n")
        draft.replace(self.server_file)

    def retract(self) -> None:
        """Removes server.json if it is ours."""
        if self.server().get("pid") == os.getpid():
            self.server_file.unlink(missing_ok=True)


def load(home: Home, flags: Mapping[str, Any] | None = None) -> Config:
    """The configuration of `home` under `flags` (None members are not given). Raises ConfigInvalid."""
    given: dict[str, Any] = {}
    file = home.path / "config.toml"
    if file.exists():
        try:
            given |= tomllib.loads(file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigInvalid(f"{file} is not TOML: {error}") from None
    given |= _environment()
    given |= {name: value for name, value in (flags or {}).items() if value is not None}
    try:
        return msgspec.convert(given, Config)
    except msgspec.ValidationError as error:
        raise ConfigInvalid(f"configuration ({file}, environment, flags): {error}") from None


def _environment() -> dict[str, Any]:
    """The keys that the environment names. It has texts only: other values are read as JSON."""
    given: dict[str, Any] = {}
    for field in msgspec.structs.fields(Config):
        name = f"REFOLD_{field.name.upper()}"
        text = os.environ.get(name)
        if not text:
            continue
        try:
            given[field.name] = text if _is_text(field) else decode_strict(text)
        except InvalidJson as error:
            raise ConfigInvalid(f"{name}={text[:80]!r} is not JSON: {error.message}") from None
    return given


def _is_text(field: msgspec.structs.FieldInfo) -> bool:
    return field.default is None or isinstance(field.default, str)


def store_path(config: Config, home: Home) -> Path:
    """The file of the embedded store."""
    named = config.store or config.replay_store_path
    return Path(named).expanduser().absolute() if named else home.path / "store" / "refold.db"
