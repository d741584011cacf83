"""The Lua scripts: one file each, with a common head and, where a script asks for them, shared parts.

A script's first line may say `-- with: _claim, _commit`; those files are put between the head and the script. Names
between dollar signs stand for constants of the model and for the format of a state. The server knows a script by the
SHA-1 of its text. After a restart or a flush it has forgotten it; then the client sends the text once.
"""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files

from stoker.engines.redis.record_format import STATE, STATE_FORMAT
from stoker.model.groups import ABANDONED_AFTER, MOST_KNOWN
from stoker.model.job import LEASE
from stoker.model.time import HOUR, Span

KEEP_DONE: Span = HOUR
"""For done jobs of a queue without settings: they take memory, so Redis keeps them for less than other engines."""

_WITH = "-- with: "
_LUA_CODES = {"c": "c1", "H": "I2", "I": "I4", "Q": "I8"}
_PLACEHOLDERS = {
    "$LEASE$": str(LEASE),
    "$ABANDONED_AFTER$": str(ABANDONED_AFTER),
    "$MOST_KNOWN$": str(MOST_KNOWN),
    "$KEEP_DONE$": str(KEEP_DONE),
    "$STATE_FORMAT$": ">" + "".join(_LUA_CODES[field.code] for field in STATE),
    "$STATE_FIELDS$": ", ".join(f"r.{field.name}" for field in STATE),
    "$STATE_SIZE$": str(STATE_FORMAT.size),
}


class Script:
    """A script and the name the server knows it by."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@functools.cache
def script(name: str) -> Script:
    """The script of lua/<name>.lua."""
    own = _read(name)
    first = own.partition("\n")[0]
    parts = first.removeprefix(_WITH).split(", ") if first.startswith(_WITH) else []
    return Script(name, "\n".join([_read("_head"), *map(_read, parts), own]))


def _read(name: str) -> str:
    text = files(__package__).joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
    for placeholder, value in _PLACEHOLDERS.items():
        text = text.replace(placeholder, value)
    return text
