"""Labels: a short text that a task writes on its jobs, such as `order 7 for acme`, so that people tell them apart.

A label is made of a template when a job is enqueued, from the arguments as they are shown to people: secrets are masked
before the template sees them. It is stored with the job and shown in lists to everyone who may read these.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Any, Final, TypeAlias

from stoker.model.errors import InvalidInput
from stoker.model.redact import Redaction

LONGEST: Final = 80
"""Characters of a label; a longer one is cut."""

LONGEST_TEMPLATE: Final = 500
UNKNOWN: Final = "–"
"""What stands for an argument, or a part of one, that a call does not have."""

_PIECE: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_PATH: Final = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
_REDACT: Final = Redaction()

Arguments: TypeAlias = Callable[[str], Any]
"""Finds an argument by its name; `LookupError` where the call has none."""


class Label:
    """A template with the names of arguments in braces: `"order {id} for {customer.name}"`."""

    __slots__ = ("_pieces", "template")

    def __init__(self, template: object) -> None:
        if not isinstance(template, str) or not template.strip() or len(template) > LONGEST_TEMPLATE:
            why = f"must be a text with arguments in braces, as in 'order {{id}}', at most {LONGEST_TEMPLATE} letters"
            raise InvalidInput("label", template, why)
        self.template = template
        self._pieces: list[str | tuple[str, ...]] = []
        behind = 0
        for found in _PIECE.finditer(template):
            self._pieces += [template[behind : found.start()], self._piece(found)]
            behind = found.end()
        self._pieces.append(template[behind:])

    def _piece(self, found: re.Match[str]) -> str | tuple[str, ...]:
        """A brace that stands for itself, or the path of an argument."""
        if found[0] in {"{{", "}}"}:
            return found[0][0]
        if found[1] is None or _PATH.fullmatch(found[1]) is None:
            why = f"has {found[0]!r}; braces hold an argument or a part of one, as in {{id}} or {{customer.name}}"
            raise InvalidInput("label", self.template, why)
        return tuple(found[1].split("."))

    def check(self, kind: str, known: Collection[str]) -> None:
        """Refuse a template that names an argument which a task does not take."""
        for piece in self._pieces:
            if isinstance(piece, tuple) and piece[0] not in known:
                those = ", ".join(known) or "none"
                why = f"names {piece[0]!r}, which is no parameter of task {kind}; these are: {those}"
                raise InvalidInput("label", self.template, why)

    def text(self, arguments: Arguments) -> str:
        """The label of one call, in one line; what the call does not have is a dash."""
        whole = "".join(one if isinstance(one, str) else _shown(one, arguments) for one in self._pieces)
        line = " ".join(whole.split())
        return line if len(line) <= LONGEST else f"{line[: LONGEST - 1].rstrip()}…"


def _shown(path: tuple[str, ...], arguments: Arguments) -> str:
    """An argument, or a part of it, as people may see it."""
    name, *parts = path
    try:
        raw = json.dumps({name: arguments(name)}, default=str).encode()
        value = json.loads(_REDACT.json(raw))[name]
        for part in parts:
            value = value[int(part) if isinstance(value, list) else part]
    except (LookupError, TypeError, ValueError, RecursionError):
        return UNKNOWN
    if value is None:
        return UNKNOWN
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
