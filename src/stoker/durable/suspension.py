"""When a run is suspended: what it waits for and calls, and whether anything else of it goes on.

What becomes of a suspended run is decided before its handler is interrupted, so nothing that the handler does
afterwards changes it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from msgspec.structs import replace

from stoker.durable.only_waits import only_waits
from stoker.durable.stored_rows import StoredRows
from stoker.model import ids
from stoker.model.groups import into_group
from stoker.model.ids import JobId
from stoker.model.job import Draft
from stoker.model.outcome import Suspended
from stoker.model.steps import GROUP_WAIT, MOST_CALLED, Step, StepState, Wakes, group_wait, told
from stoker.model.time import DAY, SECOND, Instant, Span

if TYPE_CHECKING:
    from stoker.context import Context

logger = logging.getLogger("stoker.job")

TURNS = 10
"""Turns of the loop after which what has ended has reached those who wait for it: a task, its gather, the handler."""

LOOK_AGAIN = 1.0
"""Seconds between two looks at a run that waits and does something else besides."""

IN_THE_SLOT = 0.1
"""Seconds up to which the rest of a sleep or wait is spent in the slot; by a clock that a test moves, none is."""

KEEP_CALLED: Span = 7 * DAY
"""How long a called job is kept at least: the job that called it may read its end much later."""


class Suspend(BaseException):
    """Ends the run of a plain handler that waits. What becomes of the job is decided already."""


class _Wait(NamedTuple):
    """A wait that is open in this run. Calls of one group wait for the same row, each with a future of its own.

    `exact`: the handler gave the moment at which it ends, not a time from now.
    """

    step: Step
    answers: set[asyncio.Future[Step | None]]
    exact: bool


class Suspension:
    """What one run has open and calls; `outcome` is set when it is suspended."""

    def __init__(self, context: Context, rows: StoredRows) -> None:
        self._context = context
        self._rows = rows
        self._at_work = 0
        self._asked = 0
        self._waits: dict[str, _Wait] = {}
        self._calls: dict[str, Draft] = {}
        self._called: dict[str, asyncio.Future[Step]] = {}
        self._looking = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.outcome: Suspended | None = None

    def asked(self) -> None:
        """Note that the handler goes on: it has asked for something durable."""
        self._asked += 1

    @contextmanager
    def working(self) -> Iterator[None]:
        """Around what the run does itself: it is not suspended meanwhile."""
        self._at_work += 1
        try:
            yield
        finally:
            self._at_work -= 1
            self._look()

    def now(self) -> Instant:
        """About the store's time."""
        return self._context.runtime.store_now(self._context)

    async def open(self, step: Step, *, exact: bool = False) -> Step | None:
        """Wait here or, suspended, in a later run; returns the answered row, None when the time is over."""
        self._rows.check_room(step)
        if (left := self._short(step)) is not None:
            with self.working():
                await asyncio.sleep(left)
            return None
        answer: asyncio.Future[Step | None] = asyncio.get_running_loop().create_future()
        answers = self._waits.setdefault(step.name, _Wait(step, set(), exact)).answers
        answers.add(answer)
        self._look()
        try:
            return await answer
        finally:
            answers.discard(answer)
            if not answers:
                self._waits.pop(step.name, None)

    def open_sync(self, step: Step, *, exact: bool = False) -> None:
        """`open` in the thread of a plain handler: return when the time is over, else end the run."""
        self._rows.check_room(step)
        if (left := self._short(step)) is not None:
            time.sleep(left)
            return
        self._waits[step.name] = _Wait(step, set(), exact)
        self._suspend(Wakes.ANY)
        raise Suspend

    async def call(self, row: str, draft: Draft) -> Step:
        """Call a job, together with this suspension or beside what the run does; returns its row."""
        self._rows.check_room(Step(row, StepState.CALLED))
        answer: asyncio.Future[Step] = asyncio.get_running_loop().create_future()
        self._calls[row], self._called[row] = draft, answer
        self._look()
        try:
            return await answer
        finally:
            del self._calls[row], self._called[row]

    def call_sync(self, row: str, draft: Draft) -> NoReturn:
        """`call` in the thread of a plain handler: end the run."""
        self._rows.check_room(Step(row, StepState.CALLED))
        self._calls[row] = draft
        self._suspend(Wakes.ALL)
        raise Suspend

    def _short(self, step: Step) -> float | None:
        """The seconds that are left of a wait, if they are few enough to keep the slot; None: they are more."""
        left = None if step.until is None else max(0.0, (step.until - self.now()) / SECOND)
        most = IN_THE_SLOT if self._context.runtime.app.root().clock is None else 0.0
        return left if left is not None and left <= most else None

    def _look(self) -> None:
        """Suspend the run soon if nothing of it goes on."""
        if not self._looking and self.outcome is None and (self._waits or self._calls):
            self._looking = True
            asyncio.get_running_loop().call_soon(self._turn, TURNS, self._asked)

    def _turn(self, left: int, asked: int) -> None:
        """Let what has ended reach those who wait for it: it takes some turns of the loop without a durable call."""
        if self.outcome is not None or not (self._waits or self._calls):
            self._looking = False
        elif left:
            left = left - 1 if asked == self._asked else TURNS
            asyncio.get_running_loop().call_soon(self._turn, left, self._asked)
        else:
            self._decide()

    def _decide(self) -> None:
        """Suspend the run, or keep its slot and look again. There is no await in it: nothing can come between."""
        loop = asyncio.get_running_loop()
        self._looking = False
        found = None if self._at_work else self._context.runtime.main_line(self._context)
        if found is not None:
            futures: set[asyncio.Future[Any]] = {answer for wait in self._waits.values() for answer in wait.answers}
            shape = only_waits(*found, futures | {*self._called.values()})
            if shape is not None and len(self._calls) <= MOST_CALLED:
                self._suspend(shape)
                self._context.runtime.suspend(self._context)
                return
            logger.debug(
                "job %s (%s) waits and keeps its slot: other things go on", self._context.id, self._context.kind
            )
        if self._calls:
            self._background(self._store_calls())
        elif self._waits:
            self._looking = True
            first = min((wait.step.until or self.now() + DAY for wait in self._waits.values()), default=0)
            pause = min(LOOK_AGAIN, max(0.001, (first - self.now()) / SECOND))
            loop.call_later(pause, lambda: self._background(self._poll()))

    def _background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _poll(self) -> None:
        """Answer the waits of a run that keeps its slot."""
        broken: Exception | None = None
        try:
            await self._rows.read_again()
        except Exception as error:  # noqa: BLE001 - raised where the handler waits
            broken = error
        finally:
            self._looking = False
        for row, wait in [*self._waits.items()]:
            found = self._rows.by_name.get(row)
            over = wait.step.until is not None and wait.step.until <= self.now()
            for answer in [one for one in wait.answers if not one.done()]:
                if broken is not None:
                    answer.set_exception(broken)
                elif found is not None and found.state in (StepState.DONE, StepState.EARLY, StepState.FAILED):
                    answer.set_result(found)
                elif over:
                    answer.set_result(None)
        self._look()

    def _suspend(self, shape: Wakes) -> None:
        """Decide what becomes of a run that only waits."""
        rows, waits, drafts, groups = self._children()
        ends = [(wait.step.until, wait.exact) for wait in self._waits.values() if wait.step.until is not None]
        first, exact = min(ends, default=(None, False))
        waits = [*(wait.step for wait in self._waits.values()), *waits]
        all_called = all(step.name.startswith(GROUP_WAIT) for step in waits) and not ends
        self.outcome = Suspended(
            (*self._rows.take(), *rows, *waits),
            None if first is None else max(1, first - self.now()),
            shape if all_called else Wakes.ANY,
            tuple(drafts),
            tuple(groups),
            first if exact else None,
        )

    def _children(self) -> tuple[list[Step], list[Step], list[Draft], list[JobId]]:
        """The rows, waits, drafts and groups of the calls that are not stored yet; one group for each queue."""
        parent = self._context.claim.id
        rows, waits, drafts = [], [], list[Draft]()
        groups: dict[str, JobId] = {}
        for row, draft in [*self._calls.items()][:MOST_CALLED]:
            if draft.queue not in groups:
                groups[draft.queue] = ids.derived(parent, f"calls {row}")
                waits.append(Step(group_wait(groups[draft.queue]), StepState.WAITING))
            child = ids.derived(parent, row)
            keep = draft.options.keep
            options = (
                draft.options if keep is not None and keep >= KEEP_CALLED else replace(draft.options, keep=KEEP_CALLED)
            )
            drafts += into_group(groups[draft.queue], [replace(draft, job_id=child, options=options)])
            rows.append(Step(row, StepState.CALLED, told(job=ids.text(child), group=ids.text(groups[draft.queue]))))
        return rows, waits, drafts, [*groups.values()]

    async def _store_calls(self) -> None:
        """Start called jobs beside what the run does."""
        called = self._called.copy()
        with self.working():
            rows, waits, drafts, groups = self._children()
            try:
                await self._rows.save(*rows, *waits, drafts=tuple(drafts), groups=tuple(groups))
            except BaseException as error:  # noqa: BLE001 - raised where the jobs were called
                for answer in called.values():
                    if not answer.done():
                        answer.set_exception(error)
                return
        for step in rows:
            if not (answer := called[step.name]).done():
                answer.set_result(step)
