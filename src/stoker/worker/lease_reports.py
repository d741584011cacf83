"""What a worker does when its lease was renewed, could not be renewed, is late or is lost."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType

from stoker.executors.outcomes import Cause
from stoker.model.errors import StokerError
from stoker.model.ids import JobId
from stoker.model.job import Renewal
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Canceled
from stoker.model.words import count
from stoker.worker.fetcher import Fetcher
from stoker.worker.outage import Outage
from stoker.worker.running import RunningJobs
from stoker.worker.state import HeldClaims, WorkerState
from stoker.worker.store_loop import StoreLoop

logger = logging.getLogger("stoker.worker")

NO_REASONS: Mapping[JobId, str] = MappingProxyType({})


class LeaseReports:
    """Does on the worker's loop what follows from the lease keeper's renewals."""

    def __init__(
        self,
        state: WorkerState,
        claims: HeldClaims,
        running_jobs: RunningJobs,
        fetcher: Fetcher,
        store_loop: StoreLoop,
        outage: Outage,
    ) -> None:
        self._state = state
        self._claims = claims
        self._running_jobs = running_jobs
        self._fetcher = fetcher
        self._store_loop = store_loop
        self._outage = outage

    def drop(self, job: JobId, cause: Cause, reason: str) -> None:
        """Interrupt a run, or remove its claim from the buffer if it has not started."""
        if self._running_jobs.drop(job, cause, reason):
            return
        claim = self._fetcher.remove(job)
        if claim is None:
            return
        if cause is Cause.CANCEL:
            settlement = conclude(claim, Canceled(reason))
            self._store_loop.finished(claim, settlement, last=True)
        else:
            self._claims.tokens.pop(job, None)

    def renewed(self, renewal: Renewal, reasons: Mapping[JobId, str] = NO_REASONS) -> None:
        """Handle a renewal: drop lost claims, cancel jobs, hand back orphans. `reasons`: why jobs are canceled."""
        self._answers()
        in_flight = self._store_loop.in_flight
        for job, token in renewal.lost:
            committing = job in in_flight or self._running_jobs.commits(job)
            if not committing and self._claims.tokens.get(job) == token:
                self.drop(job, Cause.LOST, "its claim was lost")
        for job, token in renewal.canceling:
            if self._claims.tokens.get(job) == token:
                self.drop(job, Cause.CANCEL, reasons.get(job, "a cancel was requested"))
        if not self._store_loop.asking:  # else a claim under way may bring them; the next renewal checks again
            orphans = [claim for claim in renewal.orphaned if self._claims.tokens.get(claim.id) != claim.token]
            self._store_loop.hand_back(orphans)

    def renewal_failed(self, error: StokerError) -> None:
        """Handle a failed renewal: claim nothing, let handlers run, log it."""
        if self._state.healthy:
            where = self._store_loop.engine.where
            text = "the lease cannot be renewed at %s: %s Running jobs go on, nothing is claimed until it can."
            self._outage.report(text, where, error)
        self._state.healthy = False

    def lapsed(self) -> None:
        """Hand back every claim that has not started: the lease has passed, other workers may run these jobs.

        The hand-back is fenced, so it changes nothing if they do. The worker claims again after a renewal.
        """
        waiting = self._fetcher.empty()
        logger.warning(
            "worker %s could not renew its lease in time (a frozen process, or a store that was away) and hands back "
            "%s that had not started. Claiming goes on after the next renewal.",
            self._state.id,
            count(len(waiting), "claimed job"),
        )
        self._state.healthy = False
        self._claims.unstarted = frozenset((claim.id, claim.token) for claim in waiting)
        self._store_loop.hand_back(waiting)

    def lease_lost(self, former: str, fresh: str, safe_until: float) -> None:
        """Interrupt all handlers and continue under a new id: other workers took this one for dead.

        `safe_until` is the end of the new lease.
        """
        logger.error(
            "lease lost: worker %s was taken for dead and its jobs were passed on; it stops %s and goes on as %s",
            former,
            count(len(self._running_jobs.runs), "handler"),
            fresh,
        )
        self._state.rename(fresh)
        self._fetcher.empty()
        self._claims.tokens.clear()
        self._claims.safe_until = safe_until
        self._running_jobs.interrupt_all(Cause.LOST, "the worker's lease was lost")
        self._answers()

    def _answers(self) -> None:
        """Claim again: the lease was renewed."""
        if not self._state.healthy and self._state.running:
            self._state.healthy = True
            self._outage.over("the store answers again; claiming goes on")
            self._fetcher.wake()
            self._store_loop.wakeup.set()
