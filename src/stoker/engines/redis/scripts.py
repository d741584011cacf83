"""The Lua scripts: one file each, with a common head and, where a script asks for them, shared parts.

A script's first line may say `-- with: _claim, _commit`; those files are put between the head and the script. `$LEASE$`
is the default lease. The
server knows a script by the SHA-1 of its text. After a restart or a flush it has forgotten it; then the text is sent
once, and callers notice nothing.
"""

from __future__ import annotations

import functools
import hashlib
from importlib.resources import files

from stoker.model.job import LEASE

_WITH = "-- with: "


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
    return text.replace("$LEASE$", str(LEASE))
