"""Steps of jobs: saved by their runs, read, and answered by signals."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from stoker.engines.base import Transaction
from stoker.engines.memory.access import Facet
from stoker.engines.memory.store import Store
from stoker.engines.shared import one_by_one
from stoker.engines.shared.steps import signal_one, wanted_by_signals
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.model.audit import By, of_signal
from stoker.model.ids import JobId
from stoker.model.job import Verdict
from stoker.model.steps import Save, Signal, Signaled, Step, is_page

_in_order = attrgetter("at", "name")


class Steps(Facet):
    """What jobs have finished and what they wait for."""

    async def save(self, saves: Sequence[Save], *, tx: Transaction | None = None) -> list[Verdict]:
        verdicts = self._run(tx, _save, tuple(saves))
        if tx is None:
            self._access.ends.saved(saves, verdicts)
        return verdicts

    async def get(self, ids: Sequence[JobId], *, pages: bool = False) -> list[list[Step]]:
        with self._read as store:
            stored = [store.steps.get(job, {}).values() for job in ids]
            found = [[row for row in rows if pages or not is_page(row.name)] for rows in stored]
        return [sorted(rows, key=_in_order) for rows in found]

    async def asking(self, *, before: JobId | None = None, limit: int = 100) -> list[JobId]:
        with self._read as store:
            found = [job for job in store.asking if before is None or job < before]
        return sorted(found, reverse=True)[:limit]

    async def emitted(self, job: JobId, after: int = 0) -> list[Step]:
        with self._read as store:
            pages = [row for row in store.steps.get(job, {}).values() if is_page(row.name) and (row.until or 0) > after]
        return sorted(pages, key=attrgetter("until"))

    async def signal(
        self, signals: Sequence[Signal], *, tx: Transaction | None = None, by: By | None = None
    ) -> list[Signaled]:
        signals = tuple(signals)
        if tx is not None:
            return self._access.join(tx, _signal, signals)
        with self._write as store:
            answers = store.run(_signal, signals)
            for signal, answer in zip(signals, answers, strict=True):
                store.enter(by, of_signal(signal, answer))
            return answers


def _save(store: Store, unit: UnitOfWork, saves: Sequence[Save]) -> list[Verdict]:
    """Store rows of running jobs and the jobs that they call, each save independently of the others."""
    store.load(unit, one_by_one.wanted_by_saves(saves))
    return [one_by_one.save_one(unit, one) for one in saves]


def _signal(store: Store, unit: UnitOfWork, signals: Sequence[Signal]) -> list[Signaled]:
    """Answer waits, each signal independently of the others."""
    store.load(unit, wanted_by_signals(signals))
    return [signal_one(unit, one) for one in signals]
