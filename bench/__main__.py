"""The command line of the benchmarks: `python -m bench [speed|steps|attach|readers|profile] …`."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from bench import attach, peers, profile, readers, report, speed, steps
from bench.table import ROWS

Json = Any
LISTS = {"steps": steps.measure, "attach": attach.measure, "readers": readers.measure}
SAVED = Path(__file__).parent.parent / "docs" / "bench"


def main() -> int:
    """Prints one table; exit code 1 with `--check` if a bar is missed."""
    ask = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    ask.add_argument("workload", nargs="?", default="speed", choices=["speed", *LISTS, "profile"])
    ask.add_argument("--quick", action="store_true", help="one round; speed, profile: also a tenth of every size")
    ask.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    ask.add_argument("--json", action="store_true", help="JSON on stdout")
    ask.add_argument("--rounds", type=int, help="how many; 3 by default")
    ask.add_argument(
        "--events", type=int, default=attach.LONG, help="attach: of the longest Session; 100,000 by default"
    )
    ask.add_argument("--only", default="", metavar="ROW,…", help=f"speed: of {', '.join(speed.KEYS)}")
    ask.add_argument("--peers", default="", metavar="NAME,…", help=f"speed: who else runs: {', '.join(peers.PEERS)}")
    ask.add_argument("--minutes", type=float, help="speed: after so many, nothing more is begun")
    ask.add_argument("--save", action="store_true", help="speed: write table, plot and JSON to docs/bench/")
    options = ask.parse_args()
    # Everybody runs as installed, with bytecode on disk. Where this is set, each process of refold would compile it,
    # and no process of a peer: pip has compiled that.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    rounds = options.rounds or (1 if options.quick else 3)
    shrink = 10 if options.quick else 1
    if options.workload == "profile":
        sys.stdout.write(profile.measure(rounds, shrink=shrink))
        return 0
    if options.workload != "speed":
        more = {"events": options.events} if options.workload == "attach" else {}
        return _list(LISTS[options.workload](rounds, **more), options)
    only = options.only.split(",") if options.only else speed.KEYS
    if strange := set(only) - set(speed.KEYS):
        ask.error(f"--only: no row {', '.join(sorted(strange))}; there are {', '.join(speed.KEYS)}")
    rows = [row for row in ROWS if row.key in only]
    names = options.peers.split(",") if options.peers else []
    found = speed.measure(rows, names, rounds, shrink=shrink, minutes=options.minutes)
    if options.save:
        _save(found)
    sys.stdout.write(json.dumps(found, ensure_ascii=False) + "\n" if options.json else report.markdown(found))
    missed = [bar for row in found["rows"] for bar in row["bars"] if bar["clears"] is False]
    faults = [sample["fault"] for sample in found["samples"] if sample["fault"]]
    sys.stderr.writelines(f"FAILED: {fault}\n" for fault in faults)
    return 1 if options.check and (missed or faults) else 0


def _list(rows: Json, options: argparse.Namespace) -> int:
    if options.json:
        sys.stdout.write(json.dumps(rows, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("| workload | median | ratio | bar | |\n| --- | --- | --- | --- | --- |\n")
        for row in rows:
            verdict = "clears" if row["clears"] else "misses"
            figure = f"{row['median']:,} {row['unit']}"
            sys.stdout.write(f"| {row['row']} | {figure} | {row['ratio']} | {row['bar']} | {verdict} |\n")
    return 1 if options.check and not all(row["clears"] for row in rows) else 0


def _save(found: Json) -> None:
    SAVED.mkdir(exist_ok=True)
    (SAVED / "speed.json").write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n")
    (SAVED / "speed.svg").write_text(report.plot(found))
    text = (
        f"# Speed\n\nMade by `scripts/bench --save`; what is measured: [README](README.md).\n\n{report.markdown(found)}"
    )
    (SAVED / "speed.md").write_text(text + "\n![everybody in times of refold](speed.svg)\n")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # whoever is asked to end ends what it started
    sys.exit(main())
