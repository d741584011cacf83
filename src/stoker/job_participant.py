"""The job's part in a block: its claim is the fence, its success the end."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import msgspec

from stoker.codec.error_text import text_of
from stoker.emitting import save_of
from stoker.engines.base import Engine, Feature, Transaction, outbox_of
from stoker.model.errors import EngineRefused, StokerError
from stoker.model.job import Note, Settlement, Status
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done

if TYPE_CHECKING:
    from stoker.context import Context
    from stoker.transaction_block import Block

logger = logging.getLogger("stoker.block")


class Commit:
    """What came of the blocks of a run. A run without one is settled by its worker alone.

    `block`: the last one. `committing`: its commit is under way or done. `settled`: it has settled the job, with this.
    `doubt`: it is unknown whether it has.
    """

    __slots__ = ("block", "committing", "doubt", "settled")

    def __init__(self) -> None:
        self.block: Block[Any, Any] | None = None
        self.committing = False
        self.settled: Settlement | None = None
        self.doubt: str | None = None

    def check(self, name: str) -> None:
        """Refuse another block, unless those before it were rolled back."""
        if self.doubt is not None:
            raise EngineRefused(f"{name} must run again: {self.doubt}. Nothing of a second block was stored.")
        if self.committing:
            raise EngineRefused(
                f"{name} is done: it was settled by the block that this run committed before. Nothing of a second "
                "block was stored. Put all writes into one block."
            )
        if self.block is not None and self.block.is_open:
            raise EngineRefused(f"{name} has an open transaction already. Nothing was stored. Use that one.")


def relocate(context: Context) -> Commit:
    """Note that a block may move the run's claim in the store: a settlement without `ref` looks for it."""
    context.claim = msgspec.structs.replace(context.claim, ref=None)
    context.commit = context.commit or Commit()
    return context.commit


async def hold_claim(context: Context, engine: Engine, tx: Transaction, name: str) -> bool:
    """Hold the claim of a run in a transaction; returns whether it is still this run's."""
    if not context.runtime.shares_store and Feature.SHARED not in engine.features:
        raise EngineRefused(
            f"{name} runs in a process of its own, which cannot see the {engine.name} store of its worker. "
            "Nothing was stored. Run it without isolation, or on a store that processes share."
        )
    claim = context.claim
    relocate(context)  # first: a run that is interrupted now would not know where the claim is stored
    held = await outbox_of(engine).hold(claim, tx=tx)
    if held is not None:
        context.claim = held
    return held is not None


class JobParticipant:
    """Holds the run's claim first and settles the job as done last."""

    def __init__(self, context: Context, commit: Commit) -> None:
        self._context = context
        self._commit = commit
        self._result: bytes | None = None
        self._warning: str | None = None
        self._settlement: Settlement | None = None
        self._followups = len(context.followups)
        self._note: Note | None = None
        self._emitted: frozenset[int] = frozenset()
        context.runtime.withhold_notes(context.claim)  # a note beside the transaction would come too late

    @property
    def name(self) -> str:
        """The job by id and kind."""
        return f"job {self._context.id} ({self._context.kind})"

    def result(self, value: Any) -> None:
        """Encode the value that becomes the job's result."""
        task = self._context.runtime.app.find_task(self._context.kind)
        if task is None:
            raise StokerError(f"{self.name} has no task here that could encode its result")
        self._result, self._warning = (None, None) if value is None else task.signature.encode_result(value)

    async def begin(self, engine: Engine, tx: Transaction) -> bool:
        """Hold the claim; from here on the run goes by the claim that `hold` returns."""
        return await hold_claim(self._context, engine, tx, self.name)

    async def end(self, engine: Engine, tx: Transaction) -> bool:
        """Settle the job as done, with its follow-ups."""
        context = self._context
        warning = None if self._warning is None else text_of(self._warning)
        done = Done(self._result, warning, tuple(context.followups))
        rules = context.runtime.rules_of(context.kind)
        left = () if context.durable is None else context.durable.left(None)
        settlement = conclude(context.claim, done, rules, context.executed(), left)
        if settlement.status is not Status.DONE:  # its result cannot be passed on: the block is rolled back
            raise StokerError(f"{self.name} is not done: {settlement.error}")
        tracing = context.runtime.app.tracing
        if tracing is not None and context.trace is not None and settlement.followups:
            followups = tracing.following(context, settlement.followups)
            settlement = msgspec.structs.replace(settlement, followups=followups)
        self._settlement = settlement
        await self._store_note(engine, tx)
        return await outbox_of(engine).settle_last(self._settlement, tx=tx)

    async def _store_note(self, engine: Engine, tx: Transaction) -> None:
        """Store what the handler has noted and emitted: when the job is done it is too late."""
        claim = self._context.claim
        found = self._context.runtime.take_note(claim)
        if found is not None:
            self._note = found
            await engine.jobs.note([msgspec.structs.replace(found, ref=claim.ref)], tx=tx)
        if (ring := self._context.ring) is not None:
            # The worker of a child process may have written some of it: as much as came there.
            save, self._emitted = await save_of(engine, claim, ring, everything=not self._context.runtime.shares_store)
            if save.steps:
                await engine.steps.save([save], tx=tx)

    def _keep_note(self) -> None:
        """Leave the notes to the worker again, with what the block did not store."""
        if self._context.ring is not None:
            self._context.ring.put_back(self._emitted)
        note, self._note = self._note, None
        if note is not None:
            self._context.runtime.note(self._context.claim, note.progress, note.lines)
        self._context.runtime.release_notes(self._context.claim)

    def committing(self) -> None:
        """Have the worker not take the claim for lost while its end is being stored."""
        self._commit.committing = True

    def committed(self) -> None:
        """Note that the job is done: its worker settles nothing more."""
        assert self._settlement is not None
        self._commit.settled = self._settlement
        self._context.runtime.release_notes(self._context.claim)
        self._context.runtime.settled(self._context.claim, self._settlement)

    def rolled_back(self) -> None:
        """Forget the follow-ups of the block; the handler may open another one."""
        self._commit.committing = False
        self._keep_note()
        del self._context.followups[self._followups :]

    def in_doubt(self, why: str) -> None:
        """Note that this run must end as failed, whatever its handler does next."""
        self._commit.committing = False
        self._commit.doubt = why
        self._keep_note()

    async def is_stored(self, engine: Engine) -> bool:
        """Return whether the job no longer runs under this claim."""
        claim = self._context.claim
        [found] = await engine.operator.get([claim.id])
        return found is None or found.status is not Status.RUNNING or found.token != claim.token
