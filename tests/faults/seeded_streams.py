"""Bugs that a store of streams could have, each of them planted into the processes of a storm or into its server.

Every one was made by some outbox somewhere. The judge of `streams` must find each of them out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from stoker.engines.postgres.statements import STATEMENTS
from stoker.engines.sqlite import consumers as sqlite_steering
from stoker.model.outbox import delivery

if TYPE_CHECKING:
    from tests.faults.streams import Site

WINDOW = re.compile(r"SELECT x\.place, x\.n FROM \(.*\) AS x\s+ORDER BY x\.n LIMIT most", re.DOTALL)
"""What a step of the numbering looks at."""

MARK = """
SELECT i.ctid AS place, i.n FROM {schema}.incoming AS i
WHERE i.sid = number_of AND (previous IS NULL OR entire OR i.xid >= pg_snapshot_xmax(previous))
ORDER BY i.n LIMIT most
"""
BELOW_THE_OLDEST = """
SELECT i.ctid AS place, i.n FROM {schema}.incoming AS i
WHERE i.sid = number_of AND i.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY i.xid, i.n LIMIT most
"""
NUMBER = "b.last + row_number() OVER (PARTITION BY d.part ORDER BY d.n)"

SERVER: dict[str, dict[str, str]] = {
    # A step goes on behind the last one: what was under way then is found by chance, and late.
    "mark": {"window": MARK},
    # Transactions are delivered in the order in which they began.
    "transaction order": {"window": BELOW_THE_OLDEST, NUMBER: NUMBER.replace("d.n)", "d.xid, d.n)")},
    # A message is numbered when it is appended, and consumers ask for what is behind their last number.
    "append number": {NUMBER: "d.n"},
}
"""What is put in place of what in the SQL function that numbers."""

BUGS = (*SERVER, "no fence", "release at once", "fastest consumer")


def plant(bug: str) -> None:
    """Plant a bug into this process, before it makes an engine."""
    modules: Any = delivery, sqlite_steering
    if bug == "no fence":
        # An advance is stored whichever consumer holds the partition now, and wherever its cursor is.
        modules[0].applies = lambda _stored, _advance: True
    elif bug == "release at once":
        # A released key is forgotten: its newer messages overtake what was set aside.
        STATEMENTS["parked_release"] = _replaced(
            STATEMENTS["parked_release"], "UPDATE stoker.parked SET released = true", "DELETE FROM stoker.parked"
        )
        shared = modules[1].Consumers._sql
        shared.release = _replaced(shared.release, "UPDATE stoker_parked SET released = 1", "DELETE FROM stoker_parked")
    elif bug == "fastest consumer":
        # The vacuum deletes what one consumer has passed.
        STATEMENTS["outbox_passed"] = _replaced(STATEMENTS["outbox_passed"], "min(c.position)", "max(c.position)")
        modules[1]._PASSED = _replaced(modules[1]._PASSED, "min(c.position)", "max(c.position)")


def plant_in_server(bug: str, site: Site) -> None:
    """Plant a bug into the functions of the schema."""
    if bug not in SERVER:
        return
    handle = site.connect()
    [(text,)] = handle.run(f"SELECT pg_get_functiondef('{site.schema}.sequence'::regproc)")
    for old, new in SERVER[bug].items():
        if old == "window":
            text, times = WINDOW.subn(new.format(schema=site.schema), text)
            assert times == 1, text
        else:
            text = _replaced(text, old, new)
    handle.run(text.replace("%", "%%"))
    handle.raw.commit()
    handle.raw.close()


def _replaced(text: str, old: str, new: str) -> str:
    assert old in text, (old, text)
    return text.replace(old, new)
