"""Limits that users meet and times that operators wait: what they are, so that no release changes one unseen."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model import (
    access,
    audit,
    budgets,
    chunk,
    control,
    cron,
    emitted,
    error_records,
    events,
    findings,
    groups,
    job,
    kind_hours,
    label,
    lifecycle,
    limit,
    measures,
    orders,
    paging,
    query,
    releases,
    retry,
    run_origins,
    scale,
    schedule,
    stats,
    steps,
    subqueues,
    throttle,
    unique,
)
from stoker.model.health import jobs, postgres, redis, sqlite
from stoker.model.outbox import batch_size, cursor, delivery, letters, stream, webhook
from stoker.model.outbox.stream import Entry, Stream
from stoker.model.time import DAY, HOUR, MINUTE, SECOND

KIB, MIB, GIB = 1_024, 1_048_576, 1_073_741_824

LIMITS: dict[Any, dict[str, int]] = {
    access: {"LONGEST_NAME": 200},
    audit: {"LONGEST": 1_000},
    budgets: {"MOST_MEASURES": 8},
    chunk: {"LARGEST_CHUNK": 10_000},
    control: {"MOST_WORKERS": 10_000, "LONGEST_REASON": 1_000, "SHOWN_WITHIN": 20 * SECOND},
    cron: {"LONGEST_EXPRESSION": 256},
    emitted: {"LARGEST_EMITTED": 64 * KIB, "PAGES": 32},
    error_records: {"KEPT": 7 * DAY, "MOST": 1_000, "IDLE": DAY, "MOST_NAMES": 20, "HOURS": 168},
    events: {"MOST_SAMPLES": 10_000, "REMEMBERED": HOUR, "MOST_REMEMBERED": 50_000},
    findings: {
        "ALONE_AFTER": MINUTE,
        "LATE_AFTER": MINUTE,
        "OVERDUE_AFTER": MINUTE,
        "FORGOTTEN_AFTER": DAY,
        "DELIVERED_WITHIN": 30 * SECOND,
        "STUCK_AFTER": 10 * MINUTE,
        "LONGEST_ACKNOWLEDGED": DAY,
        "TIMES_USUAL": 5,
        "LEAST_DEATHS": 10,
        "TIMES_MEAN": 3,
        "LONGEST_REASON": 500,
    },
    groups: {"ABANDONED_AFTER": HOUR, "MOST_KNOWN": 1_000, "LEAST_KEPT": MINUTE, "LOOKED_AGAIN": HOUR},
    job: {
        "LARGEST_PAYLOAD": MIB,
        "LARGEST_ERROR": 64 * KIB,
        "LARGEST_METADATA": 8 * KIB,
        "LARGEST_CHAIN": 64 * KIB,
        "MOST_LINKS": 100,
        "LONGEST_HISTORY": 32,
        "LONGEST_LOG": 100,
        "LARGEST_BATCH": 1_000,
        "DEFAULT_ATTEMPTS": 5,
        "MOST_ATTEMPTS": 1_000_000,
        "LEASE": 15 * SECOND,
    },
    kind_hours: {"KEPT": 7 * DAY},
    label: {"LONGEST": 80, "LONGEST_TEMPLATE": 500},
    lifecycle: {"KEEP_DONE": 7 * DAY, "KEEP_DEAD": 30 * DAY},
    limit: {"MOST_AT_ONCE": 10_000},
    orders: {"LARGEST_STACK": 16 * KIB, "LARGEST_REPORT": 128 * KIB, "KEPT": 10 * MINUTE, "LAPSES": 10 * MINUTE},
    paging: {"DEFAULT_SIZE": 25, "LARGEST_SIZE": 100},
    query: {"LARGEST_PAGE": 1_000, "LONGEST_REASON": 1_000, "COUNT_LIMIT": 10_000, "KINDS_BEHIND": 15 * MINUTE},
    releases: {"MOST": 50},
    retry: {"FALLBACK_DELAY": MINUTE, "MOST_DELAYS": 100},
    run_origins: {"MOST": 5_000, "SEEN_EVERY": DAY},
    scale: {"TARGET_WAIT": 10 * SECOND, "LONGEST_TARGET": HOUR, "MOST_PROCESSES": 256},
    schedule: {"CATCH_UP": 100, "MOST_COUNTED": 1_000},
    stats: {"BUCKET": MINUTE, "MOST_LATE": 120, "MOST_BUCKETS": 2_000, "BUSIEST": 100},
    steps: {
        "LONGEST_NAME": 100,
        "LONGEST_KEY": 200,
        "LONGEST_ROW": 500,
        "LARGEST_VALUE": MIB,
        "LARGEST_VALUES": 64 * MIB,
        "MOST_STEPS": 10_000,
        "MOST_EARLY": 1_000,
        "MOST_CALLED": 1_000,
    },
    subqueues: {"FULL_FOR": MINUTE},
    throttle: {
        "FLAT_COOLDOWN": MINUTE,
        "DECAY_GRACE": 2 * MINUTE,
        "HIGHEST_RATE": 10**9,
        "LONGEST_SLEEP": MINUTE,
    },
    unique: {"LONGEST_KEY": 512},
    jobs: {"CLOCK_NOTICED": 2 * SECOND, "CLOCK_WRONG": MINUTE, "LEAST_RUNS": 20},
    postgres: {"OLDEST": 140_000, "HELD_FOR": 60, "HELD_OVER": 1_000_000, "RETAINED": GIB, "BLOATED": 64 * MIB},
    redis: {"SLOTS": 16_384, "SILENT_REPLICA": 30, "BEHIND": 64 * MIB},
    sqlite: {"LONG_LOG": 64 * MIB, "LARGEST_LOG": 256 * MIB, "LITTLE_SPACE": 256 * MIB, "NO_SPACE": 32 * MIB},
    batch_size: {"SEQUENCER_BASE": SECOND // 10, "SEQUENCER_MAX": 30 * SECOND, "PARTITIONS_AT_ONCE": 4},
    cursor: {"LARGEST_BATCH": 10_000, "LARGEST_READ": 4 * MIB},
    delivery: {"LETTER_CRASHES": 3},
    letters: {"DEFAULT_PAGE": 100, "LARGEST_PAGE": 1_000},
    stream: {
        "MOST_PARTITIONS": 64,
        "LARGEST_MESSAGE": 64 * KIB,
        "LARGEST_HEADERS": 8 * KIB,
        "LONGEST_TYPE": KIB,
    },
    webhook: {"TOLERANCE": 5 * MINUTE, "LONGEST_PAUSE": DAY, "LARGEST_BODY": 16 * MIB},
}


@pytest.mark.spec("INPUT-01")
@pytest.mark.parametrize("module", LIMITS, ids=lambda module: module.__name__.removeprefix("stoker.model."))
def test_limits_are_what_users_were_told(module: Any) -> None:
    assert {name: getattr(module, name) for name in LIMITS[module]} == LIMITS[module]


@pytest.mark.spec("METRIC-01")
def test_buckets_of_times_stay_those_of_earlier_scrapes() -> None:
    """A dashboard adds up the histograms of all processes, which need the same buckets."""
    assert list(measures.BOUNDS) == [
        *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
        *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
    ]


@pytest.mark.spec("OUTBOX-28")
def test_the_first_and_the_last_partition_take_messages() -> None:
    known = Stream("orders", partitions=4)
    for partition in (0, 3):
        stream.check_entries(known, [Entry(bytes(16), "k", partition, b"{}", "Order")])
