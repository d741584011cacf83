"""Limits by key for operators: what runs, who holds it up, and numbers that they set."""

from __future__ import annotations

import pytest

from stoker import Limit, Stoker
from stoker.admin import Admin
from stoker.engines.memory import MemoryEngine
from stoker.model.control import Tuning
from stoker.model.errors import InvalidInput
from stoker.model.explain import Reason
from stoker.model.job import Demand

pytestmark = pytest.mark.spec("LIMIT-44")


async def test_operators_see_and_change_what_a_key_runs() -> None:
    jobs = Stoker(MemoryEngine())

    @jobs.task(limit=Limit(1, key="shop"))
    async def call(shop: str) -> None: ...

    async with jobs:
        first = await call.enqueue("x")
        second = await call.enqueue("x")
        await call.enqueue("y")
        engine = await jobs.engine()
        await engine.jobs.renew("w1", [], first=True)
        assert len(await engine.jobs.claim(Demand("w1", (("default", 9),)))) == 2
        admin = Admin(jobs)
        found = await admin.limits.keys("default")
        assert [(one.limit, one.key, one.running, one.most, one.pinned) for one in found] == [
            ("call", "x", 1, 1, False),
            ("call", "y", 1, 1, False),
        ]
        assert found[0].holders == (first.id,)
        assert found[0].due is not None
        assert found[1].due is None
        why = await admin.jobs.explain(second.id)
        gates = {gate.reason: gate for gate in (why.first, *why.gates)}
        assert first.id in gates[Reason.KEY_LIMITED].detail
        assert "for key 'x'" in gates[Reason.KEY_LIMITED].detail
        assert "stoker limits set default call N" in gates[Reason.KEY_LIMITED].remedy
        await admin.limits.set("default", "call", 2)
        why = await admin.jobs.explain(second.id)
        assert Reason.KEY_LIMITED not in {gate.reason for gate in (why.first, *why.gates)}
        assert len(await engine.jobs.claim(Demand("w1", (("default", 9),)))) == 1
        await admin.limits.clear("default", "call")
        assert not (await admin.limits.keys("default"))[0].pinned
        with pytest.raises(InvalidInput):
            await admin.limits.set("default", "call", 0)


async def test_an_explanation_tells_the_place_in_the_round() -> None:
    """Before the first claim a tenant has none and joins at the end."""
    jobs = Stoker(MemoryEngine())

    @jobs.task
    async def work() -> None: ...

    async with jobs:
        engine = await jobs.engine()
        await engine.control.tune("default", Tuning(fair=True))
        handles = [await work.using(tenant=tenant).enqueue() for tenant in "abc" for _ in range(3)]
        await engine.jobs.renew("w1", [], first=True)
        await engine.jobs.claim(Demand("w1", (("default", 1),)))
        admin = Admin(jobs)
        why = await admin.jobs.explain(handles[-1].id)
        behind = next(gate for gate in (why.first, *why.gates) if gate.reason is Reason.BEHIND)
        assert "tenants take turns, and 1 has its turn before it" in behind.detail


async def test_operators_find_the_keys_at_their_limit() -> None:
    """Over all queues or in one, only those for which a job waits, page by page."""
    jobs = Stoker(MemoryEngine())

    @jobs.task(limit=Limit(1, key="shop"))
    async def call(shop: str) -> None: ...

    async with jobs:
        engine = await jobs.engine()
        await engine.jobs.renew("w1", [], first=True)
        for queue in ("left", "right"):
            for shop in ("full", "full", "idle"):
                await call.using(queue=queue).enqueue(shop)
            assert len(await engine.jobs.claim(Demand("w1", ((queue, 9),)))) == 2
        admin = Admin(jobs)
        found = await admin.limits.at_limit()
        assert [(one.queue, one.key, one.running, one.most) for one in found] == [
            ("left", "full", 1, 1),
            ("right", "full", 1, 1),
        ]
        assert [one.queue for one in await admin.limits.at_limit("right")] == ["right"]
        assert len(await admin.limits.at_limit(limit=1)) == 1
        assert await admin.limits.at_limit("none") == []
