"""A worker's part of queues that are limited across all workers (`Tuning.workers`).

The arithmetic is the model's (`control.share_of`); here it becomes what may be asked of the store now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stoker.model.control import Presence, Queue, share_of
from stoker.model.job import Claim
from stoker.worker.lane import Lane


class Shares:
    """`caps`: slots of this worker by queue, for queues that are limited. `running` counts the runs of a queue here."""

    def __init__(self, running: Callable[[str], int]) -> None:
        self.caps: dict[str, int] = {}
        self._cut: set[str] = set()
        self._running = running

    def learn(self, worker: str, queues: Iterable[Queue], presences: Sequence[Presence]) -> bool:
        """Take in what people tuned and who is there; answers whether anything changed."""
        found = {queue.name: share_of(worker, queue, presences) for queue in queues}
        before, self.caps = self.caps, {name: share for name, share in found.items() if share is not None}
        self._cut &= self.caps.keys()
        return self.caps != before

    def portions(self, lane: Lane, room: int, queues: Iterable[str]) -> list[tuple[str, int]]:
        """How much of each queue to ask for, no more than its share leaves; queues with nothing left are left out."""
        if not self.caps:
            return [(queue, room) for queue in queues]
        found = [(queue, min(room, self._left(lane, queue, room))) for queue in queues]
        self._cut.difference_update(lane.queues)
        self._cut.update(queue for queue, n in found if n < room)
        return [(queue, n) for queue, n in found if n > 0]

    def eased(self, lane: Lane) -> bool:
        """May more be asked of a queue of this lane than its share left room for the last time?"""
        return any(self._left(lane, queue, 0) > 0 for queue in self._cut.intersection(lane.queues))

    def surplus(self, lanes: Iterable[Lane]) -> list[Claim]:
        """Claims that wait here beyond their queue's share; taken out of the buffers."""
        found: list[Claim] = []
        for lane in lanes:
            for queue in self.caps.keys() & set(lane.queues):
                while self._left(lane, queue, 0) < 0 and (claim := _last(lane, queue)) is not None:
                    lane.buffer.remove(claim)
                    found.append(claim)
        return found

    def _left(self, lane: Lane, queue: str, room: int) -> int:
        cap = self.caps.get(queue)
        if cap is None:
            return room
        waiting = sum(claim.queue == queue for claim in lane.buffer)
        return cap - self._running(queue) - waiting - lane.asked


def _last(lane: Lane, queue: str) -> Claim | None:
    return next((claim for claim in reversed(lane.buffer) if claim.queue == queue), None)
