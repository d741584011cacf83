"""Values that handlers emit, kept until the worker writes them: soon after, and before the end of their run."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from stoker.emitting import save_of
from stoker.engines.base import Engine
from stoker.model.emitted import Ring
from stoker.model.errors import AWAY
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import Claim, Verdict
from stoker.model.steps import Save

logger = logging.getLogger("stoker.worker")

COLLECT = 0.04
"""Seconds for which values are collected before they are written."""

SHARE = 25
"""A pause is at least so many times as long as the last write, so that a slow store is not busy with values alone."""

LONGEST_PAUSE = 2.0
"""Seconds between two writes at most."""


class EmitBuffer:
    """The rings of running jobs that have something to write. It writes only while there is any.

    What the store does not take stays in its ring, which never grows: the oldest values go. So a handler never waits.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._unsaved: dict[JobId, tuple[Claim, Ring]] = {}
        self._flying: set[JobId] = set()
        self._withheld: set[JobId] = set()
        self._lock = threading.Lock()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._armed = False

    def __bool__(self) -> bool:
        return bool(self._unsaved or self._flying)

    def put(self, claim: Claim, ring: Ring) -> None:
        """Write what a run has emitted soon; from any thread."""
        with self._lock:
            self._unsaved[claim.id] = claim, ring
            if self._armed or claim.id in self._withheld:
                return
            self._armed = True
        with suppress(RuntimeError):  # the loop is closed: the worker has stopped
            self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._run(), name="stoker-emitted")

    def withhold(self, claim: Claim) -> None:
        """Write nothing of a run until `release`: its block will write it, in its own commit; from any thread."""
        with self._lock:
            self._withheld.add(claim.id)

    def release(self, claim: Claim) -> None:
        """Go on to write what a run emits; from any thread."""
        with self._lock:
            self._withheld.discard(claim.id)
            left = self._unsaved.get(claim.id)
        if left is not None:
            self.put(*left)

    async def _run(self) -> None:
        """Write until there is nothing to write."""
        pause = COLLECT
        while True:
            await asyncio.sleep(pause)
            began = time.monotonic()
            try:
                await self.write()
            except AWAY:
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                pause = min(max(COLLECT, SHARE * (time.monotonic() - began)), LONGEST_PAUSE)
            with self._lock:
                self._armed = bool(self._unsaved.keys() - self._withheld)
                if not self._armed:
                    return

    async def write(self, settling: Sequence[Claim] | None = None) -> None:
        """Write what was emitted: of all jobs, or of those about to be settled."""
        ids = None if settling is None else {claim.id for claim in settling}
        if not self or (ids is not None and ids.isdisjoint(self._flying) and ids.isdisjoint(self._unsaved)):
            return
        async with self._writing:  # an older write must not come behind a newer one of the same page
            with self._lock:
                jobs = self._unsaved.keys() - self._withheld if ids is None else self._unsaved.keys() & ids
                chosen = [self._unsaved.pop(job) for job in jobs]
                self._flying = set(jobs)
            try:
                await self._write(chosen)
            finally:
                self._flying = set()

    async def _write(self, chosen: list[tuple[Claim, Ring]]) -> None:
        saves: list[Save] = []
        taken: list[frozenset[int]] = []
        try:
            for claim, ring in chosen:
                save, slots = await save_of(self._engine, claim, ring)
                saves.append(save)
                taken.append(slots)
            verdicts = await self._engine.steps.save([one for one in saves if one.steps])
        except (*AWAY, asyncio.CancelledError):
            self._keep(chosen, taken)
            raise
        except Exception as error:  # noqa: BLE001 - a rejected value must not delay an outcome
            text = "values that %s emitted are refused by the store and dropped: %s"
            logger.warning(text, count(len(chosen), "job"), error)
            return
        written = iter(verdicts)
        for one, save, slots in zip(chosen, saves, taken, strict=True):
            if save.steps and next(written) is Verdict.HELD:
                self._keep([one], [slots])

    def _keep(self, chosen: Sequence[tuple[Claim, Ring]], taken: Sequence[frozenset[int]]) -> None:
        """Take note of what was not written; a newer run may have emitted meanwhile."""
        for (_, ring), slots in zip(chosen, taken, strict=False):
            ring.put_back(slots)
        with self._lock:
            for claim, ring in chosen:
                self._unsaved.setdefault(claim.id, (claim, ring))

    async def stop(self) -> None:
        """Write no more by itself."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def close(self) -> None:
        """Write the rest, and no more."""
        await self.stop()
        await self.write()
