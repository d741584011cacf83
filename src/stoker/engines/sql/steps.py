"""Steps one by one as statements: load the rows, decide, write the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from stoker.engines.shared import one_by_one
from stoker.engines.shared.steps import signal_one, wanted_by_signals
from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sql.one_by_one import SqlUnit, decided
from stoker.model.audit import By, Deed, of_signal
from stoker.model.job import Verdict
from stoker.model.steps import Save, Signal, Signaled

Enter: TypeAlias = Callable[[UnitOfWork, By | None, Deed | None], Exchange[None]]
"""Writes an entry of the audit log."""


def save(unit: SqlUnit, saves: Sequence[Save]) -> Exchange[list[Verdict]]:
    """Store rows of running jobs and the jobs they call; verdicts in their order."""
    wanted = one_by_one.wanted_by_saves(saves)
    return (
        yield from decided(unit, lambda: unit.load(wanted), lambda: [one_by_one.save_one(unit, one) for one in saves])
    )


def signal(unit: SqlUnit, signals: Sequence[Signal], enter: Enter, by: By | None = None) -> Exchange[list[Signaled]]:
    """Answer waits, and write who did; answers in the order of the signals."""
    wanted = wanted_by_signals(signals)
    answers = yield from decided(unit, lambda: unit.load(wanted), lambda: [signal_one(unit, one) for one in signals])
    for one, answer in zip(signals, answers, strict=True):
        yield from enter(unit, by, of_signal(one, answer))
    return answers
