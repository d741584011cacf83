"""The engine's statements, by name: those in the `.sql` files beside its modules, and those made from others.

Every table is written with the schema `stoker`, so that a statement can be run as it stands. An engine that keeps its
tables elsewhere replaces that name in the text: what a statement means never depends on a session's search path, which
a pooler may give to another client.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from stoker.engines.postgres.columns import GENERATED
from stoker.engines.sql import migrations
from stoker.engines.sql.statements import Statements
from stoker.model.errors import InvalidOption
from stoker.model.job import FIRST

DEFAULT_SCHEMA = "stoker"
STATEMENTS = Statements(Path(__file__).parent)
STATEMENTS.update(GENERATED)
STATEMENTS["claim_rated"] = STATEMENTS["claim"].replace("q.rate_n IS NOT NULL AS rated", "false AS rated")
"""Takes from a queue with a rate; the caller holds the queue's row and has counted its tokens."""

_PICKED = """
WITH t AS MATERIALIZED (
    SELECT $1::bigint AS now
), g AS MATERIALIZED (
    SELECT x.queue, 1 AS ord, q.curve_on, q.curve_base, q.curve_max, q.cool_count
    FROM (SELECT $3::text AS queue) AS x LEFT JOIN stoker.queue AS q ON q.name = x.queue
), m AS MATERIALIZED (
    SELECT r.id FROM unnest($4::text[], $5::text::int[], $6::text::bigint[], $7::text::uuid[])
        AS u (line, priority, due, id)
    CROSS JOIN LATERAL (
        SELECT r.id FROM stoker.ready AS r
        WHERE r.queue = u.line AND r.priority = u.priority AND r.due = u.due AND r.id = u.id
        FOR UPDATE SKIP LOCKED
    ) AS r
), o AS (
    INSERT INTO stoker.subqueue_round AS r (queue, claims) SELECT $3::text, 1 WHERE $8::boolean
    ON CONFLICT (queue) DO UPDATE SET claims = r.claims + 1
), d AS (
    DELETE FROM stoker.ready WHERE id = ANY(ARRAY(SELECT id FROM m))
    RETURNING
        id, $3::text AS queue, priority, due, attempts, status, past, settled,
        greatest((SELECT now FROM t), token + 1) AS fence, token = 0 AS fresh
), p AS"""
STATEMENTS["claim_picked"] = (
    _PICKED.lstrip() + STATEMENTS["claim"].partition("\n), p AS")[2].partition("\nUNION ALL\nSELECT\n    NULL,")[0]
).replace("$10::text[]", "'{}'::text[]")
"""Jobs that a claim of a divided queue picked become claims, as by `claim`, unless another transaction has changed or
locked them. $8: subqueues served one more claim."""

STATEMENTS["queue_claim"] = f"""
WITH t AS MATERIALIZED (SELECT stoker.clock() AS now, set_config('lock_timeout', $2::text, true) AS hasty)
SELECT t.now, EXISTS (SELECT 1 FROM stoker.ready AS r WHERE r.queue = $1 AND r.priority = {FIRST}), q.*
FROM t LEFT JOIN LATERAL ({STATEMENTS["queue_hold"]}) AS q ON t.hasty IS NOT NULL
"""
"""The clock, whether a job waits that an operator put first, and a queue's held row, nulls where there is none.

It waits at most $2 milliseconds for the row. A job that was put first during this wait is not seen; the wake-up of its
commit leads to another claim.
"""

STATEMENTS["lock_free_jobs"] = STATEMENTS["lock_jobs"] + " SKIP LOCKED"
"""The same, but for those that another transaction has locked."""

STATEMENTS["begin_signal"] = f"""
WITH l AS MATERIALIZED ({STATEMENTS["lock_jobs"]})
SELECT stoker.clock(), s.ids FROM (SELECT array_agg(l.id) AS ids FROM l) AS s
"""
"""Locks jobs as `lock_jobs`, then reads the clock: what a transaction begins with that signals these jobs."""

STATEMENTS["steps_suspended"] = f"""
SELECT r.token, s.* FROM ({STATEMENTS["steps_signaled"]}) AS s JOIN stoker.ready AS r ON r.id = s.id
WHERE r.id = ANY($1::uuid[]) AND r.settled + 0 = 8
"""
"""Those of jobs that are suspended until any of their waits is answered (8), with their tokens.

`+ 0` keeps the plan from the index of all suspended jobs.
"""

STATEMENTS["letters_lock"] = STATEMENTS["letters"].replace("LIMIT $13::int\n)", "LIMIT $13::int FOR UPDATE\n)")
"""Locks the letters that a user changes."""

STATEMENTS["settle_members"] = (
    STATEMENTS["settle_done"]
    .replace("u.id, u.result,", "u.id, u.result, u.member,", 1)
    .replace("$11::text[])\n", "$11::text[], $15::uuid[])\n", 1)
    .replace("(place, id, kind, attempts, keep, result)", "(place, id, kind, attempts, keep, result, member)", 1)
    .replace(
        "\nSELECT ord, eff",
        ", g AS (\n    INSERT INTO stoker.group_change (id, at, total, done, dead, canceled)\n"
        "    SELECT member, min(now), 0, count(*), 0, 0 FROM f WHERE member IS NOT NULL GROUP BY member\n)"
        "\nSELECT ord, eff",
        1,
    )
)
"""Settles plain successes of which some are members of groups, $15."""

STATEMENTS["settle_slots"] = (
    STATEMENTS["settle_members"]
    .replace("u.id, u.result, u.member,", "u.id, u.result, u.member, u.slot,", 1)
    .replace("$15::uuid[])\n", "$15::uuid[], $16::text[])\n", 1)
    .replace("keep, result, member)", "keep, result, member, slot)", 1)
    .replace(
        "\nSELECT ord, eff",
        ", h AS (\n    INSERT INTO stoker.subqueue_log (queue, name, freed)\n"
        "    SELECT queue, slot, count(*) FROM f WHERE slot IS NOT NULL GROUP BY queue, slot\n)"
        "\nSELECT ord, eff",
        1,
    )
)
"""The same where some hold slots of subqueues, $16, which they give back."""

MIGRATIONS = migrations.load(Path(__file__).with_name("migrations"))

_CHANGED = re.compile(r"\A(?:INSERT INTO|UPDATE|DELETE FROM) stoker\.(\w+)")
_VALUE = re.compile(r"\$(\d+)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_QUALIFIED = re.compile(r"\bstoker\.")


def sql(name: str) -> str:
    """Return a statement's name after checking that there is one. The store looks up the text."""
    STATEMENTS[name]
    return name


def call(schema: str, function: str, *values: int | str | bytes | None) -> str:
    """Return a call of a function of ours as a text, for commands of several statements, which take no values."""
    return f'SELECT "{schema}".{function}({", ".join(map(_literal, values))})'


def _literal(value: int | str | bytes | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"'{value.hex()}'"
    # In this form a backslash means the same whatever standard_conforming_strings is.
    return "E'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def changed_table(name: str) -> str:
    """Return the table that a statement changes."""
    found = _CHANGED.match(STATEMENTS[name])
    if found is None:
        raise ValueError(f"the statement {name!r} does not begin by naming the table it changes")
    return found[1]


def check_schema(schema: str) -> str:
    """Return a schema name that is safe inside statements, or raise."""
    if not isinstance(schema, str) or not _NAME.fullmatch(schema):
        raise InvalidOption("schema", schema, "must be 1-63 letters, digits and _, and not start with a digit")
    return schema


def placed(text: str, schema: str) -> str:
    """The text with its tables in a schema."""
    return text if schema == DEFAULT_SCHEMA else _QUALIFIED.sub(f'"{schema}".', text)


@functools.lru_cache(maxsize=32)
def texts(schema: str) -> dict[str, str]:
    """Every statement, for one schema."""
    return {name: placed(text, schema) for name, text in STATEMENTS.items()}


@functools.lru_cache(maxsize=1024)
def merged(schema: str, names: tuple[str, ...]) -> str:
    """Changing statements as one, which takes the values of all of them in this order."""
    *others, last = _numbered([texts(schema)[name] for name in names])
    if not others:
        return last
    return "WITH " + ", ".join(f"part{n} AS (\n{text}\n)" for n, text in enumerate(others)) + f"\n{last}"


def _numbered(parts: list[str]) -> list[str]:
    """Number the values of statements one after the other."""
    numbered: list[str] = []
    before = 0
    for text in parts:
        numbered.append(_VALUE.sub(lambda match, before=before: f"${int(match[1]) + before}", text))  # type: ignore[misc]
        before += max(int(n) for n in _VALUE.findall(text))
    return numbered
