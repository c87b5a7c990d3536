"""The home folder: its token is whole or not there, whoever comes at the same time."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from refold.errors import ConfigInvalid
from refold.server.config import Home


def test_the_token_is_minted_once_and_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    token = home.token()
    assert len(token) >= 32
    assert Home(tmp_path / "home").token() == token
    assert (tmp_path / "home" / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
    assert [file.name for file in (tmp_path / "home").iterdir()] == ["token"], "no draft is left"


def test_a_token_is_never_seen_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process reads the token at every moment of its making: it gets the token or makes its own, never ``."""
    home, seen = Home(tmp_path), []
    real = os.fdopen

    def slow(*args: object, **more: object) -> object:
        monkeypatch.undo()  # the other one is not slow
        seen.append(Home(tmp_path).token())
        return real(*args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "fdopen", slow)
    token = home.token()
    assert seen == [token]


def test_those_that_mint_at_once_agree(tmp_path: Path) -> None:
    tokens: list[str] = []
    gate = threading.Barrier(8)

    def mint() -> None:
        gate.wait()
        tokens.append(Home(tmp_path).token())

    threads = [threading.Thread(target=mint) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 8
    assert len(set(tokens)) == 1


@pytest.mark.parametrize("text", ["", "\n", "  \n"])
def test_an_empty_token_opens_no_door(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigInvalid, match="empty"):
        Home(tmp_path).token()


def test_what_server_json_says_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.server() == {}
    home.announce({"url": "http://127.0.0.1:1", "pid": os.getpid()})
    assert home.server() == {"url": "http://127.0.0.1:1", "pid": os.getpid()}
    assert [file.name for file in tmp_path.iterdir()] == ["server.json"]
    for text in ("", "{", "[]", '{"pid": 1'):
        home.server_file.write_text(text)
        assert home.server() == {}
    home.announce({"url": "http://127.0.0.1:1", "pid": os.getpid() + 1})
    home.retract()
    assert home.server_file.exists(), "another process announced it"
    home.announce({"url": "http://127.0.0.1:1", "pid": os.getpid()})
    home.retract()
    assert not home.server_file.exists()
