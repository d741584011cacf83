"""Bar charts as SVG, readable on a light and on a dark page; all text is text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import log10

from benchmarks.peers.records import Records

WIDTH, LEFT, RIGHT = 760, 132, 96
BAR, GAP, HEAD = 13, 3, 34
STORES = {"sqlite": "SQLite", "redis": "Redis", "postgres": "Postgres"}

STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1f2328; }
.title { font-weight: 600; font-size: 15px; }
.head { font-weight: 600; }
.note, .value { fill: #59636e; font-size: 12px; }
.bar { fill: #8c959f; } .plain { fill: #c4cad0; }
.own .bar { fill: #c2410c; } .own .plain { fill: #f0a37c; } .own text { font-weight: 600; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; } .note, .value { fill: #9198a1; }
.bar { fill: #7d8590; } .plain { fill: #484f58; }
.own .bar { fill: #f97316; } .own .plain { fill: #9a4a1c; }
}
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One system: its bars from top to bottom, each with its class and figure."""

    name: str
    own: bool
    bars: Sequence[tuple[str, float]]


def drain(records: Records) -> str:
    """Jobs per second that one worker process finishes, by default and tuned."""
    panels = []
    for store, title in STORES.items():
        lines = []
        for key, entry in records.systems.items():
            pair = records.figure(key, "drain.default.1"), records.figure(key, "drain.tuned.1")
            if entry["store"] == store and pair[0] and pair[1]:
                bars = [("plain", pair[0].middle), ("bar", pair[1].middle)]
                lines.append(Line(entry["name"], key.startswith("stoker."), bars))
        lines.sort(key=lambda line: -max(figure for _, figure in line.bars))
        panels.append((title, lines))
    note = "No-op jobs per second, one worker process. Pale: default settings. Full: tuned. Median of the rounds."
    return _svg("How fast one process drains a queue", note, panels, linear=True)


def pickup(records: Records) -> str:
    """Milliseconds from the enqueue call to the start of the job in an idle worker."""
    panels = []
    for store, title in STORES.items():
        lines = []
        for key, entry in records.systems.items():
            found = records.figure(key, "pickup")
            if entry["store"] == store and found:
                lines.append(Line(entry["name"], key.startswith("stoker."), [("bar", found.middle)]))
        lines.sort(key=lambda line: line.bars[0][1])
        panels.append((title, lines))
    note = (
        "Milliseconds from the enqueue call to the handler in an idle worker, median; logarithmic, shorter is better."
    )
    return _svg("How soon a job starts", note, panels, linear=False)


def _svg(title: str, note: str, panels: Sequence[tuple[str, Sequence[Line]]], *, linear: bool) -> str:
    shapes = [
        f'<text class="title" x="8" y="22">{escape(title)}</text>',
        f'<text class="note" x="8" y="42">{escape(note)}</text>',
    ]
    y = 52
    for head, lines in panels:
        if not lines:
            continue
        y += HEAD
        shapes.append(f'<text class="head" x="8" y="{y - 10}">{escape(head)}</text>')
        longest = max(figure for line in lines for _, figure in line.bars)
        for line in lines:
            drawn, y = _line(line, y, longest, linear=linear)
            shapes += drawn
    height = y + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n' + "\n".join(shapes) + "\n</svg>\n"
    )


def _line(line: Line, y: int, longest: float, *, linear: bool) -> tuple[list[str], int]:
    """The shapes of one system, and where the next one begins."""
    middle = y + len(line.bars) * BAR / 2 + 5
    shapes = [
        f'<g class="{"own" if line.own else "peer"}">',
        f'<text x="8" y="{middle:.0f}">{escape(line.name)}</text>',
    ]
    for style, figure in line.bars:
        share = figure / longest if linear else (log10(max(figure, 0.1)) + 1) / (log10(longest) + 1)
        width = max(1.0, share * (WIDTH - LEFT - RIGHT))
        shapes.append(f'<rect class="{style}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" rx="2"/>')
        words = f"{figure:,.0f}" if linear else f"{figure:.3g} ms"
        shapes.append(f'<text class="value" x="{LEFT + width + 6:.1f}" y="{y + BAR - 3}">{words}</text>')
        y += BAR
    return [*shapes, "</g>"], y + GAP + (2 if len(line.bars) > 1 else 5)
