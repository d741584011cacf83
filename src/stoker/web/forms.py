"""The fields of a form that a page sent."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from stoker.model.actions import Action
from stoker.model.errors import InvalidInput

LONGEST_NUMBER: Final = 30
"""Characters of a number; no setting needs more, and longer ones overflow or take long to read."""

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d{1,2})?", re.ASCII | re.IGNORECASE)
_WHOLE: Final = re.compile(r"[+-]?\d{1,15}", re.ASCII)


class Form:
    """The fields of a form; a name may come more than once."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def get(self, name: str, default: str = "") -> str:
        """The last value of a field."""
        return next((value for key, value in reversed(self._fields) if key == name), default)

    def names(self) -> list[str]:
        """The names of the fields that were filled in, once each."""
        return list(dict.fromkeys(name for name, value in self._fields if value))

    def values(self) -> list[str]:
        """The values of all fields."""
        return [value for _, value in self._fields]

    def all(self, name: str) -> list[str]:
        """Every value of a field."""
        return [value for key, value in self._fields if key == name]


def number(field: str, text: str) -> float:
    """A number of a form, commas allowed; raises `InvalidInput`."""
    plain = _plain(text)
    if len(plain) > LONGEST_NUMBER or _NUMBER.fullmatch(plain) is None:
        raise InvalidInput(field, text, "must be a number")
    return float(plain)


def whole(field: str, text: str) -> int:
    """A whole number of a form, commas allowed; raises `InvalidInput`."""
    plain = _plain(text)
    if _WHOLE.fullmatch(plain) is None:
        raise InvalidInput(field, text, "must be a whole number of at most 15 digits")
    return int(plain)


def moment_of(field: str, form: Form) -> datetime | None:
    """A moment that a page put into its form; None without one."""
    text = form.get(field)
    try:
        found = datetime.fromisoformat(text) if text else None
    except ValueError:
        found = None
    if text and (found is None or found.tzinfo is None):
        raise InvalidInput(field, text, "must be a time with a zone, such as 2026-11-16T14:00:00+00:00")
    return found


def given_in(form: Form, action: Action) -> dict[str, str | int | bool]:
    """What a form gives to an action; a required field is there, also where it was left empty."""
    found: dict[str, str | int | bool] = {}
    for one in action.parameters:
        text = form.get(one.name)
        if one.plain is bool:
            if text == "yes":
                found[one.name] = True
        elif text or one.required:
            found[one.name] = whole(one.name, text) if one.is_number else text
    return found


def _plain(text: str) -> str:
    return text.strip().replace(",", "")
