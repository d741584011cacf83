"""The fields of a form that a page sent."""

from __future__ import annotations

import math

from stoker.model.errors import InvalidInput


class Form:
    """The fields of a form; a name may come more than once."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def get(self, name: str, default: str = "") -> str:
        """The last value of a field."""
        return next((value for key, value in reversed(self._fields) if key == name), default)

    def all(self, name: str) -> list[str]:
        """Every value of a field."""
        return [value for key, value in self._fields if key == name]


def number(field: str, text: str) -> float:
    """A finite number of a form; raises `InvalidInput`."""
    try:
        found = float(text.replace(",", ""))
    except ValueError:
        raise InvalidInput(field, text, "must be a number") from None
    if not math.isfinite(found):
        raise InvalidInput(field, text, "must be a finite number")
    return found
