"""What the facts of a check-up mean."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stoker.model.budgets import ONLY, Budget
from stoker.model.control import Pause, Presence, Queue
from stoker.model.findings import Deaths, Delivery, findings
from stoker.model.findings import Situation as Work
from stoker.model.health import jobs, postgres, redis, sqlite, transport
from stoker.model.health.check import Check, Grade, note, ok, summary, warning, worst, wrong
from stoker.model.health.facts import (
    MOST_COUNTED,
    Counted,
    Facts,
    Pin,
    PostgresFacts,
    RedisFacts,
    RedisNode,
    Replica,
    Sequence,
    Slot,
    SqliteFacts,
    Table,
    Transport,
)
from stoker.model.health.jobs import Misdated, Overdue, Situation
from stoker.model.job import Draft, Status
from stoker.model.query import Census, Count
from stoker.model.schedule import NO_ID, Schedule
from stoker.model.throttle import Cooldown, Rate, full
from stoker.model.time import DAY, HOUR, MINUTE, SECOND

NOW = 1_800_000_000_000_000
GIB = 1 << 30


def complaints(checks: Any) -> list[tuple[str, Grade]]:
    found = list(checks)
    for check in found:
        assert check.read
        if check.verdict in {Grade.WARNING, Grade.WRONG}:
            assert check.meaning.endswith("."), check
            assert check.remedy, check
    return [(check.name, check.verdict) for check in found if check.verdict is not Grade.OK]


@pytest.mark.spec("HEALTH-01")
def test_the_gravest_verdict_counts() -> None:
    assert worst([]) is Grade.OK
    assert worst([ok("a", "b"), wrong("c", "d", "e.", "f"), Check("n", Grade.NOTE, "r")]) is Grade.WRONG


POSTGRES = PostgresFacts(
    version=160_004,
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    standby=False,
    sees_all_sessions=True,
    autovacuum=True,
    pooled=False,
    listens=True,
    connections=10,
    most_connections=97,
    pins=(Pin("session", "7", "", 5, 2.0),),
    slots=(Slot("replica", True, 100),),
    tables=(Table("stoker.job", 100, 5, 8192, True, 50),),
)


@pytest.mark.spec("HEALTH-02")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"pins": ()}, []),
        ({"version": 130_010}, [("version", "wrong")]),
        ({"version": 140_003}, [("version", "warning")]),
        ({"fsync": False}, [("durability", "wrong")]),
        ({"full_page_writes": False}, [("durability", "warning")]),
        ({"synchronous_commit": "off"}, [("durability", "wrong")]),
        ({"standby": True}, [("role of the server", "wrong")]),
        ({"sees_all_sessions": False}, [("held snapshots", "note")]),
        ({"pins": (Pin("session", "7", "psql", 5, 61.0),)}, [("held snapshots", "warning")]),
        ({"pins": (Pin("session", "7", "psql", 5, 60.0),)}, [("held snapshots", "warning")]),
        ({"pins": (Pin("session", "7", "psql", 5, 3_599.0),)}, [("held snapshots", "warning")]),
        ({"pins": (Pin("session", "7", "psql", 5, 3_600.0),)}, [("held snapshots", "wrong")]),
        ({"pins": (Pin("slot", "s", "", 2_000_000, None),)}, [("held snapshots", "warning")]),
        ({"pins": (Pin("slot", "s", "", 10_000_000, None),)}, [("held snapshots", "wrong")]),
        ({"pins": (Pin("slot", "s", "", 5, None),)}, []),
        ({"slots": (Slot("old", False, 5),)}, [("replication slots", "warning")]),
        ({"slots": (Slot("slow", True, 2 * GIB),)}, [("replication slots", "warning")]),
        ({"slots": (Slot("slow", True, GIB),)}, []),
        ({"slots": (Slot("old", False, 10 * GIB),)}, [("replication slots", "warning")]),
        ({"slots": (Slot("old", False, 10 * GIB + 1),)}, [("replication slots", "wrong")]),
        ({"autovacuum": False}, [("autovacuum", "wrong")]),
        ({"tables": (Table("stoker.job", 9, 0, 0, False, 50),)}, [("autovacuum", "wrong")]),
        ({"tables": (Table("stoker.job", 900, 501, 0, True, 50),)}, [("autovacuum", "warning")]),
        ({"tables": (Table("stoker.job", 9, 10, GIB, True, 50),)}, [("bloat", "warning")]),
        ({"tables": (Table("stoker.job", 0, 0, GIB, True, 50),)}, []),
        ({"missing_indexes": ("stoker.ready_id",)}, [("indexes", "wrong")]),
        ({"invalid_indexes": ("stoker.ready_id",)}, [("indexes", "wrong")]),
        ({"sequences": (Sequence("stoker.incoming_n_seq", 7, 7),)}, []),
        ({"sequences": (Sequence("stoker.incoming_n_seq", 0, 7),)}, [("sequences", "wrong")]),
        ({"pooled": True}, []),
        ({"pooled": True, "listens": False}, [("pooler", "warning")]),
        ({"connections": 80}, [("connections", "warning")]),
        ({"connections": 96}, [("connections", "wrong")]),
    ],
)
def test_facts_about_postgres(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    checks = list(postgres.judge(replace(POSTGRES, **changes)))
    assert complaints(checks) == expected
    assert {check.name for check in checks} == {check.name for check in postgres.judge(POSTGRES)}


SQLITE = SqliteFacts(
    version="3.51.3",
    affected=False,
    journal="wal",
    synchronous="full",
    asked="power",
    bytes=1 << 20,
    log_bytes=0,
    free_bytes=GIB,
    mode=0o600,
)


@pytest.mark.spec("HEALTH-03")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"affected": True}, [("version", "warning")]),
        ({"asked": "process", "synchronous": "normal"}, []),
        ({"synchronous": "normal"}, [("durability", "wrong")]),
        ({"free_bytes": None}, [("disk space", "note")]),
        ({"free_bytes": 1 << 20}, [("disk space", "wrong")]),
        ({"free_bytes": 200 << 20}, [("disk space", "warning")]),
        ({"free_bytes": sqlite.NO_SPACE}, [("disk space", "warning")]),
        ({"free_bytes": sqlite.LITTLE_SPACE}, []),
        ({"free_bytes": GIB, "log_bytes": GIB + 1}, [("disk space", "warning"), ("write-ahead log", "wrong")]),
        ({"synchronous": "extra"}, []),
        ({"asked": "process", "synchronous": "full"}, []),
        ({"asked": "process", "synchronous": "off"}, [("durability", "wrong")]),
        ({"mode": 0o644}, [("file rights", "note")]),
        ({"mode": 0o640}, [("file rights", "note")]),
        ({"mode": 0o604}, [("file rights", "note")]),
        ({"mode": 0o633}, []),
        ({"owner": "ada"}, [("file rights", "note")]),
        ({"log_bytes": 100 << 20}, [("write-ahead log", "warning")]),
        ({"log_bytes": sqlite.LONG_LOG}, []),
        ({"log_bytes": sqlite.LARGEST_LOG}, [("write-ahead log", "warning")]),
        ({"log_bytes": sqlite.LARGEST_LOG + 1}, [("write-ahead log", "wrong")]),
    ],
)
def test_facts_about_sqlite(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    checks = list(sqlite.judge(replace(SQLITE, **changes)))
    assert complaints(checks) == expected
    assert [check.name for check in checks] == [check.name for check in sqlite.judge(SQLITE)]


@pytest.mark.spec("HEALTH-02", "HEALTH-03", "HEALTH-04")
def test_a_sound_store_is_told_check_by_check() -> None:
    cluster = RedisFacts(nodes=(replace(NODE, cluster_state="ok", slots_ok=16_384),))
    told = postgres.judge(POSTGRES), sqlite.judge(SQLITE), redis.judge(cluster)
    assert [", ".join(check.name for check in checks) for checks in told] == [
        (
            "version, durability, role of the server, held snapshots, replication slots, autovacuum, bloat, "
            "indexes, sequences, pooler, connections"
        ),
        "version, durability, disk space, file rights, write-ahead log",
        "version, eviction policy, memory, persistence, replicas, cluster, lost writes, unreadable records",
    ]


@pytest.mark.spec("HEALTH-01")
def test_a_sound_store_is_told_in_sentences() -> None:
    """What a person reads where nothing is wrong."""
    logged = replace(SQLITE, log_bytes=3 << 20)
    given = situation(
        runs={"send": (9, 1)}, budgets=[LLM], deliveries=[Delivery("orders", "mail")], schedules=[schedule(-HOUR)]
    )
    told = [postgres.judge(POSTGRES), sqlite.judge(logged), redis.judge(RedisFacts(nodes=(NODE,))), jobs.judge(given)]
    assert [[check.read for check in checks] for checks in told] == [
        [
            "Postgres 16.4",
            "fsync on, full_page_writes on, synchronous_commit on",
            "primary",
            "session 7 for 2 s",
            "1 slot",
            "on, for 1 table",
            "1 table",
            "all there and valid",
            "0 sequences",
            "connections are the server's own",
            "10 of 97 connections are in use",
        ],
        [
            "SQLite 3.51.3",
            "synchronous is full, journal is wal, durability='power' was asked for",
            "1.0 GB free; the store takes 1.0 MB",
            "mode 0600",
            "the write-ahead log has 3.0 MB",
        ],
        [
            "Redis 8.2.2 at redis:6379",
            "maxmemory-policy is noeviction at redis:6379",
            "redis:6379 uses 1.0 MB, without a limit",
            "append-only file on, appendfsync everysec at redis:6379",
            "1 replica of redis:6379",
            "none found",
            "0 records set aside",
        ],
        [
            "the store's clock is this host's",
            "no waiting job was stored under a time that has not come",
            "1 worker at work; none that is silent holds jobs",
            "the oldest due job has waited 0.00 s; where jobs are due, workers are",
            "no worker meets a kind that it does not know",
            "no job is dead that died in the last hour",
            "1 schedule; none is overdue or could not fire",
            "1 consumer; none is behind, no letter or parked key waits",
            "none runs longer than its limit",
            "1 kind ran in the last hour",
            "no worker dropped events",
            "1 budget; each can grant what is asked",
        ],
    ]


@pytest.mark.spec("HEALTH-05")
def test_of_several_queues_the_longest_wait_is_told() -> None:
    counts = tuple(Count(name, "send", Status.PENDING, 1) for name in ("mail", "sms"))
    waits = Census(at=NOW, counts=counts, oldest_ready={"mail": NOW - 3 * SECOND, "sms": NOW - 9 * SECOND})
    checks = jobs.judge(situation(census=waits, presences=[worker(queues={"mail": 1, "sms": 1})]))
    assert [one.read for one in checks if one.name == "queues"] == [
        "the oldest due job has waited 9.0 s; where jobs are due, workers are"
    ]


@pytest.mark.spec("HEALTH-06")
def test_a_count_that_ended_at_its_bound_is_told_as_it_is() -> None:
    def told(facts: Facts) -> list[str]:
        return [check.read for check in jobs.judge_counts(facts)]

    def mail(found: int) -> Facts:
        return Facts(counters=(Counted("mail", "dead", 5, found),), idle_keys=found)

    assert told(mail(MOST_COUNTED)) == [
        "mail has 5 dead jobs by the counter, 10,000 in fact",
        "10,000 unique keys are held by no active job",
    ]
    assert told(mail(MOST_COUNTED + 1)) == [
        "mail has 5 dead jobs by the counter, more than 10,000 in fact",
        "more than 10,000 unique keys are held by no active job",
    ]
    assert told(Facts(counters=(Counted("mail", "dead", 5, 5),), idle_keys=0)) == [
        "1 counter compared with a count",
        "every one is held by an active job, or kept for a time after a success",
    ]


@pytest.mark.spec("SQLITE-55")
def test_an_affected_sqlite_is_said_to_be_safe_for_stoker_first() -> None:
    check = next(sqlite.judge(replace(SQLITE, affected=True)))
    assert check.meaning.startswith(
        "What Stoker writes through its own connections is safe. A job enqueued with tx= is"
    )


NODE = RedisNode(
    name="redis:6379",
    product="Redis",
    version="8.2.2",
    policy="noeviction",
    used=1 << 20,
    limit=0,
    aof=True,
    fsync="everysec",
    replicas=(Replica("other:6379", "online", 5, 0),),
)


SAFE_REDIS = ("6.2.20", "7.2.11", "7.4.6", "8.0.4", "8.2.2")
SAFE_VALKEY = ("7.2.11", "8.0.6", "8.1.4")
"""The releases that their projects name for CVE-2025-49844."""


def before(version: str) -> str:
    line, _, last = version.rpartition(".")
    return f"{line}.{int(last) - 1}"


@pytest.mark.spec("HEALTH-04")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"version": "7.0.15"}, [("version", "note")]),
        ({"version": "7.2.10"}, [("version", "note")]),
        ({"version": "7.2.11"}, []),
        ({"version": "unknown"}, []),
        ({"product": "Other", "version": "1.0"}, []),
        *(({"product": "Redis", "version": safe}, []) for safe in SAFE_REDIS),
        *(({"product": "Valkey", "version": safe}, []) for safe in SAFE_VALKEY),
        *(({"product": "Redis", "version": before(safe)}, [("version", "note")]) for safe in SAFE_REDIS),
        *(({"product": "Valkey", "version": before(safe)}, [("version", "note")]) for safe in SAFE_VALKEY),
        ({"policy": "allkeys-lru"}, [("eviction policy", "wrong")]),
        ({"policy": "volatile-ttl"}, [("eviction policy", "note")]),
        ({"limit": 100 << 20}, []),
        ({"limit": (1 << 20) + 10}, [("memory", "warning")]),
        ({"limit": 1 << 20}, [("memory", "wrong")]),
        ({"aof": False, "fsync": "no"}, [("persistence", "warning")]),
        ({"fsync": "no"}, [("persistence", "warning")]),
        ({"aof_written": False}, [("persistence", "wrong")]),
        ({"aof_rewritten": False}, [("persistence", "warning")]),
        ({"snapshot_saved": False}, [("persistence", "warning")]),
        ({"replicas": (Replica("o", "wait_bgsave", 0, 0),)}, [("replicas", "warning")]),
        ({"replicas": (Replica("o", "online", 0, 60),)}, [("replicas", "warning")]),
        ({"replicas": (Replica("o", "online", GIB, 0),)}, [("replicas", "warning")]),
        ({"cluster_state": "ok", "slots_ok": 16_384}, []),
        ({"cluster_state": "fail", "slots_ok": 16_384}, [("cluster", "wrong")]),
        ({"cluster_state": "ok", "slots_ok": 16_000}, [("cluster", "wrong")]),
    ],
)
def test_facts_about_redis(changes: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    checks = list(redis.judge(RedisFacts(nodes=(replace(NODE, **changes),))))
    assert complaints(checks) == expected
    sound = {check.name for check in redis.judge(RedisFacts(nodes=(NODE,)))}
    assert {check.name for check in checks} == (sound | {"cluster"} if "cluster_state" in changes else sound)


@pytest.mark.spec("HEALTH-04")
def test_losses_and_unreadable_records_of_redis() -> None:
    facts = RedisFacts(nodes=(), losses=("three writes are gone",), unread=2)
    assert complaints(redis.judge(facts)) == [("lost writes", "wrong"), ("unreadable records", "warning")]


def census(ready: int = 0, *, lag: int = 0, kind: str = "send", status: Status = Status.PENDING) -> Census:
    counts = (Count("mail", kind, status, ready),) if ready else ()
    return Census(at=NOW, counts=counts, oldest_ready={"mail": NOW - lag} if lag else {})


def worker(**changes: Any) -> Presence:
    given = {"worker": "w", "host": "h", "pid": 1, "queues": {"mail": 1}, "kinds": {"send": "app.send"}}
    return Presence(**{**given, "seen_at": NOW, **changes})


def schedule(late: int) -> Schedule:
    return Schedule(name="nightly", expression="0 3 * * *", template=Draft(NO_ID, "report"), next_fire=NOW - late)


LLM = Budget("llm", {ONLY: full(Rate(10), NOW)})
MEASURED = Budget("ai", {"requests": full(Rate(10), NOW), "words": full(Rate(5), NOW)})
PAUSED, COOLING = Queue(name="mail", pause=Pause()), Queue(name="mail", cooldown=Cooldown(NOW + MINUTE, 9))


def situation(**given: Any) -> Situation:
    """What is judged; fields of the work are given beside the others."""
    work: dict[str, Any] = {"census": census(), "presences": [worker()]}
    work |= {name: given.pop(name) for name in Work.__struct_fields__ if name in given}
    return Situation(work=Work(**work), **given)


@pytest.mark.spec("HEALTH-05", "BUDGET-12")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (situation(), []),
        (situation(apart=5 * SECOND, unsure=4 * SECOND), []),
        (situation(apart=5 * SECOND), [("clock", "warning")]),
        (situation(apart=-5 * MINUTE), [("clock", "wrong")]),
        (situation(census=census(3), presences=[]), [("workers", "wrong")]),
        (situation(census=census(3), presences=[worker(queues={"other": 1})]), [("queues", "wrong")]),
        (situation(census=census(3)), []),
        (situation(census=census(3), presences=[worker(kinds={})]), []),
        (situation(census=census(3), presences=[worker(kinds={"other": "x"})]), [("kinds", "wrong")]),
        (situation(census=census(3, status=Status.DEAD), presences=[worker(kinds={"other": "x"})]), []),
        (situation(presences=[worker(seen_at=NOW - MINUTE)]), []),
        (situation(presences=[worker(worker="v"), worker(seen_at=NOW - MINUTE, running=2)]), [("workers", "wrong")]),
        (situation(presences=[worker(seen_at=0, state="stopped")]), []),
        (situation(budgets=[LLM], presences=[worker(held={"llm": 10, "sms": 99})]), []),
        (situation(budgets=[LLM], presences=[worker(held={"llm": 11}), worker(worker="v")]), [("budgets", "warning")]),
        (situation(budgets=[LLM], presences=[worker(held={"llm": 11}, state="stopped")]), []),
        (situation(budgets=[MEASURED], presences=[worker(held={"ai/requests": 10, "ai/words": 5})]), []),
        (situation(budgets=[MEASURED], presences=[worker(held={"ai/words": 6})]), [("budgets", "warning")]),
        (situation(overdue=[Overdue("id", "send", SECOND, MINUTE)]), [("running jobs", "warning")]),
        (situation(runs={"send": (9, 11)}), [("retry storms", "warning")]),
        (situation(runs={"send": (10, 10), "rare": (0, 3)}), []),
        (situation(deaths=Deaths(1)), [("deaths", "note")]),
        (situation(deaths=Deaths(11)), [("deaths", "wrong")]),
        (situation(census=census(3, lag=5 * MINUTE)), [("queues", "warning")]),
        (situation(census=census(3, lag=2 * DAY), queues=[PAUSED]), [("queues", "warning")]),
        (situation(census=census(3, lag=2 * HOUR), queues=[PAUSED]), [("queues", "note")]),
        (situation(census=census(3, lag=2 * DAY), queues=[COOLING]), [("queues", "warning")]),
        (situation(queues=[PAUSED]), []),
        (situation(schedules=[schedule(2 * MINUTE)]), [("schedules", "wrong")]),
        (situation(lost={"a": 0, "b": 7}), [("event buffers", "note")]),
        (situation(misdated=[Misdated("mail", 2, "id", MINUTE)]), [("dates", "warning")]),
        (situation(misdated=[Misdated("mail", 2, "id", MINUTE, more=True)]), [("dates", "warning")]),
        (situation(deliveries=[Delivery("orders", "mail")]), []),
        (situation(deliveries=[Delivery("orders", "mail", waits=MINUTE)]), [("consumers", "warning")]),
        (situation(deliveries=[Delivery("orders", "mail", waits=11 * MINUTE)]), [("consumers", "wrong")]),
        (
            situation(deliveries=[Delivery("o", "a", parked=1), Delivery("o", "b", letters=2)]),
            [("consumers", "warning")] * 2,
        ),
    ],
)
def test_the_state_of_queues_workers_and_streams(given: Situation, expected: list[tuple[str, str]]) -> None:
    checks = list(jobs.judge(given))
    assert complaints(checks) == expected
    sound = {check.name for check in jobs.judge(situation(deliveries=given.work.deliveries[:1]))}
    assert {check.name for check in checks} == sound


@pytest.mark.spec("HEALTH-05", "NEED-09")
def test_the_check_up_says_what_the_status_says() -> None:
    given = situation(
        census=census(3, lag=5 * MINUTE), deaths=Deaths(2), deliveries=[Delivery("o", "a", letters=1)],
        schedules=[schedule(2 * MINUTE)],
    )  # fmt: skip
    said = [str(one) for one in findings(given.work)]
    assert len(said) == 4
    checked = [one for one in jobs.judge(given) if one.verdict is not Grade.OK]
    assert {one.read for one in checked} == {f"{one.name} {one.text}" for one in findings(given.work)}


@pytest.mark.spec("HEALTH-10")
def test_what_cannot_be_read_is_named() -> None:
    assert complaints(jobs.judge_damage(Facts())) == []
    [one, other] = jobs.judge_damage(Facts(damaged=("group 7 cannot be read", "schedule x cannot be read")))
    assert (one.verdict, one.read, other.read) == (Grade.WRONG, "group 7 cannot be read", "schedule x cannot be read")


@pytest.mark.spec("HEALTH-06")
@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (Facts(), []),
        (Facts(idle_keys=0, counters=(Counted("mail", "dead", 3, 3),)), []),
        (Facts(counters=(Counted("mail", "done", 1_000_000, MOST_COUNTED + 1),)), []),
        (Facts(counters=(Counted("mail", "done", 5, MOST_COUNTED + 1),)), [("counters", "wrong")]),
        (Facts(counters=(Counted("mail", "dead", 3, 2),)), [("counters", "wrong")]),
        (Facts(idle_keys=2), [("unique keys", "wrong")]),
    ],
)
def test_counters_and_keys_against_what_is_there(facts: Facts, expected: list[tuple[str, str]]) -> None:
    assert complaints(jobs.judge_counts(facts)) == expected


@pytest.mark.spec("HEALTH-09")
@pytest.mark.parametrize(
    "host, encrypted, verified, grade",
    [
        ("", False, False, Grade.OK),
        ("/run/postgresql/.s.PGSQL.5432", False, False, Grade.OK),
        ("localhost", False, False, Grade.OK),
        ("127.0.0.1", False, False, Grade.OK),
        ("::1", False, False, Grade.OK),
        ("db.internal", False, False, Grade.WARNING),
        ("10.0.0.7", True, False, Grade.WARNING),
        ("10.0.0.7", True, True, Grade.OK),
    ],
)
def test_the_way_to_a_server_on_another_machine_must_be_protected(
    host: str, encrypted: bool, verified: bool, grade: Grade
) -> None:
    check = transport.judge(Transport(host=host, encrypted=encrypted, verified=verified, remedy="do so"))
    assert (check.name, check.verdict) == ("transport", grade)
    assert (check.remedy == "do so") == (grade is Grade.WARNING)


@pytest.mark.spec("HEALTH-12")
def test_checks_are_summed_up_by_verdict() -> None:
    found = [warning("a", "x", "", ""), warning("b", "x", "", ""), note("c", "x", ""), wrong("d", "x", "", "")]
    assert summary([*found, ok("e", "x"), ok("f", "x")]) == "6 checks: 1 wrong, 2 warnings, 1 note, 2 ok"
    assert summary([ok("e", "x")]) == "1 check: 1 ok"


@pytest.mark.spec("HEALTH-05")
def test_a_clock_behind_and_one_ahead_are_told_apart() -> None:
    def told(apart: int) -> str:
        return next(str(one) for one in jobs.judge(situation(apart=apart)) if one.name == "clock")

    assert "ahead of" in told(10 * SECOND)
    assert "behind" in told(-10 * SECOND)
    assert "is this host's" in told(0)


@pytest.mark.spec("HEALTH-04")
def test_a_redis_says_whether_it_writes_its_log() -> None:
    def told(**changes: Any) -> str:
        return " ".join(map(str, redis.judge(RedisFacts(nodes=(replace(NODE, **changes),)))))

    assert "append-only file on" in told()
    assert "append-only file off" in told(aof=False)


@pytest.mark.spec("HEALTH-04")
@pytest.mark.parametrize(
    ("used", "limit", "grade"),
    [(90, 100, Grade.OK), (91, 100, Grade.WARNING), (100, 100, Grade.WRONG), (899, 1000, Grade.OK), (1, 0, Grade.OK)],
)
def test_memory_is_short_above_nine_tenths(used: int, limit: int, grade: Grade) -> None:
    checks = redis.judge(RedisFacts(nodes=(replace(NODE, used=used, limit=limit),)))
    assert [one.verdict for one in checks if one.name == "memory"] == [grade]


@pytest.mark.spec("HEALTH-05")
def test_the_count_of_misdated_jobs_says_when_there_may_be_more() -> None:
    for more, begins in ((True, "at least 3 jobs"), (False, "3 jobs")):
        checks = jobs.judge(situation(misdated=(Misdated("mail", 3, "job 1", HOUR, more),)))
        assert [one.read.startswith(begins) for one in checks if one.name == "dates"] == [True]
