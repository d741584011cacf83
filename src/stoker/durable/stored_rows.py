"""What a run stores: the rows of its job, read once, and those that wait for the next write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from stoker.durable.values import let_out
from stoker.model.errors import PASSING, EngineBusy, EngineFull, EngineReadOnly, LostClaim, StepFailed, StokerError
from stoker.model.ids import JobId
from stoker.model.job import Draft, Verdict
from stoker.model.seal import check_open
from stoker.model.steps import LARGEST_VALUES, MOST_STEPS, Save, Step, StepState
from stoker.outage import until_answered

if TYPE_CHECKING:
    from stoker.context import Context

T = TypeVar("T")

logger = logging.getLogger("stoker.job")

_AWAY = (*PASSING, EngineFull, EngineReadOnly)
"""Errors of a store that a run waits for, in its slot: its lease decides whether it goes on."""

SMALL_RESULT = 1 << 10
"""Bytes of a called job's result up to which its row waits for the next write of the run."""


class StoredRows:
    """The rows of one run's job: `by_name` as far as the run knows, `unsaved` for its next write.

    `failures` are those of steps that failed last. They are stored if the handler catches them and goes on.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._sizes: dict[str, int] = {}
        self._size = 0
        self._read = False
        self._reading = asyncio.Lock()
        self.by_name: dict[str, Step] = {}
        self.unsaved: dict[str, Step] = {}
        self.failures: dict[str, Step] = {}

    def caught(self, error: BaseException | None = None) -> None:
        """Keep the failures of steps for the next write: the handler has caught them, except what it let out."""
        out = set() if error is None else let_out(error)
        for name in [*self.failures]:
            if name in out or (step := self.failures.pop(name, None)) is None:  # None: another thread was first
                continue
            self.unsaved[name] = step
            self._context.runtime.stepped(self._context.claim, StepState.FAILED)

    def left(self, error: BaseException | None) -> tuple[Step, ...]:
        """The rows that the end of the run has to store; not the failures that the handler let out as `error`."""
        self.caught(error)
        return tuple(self.unsaved.values())

    def take(self) -> tuple[Step, ...]:
        """The rows that a suspension stores."""
        taken = self.left(None)
        self.unsaved.clear()
        return taken

    async def read(self, *, fresh_too: bool = False) -> dict[str, Step]:
        """The rows of the job, as the claim brought them or read once. A fresh one can only have early signals."""
        if not self._read and (fresh_too or not self._context.claim.fresh):
            async with self._reading:
                if not self._read:
                    rows = self._context.claim.rows
                    self._add(await self._stored() if rows is None else rows)
                    self._read = True
        return self.by_name

    async def read_again(self) -> None:
        self._add(await self._stored())

    async def _stored(self) -> Sequence[Step]:
        return await self.patiently(lambda: self._context.runtime.read_steps(self._context.claim.id))

    def _add(self, found: Sequence[Step]) -> None:
        for step in found:
            check_open(step.value, f"step {step.name}")
        self.by_name = {**self.by_name, **{step.name: step for step in found}}
        self._sizes.update((step.name, len(step.value or b"")) for step in found)
        self._size = sum(self._sizes.values())

    async def save(self, *steps: Step, drafts: tuple[Draft, ...] = (), groups: tuple[JobId, ...] = ()) -> bool:
        """Store rows; False: one that ends a wait as failed has its answer, which is read now."""
        steps = (*self.unsaved.values(), *steps)
        self.check_room(*steps)
        self.unsaved.clear()
        answered: set[str] = set()
        while steps := tuple(step for step in steps if step.name not in answered):
            verdict = await self.patiently(lambda: self._save_once(steps, drafts, groups))
            if verdict is Verdict.APPLIED:
                self.by_name.update((step.name, step) for step in steps)
                break
            if verdict is not Verdict.ANSWERED:
                raise LostClaim(f"job {self._context.id} ({self._context.kind})")
            await self.read_again()
            failed = {step.name for step in steps if step.state is StepState.FAILED}
            answered = {name for name in failed if self.by_name[name].state in (StepState.DONE, StepState.EARLY)}
        return not answered

    async def finish(self, step: Step) -> None:
        """Store a step whose function has run, and count it."""
        if await self.save(step):
            self._context.runtime.stepped(self._context.claim, step.state)

    async def _save_once(
        self, steps: tuple[Step, ...], drafts: tuple[Draft, ...], groups: tuple[JobId, ...]
    ) -> Verdict:
        """Store rows; `EngineBusy`: a user's open transaction signals the job."""
        claim = self._context.claim
        save = Save(claim.id, claim.worker, claim.token, steps, drafts, groups, claim.ref)
        verdict = await self._context.runtime.save_steps(save)
        if verdict is Verdict.HELD:
            raise EngineBusy("an open transaction signals the job")
        return verdict

    async def patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the store answers."""
        return await until_answered(call, _AWAY, self._away)

    def _away(self, error: StokerError) -> None:
        """Log it at debug level: the worker itself reports that its store is away."""
        logger.debug("job %s (%s) waits for the store: %s", self._context.id, self._context.kind, error)

    async def save_rest(self) -> None:
        """Store what a transaction may build on, before it."""
        if self.unsaved:
            await self.save()

    def check_room(self, *steps: Step) -> None:
        """Refuse rows that the job has no room for; a row that is overwritten needs only what it grows by."""
        sizes = {step.name: len(step.value or b"") for step in steps}
        size = self._size + sum(size - self._sizes.get(name, 0) for name, size in sizes.items())
        rows = len(self._sizes) + sum(name not in self._sizes for name in sizes)
        if rows > MOST_STEPS or size > LARGEST_VALUES:
            raise StepFailed(
                steps[-1].name,
                "StokerError",
                f"a job has room for {MOST_STEPS} steps and {LARGEST_VALUES >> 20} MiB of their values. Nothing was "
                "stored. End this job and go on in a follow-up.",
            )
        self._sizes.update(sizes)
        self._size = size

    async def keep(self, step: Step) -> None:
        """Store the end of a called job; a small one with what the run stores next: until then it can be read again."""
        if len(step.value or b"") <= SMALL_RESULT:
            self.unsaved[step.name] = step
        else:
            await self.save(step)
