"""Bodies that cannot match are passed over, and no others."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engines.redis.find import may_match
from stoker.engines.redis.record_format import body
from stoker.engines.redis.store import stored_of
from stoker.model.job import Job
from stoker.model.query import Query, matches
from stoker.model.record import Record
from stoker.model.unique import Unique

NAMES = st.sampled_from(["a", "b"])
TEXTS = st.text(alphabet="aAkK\u212aß-", max_size=4)
RECORDS = st.builds(
    Record,
    id=st.just(b"j" * 16),
    kind=NAMES,
    queue=NAMES,
    payload=TEXTS.map(str.encode),
    priority=st.just(0),
    budget=st.just(5),
    created_at=st.integers(0, 3),
    scheduled_at=st.just(9),
    tenant=st.none() | NAMES,
    unique=st.none() | st.just(Unique("key")),
)
QUERIES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "queues": st.frozensets(NAMES),
        "kinds": st.frozensets(NAMES),
        "tenant": NAMES,
        "since": st.integers(0, 3),
        "until": st.integers(0, 3),
        "payload": TEXTS.filter(bool),
    },
)


@pytest.mark.spec("FIND-26")
@given(RECORDS, QUERIES, st.integers(0, 60), st.none() | st.integers(0, 255))
def test_no_job_that_matches_is_passed_over(record: Record, asked: dict[str, Any], at: int, byte: int | None) -> None:
    """Also where the body was damaged in one place, or ends early."""
    stored, query = bytearray(body(record)), Query(**asked)
    if byte is None:
        del stored[max(at, 16) :]
    elif at >= 16:
        stored[min(at, len(stored) - 1)] = byte
    job = stored_of([bytes(stored), None, None, None]).record
    if matches(cast("Job", job), query, 5):
        assert may_match(bytes(stored), query)


@pytest.mark.spec("FIND-26")
def test_what_a_body_tells_is_used() -> None:
    """A job of another queue, kind, time or text, or without a tenant, is not read."""
    fields: dict[str, Any] = {"kind": "a", "queue": "a", "payload": b'{"x":"Kelvin"}', "priority": 0, "budget": 5}
    stored = body(Record(id=b"j" * 16, created_at=5, scheduled_at=5, **fields))
    yes: list[dict[str, Any]] = [{}, {"queues": frozenset("a")}, {"payload": "kELvin"}, {"since": 5, "until": 6}]
    no: list[dict[str, Any]] = [{"kinds": frozenset("b")}, {"payload": "nowhere"}, {"since": 6}, {"until": 5}]
    no += [{"queues": frozenset("b")}, {"tenant": "a"}]
    assert [may_match(stored, Query(**one)) for one in (*yes, *no)] == [True] * len(yes) + [False] * len(no)
