"""Small drawings as inline SVG: status marks, gauges, sparks, charts, the life of a job.

Lengths that depend on data are attributes of SVG elements, because the content security policy forbids inline style.
Every text passes through escaping: `Markup.format` escapes its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from markupsafe import Markup, escape

from stoker.model.same_error import is_own

PLOT = 168
TALL = 220
STRIP = 34


def _all(parts: Iterable[str]) -> Markup:
    return Markup("").join(parts)


@lru_cache(256)
def icon(name: str) -> Markup:
    """A sign of the sprite."""
    return Markup('<svg class="ic" aria-hidden="true"><use href="#{}"/></svg>').format(name)


@lru_cache(256)
def status(name: str, look: str = "st") -> Markup:
    """A status as shape and word."""
    return Markup('<span class="{} st-{}">{}{}</span>').format(look, name, icon(name), name)


# A page of queues has hundreds of gauges and thousands of bars. They are numbers alone, so nothing in them needs
# escaping, which would take most of their time.


def gauge(value: float, top: float, *, calm: bool = False, look: str = "done") -> Markup:
    """How much of a whole is used; full is amber unless `calm`, which has the given look."""
    part = min(100 * value / top, 100) if top else 0
    look = f"gauge {look}" if calm else "gauge full" if part >= 95 else "gauge"
    return Markup(  # noqa: S704 - made of numbers
        f'<svg class="{escape(look)}" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" '
        f'aria-label="{value:,.0f} of {top:,.0f}"><rect width="{part:.1f}" height="6"/></svg>'
    )


def ended(done: int, dead: int, canceled: int, total: int) -> Markup:
    """How the members of a group ended, side by side on one gauge; the rest is not finished."""
    at, bars = 0.0, []
    for look, value in (("b-done", done), ("b-dead", dead), ("b-flow", canceled)):
        width = 100 * value / max(total, 1)
        bars.append(f'<rect class="{look}" x="{at:.1f}" width="{width:.1f}" height="6"/>' if value else "")
        at += width
    return Markup(  # noqa: S704 - made of numbers
        '<svg class="gauge" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" '
        f'aria-label="{done:,} done, {dead:,} dead and {canceled:,} canceled of {total:,}">{"".join(bars)}</svg>'
    )


def spark(values: Sequence[float], look: str = "b-done") -> Markup:
    """A row of bars on a scale of its own; nothing is a grey tick."""
    top = max(values, default=0) or 1
    places, wide = _bars(len(values))
    bars, ticks = [], []
    for place, value in zip(places, values, strict=True):
        if value:
            height = f"{max(26 * value / top, 1):.1f}"
            bars.append(f"{place}{height}{wide}{height}z")
        else:
            ticks.append(f"{place}1{wide}1z")
    return Markup(  # noqa: S704 - made of numbers
        '<svg class="spark" viewBox="0 0 100 26" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="{look}" d="{"".join(bars)}"/><path class="b-none" d="{"".join(ticks)}"/></svg>'
    )


@lru_cache(8)
def _bars(n: int) -> tuple[list[str], str]:
    """Where the path of each of n bars begins, and its width."""
    step = 100 / max(n, 1)
    return [f"M{index * step:.1f} 26v-" for index in range(n)], f"h{step * 0.72:.1f}v"


# --- charts ---------------------------------------------------------------------------------------------------------


def nice_top(most: float) -> float:
    """The top of a scale that three even parts divide into round numbers."""
    third = max(most, 3) / 3
    size = 10.0 ** math.floor(math.log10(third))
    steps = (1.0, 2.0, 2.5, 5.0, 10.0)
    return 3 * size * next(step for step in steps if third <= step * size * 1.0000001)


def _path(values: Sequence[float | None], low: float, high: float, height: int) -> str:
    """A line through the values; a gap stays a gap, and a value between two gaps is a dot."""
    last, parts, pen = max(len(values) - 1, 1), [], "M"
    for index, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        part = (min(max(value, low), high) - low) / (high - low)
        alone = pen == "M" and (index == len(values) - 1 or values[index + 1] is None)
        parts.append(f"{pen}{1000 * index / last:.1f} {height - height * part:.1f}{'h0' if alone else ''}")
        pen = "L"
    return " ".join(parts)


def _grid(height: int, rows: int) -> Markup:
    return _all(
        Markup('<path class="grid-line" d="M0 {:.1f}H1000"/>').format(height * row / rows) for row in range(rows)
    )


def _plot(body: Markup, height: int, look: str) -> Markup:
    return Markup(
        '<svg class="{}" viewBox="0 0 1000 {}" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(look, height, body)


def flow(
    done: Sequence[float | None],
    incoming: Sequence[float | None],
    top: float,
    *,
    hollow: bool = False,
    marks: Iterable[float] = (),
) -> Markup:
    """Completed as an area, enqueued as a dashed line; the running minute, if it is the last, as a hollow point."""
    line = _path(done, 0, top, PLOT)
    ring = Markup("")
    if hollow and done[-1] is not None:
        at = f"M1000 {PLOT - PLOT * min(done[-1] / top, 1):.1f}h0"
        ring = Markup('<path class="ring" d="{0}"/><path class="ring hole" d="{0}"/>').format(at)
    area = _areas(done, top)
    return _plot(
        _grid(PLOT, 3)
        + area
        + Markup('<path class="line flow" d="{}"/><path class="line done" d="{}"/>').format(
            _path(incoming, 0, top, PLOT), line
        )
        + ring
        + _marks(marks, PLOT),
        PLOT,
        "plot",
    )


def _marks(places: Iterable[float], height: float) -> Markup:
    """Upright lines, as at the moment of a deployment."""
    path = "".join(f"M{place:.1f} 0v{height}" for place in places)
    return Markup('<path class="line flow" d="{}"/>').format(path) if path else Markup("")


def _areas(values: Sequence[float | None], top: float) -> Markup:
    """The ground below each unbroken piece of a line."""
    last, pieces, piece = max(len(values) - 1, 1), [], list[int]()
    for index, value in enumerate([*values, None]):
        if value is not None:
            piece.append(index)
        elif piece:
            pieces.append(piece)
            piece = []
    shapes = []
    for piece in pieces:
        line = " ".join(
            f"L{1000 * index / last:.1f} {PLOT - PLOT * min((values[index] or 0) / top, 1):.1f}" for index in piece
        )
        first, end = 1000 * piece[0] / last, 1000 * piece[-1] / last
        shapes.append(
            Markup('<path class="area done" d="M{:.1f} {} {} L{:.1f} {}Z"/>').format(first, PLOT, line, end, PLOT)
        )
    return _all(shapes)


def strip(values: Sequence[float | None], *, hollow: bool = False, marks: Iterable[float] = ()) -> Markup:
    """Deaths as bars on a scale of their own; those of the running minute, if it is the last, as a hollow bar."""
    top = max((value or 0 for value in values), default=0) or 1
    step = 1000 / max(len(values), 1)
    bars = (
        Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            "b-hollow" if hollow and index == len(values) - 1 else "b-dead",
            step * index,
            STRIP - STRIP * value / top,
            step * 0.72,
            STRIP * value / top,
        )
        for index, value in enumerate(values)
        if value
    )
    return _plot(_all(bars) + _marks(marks, STRIP), STRIP, "strip-plot")


def lines(
    series: Sequence[tuple[str, Sequence[float | None]]], low: float, high: float, *, marks: Iterable[float] = ()
) -> Markup:
    """Several lines on a logarithmic scale between two powers of ten."""
    least, most = math.log10(low), math.log10(high)
    body = (
        Markup('<path class="line {}" d="{}"/>').format(
            name, _path([None if value is None else math.log10(max(value, low)) for value in values], least, most, TALL)
        )
        for name, values in series
    )
    return _plot(_grid(TALL, round(most - least)) + _all(body) + _marks(marks, TALL), TALL, "plot tall")


# --- jobs -----------------------------------------------------------------------------------------------------------


class Part(NamedTuple):
    """One part of a bar: its look, its length, and what it says."""

    look: str
    length: float
    title: str


def life(parts: Sequence[Part]) -> Markup:
    """The life of a job, to scale; no part is too narrow to be seen."""
    total = sum(part.length for part in parts) or 1
    widths = [max(100 * part.length / total, 0.45) for part in parts]
    scale = 100 / (sum(widths) or 1)
    x, body = 0.0, []
    for part, width in zip(parts, widths, strict=True):
        body.append(
            Markup('<rect class="{}" x="{:.2f}%" width="{:.2f}%" height="22"><title>{}</title></rect>').format(
                part.look, x, width * scale, part.title
            )
        )
        x += width * scale
    return Markup('<svg role="img" aria-label="{}">{}</svg>').format(
        "; ".join(part.title for part in parts), _all(body)
    )


def runs(items: Sequence[tuple[float, str]]) -> Markup:
    """Runs of a kind as bars: height is duration, colour is the outcome."""
    top = max((length for length, _ in items), default=0) or 1
    step = 100 / max(len(items), 1)
    body = (
        Markup('<rect class="{}" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"/>').format(
            look, index * step, 44 - (height := max(44 * length / top, 2)), step * 0.74, height
        )
        for index, (length, look) in enumerate(items)
    )
    return Markup(
        '<svg class="runs" viewBox="0 0 100 44" preserveAspectRatio="none" aria-hidden="true">{}</svg>'
    ).format(_all(body))


def ticks(places: Sequence[float] | None) -> Markup:
    """The fires of a day as ticks at per cents of it; None: too many to draw apart."""
    if places is None:
        body = Markup('<rect class="dense" y="6" width="100%" height="10"/>')
    else:
        body = _all(
            Markup('<rect x="{:.2f}%" y="5" width="3" height="12" rx="1.5"/>').format(place) for place in places
        )
    return Markup('<svg class="ticks" aria-hidden="true">{}</svg>').format(body)


def partitions(waiting: Sequence[int], *, late: bool = False) -> Markup:
    """What waits in each partition of a stream."""
    most = max(waiting, default=0)
    step = min(100 / max(len(waiting), 1), 12.5)
    body = []
    for index, value in enumerate(waiting):
        height = max(40 * value / max(most, 40), 2)
        look = "late" if late and value else "b-flow" if value else "b-none"
        body.append(
            Markup(
                '<rect class="{}" x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}"><title>{}</title></rect>'
            ).format(
                look, index * step + 0.4, 40 - height, max(step - 0.8, 0.4), height, f"partition {index}: {value:,}"
            )
        )
    label = f"undelivered in {len(waiting)} partitions, most {most:,}"
    return Markup(
        '<svg class="parts" viewBox="0 0 100 40" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(label, _all(body))


# --- errors ---------------------------------------------------------------------------------------------------------


def trace(text: str) -> Markup:
    """An error as stored, line by line: exceptions marked, frames of installed packages faint, own ones strong."""
    found, own = [], True
    for index, line in enumerate(text.splitlines()):
        shown = escape(line)
        stripped = line.lstrip()
        if stripped.startswith('File "'):
            own = is_own(stripped)
            found.append((Markup("<mark>{}</mark>") if own else Markup('<span class="lib">{}</span>')).format(shown))
        elif index == 0 or line.startswith("Caused by ") or (line and not line[0].isspace() and not _heading(line)):
            found.append(Markup("<b>{}</b>").format(shown))
        elif line and line[0].isspace() and not own:
            found.append(Markup('<span class="lib">{}</span>').format(shown))
        else:
            found.append(shown)
    return Markup("\n").join(found)


def _heading(line: str) -> bool:
    return line.startswith(("Traceback ", "During handling ", "The above exception "))
