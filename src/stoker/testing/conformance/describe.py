"""What a store reports about itself, and the lifetime of an engine: open, close, for_loop."""

from __future__ import annotations

import pytest

from stoker.engines.base import Feature
from stoker.model.errors import EngineClosed
from stoker.model.job import Status
from stoker.model.lifecycle import Rules
from stoker.model.outcome import Canceled, Done, Failed, Rejected
from stoker.model.query import Query
from stoker.model.retry import Fixed
from stoker.model.time import SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import Store


@pytest.mark.core
@pytest.mark.spec("DESCRIBE-01")
async def test_describe_names_the_engine_and_its_version(store: Store) -> None:
    """Name, version, facts and warnings are texts a person can read."""
    described = await store.engine.describe()
    assert described.engine == store.engine.name != ""
    assert described.version == store.engine.version != ""
    assert all(isinstance(text, str) for pair in described.facts.items() for text in pair)
    assert all(isinstance(warning, str) and warning for warning in described.warnings)
    assert described.size is None or described.size >= 0


@pytest.mark.core
@pytest.mark.spec("DESCRIBE-02")
async def test_describe_tells_the_truth_about_durability(store: Store) -> None:
    """`durable` agrees with the features, and so does the text."""
    described = await store.engine.describe()
    assert described.durable == (Feature.DURABLE in store.engine.features)
    assert described.durability
    if not described.durable:
        assert "not durable" in described.durability.lower()


@pytest.mark.core
@pytest.mark.spec("DESCRIBE-08")
async def test_diagnose_counters_agree_with_a_count(store: Store) -> None:
    """Every counter is what a count finds, and every unique key belongs to an active job."""
    await store.add(unique=Unique("waits"), delay=SECOND)
    for end in (Done(), Rejected("no"), Failed("again"), Canceled()):
        await store.add(unique=Unique(type(end).__name__))
        await store.finish(await store.take(), end, Rules(default=Fixed(60)))
    await store.add()
    await store.claim()
    facts = await store.engine.diagnose()
    assert facts.counters
    assert [one for one in facts.counters if one.counter != one.found] == []
    assert facts.idle_keys == 0


@pytest.mark.core
@pytest.mark.spec("DESCRIBE-03")
async def test_describe_time_is_the_injected_clocks(store: Store) -> None:
    """An engine opened with a clock has no other."""
    assert await store.engine.now() == store.now()
    store.pass_time(SECOND)
    assert await store.engine.now() == store.now()


@pytest.mark.core
@pytest.mark.spec("DESCRIBE-04")
async def test_life_opening_and_closing_twice_is_harmless(store: Store) -> None:
    """A second open changes nothing; a second close neither."""
    job = await store.add()
    await store.engine.open()
    assert await store.status(job) is Status.PENDING
    twin = store.engine.for_loop()
    await twin.open()
    await twin.close()
    await twin.close()
    assert await store.status(job) is Status.PENDING


@pytest.mark.core
@pytest.mark.spec("DESCRIBE-05")
async def test_life_twin_sees_the_same_store(store: Store) -> None:
    """Two engines on a store read what the other wrote, by the same clock; closing one leaves the other open."""
    twin = store.engine.for_loop()
    assert type(twin) is type(store.engine)
    await twin.open()
    try:
        job = await store.add()
        other = store.draft()
        await twin.jobs.insert([other])
        assert await twin.operator.get([job, other.job_id]) == await store.engine.operator.get([job, other.job_id])
        assert await twin.operator.census() == await store.engine.operator.census()
        assert await twin.now() == store.now()
    finally:
        await twin.close()
    assert await store.status(other.job_id) is Status.PENDING


@pytest.mark.spec("DESCRIBE-09")
async def test_life_twin_with_a_read_limit_is_like_the_others(store: Store) -> None:
    """What it reads within its limit, and what it writes, is the same."""
    twin = store.engine.for_loop(read_limit=30)
    await twin.open()
    try:
        job, other = await store.add(), store.draft()
        await twin.jobs.insert([other])
        assert await twin.operator.get([job, other.job_id]) == await store.engine.operator.get([job, other.job_id])
        assert await twin.operator.find(Query()) == await store.engine.operator.find(Query())
        assert await twin.operator.census() == await store.engine.operator.census()
    finally:
        await twin.close()


@pytest.mark.core
@pytest.mark.spec("DESCRIBE-06")
async def test_life_of_a_closed_engine_is_over(store: Store) -> None:
    """Using an engine before it is opened or after it is closed is an error with that message."""
    twin = store.engine.for_loop()
    with pytest.raises(EngineClosed):
        await twin.operator.census()
    await twin.open()
    await twin.operator.census()
    await twin.close()
    with pytest.raises(EngineClosed):
        await twin.jobs.insert([store.draft()])
    assert await store.counts() == {}


@pytest.mark.core
@pytest.mark.spec("DESCRIBE-07")
async def test_life_an_opened_store_needs_no_migration(store: Store) -> None:
    """Planning and running a migration on a store that is up to date do nothing."""
    job = await store.add()
    assert await store.engine.migrate(plan_only=True) == []
    assert await store.engine.migrate() == []
    assert await store.engine.migration_script() in (None, "-- Nothing to do.\n")
    assert await store.status(job) is Status.PENDING
