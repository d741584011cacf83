"""Words of `model.words` for HTML: a figure and its unit stay on one line, and a moment is a `<time>`."""

from __future__ import annotations

import re
from datetime import datetime

from markupsafe import Markup

from stoker.model.time import Instant
from stoker.model.words import UNKNOWN, absolute, iso

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
        absolute(value) if text is None else tight(text),
    )
