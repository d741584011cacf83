"""The names of all keys (FORMAT.md says what they hold).

A *shard* is a hash tag: all its keys live in one slot, so one script may touch them all in one atomic step. A single
Redis has one shard that holds every queue; a cluster has one per queue, plus the home shard for what belongs to no
queue. Every script gets the fixed keys of its shard first, then three for each queue it works on, then its own.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable, Sequence

from stoker.model.ids import JobId

FIXED = (
    "jobs",
    "state",
    "last",
    "errors",
    "notes",
    "results",
    "keys",
    "named",
    "odd",
    "ends",
    "workers",
    "retired",
    "counts",
    "totals",
    "queues",
    "clock",
    "corrupt",
    "keeps",
)
"""In the order in which `lua/_head.lua` names them."""

WAIT, AGAIN, WAKE = "wait", "again", "wake"
HELD = "held"
"""Once per worker: its lease set, the jobs it runs in the order of their tokens."""


SCHEDULES = "schedules"
GROUPS = "groups"
"""What a sweep has to look at, and when: keys of groups, scored by an instant."""


class Shard:
    """One hash tag and the keys under it. `queue` is None where the shard holds every queue."""

    __slots__ = ("fixed", "leases", "queue", "tag")

    def __init__(self, prefix: str, queue: str | None = None) -> None:
        self.queue = queue
        self.tag = f"{{{prefix}}}" if queue is None else f"{{{prefix}:{queue}}}"
        self.fixed = tuple(self.key(name) for name in FIXED)
        self.leases = self.key("leases")

    def key(self, name: str) -> str:
        """The full name of one of the shard's keys."""
        return f"{self.tag}:{name}"

    def of_queue(self, name: str, queue: str) -> str:
        """The full name of a key that exists once per queue."""
        return f"{self.tag}:{name}:{queue}"

    def held(self, worker: str) -> str:
        """The full name of a worker's lease set."""
        return f"{self.tag}:{HELD}:{worker}"

    def group(self, group: JobId) -> str:
        """The full name of a group's hash; a body names its group in the same letters."""
        return f"{self.tag}:group:{b2a_base64(group, newline=False).decode()}"

    def all_keys(self, queues: Sequence[str]) -> list[str]:
        """The keys of a script that works on these queues."""
        found = list(self.fixed)
        for queue in queues:
            found += (self.of_queue(WAIT, queue), self.of_queue(AGAIN, queue), self.of_queue(WAKE, queue))
        return found


def tag_of(key: str) -> str:
    """The hash tag that a key of a shard begins with, braces included."""
    return key[: key.index("}") + 1]


class Keys:
    """The keys of one script call and the numbers scripts know them by."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(self.names, 1)}

    def number(self, name: str) -> int:
        found = self._numbers.get(name)
        if found is None:
            self.names.append(name)
            found = self._numbers[name] = len(self.names)
        return found

    def queue(self, shard: Shard, name: str) -> int:
        """The number of a queue among those whose keys come right behind the fixed ones."""
        return (self._numbers[shard.of_queue(WAIT, name)] - len(FIXED) - 1) // 3 + 1
