"""What an App is told of a configuration: paths resolved, templates read, app modules loaded."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from refold.errors import BlueprintInvalid, ConfigInvalid
from refold.flowir.templates import check_templates
from refold.server.config import Config, Home, store_path
from refold.service.channels import check_url
from refold.service.settings import Settings, ViewSettings


def settings(config: Config, home: Home) -> Settings:
    """What the App is told, with paths resolved and app modules loaded. Raises ConfigInvalid."""
    return Settings(
        store=None if config.ephemeral else store_path(config, home),
        subprocess=config.subprocess,
        default_blueprint=config.default_blueprint,
        view=ViewSettings(
            history_budget_bytes=config.history_budget_bytes,
            keep_boundaries=config.keep_boundaries,
            retain_events=config.retain_events,
        ),
        replay=config.replay == "on",
        secrets_file=home.path / "secrets.toml",
        max_running_runs=config.max_running_runs,
        max_concurrent_steps=config.max_concurrent_steps,
        max_subprocesses=config.max_subprocesses,
        stale_run_sweep_secs=config.stale_run_sweep_secs,
        sweep_period_secs=config.sweep_period_secs,
        auto_resume=config.auto_resume,
        resume_on_decision=config.resume_on_decision,
        idle_unload_secs=config.idle_unload_secs,
        notify_command=tuple(config.notify_command),
        notify_url=_url(config.notify_url),
        notify_timeout_secs=config.notify_timeout_secs,
        templates=templates(config),
        blueprint_roots=tuple(_folder(each) for each in config.blueprint_roots),
        app={name: function for module in config.app for name, function in _functions(module).items()},
    )


def templates(config: Config) -> dict[str, Any]:
    """The subprocess templates of the configuration, by name. Raises ConfigInvalid with every fault."""
    try:
        return {each["name"]: each for each in check_templates(config.subprocesses)}
    except BlueprintInvalid as error:
        faults = "; ".join(f"{fault['path']}: {fault['message']}" for fault in error.data["faults"])
        raise ConfigInvalid(f"configuration: {faults}") from None


def _url(url: str | None) -> str | None:
    if url is not None:
        check_url(url)
    return url


def _folder(named: str) -> Path:
    folder = Path(named).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigInvalid(f"configuration: blueprint_roots: {named} is no folder")
    return folder


def _functions(module: str) -> dict[str, Callable[..., Any]]:
    """The functions that agents of kind `python` may name: those that `module` itself defines or imports by name."""
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise ConfigInvalid(f"--app {module}: cannot be imported: {error}") from error
    return {f"{module}:{name}": each for name, each in inspect.getmembers(loaded, inspect.isroutine)}
