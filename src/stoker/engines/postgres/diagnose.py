"""Reads what a check-up of a Postgres store judges (`model.health`). Nothing is decided here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stoker.engines.postgres.statements import MIGRATIONS, sql
from stoker.engines.sql import damage
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.model.health.facts import MOST_COUNTED, Counted, Facts, Pin, PostgresFacts, Sequence, Slot, Table

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_SERVER = sql("describe_server")
_PINS = sql("describe_pins")
_TABLES = sql("diagnose_tables")
_INDEXES = sql("diagnose_indexes")
_SLOTS = sql("diagnose_slots")
_SEQUENCES = sql("diagnose_sequences")
_CONNECTIONS = sql("diagnose_connections")
_COUNTS = sql("diagnose_counts")
_KEYS = sql("diagnose_keys")
_PLACELESS, _BODILESS, _GROUPS = sql("diagnose_placeless"), sql("diagnose_bodiless"), sql("diagnose_groups")
_QUEUES, _BUDGETS = sql("queues"), sql("budgets")

_MADE = re.compile(r"\b(CREATE(?: UNIQUE)?|DROP) INDEX (?:IF (?:NOT )?EXISTS )?(?:stoker\.)?(\w+)", re.IGNORECASE)


def expected_indexes() -> frozenset[str]:
    """The indexes that the migrations leave behind, without those of keys."""
    found: set[str] = set()
    for migration in MIGRATIONS:
        for verb, name in _MADE.findall(migration.text):
            (found.discard if verb.upper() == "DROP" else found.add)(name)
    return frozenset(found)


async def diagnose(store: Store) -> Facts:
    """The facts about an open engine's store. Settings are read in a transaction like those that store jobs."""
    postgres = await store.write(lambda _: _server(store), lane="admin", notify=False)
    counts, keys, damaged = await store.read(lambda _: _counts())
    async with store.lend("admin") as connection:
        transport = connection.transport()
    counters = tuple(Counted(queue or "all queues", what, counter, found) for what, queue, counter, found in counts)
    return Facts(idle_keys=keys, counters=counters, damaged=damaged, postgres=postgres, transport=transport)


def _server(store: Store) -> Exchange[PostgresFacts]:
    server: dict[str, str] = dict((yield _SERVER, ()))
    pins = [Pin(*row) for row in (yield _PINS, ())]
    tables = [Table(f"{store.options.schema}.{name}", *rest) for name, *rest in (yield _TABLES, ())]
    indexes: dict[str, bool] = dict((yield _INDEXES, ()))
    slots = [Slot(*row) for row in (yield _SLOTS, ())]
    sequences = [Sequence(*row) for row in (yield _SEQUENCES, (MOST_COUNTED,))]
    [(connections, most)] = yield _CONNECTIONS, ()
    place = store.options.schema
    return PostgresFacts(
        version=int(server["server_version_num"]),
        fsync=server["fsync"] == "on",
        full_page_writes=server["full_page_writes"] == "on",
        synchronous_commit=server["synchronous_commit"],
        standby=server["recovery"] == "standby",
        sees_all_sessions=server["sees_all_sessions"] == "yes",
        autovacuum=server["autovacuum"] == "on",
        pooled=store.pooled,
        listens=not store.pooled or store.options.direct is not None,
        connections=connections,
        most_connections=most,
        pins=tuple(pins),
        slots=tuple(slots),
        tables=tuple(tables),
        sequences=tuple(sequences),
        missing_indexes=tuple(f"{place}.{name}" for name in sorted(expected_indexes() - indexes.keys())),
        invalid_indexes=tuple(f"{place}.{name}" for name, valid in sorted(indexes.items()) if not valid),
    )


def _counts() -> Exchange[tuple[list[Row], int, tuple[str, ...]]]:
    rows: list[Row] = yield _COUNTS, (MOST_COUNTED + 1,)
    [(keys,)] = yield _KEYS, (MOST_COUNTED,)
    placeless = [job for (job,) in (yield _PLACELESS, (MOST_COUNTED,))]
    bodiless = [job for (job,) in (yield _BODILESS, (MOST_COUNTED,))]
    groups: list[Row] = yield _GROUPS, (damage.MOST_GROUPS,)
    queues = [row for row in (yield _QUEUES, ()) if row[1] is not None]
    budgets: list[Row] = yield _BUDGETS, ()
    return rows, keys, damage.damaged(placeless, bodiless, groups, queues, budgets)
