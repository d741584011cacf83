"""Steps one by one: a run writes rows of its job, and a signal answers one.

The functions read from a loaded unit of work and put into it what `model.steps` decides; they do no input or output.
An engine loads the rows that `Wanted` names. It serialises a suspension and a signal that meet at one job, or reads
again what it had read before the other one wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from msgspec.structs import replace

from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.model.errors import StokerError
from stoker.model.groups import Group, closing_signals
from stoker.model.ids import JobId
from stoker.model.job import FINISHED, Settlement
from stoker.model.steps import (
    MOST_EARLY,
    Save,
    Signal,
    Signaled,
    Step,
    StepState,
    Wakes,
    answered,
    due_at_once,
    is_open,
    lets_run,
    misfit,
    stored,
    target,
)
from stoker.model.time import Instant

T = TypeVar("T")


def wanted_by_signals(signals: Iterable[Signal]) -> Wanted:
    """What answering these needs: the jobs, and of each the rows of the name, the open ones and the early ones."""
    signals = tuple(signals)
    return Wanted(frozenset(one.id for one in signals), signals=frozenset((one.id, one.name) for one in signals))


def is_plain(save: Save) -> bool:
    """Whether a save only finishes steps: such rows overwrite what is stored, whatever it is."""
    done = bool(save.steps) and all(step.state is StepState.DONE for step in save.steps)
    return done and not (save.drafts or save.groups)


def brought(read: Callable[[T], Step], rows: Iterable[T]) -> tuple[Step, ...] | None:
    """The rows that a claim brings; None without any, or if one cannot be read: who reads them again is told why."""
    try:
        return tuple(map(read, rows)) or None
    except (ValueError, StokerError):
        return None


def store_rows(unit: UnitOfWork, job: JobId, steps: Iterable[Step], token: int) -> bool:
    """Write rows of a run; False, and nothing written, if one of them would overwrite an answer.

    An open wait gets no token: the job is not suspended on it.
    """
    rows = [stored(unit.step(job, step.name), step, 0 if is_open(step) else token, unit.now) for step in steps]
    if None in rows:
        return False
    for row in rows:
        if row is not None:
            unit.put_step(job, row)
    return True


def suspend(unit: UnitOfWork, settlement: Settlement) -> Settlement:
    """Write the rows of a settlement that applies; returns it due at once if what it waits for is there.

    A row that would overwrite an answer is left out: the next run finds the answer.
    """
    opened: list[Step] = []
    for step in settlement.steps:
        row = stored(unit.step(settlement.id, step.name), step, settlement.token, unit.now)
        if row is None:
            continue
        unit.put_step(settlement.id, row)
        if is_open(step):
            opened.append(row)
    if settlement.wakes is not None and due_at_once(settlement.wakes, opened):
        return replace(settlement, after=0, due=None)
    return settlement


def signal_one(unit: UnitOfWork, signal: Signal) -> Signaled:
    """Answer a wait, and let the job run if it has what it waits for."""
    record = unit.get(signal.id)
    if record is None:
        return Signaled.MISSING
    if record.status in FINISHED:
        return Signaled.ENDED
    rows = unit.steps(signal.id)
    name = target(rows, signal)
    if name is None:
        return Signaled.ANSWERED
    before = rows.get(name)
    if misfit(before, signal.value) is not None:
        return Signaled.UNFIT
    row = answered(before, name, signal.value, unit.now)
    if before is None and sum(one.state is StepState.EARLY for one in rows.values()) >= MOST_EARLY:
        return Signaled.FULL
    unit.put_step(signal.id, row)
    if row.state is StepState.EARLY:
        return Signaled.EARLY
    after = record.answered(row, (one for other, one in rows.items() if other != name), unit.now)
    if after is not record:
        unit.put(after)
    return Signaled.TAKEN


def answer_alone(signal: Signal, rows: Iterable[Step], token: int, now: Instant) -> Step | None:
    """The answered row of a job that is suspended, under `token`, until any of its waits is answered: it is due then.

    None: this is another case, which `signal_one` decides. `rows` are those that a signal has to know.
    """
    known = {row.name: row for row in rows}
    name = target(known, signal)
    before = None if name is None else known.get(name)
    if name is None or before is None or not is_open(before) or not lets_run(Wakes.ANY, token, before, ()):
        return None
    return None if misfit(before, signal.value) is not None else answered(before, name, signal.value, now)


def wake_callers(unit: UnitOfWork, closed: Iterable[Group]) -> None:
    """Answer the waits of jobs that called the members of groups which close."""
    for signal in closing_signals(closed):
        signal_one(unit, signal)
