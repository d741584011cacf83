"""Audit a database file with plain SQL: integrity, one table per job, counters equal to a recount."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

PLACES = """
SELECT b.id, count(p.seq)
FROM stoker_body AS b
LEFT JOIN (
    SELECT seq FROM stoker_ready UNION ALL SELECT seq FROM stoker_running UNION ALL SELECT seq FROM stoker_done
) AS p ON p.seq = b.seq
GROUP BY b.seq HAVING count(p.seq) != 1
"""
STATUSES = """
SELECT b.qid, b.kind, r.status, count(*)
FROM stoker_ready AS r JOIN stoker_body AS b ON b.seq = r.seq GROUP BY 1, 2, 3
UNION ALL
SELECT b.qid, b.kind, 1, count(*)
FROM stoker_running AS n JOIN stoker_body AS b ON b.seq = n.seq GROUP BY 1, 2
UNION ALL
SELECT b.qid, b.kind, d.status, count(*)
FROM stoker_done AS d JOIN stoker_body AS b ON b.seq = d.seq GROUP BY 1, 2, 3
"""
STRAYS = {
    "a place without a job": """
        SELECT seq FROM (
            SELECT seq FROM stoker_ready UNION ALL SELECT seq FROM stoker_running UNION ALL SELECT seq FROM stoker_done
        ) WHERE seq NOT IN (SELECT seq FROM stoker_body)
    """,
    "a past without a job": "SELECT seq FROM stoker_past WHERE seq NOT IN (SELECT seq FROM stoker_body)",
    "an error without a job": "SELECT seq FROM stoker_errors WHERE seq NOT IN (SELECT seq FROM stoker_body)",
    "a key of a job that is not active": """
        SELECT slot FROM stoker_dedupe
        WHERE seq NOT IN (SELECT seq FROM stoker_ready UNION ALL SELECT seq FROM stoker_running)
    """,
    "a line that claims would not find": """
        SELECT r.seq FROM stoker_ready AS r
        JOIN stoker_body AS b ON b.seq = r.seq
        LEFT JOIN stoker_past AS p ON p.seq = r.seq
        WHERE r.qid != b.qid OR r.priority != b.priority OR r.id != b.id OR r.due != coalesce(p.due, b.due)
            OR r.past != (p.seq IS NOT NULL)
    """,
    "a number that was given out before": """
        SELECT seq FROM stoker_body WHERE seq > (SELECT seq FROM stoker_clock)
    """,
    "a claim of an unknown worker": "SELECT seq FROM stoker_running WHERE wid NOT IN (SELECT wid FROM stoker_workers)",
}


def audit(path: str | Path) -> list[str]:
    """Yield complaints about a database."""
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        found = [row[0] for row in connection.execute("PRAGMA integrity_check") if row[0] != "ok"]
        return found or list(disagreements(connection))


def disagreements(connection: sqlite3.Connection) -> Iterator[str]:
    for job, n in connection.execute(PLACES):
        yield f"job {job.hex()} is in {n} tables"
    for complaint, query in STRAYS.items():
        for (what,) in connection.execute(query).fetchall():
            yield f"{complaint}: {what}"
    recounted = Counter({(qid, kind, status): n for qid, kind, status, n in connection.execute(STATUSES)})
    counted = Counter(
        {
            (qid, kind, what): n
            for qid, kind, what, n in connection.execute("SELECT * FROM stoker_counts WHERE what < 8 AND n != 0")
        }
    )
    for key in sorted(counted.keys() | recounted.keys()):
        if counted[key] != recounted[key]:
            yield f"counter {key} is {counted[key]}, a recount is {recounted[key]}"


def dump(path: str | Path, *, but: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Return the rows of every table, to compare; `but` leaves tables out."""
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        names = [
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
            if name not in but
        ]
        return {name: sorted(map(repr, connection.execute(f"SELECT * FROM {name}"))) for name in names}


def stored_ids(path: str | Path) -> set[bytes]:
    with closing(sqlite3.connect(path, timeout=30)) as connection:
        return {job for (job,) in connection.execute("SELECT id FROM stoker_body")}
