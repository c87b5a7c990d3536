"""The demo: it shows what it says, on any folder, and each of its checks refuses a story in which it does not hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from refold.cli.demo import command, steps
from refold.cli.demo.checks import CHECKS, Evidence, Key, judge, step_facts
from refold.cli.demo.flow import survey
from refold.cli.demo.stage import Entry
from refold.flowir import parse_blueprint

Json = Any
DEMO_SECS = 55
"""The demo promises less than a minute."""


# -- the story, played ------------------------------------------------------------------------------------------------


def demo(*args: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `refold demo` from `cwd`; temporary folders are made in there."""
    return subprocess.run(
        [sys.executable, "-m", "refold", "demo", *args],
        cwd=cwd,
        env={**os.environ, "TMPDIR": str(cwd), **environment},
        capture_output=True,
        text=True,
        timeout=DEMO_SECS,
    )


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    """A folder with all that a survey may stumble over. Its name is one of those things."""
    folder = os.fsencode(tmp_path) + b"/odd \xff\n folder"
    files = {
        b"plain.txt": b"hello hello world\nsecond line\n",
        b"with space and\nnewline": b"one\ntwo",
        b"not \xff utf-8": "café café café\n".encode() + b"\xff\xfe\n",
        b"empty": b"",
        b"binary": b"\0\1\2",
        b"large": b"x" * (steps.MAX_FILE_BYTES + 1),
        b"sub/deeper/file.txt": b"deep deep\n" * 7,
        b".hidden/file": b"unseen\n",
    }
    for name, data in files.items():
        path = Path(os.fsdecode(folder + b"/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    os.mkfifo(folder + b"/pipe")
    Path(os.fsdecode(folder + b"/link")).symlink_to("/nowhere")
    return Path(os.fsdecode(folder))


@pytest.mark.e2e
def test_killed_resumed_and_checked_on_an_odd_folder(odd_folder: Path, tmp_path: Path) -> None:
    # What the caller has configured for a refold of their own is none of the demo's business.
    callers = tmp_path / "caller.db"
    played = demo(odd_folder, "--json", cwd=tmp_path, REFOLD_STORE=str(callers), REFOLD_HOME=str(tmp_path / "caller"))
    assert played.returncode == 0, played.stdout + played.stderr
    told = json.loads(played.stdout)
    assert told["ok"]
    assert [check["check"] for check in told["checks"]] == list(CHECKS)
    verdicts = [step["verdict"] for step in told["steps"]]
    assert set(verdicts) == {"replayed", "ran", "ran twice"}
    assert verdicts.count("replayed") == told["replayed_steps"] >= told["planned_steps"] // 2
    assert (
        len(verdicts) == told["planned_steps"] == 2 + 2 * 2 + 2 * 6
    )  # two rounds, six files to read, one of them binary
    assert told["cut_off"] >= 1
    assert told["history"] == {"mode": "none", "none_reason": "cursorSuffix"}
    assert len(set(told["digests"].values())) == 1
    assert told["events"]["after"] > 0
    numbers = {name: told["survey"][name] for name in ("files", "lines", "words", "bytes", "binary", "unreadable")}
    assert numbers == {"files": 5, "lines": 13, "words": 25, "bytes": 128, "binary": 1, "unreadable": 0}
    assert told["survey"]["longest"] == {"name": "sub/deeper/file.txt", "lines": 7}
    assert told["survey"]["frequent"] == {"deep": 14, "café": 3, "hello": 2, "line": 1, "second": 1, "world": 1}
    assert "1 binary, 1 too large" in told["answer"]
    assert list(tmp_path.iterdir()) == [odd_folder]


@pytest.mark.e2e
def test_an_empty_folder_is_killed_and_resumed_too_and_drawn_for_people(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    played = demo(empty, "--keep", cwd=tmp_path)
    assert played.returncode == 0, played.stdout + played.stderr
    assert "list        replayed" in played.stdout
    assert "report      ran twice" in played.stdout
    assert f"{len(CHECKS)} of {len(CHECKS)} checks hold" in played.stdout
    assert "0 files" in played.stdout
    assert "kill -9" in played.stderr
    (kept,) = (path for path in tmp_path.iterdir() if path.name.startswith("refold-demo"))
    assert f"kept: {kept}" in played.stderr
    assert (kept / "survey" / steps.LEDGER).exists()


@pytest.mark.e2e
def test_what_is_no_folder_is_a_usage_error(tmp_path: Path) -> None:
    played = demo("nothing here", "--json", cwd=tmp_path)
    assert (played.returncode, played.stdout) == (2, "")
    assert "is not a folder" in played.stderr


# -- the checks -------------------------------------------------------------------------------------------------------

RUN = "R-0123456789abcdef"
DONE, CUT, LATER = (Key(ref, f"{n}" * 64, 0) for n, ref in enumerate(("list", "count", "report")))


def entry(event: str, step_id: str, ref: str, key: str | None = "k", run: str = RUN) -> Entry:
    return Entry(event=event, run=run, step_id=step_id, ref=ref, lane=(), at_ns=0, key=key and f"{key}-{ref}")


def executed(step_id: str, ref: str, **more: str) -> tuple[Entry, Entry]:
    return entry("start", step_id, ref, **more), entry("end", step_id, ref, **more)


def attempt(step_id: str, key: Key, status: str | None) -> Json:
    names = {"step_ref": key.ref, "input_hash": key.input_hash, "occurrence": key.occurrence, "lane": []}
    return {"step_id": step_id, "status": status, **names}


GOOD = Evidence(
    run_id=RUN,
    before=(*executed("ST-1", "list"), entry("start", "ST-2", "count"), entry("held", "ST-2", "count")),
    after=(*executed("ST-3", "count"), *executed("ST-4", "report")),
    kept=frozenset({DONE}),
    seen=frozenset({"ST-1"}),
    restarted={"status": "interrupted", "result_ref": {"error": "server restart"}},
    resumed={"replayed_steps": 1},
    finished={"run_id": RUN, "status": "done", "result_ref": {}},
    steps=(
        attempt("ST-1", DONE, "passed"),
        attempt("ST-2", CUT, None),
        attempt("ST-3", CUT, "passed"),
        attempt("ST-4", LATER, "passed"),
    ),
    history={"mode": "none", "noneReason": "cursorSuffix"},
    events=(5, 7),
    all_events=12,
    digests={"returning client": "d", "server": "d"},
)
"""A short story in which all is well: one step passed, one was cut off, one came after."""


def but(**members: Json) -> Evidence:
    return msgspec.structs.replace(GOOD, **members)


def test_all_checks_hold_for_a_good_story() -> None:
    assert [check.faults for check in judge(GOOD)] == [()] * len(CHECKS)
    assert [(fact.step, fact.verdict) for fact in step_facts(GOOD)] == [
        ("list", "replayed"),
        ("count", "ran twice"),
        ("report", "ran"),
    ]


NOT_AGAIN = "by the ledger, what had passed before the kill never ran again"
ONCE = "by the ledger, the rest ran once after it, and only what was cut off twice"
KNOWN = "nothing was executed that the store does not know"
ENDED = "the Run ended done, under its own id, every step passed"
AGAIN = (*GOOD.steps, attempt("ST-5", DONE, "passed"))

BAD: Mapping[str, tuple[Evidence, set[str]]] = {
    "nothing was under way": (but(before=executed("ST-1", "list")), {"the kill hit steps in flight"}),
    "the Run was lost": (
        but(restarted={"status": "failed", "result_ref": {"error": "server restart"}}),
        {"after the restart the Run is interrupted, with its reason"},
    ),
    "another reason": (
        but(restarted={"status": "interrupted", "result_ref": None}),
        {"after the restart the Run is interrupted, with its reason"},
    ),
    "an acknowledged Pass is gone": (
        but(seen=frozenset({"ST-1", "ST-2"})),
        {"every Pass that a client had been shown is in the log"},
    ),
    "a wrong count": (but(resumed={"replayed_steps": 2}), {"the resume says how many steps it will not run"}),
    "a passed step ran twice": (but(after=(*executed("ST-5", "list"), *GOOD.after), steps=AGAIN), {NOT_AGAIN}),
    "a passed step ran twice before the kill": (
        but(before=(*executed("ST-5", "list"), *GOOD.before), steps=AGAIN),
        {NOT_AGAIN},
    ),
    "a passed step never ran": (but(before=GOOD.before[2:]), {NOT_AGAIN, ENDED}),
    "a later step ran twice": (
        but(after=(*GOOD.after, *executed("ST-6", "report")), steps=(*GOOD.steps, attempt("ST-6", LATER, "passed"))),
        {ONCE},
    ),
    "a step in flight ran three times": (
        but(before=(*GOOD.before, entry("start", "ST-7", "count")), steps=(*GOOD.steps, attempt("ST-7", CUT, None))),
        {ONCE},
    ),
    "a step was skipped": (but(after=GOOD.after[:2]), {ONCE, ENDED}),
    "an execution without a record": (but(after=(*GOOD.after, *executed("ST-9", "count"))), {KNOWN}),
    "an execution for another Run": (
        but(after=(*GOOD.after[:2], *executed("ST-4", "report", run="R-fedcba9876543210"))),
        {KNOWN},
    ),
    "a second key": (
        but(after=(*executed("ST-3", "count", key="other"), *GOOD.after[2:])),
        {"each step has one idempotency key, over both tries"},
    ),
    "one key for two steps": (
        but(after=tuple(msgspec.structs.replace(each, key="k-list") for each in GOOD.after)),
        {"each step has one idempotency key, over both tries"},
    ),
    "an orphan": (
        but(after=(*GOOD.after, entry("end", "ST-2", "count"))),
        {"no program of the killed server worked on"},
    ),
    "the Run failed": (but(finished={"run_id": RUN, "status": "failed"}), {ENDED}),
    "another Run ended": (but(finished={"run_id": "R-fedcba9876543210", "status": "done"}), {ENDED}),
    "a step without a Pass": (but(steps=(*GOOD.steps[:3], attempt("ST-4", LATER, None))), {ENDED}),
    "a snapshot in place of the suffix": (
        but(history={"mode": "snapshot"}),
        {"the client came back with its cursor and was served the suffix alone"},
    ),
    "an event was skipped": (but(events=(5, 6)), {"no event was skipped or folded twice"}),
    "an event came twice": (but(events=(6, 7)), {"no event was skipped or folded twice"}),
    "another state": (
        but(digests={"returning client": "d", "server": "e"}),
        {"returning client, fresh client and server have one fold digest"},
    ),
}


@pytest.mark.parametrize(("evidence", "expected"), BAD.values(), ids=BAD)
def test_a_bad_story_is_refused(evidence: Evidence, expected: set[str]) -> None:
    assert {check.says for check in judge(evidence) if not check.holds} == expected


@pytest.mark.parametrize("as_json", [True, False])
def test_a_bad_story_is_told_with_its_faults_and_exit_code_1(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = {"run_id": RUN, "session_id": "s", "status": "failed", "result_ref": {"error": "it broke"}}
    monkeypatch.setattr(command, "play", lambda folder, stage, story: but(finished=finished, events=(5, 6)))
    monkeypatch.setattr(command.signal, "signal", lambda number, handler: None)
    assert command.demo(tmp_path, json=as_json) == 1
    told = capsys.readouterr().out
    assert "5 and 6 events were folded, the view has 12" in told
    assert f"{RUN} was failed" in told
    assert "it broke" in told
    if as_json:
        assert [check["check"] for check in json.loads(told)["checks"] if not check["holds"]] == [
            ENDED,
            "no event was skipped or folded twice",
        ]


def test_every_check_can_fail() -> None:
    assert set().union(*(expected for _, expected in BAD.values())) == set(CHECKS)


def test_lanes_and_repeated_steps_have_names_of_their_own() -> None:
    lanes = [attempt(f"ST-{n}", Key("count", str(n), 0), "passed") | {"lane": [[n // 2, n % 2]]} for n in range(4)]
    takes = [attempt(f"ST-{n}", Key("take", str(n), 0), "passed") for n in (8, 9)]
    named = [fact.step for fact in step_facts(but(steps=(*takes, *lanes)))]
    assert named == ["take 1", "take 2", "count 1.0", "count 1.1", "count 2.0", "count 2.1"]


# -- the steps --------------------------------------------------------------------------------------------------------


def test_the_blueprint_of_the_demo_has_no_faults(tmp_path: Path) -> None:
    assert [agent.kind for agent in parse_blueprint(survey(tmp_path)).agents] == ["subprocess"] * 3 + ["python"] * 3


def test_a_line_that_the_kill_cut_off_was_never_noted(tmp_path: Path) -> None:
    assert steps.read_ledger(str(tmp_path)) == []
    steps.note(str(tmp_path), event="start", ref="list")
    with (tmp_path / steps.LEDGER).open("a") as ledger:
        ledger.write('{"event": "end", "re')
    assert [line["event"] for line in steps.read_ledger(str(tmp_path))] == ["start"]
    steps.note(str(tmp_path), event="start", ref="chunk")
    assert [line["ref"] for line in steps.read_ledger(str(tmp_path))] == ["list", "chunk"]


def listed(folder: Path, work: Path) -> tuple[Json, list[str]]:
    """What `list` says of a folder, and the names that it wrote down."""
    answer = steps.list_step(str(work), str(folder))
    return answer, (work / steps.LISTING).read_text().splitlines()[1:]


def test_chunks_cover_every_file_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for n in range(70):
        (folder / f"{n:02}").touch()
    answer, names = listed(folder, tmp_path)
    assert names == [f"{n:02}" for n in range(70)]
    assert [n for start, stop in answer["chunks"] for n in range(start, stop)] == list(range(70))
    assert len(answer["chunks"]) <= steps.CHUNKS
    assert answer["planned"] == 2 + 2 * 6 + 2 * 24  # 24 chunks of three files, in six batches of four


def test_what_is_beyond_the_limits_is_left_out_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in "abc":
        (folder / name).touch()
    monkeypatch.setattr(steps, "MAX_FILES", 2)
    answer, names = listed(folder, tmp_path)
    assert (names, answer["left_out"]) == (["a", "b"], {"large": 0, "more": True})


def test_git_says_which_files_belong(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    try:
        subprocess.run(["git", "init", "-q", folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git")
    (folder / ".gitignore").write_text("ignored\n")
    (folder / "kept").touch()
    (folder / "ignored").touch()
    answer, names = listed(folder, tmp_path)
    assert (answer["source"], names) == ("git", [".gitignore", "kept"])


def test_a_file_that_went_away_is_counted_as_unreadable(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "here").write_text("word word\n")
    (folder / "gone").write_text("word\n")
    answer, _ = listed(folder, tmp_path)
    (folder / "gone").unlink()
    counted = [steps.count_step(str(tmp_path), chunk) for chunk in answer["chunks"]]
    assert sum(each["unreadable"] for each in counted) == 1
    assert [file for each in counted for file in each["files"]] == [["here", 1, 2, 10]]


def part(name: str, lines: int, **frequent: int) -> Json:
    numbers = dict.fromkeys(("files", "words", "bytes", "binary", "unreadable"), 1)
    return {**numbers, "lines": lines, "longest": {"name": name, "lines": lines}, "frequent": frequent}


def test_merging_adds_and_keeps_the_longest() -> None:
    total = steps.merged([part("a", 3, this=2), part("b", 9, this=1, that=5), part("c", 4)])
    assert (total["files"], total["lines"]) == (3, 16)
    assert total["longest"] == {"name": "b", "lines": 9}
    assert list(total["frequent"].items()) == [("that", 5), ("this", 3)]


def test_names_are_shown_on_one_line() -> None:
    assert steps.shown("a%0A%FFb%C3%BC") == "a\ufffd\ufffdbü"
