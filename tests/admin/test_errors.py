"""Errors: the jobs that have them, and what each did in the last days, on every engine."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.engines.base import RELEASES
from stoker.model.job import Status
from stoker.model.releases import Release
from stoker.model.same_error import fingerprint_of
from stoker.model.time import MINUTE
from stoker.testing.clock import VirtualClock
from stoker.worker.rollup import write_points
from tests.admin.test_nouns import claim, end
from tests.harness.rolled_up import died, rolled_up


@pytest.mark.spec("ERRORS-06", "RELEASE-03")
async def test_errors_whose_jobs_are_gone_come_behind(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    await app.enqueue(app.draft("send"))
    [job] = await claim(app)
    await end(app, [job], Status.DEAD, "Timeout: after 7 s")
    at = await (await app.engine()).now()
    gone = died(at, "password=hunter2 of 17", "resize", "bulk", 9)
    await rolled_up(app, clock, [*died(at, "Timeout: after 3 s", n=2), *gone])
    found = await admin.jobs.errors()
    assert [(one.error, one.count, one.died, one.kinds) for one in found.groups] == [
        ("Timeout: after 7 s", 1, 2, ("send",)),
        ("password=[hidden] of …", 0, 9, ("resize",)),
    ]
    assert (sum(found.groups[1].deaths), len(found.groups[1].deaths)) == (9, 24)
    for filter_, errors in {
        "queue:bulk": ["password=[hidden] of …"],
        "kind:send": ["Timeout: after 7 s"],
        "-queue:default": ["password=[hidden] of …"],
        "is:dead": ["Timeout: after 7 s", "password=[hidden] of …"],
        "is:done": [],
        "is:dead attempts:1": ["Timeout: after 7 s"],
        f"same_error:{fingerprint_of('Timeout: after 1 s')}": ["Timeout: after 7 s"],
    }.items():
        assert [one.error for one in (await admin.jobs.errors(filter_)).groups] == errors, filter_
    assert [one.died for one in (await admin.jobs.errors(past=False)).groups] == [0]
    assert (await admin.jobs.find(f"same_error:{found.groups[1].id}")).jobs == []
    engine = await app.engine()
    for name, first in (("r1", at - 9 * MINUTE), ("r2", await engine.now())):
        await engine.documents.swap(RELEASES, name, None, msgspec.json.encode(Release(name, first)))
    assert [one.new_in for one in (await admin.jobs.errors()).groups] == ["", ""]
    at = await engine.now() + MINUTE
    await rolled_up(app, clock, [*died(at, "fresh", release="r2"), *died(at, "old", release="r1"), *died(at, "bare")])
    clock.advance(timedelta(minutes=2))
    await write_points(engine)
    groups = {one.error: (one.new_in, one.releases) for one in (await admin.jobs.errors()).groups}
    assert {name: groups[name] for name in ("fresh", "old", "bare")} == {
        "fresh": ("r2", ("r2",)),
        "old": ("", ("r1",)),
        "bare": ("r2", ()),
    }
