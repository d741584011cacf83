"""Streams: register them, append to them, and the order in which messages get their numbers."""

from __future__ import annotations

import asyncio
import re

import msgspec
import pytest

from stoker.engines.base import Feature, Outbox, Transaction, outbox_of
from stoker.model.errors import EngineRefused, InvalidInput, InvalidOption, NotFound
from stoker.model.job import Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outbox.consumers import CursorState, StreamState
from stoker.model.outbox.cursor import Consumer, Cursor, Lease, LeaseRequest, NothingDue, Start, Terms
from stoker.model.outbox.delivery import (
    PLAIN_RULES,
    Advanced,
    BatchOutcome,
    Delivered,
    Rules,
    conclude_batch,
)
from stoker.model.outbox.letters import Letter, LetterFilter, LetterStatus
from stoker.model.outbox.stream import LARGEST_MESSAGE, Entry, Message, Stream, entry, numbers, topic
from stoker.model.outcome import Done
from stoker.model.time import HOUR, SECOND
from stoker.testing.conformance.harness import Store, needs

TERMS = Terms()


class Orders:
    """A stream, one consumer of it, and shorthands for the calls of a case."""

    def __init__(self, store: Store, partitions: int = 1, consumer: str = "publish") -> None:
        self.store = store
        self.engine: Outbox = outbox_of(store.engine)
        self.stream = Stream("orders", partitions)
        self.consumer = consumer

    @classmethod
    async def begin(cls, store: Store, partitions: int = 1, start: Start = "beginning") -> Orders:
        """Register the stream and its consumer."""
        needs(store, Feature.OUTBOX)
        orders = cls(store, partitions)
        await orders.engine.register(orders.stream, [Consumer(orders.consumer, start)])
        return orders

    async def beside(self, consumer: str, start: Start = "beginning") -> Orders:
        """Another consumer of the same stream."""
        await self.engine.register(self.stream, [Consumer(consumer, start)])
        return Orders(self.store, self.stream.partitions, consumer)

    # --- calls --------------------------------------------------------------------------------------------------

    def entry(self, key: str = "k", payload: bytes = b"{}", partition: int | None = 0) -> Entry:
        return entry(self.stream, key, payload, "OrderPlaced", id=self.store.mint(), partition=partition)

    async def add(self, *keys: str, partition: int | None = 0, tx: Transaction | None = None) -> list[Entry]:
        """Append one message for each key."""
        made = [self.entry(key, partition=partition) for key in keys]
        await self.engine.append(self.stream, made, tx=tx)
        return made

    def request(self, worker: str = "w1", limit: int = 10, terms: Terms = TERMS) -> LeaseRequest:
        return LeaseRequest(self.stream.name, self.consumer, worker, limit, terms)

    async def enlist(self, worker: str) -> None:
        if not (await self.store.engine.jobs.renew(worker, [])).known:
            await self.store.enlist(worker)

    async def ask(self, worker: str = "w1", limit: int = 10, terms: Terms = TERMS) -> Lease | NothingDue:
        """Ask for a lease, for a worker whose own lease goes on."""
        await self.enlist(worker)
        return await self.engine.lease(self.request(worker, limit, terms))

    async def lease(self, worker: str = "w1", limit: int = 10, terms: Terms = TERMS) -> Lease:
        """Lease a partition that must be there."""
        found = await self.ask(worker, limit, terms)
        assert isinstance(found, Lease), found
        return found

    async def finish(
        self,
        lease: Lease,
        outcome: BatchOutcome | None = None,
        rules: Rules = PLAIN_RULES,
        *,
        tx: Transaction | None = None,
        request: LeaseRequest | None = None,
    ) -> Advanced:
        """Conclude a turn by the rule book and store it."""
        advance = conclude_batch(lease, outcome or Delivered(), self.store.now(), rules)
        return await self.engine.advance(advance, tx=tx, request=request)

    async def turn(self, outcome: BatchOutcome | None = None, rules: Rules = PLAIN_RULES, worker: str = "w1") -> Lease:
        """One whole turn, which must apply."""
        lease = await self.lease(worker)
        assert (await self.finish(lease, outcome, rules)).applied
        return lease

    async def drain(self) -> list[Message]:
        """Deliver until there is nothing to lease; returns the messages in the order of their turns."""
        messages: list[Message] = []
        while isinstance(lease := await self.ask(), Lease):
            messages += lease.messages
            await self.finish(lease)
        return messages

    # --- looking ------------------------------------------------------------------------------------------------

    async def state(self) -> StreamState:
        [state] = await self.engine.streams([self.stream.name])
        return state

    async def shown(self, partition: int = 0) -> CursorState:
        states = (await self.state()).cursors
        [found] = [one for one in states if (one.cursor.consumer, one.cursor.partition) == (self.consumer, partition)]
        return found

    async def cursor(self, partition: int = 0) -> Cursor:
        return (await self.shown(partition)).cursor

    async def letters(self, status: LetterStatus | None = None) -> list[Letter]:
        """Letters of the consumer, by number."""
        chosen = LetterFilter(self.stream.name, self.consumer, status, limit=1_000)
        return sorted((await self.engine.letters(chosen)).letters, key=lambda one: (one.partition, one.number))

    async def woken(self) -> bool:
        """Was a waiter of the stream woken, or a wake-up remembered?"""
        return bool(await self.store.engine.jobs.wait([topic(self.stream.name)], 0))


def keys(messages: Lease | list[Message]) -> list[str]:
    """The keys of messages, in order."""
    found = messages.messages if isinstance(messages, Lease) else messages
    return [message.key for message in found]


class _Trouble(Exception):
    """What a user's code raises in the middle of a transaction."""


# --- register -------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("OUTBOX-62")
async def test_an_engine_without_streams_is_refused_by_name(store: Store) -> None:
    """`outbox_of` names the engine; on one with streams it answers."""
    if Feature.OUTBOX in store.engine.features:
        assert await outbox_of(store.engine).streams() == []
        return
    with pytest.raises(EngineRefused, match=re.escape(store.engine.name)):
        outbox_of(store.engine)


@pytest.mark.spec("OUTBOX-02", "OUTBOX-45")
async def test_registering_twice_changes_only_how_long_messages_are_kept(store: Store) -> None:
    """A consumer stays where it is, and another one is added beside it."""
    orders = await Orders.begin(store, partitions=2)
    await orders.add("a")
    await orders.turn()
    before = await orders.state()
    await orders.engine.register(orders.stream, [Consumer("publish", "end")])
    assert await orders.state() == before
    await orders.engine.register(msgspec.structs.replace(orders.stream, keep=HOUR), [Consumer("project")])
    after = await orders.state()
    assert after.stream.keep == HOUR
    assert [(one.cursor.consumer, one.cursor.partition, one.cursor.position) for one in after.cursors] == [
        ("project", 0, 0),
        ("project", 1, 0),
        ("publish", 0, 1),
        ("publish", 1, 0),
    ]


@pytest.mark.spec("OUTBOX-02", "OUTBOX-43")
async def test_another_count_of_partitions_is_refused(store: Store) -> None:
    """By register and by append, and nothing of the call is stored."""
    orders = await Orders.begin(store, partitions=2)
    before = await orders.engine.streams()
    other = Stream("orders", 4)
    with pytest.raises(InvalidOption, match="partitions"):
        await orders.engine.register(other, [Consumer("new")])
    with pytest.raises(InvalidOption, match="partitions"):
        await orders.engine.append(other, [orders.entry()])
    assert await orders.engine.streams() == before
    assert not await orders.woken()


@pytest.mark.spec("OUTBOX-42", "OUTBOX-43")
async def test_registering_in_a_transaction_that_is_rolled_back_never_was(store: Store) -> None:
    """Neither stream nor consumer nor what an append registered by itself."""
    needs(store, Feature.OUTBOX)
    orders = Orders(store)
    with pytest.raises(_Trouble):
        async with store.engine.transaction() as tx:
            await orders.engine.register(orders.stream, [Consumer("publish")], tx=tx)
            await orders.engine.append(Stream("bills"), [orders.entry()], tx=tx)
            raise _Trouble
    assert await orders.engine.streams() == []
    async with store.engine.transaction() as tx:
        await orders.engine.register(orders.stream, [Consumer("publish")], tx=tx)
        await orders.add("a", tx=tx)
    assert keys(await orders.lease()) == ["a"]


@pytest.mark.spec("OUTBOX-45")
async def test_a_consumer_that_is_not_registered_leases_nothing(store: Store) -> None:
    """It is named, and so is one of a stream that does not exist."""
    orders = await Orders.begin(store)
    with pytest.raises(NotFound, match="'bill' of stream 'orders'"):
        await Orders(store, consumer="bill").ask()
    assert await orders.engine.streams(["unknown"]) == []


# --- append ---------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("OUTBOX-42", "OUTBOX-61")
async def test_an_append_exists_after_its_commit(store: Store) -> None:
    """Before it no lease finds the message; after it a waiter of the stream is woken."""
    orders = await Orders.begin(store)
    async with store.engine.transaction() as tx:
        await orders.add("a", tx=tx)
        if Feature.BESIDE_TRANSACTIONS in store.engine.features:
            assert await orders.ask() == NothingDue()
        assert not await orders.woken()
    assert await orders.woken()
    assert keys(await orders.lease()) == ["a"]


@pytest.mark.core
@pytest.mark.spec("OUTBOX-42", "OUTBOX-61")
async def test_an_append_that_is_rolled_back_leaves_nothing(store: Store) -> None:
    """No message, no number, no wake-up."""
    orders = await Orders.begin(store)
    with pytest.raises(_Trouble):
        async with store.engine.transaction() as tx:
            await orders.add("a", "b", tx=tx)
            raise _Trouble
    assert not await orders.woken()
    assert await orders.ask() == NothingDue()
    await orders.add("c")
    assert [(one.key, one.number) for one in (await orders.lease()).messages] == [("c", 1)]


@pytest.mark.core
@pytest.mark.spec("OUTBOX-43", "OUTBOX-61")
async def test_an_append_registers_its_stream(store: Store) -> None:
    """A consumer that comes later and starts at the beginning gets the message."""
    needs(store, Feature.OUTBOX)
    orders = Orders(store, partitions=4)
    await orders.add("a", partition=None)
    assert await orders.woken()
    assert (await orders.state()).stream == orders.stream
    await orders.engine.register(orders.stream, [Consumer("publish")])
    assert keys(await orders.lease()) == ["a"]


@pytest.mark.spec("OUTBOX-42")
async def test_an_empty_append_stores_nothing(store: Store) -> None:
    """Nothing is woken either."""
    orders = await Orders.begin(store)
    await orders.engine.append(orders.stream, [])
    async with store.engine.transaction() as tx:
        await orders.engine.append(orders.stream, [], tx=tx)
    assert not await orders.woken()
    assert (await orders.state()).last == (0,)


@pytest.mark.spec("OUTBOX-05", "OUTBOX-42")
async def test_one_bad_entry_refuses_the_whole_list(store: Store) -> None:
    """A partition that the stream does not have, alone and in a transaction that goes on."""
    orders = await Orders.begin(store, partitions=2)
    wrong = msgspec.structs.replace(orders.entry("x"), partition=2)
    with pytest.raises(InvalidInput, match="0 to 1"):
        await orders.engine.append(orders.stream, [orders.entry("a"), wrong])
    async with store.engine.transaction() as tx:
        with pytest.raises(InvalidInput):
            await orders.engine.append(orders.stream, [orders.entry("b"), wrong], tx=tx)
        await orders.add("c", tx=tx)
    assert keys(await orders.lease()) == ["c"]


@pytest.mark.spec("OUTBOX-06", "OUTBOX-42")
async def test_an_append_of_more_than_a_thousand_messages_is_one_step(store: Store) -> None:
    """2,500 messages over four partitions come back in order, numbered from 1 in each."""
    orders = await Orders.begin(store, partitions=4)
    made = [orders.entry(f"k{n}", partition=n % 4) for n in range(2_500)]
    await orders.engine.append(orders.stream, made)
    assert (await orders.state()).last == (625,) * 4
    found: dict[int, list[Message]] = {n: [] for n in range(4)}
    while isinstance(lease := await orders.ask(limit=1_000), Lease):
        found[lease.cursor.partition] += lease.messages
        await orders.finish(lease)
    for n, messages in found.items():
        assert [one.number for one in messages] == list(numbers(0, 625))
        assert [one.id for one in messages] == [one.id for one in made if one.partition == n]


@pytest.mark.spec("OUTBOX-05", "OUTBOX-44")
async def test_whatever_is_appended_comes_back_unchanged(store: Store) -> None:
    """The largest payload, all bytes, an empty one; headers, type, key, and whether it is raw."""
    orders = await Orders.begin(store)
    made = [
        orders.entry("a", bytes(range(256)) * (LARGEST_MESSAGE // 256)),
        orders.entry("b", b""),
        entry(orders.stream, "ключ ' \"", b"\xff\0", "application/x; v=1", id=store.mint(), raw=True),
        entry(orders.stream, "d", b"{}", "t", id=store.mint(), headers={"trace": "7", "": "ü\n'\"\\"}),
    ]
    await orders.engine.append(orders.stream, made)
    found = (await orders.lease()).messages
    assert [(one.number, one.created, one.attempts) for one in found] == [(n, store.now(), 0) for n in range(1, 5)]
    for before, after in zip(made, found, strict=True):
        for field in before.__struct_fields__:
            assert getattr(after, field) == getattr(before, field)


@pytest.mark.core
@pytest.mark.spec("OUTBOX-42")
async def test_appends_jobs_and_settlements_commit_together(store: Store) -> None:
    """All of one transaction is there, or nothing of it."""
    orders = await Orders.begin(store)
    await store.add()
    claim = await store.take()
    draft = store.draft()
    for keep in (False, True):
        try:
            async with store.engine.transaction() as tx:
                await orders.add("a", tx=tx)
                await store.engine.jobs.insert([draft], tx=tx)
                settled = await store.engine.jobs.settle([conclude(claim, Done())], tx=tx)
                assert settled.verdicts == [Verdict.APPLIED]
                if not keep:
                    raise _Trouble
        except _Trouble:
            assert await store.gone(draft.job_id)
            assert await orders.ask() == NothingDue()
            assert await store.status(claim.id) is Status.RUNNING
    assert await store.status(draft.job_id) is Status.PENDING
    assert await store.status(claim.id) is Status.DONE
    assert keys(await orders.lease()) == ["a"]


@pytest.mark.spec("OUTBOX-42")
async def test_a_foreign_transaction_is_refused_by_every_call_of_streams(store: Store) -> None:
    """By the name of its class, and nothing is stored."""
    orders = await Orders.begin(store)
    await orders.add("a")
    lease = await orders.lease()
    before = await orders.engine.streams()
    with pytest.raises(EngineRefused, match="object"):
        await orders.add("b", tx=object())
    with pytest.raises(EngineRefused, match="object"):
        await orders.engine.register(Stream("bills"), tx=object())
    with pytest.raises(EngineRefused, match="object"):
        await orders.finish(lease, tx=object())
    with pytest.raises(EngineRefused, match="object"):
        await orders.engine.receive("billing", ["1"], keep=HOUR, tx=object())
    assert await orders.engine.streams() == before


# --- order ----------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("OUTBOX-41")
async def test_messages_of_one_transaction_keep_the_order_of_the_calls(store: Store) -> None:
    """Also between calls, and between partitions."""
    orders = await Orders.begin(store)
    async with store.engine.transaction() as tx:
        await orders.add("a", "b", tx=tx)
        await orders.add("c", tx=tx)
        await orders.add("d", "e", tx=tx)
    await orders.add("f")
    assert keys(await orders.lease()) == ["a", "b", "c", "d", "e", "f"]


@pytest.mark.core
@pytest.mark.spec("OUTBOX-41")
async def test_a_late_commit_comes_later_and_never_gets_lost(store: Store) -> None:
    """A message appended early and committed late is numbered behind what was committed meanwhile."""
    orders = await Orders.begin(store)
    needs(store, Feature.BESIDE_TRANSACTIONS)
    async with store.engine.transaction() as tx:
        await orders.add("late", tx=tx)
        await orders.add("early")
        assert keys(await orders.turn()) == ["early"]
    assert [(one.key, one.number) for one in (await orders.lease()).messages] == [("late", 2)]


@pytest.mark.spec("OUTBOX-41")
async def test_a_commit_before_an_append_is_their_order(store: Store) -> None:
    """A transaction that is open for long and appends last comes behind what was committed before that append."""
    orders = await Orders.begin(store)
    needs(store, Feature.BESIDE_TRANSACTIONS)
    async with store.engine.transaction() as tx:
        await store.engine.jobs.insert([store.draft()], tx=tx)
        await orders.add("a")
        await orders.add("b", tx=tx)
    assert keys(await orders.drain()) == ["a", "b"]


@pytest.mark.spec("OUTBOX-41")
async def test_a_late_commit_does_not_let_the_next_message_of_its_key_overtake(store: Store) -> None:
    """Committed late, but before the next one was appended: it comes first, also when a lease looked in between."""
    orders = await Orders.begin(store)
    needs(store, Feature.BESIDE_TRANSACTIONS)
    async with store.engine.transaction() as tx:
        await orders.add("k1", tx=tx)
        await orders.add("other")
        assert keys(await orders.turn()) == ["other"]
    await orders.add("k2")
    assert keys(await orders.drain()) == ["k1", "k2"]


@pytest.mark.spec("OUTBOX-06", "OUTBOX-46")
async def test_concurrent_leases_number_each_message_once(store: Store) -> None:
    """Several engines at once: every message is leased once, and numbers are dense."""
    orders = await Orders.begin(store, partitions=8)
    for n in range(40):
        await orders.add(f"k{n}", partition=n % 8)
    others = [store.make_engine(store.clock) for _ in range(3)]
    for other in others:
        await other.open()
    try:
        workers = [f"w{n}" for n in range(8)]
        for worker in workers:
            await orders.enlist(worker)
        engines = [outbox_of(one) for one in (store.engine, *others)]
        found = await asyncio.gather(
            *(engines[n % 4].lease(orders.request(worker, limit=5)) for n, worker in enumerate(workers))
        )
    finally:
        for other in others:
            await other.close()
    leases = [one for one in found if isinstance(one, Lease)]
    assert len({lease.cursor.partition for lease in leases}) == len(leases)
    while isinstance(lease := await orders.ask("w9", 5), Lease):
        leases.append(lease)
    assert sorted(lease.cursor.partition for lease in leases) == list(range(8))
    for lease in leases:
        assert [one.number for one in lease.messages] == [1, 2, 3, 4, 5]
        assert keys(lease) == [f"k{n}" for n in range(40) if n % 8 == lease.cursor.partition]


# --- what users see -------------------------------------------------------------------------------------------------


@pytest.mark.spec("OUTBOX-60")
async def test_the_state_shows_what_is_behind_each_cursor(store: Store) -> None:
    """Waiting messages and the age of the first, per partition and consumer."""
    orders = await Orders.begin(store, partitions=2)
    await orders.add("a")
    first = store.now()
    store.pass_time(SECOND)
    await orders.add("b", "c")
    await orders.add("d", partition=1)
    assert (await orders.state()).last == (3, 1)
    shown = await orders.shown()
    assert (shown.waiting, shown.oldest) == (3, first)
    lease = await orders.lease(limit=1)
    held = await orders.cursor()
    assert held == lease.cursor
    assert (held.holder, held.attempts) == ("w1", 1)
    await orders.finish(lease)
    shown = await orders.shown()
    assert (shown.waiting, shown.oldest, shown.cursor.holder) == (2, first + SECOND, None)
    await orders.drain()
    shown = await orders.shown()
    assert (shown.waiting, shown.oldest) == (0, None)
    await orders.engine.register(Stream("bills", 1))
    assert [one.stream.name for one in await orders.engine.streams()] == ["bills", "orders"]
    assert await orders.engine.streams(["bills"]) == [StreamState(Stream("bills", 1), (0,))]
