"""What goes wrong around handlers when a test asks for it: a worker dies, a job is late, an answer is lost.

A worker dies at points: where a handler meets the store, and before and behind the handler. `reach` is called at each
of them. At the one that the test has chosen it raises `WorkerDied` into the handler, and whatever the handler asks of
the store afterwards raises it again.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import msgspec

from stoker.context import Context, running
from stoker.model.errors import EngineUnavailable
from stoker.model.ids import JobId
from stoker.model.job import LARGEST_BATCH, Claim, Demand
from stoker.model.steps import Save
from stoker.model.time import Span

START: Final = "before the start"
SETTLEMENT: Final = "before the settlement"


class WorkerDied(BaseException):
    """Ends a handler whose worker is dead. No `except Exception` catches it."""


def stored_steps(save: Save) -> str:
    """How points name the rows of a durable job that a write stores."""
    names = [step.name for step in save.steps]
    return f"step {names[0]} was stored" if len(names) == 1 else f"steps {', '.join(names)} were stored"


class Death:
    """At which of the points of one job its worker dies: the `at`-th, at none of them if that is None.

    `points`: those that were reached so far, by name. `point`: where the worker died. `over`: the job has been given to
    another worker.
    """

    def __init__(self, job: JobId, at: int | None) -> None:
        self.job = job
        self.points: list[str] = []
        self.point: str | None = None
        self.over = False
        self._at = at
        self._seen: Counter[str] = Counter()
        self._lock = threading.Lock()

    def reach(self, name: str) -> None:
        """Pass a point, or die there; from any thread."""
        with self._lock:
            if self.point is None and not self.over:
                self._seen[name] += 1
                n = self._seen[name]
                self.points.append(name if n == 1 else f"{name}, time {n}")
                if len(self.points) - 1 == self._at:
                    self.point = self.points[-1]
            if self.point is not None and not self.over:
                raise WorkerDied(self.point)


class Faults:
    """The faults that wait for their moment, in one kit."""

    def __init__(self) -> None:
        self.death: Death | None = None
        self.twice: Counter[str] = Counter()
        self.late: dict[str, deque[Span]] = {}
        self.postponed: set[JobId] = set()
        self.lost_answers = 0
        self.step_to_commit: str | None = None
        """What a transaction that is about to commit stores of a step."""
        self.seed: int | None = None
        self._aside: dict[str, list[Claim]] = {}
        self._alike: Counter[tuple[str, bytes]] = Counter()
        self._places: dict[JobId, float] = {}

    def death_of(self, context: Context) -> Death | None:
        """The death that is meant for a run."""
        death = self.death
        if death is None or death.over or all(item.claim.id != death.job for item in context.items):
            return None
        return death

    def reach(self, name: str) -> None:
        """Pass a point of the run that this code is part of, or die there; outside of handlers nothing happens."""
        context = running.get(None)
        death = None if context is None else self.death_of(context)
        if death is not None:
            death.reach(name)

    def committed(self) -> None:
        """Die after the commit of a step, or lose the answer of a commit that has happened, if a test asked for it."""
        step, self.step_to_commit = self.step_to_commit, None
        if step is not None:
            self.reach(f"after {step}")
        if self.lost_answers:
            self.lost_answers -= 1
            raise EngineUnavailable(
                "kit.lose_commit_answer(): the connection broke after the commit was sent. The store has committed, "
                "and the caller cannot know it."
            )

    # --- the order of jobs --------------------------------------------------------------------------------------

    def reorder(self, seed: int) -> None:
        """Have jobs that may run at the same time run in an order that depends on the seed alone."""
        self.seed = seed
        self._alike.clear()
        self._places.clear()

    def claimed(self, claims: list[Claim]) -> list[Claim]:
        """Claims as their worker gets them: a job that was late was not started before."""
        late = self.postponed
        return [msgspec.structs.replace(one, fresh=True) if one.id in late else one for one in claims]

    def widened(self, demand: Demand) -> Demand:
        """Ask for everything that may run, so that there is something to choose from."""
        queues = tuple((queue, LARGEST_BATCH if n > 0 else n) for queue, n in demand.queues)
        return msgspec.structs.replace(demand, queues=queues, total=None)

    def chosen(self, demand: Demand, claims: Sequence[Claim]) -> list[Claim]:
        """What a worker gets of the jobs that may run, as many as it asked for; the rest stays aside for it."""
        held = [*self._aside.pop(demand.worker, ()), *claims]
        held.sort(key=self._place)
        room, left = dict(demand.queues), demand.total
        taken: list[Claim] = []
        aside: list[Claim] = []
        for claim in held:
            if room.get(claim.queue, 0) > 0 and (left is None or left > len(taken)):
                room[claim.queue] -= 1
                taken.append(claim)
            else:
                aside.append(claim)
        if aside:
            self._aside[demand.worker] = aside
        return self.claimed(taken)

    def _place(self, claim: Claim) -> float:
        """Where a job comes: by chance, but the same jobs come in the same order with the same seed."""
        found = self._places.get(claim.id)
        if found is None:
            alike = claim.kind, claim.payload
            self._alike[alike] += 1
            chance = random.Random(repr((self.seed, alike, self._alike[alike])))
            found = self._places[claim.id] = chance.random()
        return found
