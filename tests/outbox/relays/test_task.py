"""Messages that become jobs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stoker import Stoker, Unique
from stoker.model import ids
from stoker.model.errors import InvalidInput, InvalidOption
from stoker.model.job import Job
from stoker.model.outcome import Reject
from stoker.model.time import HOUR
from stoker.outbox import Message, ToTask
from tests.harness.apps import drain
from tests.outbox.relays.conftest import Make


class Order(msgspec.Struct):
    id: int


async def stored(jobs: Stoker, message: Message[Any]) -> Job:
    """The job that a message became."""
    [job] = await (await jobs.engine()).get([ids.parse(message.id)])
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
    assert await (await jobs.engine()).get([ids.parse(messages[1].id)]) == [None]


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
    assert await engine.get([ids.parse(message.id)]) == [None]
    async with engine.transaction() as tx:
        await relay.publish_in([message], tx)
    assert (await stored(jobs, message)).options.keep == 0
