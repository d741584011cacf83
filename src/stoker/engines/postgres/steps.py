"""Steps of jobs: saved under the claim's fence, read, and answered by signals.

Finished steps are saved as a batch: one statement, which stores those whose bit is open. Everything else is decided one
by one, under the locks of `step_rows`. A save that meets the lock of another transaction is left out and returned as
held; the others are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from stoker.engines.base import Transaction
from stoker.engines.call_times import timed
from stoker.engines.postgres import audit, step_rows
from stoker.engines.postgres.claim import Ref
from stoker.engines.postgres.columns import payload_text
from stoker.engines.postgres.errors import Locked
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.lease_bits import known_refs, looked_up
from stoker.engines.postgres.settle import LOCK_WAIT, open_places
from stoker.engines.postgres.statements import sql
from stoker.engines.shared import one_by_one
from stoker.engines.shared.steps import answer_alone, is_plain
from stoker.engines.sql import steps
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.one_by_one import decided
from stoker.model.audit import By
from stoker.model.ids import JobId
from stoker.model.job import Verdict
from stoker.model.steps import Save, Signal, Signaled, Step, span_of
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.postgres.claim import Claimer
    from stoker.engines.postgres.connection import Connection
    from stoker.engines.postgres.store import Store
    from stoker.engines.postgres.unit_of_work import Unit
    from stoker.engines.postgres.user_transaction import Transactions

_OF_JOBS, _PAGES, _SAVE = sql("steps_of_jobs"), sql("pages_of_job"), sql("step_save")
_ASKING = sql("jobs_asking")
_LOOK, _ANSWER, _BEGIN_SIGNAL = sql("steps_suspended"), sql("answer_alone"), sql("begin_signal")


class Steps(Facet):
    """What jobs have finished and what they wait for."""

    def __init__(self, store: Store, claimer: Claimer, transactions: Transactions) -> None:
        super().__init__(store)
        self._claimer = claimer
        self._transactions = transactions

    @timed(write=True, name="save_steps")
    async def save(self, saves: Sequence[Save], *, tx: Transaction | None = None) -> list[Verdict]:
        if tx is not None:
            return await self._transactions.join(tx, lambda unit: _save(unit, saves), moves_jobs=True)
        self._store.inside()
        if not saves:
            return []
        verdicts = await self._saved(saves)
        self._store.notifier.ends.saved(saves, verdicts)
        return verdicts

    async def _saved(self, saves: Sequence[Save]) -> list[Verdict]:
        if _are_plain(saves):
            return await self._store.each("settle", lambda: _save_plain(self._store.now(), saves))
        try:
            verdicts = await self._store.write(lambda unit: _save(unit, saves), lane="settle", lock_wait=LOCK_WAIT)
        except Locked:
            verdicts = await self._store.write(lambda unit: _save(unit, saves, skip=True), lane="settle")
        self._claimer.inserted([draft for one in saves for draft in one.drafts])
        return verdicts

    @timed(write=False, name="get_steps")
    async def get(self, ids: Sequence[JobId], *, pages: bool = False) -> list[list[Step]]:
        rows: list[Row] = await self._store.once("admin", _OF_JOBS, (list(ids), "" if pages else '"')) if ids else []
        found: dict[JobId, list[Step]] = {job: [] for job in ids}
        for job, step in map(step_rows.read, rows):
            found[job].append(step)
        return [found[job] for job in ids]

    @timed(write=False)
    async def asking(self, *, before: JobId | None = None, limit: int = 100) -> list[JobId]:
        rows: list[Row] = await self._store.once("admin", _ASKING, (before, limit))
        return [job for (job,) in rows]

    @timed(write=False)
    async def emitted(self, job: JobId, after: int = 0) -> list[Step]:
        rows: list[Row] = await self._store.once("admin", _PAGES, (job, after))
        return [step for _, step in map(step_rows.read, rows)]

    @timed(write=True)
    async def signal(
        self, signals: Sequence[Signal], *, tx: Transaction | None = None, by: By | None = None
    ) -> list[Signaled]:
        if tx is not None:
            return await self._transactions.join(
                tx, lambda unit: steps.signal(unit, signals, audit.write), moves_jobs=True
            )
        self._store.inside()
        if not signals:
            return []
        if len(signals) == 1 and by is None and await self._answer_alone(signals[0]):
            return [Signaled.TAKEN]

        async def work(connection: Connection, unit: Unit, row: Row) -> list[Signaled]:
            unit.signaled = set(row[1] or ())
            return await self._store.play(connection, steps.signal(unit, signals, audit.write, by))

        return await self._store.transact(work, first=(_BEGIN_SIGNAL, (sorted({one.id for one in signals}),)))

    async def _answer_alone(self, signal: Signal) -> bool:
        """Answer a wait on which its job is suspended, as most signals do, in two statements without a lock in between.

        The second one does nothing unless job and wait are still what the first one saw.
        """
        asked = [[one] for one in (signal.id, signal.name, *span_of(signal.name))]
        looked: list[Row] = await self._store.once("write", _LOOK, asked)
        if not looked:
            return False
        rows = [step_rows.read(row[1:])[1] for row in looked]
        step = answer_alone(signal, rows, looked[0][0], 0)
        if step is None or step.value is None:
            return False
        values = (self._store.now(), signal.id, step.name, step.token, payload_text(step.value))
        answered: list[Row] = await self._store.once("write", _ANSWER, values)
        if answered:
            self._store.notify({queue for (queue,) in answered})
        return bool(answered)


def _are_plain(saves: Sequence[Save]) -> bool:
    """Whether all only finish steps, and no row is written under two claims."""
    fences: dict[tuple[JobId, str], tuple[str, int]] = {}
    for one in saves:
        if not is_plain(one):
            return False
        for step in one.steps:
            if fences.setdefault((one.id, step.name), (one.worker, one.token)) != (one.worker, one.token):
                return False
    return True


def _save_plain(now: Instant | None, saves: Sequence[Save]) -> Exchange[list[Verdict]]:
    """Store finished steps; what is not under its known lease any more is looked for."""
    stored = yield from _put_plain(now, saves, (yield from known_refs(saves)))
    missed = [place for place, one in enumerate(saves) if place not in stored and one.ref is not None]
    stored |= yield from _put_plain(now, saves, (yield from looked_up(saves, missed)))
    return [Verdict.APPLIED if place in stored else Verdict.LOST for place in range(len(saves))]


def _put_plain(now: Instant | None, saves: Sequence[Save], refs: dict[int, Ref]) -> Exchange[set[int]]:
    """Store the steps of those saves whose place is known; returns which of them were stored."""
    newest: dict[tuple[JobId, str], tuple[int, Step]] = {}
    for place in sorted(refs):
        for step in saves[place].steps:
            newest[saves[place].id, step.name] = place, step
    if not newest:
        return set()
    rows = list(newest.values())
    found: list[Row] = yield (
        _SAVE,
        (
            now,
            [refs[place].lease.id for place, _ in rows],
            [saves[place].worker for place, _ in rows],
            [saves[place].token for place, _ in rows],
            [refs[place].pos for place, _ in rows],
            [saves[place].id for place, _ in rows],
            [step.name for _, step in rows],
            [step.until for _, step in rows],
            [None if step.value is None else payload_text(step.value) for _, step in rows],
        ),
    )
    running = {(refs[place].lease.id, refs[place].pos) for place in (rows[number - 1][0] for (number,) in found)}
    return {place for place, ref in refs.items() if (ref.lease.id, ref.pos) in running}


def _save(unit: Unit, saves: Sequence[Save], *, skip: bool = False) -> Exchange[list[Verdict]]:
    """Store rows of running jobs and the jobs they call. `skip`: those that another transaction has locked are held."""
    held: set[JobId] = set()
    return (yield from decided(unit, partial(_load, unit, saves, held, skip=skip), partial(_decide, unit, saves, held)))


def _load(unit: Unit, saves: Sequence[Save], held: set[JobId], *, skip: bool) -> Exchange[None]:
    """Lock the jobs and their leases, and read what the saves need."""
    ids = {one.id for one in saves}
    locked = yield from step_rows.lock(ids, skip=skip)
    held.clear()
    if skip:
        held |= ids - locked
    places = yield from open_places([one for one in saves if one.id not in held], again=True)
    yield from unit.load_places(places)
    running = [one for one in saves if places.get(one.id) is not None]
    wanted = one_by_one.wanted_by_saves(running)
    yield from step_rows.load(unit, unit.missing(wanted))
    yield from step_rows.load_groups(unit, wanted.groups)
    yield from unit.load_drafts([draft for one in running for draft in one.drafts], joins=False)


def _decide(unit: Unit, saves: Sequence[Save], held: set[JobId]) -> list[Verdict]:
    return [Verdict.HELD if one.id in held else one_by_one.save_one(unit, one) for one in saves]
