"""Insert: a draft becomes a pending job, exactly as it was given."""

from __future__ import annotations

import pytest

from stoker.engines.base import Feature
from stoker.model.errors import InvalidInput, InvalidName, PayloadTooLarge
from stoker.model.job import (
    LARGEST_BATCH,
    LARGEST_PAYLOAD,
    MOST_ATTEMPTS,
    PLAIN,
    Draft,
    Job,
    Options,
    Receipt,
    Status,
    Stored,
)
from stoker.model.outcome import Done, Failed
from stoker.model.query import Delete, Selection
from stoker.model.retry import Backoff, Delays, Exponential, Fixed, Linear, Never
from stoker.model.time import DAY, HOUR, LONGEST, MINUTE, SECOND
from stoker.model.unique import LONGEST_KEY, Unique
from stoker.testing.conformance.harness import Store, needs

_HOSTILE = "'; drop table jobs; -- \" \\ % _ {x} \n\t\r é 日本 🧨 \u2028"
_PAYLOADS = {
    "null": b"null",
    "empty list": b"[]",
    "empty object": b"{}",
    "nested empties": b'{"a":[],"b":{},"c":[[],{}]}',
    "huge integer": str(2**70).encode(),
    "negative huge integer": str(-(2**70)).encode(),
    "above 53 bits": b'{"n":9007199254740993}',
    "long decimal": b"0.1000000000000000055511151231257827021181583404541015625",
    "many digits": b"3." + b"14159265" * 20,
    "exponent": b'{"x":1E+2,"y":-0.0,"z":1e-300}',
    "odd spacing": b' { "b" : 1 ,\n\t"a" : [ 1 , 2 ] } ',
    "key order": b'{"z":1,"a":2,"m":3}',
    "not ASCII": '{"größe":"日本語 🧨"}'.encode(),
    "escapes": b'"\\u00e9\\ud83e\\udde8\\n\\/"',
    "separators": '"\u2028\u2029\u0085"'.encode(),
    "a bare text": b'"text"',
    "true": b"true",
}


@pytest.mark.core
@pytest.mark.spec("INSERT-01")
async def test_a_bare_draft_becomes_a_pending_job_with_the_defaults(store: Store) -> None:
    """Queue default, priority 0, no attempt made, five allowed, due now, nothing claimed, nothing failed."""
    job = await store.add("work")
    assert await store.job(job) == Job(
        id=job,
        kind="work",
        queue="default",
        payload=b"{}",
        status=Status.PENDING,
        priority=0,
        attempts=0,
        base=0,
        budget=5,
        created_at=store.now(),
        scheduled_at=store.now(),
    )


@pytest.mark.spec("INSERT-02")
async def test_every_field_of_a_draft_reaches_the_record(store: Store) -> None:
    """Kind, queue, payload, priority, schedule, budget, key, tenant and options are stored as given."""
    options = Options(Linear(1, 2, 60, 3), 30 * SECOND, HOUR, DAY, {"from": "here"}, "process", label="image 7")
    unique = Unique("img:7", scope=store.scope, mode="replace", hold="retrying")
    draft = store.draft(
        "resize.image:v2",
        payload=b'{"id":7}',
        queue="media",
        priority=-3,
        delay=MINUTE,
        attempts=9,
        unique=unique,
        tenant="acme",
        options=options,
    )
    await store.insert(draft)
    job = await store.job(draft.job_id)
    assert (job.kind, job.queue, job.payload, job.priority) == ("resize.image:v2", "media", b'{"id":7}', -3)
    assert (job.scheduled_at, job.budget, job.unique, job.tenant) == (store.now() + MINUTE, 9, unique, "acme")
    assert job.options == options


@pytest.mark.spec("INSERT-02")
@pytest.mark.parametrize(
    "backoff",
    [None, Never(), Fixed(2.5, 3), Linear(1, 2), Exponential(0.1, 3, 7, 4, "full"), Delays(10, 30, 60)],
    ids=["none", "never", "fixed", "linear", "exponential", "delays"],
)
async def test_a_backoff_travels_with_the_job(store: Store, backoff: Backoff | None) -> None:
    """Every retry strategy comes back equal, from the record and from the claim."""
    job = await store.add(options=Options(backoff=backoff))
    assert (await store.job(job)).options.backoff == backoff
    assert (await store.take()).options.backoff == backoff


@pytest.mark.spec("INSERT-02")
async def test_a_plain_job_has_plain_options(store: Store) -> None:
    """A draft that asks for nothing special comes back asking for nothing special."""
    job = await store.add()
    assert (await store.job(job)).options == PLAIN
    assert (await store.take()).options == PLAIN


@pytest.mark.core
@pytest.mark.spec("INSERT-03")
@pytest.mark.parametrize("name", _PAYLOADS)
async def test_a_payload_is_kept_byte_for_byte(store: Store, name: str) -> None:
    """The bytes that went in come out of the record, of the claim, and of the claim after a retry."""
    payload = _PAYLOADS[name]
    job = await store.add(payload=payload)
    assert (await store.job(job)).payload == payload
    claim = await store.take()
    assert claim.payload == payload
    await store.finish(claim, Failed("boom", after=0))
    assert (await store.take()).payload == payload
    assert (await store.job(job)).payload == payload


@pytest.mark.spec("INSERT-03")
async def test_the_largest_payload_fits(store: Store) -> None:
    """A payload of exactly one mebibyte is stored and handed out whole."""
    payload = b'"' + b"x" * (LARGEST_PAYLOAD - 2) + b'"'
    job = await store.add(payload=payload)
    assert (await store.take()).payload == payload
    assert (await store.job(job)).payload == payload


@pytest.mark.core
@pytest.mark.spec("INSERT-04")
async def test_receipts_come_in_the_order_of_the_drafts(store: Store) -> None:
    """Each draft gets its own receipt in its own position, new or not."""
    held = await store.add(unique=Unique("k"))
    drafts = [store.draft(), store.draft(unique=Unique("k")), store.draft(queue="other"), store.draft()]
    receipts = await store.engine.jobs.insert(drafts)
    assert receipts == [
        Receipt(drafts[0].job_id, Stored.INSERTED),
        Receipt(held, Stored.EXISTING),
        Receipt(drafts[2].job_id, Stored.INSERTED),
        Receipt(drafts[3].job_id, Stored.INSERTED),
    ]


@pytest.mark.spec("INSERT-04")
async def test_inserting_nothing_answers_nothing(store: Store) -> None:
    """An empty list is fine and leaves an empty store."""
    assert await store.engine.jobs.insert([]) == []
    assert await store.counts() == {}


@pytest.mark.spec("INSERT-05")
async def test_a_thousand_drafts_go_in_one_call(store: Store) -> None:
    """The largest batch is stored as a whole and claimed in the order of the list."""
    drafts = [store.draft() for _ in range(LARGEST_BATCH)]
    assert await store.insert(*drafts) == [draft.job_id for draft in drafts]
    assert await store.counts() == {Status.PENDING: LARGEST_BATCH}
    assert [claim.id for claim in await store.claim(n=LARGEST_BATCH)] == [draft.job_id for draft in drafts]


@pytest.mark.core
@pytest.mark.spec("INSERT-06")
async def test_the_same_draft_again_is_the_same_job(store: Store) -> None:
    """A call repeated after a lost reply stores nothing new and returns the id."""
    draft = store.draft(payload=b"1")
    assert await store.engine.jobs.insert([draft]) == [Receipt(draft.job_id, Stored.INSERTED)]
    before = await store.snapshot([draft.job_id])
    store.pass_time(SECOND)
    assert await store.engine.jobs.insert([draft]) == [Receipt(draft.job_id, Stored.EXISTING)]
    assert await store.snapshot([draft.job_id]) == before


@pytest.mark.spec("INSERT-06")
async def test_a_known_id_wins_over_everything_else_the_draft_says(store: Store) -> None:
    """Another kind, queue, payload or key under a stored id changes nothing."""
    needs(store, Feature.ACROSS_QUEUES)
    first = store.draft("one", payload=b"1")
    await store.insert(first)
    other = Draft(first.job_id, "two", b"2", "elsewhere", 5, MINUTE, None, 9, Unique("k", mode="raise"), "acme")
    before = await store.snapshot([first.job_id])
    assert await store.engine.jobs.insert([other]) == [Receipt(first.job_id, Stored.EXISTING)]
    assert await store.snapshot([first.job_id]) == before
    assert await store.engine.jobs.insert([store.draft("two", unique=Unique("k", mode="raise"))])


@pytest.mark.spec("INSERT-06")
async def test_a_keyed_draft_again_does_not_meet_itself(store: Store) -> None:
    """A repeated call with a refusing key is harmless: the id is known, so nothing is refused."""
    draft = store.draft(unique=Unique("k", mode="raise"))
    await store.insert(draft)
    assert await store.engine.jobs.insert([draft]) == [Receipt(draft.job_id, Stored.EXISTING)]


@pytest.mark.spec("INSERT-06")
async def test_an_id_twice_in_one_call_is_one_job(store: Store) -> None:
    """The second draft of the same id is existing; the first one is stored."""
    draft = store.draft(payload=b"1")
    twin = Draft(draft.job_id, "work", b"2")
    receipts = await store.engine.jobs.insert([draft, twin])
    assert receipts == [Receipt(draft.job_id, Stored.INSERTED), Receipt(draft.job_id, Stored.EXISTING)]
    assert (await store.job(draft.job_id)).payload == b"1"
    assert await store.counts() == {Status.PENDING: 1}


@pytest.mark.spec("INSERT-06")
async def test_a_known_id_is_known_also_after_the_job_ended(store: Store) -> None:
    """A very late repetition of an enqueue does not run a finished job again."""
    draft = store.draft()
    await store.insert(draft)
    await store.finish(await store.take(), Done())
    assert await store.engine.jobs.insert([draft]) == [Receipt(draft.job_id, Stored.EXISTING)]
    assert await store.status(draft.job_id) is Status.DONE
    assert await store.claim() == []


@pytest.mark.spec("INSERT-07")
async def test_equal_drafts_without_a_key_are_two_jobs(store: Store) -> None:
    """Only a key or an id makes two enqueues one job."""
    one, two = store.draft(payload=b"1"), store.draft(payload=b"1")
    await store.insert(one, two)
    assert await store.counts() == {Status.PENDING: 2}


@pytest.mark.core
@pytest.mark.spec("INSERT-08")
async def test_a_delay_counts_from_the_stores_now(store: Store) -> None:
    """A delayed job is due its delay after the insert, by the store's clock."""
    store.pass_time(HOUR)
    job = await store.add(delay=90 * SECOND)
    assert (await store.job(job)).scheduled_at == store.now() + 90 * SECOND
    assert await store.status(job) is Status.PENDING


@pytest.mark.spec("INSERT-08")
async def test_a_given_moment_is_kept_exactly(store: Store) -> None:
    """A run time in the future or in the past is stored to the microsecond."""
    for at in (store.now() + 1, store.now() - 1, 0, store.now() + LONGEST):
        assert (await store.job(await store.add(at=at))).scheduled_at == at


@pytest.mark.spec("INSERT-08")
async def test_the_longest_delay_is_survivable(store: Store) -> None:
    """Ten years ahead is a time like any other."""
    job = await store.add(delay=LONGEST)
    assert (await store.job(job)).scheduled_at == store.now() + LONGEST
    assert await store.claim() == []


@pytest.mark.spec("INSERT-08")
async def test_jobs_of_the_future_are_counted_as_scheduled(store: Store) -> None:
    """The census separates pending jobs that are due from those that are not, per queue."""
    await store.insert(
        store.draft(),
        store.draft(delay=1),
        store.draft(delay=HOUR),
        store.draft(delay=0),
        store.draft(queue="other", delay=MINUTE),
    )
    census = await store.engine.operator.census()
    assert census.later == {"default": 2, "other": 1}
    assert (census.ready("default"), census.ready("other")) == (2, 0)
    store.pass_time(1)
    assert (await store.engine.operator.census()).ready("default") == 3


@pytest.mark.spec("INSERT-09")
async def test_hostile_text_is_only_text(store: Store) -> None:
    """Keys, tenants, metadata and payloads may look like statements and are stored verbatim."""
    unique = Unique(_HOSTILE)
    options = Options(metadata={_HOSTILE: _HOSTILE})
    job = await store.add(unique=unique, tenant=_HOSTILE, options=options)
    stored = await store.job(job)
    assert (stored.unique, stored.tenant, stored.options) == (unique, _HOSTILE, options)
    claim = await store.take()
    assert (claim.unique, claim.tenant, claim.options) == (unique, _HOSTILE, options)
    assert await store.counts() == {Status.RUNNING: 1}


@pytest.mark.spec("INSERT-09")
async def test_names_at_their_limits_are_kept(store: Store) -> None:
    """The longest kind, queue, key and tenant survive, and so do all characters of the alphabet of names."""
    name = "_Az09.:-" + "x" * 120
    text = "k" * LONGEST_KEY
    job = await store.add(name, queue=name, unique=Unique(text), tenant=text)
    stored = await store.job(job)
    assert (stored.kind, stored.queue, stored.tenant) == (name, name, text)
    assert stored.unique == Unique(text)
    assert (await store.take(queue=name)).id == job


@pytest.mark.spec("INSERT-09")
async def test_numbers_at_their_limits_are_kept(store: Store) -> None:
    """The ends of priority and the largest budget are stored exactly."""
    low, high = await store.insert(
        store.draft(priority=-1000, attempts=MOST_ATTEMPTS), store.draft(priority=1000, attempts=1)
    )
    assert ((await store.job(low)).priority, (await store.job(low)).budget) == (-1000, MOST_ATTEMPTS)
    assert ((await store.job(high)).priority, (await store.job(high)).budget) == (1000, 1)


@pytest.mark.spec("INSERT-10", "INPUT-01")
@pytest.mark.parametrize(
    "options",
    [
        {"kind": ""},
        {"kind": "no spaces"},
        {"queue": "a,b"},
        {"queue": "x" * 129},
        {"priority": 1001},
        {"priority": -1001},
        {"attempts": 0},
        {"attempts": MOST_ATTEMPTS + 1},
        {"delay": -1},
        {"delay": LONGEST + 1},
        {"at": -1},
        {"at": 1, "delay": 1},
        {"payload": b" " * (LARGEST_PAYLOAD + 1)},
        {"tenant": ""},
        {"job_id": b"short"},
    ],
    ids=lambda options: "-".join(f"{name}={str(value)[:12]}" for name, value in options.items()),
)
async def test_an_impossible_draft_never_reaches_the_store(store: Store, options: dict[str, object]) -> None:
    """A wrong value is refused where the draft is made, by name; the store does not see it."""
    with pytest.raises(InvalidInput) as refused:
        await store.engine.jobs.insert([store.draft(), store.draft(**{"kind": "work", **options})])  # type: ignore[arg-type]
    assert refused.value.field in {*options, "delay", "at"}
    if {"kind", "queue"} & options.keys():
        assert isinstance(refused.value, InvalidName)
    if "payload" in options:
        assert isinstance(refused.value, PayloadTooLarge)
    assert await store.counts() == {}


@pytest.mark.spec("INSERT-11")
async def test_a_queue_needs_no_introduction(store: Store) -> None:
    """Inserting into a queue that was never tuned works, and the queue is listed from then on."""
    await store.add(queue="brand.new")
    assert "brand.new" in [queue.name for queue in await store.engine.control.queues()]
    assert (await store.take(queue="brand.new")).queue == "brand.new"


@pytest.mark.spec("INSERT-12")
async def test_a_deleted_id_leaves_no_gap_in_front_of_others(store: Store) -> None:
    """A removed job does not make a claim empty: the next one of the queue is claimed instead."""
    first, second = await store.insert(store.draft(), store.draft())
    tally = await store.engine.operator.alter(Selection((first,)), Delete())
    assert tally.changed == 1
    assert await store.gone(first)
    assert [claim.id for claim in await store.claim(n=1)] == [second]


@pytest.mark.spec("INSERT-13")
async def test_enqueued_totals_count_only_new_jobs(store: Store) -> None:
    """Repeated ids and taken keys are not counted as enqueued."""
    draft = store.draft("mail", unique=Unique("k"))
    await store.insert(draft, store.draft("mail"))
    await store.insert(draft, store.draft("mail", unique=Unique("k")))
    assert (await store.engine.operator.census()).totals["mail"].enqueued == 2
