"""Messages that become jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker import Stoker, Unique
from stoker.engines.base import outbox_of
from stoker.model import ids
from stoker.model.errors import InvalidInput, InvalidOption
from stoker.model.job import Job
from stoker.model.outbox.consumers import Seek
from stoker.model.outbox.letters import LetterFilter
from stoker.model.outcome import Reject
from stoker.model.time import HOUR
from stoker.outbox import Message, Outbox, Pace, ToTask
from tests.harness.apps import PATIENCE, drain, until, working
from tests.outbox.relays.conftest import Make


class Order(msgspec.Struct):
    id: int


async def stored(jobs: Stoker, message: Message[Any]) -> Job:
    """The job that a message became."""
    [job] = await (await jobs.engine()).operator.get([ids.parse(message.id)])
    assert job is not None
    return job


@pytest.mark.spec("RELAY-04")
async def test_a_message_becomes_one_job_however_often_it_comes(jobs: Stoker, make: Make) -> None:
    seen: list[Order] = []

    @jobs.task
    async def bill(order: Order) -> None:
        seen.append(order)

    relay = ToTask(bill)
    messages = [make("a", b'{"id":1}', headers={"traceparent": "00-1"}), make("b", b'{"id":2}')]
    await relay.open()
    for _ in range(2):
        await relay.publish(messages)
    await drain(jobs)
    await relay.publish(messages)
    await drain(jobs)
    await relay.close()
    assert sorted(order.id for order in seen) == [1, 2]
    metadata = (await stored(jobs, messages[0])).options.metadata or {}
    assert (metadata["stoker-key"], metadata["traceparent"]) == ("a", "00-1")
    assert repr(relay).endswith("bill>")


@pytest.mark.spec("RELAY-04")
async def test_of_an_app_the_type_is_the_kind_and_the_body_its_arguments(jobs: Stoker, make: Make) -> None:
    seen: list[tuple[int, str]] = []

    @jobs.task(name="greet")
    async def greet(times: int, *, to: str = "all") -> None:
        seen.append((times, to))

    relay = ToTask(jobs)
    await relay.publish([make("a", b'{"times":2,"to":"us"}', type="greet"), make("a", b"[3]", type="greet")])
    await drain(jobs)
    assert sorted(seen) == [(2, "us"), (3, "all")]
    assert "Stoker" in repr(relay)


@pytest.mark.spec("RELAY-04")
@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"payload": b"\0", "raw": True}, "raw bytes"),
        ({"payload": b'{"id":"x"}'}, "cannot become a job.*id"),
        ({"id": ids.occurrence("nightly", 5), "payload": b'{"id":1}'}, "cannot become a job.*version 8"),
        ({"headers": {"h": "x" * 8_100}, "payload": b'{"id":1}'}, "cannot become a job.*metadata"),
    ],
)
async def test_what_can_never_be_a_job_is_rejected(
    jobs: Stoker, make: Make, fields: dict[str, object], why: str
) -> None:
    @jobs.task
    async def bill(order: Order) -> None: ...

    with pytest.raises(Reject, match=why):
        await ToTask(bill).publish([make(**fields)])
    with pytest.raises(Reject, match="no_such"):
        await ToTask(jobs).publish([make(type="no_such")])


@pytest.mark.spec("RELAY-17")
@pytest.mark.parametrize("joins", [False, True])
async def test_a_message_whose_id_a_job_of_another_kind_has_is_rejected(jobs: Stoker, make: Make, joins: bool) -> None:
    """Letters show their ids: who may enqueue something else could take one and keep the message from its job."""

    @jobs.task
    async def bill(order: Order) -> None: ...

    @jobs.task
    async def greet() -> None: ...

    messages = [make("a", b'{"id":1}'), make("b", b'{"id":2}')]
    await jobs.insert_drafts([msgspec.structs.replace(greet.draft(), job_id=ids.parse(messages[1].id))])
    relay, engine = ToTask(bill), await jobs.engine()
    await relay.publish(messages[:1])
    with pytest.raises(Reject, match=rf"{messages[1].id} cannot become a job.*a job of kind greet has its id"):
        if joins:
            async with engine.transaction() as tx:
                await relay.publish_in(messages, tx)
        else:
            await relay.publish(messages)
    assert (await stored(jobs, messages[1])).kind == "greet"


@pytest.mark.spec("RELAY-04")
def test_a_task_that_cannot_take_a_body_is_refused_where_the_relay_is_made() -> None:
    jobs = Stoker("memory://")

    @jobs.task
    async def two(a: int, b: int) -> None: ...

    @jobs.task
    async def one(a: int) -> None: ...

    with pytest.raises(InvalidInput, match=r"two\(\).*missing a required argument"):
        ToTask(two)
    with pytest.raises(InvalidOption, match="later"):
        ToTask(one.using(tx=object()))
    assert ToTask(one).joins(jobs)
    assert not ToTask(one).joins(Stoker("memory://"))


@pytest.mark.spec("RELAY-04")
async def test_keys_are_computed_from_the_body_as_the_task_takes_it(jobs: Stoker, make: Make) -> None:
    @jobs.task(unique=lambda order: Unique(f"order-{order.id}"))
    async def bill(order: Order) -> None: ...

    messages = [make("a", b'{"id":1}'), make("a", b'{"id":1}')]
    await ToTask(bill).publish(messages)
    assert (await stored(jobs, messages[0])).unique == Unique("order-1")
    assert await (await jobs.engine()).operator.get([ids.parse(messages[1].id)]) == [None]


@pytest.mark.spec("RELAY-05")
async def test_jobs_of_another_store_are_kept_for_an_hour_at_least(jobs: Stoker, make: Make) -> None:
    @jobs.task(keep=60)
    async def short(body: int) -> None: ...

    @jobs.task(keep=7_200)
    async def long(body: int) -> None: ...

    @jobs.task(queue="brief")
    async def brief(body: int) -> None: ...

    @jobs.task
    async def plain(body: int) -> None: ...

    await jobs.queue("brief").tune(keep_done=1)
    keeps = []
    for task in (short, long, brief, plain):
        message = make(payload=b"1")
        relay = ToTask(task)
        await relay.open()
        await relay.publish([message])
        keeps.append((await stored(jobs, message)).options.keep)
    assert keeps == [HOUR, 2 * HOUR, HOUR, None]


@pytest.mark.spec("RELAY-05")
async def test_in_the_same_store_the_jobs_are_part_of_a_transaction(jobs: Stoker, make: Make) -> None:
    @jobs.task(keep=0)
    async def bill(body: int) -> None: ...

    relay, message = ToTask(bill), make(payload=b"1")
    engine = await jobs.engine()
    with pytest.raises(ZeroDivisionError):
        async with engine.transaction() as tx:
            await relay.publish_in([message], tx)
            raise ZeroDivisionError
    assert await engine.operator.get([ids.parse(message.id)]) == [None]
    async with engine.transaction() as tx:
        await relay.publish_in([message], tx)
    assert (await stored(jobs, message)).options.keep == 0


# --- through a worker -------------------------------------------------------------------------------------------------


@pytest.mark.spec("RELAY-05")
async def test_messages_become_jobs_of_the_same_app_and_only_a_bad_one_a_letter(jobs: Stoker) -> None:
    """Jobs that are deleted when they are done: no repeated message would find them, so it must not be repeated."""
    ran: list[int] = []

    @jobs.task(keep=0)
    async def bill(order: Order) -> None:
        ran.append(order.id)

    outbox = Outbox[dict[str, Any]](jobs, stream="orders", partitions=2)
    outbox.relay(ToTask(bill), name="bill", pace=Pace(idle=0.02, retry_base=0.001, retry_max=0.002))
    entries = [outbox.entry(str(n % 4), {"id": n}) for n in range(20)]
    entries.insert(7, outbox.entry("1", {"id": "none"}))
    await outbox.append_many(entries)
    async with working(jobs):
        await until(lambda: len(ran) >= 20)
        await passed(jobs, 21)
    assert sorted(ran) == list(range(20))
    [letter] = (await outbox_of(await jobs.engine()).letters(LetterFilter("orders"))).letters
    assert "cannot become a job" in letter.reason


@pytest.mark.spec("RELAY-04", "RELAY-05")
async def test_messages_become_jobs_of_another_store_once(tmp_path: Path, jobs: Stoker) -> None:
    ran: list[int] = []
    async with Stoker(f"sqlite:///{tmp_path}/mail.db") as mail:

        @mail.task(keep=0)
        async def confirm(order: Order) -> None:
            ran.append(order.id)

        outbox = Outbox[dict[str, int]](jobs, stream="orders", partitions=2, keep=60)
        outbox.relay(ToTask(confirm), name="mail", pace=Pace(idle=0.02))
        await outbox.append_many([outbox.entry(str(n), {"id": n}) for n in range(20)])
        async with working(jobs, {}), working(mail):
            await until(lambda: len(ran) >= 20)
            await passed(jobs, 20)
            assert await outbox_of(await jobs.engine()).steer("orders", "mail", Seek("beginning"))
            await passed(jobs, 20)
            await drain(mail)
    assert sorted(ran) == list(range(20)), "the messages that came again met the jobs of the first time"


async def passed(jobs: Stoker, count: int) -> None:
    """Wait until the only consumer has passed so many messages."""
    streams = outbox_of(await jobs.engine())
    async with asyncio.timeout(PATIENCE):
        while True:
            [state] = await streams.streams(["orders"])
            if sum(one.cursor.position for one in state.cursors) == count:
                return
            await asyncio.sleep(0.01)
