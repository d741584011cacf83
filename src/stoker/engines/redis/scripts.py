"""The Lua scripts: one file each, with a common head and, where a script asks for them, shared parts.

A script's first line may say `-- with: _claim, _commit`; those files are put between the head and the script. Names
between dollar signs stand for constants of the model and for the format of a state. The server knows a script by the
SHA-1 of its text. After a restart or a flush it has forgotten it; then the client sends the text once.

Hot scripts have two forms. The plain one knows no subqueues: if it meets a queue that has some, it says so and leaves
it alone. The client then uses the other form, which has also the parts that are named with a question mark.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from stoker.engines.redis.keys import stride
from stoker.engines.redis.record_format import OFFSET, STATE, STATE_FORMAT, STEP_HEAD
from stoker.model.groups import ABANDONED_AFTER, LEAST_KEPT, MOST_KNOWN
from stoker.model.job import LEASE
from stoker.model.lifecycle import KEEP_DEAD
from stoker.model.query import KINDS_BEHIND
from stoker.model.steps import LARGEST_BROUGHT, MOST_BROUGHT
from stoker.model.throttle import LONGEST_SLEEP
from stoker.model.time import HOUR, Span

LOOKS_AT_ONCE = 400
"""How many touched subqueues one script looks at; while it runs, the server does nothing else."""

CLAIMED_AT_ONCE = 100
"""How many jobs of a queue with subqueues one script claims: each may be of another subqueue."""

BROUGHT_AT_ONCE = 500
"""How many rows of suspended jobs one script reads for the claims that it makes."""

KEEP_DONE: Span = HOUR
"""For done jobs of a queue without settings: they take memory, so Redis keeps them for less than other engines."""

_WITH = "-- with: "
_LUA_CODES = {"c": "c1", "H": "I2", "I": "I4", "Q": "I8"}
_PLACEHOLDERS = {
    "$LEASE$": str(LEASE),
    "$ABANDONED_AFTER$": str(ABANDONED_AFTER),
    "$MOST_KNOWN$": str(MOST_KNOWN),
    "$LEAST_KEPT$": str(LEAST_KEPT),
    "$KEEP_DONE$": str(KEEP_DONE),
    "$KEEP_DEAD$": str(KEEP_DEAD),
    "$STATE_FORMAT$": ">" + "".join(_LUA_CODES[field.code] for field in STATE),
    "$STATE_FIELDS$": ", ".join(f"r.{field.name}" for field in STATE),
    "$STATE_SIZE$": str(STATE_FORMAT.size),
    "$KINDS_BEHIND$": str(KINDS_BEHIND),
    "$MOST_LOOKS$": str(LOOKS_AT_ONCE),
    "$CLAIMED_AT_ONCE$": str(CLAIMED_AT_ONCE),
    "$LONGEST_SLEEP$": str(LONGEST_SLEEP),
    "$OFFSET$": str(OFFSET),
    "$STEP_SIZE$": str(STEP_HEAD.size),
    "$MOST_BROUGHT$": str(MOST_BROUGHT),
    "$LARGEST_BROUGHT$": str(LARGEST_BROUGHT),
    "$BROUGHT_AT_ONCE$": str(BROUGHT_AT_ONCE),
}


class Script:
    """A script and the name the server knows it by."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@functools.cache
def script(name: str, *, with_subqueues: bool = False) -> Script:
    """The script of lua/<name>.lua; `with_subqueues`: in the form for queues with subqueues."""
    own = _read(name)
    first = own.partition("\n")[0]
    named = first.removeprefix(_WITH).split(", ") if first.startswith(_WITH) else []
    parts = [part.removeprefix("?") for part in named if with_subqueues or not part.startswith("?")]
    text = "\n".join([_read("_head"), *map(_read, parts), own])
    text = text.replace("$STRIDE$", str(stride(with_subqueues=with_subqueues)))
    return Script(name, text.replace("$SUBQUEUES$", str(with_subqueues).lower()))


def _read(name: str) -> str:
    text = (Path(__file__).parent / "lua" / f"{name}.lua").read_text(encoding="utf-8")
    for placeholder, value in _PLACEHOLDERS.items():
        text = text.replace(placeholder, value)
    return text
