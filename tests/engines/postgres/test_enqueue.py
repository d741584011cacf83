"""The SQL function `enqueue`: the first door for other languages and for triggers."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from stoker.codec.json_check import DEPTH_LIMIT, DIGITS_LIMIT
from stoker.codec.signature import Raw, encode_payload
from stoker.engines.postgres import PostgresEngine
from stoker.engines.postgres.statements import MIGRATIONS
from stoker.model import ids
from stoker.model.errors import InvalidInput
from stoker.model.ids import Mint, minted_at
from stoker.model.job import LARGEST_PAYLOAD, MOST_ATTEMPTS, PRIORITIES, Demand, Draft, Status, Stored
from stoker.model.lifecycle import KEEP_DEAD, conclude
from stoker.model.outcome import Done, Failed
from stoker.model.time import HOUR, LONGEST, MINUTE
from stoker.model.unique import LONGEST_KEY, SUPERSEDED, TRAITS, Unique
from tests.harness.json_texts import REFUSED, TAKEN

pytestmark = pytest.mark.engine("postgres")

mint = Mint(lambda: time.time_ns() // 1000, os.urandom)


@pytest.fixture
async def engine(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresEngine]:
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    await engine.jobs.renew("w1", [], first=True)
    yield engine
    await engine.close()


class Caller:
    """A producer with SQL and nothing else."""

    def __init__(self, url: str, schema: str) -> None:
        self.connection = psycopg.connect(url)
        self.schema = schema

    def __call__(self, values: str, *given: Any) -> bytes:
        found = self.connection.execute(f"select {self.schema}.enqueue({values})".encode(), given).fetchone()
        assert found is not None
        return uuid.UUID(str(found[0])).bytes


@pytest.fixture
def enqueue(engine: PostgresEngine, postgres_url: str, postgres_schema: str) -> Any:
    caller = Caller(postgres_url, postgres_schema)
    yield caller
    caller.connection.close()


@pytest.mark.spec("PGSQL-01")
async def test_a_job_enqueued_by_sql_exists_when_its_transaction_commits(engine: PostgresEngine, enqueue: Any) -> None:
    """It has a version 7 id, the defaults of a draft and its payload byte for byte, and runs like any other."""
    job = enqueue("'send', %s::json", '{"to":  "é", "n": 1.0}')
    assert await engine.operator.get([job]) == [None]
    enqueue.connection.commit()
    [record] = await engine.operator.get([job])
    assert record is not None
    plain = Draft(mint(), "send")
    assert (record.kind, record.queue, record.priority, record.budget) == ("send", "default", 0, plain.attempts)
    assert record.payload == '{"to":  "é", "n": 1.0}'.encode()
    assert uuid.UUID(bytes=job).version == 7
    assert abs(minted_at(job) - record.created_at) < MINUTE
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 1
    [claim] = await engine.jobs.claim(Demand("w1", (("default", 1),)))
    assert claim.id == job
    await engine.jobs.settle([conclude(claim, Done())])
    assert (await engine.operator.census()).by_status()[Status.DONE] == 1


@pytest.mark.spec("PGSQL-01")
async def test_every_argument_arrives(engine: PostgresEngine, enqueue: Any) -> None:
    """Queue, delay, priority, attempts, tenant and id are the job's; the same id again changes nothing."""
    job = mint()
    call = "'k', '[1]', queue => 'q', delay => '1 hour', priority => -5, attempts => 2, tenant => 't', id => %s"
    assert enqueue(call, uuid.UUID(bytes=job)) == job
    assert enqueue(call, uuid.UUID(bytes=job)) == job
    enqueue.connection.commit()
    [record] = await engine.operator.get([job])
    assert record is not None
    assert (record.queue, record.priority, record.budget, record.tenant) == ("q", -5, 2, "t")
    assert record.scheduled_at == record.created_at + HOUR
    assert sum((await engine.operator.census()).by_status().values()) == 1


@pytest.mark.spec("PGSQL-02")
async def test_a_key_is_held_across_sql_and_python(engine: PostgresEngine, enqueue: Any) -> None:
    """Who comes second, by either way, is told the holder's id; scopes do not collide."""
    job = enqueue("'work', unique_key => 'k'")
    other = enqueue("'work', unique_key => 'k', unique_scope => 'global'")
    assert enqueue("'work', unique_key => 'k'") == job
    enqueue.connection.commit()
    [met, world] = await engine.jobs.insert(
        [Draft(mint(), "work", unique=Unique("k")), Draft(mint(), "x", unique=Unique("k", scope="global"))]
    )
    assert (met.id, met.stored, world.id) == (job, Stored.EXISTING, other)
    for claim in await engine.jobs.claim(Demand("w1", (("default", 5),))):
        await engine.jobs.settle([conclude(claim, Done())])
    assert enqueue("'work', unique_key => 'k'") != job


@pytest.mark.spec("PGSQL-02", "KEY-18")
async def test_a_key_that_a_success_keeps_is_met_by_sql(
    engine: PostgresEngine, enqueue: Any, postgres_schema: str
) -> None:
    """Until its time is over, and then it is free for SQL as well."""
    held = Draft(mint(), "work", unique=Unique("k", for_=3_600))
    await engine.jobs.insert([held])
    [claim] = await engine.jobs.claim(Demand("w1", (("default", 1),)))
    await engine.jobs.settle([conclude(claim, Done())])
    assert enqueue("'work', unique_key => 'k'") == held.job_id
    enqueue.connection.execute(f"update {postgres_schema}.dedupe set until = 1".encode())
    job = enqueue("'work', unique_key => 'k'")
    assert job != held.job_id
    assert enqueue("'work', unique_key => 'k'") == job


@pytest.mark.spec("PGSQL-02")
async def test_a_retrying_holder_gives_way_to_sql(engine: PostgresEngine, enqueue: Any) -> None:
    """It ends dead, superseded, and is counted so, as with an insert from Python."""
    await engine.jobs.insert([Draft(mint(), "work", unique=Unique("k"))])
    [claim] = await engine.jobs.claim(Demand("w1", (("default", 1),)))
    await engine.jobs.settle([conclude(claim, Failed("boom", after=HOUR))])
    job = enqueue("'work', unique_key => 'k'")
    enqueue.connection.commit()
    old, new = await engine.operator.get([claim.id, job])
    assert old is not None
    assert new is not None
    assert (old.status, old.last_error, new.status) == (Status.DEAD, SUPERSEDED, Status.PENDING)
    assert {s: n for s, n in (await engine.operator.census()).by_status().items() if n} == {
        Status.DEAD: 1,
        Status.PENDING: 1,
    }


@pytest.mark.spec("PGSQL-03")
@pytest.mark.parametrize(
    "values",
    [
        "'a b'",
        "null",
        "'k', queue => ''",
        "'k', null",
        "'k', priority => 1001",
        "'k', attempts => 0",
        "'k', delay => '-1 second'",
        "'k', delay => '11 years'",
        "'k', unique_key => ''",
        "'k', unique_key => 'x', unique_scope => 'queue'",
        "'k', tenant => repeat('x', 513)",
        "'k', to_json(repeat('x', 1048576))",
        "'k', id => '01a3185c-5000-8632-a706-b9c4bf5880cb'",
    ],
)
async def test_what_no_draft_may_say_is_refused(engine: PostgresEngine, enqueue: Any, values: str) -> None:
    """The function checks what `Draft` checks, and nothing is stored."""
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="Nothing was stored"):
        enqueue(values)
    enqueue.connection.rollback()
    assert sum((await engine.operator.census()).by_status().values()) == 0


@pytest.mark.spec("PGSQL-03")
@pytest.mark.parametrize("text", TAKEN)
async def test_json_that_a_draft_takes_is_stored_unchanged(engine: PostgresEngine, enqueue: Any, text: str) -> None:
    """Byte for byte, and a worker can read it."""
    job = enqueue("'k', %s::json", text)
    enqueue.connection.commit()
    [record] = await engine.operator.get([job])
    assert record is not None
    assert record.payload == text.encode()


@pytest.mark.spec("PGSQL-03")
@pytest.mark.parametrize("text", REFUSED)
async def test_json_that_a_draft_refuses_is_refused(engine: PostgresEngine, enqueue: Any, text: str) -> None:
    """In the words of the same rule, and nothing is stored."""
    with pytest.raises(InvalidInput) as refusal:
        encode_payload(Raw(text.encode()))
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="Nothing was stored") as error:
        enqueue("'k', %s::json", text)
    said = refusal.value.why.replace("4,300", "4300")
    assert f"payload: {said}. Nothing was stored." in str(error.value)
    enqueue.connection.rollback()
    assert sum((await engine.operator.census()).by_status().values()) == 0


@pytest.mark.spec("PGSQL-04")
async def test_a_trigger_can_enqueue(engine: PostgresEngine, enqueue: Any, postgres_schema: str) -> None:
    """One job per row, if and only if the rows are there."""
    enqueue.connection.execute(
        f"""
        set search_path = {postgres_schema};
        create table orders (n int);
        create function noticed() returns trigger language plpgsql as
        $$ begin perform {postgres_schema}.enqueue('order', json_build_object('n', new.n)); return null; end $$;
        create trigger noticed after insert on orders for each row execute function noticed();
        insert into orders select generate_series(1, 3)""".encode()
    )
    enqueue.connection.commit()
    claims = await engine.jobs.claim(Demand("w1", (("default", 5),)))
    assert sorted(claim.payload for claim in claims) == [b'{"n" : 1}', b'{"n" : 2}', b'{"n" : 3}']


@pytest.mark.spec("PGSQL-03")
def test_the_function_repeats_the_rules_word_for_word() -> None:
    """SQL cannot import the model: a rule that changes must change here too."""
    text = "\n".join(migration.text for migration in MIGRATIONS)
    function = text[text.rindex("FUNCTION stoker.json_fault(") :]
    plain = Draft(job_id=mint(), kind="k", queue="q", payload=b"{}")
    everywhere = TRAITS.index(("global", "existing", "active"))
    for rule in (
        f"attempts integer DEFAULT {plain.attempts},",
        f"priority integer DEFAULT {plain.priority},",
        f"attempts NOT BETWEEN 1 AND {MOST_ATTEMPTS},",
        f"payload::text) > {LARGEST_PAYLOAD} ",
        f"priority NOT BETWEEN {PRIORITIES[0]} AND {PRIORITIES[-1]},",
        f"wait NOT BETWEEN 0 AND {LONGEST},",
        f"octet_length(unique_key) NOT BETWEEN 1 AND {LONGEST_KEY} ",
        f"WHEN 'global' THEN {everywhere} ELSE {TRAITS.index(('kind', 'existing', 'active'))} END",
        f"q.name = gone.queue), {KEEP_DEAD})",
        f"'{SUPERSEDED}'",
        f"length(piece) > {DIGITS_LIMIT} ",
        f"FOR level IN 1..{DEPTH_LIMIT} LOOP",
        f"get_byte(uuid_send(enqueue.id), 6) >> 4 = {ids.DERIVED} ",
    ):
        assert rule in function, rule
