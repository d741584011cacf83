"""Limits by key for operators: what runs, who holds it up, and numbers that they set."""

from __future__ import annotations

import pytest

from stoker import Limit, Stoker
from stoker.admin import Admin
from stoker.engines.memory import MemoryEngine
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
        await engine.renew("w1", [], first=True)
        assert len(await engine.claim(Demand("w1", (("default", 9),)))) == 2
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
        assert len(await engine.claim(Demand("w1", (("default", 9),)))) == 1
        await admin.limits.clear("default", "call")
        assert not (await admin.limits.keys("default"))[0].pinned
        with pytest.raises(InvalidInput):
            await admin.limits.set("default", "call", 0)
