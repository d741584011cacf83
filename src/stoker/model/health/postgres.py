"""What the facts about a Postgres server mean."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.model.health.check import Check, note, ok, or_ok, warning, wrong
from stoker.model.health.facts import PostgresFacts
from stoker.model.humanize import count, size

OLDEST = 140_000
HELD_FOR = 60.0
"""Seconds after which a held snapshot is worth a warning; after sixty times as many it is wrong."""

HELD_OVER = 1_000_000
"""Transactions after which one is, where the server does not record since when it is held."""

RETAINED = 1 << 30
"""Bytes of the log that a replication slot may keep."""

BLOATED = 64 << 20
"""A table below this size is no matter, however many of its rows are dead."""

REMEDIES = {
    "session": "End its transaction, or SELECT pg_terminate_backend(pid)",
    "standby": "Look at long queries there, or turn hot_standby_feedback off",
    "slot": "Start its consumer, or SELECT pg_drop_replication_slot(name)",
    "prepared transaction": "COMMIT PREPARED or ROLLBACK PREPARED it",
}


def judge(facts: PostgresFacts) -> Iterator[Check]:
    """Every check of a Postgres store."""
    yield _version(facts.version)
    yield from _durability(facts)
    yield _role(facts)
    yield from or_ok(list(_snapshots(facts)), "held snapshots", _oldest(facts))
    yield from or_ok(list(_slots(facts)), "replication slots", count(len(facts.slots), "slot"))
    yield from _vacuum(facts)
    yield from or_ok(list(_bloat(facts)), "bloat", count(len(facts.tables), "table"))
    yield from _indexes(facts)
    yield from or_ok(list(_sequences(facts)), "sequences", count(len(facts.sequences), "sequence"))
    yield _pooler(facts)
    yield _connections(facts)


def _version(number: int) -> Check:
    read = f"Postgres {number // 10_000}.{number % 10_000}"
    if number < OLDEST:
        return wrong("version", read, "Stoker needs Postgres 14 or newer.", "Upgrade the server")
    if number < 140_004:
        meaning = "Indexes that are built concurrently can miss rows on this version; unique keys rest on indexes."
        return warning("version", read, meaning, "Upgrade to 14.4 or newer, then REINDEX DATABASE")
    return ok("version", read)


def _durability(facts: PostgresFacts) -> Iterator[Check]:
    on = {True: "on", False: "off"}
    read = (
        f"fsync {on[facts.fsync]}, full_page_writes {on[facts.full_page_writes]}, "
        f"synchronous_commit {facts.synchronous_commit}"
    )
    found: list[Check] = []
    if not facts.fsync:
        meaning = "Power loss can destroy the whole database."
        found.append(wrong("durability", read, meaning, "Set fsync = on in postgresql.conf and restart the server"))
    if not facts.full_page_writes:
        meaning = "Power loss can tear pages, unless the file system writes whole ones."
        found.append(warning("durability", read, meaning, "Set full_page_writes = on and reload the server"))
    if facts.synchronous_commit == "off":
        meaning = "A crash of the server loses the last moment of what was acknowledged."
        remedy = "ALTER ROLE … SET synchronous_commit = on, for the role of the app"
        found.append(wrong("durability", read, meaning, remedy))
    yield from or_ok(found, "durability", read)


def _role(facts: PostgresFacts) -> Check:
    if facts.standby:
        meaning = "It takes no writes, so nothing is stored and no job is settled."
        return wrong("role of the server", "this server is a standby", meaning, "Give the URL of the primary")
    return ok("role of the server", "primary")


def _snapshots(facts: PostgresFacts) -> Iterator[Check]:
    if not facts.sees_all_sessions:
        read = "this role cannot see what other roles' sessions do"
        meaning = "An old snapshot may be held unnoticed."
        yield note("held snapshots", read, meaning, "GRANT pg_read_all_stats TO the role of the app")
    for pin in facts.pins:
        age = pin.seconds
        if (age or 0) < HELD_FOR and not (age is None and pin.behind >= HELD_OVER):
            continue
        meaning = "The server cannot remove what is deleted, tables grow, and everything on it becomes slower."
        grave = (age or 0) >= 60 * HELD_FOR or pin.behind >= 10 * HELD_OVER
        complain = wrong if grave else warning
        yield complain("held snapshots", pin.text(), meaning, REMEDIES[pin.what])


def _oldest(facts: PostgresFacts) -> str:
    return facts.pins[0].text() if facts.pins else "none older than a second"


def _slots(facts: PostgresFacts) -> Iterator[Check]:
    for slot in facts.slots:
        if not slot.active or slot.retained > RETAINED:
            read = f"slot {slot.name} is {'active' if slot.active else 'inactive'} and keeps {size(slot.retained)}"
            meaning = "The server keeps its log until the slot is read; the disk fills up."
            complain = wrong if slot.retained > 10 * RETAINED else warning
            yield complain("replication slots", read, meaning, REMEDIES["slot"])


def _vacuum(facts: PostgresFacts) -> Iterator[Check]:
    found: list[Check] = []
    if not facts.autovacuum:
        meaning = "The server does not remove deleted rows; tables grow and claims become slower."
        found.append(wrong("autovacuum", "autovacuum is off", meaning, "Set autovacuum = on and reload the server"))
    for table in facts.tables:
        if not table.autovacuum:
            meaning = "Deleted rows of this table stay; it grows and claims become slower."
            remedy = f"ALTER TABLE {table.name} RESET (autovacuum_enabled)"
            found.append(wrong("autovacuum", f"autovacuum is off for {table.name}", meaning, remedy))
        elif table.dead > 10 * table.threshold:
            read = f"{table.name} has {table.dead:,} dead rows; {table.threshold:,} call for a vacuum"
            meaning = "Autovacuum does not keep up, or a held snapshot keeps it from removing anything."
            found.append(warning("autovacuum", read, meaning, f"End held snapshots, then VACUUM {table.name}"))
    yield from or_ok(found, "autovacuum", f"on, for {count(len(facts.tables), 'table')}")


def _bloat(facts: PostgresFacts) -> Iterator[Check]:
    for table in facts.tables:
        rows = table.live + table.dead
        if table.bytes > BLOATED and rows and table.dead > table.live:
            read = f"{table.name} takes {size(table.bytes)}; {table.dead * 100 // rows} % of its rows are dead"
            meaning = "Most of what is read is thrown away."
            yield warning("bloat", read, meaning, f"VACUUM {table.name}; if it stays large, VACUUM FULL {table.name}")


def _indexes(facts: PostgresFacts) -> Iterator[Check]:
    found: list[Check] = []
    for name in facts.missing_indexes:
        meaning = "Claims and lists read whole tables without it."
        remedy = "Restore it from a dump of the schema, or create it as `stoker migrate --sql` shows for a new store"
        found.append(wrong("indexes", f"index {name} is missing", meaning, remedy))
    for name in facts.invalid_indexes:
        meaning = "The server does not use an index whose building failed."
        found.append(wrong("indexes", f"index {name} is invalid", meaning, f"REINDEX INDEX {name}"))
    yield from or_ok(found, "indexes", "all there and valid")


def _sequences(facts: PostgresFacts) -> Iterator[Check]:
    """A logical switch-over brings rows to another server, but not the numbers that sequences have reached there."""
    for sequence in facts.sequences:
        if sequence.last < sequence.largest:
            read = f"{sequence.name} is at {sequence.last:,}; {sequence.largest:,} is stored already"
            meaning = "Numbers are given twice: calls fail, or new messages come before older ones."
            remedy = f"SELECT setval('{sequence.name}', {sequence.largest}) before anything is written"
            yield wrong("sequences", read, meaning, remedy)


def _pooler(facts: PostgresFacts) -> Check:
    if not facts.pooled:
        return ok("pooler", "connections are the server's own")
    if not facts.listens:
        meaning = "Notifications do not pass it, so idle workers learn of new jobs by polling."
        remedy = "Give an address without the pooler: Stoker(url, direct=…)"
        return warning("pooler", "a pooler in transaction mode", meaning, remedy)
    return ok("pooler", "a pooler in transaction mode; notifications come over a connection of their own")


def _connections(facts: PostgresFacts) -> Check:
    free = facts.most_connections - facts.connections
    read = f"{facts.connections} of {facts.most_connections} connections are in use"
    remedy = "Use fewer processes, a pooler, or raise max_connections"
    if free <= 2:
        return wrong("connections", read, "New connections are refused; workers cannot start or come back.", remedy)
    if facts.connections * 5 > facts.most_connections * 4:
        return warning("connections", read, "Few are left for workers that start or reconnect.", remedy)
    return ok("connections", read)
