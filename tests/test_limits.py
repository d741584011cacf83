"""Limits as tasks declare them: what a call's job carries, and what is refused where it is written."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stoker import Limit, Rate, Stoker, Worker
from stoker.engines.memory import MemoryEngine
from stoker.model.control import Tuning
from stoker.model.errors import InvalidInput, InvalidName
from stoker.model.job import Draft, Options
from stoker.model.limit import Slot

pytestmark = pytest.mark.spec("LIMIT-41")


def app(**options: Any) -> Stoker:
    return Stoker("memory://", **options)


def slot(draft: Draft) -> Slot | None:
    return draft.options.limit


def test_the_key_is_an_argument() -> None:
    """A text as it is, anything else as its JSON; a default counts when the argument is left out."""
    jobs = app()

    @jobs.task(limit=Limit(3, key="customer"))
    async def bill(total: int, customer: str | int | list[int] = "walk-in") -> None: ...

    assert slot(bill.draft(1, "acme")) == Slot("bill", "acme", 3)
    assert slot(bill.draft(1, customer=7)) == Slot("bill", "7", 3)
    assert slot(bill.draft(1, [1, 2])) == Slot("bill", "[1,2]", 3)
    assert slot(bill.draft(1)) == Slot("bill", "walk-in", 3)
    assert slot(jobs.draft("bill", {"total": 1, "customer": "acme"})) == Slot("bill", "acme", 3)
    assert slot(jobs.draft("bill", [1, "acme"])) == Slot("bill", "acme", 3)


def test_the_key_is_computed_from_the_arguments() -> None:
    jobs = app()

    @jobs.task(limit=Limit(1, key=lambda order, **_: order.get("account"), hold="retrying"))
    async def ship(order: dict[str, Any], speed: int = 1) -> None: ...

    assert slot(ship.draft({"account": "x"}, speed=2)) == Slot("ship", "x", 1, "retrying")
    assert slot(ship.draft({"account": 5})) == Slot("ship", "5", 1, "retrying")
    assert slot(ship.draft({})) is None
    with pytest.raises(InvalidInput, match="give limit= with a job by name"):
        jobs.draft("ship", {"order": {}})
    assert slot(jobs.draft("ship", {"order": {}}, limit=Limit(2))) == Slot("ship", None, 2)


def test_the_key_is_the_tenant() -> None:
    jobs = app()

    @jobs.task(limit=Limit(5, key="@tenant", name="tenants"))
    async def sync() -> None: ...

    assert slot(sync.using(tenant="acme").draft()) == Slot("tenants", "acme", 5)
    assert slot(sync.draft()) is None
    assert slot(jobs.draft("sync", tenant="acme")) == Slot("tenants", "acme", 5)


def test_the_call_goes_before_the_task() -> None:
    jobs = app()

    @jobs.task(limit=Limit(10))
    async def work(n: int) -> None: ...

    assert slot(work.draft(1)) == Slot("work", None, 10)
    assert slot(work.using(limit=Limit(1, key="n")).draft(7)) == Slot("work", "7", 1)
    assert slot(work.using(limit=False).draft(1)) is None
    assert work.using(limit=False).draft(1).options == Options()
    assert slot(work.using(priority=3).draft(1)) == Slot("work", None, 10)


def test_a_task_of_another_app_is_limited_by_what_is_declared() -> None:
    jobs = app()
    jobs.declare("elsewhere", limit=Limit(2, key="shop"))
    assert slot(jobs.draft("elsewhere", {"shop": "x"})) == Slot("elsewhere", "x", 2)
    with pytest.raises(InvalidInput, match="no argument 'shop'"):
        jobs.draft("elsewhere", {"chop": "x"})


@pytest.mark.spec("LIMIT-40")
def test_what_is_wrong_is_refused_where_it_is_written() -> None:
    jobs = app()

    async def work(customer: str, *more: int) -> None: ...

    with pytest.raises(InvalidInput, match=r"no parameter of task work.*customer"):
        jobs.task(limit=Limit(1, key="custmer"))(work)
    with pytest.raises(InvalidInput, match="no parameter"):
        jobs.task(limit=Limit(1, key="more"))(work)
    with pytest.raises(InvalidInput, match="must take the arguments of the task"):
        jobs.task(limit=Limit(1, key=lambda: "x"))(work)
    for wrong in (0, 10_001, -1, 1.5):
        with pytest.raises(InvalidInput, match=r"Limit.n"):
            Limit(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="give a rate"):
        Limit()
    with pytest.raises(InvalidInput, match=r"Limit.key"):
        Limit(1, key=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidName):
        Limit(1, name="a/b")
    with pytest.raises(InvalidInput, match="must be a Limit"):
        jobs.task(limit=3)(work)  # type: ignore[call-overload]
    assert Limit(rate=Rate(5), key="customer").n is None


@pytest.mark.spec("LIMIT-40")
def test_a_name_has_one_number_and_one_queue() -> None:
    jobs = app()
    jobs.task(limit=Limit(2, name="gpu"), name="one")(_handler)
    jobs.task(limit=Limit(2, name="gpu"), name="two")(_handler)
    with pytest.raises(InvalidInput, match=r"task one declares.*one number"):
        jobs.task(limit=Limit(3, name="gpu"), name="three")(_handler)
    with pytest.raises(InvalidInput, match="counts the jobs of one queue"):
        jobs.task(limit=Limit(2, name="gpu"), name="four", queue="other")(_handler)
    jobs.task(limit=Limit(9, name="cpu"), name="five", queue="other")(_handler)
    with pytest.raises(InvalidInput, match=r"task five declares.*one number"):
        jobs.task(limit=Limit(8), name="cpu", queue="other")(_handler)  # a limit's name is its task's by default
    assert "cpu" not in jobs.tasks


async def _handler() -> None: ...


async def test_a_queue_is_declared_fair() -> None:
    jobs = app()
    jobs.queue("imports", fair=True)
    assert jobs.declarations.queues["imports"].fair is True
    async with jobs:
        queue = jobs.queue("imports")
        await queue.tune(fair=True)
        assert (await queue.settings()).fair
        await queue.clear("fair")
        assert not (await queue.settings()).fair


@pytest.mark.spec("LIMIT-40")
def test_numbers_of_an_operator_are_checked() -> None:
    with pytest.raises(InvalidInput):
        Tuning(limits=(("api", 0),))
    with pytest.raises(InvalidName):
        Tuning(limits=(("a/b", 1),))
    with pytest.raises(InvalidInput, match="fair"):
        Tuning(fair=5)  # type: ignore[arg-type]


async def test_a_worker_runs_no_more_of_a_key_than_allowed() -> None:
    """Through the app: a worker of ten slots, three keys of two."""
    jobs = Stoker(MemoryEngine())
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    done: list[str] = []

    @jobs.task(limit=Limit(2, key="shop"))
    async def call(shop: str) -> None:
        running[shop] = running.get(shop, 0) + 1
        most[shop] = max(most.get(shop, 0), running[shop])
        await asyncio.sleep(0)
        running[shop] -= 1
        done.append(shop)

    async with jobs:
        for n in range(60):
            await call.enqueue(f"s{n % 3}")
        async with Worker(jobs, {"default": 10}), asyncio.timeout(60):
            while len(done) < 60:
                await asyncio.sleep(0.01)
    assert most == {"s0": 2, "s1": 2, "s2": 2}
