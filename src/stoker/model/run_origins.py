"""Where runs were: which worker, host, process and release a failure or an end of a job comes from.

A stored failure and a stored end carry four bytes, the number of the worker. A worker writes one small document under
its number when it starts, so a job pays nothing for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from hashlib import sha1
from typing import Final

import msgspec

from stoker.model.time import DAY, Instant, Span

MOST: Final = 5_000
"""Origins that a store remembers: those that were seen last."""

SEEN_EVERY: Span = DAY
"""A worker that lives for so long says again that it is there."""


class RunOrigin(msgspec.Struct, frozen=True, array_like=True):
    """One start of a worker. Without a worker: two workers have this number, and nothing is known of their runs."""

    number: int
    worker: str = ""
    host: str = ""
    pid: int = 0
    release: str = ""
    seen: Instant = 0


def ran_on(host: str, pid: int, release: str) -> str:
    """Where a run was, in words: `on web-3 / 4711, release 2.1`."""
    return f"on {host} / {pid}" + (f", release {release}" if release else "")


@lru_cache(maxsize=1_000)
def number(worker: str) -> int:
    """The number of a worker in what it stores: 31 bits. Redis computes the same in `lua/settle.lua`."""
    return int.from_bytes(sha1(worker.encode(), usedforsecurity=False).digest()[:4]) & 0x7FFFFFFF


def outdated(known: Iterable[RunOrigin]) -> list[RunOrigin]:
    """Those that a store forgets, because so many were seen after them."""
    return sorted(known, key=lambda one: (one.seen, one.number), reverse=True)[MOST:]


def by_number(known: Iterable[RunOrigin]) -> Mapping[int, RunOrigin]:
    """Origins by the number under which jobs refer to them, without those that tell nothing."""
    return {one.number: one for one in known if one.worker}
