"""Operators' changes, one by one: cancel, requeue, clone, discard, delete, run now, move, prioritize, edit, restore."""

from __future__ import annotations

import msgspec
import pytest

from stoker.engines.base import CONTROL, Feature
from stoker.model.errors import InvalidInput
from stoker.model.events import Event, EventType, Window
from stoker.model.ids import text
from stoker.model.job import ORIGINAL, Claim, Note, Options, Status, Verdict
from stoker.model.lifecycle import Rules
from stoker.model.outcome import Canceled, Crashed, Done, Failed, Rejected, Snoozed
from stoker.model.query import (
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Edit,
    Move,
    Prioritize,
    Query,
    Requeue,
    Restore,
    Retention,
    RunNow,
    Selection,
    Tally,
)
from stoker.model.retry import Fixed
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.alter_helpers import alter, dead_job, each_status, plain, retrying_job
from stoker.testing.conformance.harness import ARRIVES, Store, needs

# --- cancel -----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("ALTER-05")
async def test_alter_cancel_ends_waiting_jobs_at_once(store: Store) -> None:
    """Pending and retrying jobs are canceled, finished now, and never handed out again."""
    pending, retrying = await store.add(queue="a"), await retrying_job(store, SECOND, queue="b")
    store.pass_time(5)
    assert (await alter(store, Cancel(), pending, retrying)).changed == 2
    for job in (pending, retrying):
        record = await store.job(job)
        assert (record.status, record.finished_at) == (Status.CANCELED, store.now())
        assert record.expires_at is not None
    store.pass_time(HOUR)
    assert await store.claim(queue="a") == await store.claim(queue="b") == []


@pytest.mark.core
@pytest.mark.spec("ALTER-05")
async def test_alter_cancel_keeps_the_reason(store: Store) -> None:
    """The operator's reason can be read on the record."""
    job = await store.add()
    await alter(store, Cancel("wrong customer"), job)
    assert "wrong customer" in ((await store.job(job)).last_error or "")


@pytest.mark.core
@pytest.mark.spec("ALTER-06")
async def test_alter_forced_cancel_takes_the_claim_away(store: Store) -> None:
    """A running job ends canceled at once; whatever its worker still sends is lost."""
    job = await store.add(unique=Unique("k"))
    claim = await store.take()
    tally = await alter(store, Cancel("hung", force=True), job)
    assert (tally.changed, tally.cancel_requested, tally.changed_ids) == (1, 0, (job,))
    record = await store.job(job)
    assert (record.status, record.finished_at, record.worker) == (Status.CANCELED, store.now(), None)
    assert (await store.engine.jobs.renew("w1", [(job, claim.token)])).lost == [(job, claim.token)]
    assert await store.finish(claim, Done(b"1")) is Verdict.LOST
    assert await store.job(job) == record
    assert await store.counts() == {Status.CANCELED: 1}
    assert await store.add(unique=Unique("k")) != job


@pytest.mark.spec("ALTER-06")
async def test_alter_forced_cancel_wakes_the_keeper(store: Store) -> None:
    """The worker whose claim was taken is woken through the control topic."""
    await store.engine.jobs.wait([CONTROL], 0.01)
    job = await store.add()
    await store.take()
    await store.quiet(CONTROL)
    await alter(store, Cancel(force=True), job)
    assert await store.engine.jobs.wait([CONTROL], ARRIVES) == {CONTROL}


# --- requeue ----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("ALTER-07")
@pytest.mark.parametrize("status", [Status.RETRYING, Status.DEAD, Status.CANCELED, Status.DISCARDED])
async def test_alter_requeue_makes_the_job_due_now(store: Store, status: Status) -> None:
    """From every status that allows it the job is pending, due now, under its id, and clean of its former end."""
    job = (await each_status(store))[status]
    store.pass_time(SECOND)
    before = await store.job(job)
    assert plain(await alter(store, Requeue(), job)) == Tally(changed=1, changed_ids=(job,))
    after = await store.job(job)
    assert (after.status, after.scheduled_at) == (Status.PENDING, store.now())
    assert (after.finished_at, after.expires_at, after.worker) == (None, None, None)
    assert not after.cancel_requested
    assert (after.attempts, after.base, after.crashes) == (before.attempts, before.attempts, 0)
    assert (after.budget, after.history, after.created_at) == (before.budget, before.history, before.created_at)
    [claim] = await store.claim(queue=status.value, n=5)
    assert (claim.id, claim.attempt) == (job, before.attempts + 1)


@pytest.mark.spec("ALTER-08")
async def test_alter_requeue_hands_the_last_error_to_the_next_run(store: Store) -> None:
    """Also of a job that never ran and is requeued in the instant of its enqueue."""
    job = await store.add()
    await alter(store, Cancel("not now"), job)
    await alter(store, Requeue(), job)
    assert (await store.take()).last_error == (await store.job(job)).last_error == "not now"


@pytest.mark.core
@pytest.mark.spec("ALTER-08")
async def test_alter_requeue_grants_a_fresh_budget(store: Store) -> None:
    """The attempt number goes on from where it was, and the job gets as many runs again as its budget allows."""
    job = await store.add(attempts=2)
    numbers: list[int] = []

    async def exhaust() -> None:
        while claims := await store.claim():
            numbers.append(claims[0].attempt)
            await store.finish(claims[0], Failed("no", after=0))

    await exhaust()
    assert (numbers, await store.status(job)) == ([1, 2], Status.DEAD)
    await alter(store, Requeue(), job)
    await exhaust()
    assert (numbers, await store.status(job)) == ([1, 2, 3, 4], Status.DEAD)


@pytest.mark.spec("ALTER-08")
async def test_alter_requeue_forgets_crashes(store: Store) -> None:
    """A job that died of its crashes may crash as often again."""
    job = await store.add(attempts=50)
    rules = Rules(backoff=Fixed(0), crash_limit=3)

    async def crash() -> int:
        runs = 0
        while claims := await store.claim():
            runs += 1
            await store.finish(claims[0], Crashed("signal 9"), rules)
        return runs

    assert (await crash(), await store.status(job)) == (3, Status.DEAD)
    await alter(store, Requeue(), job)
    assert (await store.job(job)).crashes == 0
    assert (await crash(), await store.status(job)) == (3, Status.DEAD)


@pytest.mark.core
@pytest.mark.spec("ALTER-09")
async def test_alter_requeue_forgets_the_cancel_request(store: Store) -> None:
    """A job that was asked to stop in an earlier life runs undisturbed in the next one."""
    job = await store.add()
    claim = await store.take()
    await alter(store, Cancel(), job)
    await store.finish(claim, Canceled())
    await alter(store, Requeue(), job)
    assert not (await store.job(job)).cancel_requested
    again = await store.take()
    assert not again.cancel_requested
    assert (await store.engine.jobs.renew("w1", [(job, again.token)])).canceling == []
    assert await store.finish(again, Failed("later", after=SECOND)) is Verdict.APPLIED


@pytest.mark.core
@pytest.mark.spec("ALTER-09")
async def test_alter_requeue_shuts_out_the_former_claim(store: Store) -> None:
    """A settlement of a claim from before a forced cancel and a requeue stays lost; the new claim settles."""
    job = await store.add()
    stale = await store.take()
    await alter(store, Cancel(force=True), job)
    await alter(store, Requeue(), job)
    assert await store.finish(stale, Done()) is Verdict.LOST
    fresh = await store.take()
    assert fresh.token > stale.token
    assert await store.finish(stale, Done()) is Verdict.LOST
    assert await store.finish(fresh, Done()) is Verdict.APPLIED


@pytest.mark.core
@pytest.mark.spec("ALTER-10")
@pytest.mark.parametrize("change", [Requeue(), RunNow(), Clone(())], ids=lambda change: type(change).__name__)
async def test_alter_that_makes_a_job_due_wakes_its_queue(store: Store, change: Change) -> None:
    """Requeue, run-now and clone wake one waiter of the job's queue."""
    if isinstance(change, RunNow):
        job = await store.add(delay=HOUR, queue="mail")
    else:
        job = await dead_job(store, queue="mail")
    change = Clone((store.mint(),)) if isinstance(change, Clone) else change
    await store.quiet("mail")
    assert (await alter(store, change, job)).changed == 1
    assert await store.engine.jobs.wait(["mail"], ARRIVES) == {"mail"}


@pytest.mark.spec("ALTER-10")
async def test_alter_that_does_not_apply_wakes_no_waiter(store: Store) -> None:
    """A refused requeue leaves waiters asleep."""
    await store.add(queue="mail")
    claim = await store.take(queue="mail")
    await store.quiet("mail")
    assert (await alter(store, Requeue(), claim.id)).changed == 0
    assert await store.engine.jobs.wait(["mail"], 0.05) == frozenset()


@pytest.mark.core
@pytest.mark.spec("ALTER-24")
async def test_a_requeued_job_has_not_started(store: Store) -> None:
    """Start and progress belong to the former life; metadata and log lines stay."""
    job = await store.add()
    claim = await store.take()
    await store.engine.jobs.note([Note(job, claim.worker, claim.token, 0.5, {"a": "b"}, ("half",))])
    await store.finish(claim, Rejected("no"))
    before = await store.job(job)
    assert (before.started_at, before.progress) == (claim.claimed_at, 0.5)
    assert (await store.engine.operator.alter(Selection((job,)), Requeue())).changed == 1
    record = await store.job(job)
    assert (record.started_at, record.progress) == (None, None)
    assert (record.metadata, record.log, record.last_error) == ({"a": "b"}, ("half",), "no")
    store.pass_time(SECOND)
    claim = await store.take()
    record = await store.job(job)
    assert (record.started_at, record.progress) == (store.now(), None)
    assert await store.finish(claim, Failed("boom", after=0)) is Verdict.APPLIED
    assert (await store.engine.operator.alter(Selection((job,)), Requeue())).changed == 1
    assert (await store.job(job)).started_at is None


# --- clone ------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("ALTER-15")
async def test_alter_clone_enqueues_a_copy_under_the_given_id(store: Store) -> None:
    """The copy has everything the caller chose and nothing of what happened; the original points to it."""
    job = await store.add(
        "mail.send",
        payload=b'{"n": 1.0}',
        queue="mail",
        priority=-3,
        attempts=2,
        tenant="acme",
        unique=Unique("k", scope=store.scope),
        options=Options(backoff=Fixed(3), timeout=SECOND, keep=HOUR, metadata={"trace": "1"}),
    )
    await store.finish(await store.take(queue="mail"), Failed("one", after=0))
    await store.finish(await store.take(queue="mail"), Failed("two", after=0))
    store.pass_time(SECOND)
    before = await store.job(job)
    new = store.mint()
    tally = await alter(store, Clone((new,)), job)
    assert (tally.changed, tally.created, tally.changed_ids) == (1, (new,), (job,))
    copy, original = await store.job(new), await store.job(job)
    for field in ("kind", "payload", "queue", "priority", "budget", "tenant", "unique"):
        assert getattr(copy, field) == getattr(before, field), field
    assert (copy.status, copy.attempts, copy.base, copy.crashes) == (Status.PENDING, 0, 0, 0)
    assert (copy.created_at, copy.scheduled_at) == (store.now(), store.now())
    assert (copy.last_error, copy.history, copy.successor, copy.expires_at) == (None, (), None, None)
    named = {"trace": "1", ORIGINAL: text(job)}
    assert copy.options == msgspec.structs.replace(before.options, metadata=named)
    assert (original.status, original.successor) == (Status.RETRIED, new)
    assert (original.attempts, original.history) == (before.attempts, before.history)
    claim = await store.take(queue="mail")
    assert (claim.id, claim.attempt, claim.budget) == (new, 1, 2)


@pytest.mark.core
@pytest.mark.spec("ALTER-15")
async def test_alter_clone_pairs_ids_with_the_selection(store: Store) -> None:
    """Each selected job has its own new id; the ids of jobs that cannot be cloned stay unused."""
    first, alive, second = (
        await dead_job(store, payload=b"[1]"),
        await store.add(queue="x"),
        await dead_job(store, payload=b"[2]"),
    )
    a, b, c, d = (store.mint() for _ in range(4))
    tally = await alter(store, Clone((a, b, c, d)), first, alive, store.mint(), second)
    assert (tally.changed, tally.missing, tally.refused) == (2, 1, {Status.PENDING: 1})
    assert (tally.created, tally.changed_ids) == ((a, d), (first, second))
    assert ((await store.job(a)).payload, (await store.job(d)).payload) == (b"[1]", b"[2]")
    assert await store.gone(b)
    assert await store.gone(c)


@pytest.mark.core
@pytest.mark.spec("ALTER-16")
async def test_alter_clone_happens_once(store: Store) -> None:
    """A second clone of the same job is refused: it is no longer dead, and nothing more is enqueued."""
    job = await dead_job(store)
    first, second = store.mint(), store.mint()
    assert (await alter(store, Clone((first,)), job)).created == (first,)
    tally = await alter(store, Clone((second,)), job)
    assert (tally.changed, tally.created, tally.refused) == (0, (), {Status.RETRIED: 1})
    assert await store.gone(second)
    assert (await store.job(job)).successor == first


@pytest.mark.spec("ALTER-16")
async def test_alter_clone_is_not_for_a_waiting_retry(store: Store) -> None:
    """A job that will be retried by itself cannot be cloned as well."""
    job = await retrying_job(store)
    new = store.mint()
    assert (await alter(store, Clone((new,)), job)).refused == {Status.RETRYING: 1}
    assert await store.gone(new)


# --- discard ----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("ALTER-17")
async def test_alter_discard_takes_a_job_off_the_dead_list(store: Store) -> None:
    """The job is discarded, not run, no longer among the dead, and keeps its error."""
    job = await dead_job(store, "hopeless")
    assert plain(await alter(store, Discard(), job)) == Tally(changed=1, changed_ids=(job,))
    assert await store.counts() == {Status.DISCARDED: 1}
    assert (await store.engine.operator.find(Query(statuses=frozenset({Status.DEAD})))).jobs == []
    assert (await store.job(job)).last_error == "hopeless"
    assert await store.claim() == []


# --- delete -----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("ALTER-18")
async def test_alter_delete_removes_record_and_events(store: Store) -> None:
    """Nothing of the job is left: no record, no events, no claim to be had."""
    job, other = await store.insert(store.draft(), store.draft())
    at = store.now()
    await store.engine.timeline.record(
        [Event(at, EventType.ENQUEUED, one, "default", "work") for one in (job, other)], now=at
    )
    assert plain(await alter(store, Delete(), job)) == Tally(changed=1, changed_ids=(job,))
    assert await store.gone(job)
    assert [event.job for event in await store.engine.timeline.events(Window(at, at + 1))] == [other]
    assert [claim.id for claim in await store.claim(n=5)] == [other]
    assert (await alter(store, Delete(), job)).missing == 1


@pytest.mark.core
@pytest.mark.spec("ALTER-18")
async def test_alter_delete_frees_id_and_key(store: Store) -> None:
    """After the delete the same id and the same key can be stored as new."""
    draft = store.draft(unique=Unique("k"))
    await store.insert(draft)
    await alter(store, Delete(), draft.job_id)
    assert await store.insert(draft) == [draft.job_id]
    assert await store.status(draft.job_id) is Status.PENDING


@pytest.mark.core
@pytest.mark.spec("ALTER-19")
async def test_alter_delete_asks_a_running_job_to_stop(store: Store) -> None:
    """A running job is not removed: its worker is asked to stop, and the record stays."""
    await store.engine.jobs.wait([CONTROL], 0.01)
    job = await store.add()
    claim = await store.take()
    await store.quiet(CONTROL)
    tally = await alter(store, Delete(), job)
    assert (tally.changed, tally.cancel_requested) == (0, 1)
    assert await store.engine.jobs.wait([CONTROL], ARRIVES) == {CONTROL}
    record = await store.job(job)
    assert (record.status, record.cancel_requested) == (Status.RUNNING, True)
    assert (await store.engine.jobs.renew("w1", [(job, claim.token)])).canceling == [(job, claim.token)]
    assert await store.finish(claim, Canceled()) is Verdict.APPLIED
    assert await store.status(job) is Status.CANCELED
    assert (await alter(store, Delete(), job)).changed == 1


# --- run now, move, prioritize ----------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("ALTER-20")
async def test_alter_run_now_makes_a_scheduled_job_due(store: Store) -> None:
    """A job of the future is due now and can be claimed; nothing else about it changes."""
    job = await store.add(delay=HOUR)
    before = await store.job(job)
    store.pass_time(SECOND)
    assert plain(await alter(store, RunNow(), job)) == Tally(changed=1, changed_ids=(job,))
    assert await store.job(job) == msgspec.structs.replace(before, scheduled_at=store.now())
    census = await store.engine.operator.census()
    assert (census.later, census.ready("default")) == ({}, 1)
    assert (await store.take()).id == job


@pytest.mark.spec("ALTER-20")
async def test_alter_run_now_works_after_a_snooze(store: Store) -> None:
    """A snoozed job is pending and may be run now as well."""
    job = await store.add()
    await store.finish(await store.take(), Snoozed(HOUR))
    assert (await alter(store, RunNow(), job)).changed == 1
    assert (await store.take()).id == job


@pytest.mark.core
@pytest.mark.spec("ALTER-21")
async def test_alter_move_puts_waiting_jobs_into_another_queue(store: Store) -> None:
    """Moved jobs are claimed from the new queue only, with the same due time, and counted there."""
    ready, later = await store.insert(store.draft(), store.draft(delay=HOUR))
    retrying = await retrying_job(store, 2 * HOUR, queue="third")
    before = {job: await store.job(job) for job in (ready, later, retrying)}
    assert (await alter(store, Move("other"), ready, later, retrying)).changed == 3
    for job, record in before.items():
        assert await store.job(job) == msgspec.structs.replace(record, queue="other")
    assert await store.counts("default") == await store.counts("third") == {}
    assert await store.counts("other") == {Status.PENDING: 2, Status.RETRYING: 1}
    census = await store.engine.operator.census()
    assert (census.later, census.ready("other")) == ({"other": 1}, 1)
    store.pass_time(3 * HOUR)
    assert await store.claim(n=9) == await store.claim(n=9, queue="third") == []
    assert [claim.id for claim in await store.claim(n=9, queue="other")] == [ready, later, retrying]


@pytest.mark.spec("ALTER-21")
async def test_alter_move_leaves_the_key_with_the_job(store: Store) -> None:
    """The key is not a queue's business: a newcomer in either queue still meets the moved holder."""
    needs(store, Feature.KEYS_ACROSS_QUEUES)
    job = await store.add(unique=Unique("k"))
    assert (await alter(store, Move("other"), job)).changed == 1
    assert await store.add(unique=Unique("k")) == job
    assert await store.add(unique=Unique("k"), queue="other") == job
    weak = await retrying_job(store, unique=Unique("w"), queue="third")
    await alter(store, Move("other"), weak)
    assert await store.add(unique=Unique("w")) != weak
    assert await store.status(weak) is Status.DEAD


@pytest.mark.spec("ALTER-21")
async def test_alter_move_of_a_due_job_wakes_the_new_queue(store: Store) -> None:
    """The job became due where it was not before."""
    job = await store.add(queue="old")
    await store.quiet("old", "new")
    await alter(store, Move("new"), job)
    assert await store.engine.jobs.wait(["new"], ARRIVES) == {"new"}


@pytest.mark.core
@pytest.mark.spec("ALTER-22")
async def test_alter_prioritize_changes_the_order_of_claims(store: Store) -> None:
    """The job with the lower number comes first, also among jobs that were stored before it."""
    a, b, c = await store.insert(*(store.draft() for _ in range(3)))
    assert (await alter(store, Prioritize(-1000), c)).changed == 1
    assert (await alter(store, Prioritize(1000), a)).changed == 1
    assert [claim.id for claim in await store.claim(n=3)] == [c, b, a]
    assert (await store.job(c)).priority == -1000


@pytest.mark.spec("ALTER-22")
async def test_alter_prioritize_survives_a_retry(store: Store) -> None:
    """The new priority stays with the job through retries, snoozes and a requeue."""
    job = await retrying_job(store, SECOND)
    await alter(store, Prioritize(-5), job)

    async def first() -> Claim:
        await store.add()
        store.pass_time(SECOND)
        claim = await store.take()
        assert (claim.id, claim.priority) == (job, -5)
        return claim

    await store.finish(await first(), Failed("again", after=SECOND))
    await store.finish(await first(), Snoozed(SECOND))
    await store.finish(await first(), Rejected("no"))
    await alter(store, Requeue(), job)
    await first()


# --- editing, restoring, and what jobs were before ------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("ALTER-25")
@pytest.mark.parametrize("status", [Status.PENDING, Status.RETRYING, Status.DEAD])
async def test_alter_edit_changes_what_a_job_was_enqueued_with(store: Store, status: Status) -> None:
    """Payload, priority and attempts of a waiting or dead job; everything else stays, and it runs with them."""
    jobs = await each_status(store)
    before = await store.job(jobs[status])
    change = Edit(payload=b'{"n": 2}', priority=-3, attempts=9)
    assert (await alter(store, change, before.id)).changed == 1
    after = await store.job(before.id)
    assert after == msgspec.structs.replace(before, payload=b'{"n": 2}', priority=-3, budget=9)
    only = await alter(store, Edit(priority=4), before.id)
    assert only.changed == 1
    assert (await store.job(before.id)) == msgspec.structs.replace(after, priority=4)
    if status is Status.DEAD:
        await alter(store, Requeue(), before.id)
    store.pass_time(2 * HOUR)
    claim = await store.take(queue=status.value)
    assert (claim.payload, claim.priority, claim.budget) == (b'{"n": 2}', 4, 9)


@pytest.mark.core
@pytest.mark.spec("ALTER-25")
async def test_alter_edit_moves_the_due_time_of_a_waiting_job(store: Store) -> None:
    """Also in the lists by due time; a dead job has none, so there it is refused, like every edit elsewhere."""
    jobs = await each_status(store)
    at = store.now() + 5 * SECOND
    for status in (Status.PENDING, Status.RETRYING):
        assert (await alter(store, Edit(at=at), jobs[status])).changed == 1
        assert (await store.job(jobs[status])).scheduled_at == at
        store.pass_time(5 * SECOND)
        assert (await store.take(queue=status.value)).id == jobs[status]
        at = store.now() + 5 * SECOND
    assert (await alter(store, Edit(at=at), jobs[Status.DEAD])).refused == {Status.DEAD: 1}
    refused = await alter(store, Edit(priority=1), jobs[Status.DONE], jobs[Status.RUNNING], jobs[Status.CANCELED])
    assert refused.refused == {Status.DONE: 1, Status.RUNNING: 1, Status.CANCELED: 1}


@pytest.mark.core
@pytest.mark.spec("ALTER-26")
async def test_alter_restore_undoes_a_cancel_and_a_discard(store: Store) -> None:
    """A canceled job waits again with its time, attempts and budget; a discarded one is dead as it was."""
    jobs = await each_status(store)
    for status, change in ((Status.PENDING, Cancel()), (Status.RETRYING, Cancel()), (Status.DEAD, Discard())):
        before = await store.job(jobs[status])
        done = await alter(store, change, before.id)
        [former] = done.former
        assert (former.status, former.scheduled_at, former.queue) == (status, before.scheduled_at, before.queue)
        store.pass_time(SECOND)
        restored = await alter(store, Restore(done.former), before.id)
        assert plain(restored) == Tally(changed=1, changed_ids=(before.id,))
        after = await store.job(before.id)
        plainly = {"last_error": None, "expires_at": None}  # the retention of a dead job counts anew
        assert msgspec.structs.replace(after, **plainly) == msgspec.structs.replace(before, **plainly)
        assert (await alter(store, Restore(done.former), before.id)).changed == 0
    store.pass_time(2 * HOUR)
    assert (await store.take(queue=Status.PENDING.value)).id == jobs[Status.PENDING]
    assert (await store.counts())[Status.DEAD] == 1


@pytest.mark.spec("ALTER-26")
async def test_alter_restore_leaves_alone_what_has_changed_since(store: Store) -> None:
    """A job that was requeued and canceled again, or whose key another job has now."""
    job = await store.add(unique=Unique("k"))
    first = await alter(store, Cancel(), job)
    store.pass_time(SECOND)
    await alter(store, Requeue(), job)
    store.pass_time(SECOND)
    second = await alter(store, Cancel(), job)
    assert (await alter(store, Restore(first.former), job)).refused == {Status.CANCELED: 1}
    await store.add(unique=Unique("k"))
    assert (await alter(store, Restore(second.former), job)).blocked == 1
    with pytest.raises(InvalidInput, match="exactly the selected jobs"):
        await alter(store, Restore(()), job)


@pytest.mark.core
@pytest.mark.spec("ALTER-27")
async def test_alter_says_what_each_job_was_before(store: Store) -> None:
    """In the order of the selection, of the jobs it changed and no others."""
    jobs = await each_status(store)
    chosen = [jobs[Status.RETRYING], jobs[Status.DONE], jobs[Status.PENDING]]
    done = await alter(store, Cancel(), *chosen)
    assert [(one.id, one.status, one.attempts) for one in done.former] == [
        (jobs[Status.RETRYING], Status.RETRYING, 1),
        (jobs[Status.PENDING], Status.PENDING, 0),
    ]
    deleted = await alter(store, Delete(), jobs[Status.DONE])
    assert [(one.status, one.ended) for one in deleted.former] == [(Status.DONE, None)]


@pytest.mark.core
@pytest.mark.spec("ALTER-29")
@pytest.mark.parametrize("how", ["discard", "clone"])
async def test_alter_counts_the_retention_of_a_dead_job_anew(store: Store, how: str) -> None:
    """What an operator dealt with a minute before it would have gone can be looked at for the whole time again."""
    job = await dead_job(store)
    before = await store.job(job)
    assert before.expires_at is not None
    assert before.finished_at is not None
    keep = before.expires_at - before.finished_at
    store.clock.set(before.expires_at - MINUTE)
    assert (await alter(store, Discard() if how == "discard" else Clone((store.mint(),)), job)).changed == 1
    after = await store.job(job)
    assert (after.finished_at, after.expires_at) == (before.finished_at, store.now() + keep)
    await store.engine.operator.expire(Retention())
    store.clock.set(store.now() + keep)
    await store.engine.operator.expire(Retention())
    assert await store.status(job) is after.status
    store.pass_time(1)
    await store.engine.operator.expire(Retention())
    assert await store.gone(job)
