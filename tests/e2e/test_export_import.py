"""`refold export` and `refold import` as people use them: a Run goes to another home and is looked at there."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_kit import Home, Json, kill

pytestmark = pytest.mark.e2e


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Home]:
    """The home of who was sent the file."""
    (tmp_path / "elsewhere").mkdir()
    with contextlib.closing(Home(tmp_path / "elsewhere" / "home")) as home:
        yield home


def given(home: Home, *arguments: str) -> str:
    """What a command that succeeds prints."""
    done = home.run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def frames(text: str) -> list[Json]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_is_looked_at_elsewhere_as_it_was_and_never_runs_there(
    home: Home, elsewhere: Home, tmp_path: Path
) -> None:
    server = home.serve()
    home.hold("b")
    run_id = home.launch(home.chain("a", "b"), input="żółć " * 3000)
    home.began("b")
    file = tmp_path / "run.ndjson"
    assert "written to" in home.run("export", run_id, "--output", str(file)).stderr  # through the door
    shown, told = given(home, "show", run_id, "--json"), frames(given(home, "events", run_id))
    document = json.loads(given(home, "export", run_id, "--json"))
    assert (document["format"], document["run"]["status"]) == ("refold.run/1", "running")

    said = json.loads(given(elsewhere, "import", str(file), "--json"))
    copy = Path(said["store"])
    assert (said["run_id"], copy) == (run_id, elsewhere.folder / "imported" / f"{run_id}.db")
    assert sum(said["rows"].values()) == len(file.read_text().splitlines()) - 1
    assert json.loads(given(elsewhere, "show", run_id, "--store", str(copy), "--json")) == json.loads(shown)
    assert frames(given(elsewhere, "events", run_id, "--store", str(copy))) == told
    after = told[3]["params"]["viewCursor"]
    assert frames(given(elsewhere, "events", run_id, "--store", str(copy), "--after", after)) == told[4:]
    assert elsewhere.run("events", run_id, "--store", str(copy), "--after", "x").returncode == 5
    assert frames(given(elsewhere, "watch", run_id, "--store", str(copy), "--jsonl")) == told
    assert json.loads(given(elsewhere, "export", run_id, "--store", str(copy), "--json")) == document
    assert "nothing is wrong" in given(elsewhere, "doctor", "--store", str(copy))

    before = copy.read_bytes()
    for command in (
        ("serve", "--bind", "127.0.0.1:0"),
        ("serve", "--auto-resume", "--bind", "127.0.0.1:0"),
        ("resume", run_id),
        ("cancel", run_id),
        ("rerun", run_id, "a"),
        ("msp",),
    ):
        refused = elsewhere.run(*command, "--store", str(copy))
        assert (refused.returncode, "is the copy of a Run" in refused.stderr) == (1, True), (command, refused.stderr)
    assert copy.read_bytes() == before
    assert not elsewhere.server_file.exists()
    assert home.ran() == ["a", "b"]

    home.free()
    home.reached(run_id, "done")
    kill(server)
    assert frames(given(home, "events", run_id))[: len(told)] == told
    ended = tmp_path / "ended.ndjson"
    given(home, "export", run_id, "--output", str(ended))  # nobody holds the store: it is read as it is
    conflict = elsewhere.run("import", str(ended))
    assert (conflict.returncode, "is there already" in conflict.stderr) == (6, True)
    assert copy.read_bytes() == before
    again = elsewhere.run("import", str(file))
    assert (again.returncode, again.stdout, "before" in again.stderr) == (0, f"{copy}\n", True)
    other = tmp_path / "elsewhere" / "other.db"
    assert given(elsewhere, "import", str(ended), "--store", str(other)) == f"{other}\n"
    assert json.loads(given(elsewhere, "show", run_id, "--store", str(other), "--json"))["status"] == "done"


def test_an_export_of_a_store_that_a_kill_left_changes_nothing_in_it(home: Home, tmp_path: Path) -> None:
    server = home.serve()
    home.hold("b")
    run_id = home.launch(home.chain("a", "b"), input=1)
    home.began("b")
    kill(server)
    given(home, "export", run_id, "--output", str(tmp_path / "run.ndjson"))
    given(home, "export", run_id, "--json")
    assert json.loads(given(home, "show", run_id, "--json"))["status"] == "running", "a boot would have marked it"


def test_a_file_that_is_not_sound_is_refused_and_leaves_nothing(home: Home, elsewhere: Home, tmp_path: Path) -> None:
    home.serve()
    run_id = home.reached(home.launch(home.chain("a"), input="é"), "done")["run_id"]
    sound, file = tmp_path / "sound.ndjson", tmp_path / "file.ndjson"
    given(home, "export", run_id, "--output", str(sound))
    given(home, "export", run_id, "--json", "--output", str(tmp_path / "document.json"))
    data = sound.read_bytes()
    middle, goal = len(data) // 2, data.index(b'"goal":"') + 8
    for damaged in (
        data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        data[:goal] + b"x" + data[goal:],  # in a record, which no chain covers
        data.replace(b'"exported_at":"2', b'"exported_at":"3'),
        data[:-1],
        data[:middle],
        b"",
        (tmp_path / "document.json").read_bytes(),
    ):
        file.write_bytes(damaged)
        refused = elsewhere.run("import", str(file))
        assert (refused.returncode, refused.stdout) == (2, ""), refused.stderr
        assert "refold export" in refused.stderr
        assert not (elsewhere.folder / "imported").exists()
    assert elsewhere.run("import", str(tmp_path / "nowhere")).returncode == 5
    assert elsewhere.run("import", str(tmp_path)).returncode == 2
    assert elsewhere.run("import", str(sound), "--store", str(file)).returncode == 6
    assert file.read_bytes() == damaged
    assert elsewhere.run("export", run_id).returncode == 5
    assert elsewhere.run("events", run_id).returncode == 5
    assert elsewhere.run("export", "R-x").returncode == 2
