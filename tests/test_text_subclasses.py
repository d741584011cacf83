"""Subclasses of `str`, such as Django's `SafeString`, become plain text where they enter."""

from __future__ import annotations

from typing import Any

import pytest

from stoker import Limit, Rate, Unique, current
from stoker.admin import Admin
from stoker.app import Stoker
from stoker.model.control import Tuning
from stoker.model.events import EventType, Window
from stoker.model.job import Draft, Options
from stoker.model.limit import Slot
from stoker.model.outbox.consumers import Release
from stoker.model.outbox.cursor import Consumer
from stoker.model.outbox.stream import Stream, entry
from stoker.model.query import Move
from stoker.model.schedule import Schedule
from stoker.model.tokens import AccessToken
from tests.harness.apps import drain

pytestmark = pytest.mark.spec("INPUT-11")


class Safe(str):
    """Behaves as Django's `SafeString`: `str()` of it is not plain."""

    __slots__ = ()

    def __str__(self) -> str:
        return self


def safe(text: str) -> Any:
    return Safe(text)


async def test_jobs_with_names_of_a_subclass_are_stored_run_and_recorded(jobs: Stoker) -> None:
    @jobs.task(name=safe("send"), queue=safe("mail"))
    async def send(to: str) -> str:
        current().log(safe("half"))
        return to

    task = send.using(
        tenant=safe("acme"), metadata={safe("order"): safe("7")}, unique=Unique(safe("k")), limit=Limit(2, key="to")
    )
    first = await task.enqueue(safe("ada"))
    second = await jobs.enqueue(jobs.draft(safe("send"), {safe("to"): safe("bob")}, queue=safe("bulk")))
    await drain(jobs, queues=[safe("mail"), safe("bulk")])
    assert [await first.result(timeout=60), await second.result(timeout=60)] == ["ada", "bob"]
    engine = await jobs.engine()
    assert jobs.timeline is not None
    await jobs.timeline.flush(engine.timeline)
    types = [event.type for event in await engine.timeline.events(Window(0, 1 << 60))]
    assert types.count(EventType.ENQUEUED) == types.count(EventType.COMPLETED) == 2


async def test_controls_take_names_of_a_subclass(jobs: Stoker) -> None:
    @jobs.task
    async def work() -> None: ...

    queue = jobs.queue(safe("mail"), rate=Rate(10))
    await queue.pause(reason=safe("a reason"), by=safe("ada"))
    await jobs.budget(safe("llm"), Rate(10)).tune(Rate(5))
    assert (await jobs.spend(safe("llm"))).granted
    async with jobs.lock(safe("nightly")) as held:
        assert held
    await jobs.schedule(safe("daily"), work.draft(), cron=safe("0 3 * * *"), tz=safe("Europe/Paris"))
    assert [one.name for one in await jobs.schedules()] == ["daily"]
    assert await jobs.unschedule(safe("daily"))
    await jobs.declarations.store(await jobs.engine())
    await Admin(jobs).queues.resume(safe("mail"))


def texts(value: Any) -> list[str]:
    """Return every text in a value made of structs, maps and tuples."""
    if isinstance(value, str):
        return [value]
    if hasattr(value, "__struct_fields__"):
        return [one for field in value.__struct_fields__ for one in texts(getattr(value, field))]
    if isinstance(value, dict):
        return [one for pair in value.items() for part in pair for one in texts(part)]
    return [one for part in value for one in texts(part)] if isinstance(value, tuple | frozenset) else []


@pytest.mark.parametrize(
    "made",
    [
        Draft(bytes(16), safe("kind"), queue=safe("queue"), tenant=safe("tenant"), unique=Unique(safe("key"))),
        Options(metadata={safe("key"): safe("value"), "plain": "too"}),
        Slot(safe("name"), safe("key"), 1),
        Tuning(paused=True, reason=safe("reason"), by=safe("person")),
        Tuning(limits=((safe("name"), 5),)),
        AccessToken(name=safe("name"), sha256="0" * 64, queues=(safe("queue"),)),
        Schedule(name=safe("name"), expression=safe("* * * * *"), template=Draft(bytes(16), "work"), tz=safe("UTC")),
        Stream(safe("name")),
        Consumer(safe("name")),
        Release(safe("key")),
        Move(safe("queue")),
        entry(Stream("orders"), safe("key"), b"{}", safe("json"), id=bytes(16), headers={safe("name"): safe("value")}),
    ],
    ids=lambda made: type(made).__name__,
)
def test_what_is_stored_holds_plain_text_only(made: Any) -> None:
    assert {type(text) for text in texts(made)} == {str}
