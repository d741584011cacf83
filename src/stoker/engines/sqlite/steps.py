"""Steps of jobs: saved under the claim's fence, read, and answered by signals.

Finished steps are saved as a batch: one statement for all rows, which touches only those whose claim is still theirs.
Everything else is decided one by one. One transaction at a time writes to a file, so a suspension and a signal that
meet at one job exclude each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.engines.base import Transaction
from stoker.engines.call_times import timed
from stoker.engines.shared.steps import answer_alone, is_plain
from stoker.engines.sql import steps
from stoker.engines.sql.exchanges import Exchange, Many, Row
from stoker.engines.sqlite import audit
from stoker.engines.sqlite.facet import Facet
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.step_rows import read, write
from stoker.model.audit import By
from stoker.model.ids import JobId
from stoker.model.job import Verdict
from stoker.model.steps import Save, Signal, Signaled, Step, span_of

if TYPE_CHECKING:
    from stoker.engines.sqlite.unit_of_work import Unit

_SAVE = sql("step_save")
_SAVE_ONE = f"{_SAVE} RETURNING 1"
_SEQ = sql("step_seq")
_SUSPENDED, _SIGNALED = sql("job_suspended"), sql("steps_signaled")
_PAST_DUE, _READY_DUE = sql("past_due"), sql("ready_due")
_OF_JOB, _PAGES, _ASKING = sql("steps_of_job"), sql("pages_of_job"), sql("jobs_asking")

_NOWHERE = -1
"""The number of no job."""


class Steps(Facet):
    """What jobs have finished and what they wait for."""

    @timed(write=True, name="save_steps")
    async def save(self, saves: Sequence[Save], *, tx: Transaction | None = None) -> list[Verdict]:
        if tx is not None:
            return await self._store.join(tx, lambda unit: save(unit, saves))
        verdicts = await self._store.write(lambda unit: save(unit, saves), strict=True) if saves else []
        self._store.ends.saved(saves, verdicts)
        return verdicts

    @timed(write=False, name="get_steps")
    async def get(self, ids: Sequence[JobId], *, pages: bool = False) -> list[list[Step]]:
        return await self._store.read(lambda _: get(ids, pages=pages))

    @timed(write=False)
    async def asking(self, *, before: JobId | None = None, limit: int = 100) -> list[JobId]:
        return await self._store.read(lambda _: _asking(before, limit))

    @timed(write=False)
    async def emitted(self, job: JobId, after: int = 0) -> list[Step]:
        return await self._store.read(lambda _: _emitted(job, after))

    @timed(write=True)
    async def signal(
        self, signals: Sequence[Signal], *, tx: Transaction | None = None, by: By | None = None
    ) -> list[Signaled]:
        if tx is not None:
            return await self._store.join(tx, lambda unit: steps.signal(unit, signals, audit.write))
        if not signals:
            return []
        return await self._store.write(lambda unit: _signal(unit, signals, by), strict=True, early=True)


def _signal(unit: Unit, signals: Sequence[Signal], by: By | None) -> Exchange[list[Signaled]]:
    if len(signals) == 1 and by is None and (yield from _answer_alone(unit, signals[0])):
        return [Signaled.TAKEN]
    return (yield from steps.signal(unit, signals, audit.write, by))


def _answer_alone(unit: Unit, signal: Signal) -> Exchange[bool]:
    """Answer a wait on which its job is suspended, as most signals do: without reading the job (`Record.run_now`)."""
    found: list[Row] = yield _SUSPENDED, (signal.id,)
    if not found:
        return False
    [(queue, qid, priority, due, seq, token)] = found
    rows: list[Row] = yield _SIGNALED, (seq, signal.name, *span_of(signal.name))
    step = answer_alone(signal, map(read, rows), token, unit.now)
    if step is None:
        return False
    yield from write(seq, [step])
    if unit.now < due:
        yield _PAST_DUE, (seq, unit.now)
        yield _READY_DUE, (qid, priority, due, signal.id, unit.now)
        unit.due(queue, unit.now)
    return True


def save(unit: Unit, saves: Sequence[Save]) -> Exchange[list[Verdict]]:
    """Store rows of running jobs; those of jobs whose saves are all plain as a batch."""
    others = {one.id for one in saves if not is_plain(one)}
    verdicts = yield from _together(unit, [one for one in saves if one.id not in others])
    if others:
        verdicts += yield from steps.save(unit, [one for one in saves if one.id in others])
    order = sorted(range(len(saves)), key=lambda place: saves[place].id in others)
    found = dict(zip(order, verdicts, strict=True))
    return [found[place] for place in range(len(saves))]


def _together(unit: Unit, saves: Sequence[Save]) -> Exchange[list[Verdict]]:
    """Store finished steps; if a claim was lost, find out whose."""
    rows: list[list[Row]] = []
    for one in saves:
        wid, seq = (yield from unit.wid(one.worker)), (yield from _seq(one))
        rows.append([(wid, seq, one.token, step.name, step.value, step.until, unit.now) for step in one.steps])
    flat = [row for part in rows for row in part]
    if unit.swift and flat and (yield Many(_SAVE, flat)) == len(flat):
        return [Verdict.APPLIED] * len(saves)
    verdicts: list[Verdict] = []
    for part in rows:
        touched = 0
        for row in part:
            touched += len((yield _SAVE_ONE, row))
        verdicts.append(Verdict.APPLIED if touched else Verdict.LOST)
    return verdicts


def _seq(save: Save) -> Exchange[int]:
    """Return the number of a job: a claim's `ref` has it."""
    if type(save.ref) is tuple and save.ref[0] == save.id:
        return int(save.ref[1])
    rows: list[Row] = yield _SEQ, (save.id,)
    return rows[0][0] if rows else _NOWHERE


def _asking(before: JobId | None, limit: int) -> Exchange[list[JobId]]:
    rows: list[Row] = yield _ASKING, (before, limit)
    return [job for (job,) in rows]


def _emitted(job: JobId, after: int) -> Exchange[list[Step]]:
    rows: list[Row] = yield _PAGES, (job, after)
    return [read(row) for row in rows]


def get(ids: Sequence[JobId], *, pages: bool = False) -> Exchange[list[list[Step]]]:
    """Read the rows of jobs, in the order of the ids."""
    found: list[list[Step]] = []
    for job in ids:
        rows: list[Row] = yield _OF_JOB, (job, "" if pages else '"')
        found.append([read(row) for row in rows])
    return found
