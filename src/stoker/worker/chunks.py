"""Queues whose jobs run in chunks: which claims one call gets, and when it starts."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from stoker.executors.choose import is_suspect
from stoker.model.chunk import Chunk
from stoker.model.errors import StokerError
from stoker.model.job import Claim
from stoker.model.time import SECOND, span
from stoker.worker.fetcher import Lane

if TYPE_CHECKING:
    from stoker.app import Stoker


class ChunkQueue(NamedTuple):
    """The one task of a queue, and its chunk. `one_tenant`: a chunk holds jobs of one tenant only."""

    kind: str
    chunk: Chunk
    one_tenant: bool

    def lane(self, queue: str, slots: int, batch: int | None) -> Lane:
        """Make the lane of the queue."""
        return ChunkLane(queue, slots, self, batch)


def chunk_queues(app: Stoker) -> dict[str, ChunkQueue]:
    """Return the queues of an app whose jobs run in chunks. Raises if another task shares one of them."""
    tasks = {task.name: (task, app.resolve(task.name, task.options)[0]) for task in app.tasks.values()}
    found = {
        queue: ChunkQueue(task.name, task.chunk, app.scopes_tenants)
        for task, queue in tasks.values()
        if task.chunk is not None
    }
    for task, queue in tasks.values():
        if queue in found and found[queue].kind != task.name:
            raise StokerError(
                f"queue {queue!r} has the task {found[queue].kind!r}, whose jobs run in chunks, and the task "
                f"{task.name!r}. A queue with a chunk= task serves only that task: give one of them another queue=. "
                "The worker does not start."
            )
    return found


Group: TypeAlias = tuple[bytes | None, str | None]
"""What claims of one chunk have in common. The first part is set for a claim that runs alone: its job's id."""


class ChunkLane(Lane):
    """The slots of a queue whose jobs run in chunks, one chunk per slot.

    A chunk holds jobs of one kind, and of one tenant where handlers run in a tenant's scope. A job of another kind, and
    one that must run alone because its process died twice, is a chunk by itself and waits for no other.
    """

    def __init__(self, queue: str, slots: int, rule: ChunkQueue, batch: int | None = None) -> None:
        super().__init__((queue,), slots, batch)
        self.kind, chunk, self._one_tenant = rule
        self.size = chunk.size
        self._within = span(chunk.within) / SECOND
        self._arrivals: deque[float] = deque()  # of each claim in the buffer
        self._counts: Counter[Group] = Counter()

    def worth_asking(self, room: int) -> bool:
        """A chunk that a free slot waits for is filled up at once."""
        return self.busy < self.slots or super().worth_asking(room)

    def received(self, claims: list[Claim], asked: int, number: int, now: float) -> None:
        """Remember when the claims came in, and count them."""
        self._arrivals.extend([now] * len(claims))
        self._counts.update(map(self._group, claims))
        super().received(claims, asked, number, now)

    def remove(self, claim: Claim) -> None:
        """Take one claim out of the buffer."""
        place = self.buffer.index(claim)
        del self.buffer[place], self._arrivals[place]
        self._forget(self._group(claim), 1)

    def empty(self) -> list[Claim]:
        """Take every claim out of the buffer."""
        self._arrivals.clear()
        self._counts.clear()
        return super().empty()

    def ready_in(self, now: float) -> float | None:
        """Seconds until the next chunk starts, 0 if it is full; None while there is no claim for it."""
        if not self.buffer:
            return None
        return 0.0 if self._full() is not None else max(0.0, self._arrivals[0] + self._within - now)

    def take(self, now: float) -> list[Claim]:
        """Take the next chunk out of the buffer: the first full one, else what the first claim belongs to."""
        full = self._full()
        group = self._group(self.buffer[0]) if full is None else full
        taken: list[Claim] = []
        rest: list[tuple[Claim, float]] = []
        while self.buffer and len(taken) < self.size:
            claim, arrival = self.buffer.popleft(), self._arrivals.popleft()
            if self._group(claim) == group:
                taken.append(claim)
            else:
                rest.append((claim, arrival))
        self.buffer.extendleft(claim for claim, _ in reversed(rest))
        self._arrivals.extendleft(arrival for _, arrival in reversed(rest))
        self._forget(group, len(taken))
        self.since = now
        return taken

    def _full(self) -> Group | None:
        """Return the first group that needs no more claims."""
        return next((group for group, count in self._counts.items() if group[0] or count >= self.size), None)

    def _group(self, claim: Claim) -> Group:
        if claim.kind != self.kind or is_suspect(claim):
            return claim.id, None
        return None, claim.tenant if self._one_tenant else None

    def _forget(self, group: Group, count: int) -> None:
        self._counts[group] -= count
        if not self._counts[group]:
            del self._counts[group]
