"""Control of `sql.control`: how this engine changes a queue and reads its subqueues."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.engines.sql import control
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sql.packing import encode
from stoker.engines.sqlite import subqueues
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit
from stoker.model.control import Queue
from stoker.model.subqueues import SubqueueView
from stoker.model.time import Instant


class Control(control.Control[Unit]):
    """Queue settings, budgets, named locks and presences."""

    sql = control.Statements(sql, lambda texts: encode(texts).decode())

    def _change_queue(self, unit: Unit, name: str, change: Callable[[Queue], Queue]) -> Exchange[tuple[Queue, Queue]]:
        stored = yield from unit.find_queue(name)
        before = Queue(name=name) if stored is None else stored.queue
        after = change(before)
        if after != before:
            written = yield from unit.write_queue(after)
            if after.limits != before.limits:
                yield from subqueues.pin(unit, written)
        return before, after

    def _subqueues(
        self, queue: str, after: str | None, limit: int, names: Sequence[str] | None, now: Instant, *, counted: bool
    ) -> Exchange[list[SubqueueView]]:
        stored = yield from Unit(now).find_queue(queue)
        return (yield from subqueues.subqueues(stored, after, limit, names, now if counted else None))
