"""Seek, pause, resume, drop; the vacuum; inboxes; and claims held in a transaction."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stoker.engines.base import LEASE, Feature, outbox_of
from stoker.model.control import Tuning
from stoker.model.errors import EngineError, EngineRefused, InvalidInput, LostClaim
from stoker.model.job import Claim, Note, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outbox.consumers import Drop, Pause, Resume, Seek
from stoker.model.outbox.cursor import NothingDue
from stoker.model.outbox.delivery import Rejected, RetryLater, Rules
from stoker.model.outbox.stream import Vacuumed
from stoker.model.outcome import Done
from stoker.model.query import Cancel, Retention, Selection
from stoker.model.time import HOUR, SECOND
from stoker.testing.conformance.harness import Store, needs
from stoker.testing.conformance.outbox import Orders, keys

# --- steering -------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("OUTBOX-58", "OUTBOX-61")
async def test_a_seek_moves_the_cursors_and_refuses_the_turn_under_way(store: Store) -> None:
    """Also to the position where they are; attempts, error and due time are forgotten; waiters are woken."""
    orders = await Orders.begin(store, partitions=2)
    await orders.add("a", "b", "c")
    await orders.add("x", partition=1)
    await orders.turn(RetryLater("busy"))
    store.pass_time(SECOND)
    await orders.turn()
    lease = await orders.lease()
    await orders.woken()
    assert await orders.engine.steer("orders", "publish", Seek({0: lease.cursor.position}))
    assert await orders.woken()
    assert not (await orders.finish(lease, Rejected("bad"))).applied
    assert await orders.letters() == []
    after = await orders.cursor()
    assert (after.attempts, after.last_error, after.holder, after.due) == (0, None, None, 0)
    assert (await orders.lease()).cursor.token > lease.cursor.token


@pytest.mark.spec("OUTBOX-58")
async def test_a_seek_leads_to_the_beginning_the_end_an_instant_or_a_number(store: Store) -> None:
    """Numbers outside of what is stored mean its first or last message; other partitions stay."""
    orders = await Orders.begin(store, partitions=2)
    for key in "abcd":
        await orders.add(key)
        store.pass_time(SECOND)
    await orders.add("x", partition=1)
    await orders.drain()
    start = store.now() - 4 * SECOND
    for to, expected in (
        ("beginning", (0, 0)),
        ("end", (4, 1)),
        (start, (0, 0)),
        (start + 2 * SECOND, (2, 0)),
        (start + HOUR, (4, 1)),
        ({0: 3}, (3, 1)),
        ({0: 99}, (4, 1)),
        ({0: 0, 1: 0}, (0, 0)),
        ({7: 0}, (0, 0)),
    ):
        assert await orders.engine.steer("orders", "publish", Seek(to))  # type: ignore[arg-type]
        found = tuple([(await orders.cursor(n)).position for n in (0, 1)])
        assert found == expected, to
    assert keys(await orders.drain()) == ["a", "b", "c", "d", "x"]
    assert not await orders.engine.steer("orders", "unknown", Seek("end"))


@pytest.mark.core
@pytest.mark.spec("OUTBOX-47", "OUTBOX-58", "OUTBOX-61")
async def test_a_paused_consumer_leases_nothing(store: Store) -> None:
    """A turn under way ends as usual; another consumer goes on; resuming wakes the stream."""
    orders = await Orders.begin(store)
    project = await orders.beside("project")
    await orders.add("a", "b")
    lease = await orders.lease(limit=1)
    await orders.woken()
    assert await orders.engine.steer("orders", "publish", Pause())
    assert not await orders.woken()
    assert (await orders.cursor()).paused
    assert (await orders.finish(lease, request=orders.request())).lease is None
    assert await orders.ask() == NothingDue()
    assert keys(await project.lease()) == ["a", "b"]
    assert await orders.engine.steer("orders", "publish", Resume())
    assert await orders.woken()
    assert keys(await orders.lease()) == ["b"]
    assert not await orders.engine.steer("orders", "unknown", Pause())


@pytest.mark.spec("OUTBOX-58")
async def test_a_dropped_consumer_is_forgotten(store: Store) -> None:
    """With its letters and parked keys; under the same name it starts anew."""
    orders = await Orders.begin(store)
    project = await orders.beside("project")
    await orders.add("p", "a")
    await orders.turn(RetryLater("poison", 0), Rules(attempts=1, then="park"))
    lease = await orders.lease()
    assert await orders.engine.steer("orders", "publish", Drop())
    assert not await orders.engine.steer("orders", "publish", Drop())
    assert {one.cursor.consumer for one in (await orders.state()).cursors} == {"project"}
    assert await orders.letters() == []
    assert not (await orders.finish(lease)).applied
    orders = await project.beside("publish")
    again = await orders.lease()
    assert (keys(again), again.parked, again.cursor.parked) == (["p", "a"], frozenset(), 0)
    assert not (await orders.finish(lease)).applied


# --- vacuum ---------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("OUTBOX-40")
async def test_the_vacuum_keeps_what_is_behind_the_slowest_consumer(store: Store) -> None:
    """And everything while there is no consumer; one that is dropped keeps nothing."""
    orders = await Orders.begin(store)
    project = await orders.beside("project")
    await orders.add("a", "b", "c")
    await orders.drain()
    assert await orders.engine.vacuum("orders", 100) == Vacuumed()
    lease = await project.lease(limit=2)
    assert await orders.engine.vacuum("orders", 100) == Vacuumed()
    await project.finish(lease)
    assert await orders.engine.vacuum("orders", 100) == Vacuumed(2)
    assert keys(await project.lease()) == ["c"]
    await orders.engine.steer("orders", "project", Drop())
    assert await orders.engine.vacuum("orders", 100) == Vacuumed(1)
    await orders.add("d")
    await orders.engine.steer("orders", "publish", Drop())
    assert await orders.engine.vacuum("orders", 100) == Vacuumed()
    assert await orders.engine.vacuum("unknown", 100) == Vacuumed()
    assert (await orders.state()).last == (4,)


@pytest.mark.core
@pytest.mark.spec("OUTBOX-06", "OUTBOX-40", "OUTBOX-58")
async def test_numbers_go_on_after_everything_is_gone(store: Store) -> None:
    """And a seek or a new consumer cannot lead behind what is deleted."""
    orders = await Orders.begin(store, partitions=2)
    await orders.add("a", "b")
    await orders.drain()
    assert await orders.engine.vacuum("orders", 100) == Vacuumed(2)
    assert (await orders.state()).last == (2, 0)
    shown = await orders.shown()
    assert (shown.waiting, shown.oldest) == (0, None)
    await orders.engine.steer("orders", "publish", Seek("beginning"))
    project = await orders.beside("project")
    await orders.add("c")
    for consumer in (orders, project):
        assert [(one.key, one.number) for one in (await consumer.lease()).messages] == [("c", 3)]
    await orders.engine.steer("orders", "publish", Seek({0: 0}))
    assert (await orders.cursor()).position == 2


@pytest.mark.spec("OUTBOX-40")
async def test_messages_are_kept_for_as_long_as_the_stream_wants(store: Store) -> None:
    """`keep` counts from the append; a stream registered with another one follows at once."""
    orders = await Orders.begin(store)
    await orders.engine.register(msgspec.structs.replace(orders.stream, keep=HOUR))
    await orders.add("a")
    store.pass_time(SECOND)
    await orders.add("b")
    await orders.drain()
    store.pass_time(HOUR - SECOND - 1)
    assert await orders.engine.vacuum("orders", 100) == Vacuumed()
    store.pass_time(1)
    assert await orders.engine.vacuum("orders", 100) == Vacuumed(1)
    await orders.engine.register(orders.stream)
    assert await orders.engine.vacuum("orders", 100) == Vacuumed(1)


@pytest.mark.spec("OUTBOX-40")
async def test_a_vacuum_that_is_cut_short_goes_on(store: Store) -> None:
    """At most so many in one step, over all partitions, lowest numbers first."""
    orders = await Orders.begin(store, partitions=4)
    for n in range(4):
        await orders.add(*"abc", partition=n)
    await orders.drain()
    swept = [await orders.engine.vacuum("orders", 5) for _ in range(4)]
    assert [one.deleted for one in swept] == [5, 5, 2, 0]
    assert [one.more for one in swept] == [True, True, False, False]
    for n in range(4):
        await orders.add("d", partition=n)
    assert {one.number for one in await orders.drain()} == {4}


# --- inbox ----------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("OUTBOX-59")
async def test_an_id_is_new_once(store: Store) -> None:
    """Per source, also within one call and within one transaction; results come in order."""
    needs(store, Feature.OUTBOX)
    receive = outbox_of(store.engine).receive
    async with store.engine.transaction() as tx:
        assert await receive("billing", ["1", "2", "1"], keep=HOUR, tx=tx) == [True, True, False]
        assert await receive("billing", ["2", "3"], keep=HOUR, tx=tx) == [False, True]
        assert await receive("billing", [], keep=HOUR, tx=tx) == []
    async with store.engine.transaction() as tx:
        assert await receive("billing", ["3", "4", "1"], keep=HOUR, tx=tx) == [False, True, False]
        assert await receive("shipping", ["1"], keep=HOUR, tx=tx) == [True]
        with pytest.raises(InvalidInput, match="id"):
            await receive("billing", ["5", ""], keep=HOUR, tx=tx)
    async with store.engine.transaction() as tx:
        assert await receive("billing", ["5"], keep=HOUR, tx=tx) == [True]


@pytest.mark.core
@pytest.mark.spec("OUTBOX-59")
async def test_a_rollback_forgets_what_was_received(store: Store) -> None:
    """So that the next delivery is handled."""
    needs(store, Feature.OUTBOX)
    receive = outbox_of(store.engine).receive
    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            assert await receive("billing", ["1"], keep=HOUR, tx=tx) == [True]
            raise ZeroDivisionError
    async with store.engine.transaction() as tx:
        assert await receive("billing", ["1"], keep=HOUR, tx=tx) == [True]


@pytest.mark.spec("OUTBOX-59")
async def test_of_two_concurrent_receipts_one_is_new(store: Store) -> None:
    """The other waits for it and is told so, or fails; both together never handle the message twice."""
    needs(store, Feature.OUTBOX)
    receive = outbox_of(store.engine).receive
    handled = []

    async def handle(name: str) -> None:
        async with store.engine.transaction() as tx:
            fresh = await receive("billing", ["1"], keep=HOUR, tx=tx)
            await asyncio.sleep(0)
            if fresh == [True]:
                draft = store.draft(name)
                await store.engine.jobs.insert([draft], tx=tx)
        if fresh == [True]:
            handled.append(name)

    results = await asyncio.gather(handle("one"), handle("two"), return_exceptions=True)
    assert all(result is None or isinstance(result, EngineError) for result in results)
    assert len(handled) == 1
    assert await store.counts() == {Status.PENDING: 1}


@pytest.mark.spec("OUTBOX-59")
async def test_received_ids_are_forgotten_when_their_time_has_passed(store: Store) -> None:
    """Each after its own `keep`, at most so many in one step."""
    needs(store, Feature.OUTBOX)
    receive = outbox_of(store.engine).receive
    async with store.engine.transaction() as tx:
        await receive("short", [str(n) for n in range(5)], keep=SECOND, tx=tx)
        await receive("long", ["1"], keep=HOUR, tx=tx)
    store.pass_time(SECOND - 1)
    assert (await store.engine.operator.expire(Retention())).receipts == 0
    store.pass_time(1)
    assert (await store.engine.operator.expire(Retention(limit=3))).receipts == 3
    assert (await store.engine.operator.expire(Retention(limit=3))).receipts == 2
    async with store.engine.transaction() as tx:
        assert await receive("short", ["1"], keep=HOUR, tx=tx) == [True]
        assert await receive("long", ["1"], keep=HOUR, tx=tx) == [False]


@pytest.mark.spec("OUTBOX-59", "OUTBOX-63")
async def test_an_inbox_without_a_transaction_is_refused(store: Store) -> None:
    """It would be none; nor can a claim be held without one."""
    needs(store, Feature.OUTBOX)
    outbox = outbox_of(store.engine)
    await store.add()
    claim = await store.take()
    with pytest.raises(EngineRefused, match="receive needs tx="):
        await outbox.receive("billing", ["1"], keep=HOUR, tx=None)
    with pytest.raises(EngineRefused, match="hold needs tx="):
        await outbox.hold(claim, tx=None)


# --- held claims ----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("OUTBOX-63")
async def test_a_claim_is_held_while_it_is_its_workers(store: Store) -> None:
    """The held claim can be settled in the same transaction; rolled back, it runs on."""
    needs(store, Feature.OUTBOX)
    outbox = outbox_of(store.engine)
    await store.add()
    claim = await store.take()
    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            held = await outbox.hold(claim, tx=tx)
            assert held is not None
            assert (held.id, held.worker, held.token) == (claim.id, claim.worker, claim.token)
            raise ZeroDivisionError
    async with store.engine.transaction() as tx:
        held = await outbox.hold(claim, tx=tx)
        assert held is not None
        settled = await store.engine.jobs.settle([conclude(held, Done(b"1"))], tx=tx)
        assert settled.verdicts == [Verdict.APPLIED]
    assert await store.status(claim.id) is Status.DONE
    async with store.engine.transaction() as tx:
        assert await outbox.hold(claim, tx=tx) is None


@pytest.mark.core
@pytest.mark.spec("OUTBOX-63")
async def test_a_claim_that_is_lost_is_not_held(store: Store) -> None:
    """It was reaped, or ended; the rest of the transaction goes on."""
    needs(store, Feature.OUTBOX)
    outbox = outbox_of(store.engine)
    await store.add()
    claim = await store.take("w1")
    store.pass_time(LEASE + 1)
    await store.enlist("w2")
    [reaped] = await store.engine.jobs.reap("w2", 10)
    draft = store.draft()
    async with store.engine.transaction() as tx:
        assert await outbox.hold(claim, tx=tx) is None
        assert await outbox.hold(reaped, tx=tx) is not None
        await store.engine.jobs.insert([draft], tx=tx)
    assert await store.status(draft.job_id) is Status.PENDING
    await store.finish(reaped, Done())
    async with store.engine.transaction() as tx:
        assert await outbox.hold(reaped, tx=tx) is None


@pytest.mark.core
@pytest.mark.spec("BLOCK-22")
async def test_a_held_claim_is_settled_last(store: Store) -> None:
    """With the commit, as by `settle`: result, retention of the queue, counters. Rolled back, it runs on."""
    needs(store, Feature.OUTBOX)
    outbox, result = outbox_of(store.engine), '"it\'s \\\\ é $1"'.encode()
    await store.engine.control.tune("default", Tuning(keep_done=HOUR))
    for ending in ("raises", "asked to cancel", "plain"):
        await store.add()
        claim = await store.take()
        if ending == "asked to cancel":
            await store.engine.operator.alter(Selection(ids=(claim.id,)), Cancel())
        try:
            async with store.engine.transaction() as tx:
                held = await outbox.hold(claim, tx=tx)
                assert held is not None
                assert await outbox.settle_last(conclude(held, Done(result)), tx=tx)
                if ending == "raises":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            assert await store.status(claim.id) is Status.RUNNING
            continue
        job = await store.job(claim.id)
        assert (job.status, job.result, job.attempts, job.cancel_requested) == (
            *(Status.DONE, result, 1),
            ending == "asked to cancel",
        )
        assert (job.finished_at, job.expires_at) == (store.now(), store.now() + HOUR)
        [verdict] = (await store.engine.jobs.settle([conclude(claim, Done(result))])).verdicts
        assert verdict in (Verdict.REPEATED, Verdict.LOST)
    counts = (await store.engine.operator.census()).by_status("default")
    assert (counts[Status.RUNNING], counts[Status.DONE]) == (1, 2)


@pytest.mark.core
@pytest.mark.spec("BLOCK-22")
async def test_a_held_claim_that_is_lost_is_not_settled(store: Store) -> None:
    """The call says so or the commit raises; what is stored with it is not."""
    needs(store, Feature.OUTBOX)
    needs(store, Feature.BESIDE_TRANSACTIONS)
    outbox, draft = outbox_of(store.engine), store.draft()
    await store.add()
    claim = await store.take("w1")
    with pytest.raises(LostClaim):
        async with store.engine.transaction() as tx:
            held = await outbox.hold(claim, tx=tx)
            assert held is not None
            await store.engine.jobs.insert([draft], tx=tx)
            await store.enlist("w2")
            assert await store.engine.jobs.reap("w2", 10, dead=["w1"])
            if not await outbox.settle_last(conclude(held, Done()), tx=tx):
                raise LostClaim("job")
    assert await store.status(claim.id) is Status.RUNNING
    assert await store.engine.operator.get([draft.job_id]) == [None]


@pytest.mark.core
@pytest.mark.spec("OUTBOX-63", "BLOCK-19")
async def test_a_note_joins_the_transaction_that_holds_its_claim(store: Store) -> None:
    """It is stored with the settlement, or not at all; siblings are not disturbed."""
    needs(store, Feature.OUTBOX)
    outbox = outbox_of(store.engine)
    await store.insert(store.draft(), store.draft())
    first, other = await store.claim(n=2)

    def note(claim: Claim, progress: float) -> Note:
        return Note(claim.id, claim.worker, claim.token, progress, None, (f"at {progress}",), claim.ref)

    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            held = await outbox.hold(first, tx=tx)
            assert held is not None
            assert await store.engine.jobs.note([note(held, 0.2)], tx=tx) == [Verdict.APPLIED]
            raise ZeroDivisionError
    assert await store.engine.jobs.note([note(first, 0.3), note(other, 0.4)]) == [Verdict.APPLIED] * 2
    async with store.engine.transaction() as tx:
        held = await outbox.hold(first, tx=tx)
        assert held is not None
        assert await store.engine.jobs.note([note(held, 0.5)], tx=tx) == [Verdict.APPLIED]
        await store.engine.jobs.settle([conclude(held, Done())], tx=tx)
    await store.finish(other, Done())
    jobs = [await store.job(claim.id) for claim in (first, other)]
    assert [(job.status, job.progress, job.log) for job in jobs] == [
        (Status.DONE, 0.5, ("at 0.3", "at 0.5")),
        (Status.DONE, 0.4, ("at 0.4",)),
    ]
