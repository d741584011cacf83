"""Query plans: each statement of a job or a page uses the index it was written for."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stoker.engines.sqlite import SqliteEngine, columns, find
from stoker.engines.sqlite.statements import STATEMENTS
from stoker.model.query import Query

SIEVED = Query(
    queues=frozenset("q"),
    kinds=frozenset("k"),
    tenant="t",
    group=b"g" * 16,
    meta=("a", "b"),
    since=1,
    until=2,
    text="a",
    payload="b",
    error="c",
)
ALL = {
    **STATEMENTS,
    "get": columns.SELECT,
    "rewrite_body": columns.REWRITE_BODY,
    "insert_ready": columns.INSERT_READY,
    "claim_pick": columns.PICK,
    **{f"find_{name}": text.format(sieve="1") for name, text in (find.WALKS | find.BY_TIME).items()},
    **{
        f"sieve_{name}": text.format(sieve=find.sieve(SIEVED, [1, 2], 9)[0])
        for name, text in (find.WALKS | find.BY_TIME).items()
    },
}
"""Those of files, and those made from the columns."""

pytestmark = pytest.mark.engine("sqlite")

READY = "SEARCH stoker_ready USING PRIMARY KEY"
BODY = "USING INTEGER PRIMARY KEY (rowid=?)"
MESSAGES = "SEARCH m USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
PLANS = {
    "insert_ready": ["SEARCH stoker_body USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"],
    "claim_priority": [f"{READY} (qid=? AND priority>?)"],
    "claim_pick": [f"{READY} (qid=? AND priority=? AND due<?)", f"SEARCH b {BODY}"],
    # A range over both columns: with a redundant condition on `due` alone SQLite would walk all that is due.
    "claim_take": [f"{READY} (qid=? AND priority=? AND (due,id)<(?,?))"],
    "claim_drop": [f"{READY} (qid=? AND priority=? AND (due,id)<(?,?))"],
    "claim_past": [f"SEARCH p {BODY}", "SEARCH e USING INDEX stoker_errors_job (seq=?)"],
    "settle_fence": ["SEARCH stoker_running USING PRIMARY KEY (wid=? AND seq=?)"],
    "running_drop": ["SEARCH stoker_running USING PRIMARY KEY (wid=? AND seq=?)"],
    "ready_drop": [f"{READY} (qid=? AND priority=? AND due=? AND id=?)"],
    "done_drop": ["SEARCH stoker_done USING PRIMARY KEY (id=?)"],
    "renew": ["SEARCH stoker_workers USING INDEX sqlite_autoindex_stoker_workers_1 (name=?)"],
    "renew_held": ["SEARCH n USING PRIMARY KEY (wid=?)", f"SEARCH b {BODY}"],
    "get": [
        "SEARCH b USING INDEX sqlite_autoindex_stoker_body_1 (id=?)",
        f"SEARCH p {BODY}",
        "SEARCH r USING PRIMARY KEY (qid=? AND priority=? AND due=? AND id=?)",
        "SEARCH d USING PRIMARY KEY (id=?)",
        "SEARCH e USING INDEX stoker_errors_job (seq=?)",
    ],
    "rewrite_body": ["SEARCH stoker_body USING INTEGER PRIMARY KEY (rowid=?)"],
    "get_running": ["SCAN w USING INDEX stoker_workers_living", "SEARCH n USING PRIMARY KEY (wid=? AND seq=?)"],
    "find_all_newest": ["USING COVERING INDEX sqlite_autoindex_stoker_body_1 (id<?)"],
    "find_all_oldest": ["USING COVERING INDEX sqlite_autoindex_stoker_body_1 (id>?)"],
    "find_key_newest": ["USING COVERING INDEX stoker_body_key (ukey=? AND id<?)"],
    "find_key_oldest": ["USING COVERING INDEX stoker_body_key (ukey=? AND id>?)"],
    "find_group_newest": ["USING INDEX stoker_body_group (<expr>=? AND id<?)"],
    "find_group_oldest": ["USING INDEX stoker_body_group (<expr>=? AND id>?)"],
    "find_done_newest": ["SEARCH x USING PRIMARY KEY (id<?)"],
    "find_done_oldest": ["SEARCH x USING PRIMARY KEY (id>?)"],
    "find_listed_newest": ["SEARCH x USING COVERING INDEX stoker_done_listed (qid=? AND status=? AND id<?)"],
    "find_listed_oldest": ["SEARCH x USING COVERING INDEX stoker_done_listed (qid=? AND status=? AND id>?)"],
    "find_unsuccessful_newest": ["SEARCH x USING COVERING INDEX stoker_done_newest (status=? AND id<?)"],
    "find_unsuccessful_oldest": ["SEARCH x USING COVERING INDEX stoker_done_newest (status=? AND id>?)"],
    "find_retrying_newest": ["SEARCH x USING INDEX stoker_ready_retrying (id<?)"],
    "find_retrying_oldest": ["SEARCH x USING INDEX stoker_ready_retrying (id>?)"],
    **{
        f"sieve_{name}": [f"SEARCH b {BODY}", "SEARCH e USING COVERING INDEX stoker_errors_job (seq=?)"]
        for name in find.WALKS | find.BY_TIME
    },
    "find_waiting": [f"{READY} (qid=?)"],
    "census_oldest": [f"{READY} (qid=? AND priority=? AND due<?)"],
    "census_due": [f"{READY} (qid=? AND priority=? AND due<?)"],
    "census_scheduled": [f"{READY} (qid=? AND priority=? AND due>?)"],
    "census_waiting": ["SCAN r USING COVERING INDEX stoker_ready_waiting"],
    "queue_due": [f"{READY} (qid=? AND priority=? AND due<?)"],
    "expire_jobs": ["SEARCH stoker_done USING INDEX stoker_done_expires (expires<?)"],
    "expire_done": ["SEARCH stoker_done USING INDEX stoker_done_kept (<expr>=? AND finished<?)"],
    "done_keeps": ["SEARCH stoker_done USING INDEX stoker_done_kept (<expr>>?)"],
    "find_kept": ["SEARCH x USING INDEX stoker_done_kept (<expr>=? AND (finished,id)<(?,?))"],
    "find_ended": ["SEARCH x USING COVERING INDEX stoker_done_ended (status=? AND (finished,id)<(?,?))"],
    "find_due": ["SEARCH x USING PRIMARY KEY (qid=? AND priority=? AND (due,id)>(?,?))"],
    "find_retry": ["SEARCH x USING INDEX stoker_ready_due ((due,id)>(?,?))"],
    "events": [
        "SEARCH b USING INDEX stoker_events_first (first>? AND first<?)",
        "SEARCH r USING PRIMARY KEY (job>? AND job<?)",
    ],
    "events_late": [
        "SEARCH b USING INTEGER PRIMARY KEY (rowid>?)",
        "SEARCH f USING COVERING INDEX stoker_events_first (first>?)",
    ],
    "events_latest": ["SEARCH b USING INDEX stoker_events_first (first>? AND first<?)"],
    "events_removed": ["SEARCH r USING PRIMARY KEY (job=?)"],
    "groups_open": ["INDEX stoker_groups_open ((created,id)<(?,?))"],
    "groups_closed": ["INDEX stoker_groups_closed ((created,id)<(?,?))"],
    "group_kept": [
        "SEARCH b USING COVERING INDEX sqlite_autoindex_stoker_body_1 (id=?)",
        "SEARCH d USING PRIMARY KEY (id=?)",
    ],
    "remove_events": ["SEARCH stoker_events"],
    "expire_removed": ["SEARCH r USING INDEX stoker_removed_block (block<?)"],
    "outbox_head": [MESSAGES],
    "outbox_messages": [MESSAGES.replace(" m ", " stoker_messages ")],
    "outbox_ages": [MESSAGES.replace(" m ", " stoker_messages ")],
    "outbox_cursors": [
        MESSAGES,
        "SEARCH c USING PRIMARY KEY (rid=?)",
        "SEARCH l USING INDEX stoker_letters_due (rid=? AND place>? AND place<?)",
        "SEARCH p USING PRIMARY KEY (rid=? AND pid=?)",
    ],
    "outbox_cursor": ["SEARCH c USING PRIMARY KEY (rid=? AND pid=?)"],
    "outbox_states": [MESSAGES],
    "letters": ["SEARCH stoker_letters USING INDEX stoker_letters_failed (rid=? AND failed<?)"],
    "letters_parked": [
        "SEARCH stoker_letters USING INDEX stoker_letters_parked (rid=? AND key=? AND place>? AND place<?)"
    ],
    "letter_due": ["SEARCH stoker_letters USING INDEX stoker_letters_due (rid=? AND place>? AND place<?)"],
    "key_holder": [
        "SEARCH d USING PRIMARY KEY (slot=?)",
        f"SEARCH b {BODY} LEFT-JOIN",
    ],
    "expire_keys": ["SEARCH stoker_dedupe USING COVERING INDEX stoker_dedupe_until (until<?)"],
    "budget_keys": ["SEARCH stoker_budget_keys USING INDEX stoker_budget_keys_full (name=?)"],
    "budget_key": ["SEARCH b USING PRIMARY KEY (name=?)", "SEARCH k USING PRIMARY KEY (name=? AND key=?)"],
    "budget_keys_named": ["SEARCH k USING PRIMARY KEY (name=? AND key=?)"],
    "budget_keys_forget": ["SEARCH k USING COVERING INDEX stoker_budget_keys_full (name=? AND full_at<?)"],
    "expire_received": ["SEARCH stoker_received USING COVERING INDEX stoker_received_until (until<?)"],
    "subqueue": ["SEARCH stoker_subqueues USING INDEX sqlite_autoindex_stoker_subqueues_1 (qid=? AND name=?)"],
    "subqueues_touched": ["SEARCH stoker_subqueues USING INDEX stoker_subqueues_timers (qid=? AND next<?)"],
    "subqueues_by_head": ["SEARCH stoker_subqueues USING INDEX stoker_subqueues_heads (qid=?)"],
    "subqueues_by_turn": ["SEARCH stoker_subqueues USING INDEX stoker_subqueues_turns (qid=?)"],
    "subqueue_first": [f"{READY} (qid=? AND priority=? AND due<?)"],
    "subqueue_take": [f"{READY} (qid=? AND priority=? AND (due,id)<(?,?))"],
    "points": ["SEARCH stoker_points USING PRIMARY KEY (bucket>? AND bucket<?)"],
    "points_of_queues": [
        "SEARCH stoker_points USING INDEX stoker_points_of_queue (queue=? AND metric=? AND bucket>? AND bucket<?)"
    ],
}

SORTED = {"points_of_queues", "events_late", "budget_keys_named"}
"""What is found in the order of an index and shown in another: few rows."""

STREAMS = {"streams", "partitions", "consumers", "cursors", "parked", "json_each"}
SMALL = STREAMS | {
    "clock",
    "queues",
    "workers",
    "counts",
    "troubles",
    "budgets",
    "locks",
    "presences",
    "running",
    "schedules",
}
"""Tables that stay small whatever the number of jobs: a scan of one of these is fine."""

MAY_SCAN = {
    "key_release_all": "only for a corrupt record",
    "subqueue_look": "the priorities of a line, found one by one",
    "lines_lost": "the lines in which jobs wait, found one by one",
    "diagnose_counts": "a check-up by a person, each count to its limit",
    "diagnose_keys": "a check-up by a person, to its limit",
    "diagnose_placeless": "a check-up by a person, to its limit",
    "diagnose_bodiless": "a check-up by a person, to its limit",
    "diagnose_groups": "a check-up by a person, to its limit",
    "census_subqueues": "the states of subqueues and what waits in them",
    "census_waiting": "suspended jobs, by an index that no other job is in",
    "events_removed": "the places of the ids that are given",
    "group_kept": "the places of the ids that are given",
    **dict.fromkeys(
        ("groups_count_kept", "messages_count_kept", "letters_count_kept", "parked_count_kept"),
        "the total of a walk over all of them, once",
    ),
    "jobs_asking": "questions, by an index that no other step is in",
}


@pytest.fixture(params=["none", "some", "many"])
def rows(request: pytest.FixtureRequest, campaign: bool) -> int:
    return {"none": 0, "some": 1_000, "many": 1_000_000 if campaign else 20_000}[request.param]


@pytest.fixture
async def database(tmp_path: Path, rows: int) -> Path:
    path = tmp_path / "jobs.db"
    engine = SqliteEngine(path)
    await engine.open()
    await engine.close()
    with closing(sqlite3.connect(path)) as connection:
        fill(connection, rows)
    return path


def fill(connection: sqlite3.Connection, rows: int) -> None:
    """Fill a store with history, delayed jobs of a better priority, and statistics that could mislead the planner."""
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
    if rows:
        connection.execute(
            f"{numbers} INSERT INTO stoker_body (seq, id, qid, priority, due, kind, payload, budget, created) "
            "SELECT i, CAST(printf('%016d', i) AS BLOB), 1, i % 3, i, 'work', x'7b7d', 5, i FROM n",
            (rows,),
        )
        connection.execute(
            "INSERT INTO stoker_ready SELECT qid, priority, due, id, seq, 0, 0, 0, 0, NULL FROM stoker_body "
            "WHERE seq % 2 = 0"
        )
        connection.execute(
            "INSERT INTO stoker_done SELECT id, seq, qid, 3 + seq % 5, 1, 1, 1, 1, seq, 0, 3, 0, NULL, NULL "
            "FROM stoker_body WHERE seq % 2 = 1"
        )
    connection.commit()
    connection.execute("ANALYZE")
    connection.commit()


def plan(connection: sqlite3.Connection, statement: str) -> list[str]:
    values = (None,) * max(map(int, re.findall(r"\?(\d+)", statement)), default=0)
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


@pytest.fixture
def connection(database: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(database)) as opened:
        yield opened


@pytest.mark.spec("SQLITE-02")
def test_statements_use_the_index_they_were_written_for(connection: sqlite3.Connection) -> None:
    for name, wanted in PLANS.items():
        found = plan(connection, ALL[name])
        for part in wanted:
            assert any(part in line for line in found), (name, found)
        assert name in SORTED or not any("TEMP B-TREE" in line for line in found), (name, found)


@pytest.mark.spec("SQLITE-02")
def test_no_statement_walks_over_all_jobs(connection: sqlite3.Connection) -> None:
    for name, statement in ALL.items():
        for line in plan(connection, statement):
            if not line.startswith("SCAN") or line == "SCAN CONSTANT ROW" or name in MAY_SCAN:
                continue
            table = line.split()[1]
            table = alias(statement, table).removeprefix("stoker_")
            assert table in SMALL or table.startswith("("), (name, line)


def alias(statement: str, name: str) -> str:
    """Return the table behind an alias; "(subquery)" for an aliased subquery."""
    found = re.search(rf"(\w+|\)) AS {re.escape(name)}\b", statement)
    return name if found is None else "(subquery)" if found[1] == ")" else found[1]
