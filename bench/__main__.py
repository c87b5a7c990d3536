"""The command line of the benchmarks: `python -m bench steps|attach|readers [--quick] [--check] [--json]`."""

from __future__ import annotations

import argparse
import json
import sys

from bench import attach, readers, steps

WORKLOADS = {"steps": steps.measure, "attach": attach.measure, "readers": readers.measure}


def main() -> int:
    """Prints one table; exit code 1 with `--check` if a bar is missed."""
    ask = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    ask.add_argument("workload", choices=[*WORKLOADS])
    ask.add_argument("--quick", action="store_true", help="one round instead of three")
    ask.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    ask.add_argument("--json", action="store_true", help="one JSON array on stdout")
    options = ask.parse_args()
    rows = WORKLOADS[options.workload](1 if options.quick else 3)
    if options.json:
        sys.stdout.write(json.dumps(rows, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write("| workload | median | ratio | bar | |\n| --- | --- | --- | --- | --- |\n")
        for row in rows:
            verdict = "clears" if row["clears"] else "misses"
            figure = f"{row['median']:,} {row['unit']}"
            sys.stdout.write(f"| {row['row']} | {figure} | {row['ratio']} | {row['bar']} | {verdict} |\n")
    return 1 if options.check and not all(row["clears"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
