"""Groups for operators: lists, one with its members and callbacks, and actions on all of its members."""

from __future__ import annotations

import asyncio

import pytest

from stoker.admin import Admin, Filter, bulk
from stoker.app import Stoker
from stoker.groups import GroupHandle
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.job import Demand, Draft, Settlement, Status
from stoker.testing.clock import VirtualClock

UNKNOWN = "0193b0f0-0000-7000-8000-000000000001"


async def settle(app: Stoker, *statuses: Status) -> None:
    """End the first jobs of the default queue so."""
    engine = await app.engine()
    await engine.jobs.renew("w", [], first=True)
    claims = await engine.jobs.claim(Demand("w", (("default", len(statuses)),), len(statuses)))
    await engine.jobs.settle(
        [
            Settlement(one.id, one.worker, one.token, status, error="boom" if status is Status.DEAD else None)
            for one, status in zip(claims, statuses, strict=True)
        ]
    )
    await engine.jobs.renew("w", [], lease=0)
    await engine.groups.sweep()


def members(app: Stoker, n: int) -> list[Draft]:
    return [app.draft("send") for _ in range(n)]


async def listed(admin: Admin, limit: int = 2, **given: str) -> list[str]:
    """The ids of all pages."""
    page = await admin.groups.list(limit=limit, **given)  # type: ignore[arg-type]
    found = list(page.groups)
    while page.cursor is not None:
        assert len(page.groups) == limit
        page = await admin.groups.list(limit=limit, cursor=page.cursor, **given)  # type: ignore[arg-type]
        found += page.groups
    return [one.id for one in found]


@pytest.mark.spec("GROUP-35")
async def test_groups_are_listed_open_ones_first(app: Stoker, admin: Admin, clock: VirtualClock) -> None:
    assert await listed(admin) == []
    made: list[GroupHandle] = []
    for n in (1, 0, 2, 0, 1):
        made.append(await app.group(members(app, n)))
        clock.advance(1)
    engine = await app.engine()
    await engine.groups.sweep()
    first, empty, second, none, last = [one.id for one in made]
    assert await listed(admin) == [last, second, first, none, empty]
    assert await listed(admin, limit=100) == [last, second, first, none, empty]
    assert await listed(admin, limit=3) == [last, second, first, none, empty]
    assert await listed(admin, state="open") == [last, second, first]
    assert await listed(admin, state="closed") == [none, empty]
    [page] = [await admin.groups.list(state="open", limit=1)]
    assert [(one.state, one.total, one.members) for one in page.groups] == [("open", 1, ())]


@pytest.mark.spec("GROUP-35")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"state": "shut"}, "must be one of open, closed"),
        ({"limit": 0}, "must be between 1 and 1000"),
        ({"cursor": "open-00"}, "must be the one of the page before"),
        ({"cursor": "shut-" + "0" * 48}, "must be the one of the page before"),
        ({"cursor": "none"}, "must be the one of the page before"),
    ],
)
async def test_a_list_that_cannot_be_is_refused(admin: Admin, given: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        await admin.groups.list(**given)  # type: ignore[arg-type]


@pytest.mark.spec("GROUP-35")
async def test_a_group_is_shown_with_its_members_and_callbacks(app: Stoker, admin: Admin) -> None:
    then, on_failure, on_finish = (app.draft(kind, queue="after") for kind in ("resize", "send", "resize"))
    group = await app.group(members(app, 3), then=then, on_failure=on_failure, on_finish=on_finish)
    found = await admin.groups.get(group.id)
    assert (found.id, found.state, found.total, found.waiting, found.sealed) == (group.id, "open", 3, 3, True)
    assert found.statuses == {Status.PENDING: 3}
    assert [(one.name, one.kind, one.status) for one in found.callbacks] == [
        ("then", "resize", None),
        ("on_failure", "send", None),
        ("on_finish", "resize", None),
    ]
    await settle(app, Status.DONE, Status.DEAD, Status.DONE)
    found = await admin.groups.get(group.id)
    assert (found.state, found.done, found.dead, found.waiting) == ("failed", 2, 1, 0)
    assert found.closed_at is not None and found.expires_at is not None and found.queue == "default"
    assert found.statuses == {Status.DONE: 2, Status.DEAD: 1}
    assert [one.status for one in found.callbacks] == [None, Status.PENDING, Status.PENDING]
    assert found.callbacks[1].job == str(on_failure.id)
    for call in (admin.groups.get(UNKNOWN), admin.groups.cancel(UNKNOWN), admin.groups.retry(UNKNOWN)):
        with pytest.raises(NotFound, match=f"group {UNKNOWN} is not in the store"):
            await call
    with pytest.raises(InvalidInput, match="group id"):
        await admin.groups.get("seven")


@pytest.mark.spec("GROUP-36")
async def test_all_members_are_canceled_or_retried_as_an_operation(
    app: Stoker, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = Admin(app, by="ada")
    monkeypatch.setattr(bulk, "PAGE", 2)
    await app.enqueue(app.draft("send", queue="other"))
    group = await app.group(members(app, 5))
    await settle(app, Status.DEAD, Status.DEAD, Status.DEAD)
    started = await admin.groups.retry(group.id)
    assert (started.action, started.filter, started.who) == ("retry", f"is:dead group:{group.id}", "ada")
    ended = await admin.operations.finish(started.id)
    assert (ended.state, ended.changed) == ("done", 3)
    found = await admin.groups.get(group.id)
    assert (found.total, found.dead, found.waiting) == (5, 0, 5), "copies take the places of the dead"
    assert found.statuses == {Status.PENDING: 5, Status.RETRIED: 3}
    started = await admin.groups.cancel(group.id, reason="enough")
    ended = await admin.operations.finish(started.id)
    assert (ended.state, ended.changed) == ("done", 5)
    found = await admin.groups.get(group.id)
    assert (found.state, found.canceled) == ("failed", 5)
    assert [one.last_error for one in (await admin.jobs.find(f"group:{group.id} is:canceled")).jobs] == ["enough"] * 5
    assert (await admin.jobs.find("is:ready")).jobs[0].queue == "other"
    assert {entry.who for entry in await admin.audit.list()} == {"ada"}
    with pytest.raises(InvalidInput, match="must be one of retry, cancel"):
        await admin.groups.act("delete", group.id)


@pytest.mark.spec("GROUP-24", "GROUP-35", "GROUP-36")
async def test_more_than_a_thousand_members_are_no_limit(app: Stoker, admin: Admin) -> None:
    group = await app.group(members(app, 1_200))
    found = await admin.groups.get(group.id)
    assert (found.total, found.waiting, found.members, found.statuses) == (1_200, 1_200, (), None)
    assert await admin.groups.members(group.id, "cancel") == Filter(views=("active",), group=group.id)
    ended = await admin.operations.finish((await admin.groups.cancel(group.id)).id)
    assert (ended.state, ended.changed) == ("done", 1_200)
    assert (await group.progress()).canceled == 1_200
    again = await app.group(members(app, 1_200))
    assert await again.cancel(reason="enough") == 1_200
    assert await again.cancel() == 0
    await asyncio.wait_for(_closed(again), 30)


async def _closed(group: GroupHandle) -> None:
    with pytest.raises(Exception, match="1200 canceled"):
        await group.wait()
