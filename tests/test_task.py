from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.engines.memory import MemoryEngine
from stoker.model.errors import Duplicate, InvalidInput
from stoker.model.job import PLAIN, Draft, Status, Stored
from stoker.model.retry import Fixed, Linear, Policy
from stoker.model.time import SECOND, instant
from stoker.model.unique import Unique
from stoker.testing import TestKit
from stoker.testing.clock import VirtualClock


@pytest.fixture
def app() -> Stoker:
    return Stoker(MemoryEngine())


@pytest.mark.spec("TASK-01")
def test_a_draft_holds_the_bound_arguments_and_nothing_else(app: Stoker) -> None:
    @app.task
    async def resize(image: int, *, width: int = 800) -> None: ...

    draft = resize.draft(7)
    assert (draft.kind, draft.queue, draft.payload, draft.attempts) == ("resize", "default", b'{"image":7}', 5)
    assert draft.options is PLAIN
    assert resize.draft(7, width=800).payload == b'{"image":7,"width":800}'
    assert draft.job_id < resize.draft(7).job_id
    wrong: Any = resize
    for args, kwargs in (((), {}), ((1, 2), {}), ((1,), {"wdith": 2})):
        with pytest.raises(InvalidInput, match=r"resize\(\)"):
            wrong.draft(*args, **kwargs)


@pytest.mark.spec("TASK-02")
async def test_every_option_of_a_call_reaches_the_record(timed_jobs: Stoker, clock: VirtualClock) -> None:
    @timed_jobs.task
    def work() -> None: ...

    job = await work.using(
        queue="mail",
        priority=-3,
        delay=timedelta(minutes=1),
        attempts=7,
        backoff=Linear(1, 2),
        timeout=30,
        unique=Unique("k", scope="global", hold="retrying"),
        tenant="acme",
        expires=3600,
        keep=0,
        metadata={"from": "test"},
        isolation="process",
    ).enqueue()
    record = await job.refresh()
    assert record.queue == "mail"
    assert record.priority == -3
    assert record.scheduled_at == clock.moment() + timedelta(minutes=1)
    assert record.budget == 7
    assert record.unique == Unique("k", "global", "existing", "retrying")
    assert record.tenant == "acme"
    assert record.backoff == Linear(1, 2)
    assert (record.timeout, record.expires, record.keep) == (timedelta(seconds=30), timedelta(hours=1), timedelta(0))
    assert record.isolation == "process"
    assert record.metadata == {"from": "test"}
    at = datetime(2031, 1, 1, tzinfo=UTC)
    assert (await (await work.using(at=at).enqueue()).refresh()).scheduled_at == at


@pytest.mark.spec("TASK-03")
async def test_using_gives_a_copy_and_leaves_the_task_alone(app: Stoker) -> None:
    @app.task(queue="a")
    async def work() -> str:
        return "ran"

    other = work.using(queue="b").using(priority=1)
    assert (work.draft().queue, other.draft().queue, other.draft().priority) == ("a", "b", 1)
    assert app.tasks["work"] is work
    assert await other() == "ran"
    at = datetime(2031, 1, 1, tzinfo=UTC)
    later = work.using(delay=60).using(at=at).draft()
    assert (later.delay, later.at) == (0, instant(at))
    sooner = work.using(at=at).using(delay=60).draft()
    assert (sooner.delay, sooner.at) == (60 * SECOND, None)
    with pytest.raises(InvalidInput, match="at"):
        work.using(at=at, delay=1)
    with pytest.raises(InvalidInput, match="time zone"):
        work.using(at=datetime(2031, 1, 1))
    misspelt: Any = work.using
    with pytest.raises(TypeError, match="quue"):
        misspelt(quue="x")


@pytest.mark.spec("TASK-04")
async def test_unique_keys_may_be_made_from_the_arguments(jobs: Stoker) -> None:
    @jobs.task(unique=lambda image, width=1: f"img:{image}" if image else None)
    async def resize(image: int, width: int = 1) -> None: ...

    first = await resize.enqueue(7)
    assert await resize.enqueue(7, width=3) == first
    assert await resize.enqueue(8) != first
    assert await resize.enqueue(0) != await resize.enqueue(0)
    replaced = await resize.using(unique=lambda image, width=1: Unique(f"img:{image}", mode="replace")).enqueue(7, 9)
    assert (replaced, replaced.stored) == (first, Stored.REPLACED)
    assert (await first.refresh()).payload == b'{"image":7,"width":9}'
    with pytest.raises(Duplicate) as caught:
        await resize.using(unique=Unique("img:7", mode="raise")).enqueue(7)
    assert caught.value.key == "img:7"
    wrong: Any = resize.using(unique=lambda image, width=1: image)  # type: ignore[arg-type, return-value]
    with pytest.raises(InvalidInput, match="must return a key"):
        wrong.draft(5)
    with pytest.raises(InvalidInput, match=r"resize\(\)"):
        wrong.draft(5, height=1)


@pytest.mark.spec("TASK-08")
async def test_all_arguments_may_be_the_key(jobs: Stoker) -> None:
    @jobs.task(unique=True)
    async def resize(image: int, width: float = 1, *, crop: dict[str, int] | None = None) -> None: ...

    first = await resize.enqueue(7)
    for same in (
        await resize.enqueue(image=7),
        await resize.enqueue(7, 1),
        await resize.enqueue(7, 1.0, crop=None),
        await jobs.enqueue(jobs.draft(resize.name, {"image": 7})),
        await jobs.enqueue(jobs.draft(resize.name, [7, 1])),
    ):
        assert (same, same.stored) == (first, Stored.EXISTING)
    others = [resize.draft(8), resize.draft(7, 2), resize.draft(7, crop={"x": 1}), resize.draft(7, crop={"y": 1})]
    assert {one.stored for one in await jobs.enqueue_many(others)} == {Stored.INSERTED}
    turned = await resize.enqueue(9, crop={"x": 1, "y": 2})
    assert await resize.enqueue(9, crop={"y": 2, "x": 1}) == turned
    assert await resize.using(unique="7").enqueue(7) != first
    key = resize.draft(7).unique
    assert key is not None
    assert re.fullmatch("arguments:[0-9a-f]{32}", key.key)


@pytest.mark.spec("TASK-08")
async def test_a_default_without_a_json_form_counts_as_not_given(jobs: Stoker) -> None:
    @jobs.task(unique=True)
    async def tell(text: str, way: Any = print) -> None: ...

    assert await tell.enqueue("a") == await tell.enqueue(text="a")
    assert await tell.enqueue("a") != await tell.enqueue("a", "loud")


@pytest.mark.spec("TASK-08")
async def test_all_arguments_of_what_cannot_be_compared_are_refused(jobs: Stoker) -> None:
    jobs.declare("elsewhere", unique=True)
    with pytest.raises(InvalidInput, match=r"needs the task's code .* give unique= a key"):
        jobs.draft("elsewhere", {"n": 1})
    with pytest.raises(InvalidInput, match="True for all of them, or False for no key"):
        jobs.declare("another", unique=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"unique: has no key; task.draft\(...\)"):
        Draft(bytes(16), "elsewhere", unique=Unique())


@pytest.mark.spec("TASK-09")
async def test_a_key_of_all_arguments_has_the_other_fields_of_unique(jobs: Stoker) -> None:
    """The same arguments once an hour, and the latest of them."""

    @jobs.task(unique=Unique(for_=3600))
    async def fetch(url: str, depth: int = 1) -> None: ...

    @jobs.task(unique=lambda url, **_: Unique(for_=60) if url else None)
    async def chosen(url: str, depth: int = 1) -> None: ...

    with TestKit(jobs) as kit:
        first = await fetch.enqueue("a")
        await kit.drain()
        assert await fetch.enqueue(url="a", depth=1) == first
        assert await jobs.enqueue(jobs.draft(fetch.name, {"url": "a"})) == first
        assert await fetch.enqueue("a", 2) != first
        kit.clock.advance(3600)
        assert await fetch.enqueue("a") != first
        replaced = await fetch.using(unique=Unique(mode="replace")).enqueue("a")
        assert replaced.stored is Stored.REPLACED
        assert await chosen.enqueue("a") == await chosen.enqueue("a") != await chosen.enqueue("a", 2)
        assert await chosen.enqueue("") != await chosen.enqueue("")
    with pytest.raises(InvalidInput, match=r"is left out for all arguments, as in Unique\(for_=3600\)"):
        Unique(True, for_=3600)  # type: ignore[arg-type]


@pytest.mark.spec("TASK-10")
async def test_a_call_may_drop_the_key_of_its_task(jobs: Stoker) -> None:
    """False means no key; None leaves it to the task."""

    @jobs.task(unique=True)
    async def fetch(url: str) -> None: ...

    @jobs.task(unique="one")
    async def single() -> None: ...

    first = await fetch.enqueue("a")
    assert await fetch.using(unique=False).enqueue("a") != first
    assert await fetch.using(unique=None).enqueue("a") == first
    assert fetch.using(unique=False).using(unique="k").draft("a").unique == Unique("k")
    assert single.using(unique=False).draft().unique is None
    assert jobs.draft(fetch.name, {"url": "a"}, unique=False).unique is None
    jobs.declare("elsewhere", unique="one")
    assert jobs.draft("elsewhere", unique=False).unique is None
    jobs.cron("0 3 * * *", name="nightly", unique=False, misfire="all")(single)


@pytest.mark.spec("TASK-05")
def test_enqueue_sync_stores_and_answers_a_handle(app: Stoker) -> None:
    @app.task
    def work(n: int) -> int:
        return n

    job = work.using(priority=2).enqueue_sync(4)
    record = app.run(job.refresh())
    assert (record.status, record.priority, record.payload) == (Status.PENDING, 2, b'{"n":4}')
    app.run(app.close())


@pytest.mark.spec("TASK-02")
def test_a_tasks_policy_and_backoff_travel_with_its_copies(app: Stoker) -> None:
    @app.task(backoff=Fixed(3), retry_on=OSError, give_up_on=FileNotFoundError, crashes=None)
    def work() -> None: ...

    copy = work.using(priority=1)
    assert (copy.policy, copy.crashes) == (Policy(OSError, FileNotFoundError), None)
    assert copy.draft().options.backoff == Fixed(3)
    assert work.using(backoff=Fixed(0)).draft().options.backoff == Fixed(0)


async def test_many_drafts_of_one_task_have_rising_ids(app: Stoker) -> None:
    @app.task
    async def work(n: int) -> None: ...

    drafts = [work.draft(n) for n in range(1_000)]
    assert [draft.job_id for draft in drafts] == sorted({draft.job_id for draft in drafts})
    await asyncio.sleep(0)
