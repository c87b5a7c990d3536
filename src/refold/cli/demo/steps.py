"""What the steps of the survey do, and the ledger in which each of them leaves its mark.

Runs in two ways: as a program (`python -I -S steps.py VERB`, for `list`, `count` and `report`), and loaded into the
server (`--app`, for `take`, `sum` and `merge`). A program sees the standard library only, so this file imports no more.

*The ledger is the outside witness.* A step appends a line before it begins and one when it has ended, each with
O_APPEND and fsync. Whatever a killed server remembers, the ledger knows what was really executed.

*The gate* makes the kill meet work in flight, every time and without a sleep: once half of the planned steps have
ended, a program that begins notes that it is held, and waits for a lock that the demo gives back after the kill.

File names are bytes. They travel percent-encoded, since JSON has no bytes; contents are read as UTF-8, and bytes that
are none count as U+FFFD.
"""

# ruff: noqa: PTH105, PTH118, PTH123
# Names of files are bytes here, and pathlib knows text only.

from __future__ import annotations

import contextlib
import fcntl
import heapq
import itertools
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

Json = Any

WORK_VARIABLE: Final = "REFOLD_DEMO"
"""Names the folder with the three files below."""
LEDGER: Final = "ledger"
GATE: Final = "gate"
LISTING: Final = "listing"

LANES: Final = 4
"""Chunks of one batch: the width of the fan-out."""
CHUNKS: Final = 32
"""At most so many chunks, whatever the folder: the demo is to take seconds."""
MAX_FILES: Final = 20_000
MAX_BYTES: Final = 32 * 1024 * 1024
MAX_FILE_BYTES: Final = 1024 * 1024
"""A larger file is not read: it is no text that a person wrote."""
WORDS_OF_CHUNK: Final = 100
WORDS_OF_SURVEY: Final = 200
SHOWN_WORDS: Final = 6

_WORD: Final = re.compile(r"[^\W\d_]{4,}")
_GENERATED: Final = frozenset({b"node_modules", b"__pycache__", b"venv"})


# -- the ledger -------------------------------------------------------------------------------------------------------


def note(work: str, **members: Json) -> None:
    """Appends one line, durably. It is one write: lines of steps that run at the same time never mix.

    It begins a line of its own: the one before it may have been cut off by a kill.
    """
    line = "\n" + json.dumps({**members, "pid": os.getpid(), "at_ns": time.monotonic_ns()}) + "\n"
    descriptor = os.open(os.path.join(work, LEDGER), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_ledger(work: str) -> list[Json]:
    """Returns the lines of the ledger. One that was cut off by a kill was never noted."""
    try:
        with open(os.path.join(work, LEDGER), "rb") as file:
            whole, _, _ = file.read().rpartition(b"\n")
    except FileNotFoundError:
        return []
    noted: list[Json] = []
    for line in filter(None, whole.split(b"\n")):
        with contextlib.suppress(ValueError):  # cut off, and in the middle of a character perhaps
            noted.append(json.loads(line))
    return noted


def _witnessed(work: str, who: Json, perform: Callable[[], Json]) -> Json:
    note(work, event="start", **who)
    if "key" in who:  # a program; a thread of the server that waits at the gate would outlive its Run
        _pass_gate(work, who)
    value = perform()
    planned = {"planned": value["planned"]} if who["ref"] == "list" else {}
    note(work, event="end", **who, **planned)
    return value


def _pass_gate(work: str, who: Json) -> None:
    lines = read_ledger(work)
    planned = next((line["planned"] for line in lines if "planned" in line), None)
    if planned is None or sum(line["event"] == "end" for line in lines) < planned // 2:
        return
    with open(os.path.join(work, GATE), "rb") as gate:
        try:
            fcntl.flock(gate, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            note(work, event="held", **who)
            fcntl.flock(gate, fcntl.LOCK_SH)


# -- list: which files, in which chunks -------------------------------------------------------------------------------


def list_step(work: str, given: Json) -> Json:
    """Writes the listing of the folder and cuts it into chunks: ranges of its lines."""
    folder = unquote_to_bytes(given)
    source, names = _names(folder)
    chosen, left_out = _chosen(folder, names)
    _write_listing(work, [given, *map(quote_from_bytes, chosen)])
    size = -(-len(chosen) // CHUNKS)
    chunks = [[at, min(at + size, len(chosen))] for at in range(0, len(chosen), size)] if chosen else []
    return {"source": source, "files": len(chosen), "left_out": left_out, "chunks": chunks, "planned": _planned(chunks)}


def _planned(chunks: list[Json]) -> int:
    rounds = -(-len(chunks) // LANES)
    return len(("list", "report")) + rounds * len(("take", "merge")) + len(chunks) * len(("count", "sum"))


def _names(folder: bytes) -> tuple[str, Iterable[bytes]]:
    """The candidates: what git knows or does not ignore. Where git says nothing, every file that is not hidden."""
    # A repository's own configuration may name a program as its file system monitor; a survey runs nothing of it.
    command = [b"git", b"-c", b"core.fsmonitor=false", b"-C", folder, b"ls-files", b"-z"]
    command += [b"--cached", b"--others", b"--exclude-standard"]
    try:
        said = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        said = b""
    return ("git", sorted(set(said.split(b"\0")) - {b""})) if said else ("folder", _walk(folder))


def _walk(folder: bytes) -> Iterator[bytes]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(b".") and name not in _GENERATED)
        for name in sorted(files):
            yield os.path.relpath(os.path.join(here, name), folder)


def _chosen(folder: bytes, names: Iterable[bytes]) -> tuple[list[bytes], Json]:
    """The files to read, and how many were left out: `large` ones, and whether there are `more` than the limits."""
    chosen, total, large, rest = [], 0, 0, iter(names)
    for name in rest:
        try:
            found = os.lstat(os.path.join(folder, name))
        except OSError:
            continue  # it went away, or git knows a file that nobody can see
        if not stat.S_ISREG(found.st_mode):
            continue
        if found.st_size > MAX_FILE_BYTES:
            large += 1
            continue
        chosen.append(name)
        total += found.st_size
        if len(chosen) == MAX_FILES or total > MAX_BYTES:
            break
    return chosen, {"large": large, "more": next(rest, None) is not None}


def _write_listing(work: str, lines: list[str]) -> None:
    draft = os.path.join(work, f"{LISTING}.{os.getpid()}")
    with open(draft, "w", encoding="ascii") as file:
        file.write("\n".join(lines))
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, os.path.join(work, LISTING))


# -- take, count, sum, merge ------------------------------------------------------------------------------------------


def take_step(given: Json, ctx: Json) -> Json:
    """Takes the next batch off the chunks that are left."""
    return _inside(ctx, lambda: {"batch": given[:LANES], "left": given[LANES:]})


def count_step(work: str, given: Json) -> Json:
    """Measures every file of a chunk."""
    start, stop = given
    with open(os.path.join(work, LISTING), encoding="ascii") as file:
        folder = unquote_to_bytes(next(file).rstrip("\n"))
        names = [line.rstrip("\n") for line in itertools.islice(file, start, stop)]
    files, words = [], Counter[str]()
    binary = unreadable = 0
    for name in names:
        try:
            with open(os.path.join(folder, unquote_to_bytes(name)), "rb") as file:
                data = file.read(MAX_FILE_BYTES)
        except OSError:
            unreadable += 1
            continue
        if b"\0" in data:
            binary += 1
            continue
        text = data.decode(errors="replace")
        files.append([name, len(data.splitlines()), len(text.split()), len(data)])
        words.update(_WORD.findall(text.lower()))
    return {"files": files, "binary": binary, "unreadable": unreadable, "words": _top(words, WORDS_OF_CHUNK)}


def sum_step(given: Json, ctx: Json) -> Json:
    """Sums up a chunk."""
    return _inside(ctx, lambda: _sum(given))


def _sum(counted: Json) -> Json:
    files = counted["files"]
    longest = max(files, key=lambda file: (file[1], file[0]), default=["", 0, 0, 0])
    return {
        "files": len(files),
        "lines": sum(file[1] for file in files),
        "words": sum(file[2] for file in files),
        "bytes": sum(file[3] for file in files),
        "binary": counted["binary"],
        "unreadable": counted["unreadable"],
        "longest": {"name": longest[0], "lines": longest[1]},
        "frequent": counted["words"],
    }


def merge_step(given: Json, ctx: Json) -> Json:
    """Merges the sums of a batch into the total so far."""
    so_far = [given["total"]] if "total" in given else []
    return _inside(ctx, lambda: {"total": merged([*so_far, *given["parts"]])})


def merged(parts: list[Json]) -> Json:
    """The sum of sums. A frequent word is counted where it was among the frequent ones: a lower bound."""
    words = Counter[str]()
    for part in parts:
        words.update(part["frequent"])
    numbers = ("files", "lines", "words", "bytes", "binary", "unreadable")
    return {
        **{name: sum(part[name] for part in parts) for name in numbers},
        "longest": max((part["longest"] for part in parts), key=lambda one: (one["lines"], one["name"])),
        "frequent": _top(words, WORDS_OF_SURVEY),
    }


def _top(words: Mapping[str, int], limit: int) -> dict[str, int]:
    # Ties in alphabetical order: two executions of a step must not differ.
    return dict(heapq.nsmallest(limit, words.items(), key=lambda pair: (-pair[1], pair[0])))


def _inside(ctx: Json, perform: Callable[[], Json]) -> Json:
    """Performs a step inside the server, witnessed like the programs."""
    lane = [index for _, index in ctx["meta"]["runtime"]["lane"]]
    who = {"run": ctx["run_id"], "step_id": ctx["step_id"], "ref": ctx["agent"], "lane": lane}
    return _witnessed(os.environ[WORK_VARIABLE], who, perform)


# -- report -----------------------------------------------------------------------------------------------------------


_NOTHING: Final[Mapping[str, Json]] = {
    "files": 0,
    "lines": 0,
    "words": 0,
    "bytes": 0,
    "binary": 0,
    "unreadable": 0,
    "frequent": {},
}


def report_step(work: str, given: Json) -> Json:
    """Says in words what was found; `given` is the whole flow ctx."""
    left, total = given["listing"]["left_out"], given.get("survey", {}).get("total") or _NOTHING
    frequent = heapq.nsmallest(SHOWN_WORDS, total["frequent"].items(), key=lambda pair: (-pair[1], pair[0]))
    numbers = {"binary": total["binary"], "unreadable": total["unreadable"], "too large": left["large"]}
    left_out = [f"{number:,} {why}" for why, number in numbers.items() if number]
    left_out += ["all beyond the limits of a demo"] * left["more"]
    lines = [f"{total['files']:,} files, {total['lines']:,} lines, {total['words']:,} words, {total['bytes']:,} bytes"]
    if total["files"]:
        lines.append(f"longest file: {shown(total['longest']['name'])}, {total['longest']['lines']:,} lines")
    if frequent:
        lines.append("frequent words: " + ", ".join(f"{word} (at least {times:,})" for word, times in frequent))
    if left_out:
        lines.append("left out: " + ", ".join(left_out))
    return "\n".join(lines)


def shown(quoted: str) -> str:
    """A percent-encoded name as people may see it: one line, printable."""
    text = unquote_to_bytes(quoted).decode(errors="replace")
    return "".join(character if character.isprintable() else "\ufffd" for character in text)


# -- as a program -----------------------------------------------------------------------------------------------------

PROGRAMS: Final[Mapping[str, Callable[[str, Json], Json]]] = {
    "list": list_step,
    "count": count_step,
    "report": report_step,
}


def main(verb: str) -> None:
    """One step: the directive on stdin, the answer on stdout, both JSON."""
    work, given = os.environ[WORK_VARIABLE], json.load(sys.stdin.buffer)
    who = {
        "run": os.environ["REFOLD_RUN_ID"],
        "step_id": os.environ["REFOLD_STEP_ID"],
        "ref": os.environ["REFOLD_STEP_REF"],
        "lane": json.loads(os.environ["REFOLD_LANE"]),
        "occurrence": int(os.environ["REFOLD_OCCURRENCE"]),
        "key": os.environ["REFOLD_IDEMPOTENCY_KEY"],
    }
    json.dump(_witnessed(work, who, lambda: PROGRAMS[verb](work, given)), sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
