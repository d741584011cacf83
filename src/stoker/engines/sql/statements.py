"""Statements live in `.sql` files beside the module that uses them, each under a line `-- name: …`.

Each SQL engine has one `Statements` of its own package. Comments between a name and its statement explain it. A name is
used once in an engine, so that a search finds it in one file and in the code that runs it.

Rule: all files are read when the engine is imported, and modules look up their statements then: a missing or doubled
name is found before anything runs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
HEADER = re.compile(r"(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)


class Statements(dict[str, str]):
    """The statements of a folder and of those in it, except migrations, by name."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        for file in folder.rglob("*.sql"):
            if file.parent.name != "migrations":
                self._add(file)

    def _add(self, file: Path) -> None:
        head, *named = NAME.split(file.read_text(encoding="utf-8"))
        if not named or statement(head):
            raise ValueError(f"{file} does not begin with a line '-- name: …'")
        for name, part in zip(named[::2], named[1::2], strict=True):
            if name in self:
                raise ValueError(f"{file} has a statement {name!r}, and so has another place in {self._folder}")
            self[name] = statement(part)
            if not self[name]:
                raise ValueError(f"{file} holds no statement under the name {name!r}")

    def __missing__(self, name: str) -> NoReturn:
        listed = ", ".join(sorted(self)) or "none"
        raise KeyError(f"there is no statement {name!r} in {self._folder} (there are: {listed})")


def statement(text: str) -> str:
    """The statement without the comments before it and without a closing semicolon."""
    match = HEADER.match(text)
    return text[match.end() if match else 0 :].strip().removesuffix(";").rstrip()
