"""The names of all keys (FORMAT.md says what they hold).

A *shard* is a hash tag: all its keys live in one slot, so one script may touch them all in one atomic step. A single
Redis has one shard that holds every queue; a cluster has one per queue, plus the home shard for what belongs to no
queue. Every script gets the fixed keys of its shard first, then three for each queue it works on, then its own. In the
form for queues with subqueues, each queue has four keys more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.model.ids import JobId
from stoker.model.job import group_text

FIXED = (
    "jobs",
    "state",
    "last",
    "errors",
    "notes",
    "results",
    "keys",
    "named",
    "unsuccessful",
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

WAIT, RETRYING, WAKE = "wait", "retrying", "wake"
PLAIN_KEYS = (WAIT, RETRYING, WAKE)
"""What every queue has, in the order in which scripts know it."""

SUSPENDED = "suspended"
"""Suspended jobs of a queue by their due time; scripts make its name from that of `wait`."""

SUBQUEUE_KEYS = ("subqueue_entries", "subqueues", "order", "dues")
"""What a queue with subqueues has beside: jobs by subqueue, states, their orders, and jobs by due time."""

HELD = "held"
"""Once per worker: its lease set, the jobs it runs in the order of their tokens."""


SCHEDULES = "schedules"
STEPS, STEP_NAMES, ASKING = "steps", "stepnames", "asking"
"""Rows of jobs, and their names in the order of the jobs."""
KEPT = "kept"
"""Unique keys that a success keeps for a time, scored by when they lapse."""
DAMAGE = "damage"
GROUPS = "groups"
"""What a sweep has to look at, and when: keys of groups, scored by an instant."""
OPEN_GROUPS, CLOSED_GROUPS = f"{GROUPS}:open", f"{GROUPS}:closed"
"""Ids of groups, scored by when they were made."""


def stride(*, with_subqueues: bool) -> int:
    """How many keys each queue of a script has."""
    return len(PLAIN_KEYS) + (len(SUBQUEUE_KEYS) if with_subqueues else 0)


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
        return f"{self.tag}:group:{group_text(group)}"

    def members(self, group: JobId) -> str:
        """The full name of the ids of a group's members."""
        return f"{self.tag}:members:{group_text(group)}"

    def all_keys(self, queues: Sequence[str], *, with_subqueues: bool = False) -> list[str]:
        """The keys of a script that works on these queues; `with_subqueues`: with those of subqueues."""
        names = (*PLAIN_KEYS, *SUBQUEUE_KEYS) if with_subqueues else PLAIN_KEYS
        return [*self.fixed, *(self.of_queue(name, queue) for queue in queues for name in names)]


def tag_of(key: str) -> str:
    """The hash tag that a key of a shard begins with, braces included."""
    return key[: key.index("}") + 1]


class Keys:
    """The keys of one script call and their numbers. `with_subqueues`: its queues have keys of subqueues."""

    def __init__(self, names: Iterable[str], *, with_subqueues: bool = False) -> None:
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(self.names, 1)}
        self._of_queue = stride(with_subqueues=with_subqueues)

    def number(self, name: str) -> int:
        found = self._numbers.get(name)
        if found is None:
            self.names.append(name)
            found = self._numbers[name] = len(self.names)
        return found

    def queue(self, shard: Shard, name: str) -> int:
        """The number of a queue among those whose keys come right behind the fixed ones."""
        return (self._numbers[shard.of_queue(WAIT, name)] - len(FIXED) - 1) // self._of_queue + 1

    def subqueues(self, shard: Shard, queue: str) -> int:
        """The number of the first key of a queue's subqueues; the others follow it."""
        first, *_ = [self.number(shard.of_queue(name, queue)) for name in SUBQUEUE_KEYS]
        return first
