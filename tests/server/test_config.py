"""Configuration: flag over environment over file over default, and what is no configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold.errors import ConfigInvalid
from refold.server.config import Config, Home, load

KEY = "max_running_runs"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "config.toml").write_text(f"{KEY} = 3\nbind = 'file'\n")
    return Home(tmp_path)


def test_flag_over_environment_over_file_over_default(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(Home(home.path / "empty")) == Config()
    assert (load(home).max_running_runs, load(home).bind) == (3, "file")
    monkeypatch.setenv("REFOLD_MAX_RUNNING_RUNS", "4")
    monkeypatch.setenv("REFOLD_BIND", "environment")
    assert (load(home).max_running_runs, load(home).bind) == (4, "environment")
    assert (load(home, {KEY: 5}).max_running_runs, load(home, {KEY: None}).max_running_runs) == (5, 4)


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("REFOLD_STORE", "12", "store", "12"),
        ("REFOLD_SUBPROCESS", "off", "subprocess", "off"),
        ("REFOLD_AUTO_RESUME", "true", "auto_resume", True),
        ("REFOLD_IDLE_UNLOAD_SECS", "1.5", "idle_unload_secs", 1.5),
        ("REFOLD_APP", '["a.b"]', "app", ["a.b"]),
        ("REFOLD_SUBPROCESSES", '{"x": {"program": "y"}}', "subprocesses", {"x": {"program": "y"}}),
        ("REFOLD_STORE", "", "store", None),
    ],
)
def test_every_key_can_be_given_by_the_environment(
    home: Home, monkeypatch: pytest.MonkeyPatch, name: str, text: str, key: str, value: object
) -> None:
    monkeypatch.setenv(name, text)
    assert getattr(load(home), key) == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("REFOLD_MAX_RUNNING_RUNS", "many", "REFOLD_MAX_RUNNING_RUNS='many' is not JSON"),
        ("REFOLD_MAX_RUNNING_RUNS", "0", "max_running_runs"),
        ("REFOLD_SUBPROCESS", "maybe", "subprocess"),
    ],
)
def test_what_the_environment_must_not_say_is_named(
    home: Home, monkeypatch: pytest.MonkeyPatch, name: str, text: str, said: str
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ConfigInvalid, match=said):
        load(home)


def test_an_unknown_key_of_the_file_is_named(home: Home) -> None:
    (home.path / "config.toml").write_text("max_runing_runs = 3\n")
    with pytest.raises(ConfigInvalid, match="max_runing_runs"):
        load(home)
