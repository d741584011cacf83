"""The job's columns, once: the statements over them, and records to and from rows.

A job's columns are spread over tables by how often they change. `job` holds what the draft said; the job also has one
row in `ready` or `done`, or a bit in a row of `lease`; `past` holds what earlier runs left, `failure` their errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from stoker.engines.base import CORRUPT, PLACELESS
from stoker.engines.sql.exchanges import Row
from stoker.engines.sql.packing import SETTLED, SETTLED_CODES, encode, legible, pack_unique, unpacked
from stoker.model.errors import InvalidPayload
from stoker.model.ids import JobId
from stoker.model.job import PLAIN, Draft, Failure, Job, Options, Status, pack, shown_error
from stoker.model.record import WAITING, Record
from stoker.model.time import Instant

CODES: dict[Status, int] = {status: code for code, status in enumerate(Status)}
STATUSES: tuple[Status, ...] = tuple(Status)
PENDING, RUNNING, RETRYING, DONE, DEAD, CANCELED, DISCARDED, RETRIED = range(8)
NEVER_SETTLED = -1

JOB = {
    "id": "uuid",
    "created": "bigint",
    "due": "bigint",
    "budget": "int",
    "priority": "smallint",
    "utraits": "bigint",
    "queue": "text",
    "kind": "text",
    "payload": "text",
    "ukey": "text",
    "tenant": "text",
    "options": "text",
}
READY = {
    "due": "bigint",
    "token": "bigint",
    "id": "uuid",
    "attempts": "int",
    "priority": "smallint",
    "status": "smallint",
    "settled": "smallint",
    "past": "boolean",
    "queue": "text",
}
FINISHED = {
    "id": "uuid",
    "finished": "bigint",
    "expires": "bigint",
    "token": "bigint",
    "started": "bigint",
    "attempts": "int",
    "origin": "int",
    "status": "smallint",
    "settled": "smallint",
    "cancel": "boolean",
    "queue": "text",
    "result": "text",
    "successor": "uuid",
}
PAST = {
    "id": "uuid",
    "due": "bigint",
    "started": "bigint",
    "asked": "bigint",
    "base": "int",
    "crashes": "int",
    "throttles": "int",
    "progress": "double precision",
    "metadata": "jsonb",
    "log": "jsonb",
}
FAILURE = {"id": "uuid", "at": "bigint", "attempt": "int", "origin": "int", "error": "text"}
"""Columns of the tables with their types."""

_LAST_ERROR = "(SELECT f.error FROM stoker.failure AS f WHERE f.id = j.id ORDER BY f.n DESC LIMIT 1)"
_ASKED_TO_STOP = "coalesce(l.cancel, d.cancel, false)"

RECORD = {
    "id": "j.id",
    "kind": "j.kind",
    "queue": "j.queue",
    "line": "r.queue",
    "payload": "j.payload",
    "priority": "j.priority",
    "budget": "j.budget",
    "created": "j.created",
    "body_due": "j.due",
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
    "origin": "d.origin",
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

_RUN_ATTEMPTS = (
    "(SELECT coalesce(l.attempts[array_position(l.ids, j.id)], 1) FROM stoker.lease AS l "
    "WHERE l.ids @> ARRAY[j.id] AND get_bit(l.open, array_position(l.ids, j.id) - 1) = 1 LIMIT 1)"
)

FOUND = {
    **{column: RECORD[column] for column in ("id", "queue", "kind", "tenant", "ukey", "utraits", "created", "due")},
    "finished": "d.finished",
    "attempts": f"coalesce(r.attempts, d.attempts, CASE WHEN $4 THEN {_RUN_ATTEMPTS} END, 0)",
    "status": f"coalesce(r.status, d.status, {RUNNING})",
    "settled": "r.settled",
    "payload": "CASE WHEN $3 THEN j.payload END",
    "last_error": f"CASE WHEN $3 THEN {_LAST_ERROR} END",
}
"""The columns that `query.matches` asks about."""

_HISTORY = (
    "(SELECT json_agg(json_build_array(f.at, f.attempt, f.error, f.origin) ORDER BY f.n)::text "
    "FROM stoker.failure AS f WHERE f.id = j.id AND f.attempt IS NOT NULL)"
)
_PLACES = """
LEFT JOIN LATERAL (SELECT * FROM stoker.ready WHERE id = j.id OFFSET 0) AS r ON true
LEFT JOIN LATERAL (SELECT * FROM stoker.done WHERE id = j.id OFFSET 0) AS d ON true
LEFT JOIN LATERAL (SELECT * FROM stoker.past WHERE id = j.id OFFSET 0) AS p ON true
"""


def _selected(columns: dict[str, str]) -> str:
    return ", ".join(f"{place} AS {column}" for column, place in columns.items())


def _arrays(columns: dict[str, str], first: int = 1) -> str:
    """Return the columns as arrays from the value $first on: a row source `u`."""
    arrays = (f"${n}::{'text' if type_ == 'jsonb' else type_}[]" for n, type_ in enumerate(columns.values(), first))
    return f"unnest({', '.join(arrays)}) AS u ({', '.join(columns)})"


def _put(table: str, columns: dict[str, str]) -> str:
    values = ", ".join(f"u.{name}::jsonb" if type_ == "jsonb" else f"u.{name}" for name, type_ in columns.items())
    return f"INSERT INTO stoker.{table} ({', '.join(columns)}) SELECT {values} FROM {_arrays(columns)}"


_REWRITTEN = {column: type_ for column, type_ in JOB.items() if column != "created"}

# A payload that did not change was not read either.
REWRITE = (
    "UPDATE stoker.job AS j SET "
    + ", ".join(f"{column} = u.{column}" for column in _REWRITTEN if column not in ("id", "payload"))
    + f", payload = coalesce(u.payload, j.payload) FROM {_arrays(_REWRITTEN)} WHERE j.id = u.id"
)

MOVE_READY = (
    "UPDATE stoker.ready AS r SET "
    + ", ".join(f"{column} = u.{column}" for column in READY if column != "id")
    + f" FROM {_arrays(READY)} WHERE r.id = u.id"
)

PUT_PAST = f"{_put('past', PAST)} ON CONFLICT (id) DO UPDATE SET " + ", ".join(
    f"{column} = excluded.{column}" for column in PAST if column != "id"
)

COMMON = {"queue": "text", "kind": "text", "priority": "smallint", "budget": "int"}
"""Columns that most drafts of a call share: the common value is sent once, and the list is empty then."""

NEW = {
    "id": "uuid",
    **COMMON,
    "payload": "text",
    "delay": "bigint",
    "at": "bigint",
    "tenant": "text",
    "options": "text",
    "ukey": "text",
    "utraits": "bigint",
    "line": "text",
}


def _insert(conflict: str, source: str, answer: str) -> str:
    """Return the statement that stores drafts: `Record.drafted` as rows of `job`, `ready` and `delta`.

    When a draft is due: `record.due_at`.
    """
    common = {column: f"${n}::{type_}" for n, (column, type_) in enumerate(COMMON.items(), 2)}
    given = {column: f"u.{column}" for column in NEW if column not in ("delay", "at")}
    given |= {column: f"coalesce(u.{column}, {value})" for column, value in common.items()}
    given["line"] = "coalesce(u.line, CASE WHEN q.fair THEN '@' || coalesce(u.tenant, '') END)"
    job = ", ".join(JOB)
    return f"""
WITH t AS MATERIALIZED (
    SELECT coalesce($1::bigint, stoker.clock()) AS now
), x AS MATERIALIZED (
    SELECT
        t.now AS created, coalesce(u.at, t.now + coalesce(u.delay, 0)) AS due,
        {", ".join(f"{value} AS {column}" for column, value in given.items())}
    FROM t CROSS JOIN {_arrays(NEW, 2 + len(COMMON))}
    LEFT JOIN stoker.queue AS q ON q.name = coalesce(u.queue, $2::text) AND q.fair
), j AS (
    INSERT INTO stoker.job ({job}) SELECT {job} FROM x {conflict}
), r AS (
    INSERT INTO stoker.ready ({", ".join(READY)})
    SELECT due, 0, id, 0, priority, {PENDING}, {NEVER_SETTLED}, false, coalesce(queue || '/' || line, queue)
    FROM {source}
), g AS (
    INSERT INTO stoker.subqueue_log (queue, name, look, options, anew)
    SELECT queue, line, min(greatest(due, created)), (array_agg(options ORDER BY id DESC))[1], true
    FROM {source} WHERE line IS NOT NULL GROUP BY queue, line
), c AS (
    INSERT INTO stoker.delta (queue, kind, pending, enqueued)
    SELECT queue, kind, count(*), count(*) FROM {source} GROUP BY queue, kind
)
{answer}
"""


# Fresh drafts without keys. One whose id is stored already makes the whole statement fail.
INSERT = _insert("", "x", "SELECT now FROM t")

# New jobs of which some may be stored already; returns the ids of the others, which it stored.
CREATE = _insert(
    "ON CONFLICT (id) DO NOTHING RETURNING id",
    "(SELECT x.* FROM x JOIN j ON j.id = x.id) AS stored",
    "SELECT id FROM j",
)

# Jobs by id, running ones with their lease and their bit in it. Payloads only with $4.
LOAD = f"""
SELECT {_selected({**RECORD, "payload": "CASE WHEN $4::boolean THEN j.payload END"})}
FROM unnest($1::uuid[], $2::bigint[], $3::int[]) AS u (id, lease, pos)
CROSS JOIN LATERAL (SELECT * FROM stoker.job WHERE id = u.id OFFSET 0) AS j
LEFT JOIN LATERAL (
    SELECT
        id, token, worker, claimed, former, former_at, coalesce(attempts[u.pos + 1], 1) AS attempts,
        coalesce(get_bit(cancel, u.pos), 0) = 1 AS cancel
    FROM stoker.lease WHERE id = u.lease AND get_bit(open, u.pos) = 1 OFFSET 0
) AS l ON true{_PLACES}"""

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

_GROUP = """substring(options FROM '.*"group":"([A-Za-z0-9+/]{{22}}==)"') COLLATE "C\""""
"""The group of a row of `job`, as its options hold it: the expression of an index, in a text to be formatted."""

# Each walk follows an index in id order: $2 ids beyond $1. A pair of queue ($5) and status ($6) is a list of its own,
# beside that of jobs that wait for a retry ($7); active jobs are those that wait ($5) or run ($6). $3 asks for payloads
# and errors, $4 for attempts of running jobs.
_WALKS = {
    "all": "SELECT id FROM stoker.job WHERE id {beyond} $1 ORDER BY id {way} LIMIT $2",
    "key": "SELECT id FROM stoker.job WHERE ukey = $5 AND id {beyond} $1 ORDER BY ukey {way}, id {way} LIMIT $2",
    "group": (
        f"SELECT id FROM stoker.job WHERE {_GROUP} = $5 AND id {{beyond}} $1 "
        f"ORDER BY {_GROUP} {{way}}, id {{way}} LIMIT $2"
    ),
    "done": "SELECT id FROM stoker.done WHERE id {beyond} $1 ORDER BY id {way} LIMIT $2",
    "listed": f"""
    SELECT a.id
    FROM (
        (SELECT x.id
        FROM unnest($5::text[]) AS q (queue) CROSS JOIN unnest($6::smallint[]) AS s (status)
        CROSS JOIN LATERAL (
            SELECT d.id FROM stoker.done AS d
            WHERE d.queue = q.queue AND d.status = s.status AND d.status <> {DONE} AND d.id {{beyond}} $1
            ORDER BY d.queue {{way}}, d.status {{way}}, d.id {{way}} LIMIT $2
        ) AS x
        ORDER BY x.id {{way}} LIMIT $2)
        UNION ALL
        (SELECT r.id FROM stoker.ready AS r
        WHERE $7 AND r.status = {RETRYING} AND r.id {{beyond}} $1 ORDER BY r.id {{way}} LIMIT $2)
    ) AS a
    ORDER BY a.id {{way}} LIMIT $2""",
    "retrying": (
        f"SELECT id FROM stoker.ready WHERE status = {RETRYING} AND id {{beyond}} $1 ORDER BY id {{way}} LIMIT $2"
    ),
    "active": """
    SELECT x.id
    FROM (
        (SELECT r.id FROM stoker.ready AS r WHERE $5 AND r.id {beyond} $1 ORDER BY r.id {way} LIMIT $2)
        UNION ALL
        (SELECT u.id
        FROM stoker.lease AS l CROSS JOIN unnest(l.ids) WITH ORDINALITY AS u (id, pos)
        WHERE $6 AND u.id {beyond} $1 AND get_bit(l.open, u.pos::int - 1) = 1
        ORDER BY u.id {way} LIMIT $2)
    ) AS x
    ORDER BY x.id {way} LIMIT $2""",
}


_WALK_VALUES = {"key": 1, "group": 1, "listed": 3, "active": 2}
"""How many values a walk has beside the first four."""


def _sieve(first: int) -> str:
    """Return a condition on a row of `job` that holds for all that a query matches; its values are `find.sieve`'s.

    A text is compared here if it is ASCII and the payload as well; every other payload passes.
    """
    queues, kinds, tenant, group, since, until, payload, error, text, name, value, entry = (
        f"${n}" for n in range(first, first + 12)
    )
    has_error = "EXISTS (SELECT 1 FROM stoker.failure AS f WHERE f.id = job.id)"

    def in_payload(needle: str) -> str:
        return f'position({needle} IN lower(payload COLLATE "C")) > 0 OR payload COLLATE "C" ~ \'[^\\x01-\\x7e]\''

    noted = f"(SELECT p.metadata ->> {name}::text FROM stoker.past AS p WHERE p.id = job.id)"
    given = f"stoker.as_json(options) -> 'metadata' ->> {name}::text"
    return (
        f"({queues}::text[] IS NULL OR queue = ANY({queues}::text[])) "
        f"AND ({kinds}::text[] IS NULL OR kind = ANY({kinds}::text[])) "
        f"AND ({tenant}::text IS NULL OR tenant = {tenant}) "
        f"AND ({group}::text IS NULL OR stoker.as_json(options) ->> 'group' = {group}) "
        f"AND created >= {since}::bigint AND created < {until}::bigint "
        f"AND ({payload}::text IS NULL OR {in_payload(payload)}) "
        f"AND (NOT {error}::boolean OR {has_error}) "
        f"AND ({text}::text IS NULL OR {in_payload(text)} OR {has_error}) "
        f"AND ({name}::text IS NULL OR {value}::text = "
        f"coalesce({noted}, CASE WHEN position({entry}::text IN options) > 0 THEN {given} END))"
    )


def _find(walk: str, order: str) -> str:
    """Return the statement for the next jobs of a walk, as `query.matches` asks about them, behind their ids.

    Of a job that the sieve holds back there is the id alone.
    """
    beyond, way = ("<", "DESC") if order == "newest" else (">", "ASC")
    sieve = _sieve(5 + _WALK_VALUES.get(walk, 0))
    return (
        f"WITH i AS MATERIALIZED ({_WALKS[walk].format(beyond=beyond, way=way)}) SELECT i.id, {_selected(FOUND)} "
        f"FROM i LEFT JOIN LATERAL (SELECT * FROM stoker.job WHERE id = i.id AND {sieve} OFFSET 0) AS j ON true"
        f"{_PLACES}ORDER BY i.id {way}"
    )


LOOK = (
    f"SELECT {_selected(FOUND)} FROM unnest($1::uuid[], $2::bigint[]) AS i (id, at) "
    f"CROSS JOIN LATERAL (SELECT * FROM stoker.job WHERE id = i.id AND {_sieve(5)} OFFSET 0) AS j{_PLACES}"
)
"""Jobs by id ($1), as `query.matches` asks about them; without those that the sieve holds back."""

GENERATED = {
    "look": LOOK,
    "get": GET,
    "load": LOAD,
    "insert": INSERT,
    "create": CREATE,
    "rewrite_job": REWRITE,
    "put_ready": _put("ready", READY),
    "move_ready": MOVE_READY,
    "put_done": _put("done", FINISHED),
    "put_past": PUT_PAST,
    "put_failure": _put("failure", FAILURE),
    **{f"find_{walk}_{order}": _find(walk, order) for walk in _WALKS for order in ("newest", "oldest")},
}
"""Statements over the job's columns, by name, beside those in files."""

_VIEW = tuple(RECORD)
_history = msgspec.json.Decoder(tuple[tuple[Instant, int, str, int], ...]).decode


# --- rows as records --------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    """A job as it was read: the record, its columns, and which of them cannot be read."""

    record: Record
    values: dict[str, Any]
    corrupt: str | None

    @property
    def has_past(self) -> bool:
        return self.values["base"] is not None

    @property
    def key_is_unreadable(self) -> bool:
        return self.record.unique is None and self.values["ukey"] is not None


def read(row: Row) -> Stored:
    """Make a stored job of the columns `RECORD`, which the row begins with.

    One that was found in no place counts as dead, and as unreadable.
    """
    values = dict(zip(_VIEW, row, strict=False))
    packed, placeless = unpacked(values), values["status"] is None
    if placeless:
        packed = packed._replace(corrupt=PLACELESS, unreadable=PLACELESS)
        values |= {"status": DEAD, "attempts": 0, "token": 0, "last_error": f"corrupt record: {PLACELESS}"}
    status = STATUSES[values["status"]]
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
        origin=values["origin"] or 0,
        former=values["former"],
        former_at=values["former_at"],
        settled=None if values["settled"] in (None, NEVER_SETTLED) else SETTLED[values["settled"]],
        unreadable=packed.unreadable,
    )
    return Stored(record, values, packed.corrupt)


def shown(row: Row) -> Job:
    """Return a row of `get` as an operator sees the job; the metadata name a column that cannot be read."""
    record, _, corrupt = read(row)
    metadata = record.metadata if corrupt is None else {**record.metadata, CORRUPT: corrupt}
    history = () if row[-1] is None else tuple(Failure(*entry) for entry in _history(row[-1]))
    return record.as_job(metadata=metadata, history=history)


# --- rows of a record -------------------------------------------------------------------------------------------


def body_row(record: Record, stored: Stored) -> Row:
    """Return the row of `rewrite_job`. A column that cannot be read stays as it was stored."""
    before, values = stored.record, stored.values
    key, traits = pack_unique(record.unique)
    if record.unique == before.unique:
        key, traits = values["ukey"], values["utraits"]
    options = values["options"] if record.options == before.options else packed_options(record.options)
    payload = None if record.payload == before.payload else payload_text(record.payload)
    return (
        record.id, record.scheduled_at, record.budget, record.priority, traits, record.queue, record.kind, payload, key,
        record.tenant, options,
    )  # fmt: skip


BODY_FIELDS = ("queue", "priority", "kind", "payload", "budget", "unique", "tenant", "options")


def brought_row(record: Record) -> Row:
    """Return the row of `job` of a job of another store."""
    key, traits = pack_unique(record.unique)
    return (
        record.id, record.created_at, record.scheduled_at, record.budget, record.priority, traits, record.queue,
        record.kind, payload_text(record.payload), key, record.tenant, packed_options(record.options),
    )  # fmt: skip


def blank(record: Record) -> Stored:
    """A job of another store of which only the body is stored."""
    plain = Record(**{name: getattr(record, name) for name in ("id", *BODY_FIELDS)}, created_at=0, scheduled_at=0)
    key, traits = pack_unique(record.unique)
    values = {"body_due": record.scheduled_at, "base": None, "metadata": None, "log": None, "line": None}
    return Stored(plain, {**values, "ukey": key, "utraits": traits}, None)


def error_row(failure: Failure) -> Row:
    """Return the row of `failure`, without the id."""
    return failure.at, failure.attempt or None, failure.origin, legible(failure.error)


def changes_body(before: Record, after: Record) -> bool:
    """Return whether the row of `job` has to be rewritten."""
    return any(getattr(before, field) != getattr(after, field) for field in BODY_FIELDS)


def ready_row(record: Record, line: str | None, *, past: bool) -> Row:
    """Return the row of `ready`."""
    return (
        record.scheduled_at, record.token, record.id, record.attempts, record.priority, CODES[record.status],
        _settled(record), past, record.queue if line is None else f"{record.queue}/{line}",
    )  # fmt: skip


def done_row(record: Record) -> Row:
    """Return the row of `done`."""
    return (
        record.id, record.finished_at, record.expires_at, record.token, record.started_at, record.attempts,
        record.origin, CODES[record.status], _settled(record), record.cancel_requested, record.queue,
        None if record.result is None else record.result.decode(), record.successor,
    )  # fmt: skip


def past_row(record: Record, stored: Stored) -> Row:
    """Return the row of `past`. A column that cannot be read stays as it was stored."""
    before, values = stored.record, stored.values
    metadata = encode(record.metadata).decode() if record.metadata else None
    log = encode(record.log).decode() if record.log else None
    return (
        record.id, record.scheduled_at, record.started_at if record.status in WAITING else None,
        record.cancel_requested_at, record.base, record.crashes, record.throttles, record.progress,
        values["metadata"] if record.metadata == before.metadata else metadata,
        values["log"] if record.log == before.log else log,
    )  # fmt: skip


def needs_past(record: Record, *, body_due: Instant) -> bool:
    """Return whether the record has values that only `past` can store."""
    if record.base or record.crashes or record.throttles or record.metadata or record.log:
        return True
    if record.progress is not None or record.cancel_requested_at is not None:
        return True
    if record.status not in WAITING:
        return False
    # A claim reads the last error only of a job with a past.
    return record.scheduled_at != body_due or record.started_at is not None or record.last_error is not None


def _settled(record: Record) -> int:
    return NEVER_SETTLED if record.settled is None else SETTLED_CODES[record.settled]


def payload_text(payload: bytes) -> str:
    """Return a payload as the store keeps it."""
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise InvalidPayload("payload", payload[:40], "must be JSON in UTF-8") from None


def packed_options(options: Options) -> str | None:
    """Return options as the store keeps them."""
    packed = None if options is PLAIN else pack(options)
    return None if packed is None else packed.decode()


# --- new jobs ---------------------------------------------------------------------------------------------------


def draft_columns(drafts: Sequence[Draft]) -> Row:
    """Return drafts without keys as `insert` and `create` take them."""
    return _new_columns(
        ids=[draft.job_id for draft in drafts],
        common=[
            [draft.queue for draft in drafts],
            [draft.kind for draft in drafts],
            [draft.priority for draft in drafts],
            [draft.attempts for draft in drafts],
        ],
        payloads=[payload_text(draft.payload) for draft in drafts],
        others=[
            [draft.delay or None for draft in drafts],
            [draft.at for draft in drafts],
            [draft.tenant for draft in drafts],
            [packed_options(draft.options) for draft in drafts],
        ],
        keys=[[], [], [None if draft.options.limit is None else draft.options.limit.subqueue for draft in drafts]],
    )


def record_columns(records: Sequence[Record]) -> Row:
    """Return new jobs as `create` takes them."""
    keys = [pack_unique(record.unique) for record in records]
    return _new_columns(
        ids=[record.id for record in records],
        common=[
            [record.queue for record in records],
            [record.kind for record in records],
            [record.priority for record in records],
            [record.budget for record in records],
        ],
        payloads=[payload_text(record.payload) for record in records],
        others=[
            [],
            [record.scheduled_at for record in records],
            [record.tenant for record in records],
            [packed_options(record.options) for record in records],
        ],
        keys=[[key for key, _ in keys], [traits for _, traits in keys], [_subqueue(record) for record in records]],
    )


def _subqueue(record: Record) -> str | None:
    """Return the subqueue that a new job joins by its limit."""
    return None if record.options.limit is None else record.options.limit.subqueue


def _new_columns(
    *, ids: list[JobId], common: list[list[Any]], payloads: list[str], others: list[list[Any]], keys: list[list[Any]]
) -> Row:
    """Return the columns `NEW` after the values that all rows have in common.

    A list in which every row has the same value, or none, is empty: the driver looks at each element of a list.
    """
    return (
        *(column[0] for column in common),
        ids,
        *([] if column.count(column[0]) == len(column) else column for column in common),
        payloads,
        *map(unless_empty, others),
        *map(unless_empty, keys),
    )


def unless_empty(column: list[Any]) -> list[Any]:
    """Return a column, or an empty one when it holds nothing but None."""
    return [] if column.count(None) == len(column) else column


def listed(column: Iterable[object]) -> str:
    """Return values without commas as an array literal: the driver checks each element of a list three times."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in column]) + "}"
