"""Control of `sql.control`: how this engine locks a queue and reads its subqueues.

What operators ask and tune uses the connections of reads, what workers do all the time those of writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.engines.call_times import timed
from stoker.engines.postgres import counters, subqueues
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql import control
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import pack_queue, read_queue
from stoker.model.control import Presence, Queue
from stoker.model.subqueues import SubqueueView
from stoker.model.time import Instant

_NAMED = sql("queues_named")
_HOLD = sql("queue_hold")
_LOCK = sql("queue_lock")
_REPIN = sql("subqueue_repin")


class Control(control.Control[Unit]):
    """Queue settings, budgets, named locks and presences."""

    sql = control.Statements(sql, list)

    def _change_queue(self, unit: Unit, name: str, change: Callable[[Queue], Queue]) -> Exchange[tuple[Queue, Queue]]:
        rows: list[Row] = yield _HOLD, (name,)
        before = read_queue(rows[0]) if rows else Queue(name=name)
        after = change(before)
        if after != before and not rows:
            [row] = yield _LOCK, pack_queue(before)
            before = read_queue(row)
            after = change(before)
        if after != before:
            yield from unit.write_queue(after)
            if changed := {limit for limit, _ in {*before.limits} ^ {*after.limits}}:
                yield _REPIN, (name, sorted(changed))
        return before, after

    def _subqueues(
        self, queue: str, after: str | None, limit: int, names: Sequence[str] | None, now: Instant, *, counted: bool
    ) -> Exchange[list[SubqueueView]]:
        rows: list[Row] = yield _NAMED, ([queue],)
        stored = read_queue(rows[0]) if rows else Queue(name=queue)
        return (yield from subqueues.subqueues(stored, after, limit, names, now, counted=counted))

    @timed(write=True)
    async def beat(self, presence: Presence) -> None:
        await self._store.refresh(lambda unit: self._beat(unit, presence))
        # Living workers also keep the counters short.
        await self._store.refresh(lambda _: counters.fold())
