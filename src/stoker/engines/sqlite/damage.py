"""Restores what lost rows leave behind: lines without a subqueue, claims without a body, counters of nothing.

The sweep of limits does so. Each look reads few rows of a sound file.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sql.packing import read_options
from stoker.engines.sqlite import subqueues
from stoker.engines.sqlite.statements import sql
from stoker.model.errors import CorruptRecord
from stoker.model.humanize import count
from stoker.model.job import salvaged
from stoker.model.limit import Slot
from stoker.model.subqueues import AT_ONCE, TENANT, made, touched
from stoker.model.time import Instant

if TYPE_CHECKING:
    from stoker.engines.sqlite.unit_of_work import Unit

log = logging.getLogger("stoker.engines.sqlite")

LINES_AT_ONCE = 1_000

_LOST, _BODY = sql("lines_lost"), sql("line_body")
_MOVE_BODIES, _MOVE, _DROP = sql("line_bodies_move"), sql("line_move"), sql("line_drop")
_BODILESS, _FIRST_BODILESS = sql("running_bodiless_drop"), sql("running_bodiless")
_ADRIFT = sql("counts_adrift")
_WORDS = ("waiting", "running", "retrying")


def to_repair(now: Instant) -> Exchange[bool]:
    """Return whether a sweep would find anything to repair, wrong numbers of limits included: a read."""
    if (yield _LOST, (1,)) or (yield _FIRST_BODILESS, ()) or (yield _ADRIFT, ()):
        return True
    return bool((yield from subqueues.miscounted(now)))


def repair(unit: Unit) -> Exchange[None]:
    """Restore lines, drop claims of jobs that are gone, and set counters right where nothing is left to count."""
    for (line,) in (yield _LOST, (LINES_AT_ONCE,)):
        yield from _restore(unit, line)
    bodiless: list[Row] = yield _BODILESS, ()
    if bodiless:
        found = count(len(bodiless), "claim")
        log.warning("dropped %s of jobs whose body is gone; the file lost rows", found)
    for qid, name, kind, what, n in (yield _ADRIFT, ()):
        unit.count(qid, kind, what, -n)
        log.warning(
            "queue %s: the counter of %s jobs of kind %s was %d, and there are none. The counter is repaired; the file "
            "lost rows",
            *(name, _WORDS[what], kind, n),
        )


def _restore(unit: Unit, line: int) -> Exchange[None]:
    """Make the subqueue of a line anew, as its jobs name it; its running jobs are counted."""
    rows: list[Row] = yield _BODY, (line,)
    if not rows:
        yield _DROP, (line,)
        return
    qid, tenant, options = rows[0]
    queue = yield from unit.queue_of(qid)
    slot = _slot(options)
    name = f"{TENANT}{tenant or ''}" if slot is None else slot.subqueue
    running = len((yield from subqueues.holders(qid)).get(name, ()))
    state = (yield from subqueues.find(qid, name)) or made(name, slot, dict(queue.queue.limits), unit.now)
    state = msgspec.structs.replace(state, running=running if slot is not None else 0)
    restored = yield from subqueues.write(qid, touched(state, AT_ONCE), unit.now)
    if restored != line:
        yield _MOVE_BODIES, (line, restored)
        yield _MOVE, (line, restored)
    unit.divided.add(qid)
    unit.woken.add(queue.queue.name)
    log.warning(
        "queue %s: the row of limit %s was gone; it is stored anew, with %s",
        *(queue.queue.name, name, count(running, "running job")),
    )


def _slot(options: bytes | None) -> Slot | None:
    try:
        return read_options(options).limit
    except CorruptRecord:
        return salvaged(options).limit
