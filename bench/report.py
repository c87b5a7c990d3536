"""A report of `speed` for people: a Markdown table, and a plot of how everybody stands to refold."""

from __future__ import annotations

import math
from typing import Any
from xml.sax.saxutils import escape

Json = Any
COLOURS = ("#1f6feb", "#79b0ff", "#8b949e", "#d29922", "#a371f7", "#3fb950", "#f85149", "#1b7c83", "#bf4b8a")


def markdown(report: Json) -> str:
    """The table. A bar that is missed stands there as missed, one that nobody was run against as not run."""
    names = _names(report)
    head = f"| workload | {' | '.join(names)} | raw commits/s | bars |\n|---{'|---:' * (len(names) + 1)}|---|\n"
    lines = [_line(row, names) for row in report["rows"]]
    return _preface(report) + head + "".join(lines)


def _preface(report: Json) -> str:
    machine, sizes = report["machine"], "" if report["shrink"] == 1 else f", sizes divided by {report['shrink']}"
    sqlite = machine["sqlite"]
    said = [
        f"refold at {machine['commit'] or 'no commit'}, {machine['cores']} cores, {machine['system']}, Python "
        f"{machine['python']}, SQLite {sqlite['refold']} (bare log: {sqlite['bare log']}); medians of "
        f"{report['rounds']} rounds in one interleaved run{sizes}. "
        "Absolute figures are this machine's; compare within a row.",
    ]
    said += [f"{name}: {', '.join(pins)}." for name, pins in report["peers"].items()]
    said += [f"**{name} was not run**: {reason}." for name, reason in report["not_run"].items()]
    said += [_cannot(name, rows) for name, rows in report["cannot"].items()]
    return "\n".join(said) + "\n\n"


def _cannot(name: str, rows: dict[str, str]) -> str:
    by_reason: dict[str, list[str]] = {}
    for title, why in rows.items():
        by_reason.setdefault(why, []).append(title)
    return f"{name} cannot do: " + "; ".join(f"{', '.join(titles)} ({why})" for why, titles in by_reason.items()) + "."


def _line(row: Json, names: list[str]) -> str:
    cells = [_figure(row, name) for name in names]
    raw = "–" if row["raw_per_s"] is None else f"{row['raw_per_s']:,.0f}"
    bars = "<br>".join(map(_bar, row["bars"])) or "none"
    return f"| {row['title']}, {row['unit']} | {' | '.join(cells)} | {raw} | {bars} |\n"


def _figure(row: Json, name: str) -> str:
    value = row["medians"].get(name)
    return "–" if value is None else f"{value:,.{row['places']}f}"


def _bar(bar: Json) -> str:
    if bar["clears"] is None:
        return f"{bar['bar']}: not run"
    return f"{bar['bar']}: {short(bar['found'])}" + ("" if bar["clears"] else " **missed**")


def short(value: float) -> str:
    """A figure with three digits that count, or all of its integer ones."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _names(report: Json) -> list[str]:
    """The columns, in the order in which the rows bring them."""
    found = {name: None for row in report["rows"] for name in row["medians"]}
    return list(found)


def plot(report: Json) -> str:
    """An SVG: where refold meets somebody, a bar each, on a scale of powers of ten; refold is 1, longer is better."""
    names, rows = _names(report), [row for row in report["rows"] if _meets(row)]
    left, width, bar, gap = 240, 520, 12, 14
    y, drawn = 40, list[str]()
    scores = {(row["key"], name): _score(row, name) for row in rows for name in names if name in row["medians"]}
    finite = [score for score in scores.values() if 0 < score < math.inf]
    low = math.floor(math.log10(min(finite, default=1)))
    high = max(math.ceil(math.log10(max(finite, default=1))), low + 1)

    def x(score: float) -> float:
        return left + width * (min(max(math.log10(score), low), high) - low) / (high - low) if score > 0 else left

    for row in rows:
        drawn.append(_text(left - 8, y + bar, row["title"], "end"))
        for colour, name in zip(COLOURS, names, strict=False):
            score = scores.get((row["key"], name))
            if score is None:
                continue
            end = x(score) if score < math.inf else left + width
            drawn.append(f'<rect x="{left}" y="{y}" width="{max(1, end - left):.1f}" height="{bar}" fill="{colour}"/>')
            drawn.append(_text(end + 4, y + bar - 2, _figure(row, name), "start"))
            y += bar + 2
        y += gap
    for power in range(low, high + 1):
        at = x(10.0**power)
        drawn.append(f'<line x1="{at:.1f}" y1="34" x2="{at:.1f}" y2="{y}" stroke="#8b949e" stroke-opacity="0.4"/>')
        drawn.append(_text(at, y + 12, f"{10.0**power:g}×", "middle"))
    key = 10
    for colour, name in zip(COLOURS, names, strict=False):
        drawn.append(f'<rect x="{key}" y="10" width="12" height="12" fill="{colour}"/>' + _text(key + 16, 20, name))
        key += 34 + 7 * len(name)
    frame = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{y + 24}"'
    white = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return f'{frame} font-family="sans-serif" font-size="11">\n' + "\n".join([white, *drawn]) + "\n</svg>\n"


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _meets(row: Json) -> bool:
    return "refold" in row["medians"] and len(row["medians"]) > 1 and row["medians"]["refold"] > 0


def _score(row: Json, name: str) -> float:
    """How many times as good as refold."""
    mine, other = row["medians"]["refold"], row["medians"][name]
    good, bad = (other, mine) if row["more_is_better"] else (mine, other)
    return math.inf if bad == 0 else good / bad
