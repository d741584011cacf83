"""A dashboard of an admin of the user's own: what was replaced in it is used, under the visitor's name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stoker.admin import Admin, Bulk, Operators
from stoker.admin.jobs import JobsAdmin
from stoker.admin.schedules import SchedulesAdmin
from stoker.app import Stoker
from stoker.model.audit import AuditQuery
from stoker.model.errors import InvalidInput
from stoker.model.job import Status
from stoker.views import Schedule
from stoker.web import Dashboard, Identity, Limits, dashboard
from tests.web.conftest import Client, enqueue

ASKED: list[tuple[str, object]] = []


class Noting(JobsAdmin):
    """Notes what is canceled and found, and does it."""

    async def cancel(self, *jobs: Any, **options: Any) -> Bulk:
        ASKED.append(("cancel", jobs[0]))
        return await super().cancel(*jobs, **options)

    async def find(self, *given: Any, **options: Any) -> Any:
        ASKED.append(("find", given[0]))
        return await super().find(*given, **options)


class Kept(SchedulesAdmin):
    """Notes what is given back to the code, and keeps it."""

    async def reset(self, name: str) -> Schedule:
        ASKED.append(("reset", name))
        return await self.get(name)


class Own(Admin):
    """With nouns of its own, and a constructor of its own."""

    def __init__(self, app: Stoker, note: str) -> None:
        super().__init__(app, by="script")
        self.note = note
        self.jobs = Noting(self._context)
        self.schedules = Kept(self._context)


class Wrapped:
    """Not an `Admin` at all: it has one, and hands out its nouns."""

    def __init__(self, admin: Admin) -> None:
        self._inner = admin
        for name in Operators.__annotations__:
            setattr(self, name, getattr(admin, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture(params=["subclass", "wrapped"])
async def own(request: pytest.FixtureRequest, app: Stoker) -> AsyncIterator[Dashboard]:
    ASKED.clear()
    admin: Any = Own(app, "mine")
    given = admin if request.param == "subclass" else Wrapped(admin)
    board = dashboard(given, auth=lambda _: Identity("ann", "operate"), limits=Limits(seconds=30))
    yield board
    await board.close()


@pytest.mark.spec("ADMIN-24")
async def test_pages_and_calls_go_through_the_users_own_admin(app: Stoker, own: Dashboard) -> None:
    client = Client(own)
    first, second, third, fourth = [await enqueue(app) for _ in range(4)]
    await Admin(app).schedules.create("nightly", app.draft("send"), cron="0 3 * * *")
    assert (await client.get("/jobs?q=is:ready")).status_code == 200
    assert (await client.get("/api/v1/jobs?q=is:ready")).status_code == 200
    assert (await client.post(f"/jobs/{first}/cancel")).status_code == 303
    token = {"x-csrf-token": await client.csrf()}
    assert (await client.http.post(f"/api/v1/jobs/{second}/cancel", json={}, headers=token)).status_code == 200
    assert (await client.post("/operations", [("do", "cancel"), ("id", third)])).status_code == 303
    body = {"action": "cancel", "ids": [fourth]}
    assert (await client.http.post("/api/v1/jobs/bulk", json=body, headers=token)).status_code == 200
    assert (await client.post("/schedules/nightly/reset")).status_code == 303
    assert [name for name, _ in ASKED].count("find") == 2
    canceled = [("cancel", first), ("cancel", second), ("cancel", [third]), ("cancel", [fourth])]
    assert [one for one in ASKED if one[0] != "find"] == [*canceled, ("reset", "nightly")]
    entries = await (await app.engine()).audit.read(AuditQuery())
    assert {(one.by.who, one.by.way) for one in entries if one.deed.action == "jobs.cancel"} == {
        ("ann", "page"),
        ("ann", "token"),
    }
    await client.close()


@pytest.mark.spec("ADMIN-24")
async def test_a_replaced_method_is_used_and_visitors_stay_apart(app: Stoker) -> None:
    async def refuse(*_: Any, **__: Any) -> Bulk:
        raise InvalidInput("action", "delete", "is not for operators here")

    admin: Any = Admin(app)
    admin.jobs.delete = refuse
    names = iter(["ann", "bob"])
    board = dashboard(admin, auth=lambda _: Identity(next(names), "operate"), limits=Limits(seconds=30))
    client = Client(board)
    client.http.cookies.set("stoker_csrf", "x" * 43)
    job = await enqueue(app)
    refused = await client.post(f"/jobs/{job}/delete", {"sure": "yes"})
    assert (refused.status_code, "is not for operators here" in refused.text) == (422, True)
    assert (await client.post(f"/jobs/{job}/cancel")).status_code == 303
    assert (await app.handle(job).refresh()).status is Status.CANCELED
    [entry] = await (await app.engine()).audit.read(AuditQuery())
    assert entry.by.who == "bob"
    await client.close()
    await board.close()


@pytest.mark.spec("ADMIN-24")
def test_what_is_neither_an_app_nor_an_admin_is_refused() -> None:
    wrong: Any = object()
    with pytest.raises(InvalidInput, match="an admin of your own"):
        dashboard(wrong)
