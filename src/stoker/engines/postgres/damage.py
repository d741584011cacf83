"""Restores what lost rows leave behind: claims without a body, and counters of nothing.

The sweep of limits does so. Its looks read leases, counters and, by an index, whether anything waits.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from stoker.engines.postgres.claim import locked
from stoker.engines.postgres.columns import PENDING, RETRYING, RUNNING
from stoker.engines.postgres.errors import Locked
from stoker.engines.postgres.statements import sql
from stoker.engines.postgres.unit_of_work import Place, Unit, masks
from stoker.engines.sql.exchanges import Exchange, Row, Together
from stoker.model.ids import text

if TYPE_CHECKING:
    from stoker.engines.postgres.connection import Connection
    from stoker.engines.postgres.store import Store

log = logging.getLogger("stoker.engines.postgres")

LOCK = "/damage"
"""Two sweeps must not repair the same counter: no queue has a name with a slash."""

_NOW = sql("now")
_BODILESS, _ADRIFT = sql("lease_bodiless"), sql("counts_adrift")
_CLOSE, _DROP = sql("lease_close"), sql("lease_drop")


async def repair(store: Store) -> None:
    """Drop claims of jobs that are gone, and set counters right where nothing is left to count."""
    if not await store.read(lambda _: _found()):
        return

    async def work(connection: Connection, unit: Unit, _: Row) -> None:
        await store.play(connection, _repair(unit))

    with suppress(Locked):
        await store.transact(work, lane="admin", first=(_NOW, ()), begin=locked(store, LOCK))


def _found() -> Exchange[bool]:
    return bool((yield _BODILESS, ()) or (yield _ADRIFT, ()))


def _repair(unit: Unit) -> Exchange[None]:
    bodiless: list[Row] = yield _BODILESS, ()
    if bodiless:
        bits = masks([Place(*place) for _, *place in bodiless])
        yield Together(((_CLOSE, bits), (_DROP, bits)))
        for job, *_ in bodiless:
            log.warning("the claim of job %s was dropped: its body is gone, the store lost rows", text(job))
    for queue, kind, *numbers in (yield _ADRIFT, ()):
        for what, n in zip((PENDING, RUNNING, RETRYING), numbers, strict=True):
            unit.count(queue, kind, what, -n)
        log.warning(
            "queue %s: the counters of kind %s were at %d waiting, %d running and %d retrying, and there is none. "
            "They are repaired; the store lost rows",
            *(queue, kind, *numbers),
        )
    yield from unit.end()
