"""What the facts about a SQLite file mean."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.model.health.check import Check, note, ok, warning, wrong
from stoker.model.health.facts import SqliteFacts
from stoker.model.humanize import size

LONG_LOG = 64 << 20
LARGEST_LOG = 256 << 20
"""A write-ahead log that long is not reset any more: a connection keeps an old transaction open."""

LITTLE_SPACE = 256 << 20
NO_SPACE = 32 << 20
"""Free bytes of the disk below which writes will fail soon, and may fail now."""


def judge(facts: SqliteFacts) -> Iterator[Check]:
    """Every check of a SQLite store."""
    yield _version(facts)
    yield _durability(facts)
    yield _space(facts)
    yield _rights(facts)
    yield _log(facts)


def _version(facts: SqliteFacts) -> Check:
    read = f"SQLite {facts.version}"
    if facts.affected:
        meaning = (
            "What Stoker writes through its own connections is safe. A job enqueued with tx= is as safe as the "
            "program's own commits, and those this version can lose in a rare race (WAL-reset bug)."
        )
        remedy = "Use SQLite 3.51.3, 3.50.7 or 3.44.6, or open the store with ?journal=delete"
        return warning("version", read, meaning, remedy)
    return ok("version", read)


def _durability(facts: SqliteFacts) -> Check:
    read = f"synchronous is {facts.synchronous}, journal is {facts.journal}, durability={facts.asked!r} was asked for"
    wanted = "full" if facts.asked == "power" else "normal"
    if facts.synchronous not in (wanted, "full", "extra"):
        meaning = "An acknowledged job can be lost by a power loss, although the app asked for more."
        return wrong("durability", read, meaning, "Open the store by Stoker's own settings: remove the PRAGMA")
    return ok("durability", read)


def _space(facts: SqliteFacts) -> Check:
    if facts.free_bytes is None:
        return note("disk space", "unknown", "The file system does not say how much is free.")
    read = f"{size(facts.free_bytes)} free; the store takes {size(facts.bytes)}"
    remedy = "Free space on this disk, or delete finished jobs: stoker jobs delete is:done"
    if facts.free_bytes < NO_SPACE:
        return wrong("disk space", read, "Writes fail: jobs are neither stored nor settled.", remedy)
    if facts.free_bytes < max(LITTLE_SPACE, facts.log_bytes):
        return warning("disk space", read, "Writes will fail soon.", remedy)
    return ok("disk space", read)


def _rights(facts: SqliteFacts) -> Check:
    read = f"mode {facts.mode:04o}"
    if facts.owner is not None:
        meaning = "Its owner can read and change every job."
        remedy = "Run Stoker as that user, or give the file to the user who runs it: chown"
        return note("file rights", f"{read}, owned by {facts.owner}", meaning, remedy)
    if facts.mode & 0o044:
        meaning = "Other users of this host can read payloads and errors."
        return note("file rights", read, meaning, "chmod 600 the file, if they should not")
    return ok("file rights", read)


def _log(facts: SqliteFacts) -> Check:
    read = f"the write-ahead log has {size(facts.log_bytes)}"
    meaning = "A connection keeps an old transaction open, so the log cannot be reset, and every read gets slower."
    remedy = "End that transaction, or restart the program that holds it"
    if facts.log_bytes > LARGEST_LOG:
        return wrong("write-ahead log", read, meaning, remedy)
    if facts.log_bytes > LONG_LOG:
        return warning("write-ahead log", read, meaning, remedy)
    return ok("write-ahead log", read)
