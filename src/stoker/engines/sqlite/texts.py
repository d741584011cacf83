"""The engine's statements, by the name of their file in `sql/`."""

from __future__ import annotations

from importlib.resources import files

_FOLDER = files(__package__) / "sql"


def sql(name: str) -> str:
    """The statement in `sql/<name>.sql`, comments and line breaks taken out: the driver's cache compares texts."""
    text = (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")
    lines = (line.partition("--")[0].strip() for line in text.splitlines())
    return " ".join(line for line in lines if line)
