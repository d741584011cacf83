"""Letters, parked keys and consumers in the hands of a user."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.engines.base import outbox_of
from stoker.model.errors import InvalidInput, InvalidOption, NotFound, UnknownOption
from stoker.model.outbox.cursor import Lease, LeaseRequest
from stoker.model.outcome import Reject, Retry, Snooze
from stoker.outbox import Batch, LetterStatus, Message, Outbox, Pace
from tests.harness.apps import PATIENCE, until, working

QUICK = Pace(batch=4, idle=0.02, retry_base=0.001, retry_max=0.002)


class Shop:
    """An outbox with one handler that refuses what it is told to."""

    def __init__(self, jobs: Stoker, **options: Any) -> None:
        self.outbox = Outbox[int](jobs, stream="orders", partitions=1)
        self.bad: set[int] = set()
        self.got: list[int] = []

        @self.outbox.deliver(pace=QUICK, **options)
        async def publish(message: Message[int]) -> None:
            if message.body in self.bad:
                raise ValueError(f"no order {message.body}")
            self.got.append(message.body)

    async def fill(self, *numbers: int, key: str = "k") -> None:
        await self.outbox.append_many([self.outbox.entry(key, n) for n in numbers])

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        async with working(self.outbox.app, {}):
            yield

    async def passed(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    [consumer] = (await self.outbox.state()).consumers
                    [partition] = consumer.partitions
                    if partition.position >= count and partition.holder is None:
                        return
                except (NotFound, ValueError):
                    pass
                await asyncio.sleep(0.005)

    async def letters(self, **chosen: Any) -> list[tuple[int, str]]:
        page = await self.outbox.letters(status=None, **chosen)
        return sorted((one.number, one.status.value) for one in page.letters)

    async def becomes(self, *wanted: tuple[int, str]) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.letters() != [*wanted]:
                await asyncio.sleep(0.005)


@pytest.mark.spec("LETTER-01")
async def test_letters_are_listed_page_by_page_and_counted(jobs: Stoker) -> None:
    shop = Shop(jobs, attempts=1)
    shop.bad = {1, 2, 3, 4, 5}
    await shop.fill(0, 1, 2, 3)
    await shop.fill(4, 5, key="other")
    async with shop.open():
        await shop.passed(6)
    outbox = shop.outbox
    page = await outbox.letters(limit=3)
    rest = await outbox.letters(limit=3, before=page.next)
    assert [one.number for one in (*page.letters, *rest.letters)] == [6, 5, 4, 3, 2]
    assert rest.next is None
    newest = page.letters[0]
    assert (newest.key, newest.type, newest.payload, newest.attempts) == ("other", "json", b"5", 1)
    assert (newest.stream, newest.consumer, newest.status) == ("orders", "publish", LetterStatus.PENDING)
    assert "ValueError: no order 5" in newest.reason
    assert newest.failed > datetime.now(UTC) - timedelta(minutes=1)
    assert await outbox.count_letters() == 5
    assert await outbox.count_letters(key="other") == 2
    assert await outbox.count_letters(consumer="nobody") == 0
    assert await outbox.count_letters(status="parked") == 0
    assert await outbox.count_letters(type="json", partition=0) == 5
    with pytest.raises(InvalidOption, match="pending, parked"):
        await outbox.letters(status="lost")
    misspelled: Any = {"consumr": "bill"}
    for call in (outbox.letters, outbox.count_letters, outbox.replay, outbox.discard):
        with pytest.raises(UnknownOption, match="consumer"):
            await call(**misspelled)
    paged: Any = {"limit": 5}
    for change in (outbox.count_letters, outbox.replay, outbox.discard):
        with pytest.raises(UnknownOption, match="limit"):
            await change(**paged)
    with pytest.raises(InvalidInput, match="place of a letter"):
        await outbox.letters(before="nowhere")
    with pytest.raises(InvalidInput, match="limit"):
        await outbox.letters(limit=0)


@pytest.mark.spec("LETTER-02")
async def test_a_replayed_letter_is_delivered_by_the_next_turn(jobs: Stoker) -> None:
    shop = Shop(jobs, attempts=1)
    shop.bad = {1, 3}
    await shop.fill(0, 1, 2, 3)
    async with shop.open():
        await shop.passed(4)
        assert await shop.letters() == [(2, "pending"), (4, "pending")]
        shop.bad = {3}
        assert await shop.outbox.replay() == 2
        await until(lambda: 1 in shop.got)
        await shop.becomes((2, "resolved"), (4, "pending"))
        async with asyncio.timeout(PATIENCE):
            while (await shop.outbox.letters()).letters[0].attempts != 2:
                await asyncio.sleep(0.005)
    [left] = (await shop.outbox.letters()).letters
    assert (left.number, left.attempts, left.due) == (4, 2, False)
    assert shop.got == [0, 2, 1]
    assert await shop.outbox.replay([left.id], consumer="nobody") == 0


@pytest.mark.spec("LETTER-03")
async def test_letters_are_delivered_here_under_a_claim(jobs: Stoker) -> None:
    shop = Shop(jobs, attempts=1)
    shop.bad = {1, 3, 5}
    await shop.fill(0, 1, 2, 3, 4, 5)
    async with shop.open():
        await shop.passed(6)
    shop.bad = {3}
    assert await shop.outbox.replay(here=True) == 2
    assert shop.got == [0, 2, 4, 1, 5]
    assert await shop.letters() == [(2, "resolved"), (4, "pending"), (6, "resolved")]
    [left] = (await shop.outbox.letters()).letters
    assert left.attempts == 2
    assert "no order 3" in left.reason


@pytest.mark.spec("LETTER-03")
async def test_what_cannot_be_delivered_here_is_said(jobs: Stoker) -> None:
    outbox = Outbox[int](jobs, stream="orders", partitions=1)
    turns: list[BaseException | None] = [Retry("later"), Snooze(1), Reject("never"), TimeoutError("t"), None]

    @outbox.deliver(attempts=1, pace=QUICK)
    async def publish(batch: Batch[int]) -> None:
        for one in batch:
            if turns:
                raised = turns.pop(0)
                if raised is not None:
                    raise raised
                batch.reject(one, "by hand")
            else:
                await asyncio.sleep(PATIENCE)

    turns.insert(0, Reject("first"))
    await outbox.append("k", 1)
    async with working(jobs, {}):
        async with asyncio.timeout(PATIENCE):
            while not await outbox.count_letters():
                await asyncio.sleep(0.005)
    reasons = []
    for number in range(6):
        assert await outbox.replay(here=True, deadline=PATIENCE if number < 5 else 0.05) == 0
        reasons.append((await outbox.letters()).letters[0].reason.partition("\n")[0])
    assert reasons == [
        "later",
        "snoozed for 1 s",
        "never",
        "TimeoutError: t",
        "by hand",
        "the handler did not finish within 0.05 s",
    ]
    other = Outbox[int](Stoker(jobs.root()), stream="orders", partitions=1)
    with pytest.raises(InvalidInput, match="no handler of that name"):
        await other.replay(here=True)


@pytest.mark.spec("LETTER-04")
async def test_letters_are_discarded_and_cleaned(jobs: Stoker) -> None:
    shop = Shop(jobs, attempts=1)
    shop.bad = {1, 2}
    await shop.fill(1, 2)
    async with shop.open():
        await shop.passed(2)
    [_second, first] = (await shop.outbox.letters()).letters
    assert await shop.outbox.discard([first.id]) == 1
    assert await shop.outbox.discard([first.id]) == 0
    assert await shop.letters() == [(1, "discarded"), (2, "pending")]
    assert await shop.outbox.clean(3600) == 0
    assert await shop.outbox.clean(0) == 1
    assert await shop.letters() == [(2, "pending")]
    assert await shop.outbox.discard() == 1


@pytest.mark.spec("LETTER-05")
async def test_a_parked_key_is_released_in_order(jobs: Stoker) -> None:
    shop = Shop(jobs, attempts=1, then="park")
    shop.bad = {1}
    await shop.fill(1, 2, 3, key="a")
    await shop.fill(10, 11, key="b")
    async with shop.open():
        await shop.passed(5)
        assert shop.got == [10, 11]
        [consumer] = (await shop.outbox.state()).consumers
        assert consumer.parked == 1
        with pytest.raises(NotFound, match="'b' is not parked by any consumer"):
            await shop.outbox.release("b")
        with pytest.raises(NotFound, match="by consumer 'nobody'"):
            await shop.outbox.release("a", consumer="nobody")
        await shop.outbox.release("a")  # it fails again
        async with asyncio.timeout(PATIENCE):
            while (await shop.outbox.letters(status="parked")).letters[0].attempts < 2:
                await asyncio.sleep(0.005)
        await shop.fill(4, key="a")
        shop.bad = set()
        await shop.passed(6)
        await shop.outbox.release("a", consumer="publish")
        await until(lambda: len(shop.got) == 6)
        await shop.fill(5, key="a")
        await until(lambda: len(shop.got) == 7)
    assert shop.got == [10, 11, 1, 2, 3, 4, 5]
    assert await shop.outbox.count_letters(status="parked") == 0


@pytest.mark.spec("STEER-01")
async def test_the_state_of_a_stream(jobs: Stoker) -> None:
    outbox = Outbox[int](jobs, stream="orders", partitions=2, keep=60)
    with pytest.raises(NotFound, match="nothing was appended"):
        await outbox.state()

    @outbox.deliver(pace=Pace(retry_base=600, retry_max=600))
    async def publish(message: Message[int]) -> None:
        if message.body == 3:
            raise OSError("sink is away")

    @outbox.deliver(start="end")
    async def audit(message: Message[int]) -> None: ...

    await outbox.append_many([outbox.entry("k", n, partition=0) for n in range(5)])
    async with working(jobs, {}):
        async with asyncio.timeout(PATIENCE):
            while True:
                state = await outbox.state()
                if state.consumers and state.consumers[-1].failures:
                    break
                await asyncio.sleep(0.005)
    assert (state.name, state.partitions, state.keep, state.messages) == ("orders", 2, timedelta(seconds=60), 5)
    audit_state, publish_state = state.consumers
    assert (audit_state.name, audit_state.waiting, audit_state.oldest) == ("audit", 0, None)
    assert (publish_state.waiting, publish_state.paused, publish_state.failures) == (2, False, 1)
    assert publish_state.oldest is not None
    first = publish_state.partitions[0]
    assert (first.partition, first.last, first.position, first.waiting, first.attempts) == (0, 5, 3, 2, 0)
    assert first.due is not None
    assert [one.name for one in await Admin(jobs).outbox.list()] == ["orders"]
    assert (await Admin(jobs).outbox.stream("orders").state()).messages == 5
    assert "orders" in repr(Admin(jobs).outbox.stream("orders"))


@pytest.mark.spec("STEER-02")
async def test_a_consumer_is_paused_moved_and_dropped(jobs: Stoker) -> None:
    shop = Shop(jobs)
    outbox = shop.outbox
    await shop.fill(0, 1, 2)
    async with shop.open():
        await shop.passed(3)
        await outbox.pause("publish")
        await shop.fill(3)
        assert (await outbox.state()).consumers[0].paused
        await outbox.seek("publish", {0: 1})
        assert shop.got == [0, 1, 2]
        await outbox.resume("publish")
        await shop.passed(4)
        assert shop.got == [0, 1, 2, 1, 2, 3]
        await outbox.seek("publish", "end")
        await outbox.seek("publish", datetime.now(UTC) - timedelta(hours=1))
        await until(lambda: len(shop.got) > 6)
        await outbox.drop("publish")
    assert (await outbox.state()).consumers == ()
    with pytest.raises(NotFound, match=r"no consumer 'publish' \(known: none\)"):
        await outbox.pause("publish")
    with pytest.raises(InvalidInput, match="time zone"):
        await outbox.seek("publish", datetime(2026, 1, 1))


@pytest.mark.spec("STEER-02")
async def test_a_seek_refuses_the_turn_under_way(jobs: Stoker, caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop(jobs)
    begun, go_on = asyncio.Event(), asyncio.Event()

    @shop.outbox.deliver(pace=QUICK)
    async def slow(message: Message[int]) -> None:
        begun.set()
        await go_on.wait()

    await shop.fill(0, 1)
    async with shop.open():
        await begun.wait()
        await shop.outbox.seek("slow", "beginning")
        go_on.set()
        await until(lambda: "lost the lease of partition 0" in caplog.text)


@pytest.mark.spec("DELIVER-13")
async def test_a_dead_workers_partition_is_free_when_its_own_lease_ends(jobs: Stoker) -> None:
    shop = Shop(jobs)
    await shop.fill(0)
    engine = await jobs.engine()
    streams = outbox_of(engine)
    await streams.register(shop.outbox.stream, [shop.outbox.handlers["publish"].consumer])
    await engine.jobs.renew("dead", [], first=True, lease=200_000)
    assert isinstance(await streams.lease(LeaseRequest("orders", "publish", "dead", 8)), Lease)
    async with shop.open():
        await until(lambda: shop.got == [0])


@pytest.mark.spec("STEER-01")
async def test_secrets_in_letters_are_masked_for_operators(jobs: Stoker) -> None:
    outbox = Outbox[dict[str, str]](jobs, stream="orders", partitions=1)

    @outbox.deliver(attempts=1)
    async def publish(message: Message[dict[str, str]]) -> None:
        raise ValueError("password=12345")

    await outbox.append("k", {"name": "ada", "password": "12345"}, headers={"authorization": "Bearer 12345"})
    async with working(jobs, {}):
        async with asyncio.timeout(PATIENCE):
            while not await outbox.count_letters():
                await asyncio.sleep(0.005)
    [whole] = (await outbox.letters()).letters
    [shown] = (await Admin(jobs).outbox.stream("orders").letters()).letters
    assert b"12345" in whole.payload
    assert b"ada" in shown.payload
    assert "12345" not in f"{shown.payload!r} {shown.headers} {shown.reason}"
