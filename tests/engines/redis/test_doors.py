"""Insert, claim and settle on Redis: what the contract does not say, because only this store has it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from stoker.engines.base import CONTROL
from stoker.engines.redis import RedisEngine, connection, wakeup
from stoker.engines.url import engine_from_url
from stoker.model.control import Tuning
from stoker.model.errors import EngineFull, EngineRefused, EngineUnavailable, InvalidOption
from stoker.model.job import Claim, Demand, Draft, Options, Settlement, Status, Stored, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, HandedBack
from stoker.model.query import Clone, Selection
from stoker.model.throttle import Rate
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.clock import VirtualClock
from tests import services
from tests.harness.proxy import Proxy

pytestmark = pytest.mark.engine("redis")

START = 1_800_000_000_000_000


def draft(kind: str = "work", **options: Any) -> Draft:
    return Draft(secrets.token_bytes(16), kind, **options)


async def take(engine: RedisEngine, n: int = 100, worker: str = "w1", queue: str = "default") -> list[Claim]:
    if not (await engine.jobs.renew(worker, [])).known:
        await engine.jobs.renew(worker, [], first=True)
    return await engine.jobs.claim(Demand(worker, ((queue, n),)))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
async def engine(redis_url: str, redis_prefix: str, clock: VirtualClock) -> AsyncIterator[RedisEngine]:
    found = RedisEngine(redis_url, prefix=redis_prefix, clock=clock)
    await found.open()
    yield found
    await found.close()


@pytest.fixture
def client(redis_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_url) as found:
        yield found


def stored_keys(client: redis.Redis, prefix: str) -> set[str]:
    return {key.decode().partition("}:")[2] for key in client.scan_iter(match=f"{{{prefix}*", count=1_000)}


@pytest.mark.spec("REDIS-01")
async def test_jobs_that_are_not_kept_leave_nothing_behind(
    engine: RedisEngine, client: redis.Redis, redis_prefix: str
) -> None:
    """Whatever a job had, it is gone: body, state, key, history, notes, lists and indexes."""
    gone = Options(keep=0)
    await engine.jobs.insert(
        [draft(unique=Unique("k"), options=gone), draft(options=gone), draft(delay=1, options=gone)]
    )
    claims = await take(engine)
    await engine.jobs.settle([conclude(claim, Failed("no", after=0), metadata={"a": "b"}) for claim in claims])
    claims = await take(engine)
    assert len(claims) == 2
    assert set((await engine.jobs.settle([conclude(claim, Done(b"1")) for claim in claims])).verdicts) == {
        Verdict.APPLIED
    }
    assert stored_keys(client, redis_prefix) <= {
        "jobs", "wait:default", "wake:default", "counts", "totals", "queues", "clock", "leases", "workers", "writes",
    }  # fmt: skip
    assert client.zcard(f"{{{redis_prefix}}}:jobs") == 1


@pytest.mark.spec("REDIS-02")
async def test_scripts_touch_only_the_keys_they_declare(
    engine: RedisEngine, client: redis.Redis, redis_prefix: str, clock: VirtualClock
) -> None:
    """Every command a script ran names a key that the call declared: what a cluster needs."""
    with client.monitor() as monitor:  # type: ignore[no-untyped-call]
        await engine.jobs.insert([draft(), draft(unique=Unique("k")), draft(queue="other", delay=HOUR)])
        claims = await take(engine)
        await engine.jobs.settle([conclude(claims[0], Failed("no", after=0))], demand=Demand("w1", (("default", 5),)))
        await engine.jobs.settle([conclude(claims[1], Done(b"1", followups=(draft(queue="third"),)))])
        clock.set(START + HOUR)
        await engine.jobs.renew("w2", [], first=True)
        assert len(await engine.jobs.reap("w2", 10)) == 1
        await engine.jobs.insert([draft(queue=redis_prefix)])
        declared: set[bytes] = set()
        seen = 0
        for command in monitor.listen():
            words = command["command"].split(" ")
            if words[0] in ("EVALSHA", "EVAL"):
                at = 2 if words[0] == "EVALSHA" else words.index(next(word for word in words[2:] if word.isdecimal()))
                declared = set(words[at + 1 : at + 1 + int(words[at])])
            elif command["client_type"] == "lua" and words[0] != "TIME":
                seen += 1
                assert words[1] in declared, command["command"]
            if f"wake:{redis_prefix}" in command["command"] and words[0] == "RPUSH":
                break
    assert seen > 50


@pytest.mark.spec("REDIS-03")
async def test_enqueues_of_one_moment_share_a_call(engine: RedisEngine, client: redis.Redis) -> None:
    """A hundred callers at once cost a few calls, and each gets its own answer."""
    await engine.jobs.insert([draft()])
    drafts = [draft() for _ in range(100)]
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    receipts = await asyncio.gather(*(engine.jobs.insert([one]) for one in drafts))
    assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before <= 5
    assert [receipt.id for [receipt] in receipts] == [one.job_id for one in drafts]
    assert {receipt.stored for [receipt] in receipts} == {Stored.INSERTED}


@pytest.mark.spec("REDIS-03")
async def test_a_caller_that_leaves_does_not_take_others_along(engine: RedisEngine) -> None:
    """Of enqueues that share a call one is canceled: the others are answered."""
    mine, theirs = draft(), draft()
    leaving = asyncio.create_task(engine.jobs.insert([mine]))
    staying = asyncio.create_task(engine.jobs.insert([theirs]))
    await asyncio.sleep(0)
    leaving.cancel()
    assert (await staying)[0].stored is Stored.INSERTED
    await asyncio.gather(leaving, return_exceptions=True)


@pytest.mark.spec("REDIS-04")
async def test_forgotten_scripts_are_loaded_again(engine: RedisEngine, client: redis.Redis) -> None:
    """The server forgets all scripts between any two calls, and no caller notices."""
    for n in range(3):
        client.script_flush()
        await engine.jobs.insert([draft()])
        client.script_flush()
        [claim] = await take(engine)
        client.script_flush()
        assert (await engine.jobs.settle([conclude(claim, Done())])).verdicts == [Verdict.APPLIED], n
        client.script_flush()
        assert (await engine.operator.census()).by_status()[Status.DONE] == n + 1


@pytest.mark.spec("NETFAULT-08")
async def test_a_lost_connection_is_replaced(redis_url: str) -> None:
    async with asyncio.timeout(10):
        calls = connection.Connection(connection.read_url(redis_url, ()), timeout=5, patience=5)
        await calls.open()
        try:
            for repeat in (True, False):
                assert await calls.call("PING") == b"PONG"
                assert calls._node is not None
                [(_, socket)] = calls._node._idle
                assert socket._writer is not None
                socket._writer.transport.abort()
                await asyncio.sleep(0)  # the transport forgets its loop
                if repeat:
                    assert await calls.call("PING") == b"PONG"
                else:
                    with pytest.raises(EngineUnavailable, match="cannot be reached"):
                        await calls.call("PING", repeat=False)
        finally:
            await calls.close()


@pytest.mark.spec("REDIS-05")
async def test_workers_go_on_where_nothing_more_can_be_stored() -> None:
    """At the memory limit an enqueue is refused, and claims, renewals and settlements make room."""
    with services.redis_server(maxmemory_policy="noeviction") as server, redis.Redis.from_url(server.url) as client:
        engine = RedisEngine(server.url)
        await engine.open()
        try:
            await engine.jobs.insert([draft(payload=b'"%s"' % (b"x" * 1000)) for _ in range(200)])
            await engine.jobs.renew("w1", [], first=True)
            client.config_set("maxmemory", client.info("memory")["used_memory"] - 1)
            with pytest.raises(EngineFull):
                await engine.jobs.insert([draft()])
            assert (await engine.operator.census()).by_status()[Status.PENDING] == 200
            claims = await engine.jobs.claim(Demand("w1", (("default", 100),)))
            assert len(claims) == 100
            half = [conclude(claim, Failed("no", after=0)) for claim in claims[50:]]
            done = [Settlement(one.id, "w1", one.token, Status.DONE, keep=0, ref=one.ref) for one in claims[:50]]
            settled = await engine.jobs.settle([*done, *half], demand=Demand("w1", (("default", 10),)))
            assert set(settled.verdicts) == {Verdict.APPLIED}
            assert len(settled.claims) == 10
        finally:
            await engine.close()


@pytest.mark.spec("REDIS-06")
async def test_a_mark_far_ahead_is_dropped_and_leases_with_it(
    engine: RedisEngine, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A clock that was an hour ahead is believed no longer; no lease lasts for that hour, and tokens still rise."""
    [receipt] = await engine.jobs.insert([draft()])
    clock.set(START + HOUR)
    [ahead] = await take(engine, worker="w1")
    clock.set(START)
    await engine.jobs.renew("w2", [], first=True)
    assert "went back by more than a minute" in caplog.text
    clock.set(START + MINUTE)
    await engine.jobs.renew("w2", [])
    [taken] = await engine.jobs.reap("w2", 10)
    assert (taken.id, taken.former) == (receipt.id, "w1")
    assert taken.token > ahead.token
    assert (await engine.jobs.settle([conclude(ahead, Done())])).verdicts == [Verdict.LOST]


@pytest.mark.spec("REDIS-06")
async def test_a_clock_that_steps_back_a_little_shows_the_mark(engine: RedisEngine, clock: VirtualClock) -> None:
    """The store's time never goes back by less than a minute."""
    clock.set(START + 30 * SECOND)
    await engine.jobs.insert([draft()])
    clock.set(START)
    assert await engine.now() == START + 30 * SECOND
    assert len(await take(engine)) == 1


@pytest.mark.spec("REDIS-07")
async def test_a_token_that_no_waiter_took_goes_back(engine: RedisEngine, redis_url: str, redis_prefix: str) -> None:
    """Waiters come and go while tokens are put in; every token releases a waiter, here or on another engine."""
    other = RedisEngine(redis_url, prefix=redis_prefix)
    await other.open()
    try:
        for n in range(20):
            left = asyncio.create_task(engine.jobs.wait(["mail"], 5))
            await asyncio.sleep(0.002 * (n % 5))
            waking = asyncio.create_task(other.jobs.wake(["mail"]))
            left.cancel()
            await asyncio.gather(left, waking, return_exceptions=True)
            assert await other.jobs.wait(["mail"], 5) == {"mail"}
            assert await other.jobs.wait(["mail"], 0.01) == frozenset()
    finally:
        await other.close()


@pytest.mark.spec("REDIS-15")
async def test_a_second_wait_blocks_on_the_same_connection(engine: RedisEngine, client: redis.Redis) -> None:
    """A connection for every wake-up would cost more than everything else about a job."""
    seen = set()
    for _ in range(3):
        waiting_ = asyncio.create_task(engine.jobs.wait(["mail"], 5))
        blocked: set[str] = set()
        while not blocked:
            await asyncio.sleep(0.001)
            blocked = {one["id"] for one in client.client_list() if one["cmd"] == "blpop"}
        seen |= blocked
        await engine.jobs.wake(["mail"])
        assert await waiting_ == {"mail"}
    assert len(seen) == 1


@pytest.mark.spec("REDIS-07")
async def test_the_last_of_many_claims_wakes_the_next_worker(engine: RedisEngine) -> None:
    """A worker that took all it could leaves a token when there is more; one that emptied the queue leaves none."""
    await engine.jobs.insert([draft() for _ in range(3)])
    assert await engine.jobs.wait(["default"], 5) == {"default"}
    await take(engine, 2)
    assert await engine.jobs.wait(["default"], 5) == {"default"}
    await take(engine, 2, worker="w2")
    assert await engine.jobs.wait(["default"], 0.01) == frozenset()


@pytest.mark.spec("REDIS-08")
async def test_settlements_that_share_jobs_or_keys_keep_their_order(engine: RedisEngine) -> None:
    """The same job twice, follow-ups that take the key their parent lets go, and plain ones in one call."""
    await engine.jobs.insert([draft(unique=Unique("k")), draft(), draft()])
    one, two, three = sorted(await take(engine), key=lambda claim: claim.unique is None)
    heir = draft(unique=Unique("k"))
    late = draft(unique=Unique("k"))
    settled = await engine.jobs.settle(
        [
            conclude(three, Done()),
            conclude(one, Done(followups=(heir,))),
            conclude(three, Done()),
            conclude(two, Done(followups=(late,))),
        ]
    )
    assert settled.verdicts == [Verdict.APPLIED, Verdict.APPLIED, Verdict.REPEATED, Verdict.APPLIED]
    assert [job is not None for job in await engine.operator.get([heir.job_id, late.job_id])] == [True, False]


@pytest.mark.spec("REDIS-09")
async def test_a_settlement_without_its_ref_is_as_good(engine: RedisEngine, clock: VirtualClock) -> None:
    """What a claim's ref would have told is read: the key is let go, the counts are right."""
    await engine.jobs.insert([draft(unique=Unique("k"))])
    [claim] = await take(engine)
    bare = Settlement(claim.id, claim.worker, claim.token, Status.DEAD, error="no", metadata={"a": "b"})
    assert (await engine.jobs.settle([bare])).verdicts == [Verdict.APPLIED]
    assert (await engine.jobs.insert([draft(unique=Unique("k"))]))[0].stored is Stored.INSERTED
    [job] = await engine.operator.get([claim.id])
    assert job is not None
    assert (job.status, job.metadata) == (Status.DEAD, {"a": "b"})
    await engine.operator.alter(Selection((claim.id,)), Clone((secrets.token_bytes(16),)))
    clock.set(START + SECOND)
    assert (await engine.operator.census()).by_status()[Status.PENDING] == 1


@pytest.mark.spec("REDIS-10")
def test_options_come_from_the_keyword_or_the_url() -> None:
    """Our own options are taken out of the URL, the rest is the driver's; a wrong one is refused by name."""
    found = engine_from_url("redis://localhost/0?prefix=shop&timeout=2.5&patience=1", prefix="other")
    assert isinstance(found, RedisEngine)
    assert (found._options.prefix, found._options.timeout, found._options.patience) == ("other", 2.5, 1.0)
    assert "prefix" not in found._options.address.url
    said = RedisEngine("redis://localhost/0?timeout=2.5&prefix=shop", timeout=5.0, prefix="stoker")
    assert (said._options.prefix, said._options.timeout) == ("stoker", 5.0), "a default counts too, if it is given"
    with pytest.raises(InvalidOption, match="timeout"):
        engine_from_url("redis://localhost/0?timeout=soon")
    with pytest.raises(InvalidOption, match="patiense"):
        engine_from_url("redis://localhost/0", patiense=1)


@pytest.mark.spec("REDIS-11")
async def test_a_password_is_never_shown(redis_url: str) -> None:
    """Neither a wrong password nor a server that is away shows what stood in the URL."""
    for url in (redis_url.replace("redis://", "redis://user:hunter2@"), "redis://user:hunter2@127.0.0.1:1/0"):
        engine = RedisEngine(url, timeout=0.5, patience=0.1)
        with pytest.raises(Exception) as refused:
            await engine.open()
        assert "hunter2" not in f"{refused.value!r}"


@pytest.mark.spec("REDIS-12")
async def test_transactions_are_refused(engine: RedisEngine) -> None:
    """Redis holds nothing back for a user's commit, and refuses by name."""
    with pytest.raises(EngineRefused, match="tx="):
        async with engine.transaction():
            raise AssertionError
    await engine.jobs.insert([draft()])
    [claim] = await take(engine)
    with pytest.raises(EngineRefused, match="object"):
        await engine.jobs.settle([conclude(claim, HandedBack())], tx=object())


@pytest.mark.spec("REDIS-13")
async def test_a_silent_subscription_is_noticed(
    redis_url: str, redis_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscription that went half open is replaced, and what may have been missed counts as a wake-up."""
    monkeypatch.setattr(wakeup, "LONGEST_SILENCE", 0.05)
    monkeypatch.setattr(wakeup, "PAUSE", 0.02)
    monkeypatch.setattr(connection, "BLOCKING_MARGIN", 0.2)
    with Proxy(redis_url) as proxy:
        engine = RedisEngine(proxy.url, prefix=redis_prefix)
        await engine.open()
        try:
            assert await engine.jobs.wait([CONTROL], 0.2) == frozenset()
            proxy.blackhole()
            before = proxy.connections
            asleep = asyncio.create_task(engine.jobs.wait([CONTROL], 30))
            await asyncio.to_thread(proxy.wait, lambda: proxy.connections > before, "the silence is noticed")
            proxy.heal()
            assert await asleep == {CONTROL}
        finally:
            await engine.close()


@pytest.mark.spec("REDIS-14")
async def test_a_keyed_enqueue_whose_answer_was_lost_is_told_all_the_same(redis_url: str, redis_prefix: str) -> None:
    """Both ways of storing a keyed job are tried again when the answer is lost, and store it once."""
    with Proxy(redis_url) as proxy:
        engine = RedisEngine(proxy.url, prefix=redis_prefix)
        await engine.open()
        try:
            first, second = draft(unique=Unique("k")), draft(unique=Unique("k", mode="replace"), payload=b"2")
            await engine.jobs.insert([draft()])
            for one in (first, second):
                loss = proxy.lose_reply(one.payload if one is second else b"work/k")
                [receipt] = await engine.jobs.insert([one])
                assert receipt.id == first.job_id
                assert loss.happened
            [job] = await engine.operator.get([first.job_id])
            assert job is not None
            assert (job.payload, job.status) == (b"2", Status.PENDING)
            assert (await engine.operator.census()).by_status()[Status.PENDING] == 2
        finally:
            await engine.close()


@pytest.mark.spec("LEASE-17")
async def test_after_a_start_of_the_server_a_lease_has_its_own_length_to_be_renewed(
    redis_url: str, redis_prefix: str, client: redis.Redis
) -> None:
    engine = RedisEngine(redis_url, prefix=redis_prefix)
    await engine.open()
    for worker, lease in (("w", HOUR), ("long", 10_000 * HOUR), ("short", 1)):
        await engine.jobs.insert([Draft(secrets.token_bytes(16), "work")])
        await engine.jobs.renew(worker, [], first=True)
        assert len(await engine.jobs.claim(Demand(worker, (("default", 1),)))) == 1
        await engine.jobs.renew(worker, [], lease=lease)
    client.zadd(f"{{{redis_prefix}}}:workers", {"long": 0, "short": 0})  # as if it had been down for long
    async with asyncio.timeout(60):
        while not (reaped := await engine.jobs.reap("w", 10)):  # the server may be younger than a second
            await asyncio.sleep(0.05)
    assert [claim.former for claim in reaped] == ["short"]
    assert set(client.hgetall(f"{{{redis_prefix}}}:leases")) == {b"w", b"long"}, "nothing is left of who is gone"
    await engine.close()


@pytest.mark.spec("RATE-13")
async def test_a_claim_is_one_call_with_and_without_a_rate(
    engine: RedisEngine, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim writes the tokens of a queue with a rate in its script, and nothing about other queues."""
    await engine.jobs.insert([draft(queue=queue) for queue in ("plain", "rated") for _ in range(5)])
    await engine.control.tune("rated", Tuning(rate=Rate(3, per=60)))
    await engine.jobs.renew("w1", [], first=True)
    calls: list[str] = []
    run = engine._store.connection.run

    async def counted(script: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(script.name)
        return await run(script, *args, **kwargs)

    monkeypatch.setattr(engine._store.connection, "run", counted)
    key = engine._store.home.key("queues")
    before: Any = client.hgetall(key)
    for queue in ("plain", "rated"):
        assert len(await engine.jobs.claim(Demand("w1", ((queue, 4),)))) == (4 if queue == "plain" else 3)
    assert calls == ["claim", "claim"]
    after: Any = client.hgetall(key)
    assert {field for field in after if after[field] != before.get(field)} == {b"rated/bucket"}


@pytest.mark.spec("RATE-02")
async def test_a_claim_that_used_up_the_tokens_wakes_no_other_worker(engine: RedisEngine) -> None:
    """Jobs are left, but no token: a wake-up would be for nothing. With a token left the next worker is woken."""
    await engine.jobs.insert([draft() for _ in range(9)])
    await engine.control.tune("default", Tuning(rate=Rate(4, per=60)))
    while await engine.jobs.wait(["default"], 0.05):
        pass
    assert len(await take(engine, 2)) == 2
    assert await engine.jobs.wait(["default"], 5) == {"default"}
    assert len(await take(engine, 2)) == 2
    assert await engine.jobs.wait(["default"], 0.05) == frozenset()
