"""Statements live in `.sql` files, one each, named after the method that uses it.

Each SQL engine has one `Statements` of its own package. A file may begin with a comment that explains it; the
statement starts after it.

Rule: all files are read at once, so that a missing one is found at import and not in the middle of the night.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import NoReturn

HEADER = re.compile(r"(?:\s+|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.DOTALL)


class Statements:
    """The statements of a folder, by attribute or by key."""

    def __init__(self, package: str, folder: str = "sql") -> None:
        self._where = f"{package}/{folder}"
        place = files(package).joinpath(folder)
        self._texts: dict[str, str] = {}
        for file in place.iterdir() if place.is_dir() else ():
            if file.name.endswith(".sql"):
                text = statement(file.read_text(encoding="utf-8"))
                if not text:
                    raise ValueError(f"{self._where}/{file.name} holds no statement")
                self._texts[file.name.removesuffix(".sql")] = text
        # Plain attributes: nothing is looked up by function on the way to the database.
        self.__dict__.update(self._texts)

    def __getitem__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            self._missing(name, KeyError)

    def __getattr__(self, name: str) -> str:
        self._missing(name, AttributeError)

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._texts))

    def __len__(self) -> int:
        return len(self._texts)

    def _missing(self, name: str, kind: type[Exception]) -> NoReturn:
        texts = self.__dict__.get("_texts", {})
        where = self.__dict__.get("_where", "here")
        listed = ", ".join(sorted(texts)) or "none"
        raise kind(f"there is no statement {name!r} in {where} (there are: {listed})") from None


def statement(text: str) -> str:
    """The statement of a file without its header and without a closing semicolon."""
    match = HEADER.match(text)
    return text[match.end() if match else 0 :].strip().removesuffix(";").rstrip()
