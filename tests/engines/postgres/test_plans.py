"""How Postgres finds its rows: no statement reads a table that grows with the jobs from end to end.

Connections for jobs plan once and keep the plan, perhaps from a time when every table was empty, so theirs are looked
at without any values. Questions of people are planned for what they ask, so theirs are looked at with values over real
rows.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

from stoker.engines.postgres import PostgresEngine, claim_cursor, find
from stoker.engines.postgres.columns import listed
from stoker.engines.postgres.connection import FOR_ADMIN, FOR_JOBS
from stoker.engines.postgres.statements import STATEMENTS, merged, placed
from stoker.model.query import Query

pytestmark = pytest.mark.engine("postgres")

LARGE = {"job", "ready", "done", "past", "failure", "dedupe", "event", "removed", "point"}
"""Tables that grow with the jobs. Leases are as many as workers have batches, the rest is small by nature."""

MAY_SCAN = {
    "expire_nearest": "only where the number of finished jobs is bounded; it reads them all, and says so",
    "expire_sample": "along an index, to its limit",
    "diagnose_counts": "a check-up by a person, to its limit",
    "diagnose_keys": "a check-up by a person, along an index, to its limit",
    "diagnose_sequences": "a check-up by a person, to its limit",
    "diagnose_placeless": "a check-up by a person, to its limit",
    "diagnose_bodiless": "a check-up by a person, to its limit",
    "release_all_keys": "only for a key that cannot be read",
}

ADMIN_ONLY = {
    "find_by_end_done": "its summary per range of pages needs a bitmap scan, which connections for jobs never plan"
}

CONDITIONS = {"Index Cond", "Recheck Cond", "TID Cond"}

ORDERS = ("newest", "oldest")
SEARCHES_LEASES = {
    *("get", "lock_leases", "census_running", "find_active_newest", "find_active_oldest"),
    *("owners", "reap_oldest", "look", "diagnose_counts", "subqueue_holders", "subqueue_full"),
    *("placeless", "lease_bodiless", "counts_adrift", "diagnose_placeless", "diagnose_bodiless"),
    *(f"find_{walk}_{order}" for walk in ("all", "key", "group", "done", "listed", "retrying") for order in ORDERS),
}
"""A job does not know its lease, nor a lapsed worker his: these look into each of the few there are. Pages do so only
for a query about attempts, whose number for a running job is with its lease."""

FIRST, LAST = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
QUEUES = [f"q{n}" for n in range(10)]
NOW = 1_800_000_000_000_000
RANGES = (QUEUES * 2, listed([0, 1] * 10), listed([0, 32_767] * 10), listed([NOW - 1_000_000] * 20))
"""One priority of each queue, and the others."""

ENDS = tuple(zip(ORDERS, (LAST, FIRST), strict=True))
SIEVE = find.sieve(Query(queues=frozenset(QUEUES), text="x", payload="y", error="z", meta=("a", "b")))
ASKED: dict[str, tuple[Any, ...]] = {
    **{f"find_all_{order}": (at, 100, False, False, *SIEVE) for order, at in ENDS},
    **{f"find_key_{order}": (at, 100, True, False, "k7", *SIEVE) for order, at in ENDS},
    **{f"find_group_{order}": (at, 100, False, False, "AAAAAAAAAAAAAAAAAAAA07==", *SIEVE) for order, at in ENDS},
    **{f"find_done_{order}": (at, 2_000, True, False, *SIEVE) for order, at in ENDS},
    **{f"find_listed_{order}": (at, 26, False, False, QUEUES, [4, 5], True, *SIEVE) for order, at in ENDS},
    **{f"find_retrying_{order}": (at, 26, False, True, *SIEVE) for order, at in ENDS},
    **{f"find_active_{order}": (at, 26, False, False, True, True, *SIEVE) for order, at in ENDS},
    "find_by_end": (NOW, LAST, 26, [4, 5]),
    "find_by_end_done": (NOW, LAST, 26, NOW - 1_000),
    "find_by_due": (NOW - 1_000_000, FIRST, 26, QUEUES),
    "census_lines": (*RANGES, [None, 100] * 10, NOW, 10_000),
    "census_running": (0,),
    "census_sides": (QUEUES, NOW, 10_000),
    "ahead": (QUEUES, NOW, 2_000_000),
    "expire_sweep": (FIRST, LAST, 4_000, NOW, 1_000),
    "expire_sample": (500,),
    "expire_events": (NOW, 1_000),
    "expire_removed": (NOW, 1_000),
    "groups_open": (NOW, LAST, 26),
    "groups_closed": (NOW, LAST, 26),
    "events": (NOW - 1_000_000, -1, NOW, NOW - 1_000_000, 64, None),
    "events_late": (NOW - 1_000,),
    "events_latest": (NOW, -1, NOW - 1_000_000, NOW - 1_000_000, 64, None),
    "points": (NOW - 1_000_000, NOW, ["m"]),
    "points_of_queues": (NOW - 1_000_000, NOW, ["m"], ["q0"]),
}
"""Questions of people and chores, with values such as they have."""

BY_ID = (
    *(
        "lock_ready",
        "lock_done",
        "lock_leases",
        "begin_signal",
        "known",
        "get",
        "ended",
        "group_kept",
        "ready_drop",
        "done_drop",
        "expire_take",
    ),
    *("erase_job", "erase_past", "erase_failure", "events_removed"),
)
"""Statements about jobs named by their ids."""

TOGETHER = (
    ("lease_close", "lease_drop", "rewrite_job", "put_past", "put_ready", "put_done", "put_failure", "release_keys"),
    (
        "ready_drop",
        "done_drop",
        "erase_job",
        "erase_past",
        "erase_failure",
        "pass_keys",
        "remove_events",
    ),
    ("lease_ask", "trim", "trouble", "delta", "group_change", "subqueue_append", "keep_keys"),
    ("put_past", "move_ready", "step_put"),
)
"""What a unit of work sends as one statement."""

ROWS = """
with x as (
    select i, lpad(to_hex(i), 32, '0')::uuid as id, 'q' || i % 10 as queue, {now} - {n} + i as at
    from generate_series(1, {n}) as i
), j as (
    insert into job (id, created, due, budget, priority, queue, kind, payload, ukey, utraits, options)
    select
        id, at, at, 5, 0, queue, 'k' || i % 30, '{{}}', case when i % 9 = 0 then 'k' || i end, 0,
        case when i % 7 = 0 then '{{"group":"AAAAAAAAAAAAAAAAAAAA' || lpad(i % 70 || '', 2, '0') || '=="}}' end
    from x
), d as (
    insert into done (id, finished, expires, token, attempts, status, settled, cancel, queue)
    select id, at, at + i, 1, 1, case when i % 50 = 0 then 4 else 3 end, 3, false, queue from x where i % 2 = 0
), f as (
    insert into failure (id, at, attempt, error) select id, at, 1, 'x' from x where i % 50 = 0
), p as (
    insert into past (id, due) select id, at from x where i % 20 = 0
), u as (
    insert into dedupe (slot, id, firm) select 'k/' || i, id, false from x where i % 9 = 0 and i % 2 = 1
), e as (
    insert into event (first, last, low, high, count, body) select at, at + 1, id, id, 1, 'x' from x
), r as (
    insert into removed (job, block, at) select id, i, at from x
), m as (
    insert into point select at, 1, 0, 0, 0, 0, 0, queue, 'm' from x
), l as (
    insert into lease (id, token, claimed, worker, queue, open, ids)
    select i / 1000, 1, 1, 'w', 'q1', repeat('1', count(*)::int)::varbit, array_agg(id)
    from x where i % 2 = 1 and i % 1000 < 60 group by i / 1000
)
insert into ready (due, token, id, attempts, priority, status, settled, past, queue)
select at, 0, id, 0, i % 3, case when i % 101 = 0 then 2 else 0 end, -1, false, queue
from x where i % 2 = 1 and i % 1000 >= 60
"""


@pytest.fixture(scope="module")
def rows(campaign: bool) -> int:
    return 1_000_000 if campaign else 20_000


@pytest.fixture(scope="module")
def schemas(postgres_url: str, rows: int) -> Iterator[dict[str, str]]:
    """A schema that was never used and one with rows, of which the server knows."""
    names = {"empty": "plans_empty", "full": "plans_full"}
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield from _schemas(connection, postgres_url, names, rows)


def _schemas(connection: psycopg.Connection, url: str, names: dict[str, str], rows: int) -> Iterator[dict[str, str]]:
    import asyncio

    async def make(schema: str) -> None:
        engine = PostgresEngine(url, schema=schema)
        await engine.open()
        await engine.close()

    for name in names.values():
        connection.execute(f"drop schema if exists {name} cascade".encode())
        asyncio.run(make(name))
    connection.execute(f"set search_path = {names['full']}".encode())
    connection.execute(ROWS.format(n=rows, now=NOW).encode())
    connection.execute("analyze job, ready, done, past, failure, dedupe, event, removed, point, lease")
    yield names
    for name in names.values():
        connection.execute(f"drop schema {name} cascade".encode())


def scans(plan: Any) -> Iterator[str]:
    """The tables a plan reads from end to end."""
    if isinstance(plan, dict):
        # An index without a condition is the table in another order.
        if "Scan" in plan.get("Node Type", "") and "Relation Name" in plan and not CONDITIONS & plan.keys():
            yield plan["Relation Name"]
        for part in plan.values():
            yield from scans(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from scans(part)


def planned() -> list[str]:
    """Statements that have a plan."""
    return [
        name for name in STATEMENTS if re.match("select|insert|update|delete|with", STATEMENTS[name], re.IGNORECASE)
    ]


def excused(name: str) -> set[str]:
    return (LARGE if name in MAY_SCAN else set()) | ({"lease"} if name in SEARCHES_LEASES else set())


def read_whole(name: str, plan: Any) -> set[str]:
    return (set(scans(plan)) & (LARGE | {"lease"})) - excused(name)


@pytest.mark.spec("PGOP-09")
@pytest.mark.parametrize("state", ["empty", "full"])
async def test_no_door_reads_a_large_table_whole(postgres_url: str, schemas: dict[str, str], state: str) -> None:
    """Each statement, planned the way connections for jobs plan theirs: without values, with or without rows."""
    connection = await asyncpg.connect(postgres_url, server_settings=FOR_JOBS)
    guilty = {}
    try:
        asked = {name: placed(STATEMENTS[name], schemas[state]) for name in planned()}
        asked |= {" + ".join(names): merged(schemas[state], names) for names in TOGETHER}
        for name, text in asked.items():
            places = max((int(n) for n in re.findall(r"\$(\d+)", text)), default=0)
            await connection.execute(f"prepare asked as {text}")
            values = f"({', '.join(['null'] * places)})" if places else ""
            plan = json.loads(await connection.fetchval(f"explain (format json) execute asked{values}"))
            await connection.execute("deallocate asked")
            if name not in ADMIN_ONLY and (found := read_whole(name, plan)):
                guilty[name] = found
    finally:
        await connection.close()
    assert guilty == {}


@pytest.mark.spec("PGOP-09")
async def test_a_claim_walks_along_its_index_when_most_entries_are_dead(
    postgres_url: str, schemas: dict[str, str]
) -> None:
    """A server that knows of few living jobs among many dead would rather read and sort them all."""
    schema = schemas["empty"]
    async with contextlib.AsyncExitStack() as stack:
        connection = await asyncpg.connect(postgres_url, server_settings=FOR_JOBS)
        stack.push_async_callback(connection.close)
        holder = await asyncpg.connect(postgres_url)
        stack.push_async_callback(holder.close)
        stack.push_async_callback(connection.execute, f"truncate {schema}.ready")
        await connection.execute(
            f"insert into {schema}.ready (queue, priority, due, id, status, attempts, token, settled, past)"
            " select 'q', 0, n, gen_random_uuid(), 0, 0, 0, -1, false from generate_series(1, 30000) n"
        )
        await holder.execute("begin isolation level repeatable read")
        await holder.execute("select 1")
        await connection.execute(f"delete from {schema}.ready where due > 20")
        await connection.execute(f"vacuum (analyze) {schema}.ready")
        text = placed(STATEMENTS["claim"], schema)
        where = [listed([n]) for n in (claim_cursor.LOWEST, claim_cursor.HIGHEST, claim_cursor.START, claim_cursor.END)]
        values = (None, "w", ["q"], listed([1]), 1, *([one] for one in where), [])
        plan = await connection.fetchval(f"explain (format json) {text}", *values)
        assert "ready_pkey" in plan
        assert "Bitmap" not in plan


@pytest.mark.spec("PGOP-09")
async def test_no_question_reads_a_large_table_whole(postgres_url: str, schemas: dict[str, str], rows: int) -> None:
    """Pages, census and retention over many rows, planned for what they ask."""
    connection = await asyncpg.connect(postgres_url, server_settings=FOR_ADMIN)
    guilty = {}
    try:
        ids = [f"{n:032x}" for n in range(1, rows, rows // 20)]
        asked = {**ASKED, **dict.fromkeys(BY_ID, (ids,)), "load": (ids, [1] * len(ids), [0] * len(ids), True)}
        for name, values in asked.items():
            text = placed(STATEMENTS[name], schemas["full"])
            plan = json.loads(await connection.fetchval(f"explain (format json) {text}", *values))
            if found := read_whole(name, plan):
                guilty[name] = found
    finally:
        await connection.close()
    assert guilty == {}


@pytest.mark.spec("PGOP-09")
def test_excuses_are_for_statements_that_exist() -> None:
    assert {*MAY_SCAN, *ADMIN_ONLY, *SEARCHES_LEASES, *ASKED, *BY_ID} <= set(STATEMENTS)


@pytest.mark.spec("PGOP-18")
async def test_a_claim_over_many_queues_looks_at_each_place_once(postgres_url: str, schemas: dict[str, str]) -> None:
    """Twice the queues are twice the work: no queue searches for its places among those of the others."""
    connection = await asyncpg.connect(postgres_url, server_settings=FOR_JOBS)
    text = placed(STATEMENTS["claim"], schemas["empty"])
    where = [
        listed([number]) for number in (claim_cursor.LOWEST, claim_cursor.HIGHEST, claim_cursor.START, claim_cursor.END)
    ]
    looked = []
    try:
        await connection.execute(f"insert into {schemas['empty']}.worker values ('w', {claim_cursor.END}, 1)")
        for queues in (50, 100):
            names = [f"q{n}" for n in range(queues)]
            values = (None, "w", names, listed([1] * queues), queues, *([one] * queues for one in where), [])
            plan = json.loads(await connection.fetchval(f"explain (analyze, format json) {text}", *values))
            looked.append(sum(touched(plan)))
        assert looked[0] >= 50
        assert looked[1] == 2 * looked[0]
    finally:
        await connection.execute(f"delete from {schemas['empty']}.worker")
        await connection.close()


def touched(plan: Any) -> Iterator[float]:
    """How many rows the lists of a call gave, whether they were wanted or not."""
    if isinstance(plan, dict):
        if plan.get("Node Type") == "Function Scan":
            yield (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
        for part in plan.values():
            yield from touched(part)
    elif isinstance(plan, list):
        for part in plan:
            yield from touched(part)
