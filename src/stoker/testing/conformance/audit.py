"""The audit log: who changed what, in the step that changed it."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.admin import documents
from stoker.engines.base import Feature, outbox_of
from stoker.model.audit import AuditEntry, AuditQuery, By, Deed, line
from stoker.model.control import Tuning
from stoker.model.ids import text
from stoker.model.job import Draft, Status
from stoker.model.outbox.consumers import Pause
from stoker.model.outbox.cursor import Consumer
from stoker.model.outbox.stream import Stream
from stoker.model.query import Cancel, Discard, Edit, Restore, Retention, Selection, Sweep
from stoker.model.schedule import Edit as ScheduleEdit
from stoker.model.schedule import Schedule
from stoker.model.throttle import Rate
from stoker.model.time import DAY, HOUR, SECOND
from stoker.model.tokens import AccessToken
from stoker.testing.conformance.harness import Store, needs

MARIA = By("maria", "page", "too many", "r-1")


async def _log(store: Store, **asked: Any) -> list[AuditEntry]:
    return await store.engine.audit.read(AuditQuery(**asked))


@pytest.mark.core
@pytest.mark.spec("AUDIT-01")
async def test_a_change_of_jobs_is_in_the_log(store: Store) -> None:
    """With who, how, why and what the jobs were; a change by code, and one that changed nothing, is not."""
    assert await _log(store) == []
    job, other = await store.add(payload=b'"secret"', delay=HOUR), await store.add()
    await store.engine.operator.alter(Selection((other,)), Cancel())
    await store.engine.operator.alter(Selection((other,)), Discard(), by=MARIA)
    assert await _log(store) == []
    tally = await store.engine.operator.alter(Selection((job,)), Cancel("not now"), by=MARIA)
    [entry] = await _log(store)
    assert (entry.at, entry.by) == (store.now(), MARIA)
    assert (entry.deed.action, entry.deed.target, entry.deed.count) == ("jobs.cancel", f"job {text(job)}", 1)
    assert entry.deed.after == {"reason": "not now", "force": False}
    assert entry.deed.former == tally.former
    assert "secret" not in str(entry)
    store.pass_time(SECOND)
    undone = await store.engine.operator.alter(Selection((job,)), Restore(entry.deed.former), by=MARIA)
    assert (undone.changed, await store.status(job)) == (1, Status.PENDING)
    store.pass_time(SECOND)
    await store.engine.operator.alter(Selection((job,)), Edit(payload=b'"hidden"', priority=3), by=MARIA)
    assert [one.deed.action for one in await _log(store)] == ["jobs.edit", "jobs.restore", "jobs.cancel"]
    assert "hidden" not in str(await _log(store))


@pytest.mark.core
@pytest.mark.spec("AUDIT-02")
async def test_changes_of_settings_are_in_the_log_with_before_and_after(store: Store) -> None:
    """Queues, budgets and schedules: the fields that differ, and nothing when none does."""
    await store.engine.control.tune("mail", Tuning(workers=3))
    assert await _log(store) == []
    await store.engine.control.tune("mail", Tuning(workers=5), by=MARIA)
    await store.engine.control.tune("mail", Tuning(workers=5), by=MARIA)
    [entry] = await _log(store)
    assert (entry.deed.action, entry.deed.target) == ("queues.tune", "queue mail")
    assert (entry.deed.before, entry.deed.after) == ({"workers": 3}, {"workers": 5})
    store.pass_time(SECOND)
    await store.engine.control.tune("sms", Rate(5, per=60), by=MARIA)
    store.pass_time(SECOND)
    template = Draft(bytes(16), "report", payload=b'{"secret": 1}', queue="mail")
    await store.engine.schedules.put(Schedule(name="daily", expression="@daily", template=template), by=MARIA)
    store.pass_time(SECOND)
    await store.engine.schedules.put(ScheduleEdit(name="daily", enabled=False), by=MARIA)
    store.pass_time(SECOND)
    assert await store.engine.schedules.drop("daily", by=MARIA)
    assert not await store.engine.schedules.drop("daily", by=MARIA)
    dropped, edited, made, budget, _ = await _log(store)
    assert [one.deed.action for one in (dropped, edited, made, budget)] == [
        "schedules.drop",
        "schedules.put",
        "schedules.put",
        "limits.tune",
    ]
    assert budget.deed.target == "limit sms"
    assert edited.deed.after["enabled"] is False
    assert made.deed.before == {}
    assert made.deed.after["expression"] == "@daily"
    assert "secret" not in str([dropped, edited, made])


@pytest.mark.core
@pytest.mark.spec("AUDIT-03")
async def test_the_log_is_read_latest_first_and_narrowed(store: Store) -> None:
    """By time, who, action and target; an entry of its own tells of what changed nothing."""
    start = store.now()
    for n, who in enumerate(("ann", "bob", "ann")):
        await store.engine.audit.write(By(who), Deed(action="jobs.reveal", target=f"job {n}"))
        store.pass_time(SECOND)
    written = await store.engine.audit.write(By("bob", "token"), Deed(action="refused", target="queue mail"))
    assert written.at == store.now()
    log = await _log(store)
    assert log[0] == written
    assert [one.deed.target for one in log] == ["queue mail", "job 2", "job 1", "job 0"]
    assert [one.deed.target for one in await _log(store, who="ann")] == ["job 2", "job 0"]
    assert len(await _log(store, action="jobs.")) == 3
    assert len(await _log(store, action="jobs")) == 0
    assert len(await _log(store, target="job 1")) == 1
    window = await _log(store, since=start + SECOND, until=start + 2 * SECOND)
    assert [one.deed.target for one in window] == ["job 1"]
    assert [one.deed.target for one in await _log(store, limit=1)] == ["queue mail"]


@pytest.mark.core
@pytest.mark.spec("AUDIT-04")
async def test_only_expire_removes_entries(store: Store) -> None:
    """After ninety days, unless another time is set."""
    await store.engine.audit.write(MARIA, Deed(action="old", target="x"))
    store.pass_time(90 * DAY)
    await store.engine.audit.write(MARIA, Deed(action="new", target="x"))
    assert (await store.engine.operator.expire(Retention())).audit == 0
    store.pass_time(SECOND)
    sweep = frozenset({Sweep.AUDIT})
    assert (await store.engine.operator.expire(Retention(sweeps=sweep))).audit == 1
    assert [one.deed.action for one in await _log(store)] == ["new"]
    assert (await store.engine.operator.expire(Retention(sweeps=sweep, audit=0))).audit == 1


@pytest.mark.spec("AUDIT-02")
async def test_steering_a_consumer_is_in_the_log(store: Store) -> None:
    """If there is such a consumer."""
    needs(store, Feature.OUTBOX)
    outbox = outbox_of(store.engine)
    await outbox.register(Stream("orders"), [Consumer("mailer")])
    assert not await outbox.steer("orders", "nobody", Pause(), by=MARIA)
    assert await outbox.steer("orders", "mailer", Pause(), by=MARIA)
    [entry] = await _log(store)
    assert (entry.deed.action, entry.deed.target) == ("outbox.pause", "consumer mailer of orders")


@pytest.mark.core
@pytest.mark.spec("AUDIT-09")
async def test_each_entry_is_a_log_line_once_it_is_committed(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Also outside of the store, whose writers can change what it holds; a change by code and a refused one is none."""
    caplog.set_level("INFO", "stoker.audit")
    engine = store.engine
    job = await store.add(delay=HOUR)
    await engine.operator.alter(Selection((job,)), Discard(), by=MARIA)
    await engine.control.tune("mail", Tuning(workers=3))
    assert caplog.messages == []
    await engine.operator.alter(Selection((job,)), Cancel("not now"), by=MARIA)
    await engine.control.tune("mail", Tuning(workers=4), by=MARIA)
    await engine.control.tune("stripe", Rate(5), by=MARIA)
    nightly = Schedule(name="n", expression="0 3 * * *", template=Draft(bytes(16), "k"))
    await engine.schedules.put(nightly, by=MARIA)
    await documents.put_token(engine, AccessToken(name="ci", sha256="0" * 64, created=store.now()), by=MARIA)
    await engine.audit.write(By("eve\n\u202eforged"), Deed(action="jobs.reveal", target="job x"))
    if Feature.OUTBOX in engine.features:
        streams = outbox_of(engine)
        await streams.register(Stream("orders", 1), [Consumer("billing")])
        await streams.steer("orders", "billing", Pause(), by=MARIA)
    lines = [message for name, _, message in caplog.record_tuples if name == "stoker.audit"]
    assert sorted(lines) == sorted(line(one) for one in await _log(store))
    assert len(lines) >= 6
    assert all(one.isprintable() and one.isascii() for one in lines)
    assert 'who="maria" way="page" reason="too many" request="r-1" action="jobs.cancel"' in lines[0]
