"""Every change by a person is in the audit log, with who, how and what."""

from __future__ import annotations

import pytest

from stoker.admin import Admin, Filter
from stoker.app import Stoker
from stoker.engines.base import Feature, outbox_of
from stoker.model.control import Tuning
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.job import Status
from stoker.model.outbox.cursor import Consumer
from stoker.model.outbox.stream import Stream
from stoker.model.throttle import Rate


@pytest.fixture
def admin(app: Stoker) -> Admin:
    return Admin(app, by="ada", way="page", request="r1")


async def logged(admin: Admin) -> list[tuple[str, str, int]]:
    return [(one.action, one.target, one.count) for one in (await admin.audit.list())[::-1]]


@pytest.mark.spec("ADMIN-29")
async def test_every_change_by_a_person_is_logged(admin: Admin, app: Stoker) -> None:
    jobs = [await app.enqueue(app.draft("send", {"password": "hunter2"}, delay=60)) for _ in range(2)]
    await admin.jobs.move(jobs[0].id, "mail", create=True)
    await admin.jobs.edit(jobs[0].id, priority=3)
    await admin.jobs.cancel(Filter.parse("is:scheduled"))
    await admin.queues.pause("mail", reason="a migration")
    await admin.limits.tune("mailer", Rate(5), create=True)
    await admin.limits.drain("mailer")
    await app.schedule("nightly", app.draft("send"), cron="0 3 * * *")
    await admin.schedules.pause("nightly")
    await admin.schedules.edit("nightly", cron="0 4 * * *")
    ran = await admin.schedules.run_now("nightly")
    await admin.schedules.drop("nightly")
    found = {(action, count) for action, _, count in await logged(admin)}
    assert {("jobs.move", 1), ("jobs.edit", 1), ("jobs.cancel", 2), ("limits.drain", 1), ("schedules.run", 1)} <= found
    assert len(await logged(admin)) == 10
    entries = await admin.audit.list(action="schedules.run")
    assert entries[0].after == {"job": ran}
    assert {(one.who, one.way, one.request) for one in await admin.audit.list()} == {("ada", "page", "r1")}
    assert "a migration" in [one.reason for one in await admin.audit.list()]
    assert "hunter2" not in str(await admin.audit.list())
    assert await admin.audit.list(who="bob") == []
    assert len(await admin.audit.list(limit=3)) == 3


@pytest.mark.spec("ADMIN-29")
async def test_code_without_a_name_writes_none(app: Stoker) -> None:
    admin = Admin(app)
    await admin.queues.tune("mail", Tuning(workers=3), create=True)
    job = await app.enqueue(app.draft("send"))
    await admin.jobs.cancel(job.id)
    assert await admin.audit.list() == []
    await Admin(app, way="command line").queues.resume("mail")
    await Admin(app, way="command line").queues.pause("mail")
    assert [one.who for one in await admin.audit.list()] == ["unnamed"]


@pytest.mark.spec("ADMIN-30")
async def test_a_cancel_is_undone_from_the_log(admin: Admin, app: Stoker) -> None:
    job = await app.enqueue(app.draft("send", delay=60))
    await admin.jobs.cancel(job.id)
    [entry] = await admin.audit.list(action="jobs.cancel")
    assert entry.reason is None
    assert (await admin.jobs.restore(entry)).changed == 1
    assert (await admin.jobs.get(job.id)).job.status is Status.PENDING
    assert {action for action, _, _ in await logged(admin)} == {"jobs.cancel", "jobs.restore"}


@pytest.mark.spec("ADMIN-31")
async def test_who_reveals_a_secret_is_logged(admin: Admin, app: Stoker) -> None:
    job = await app.enqueue(app.draft("send", {"password": "hunter2"}))
    assert (await admin.jobs.get(job.id)).arguments == {"password": "[hidden]"}
    assert (await admin.jobs.reveal(job.id)).arguments == {"password": "hunter2"}
    assert await logged(admin) == [("jobs.reveal", f"job {job.id}", 1)]
    await admin.audit.write("sign-in", "dashboard", reason="token")
    assert ("sign-in", "dashboard", 1) in await logged(admin)


@pytest.mark.spec("ADMIN-32", "AUDIT-07")
async def test_a_cancel_is_undone_by_the_id_of_its_entry(admin: Admin, app: Stoker) -> None:
    job, other = [await app.enqueue(app.draft("send", delay=60)) for _ in range(2)]
    await admin.jobs.cancel([job.id, other.id])
    await admin.jobs.requeue(other.id)
    [entry] = await admin.audit.list(action="jobs.cancel")
    assert await admin.audit.get(entry.id) == entry
    undone = await admin.jobs.restore(entry.id)
    assert (undone.changed, undone.refused.total()) == (1, 1)
    assert (await admin.jobs.get(job.id)).job.status is Status.PENDING
    [moved] = await admin.audit.list(action="jobs.requeue")
    with pytest.raises(InvalidInput, match=r"jobs\.requeue; only jobs\.cancel and jobs\.discard"):
        await admin.jobs.restore(moved.id)
    with pytest.raises(NotFound):
        await admin.jobs.restore("0" * 24)
    with pytest.raises(InvalidInput, match="stoker audit"):
        await admin.jobs.restore("nothing")


@pytest.mark.spec("ADMIN-33")
async def test_tokens_and_operations_of_a_person_are_logged(admin: Admin, app: Stoker) -> None:
    secret = await admin.tokens.create("ci", "operate")
    await admin.tokens.revoke("ci")
    await admin.tokens.revoke("ci")
    await app.enqueue(app.draft("send", delay=60))
    operation = await admin.operations.start("cancel", "is:scheduled", {"reason": "wrong file"})
    await admin.operations.finish(operation.id)
    for action in ("operations.start", "jobs.cancel"):
        assert [one.reason for one in await admin.audit.list(action=action)] == ["wrong file"]
    with pytest.raises(InvalidInput, match="reason"):
        await admin.jobs.cancel((await app.enqueue(app.draft("send"))).id, reason="x" * 5_000)
    assert {(action, target) for action, target, _ in await logged(admin)} == {
        ("tokens.create", "token ci"),
        ("tokens.revoke", "token ci"),
        ("operations.start", f"operation {operation.id}"),
        ("jobs.cancel", (await admin.audit.list(action="jobs.cancel"))[0].target),
    }
    assert secret not in str(await admin.audit.list())
    await Admin(app).tokens.create("code")
    assert len(await admin.audit.list(action="tokens.")) == 2


@pytest.mark.spec("ADMIN-33")
async def test_streams_steered_by_a_person_are_logged(admin: Admin, app: Stoker) -> None:
    engine = await app.engine()
    if Feature.OUTBOX not in engine.features:
        pytest.skip(f"{engine.name} gives up: {Feature.OUTBOX.value}")
    await outbox_of(engine).register(Stream("orders"), [Consumer("mailer")])
    handle = admin.outbox.stream("orders")
    await handle.pause("mailer")
    await handle.resume("mailer")
    assert await handle.replay() == 0
    found = await logged(admin)
    assert {action for action, _, _ in found} == {"outbox.pause", "outbox.resume"}
    assert {target for _, target, _ in found} == {"consumer mailer of orders"}
