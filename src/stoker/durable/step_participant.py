"""A step in a transaction of the user's: its row and the user's writes are one commit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.engines.base import Engine, Transaction
from stoker.job_participant import hold_claim
from stoker.model.job import Verdict
from stoker.model.steps import Save, Step, StepState

if TYPE_CHECKING:
    from stoker.context import Context


class StepParticipant:
    """Holds the run's claim first and saves a step last: its row and the user's writes are one commit."""

    def __init__(self, context: Context, row: str) -> None:
        self._context = context
        self._row = row
        self.step = Step(row)

    @property
    def name(self) -> str:
        """The step and its job."""
        return f"step {self._row} of job {self._context.id} ({self._context.kind})"

    async def begin(self, engine: Engine, tx: Transaction) -> bool:
        """Hold the claim; from here on the run goes by the claim that `hold` returns."""
        return await hold_claim(self._context, engine, tx, self.name)

    async def end(self, engine: Engine, tx: Transaction) -> bool:
        """Save the step."""
        claim = self._context.claim
        save = Save(claim.id, claim.worker, claim.token, (self.step,), ref=claim.ref)
        [verdict] = await engine.steps.save([save], tx=tx)
        return verdict is Verdict.APPLIED

    def committing(self) -> None:
        """Do nothing: the job goes on."""

    def committed(self) -> None:
        """Count the step; the job goes on."""
        self._context.runtime.stepped(self._context.claim, StepState.DONE)

    def rolled_back(self) -> None:
        """Do nothing: the step is tried again."""

    def in_doubt(self, why: str) -> None:
        """Note that this run must end as failed: the next one reads whether the step is stored."""
        assert self._context.commit is not None
        self._context.commit.doubt = why

    async def is_stored(self, engine: Engine) -> bool:
        """Return whether the step has its row."""
        [rows] = await engine.steps.get([self._context.claim.id])
        return any(row.name == self._row and row.state is StepState.DONE for row in rows)
