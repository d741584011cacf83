"""Texts of `model.humanize` for HTML: a figure and its unit stay on one line, and a moment is a `<time>`."""

from __future__ import annotations

import re
from datetime import datetime

from markupsafe import Markup

from stoker.model.humanize import UNKNOWN, absolute, clock, iso, until
from stoker.model.time import Instant, instant

_UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|min|h|days?|k|M|G|kB|MB|GB|jobs?|slots?|of)\b|%)|(?<=\d of) (?=\d)")


def tight(text: str) -> str:
    """The text with no-break spaces between figures and their units."""
    return _UNIT.sub("\u00a0", text)


def time(value: datetime | Instant | None, text: str | None = None) -> Markup:
    """A `<time>` whose title is exact; its text is the exact moment too unless another one is given."""
    if value is None:
        return Markup("{}").format(UNKNOWN)
    return Markup('<time class="{}" datetime="{}" title="{} UTC">{}</time>').format(
        "abs" if text is None else "rel",
        iso(value),
        absolute(value),
        f"{absolute(value)} UTC" if text is None else tight(text),
    )


_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def moments(text: str, now: Instant) -> Markup:
    """The text with each moment in it as a `<time>`: at what time, and how soon it comes."""
    found, end = Markup(), 0
    for match in _MOMENT.finditer(text):
        at = instant(datetime.fromisoformat(match[0]))
        soon = f" ({until(at, now)})" if at > now else ""
        found += Markup("{}{}{}").format(tight(text[end : match.start()]), time(at, clock(at, now)), tight(soon))
        end = match.end()
    return found + Markup("{}").format(tight(text[end:]))
