"""What an App is told: its store, its limits, what it allows.

It is read by whoever makes an App, and by commands that only look where one is; so it imports nothing that works.

Not here: where it is told from (`server.config`, `server.settings`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

SubprocessMode = Literal["any", "declared", "off"]
"""Whether Blueprints may name programs: `service.programs` says what each of them allows."""

IDLE_SECS: Final = 30 * 60.0
"""How long a loaded Session that nobody uses stays loaded."""


class ViewSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What views are kept and served under."""

    history_budget_bytes: int = 4 * 1024 * 1024
    """The most bytes of history that one answer carries."""
    keep_boundaries: int = 8
    retain_events: int = 0
    """How many of the newest log rows stay when older ones are taken away; 0 keeps all."""
    compact_events: int = 512
    """A Session compacts by itself after so many events, if they changed a quarter of its state."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What an App is told. `store` None is a store in memory that ends with the process."""

    store: Path | None = None
    subprocess: SubprocessMode = "declared"
    default_blueprint: str | None = None
    view: ViewSettings = ViewSettings()
    app: Mapping[str, Callable[..., Any]] = msgspec.field(default_factory=dict)
    templates: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The subprocess templates of the configuration, by name, as `flowir.templates` has read them."""
    blueprint_roots: tuple[Path, ...] = ()
    """The folders beneath which references in Blueprints are read; none of them: they are faults."""
    replay: bool = True
    """False: no replay rows are written, and no Run can be resumed."""
    secrets_file: Path | None = None
    max_running_runs: int = 200
    max_concurrent_steps: int = 64
    max_subprocesses: int = 16
    stale_run_sweep_secs: int = 3900
    """How long a Run without a driver may stand still before the sweep interrupts it; 0 turns the sweep off."""
    sweep_period_secs: float = 60.0
    auto_resume: bool = False
    resume_on_decision: bool = True
    idle_unload_secs: float = IDLE_SECS
    """How long a loaded Session that nobody uses stays loaded."""
    notify_command: tuple[str, ...] = ()
    """A program that is run when a Run begins to wait for a person; none if it is empty."""
    notify_url: str | None = None
    """A web address that is told the same."""
    notify_timeout_secs: float = 10.0
