"""Turns on a partition: lease it, advance its cursor, and who may do so."""

from __future__ import annotations

import msgspec
import pytest

from stoker.engines.base import LEASE, outbox_of
from stoker.model.outbox.batch_size import Pace
from stoker.model.outbox.cursor import Consumer, Lease, NothingDue, Terms, fitting
from stoker.model.outbox.delivery import (
    Advanced,
    Delivered,
    Rejected,
    Rejection,
    RetryLater,
    Rules,
    conclude_batch,
)
from stoker.model.outbox.letters import LetterStatus
from stoker.model.outbox.stream import LARGEST_MESSAGE
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.testing.conformance.harness import Store
from stoker.testing.conformance.outbox import Orders, keys

POISON = Rules(attempts=1)


# --- lease ----------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("OUTBOX-38")
async def test_idle_polls_write_nothing(store: Store) -> None:
    """Five calls without messages leave the cursor as it is; the next lease is the first attempt."""
    orders = await Orders.begin(store, partitions=2)
    before = await orders.state()
    for _ in range(5):
        assert await orders.ask() == NothingDue()
    assert await orders.state() == before
    await orders.add("a", partition=1)
    lease = await orders.lease()
    assert (lease.cursor.partition, lease.cursor.attempts, keys(lease)) == (1, 1, ["a"])


@pytest.mark.core
@pytest.mark.spec("OUTBOX-09", "OUTBOX-46", "OUTBOX-47")
async def test_a_partition_has_one_holder_until_its_lease_ends(store: Store) -> None:
    """Not even the holder gets it sooner; it is free at the very end, under a higher token."""
    orders = await Orders.begin(store)
    await orders.add("a")
    first = await orders.lease("w1")
    assert first.cursor.until == store.now() + 30 * SECOND
    assert await orders.ask("w1") == await orders.ask("w2") == NothingDue(30 * SECOND)
    for _ in range(2):
        store.pass_time(10 * SECOND)
        await orders.enlist("w1")
    store.pass_time(10 * SECOND - 1)
    assert await orders.ask("w2") == NothingDue(1)
    await orders.enlist("w1")
    store.pass_time(1)
    second = await orders.lease("w2")
    assert (second.cursor.holder, second.cursor.attempts) == ("w2", 2)
    assert second.cursor.token > first.cursor.token
    assert second.messages[0].attempts == 1


@pytest.mark.core
@pytest.mark.spec("OUTBOX-46")
async def test_a_partition_is_free_when_its_worker_lapsed(store: Store) -> None:
    """The worker's own lease ends before that of the partition."""
    orders = await Orders.begin(store)
    await orders.add("a")
    await orders.lease("w1", terms=Terms(HOUR))
    await orders.enlist("w2")
    store.pass_time(LEASE)
    assert await orders.ask("w2") == NothingDue(HOUR - LEASE)
    store.pass_time(1)
    assert (await orders.lease("w2")).cursor.holder == "w2"


@pytest.mark.spec("OUTBOX-46")
async def test_a_partition_is_free_when_its_worker_released_its_lease(store: Store) -> None:
    """A worker that stops leaves nothing behind; nor does one that was reaped."""
    orders = await Orders.begin(store, partitions=2)
    await orders.add("a")
    await orders.lease("w1")
    await store.engine.jobs.renew("w1", [], lease=0)
    assert (await orders.lease("w2")).cursor.holder == "w2"
    await orders.enlist("w3")
    await store.engine.jobs.reap("w3", 10, dead=["w2"])
    assert (await orders.lease("w3")).cursor.holder == "w3"


@pytest.mark.core
@pytest.mark.spec("OUTBOX-46")
async def test_a_worker_without_a_live_lease_gets_nothing(store: Store) -> None:
    """One that was never seen, and one that lapsed."""
    orders = await Orders.begin(store)
    await orders.add("a")
    assert await orders.engine.lease(orders.request("stranger")) == NothingDue()
    await orders.enlist("w1")
    store.pass_time(LEASE + 1)
    assert await orders.engine.lease(orders.request("w1")) == NothingDue()
    assert (await orders.cursor()).attempts == 0


@pytest.mark.spec("OUTBOX-10")
async def test_tokens_rise_when_the_clock_is_set_back(store: Store) -> None:
    """A fence compares tokens, not times."""
    orders = await Orders.begin(store)
    await orders.add("a", "b")
    first = await orders.lease(limit=1)
    await orders.finish(first)
    store.pass_time(-10 * MINUTE)
    second = await orders.lease(limit=1)
    assert second.cursor.token > first.cursor.token


@pytest.mark.spec("OUTBOX-48")
async def test_the_partition_that_waited_longest_is_served_first(store: Store) -> None:
    """Also when another one has more to deliver."""
    orders = await Orders.begin(store, partitions=4)
    served = []
    for n in range(4):
        await orders.add("a", "b", "c", partition=n)
    for _ in range(8):
        store.pass_time(SECOND)
        lease = await orders.lease(limit=1)
        served.append(lease.cursor.partition)
        await orders.finish(lease)
    assert served == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.spec("OUTBOX-48")
async def test_a_lease_is_bounded_by_number_and_by_bytes(store: Store) -> None:
    """As many as wanted and as fit, in order, at least one; `more` says whether something is behind them."""
    orders = await Orders.begin(store)
    large = [orders.entry(f"k{n}", bytes(LARGEST_MESSAGE)) for n in range(70)]
    await orders.engine.append(orders.stream, large)
    lease = await orders.lease(limit=3)
    assert (keys(lease), lease.more) == (["k0", "k1", "k2"], True)
    await orders.finish(lease)
    lease = await orders.lease(limit=100)
    assert len(lease.messages) == 64
    assert lease.more
    await orders.finish(lease)
    tight = msgspec.structs.replace(orders.request(limit=100), bytes=1)
    found = await orders.engine.lease(tight)
    assert isinstance(found, Lease)
    assert (keys(found), found.more) == (["k67"], True)
    await orders.finish(found)
    rest = await orders.lease(limit=100)
    assert (keys(rest), rest.more) == (["k68", "k69"], False)


@pytest.mark.spec("OUTBOX-48")
async def test_a_lease_of_small_and_large_messages_ends_where_they_do_not_fit(store: Store) -> None:
    """Wherever an engine stores large payloads: sizes around 1,500 bytes, with empty and the largest ones between."""
    orders = await Orders.begin(store)
    sizes = [0, 3, 1_500, 1_501, 0, LARGEST_MESSAGE, 2_000, 10, 1_501, 0]
    payloads = [bytes([n]) * size for n, size in enumerate(sizes)]
    await orders.engine.append(orders.stream, [orders.entry("k", payload) for payload in payloads])
    sums = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    await orders.enlist("w1")
    for most in sorted({edge + near for edge in sums for near in (-1, 0, 1) if edge + near > 0}):
        lease = await orders.engine.lease(msgspec.structs.replace(orders.request(), bytes=most))
        assert isinstance(lease, Lease), most
        fit = fitting(sizes, most)
        assert [one.payload for one in lease.messages] == payloads[:fit], most
        assert lease.more == (fit < len(sizes)), most
        await orders.finish(lease, RetryLater("again", 0, free=True))


@pytest.mark.spec("OUTBOX-61")
async def test_a_stream_wakes_its_own_waiters_only(store: Store) -> None:
    """A queue of the same name is another topic, and a job wakes no stream."""
    orders = await Orders.begin(store)
    await store.add(queue="orders")
    assert not await orders.woken()
    await store.engine.jobs.wait(["orders"], 0)
    await orders.add("a")
    assert await store.engine.jobs.wait(["orders"], 0) == frozenset()
    assert await orders.woken()


# --- advance --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("OUTBOX-15")
async def test_an_advance_moves_the_cursor_and_clears_the_past(store: Store) -> None:
    """Position, attempts, error, failures and the lease change together."""
    orders = await Orders.begin(store)
    await orders.add("a", "b", "c")
    await orders.turn(RetryLater("busy"))
    store.pass_time(MINUTE)
    lease = await orders.turn(Delivered(2))
    assert (lease.cursor.attempts, lease.cursor.last_error, lease.cursor.failures) == (2, "busy", 1)
    after = await orders.cursor()
    assert (after.position, after.attempts, after.last_error, after.failures) == (2, 0, None, 0)
    assert (after.holder, after.until, after.token) == (None, None, lease.cursor.token)
    assert keys(await orders.lease()) == ["c"]


@pytest.mark.core
@pytest.mark.spec("OUTBOX-14")
async def test_an_advance_under_another_lease_changes_nothing(store: Store) -> None:
    """No position, no letter, no parked key, no due time: whether holder, token or position differ."""
    orders = await Orders.begin(store)
    await orders.add("a", "b")
    stale = await orders.lease("w1")
    store.pass_time(LEASE + 1)
    live = await orders.lease("w2")
    before = await orders.state()
    rejected = conclude_batch(stale, Rejected("bad"), store.now())
    park = conclude_batch(stale, RetryLater("bad", 0), store.now(), Rules(attempts=1, then="park"))
    mine = conclude_batch(live, Rejected("bad"), store.now())
    for wrong in (
        rejected,
        park,
        conclude_batch(stale, RetryLater("busy", after=HOUR), store.now()),
        msgspec.structs.replace(mine, holder="w1"),
        msgspec.structs.replace(mine, token=mine.token - 1),
        msgspec.structs.replace(mine, before=1),
        msgspec.structs.replace(mine, consumer="other"),
        msgspec.structs.replace(mine, stream="other"),
    ):
        assert await orders.engine.advance(wrong) == Advanced(applied=False)
        assert await orders.state() == before
        assert await orders.letters() == []
    assert (await orders.engine.advance(mine)).applied
    assert await orders.engine.advance(mine) == Advanced(applied=False), "an advance is stored once"


@pytest.mark.spec("OUTBOX-14")
async def test_an_advance_after_the_end_of_its_lease_counts_while_no_other_worker_took_over(store: Store) -> None:
    """The work was done, so it is stored."""
    orders = await Orders.begin(store)
    await orders.add("a")
    lease = await orders.lease()
    store.pass_time(HOUR)
    assert (await orders.finish(lease)).applied
    assert (await orders.cursor()).position == 1


@pytest.mark.core
@pytest.mark.spec("OUTBOX-49")
async def test_an_advance_can_lease_the_same_partition_again(store: Store) -> None:
    """One step: a higher token, a first attempt, the next messages."""
    orders = await Orders.begin(store, partitions=2)
    await orders.add("a", "b", "c")
    await orders.add("x", partition=1)
    first = await orders.lease(limit=2)
    found = await orders.finish(first, request=orders.request(limit=2))
    assert found.applied
    assert found.lease is not None
    assert (found.lease.cursor.partition, found.lease.cursor.position, keys(found.lease)) == (0, 2, ["c"])
    assert found.lease.cursor.token > first.cursor.token
    assert (found.lease.cursor.attempts, found.lease.more) == (1, False)
    assert await orders.cursor() == found.lease.cursor
    assert (await orders.finish(found.lease)).applied


@pytest.mark.spec("OUTBOX-49")
async def test_an_advance_without_more_only_releases(store: Store) -> None:
    """Nothing behind it, a retry that waits, a worker that lapsed, an advance that does not apply."""
    orders = await Orders.begin(store)
    await orders.add("a")
    assert await orders.finish(await orders.lease(), request=orders.request()) == Advanced(applied=True)
    assert (await orders.cursor()).holder is None
    await orders.add("b")
    busy = await orders.finish(await orders.lease(), RetryLater("busy"), request=orders.request())
    assert busy == Advanced(applied=True)
    store.pass_time(MINUTE)
    await orders.add("c", "d")
    lease = await orders.lease(limit=1)
    store.pass_time(LEASE + 1)
    assert await orders.finish(lease, request=orders.request()) == Advanced(applied=True)
    lease = await orders.lease(limit=1)
    assert (await orders.finish(lease)).applied
    assert await orders.finish(lease, request=orders.request()) == Advanced(applied=False)
    assert (await orders.shown()).waiting == 1


@pytest.mark.core
@pytest.mark.spec("OUTBOX-17", "OUTBOX-37")
async def test_a_retry_keeps_the_position_and_says_why(store: Store) -> None:
    """One attempt, not two; the reason is stored; the partition waits."""
    orders = await Orders.begin(store)
    await orders.add("a")
    await orders.turn(RetryLater("the sink is down"))
    after = await orders.cursor()
    assert (after.position, after.attempts, after.last_error) == (0, 1, "the sink is down")
    assert (after.due, after.failures, after.holder) == (store.now() + SECOND, 1, None)
    assert await orders.ask() == NothingDue(SECOND)
    store.pass_time(SECOND - 1)
    assert await orders.ask() == NothingDue(1)
    store.pass_time(1)
    assert (await orders.lease()).messages[0].attempts == 1


@pytest.mark.core
@pytest.mark.spec("OUTBOX-37")
async def test_two_crashes_are_two_attempts(store: Store) -> None:
    """A lease that ends without an advance leaves its attempt counted; success clears them."""
    orders = await Orders.begin(store)
    await orders.add("a")
    for n in range(2):
        lease = await orders.lease(f"w{n}")
        assert lease.messages[0].attempts == n
        store.pass_time(LEASE + 1)
    lease = await orders.lease("w2")
    assert lease.messages[0].attempts == 2
    await orders.finish(lease)
    assert (await orders.cursor()).attempts == 0


@pytest.mark.spec("OUTBOX-37")
async def test_a_free_retry_gives_the_attempt_back(store: Store) -> None:
    """A snooze waits as long as it asks for and counts as no failure."""
    orders = await Orders.begin(store)
    await orders.add("a")
    await orders.turn(RetryLater("closed", free=True, after=HOUR))
    after = await orders.cursor()
    assert (after.attempts, after.failures, after.due) == (0, 0, store.now() + HOUR)


@pytest.mark.core
@pytest.mark.spec("OUTBOX-47", "OUTBOX-51")
async def test_due_time_and_size_are_kept_across_engines(store: Store) -> None:
    """Another engine on the same store goes on with them."""
    orders = await Orders.begin(store)
    await orders.add(*"abcdefgh")
    rules = Rules(pace=Pace(batch=8))
    for _ in range(2):
        await orders.turn(RetryLater("busy"), rules)
        store.pass_time(2 * SECOND)
    other = store.make_engine(store.clock)
    await other.open()
    try:
        await orders.enlist("w2")
        theirs = outbox_of(other)
        lease = await theirs.lease(orders.request("w2"))
        assert isinstance(lease, Lease)
        assert (keys(lease), lease.cursor.failures, lease.more) == (["a"], 2, True)
        await theirs.advance(conclude_batch(lease, RetryLater("busy"), store.now(), rules))
    finally:
        await other.close()
    assert await orders.ask() == NothingDue(4 * SECOND)
    store.pass_time(4 * SECOND)
    for batch in ("a", "bc", "defg", "h"):
        lease = await orders.lease()
        assert keys(lease) == list(batch)
        await orders.finish(lease, rules=rules)
    assert (await orders.cursor()).size is None


@pytest.mark.core
@pytest.mark.spec("OUTBOX-50")
async def test_an_advance_in_a_transaction_counts_if_it_commits(store: Store) -> None:
    """Rolled back, the lease is as it was and the same advance still applies."""
    orders = await Orders.begin(store)
    await orders.add("a", "b")
    lease = await orders.lease()
    before = await orders.state()
    rejected = Delivered(2, (Rejection(2, "odd"),))
    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            assert (await orders.finish(lease, rejected, tx=tx)).applied
            raise ZeroDivisionError
    assert await orders.state() == before
    assert await orders.letters() == []
    async with store.engine.transaction() as tx:
        assert (await orders.finish(lease, rejected, tx=tx)).applied
        await orders.add("c", tx=tx)
    assert (await orders.cursor()).position == 2
    assert [one.number for one in await orders.letters()] == [2]
    assert keys(await orders.lease()) == ["c"]


@pytest.mark.spec("OUTBOX-50")
async def test_a_stale_advance_in_a_transaction_leaves_the_rest_of_it_alone(store: Store) -> None:
    """It says so, and what else the user wrote is committed."""
    orders = await Orders.begin(store)
    await orders.add("a")
    stale = await orders.lease("w1")
    store.pass_time(LEASE + 1)
    await orders.lease("w2")
    draft = store.draft()
    async with store.engine.transaction() as tx:
        assert await orders.finish(stale, Rejected("bad"), tx=tx) == Advanced(applied=False)
        await store.engine.jobs.insert([draft], tx=tx)
    assert (await orders.cursor()).position == 0
    assert await orders.letters() == []
    assert not await store.gone(draft.job_id)


@pytest.mark.spec("OUTBOX-45")
async def test_consumers_do_not_disturb_one_another(store: Store) -> None:
    """Each holds the same partition, sees all messages, and has failures and letters of its own."""
    orders = await Orders.begin(store)
    project = await orders.beside("project")
    await orders.add("a", "b")
    mine, theirs = await orders.lease("w1"), await project.lease("w1")
    assert keys(mine) == keys(theirs) == ["a", "b"]
    await orders.finish(mine, RetryLater("busy"))
    await project.finish(theirs, Rejected("bad"))
    assert (await orders.cursor()).position == 0
    assert (await project.cursor()).position == 2
    assert await orders.letters() == []
    assert [one.consumer for one in await project.letters()] == ["project", "project"]


@pytest.mark.spec("OUTBOX-45")
async def test_a_consumer_starts_at_the_beginning_the_end_or_an_instant(store: Store) -> None:
    """What is committed before `end` is not delivered; an instant is the time of the append."""
    orders = await Orders.begin(store)
    await orders.add("a")
    store.pass_time(SECOND)
    second = store.now()
    await orders.add("b")
    store.pass_time(SECOND)
    everything, nothing = await orders.beside("everything"), await orders.beside("nothing", "end")
    since, never = await orders.beside("since", second), await orders.beside("never", second + HOUR)
    await orders.add("c")
    assert keys(await everything.lease()) == ["a", "b", "c"]
    assert keys(await nothing.lease()) == ["c"]
    assert keys(await since.lease()) == ["b", "c"]
    assert keys(await never.lease()) == ["c"]
    await orders.engine.register(orders.stream, [Consumer("everything", "end")])
    assert (await everything.cursor()).position == 0, "a known consumer is left alone"


@pytest.mark.spec("OUTBOX-52")
async def test_a_message_that_is_given_up_becomes_a_letter_and_is_passed(store: Store) -> None:
    """The letter and the new position are stored in one step."""
    orders = await Orders.begin(store)
    await orders.add("a", "b")
    await orders.turn(RetryLater("bad", 0), POISON)
    [letter] = await orders.letters()
    assert (letter.number, letter.reason, letter.attempts) == (1, "bad", 1)
    assert (letter.status, letter.failed) == (LetterStatus.PENDING, store.now())
    assert keys(await orders.lease()) == ["b"]
