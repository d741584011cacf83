"""The job's columns, once: the statements over them, and records to and from rows.

A job's columns are spread over tables by how often they change. `body` does not change while the job runs; the job also
has one row in `ready`, `running` or `done`; `past` holds what earlier runs left. The view `stoker_records` joins them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from stoker.engines.base import CORRUPT, PLACELESS
from stoker.engines.sql.exchanges import Row
from stoker.engines.sql.packing import (
    SETTLED,
    SETTLED_CODES,
    encode,
    pack_unique,
    read_metadata,
    read_options,
    read_unique,
    unpacked,
)
from stoker.model.job import PLAIN, Draft, Failure, Job, Status, pack, shown_error
from stoker.model.record import WAITING, Record
from stoker.model.steps import Wakes
from stoker.model.time import Instant

CODES: dict[Status, int] = {status: code for code, status in enumerate(Status)}
STATUSES: tuple[Status, ...] = tuple(Status)
PENDING, RUNNING, RETRYING, DONE, DEAD, CANCELED, DISCARDED, RETRIED = range(8)

BODY = (
    "seq", "id", "qid", "priority", "due", "kind", "payload", "budget", "created", "ukey", "utraits", "tenant",
    "options", "line",
)  # fmt: skip
READY = ("qid", "priority", "due", "id", "seq", "attempts", "token", "status", "past", "settled")
FINISHED = (
    "id", "seq", "qid", "status", "token", "attempts", "started", "finished", "expires", "cancel", "settled", "origin",
    "result", "successor",
)  # fmt: skip
PAST = ("seq", "due", "base", "crashes", "throttles", "started", "progress", "metadata", "log")
VIEW = (
    "seq", "id", "qid", "line", "kind", "payload", "priority", "budget", "created", "ukey", "utraits", "tenant",
    "options", "status", "token", "attempts", "settled", "due", "started", "finished", "expires", "cancel", "origin",
    "result", "successor", "base", "crashes", "throttles", "progress", "metadata", "log", "last_error",
)  # fmt: skip
"""Columns of the view `stoker_records`."""

CLAIMED = ("kind", "payload", "budget", "created", "options", "ukey", "utraits", "tenant")
"""Columns of `body` that a claim shows."""


def _insert(table: str, columns: tuple[str, ...], *, or_ignore: bool = False) -> str:
    marks = ", ".join(f"?{number}" for number in range(1, len(columns) + 1))
    verb = "INSERT OR IGNORE INTO" if or_ignore else "INSERT INTO"
    return f"{verb} stoker_{table} ({', '.join(columns)}) VALUES ({marks})"


def _assign(columns: tuple[str, ...], source: str) -> str:
    """Return assignments of all columns but the first, which is the key."""
    numbered = list(enumerate(columns, 1))[1:]
    return ", ".join(f"{column} = {source.format(number=number, column=column)}" for number, column in numbered)


INSERT_BODY = _insert("body", BODY, or_ignore=True)
REWRITE_BODY = f"UPDATE stoker_body SET {_assign(BODY, '?{number}')} WHERE seq = ?1"
PUT_READY = _insert("ready", READY)
PUT_DONE = _insert("done", FINISHED)
PUT_PAST = f"{_insert('past', PAST)} ON CONFLICT (seq) DO UPDATE SET {_assign(PAST, 'excluded.{column}')}"
SELECT = f"SELECT {', '.join(VIEW)} FROM stoker_records WHERE id = ?1"
SELECT_MANY = (
    "WITH RECURSIVE place (at) AS (SELECT 1 UNION ALL SELECT at + 16 FROM place WHERE at + 16 < length(?1)) "
    f"SELECT {', '.join(VIEW)} FROM stoker_records WHERE id IN (SELECT substr(?1, at, 16) FROM place)"
)
"""The records of some ids, which are given as one value, one behind the other."""
INSERT_READY = (
    f"INSERT INTO stoker_ready ({', '.join(READY[:-1])}) "
    "SELECT coalesce(line, qid), priority, due, id, seq, 0, 0, 0, 0 FROM stoker_body WHERE seq BETWEEN ?1 AND ?2"
)
"""Rows of `ready` for new bodies, as `Record.drafted` makes them: no attempt, token 0, pending, no past."""

PICK = (
    "SELECT r.id, r.attempts + 1, max(?3, r.token + 1), r.due, r.seq, r.status, r.past, "
    f"{', '.join(f'b.{column}' for column in CLAIMED)}, r.token = 0, r.settled IN (8, 9) "
    "FROM (SELECT due, id, seq, attempts, token, status, past, settled FROM stoker_ready "
    "WHERE qid = ?1 AND priority = ?2 AND due <= ?3 ORDER BY due, id LIMIT ?4) AS r "
    "LEFT JOIN stoker_body AS b ON b.seq = r.seq"
)
"""The first due jobs of a priority, with attempt and token as `Record.claimed` sets them, whether they are fresh,
and whether they were suspended; without what is lost."""

FINISH = (
    f"INSERT INTO stoker_done ({', '.join(FINISHED[:-1])}) "
    f"VALUES (?1, ?2, ?3, {DONE}, ?4, ?5, ?6, ?7, ?8, 0, {DONE}, ?9, ?10)"
)
"""The row of `done` for a plain success, as `Record.settle` makes it."""


def walk(table: str, where: str, order: str) -> str:
    """Return the statement for the next ids behind ?1, at most ?2, along an index of a table.

    Each id comes with what stands for `{sieve}`.
    """
    beyond, direction = ("<", "DESC") if order == "newest" else (">", "ASC")
    return (
        f"SELECT id, {{sieve}} FROM stoker_{table} AS x WHERE {where} id {beyond} ?1 ORDER BY id {direction} LIMIT ?2"
    )


class Stored(NamedTuple):
    """A job as it was read: the record, and values that are not part of a record.

    `values` are the columns of the view. `wid` is the number of the worker that runs it. `corrupt` names the column
    that cannot be read.
    """

    record: Record
    values: dict[str, Any]
    wid: int | None = None
    corrupt: str | None = None

    @property
    def seq(self) -> int:
        return int(self.values["seq"])

    @property
    def has_past(self) -> bool:
        return self.values["base"] is not None


def read(row: Row, held: Row | None, queue: str) -> Stored:
    """Make a stored job of its row of the view and, while it runs, its row of `get_running`.

    One that was found in no place counts as dead, and as unreadable.
    """
    values = dict(zip(VIEW, row, strict=True))
    worker, wid, former, former_at = None, None, None, None
    packed, placeless = unpacked(values), held is None and values["status"] is None
    if held is not None:
        wid, worker, former, former_at, *rest = held
        values["token"], values["attempts"], values["started"], values["cancel"] = rest
        status = RUNNING
    elif placeless:
        status, packed = DEAD, packed._replace(corrupt=PLACELESS, unreadable=PLACELESS)
        values |= {"attempts": 0, "token": 0, "last_error": f"corrupt record: {PLACELESS}"}
    else:
        status = _status(values)
    record = Record(
        id=values["id"],
        kind=values["kind"] or "",
        queue=queue,
        payload=values["payload"],
        priority=values["priority"],
        budget=values["budget"],
        created_at=values["created"],
        scheduled_at=values["due"],
        options=packed.options,
        unique=packed.unique,
        tenant=values["tenant"],
        status=STATUSES[status],
        attempts=values["attempts"],
        base=values["base"] or 0,
        crashes=values["crashes"] or 0,
        throttles=values["throttles"] or 0,
        worker=worker,
        former=former,
        former_at=former_at,
        token=values["token"],
        started_at=values["started"],
        finished_at=values["finished"],
        expires_at=values["expires"],
        cancel_requested=bool(values["cancel"]),
        cancel_requested_at=values["cancel"] or None,
        last_error=shown_error(STATUSES[status], values["last_error"]),
        result=values["result"],
        progress=values["progress"],
        metadata=packed.metadata,
        log=packed.log,
        successor=values["successor"],
        origin=values["origin"] or 0,
        settled=None if values["settled"] is None else SETTLED[values["settled"]],
        unreadable=packed.unreadable,
    )
    return Stored(record, values, wid, packed.corrupt)


def _status(values: dict[str, Any]) -> int:
    """Return the stored status.

    A status that a waiting or finished job cannot have counts as pending or dead.
    """
    status = values["status"]
    if values["finished"] is None:
        return status if status in (PENDING, RETRYING) else PENDING
    return status if DONE <= status < len(STATUSES) else DEAD


def check_claimable(stored: Stored) -> None:
    """Raise `CorruptRecord` if something that a claim shows cannot be read."""
    if stored.corrupt is not None:
        read_options(stored.values["options"])
        read_unique(stored.values["ukey"], stored.values["utraits"])
        read_metadata(stored.values["metadata"])


def as_job(stored: Stored, history: tuple[Failure, ...]) -> Job:
    """Return the job for an operator; the metadata name a column that cannot be read."""
    record = stored.record
    metadata = record.metadata if stored.corrupt is None else {**record.metadata, CORRUPT: stored.corrupt}
    return record.as_job(history=history, metadata=metadata)


# --- rows of a record -------------------------------------------------------------------------------------------


def draft_row(draft: Draft, seq: int, qid: int, due: Instant, now: Instant, line: int | None = None) -> Row:
    """Return the row of `body` for a draft without a key.

    The fast form of `body_row(Record.drafted(...))`.
    """
    options = None if draft.options is PLAIN else pack(draft.options)
    return (
        seq, draft.job_id, qid, draft.priority, due, draft.kind, draft.payload, draft.attempts, now, None, None,
        draft.tenant, options, line,
    )  # fmt: skip


def body_row(record: Record, seq: int, qid: int, line: int | None, stored: Stored | None) -> Row:
    """Return the row of `body`.

    A column that cannot be read stays as it was stored.
    """
    before = None if stored is None else stored.record
    if stored is not None and before is not None and before.unique == record.unique:
        key, traits = stored.values["ukey"], stored.values["utraits"]
    else:
        key, traits = pack_unique(record.unique)
    options = pack(record.options)
    if stored is not None and before is not None and before.options == record.options:
        options = stored.values["options"]
    return (
        seq, record.id, qid, record.priority, record.scheduled_at, record.kind, record.payload, record.budget,
        record.created_at, key, traits, record.tenant, options, line,
    )  # fmt: skip


BODY_FIELDS = ("queue", "priority", "kind", "payload", "budget", "unique", "tenant", "options")


def changes_body(before: Record, after: Record) -> bool:
    """Return whether `body` has to be rewritten."""
    return any(getattr(before, field) != getattr(after, field) for field in BODY_FIELDS)


def past_row(record: Record, stored: Stored | None) -> Row:
    """Return the row of `past`, without the number.

    A column that cannot be read stays as it was stored.
    """
    before = None if stored is None else stored.record
    metadata = encode(record.metadata) if record.metadata else None
    log = encode(record.log) if record.log else None
    if stored is not None and before is not None and before.metadata == record.metadata:
        metadata = stored.values["metadata"]
    if stored is not None and before is not None and before.log == record.log:
        log = stored.values["log"]
    started = record.started_at if record.status in WAITING else None
    return (
        record.scheduled_at, record.base, record.crashes, record.throttles, started, record.progress, metadata, log,
    )  # fmt: skip


def needs_past(record: Record, *, body_due: int) -> bool:
    """Return whether the record has values that only `past` can store."""
    plain = not (record.base or record.crashes or record.throttles or record.metadata or record.log)
    if not plain or record.progress is not None:
        return True
    if record.status not in WAITING:
        return False
    # A claim reads the last error only of a job with a past.
    return record.scheduled_at != body_due or record.started_at is not None or record.last_error is not None


def ready_row(record: Record, seq: int, qid: int, *, past: bool) -> Row:
    """Return the row of `ready`."""
    return (
        qid, record.priority, record.scheduled_at, record.id, seq, record.attempts, record.token,
        CODES[record.status], int(past), _code(record.settled),
    )  # fmt: skip


def done_row(record: Record, seq: int, qid: int) -> Row:
    """Return the row of `done`."""
    return (
        record.id, seq, qid, CODES[record.status], record.token, record.attempts, record.started_at,
        record.finished_at, record.expires_at, record.cancel_requested_at or 0, _code(record.settled), record.origin,
        record.result, record.successor,
    )  # fmt: skip


def _code(settled: Status | Wakes | None) -> int | None:
    return None if settled is None else SETTLED_CODES[settled]
