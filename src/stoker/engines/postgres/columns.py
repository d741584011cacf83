"""The job's columns, once: the statements over them, and records to and from rows.

A job's columns are spread over tables by how often they change. `job` holds what the draft said; the job also has one
row in `ready` or `done`, or a bit in a row of `lease`; `past` holds what earlier runs left, `failure` their errors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from stoker.engines.base import CORRUPT
from stoker.engines.sql.packing import unpacked
from stoker.engines.sql.steps import Row
from stoker.model.errors import CorruptRecord
from stoker.model.ids import text
from stoker.model.job import Failure, Job, Status, shown_error
from stoker.model.record import Record
from stoker.model.time import Instant

CODES: dict[Status, int] = {status: code for code, status in enumerate(Status)}
STATUSES: tuple[Status, ...] = tuple(Status)
PENDING, RUNNING, RETRYING, DONE, DEAD, CANCELED, DISCARDED, RETRIED = range(8)
NEVER_SETTLED = -1

_LAST_ERROR = "(SELECT f.error FROM stoker.failure AS f WHERE f.id = j.id ORDER BY f.n DESC LIMIT 1)"
_ASKED_TO_STOP = "coalesce(l.cancel, d.cancel, false)"

RECORD = {
    "id": "j.id",
    "kind": "j.kind",
    "queue": "j.queue",
    "payload": "j.payload",
    "priority": "j.priority",
    "budget": "j.budget",
    "created": "j.created",
    "ukey": "j.ukey",
    "utraits": "j.utraits",
    "tenant": "j.tenant",
    "options": "j.options",
    "status": f"coalesce(r.status, d.status, CASE WHEN l.id IS NOT NULL THEN {RUNNING} END)",
    "token": "coalesce(r.token, d.token, l.token)",
    "attempts": "coalesce(r.attempts, d.attempts, l.attempts)",
    "settled": "coalesce(r.settled, d.settled)",
    "due": "coalesce(r.due, p.due, j.due)",
    "started": "coalesce(l.claimed, d.started, p.started)",
    "finished": "d.finished",
    "expires": "d.expires",
    "cancel": _ASKED_TO_STOP,
    "asked": f"CASE WHEN {_ASKED_TO_STOP} THEN p.asked END",
    "result": "d.result",
    "successor": "d.successor",
    "worker": "l.worker",
    "former": "l.former",
    "former_at": "l.former_at",
    "base": "p.base",
    "crashes": "p.crashes",
    "throttles": "p.throttles",
    "progress": "p.progress",
    "metadata": "p.metadata::text",
    "log": "p.log::text",
    "last_error": _LAST_ERROR,
}
"""A stored job by column: `j`, `r`, `d`, `l` and `p` are its rows of `job`, `ready`, `done`, `lease` and `past`."""

FOUND = {
    **{column: RECORD[column] for column in ("id", "queue", "kind", "tenant", "ukey", "utraits", "created", "due")},
    "status": f"coalesce(r.status, d.status, {RUNNING})",
    "payload": "CASE WHEN $3 THEN j.payload END",
    "last_error": f"CASE WHEN $3 THEN {_LAST_ERROR} END",
}
"""The columns that `query.matches` asks about."""

_HISTORY = (
    "(SELECT json_agg(json_build_array(f.at, f.attempt, f.error) ORDER BY f.n)::text "
    "FROM stoker.failure AS f WHERE f.id = j.id AND f.attempt IS NOT NULL)"
)
_PLACES = """
LEFT JOIN LATERAL (SELECT * FROM stoker.ready WHERE id = j.id OFFSET 0) AS r ON true
LEFT JOIN LATERAL (SELECT * FROM stoker.done WHERE id = j.id OFFSET 0) AS d ON true
LEFT JOIN LATERAL (SELECT * FROM stoker.past WHERE id = j.id OFFSET 0) AS p ON true
"""


def _selected(columns: dict[str, str]) -> str:
    return ", ".join(f"{place} AS {column}" for column, place in columns.items())


# Leases are searched only when some job neither waits nor is finished. Arrays are compared element by element, so for
# more than a few jobs everything that runs is looked up in a hash of them instead.
GET = f"""
WITH j AS MATERIALIZED (
    SELECT * FROM stoker.job WHERE id = ANY($1::uuid[])
), d AS MATERIALIZED (
    SELECT * FROM stoker.done WHERE id = ANY($1::uuid[])
), r AS MATERIALIZED (
    SELECT * FROM stoker.ready WHERE id = ANY($1::uuid[])
), l AS MATERIALIZED (
    SELECT
        u.id, l.token, l.worker, l.claimed, l.former, l.former_at, coalesce(l.attempts[u.pos], 1) AS attempts,
        coalesce(get_bit(l.cancel, u.pos::int - 1), 0) = 1 AS cancel
    FROM stoker.lease AS l, unnest(l.ids) WITH ORDINALITY AS u (id, pos)
    WHERE
        (SELECT count(*) FROM j) > (SELECT count(*) FROM d) + (SELECT count(*) FROM r)
        AND (cardinality($1::uuid[]) > 20 OR l.ids && $1::uuid[])
        AND (u.id IN (SELECT unnest($1::uuid[]))) IS TRUE
        AND get_bit(l.open, u.pos::int - 1) = 1
)
SELECT {_selected({**RECORD, "history": _HISTORY})}
FROM j
LEFT JOIN r ON r.id = j.id
LEFT JOIN d ON d.id = j.id
LEFT JOIN l ON l.id = j.id
LEFT JOIN LATERAL (SELECT * FROM stoker.past WHERE id = j.id OFFSET 0) AS p ON true
"""

# Each walk follows an index in id order: $2 ids beyond $1. A pair of queue ($4) and status ($5) is a list of its own;
# active jobs are those that wait ($4) or run ($5).
_WALKS = {
    "all": "SELECT id FROM stoker.job WHERE id {beyond} $1 ORDER BY id {way} LIMIT $2",
    "key": "SELECT id FROM stoker.job WHERE ukey = $4 AND id {beyond} $1 ORDER BY ukey {way}, id {way} LIMIT $2",
    "done": "SELECT id FROM stoker.done WHERE id {beyond} $1 ORDER BY id {way} LIMIT $2",
    "listed": f"""
    SELECT x.id
    FROM unnest($4::text[]) AS q (queue) CROSS JOIN unnest($5::smallint[]) AS s (status)
    CROSS JOIN LATERAL (
        SELECT d.id FROM stoker.done AS d
        WHERE d.queue = q.queue AND d.status = s.status AND d.status <> {DONE} AND d.id {{beyond}} $1
        ORDER BY d.queue {{way}}, d.status {{way}}, d.id {{way}} LIMIT $2
    ) AS x
    ORDER BY x.id {{way}} LIMIT $2""",
    "retrying": (
        f"SELECT id FROM stoker.ready WHERE status = {RETRYING} AND id {{beyond}} $1 ORDER BY id {{way}} LIMIT $2"
    ),
    "active": """
    SELECT x.id
    FROM (
        (SELECT r.id FROM stoker.ready AS r WHERE $4 AND r.id {beyond} $1 ORDER BY r.id {way} LIMIT $2)
        UNION ALL
        (SELECT u.id
        FROM stoker.lease AS l CROSS JOIN unnest(l.ids) WITH ORDINALITY AS u (id, pos)
        WHERE $5 AND u.id {beyond} $1 AND get_bit(l.open, u.pos::int - 1) = 1
        ORDER BY u.id {way} LIMIT $2)
    ) AS x
    ORDER BY x.id {way} LIMIT $2""",
}


def _find(walk: str, order: str) -> str:
    """Return the statement for the next jobs of a walk, as `query.matches` asks about them."""
    beyond, way = ("<", "DESC") if order == "newest" else (">", "ASC")
    return (
        f"WITH i AS MATERIALIZED ({_WALKS[walk].format(beyond=beyond, way=way)}) SELECT {_selected(FOUND)} "
        "FROM i CROSS JOIN LATERAL (SELECT * FROM stoker.job WHERE id = i.id OFFSET 0) AS j"
        f"{_PLACES}ORDER BY i.id {way}"
    )


GENERATED = {
    "get": GET,
    **{f"find_{walk}_{order}": _find(walk, order) for walk in _WALKS for order in ("newest", "oldest")},
}
"""Statements over the job's columns, by name, beside those in `sql/`."""

_VIEW = tuple(RECORD)
_history = msgspec.json.Decoder(tuple[tuple[Instant, int, str], ...]).decode


# --- rows as records --------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """A job as it was read: the record, its columns, and which of them cannot be read."""

    record: Record
    values: dict[str, Any]
    corrupt: str | None


def read(row: Row) -> Stored:
    """Make a stored job of the columns `RECORD`, which the row begins with."""
    values = dict(zip(_VIEW, row, strict=False))
    if values["status"] is None:
        raise CorruptRecord(f"job {text(values['id'])} is neither waiting nor running nor finished")
    status, packed = STATUSES[values["status"]], unpacked(values)
    record = Record(
        id=values["id"],
        kind=values["kind"],
        queue=values["queue"],
        payload=(values["payload"] or "").encode(),
        priority=values["priority"],
        budget=values["budget"],
        created_at=values["created"],
        scheduled_at=values["due"],
        options=packed.options,
        unique=packed.unique,
        tenant=values["tenant"],
        status=status,
        attempts=values["attempts"],
        base=values["base"] or 0,
        crashes=values["crashes"] or 0,
        throttles=values["throttles"] or 0,
        worker=values["worker"],
        token=values["token"],
        started_at=values["started"],
        finished_at=values["finished"],
        expires_at=values["expires"],
        cancel_requested=values["cancel"],
        cancel_requested_at=values["asked"],
        last_error=shown_error(status, values["last_error"]),
        result=None if values["result"] is None else values["result"].encode(),
        progress=values["progress"],
        metadata=packed.metadata,
        log=packed.log,
        successor=values["successor"],
        former=values["former"],
        former_at=values["former_at"],
        settled=None if values["settled"] in (None, NEVER_SETTLED) else STATUSES[values["settled"]],
    )
    return Stored(record, values, packed.corrupt)


def shown(row: Row) -> Job:
    """Return a row of `get` as an operator sees the job; the metadata name a column that cannot be read."""
    record, _, corrupt = read(row)
    metadata = record.metadata if corrupt is None else {**record.metadata, CORRUPT: corrupt}
    history = () if row[-1] is None else tuple(Failure(*entry) for entry in _history(row[-1]))
    return msgspec.structs.replace(record, metadata=metadata, history=history).as_job()
