"""Unique keys: at most one active job per key, decided whenever a job becomes active."""

from __future__ import annotations

import pytest

from stoker.engines.base import Feature
from stoker.model.errors import Duplicate
from stoker.model.ids import JobId
from stoker.model.job import Claim, Draft, Options, Receipt, Status, Stored, Verdict
from stoker.model.lifecycle import KEEP_DEAD
from stoker.model.outcome import Canceled, Done, Failed, HandedBack, Outcome, Rejected, Snoozed
from stoker.model.query import Cancel, Clone, Delete, Requeue, Selection
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.model.unique import SUPERSEDED, Hold, Mode, Unique
from stoker.testing.conformance.harness import Store, needs

_MODES = pytest.mark.parametrize("mode", ["existing", "replace", "raise"])


async def _waiting(store: Store, *, hold: Hold = "active", after: int = HOUR) -> JobId:
    """A job with key k that failed once and waits for its retry."""
    job = await store.add(unique=Unique("k", hold=hold))
    assert await store.finish(await store.take(), Failed("boom", after=after)) is Verdict.APPLIED
    return job


async def _put(store: Store, **options: object) -> Receipt:
    """Insert one draft with key k, or as given; return its receipt."""
    [receipt] = await store.engine.jobs.insert([store.draft(**{"unique": Unique("k"), **options})])  # type: ignore[arg-type]
    return receipt


# --- a held key -----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("KEY-01")
async def test_a_taken_key_answers_with_its_holder(store: Store) -> None:
    """The newcomer is not stored, leaves no trace, and its caller gets the holder's id."""
    holder = await store.add(unique=Unique("k"), payload=b"1")
    before = await store.snapshot([holder])
    newcomer = store.draft(unique=Unique("k"), payload=b"2")
    assert await store.engine.jobs.insert([newcomer]) == [Receipt(holder, Stored.EXISTING)]
    assert await store.snapshot([holder]) == before
    assert await store.gone(newcomer.job_id)


@pytest.mark.core
@pytest.mark.spec("KEY-01")
async def test_pending_scheduled_snoozed_and_running_jobs_hold_their_key(store: Store) -> None:
    """A key is held from the enqueue to the end of the run, whether the job is due or not."""
    job = await store.add(unique=Unique("k"), delay=MINUTE)
    held = Receipt(job, Stored.EXISTING)
    assert await _put(store) == held
    store.pass_time(MINUTE)
    claim = await store.take()
    assert await _put(store) == held
    await store.finish(claim, Snoozed(MINUTE))
    assert await _put(store) == held
    store.pass_time(MINUTE)
    await store.finish(await store.take(), HandedBack())
    assert await _put(store) == held


@pytest.mark.spec("KEY-01")
async def test_jobs_without_a_key_never_meet(store: Store) -> None:
    """No key is not an empty key."""
    await store.insert(*(store.draft(payload=b"1") for _ in range(3)))
    assert await store.counts() == {Status.PENDING: 3}
    assert len(await store.claim(n=5)) == 3


@pytest.mark.core
@pytest.mark.spec("KEY-02")
@pytest.mark.parametrize("end", ["done", "deleted on success", "dead", "canceled", "canceled before", "deleted"])
async def test_a_key_is_free_after_its_job_ended(store: Store, end: str) -> None:
    """Done, dead, canceled and deleted jobs hold nothing."""
    job = await store.add(unique=Unique("k"), options=Options(keep=0 if "success" in end else None))
    if end == "canceled before":
        await store.engine.operator.alter(Selection((job,)), Cancel())
    elif end == "deleted":
        await store.engine.operator.alter(Selection((job,)), Delete())
    else:
        claim = await store.take()
        ends: dict[str, Outcome] = {"dead": Rejected("no"), "canceled": Canceled()}
        await store.finish(claim, ends.get(end, Done()))
    receipt = await _put(store)
    assert receipt.stored is Stored.INSERTED
    assert receipt.id != job
    assert [claim.id for claim in await store.claim(n=5)] == [receipt.id]


@pytest.mark.spec("KEY-02")
async def test_a_forced_cancel_frees_the_key(store: Store) -> None:
    """A running job that loses its claim by force lets go of its key at once."""
    job = await store.add(unique=Unique("k"))
    await store.take()
    await store.engine.operator.alter(Selection((job,)), Cancel(force=True))
    assert (await _put(store)).stored is Stored.INSERTED


# --- scope ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("KEY-03")
async def test_a_key_belongs_to_its_kind_by_default(store: Store) -> None:
    """Two kinds may use the same key at the same time, each for itself."""
    one = await store.add("one", unique=Unique("k"))
    two = await store.add("two", unique=Unique("k"))
    assert one != two
    assert (await _put(store, kind="one")).id == one
    assert (await _put(store, kind="two")).id == two


@pytest.mark.spec("KEY-03")
async def test_a_global_key_spans_kinds(store: Store) -> None:
    """On request one key is shared by all kinds."""
    needs(store, Feature.KEYS_ACROSS_QUEUES)
    one = await store.add("one", unique=Unique("k", scope="global"))
    assert await _put(store, kind="two", unique=Unique("k", scope="global")) == Receipt(one, Stored.EXISTING)


@pytest.mark.spec("KEY-03")
async def test_no_scope_stops_at_a_queue(store: Store) -> None:
    """Another queue is no way around a key."""
    needs(store, Feature.KEYS_ACROSS_QUEUES)
    one = await store.add(queue="a", unique=Unique("k"))
    assert await _put(store, queue="b") == Receipt(one, Stored.EXISTING)
    two = await store.add(queue="a", unique=Unique("k", scope="global"))
    assert await _put(store, queue="b", unique=Unique("k", scope="global")) == Receipt(two, Stored.EXISTING)


@pytest.mark.spec("KEY-03")
async def test_scopes_never_collide(store: Store) -> None:
    """No choice of text makes a key of a kind equal to a global key or to a key of another kind."""
    needs(store, Feature.KEYS_ACROSS_QUEUES)
    drafts = [
        store.draft("work", unique=Unique("k")),
        store.draft("work", unique=Unique("k", scope="global")),
        store.draft("work", unique=Unique("work/k", scope="global")),
        store.draft("work", unique=Unique("/k")),
        store.draft("work", unique=Unique("/k", scope="global")),
        store.draft("global", unique=Unique("k")),
        store.draft("work", unique=Unique("work/k")),
    ]
    assert [receipt.stored for receipt in await store.engine.jobs.insert(drafts)] == [Stored.INSERTED] * 7


@pytest.mark.spec("KEY-03")
async def test_keys_are_compared_exactly(store: Store) -> None:
    """Case, spaces and composed characters make different keys."""
    keys = ["k", "K", "k ", " k", "é", "e\u0301", "%", "_", "\u2028", "k" * 512]
    receipts = await store.engine.jobs.insert([store.draft(unique=Unique(key)) for key in keys])
    assert [receipt.stored for receipt in receipts] == [Stored.INSERTED] * len(keys)
    again = await store.engine.jobs.insert([store.draft(unique=Unique(key)) for key in keys])
    assert again == [Receipt(receipt.id, Stored.EXISTING) for receipt in receipts]


# --- replace --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("KEY-04")
async def test_replacing_overwrites_a_pending_job_and_keeps_its_id(store: Store) -> None:
    """Payload, kind, queue, priority, schedule, budget, tenant, key and options are the newcomer's."""
    needs(store, Feature.KEYS_ACROSS_QUEUES)
    holder = await store.add("one", unique=Unique("k", scope="global"), payload=b"1", delay=HOUR, tenant="a")
    unique = Unique("k", scope="global", mode="replace", hold="retrying")
    newcomer = Draft(
        store.mint(), "two", b"[2]", "mail", -5, 0, None, 9, unique, "b", Options(timeout=SECOND, metadata={"x": "y"})
    )
    assert await store.engine.jobs.insert([newcomer]) == [Receipt(holder, Stored.REPLACED)]
    assert await store.gone(newcomer.job_id)
    record = await store.job(holder)
    assert (record.kind, record.payload, record.queue, record.priority) == ("two", b"[2]", "mail", -5)
    assert (record.scheduled_at, record.budget, record.tenant) == (store.now(), 9, "b")
    assert (record.unique, record.options) == (unique, newcomer.options)
    assert (record.status, record.attempts) == (Status.PENDING, 0)
    assert await store.claim() == []
    assert (await store.take(queue="mail")).id == holder


@pytest.mark.spec("KEY-04")
async def test_replacing_moves_the_counts(store: Store) -> None:
    """A replaced job is counted once, under its new queue and kind."""
    needs(store, Feature.KEYS_ACROSS_QUEUES)
    await store.add("one", queue="a", unique=Unique("k", scope="global"))
    await _put(store, kind="two", queue="b", unique=Unique("k", scope="global", mode="replace"))
    census = await store.engine.operator.census()
    assert [(count.queue, count.kind, count.status, count.n) for count in census.counts] == [
        ("b", "two", Status.PENDING, 1)
    ]


@pytest.mark.spec("KEY-04")
async def test_replacing_can_postpone_a_job(store: Store) -> None:
    """Each replacement moves the run time, so a burst of changes ends in one run after the last."""
    job = await store.add(unique=Unique("k", mode="replace"), delay=MINUTE)
    store.pass_time(MINUTE - SECOND)
    assert await _put(store, unique=Unique("k", mode="replace"), delay=MINUTE) == Receipt(job, Stored.REPLACED)
    store.pass_time(MINUTE - 1)
    assert await store.claim() == []
    store.pass_time(1)
    assert (await store.take()).id == job


@pytest.mark.spec("KEY-04")
async def test_replacing_a_running_job_changes_nothing(store: Store) -> None:
    """A holder that is running counts as existing: its run goes on with what it has."""
    job = await store.add(unique=Unique("k"), payload=b"1")
    claim = await store.take()
    before = await store.snapshot([job])
    assert await _put(store, unique=Unique("k", mode="replace"), payload=b"2") == Receipt(job, Stored.EXISTING)
    assert await store.snapshot([job]) == before
    assert await store.finish(claim, Done()) is Verdict.APPLIED


@pytest.mark.spec("KEY-04")
async def test_replacing_with_a_free_key_inserts(store: Store) -> None:
    """Without a holder a replacing draft is a new job like any other."""
    receipt = await _put(store, unique=Unique("k", mode="replace"))
    assert receipt.stored is Stored.INSERTED
    assert await store.status(receipt.id) is Status.PENDING


@pytest.mark.core
@pytest.mark.spec("KEY-16")
async def test_a_debounce_ends_after_its_longest_wait(store: Store) -> None:
    """Replacements that keep coming push the run time, and not beyond so many seconds after the first enqueue."""
    unique = Unique("k", mode="replace", longest=60)
    start = store.now()
    job = await store.add(unique=unique, delay=40 * SECOND)
    for passed, due in ((10, 50), (15, 60), (15, 60)):
        store.pass_time(passed * SECOND)
        assert await _put(store, unique=unique, delay=40 * SECOND) == Receipt(job, Stored.REPLACED)
        stored = await store.job(job)
        assert (stored.scheduled_at, stored.unique) == (start + due * SECOND, Unique("k", mode="replace"))
    store.pass_time(30 * SECOND)  # overdue by now: it keeps its place before newer jobs
    newer = await store.add(unique=None)
    assert await _put(store, unique=unique, delay=40 * SECOND, payload=b"9") == Receipt(job, Stored.REPLACED)
    assert (await store.job(job)).scheduled_at == start + 60 * SECOND
    claim = await store.take()
    assert (claim.id, claim.payload) == (job, b"9")
    assert (await store.take()).id == newer


@pytest.mark.spec("KEY-04")
async def test_a_replacement_keeps_the_key(store: Store) -> None:
    """After a replacement the key is still held by the same job."""
    job = await store.add(unique=Unique("k"))
    await _put(store, unique=Unique("k", mode="replace"))
    assert await _put(store) == Receipt(job, Stored.EXISTING)


# --- raise ----------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("KEY-05")
async def test_a_refusing_draft_names_the_holder_and_stores_nothing(store: Store) -> None:
    """Mode raise raises Duplicate with the key and the holder; no draft of the call is stored."""
    holder = await store.add(unique=Unique("k"))
    before = await store.snapshot([holder])
    bystander = store.draft()
    with pytest.raises(Duplicate, match="k") as refused:
        await store.engine.jobs.insert([bystander, store.draft(unique=Unique("k", mode="raise"))])
    assert refused.value.holder == holder
    assert await store.gone(bystander.job_id)
    assert await store.snapshot([holder]) == before


@pytest.mark.core
@pytest.mark.spec("KEY-05")
async def test_a_refused_batch_undoes_supersedes_and_replacements(store: Store) -> None:
    """Nothing of a refused call happens: no weak holder ends, no pending job is overwritten, no key is taken."""
    weak = await _waiting(store)
    replaced = await store.add(unique=Unique("r"), payload=b"1", delay=HOUR)
    held = await store.add(unique=Unique("h"), delay=HOUR)
    before = await store.snapshot([weak, replaced, held])
    drafts = [
        store.draft(unique=Unique("k")),
        store.draft(unique=Unique("r", mode="replace"), payload=b"2"),
        store.draft(unique=Unique("free")),
        store.draft(unique=Unique("h", mode="raise")),
    ]
    with pytest.raises(Duplicate):
        await store.engine.jobs.insert(drafts)
    assert await store.snapshot([weak, replaced, held]) == before
    assert await store.engine.operator.get([draft.job_id for draft in drafts]) == [None] * 4
    assert (await _put(store, unique=Unique("free"))).stored is Stored.INSERTED


@pytest.mark.spec("KEY-05")
async def test_a_running_holder_refuses_too(store: Store) -> None:
    """Duplicate is raised while the holder runs, and not any more once it is done."""
    await store.add(unique=Unique("k"))
    claim = await store.take()
    with pytest.raises(Duplicate):
        await _put(store, unique=Unique("k", mode="raise"))
    await store.finish(claim, Done())
    assert (await _put(store, unique=Unique("k", mode="raise"))).stored is Stored.INSERTED


# --- within one call ------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("KEY-06")
async def test_drafts_of_one_call_meet_each_other(store: Store) -> None:
    """The first draft with a key takes it; the next one of the same call gets the first one's id."""
    one, two, other = store.draft(unique=Unique("k")), store.draft(unique=Unique("k")), store.draft()
    assert await store.engine.jobs.insert([one, two, other]) == [
        Receipt(one.job_id, Stored.INSERTED),
        Receipt(one.job_id, Stored.EXISTING),
        Receipt(other.job_id, Stored.INSERTED),
    ]
    assert await store.gone(two.job_id)


@pytest.mark.spec("KEY-06")
async def test_a_draft_may_replace_one_of_its_own_call(store: Store) -> None:
    """The last draft of a batch for a replaceable key is what is stored, under the first id."""
    unique = Unique("k", mode="replace")
    one, two, three = (store.draft(unique=unique, payload=payload) for payload in (b"1", b"2", b"3"))
    assert await store.engine.jobs.insert([one, two, three]) == [
        Receipt(one.job_id, Stored.INSERTED),
        Receipt(one.job_id, Stored.REPLACED),
        Receipt(one.job_id, Stored.REPLACED),
    ]
    assert (await store.job(one.job_id)).payload == b"3"
    assert await store.counts() == {Status.PENDING: 1}


@pytest.mark.core
@pytest.mark.spec("KEY-06")
@pytest.mark.parametrize("waits", [False, True])
async def test_a_call_may_repeat_a_draft_and_meet_its_job(store: Store, waits: bool) -> None:
    """One draft names a stored job by its id, another one by its key: the second replaces or supersedes the first."""
    job = store.draft(unique=Unique("k"))
    await store.engine.jobs.insert([job])
    if waits:
        assert await store.finish(await store.take(), Failed("boom", after=HOUR)) is Verdict.APPLIED
    other = store.draft(unique=Unique("k", mode="replace"), payload=b"2")
    again, met = await store.engine.jobs.insert([job, other])
    assert again == Receipt(job.job_id, Stored.EXISTING)
    if waits:
        assert met == Receipt(other.job_id, Stored.INSERTED, job.job_id)
        assert (await store.job(job.job_id)).status is Status.DEAD
    else:
        assert met == Receipt(job.job_id, Stored.REPLACED)
    assert (await store.job(met.id)).payload == b"2"


@pytest.mark.spec("KEY-06")
async def test_a_call_that_refuses_itself_stores_nothing(store: Store) -> None:
    """Two refusing drafts with one key in one call are a Duplicate, and the key stays free."""
    one, two = (store.draft(unique=Unique("k", mode="raise")) for _ in range(2))
    with pytest.raises(Duplicate):
        await store.engine.jobs.insert([one, two])
    assert await store.counts() == {}
    assert (await _put(store)).stored is Stored.INSERTED


# --- waiting for a retry --------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("KEY-07")
@_MODES
async def test_a_newcomer_supersedes_a_job_that_waits_for_its_retry(store: Store, mode: Mode) -> None:
    """While a job is retrying its key is held weakly: the newcomer is stored and the waiting job ends dead."""
    old = await _waiting(store)
    store.pass_time(SECOND)
    newcomer = store.draft(unique=Unique("k", mode=mode), delay=HOUR)
    assert await store.engine.jobs.insert([newcomer]) == [Receipt(newcomer.job_id, Stored.INSERTED, old)]
    record = await store.job(old)
    assert (record.status, record.last_error, record.worker) == (Status.DEAD, SUPERSEDED, None)
    assert (record.finished_at, record.expires_at) == (store.now(), store.now() + KEEP_DEAD)
    assert (record.attempts, record.history[0].error) == (1, "boom")
    assert await store.counts() == {Status.DEAD: 1, Status.PENDING: 1}
    assert await _put(store) == Receipt(newcomer.job_id, Stored.EXISTING)


@pytest.mark.spec("KEY-07")
async def test_a_superseded_job_never_runs(store: Store) -> None:
    """When its old retry time comes only the newcomer is handed out, and later nothing."""
    await _waiting(store, after=MINUTE)
    newcomer = await _put(store)
    store.pass_time(HOUR)
    [claim] = await store.claim(n=10)
    assert claim.id == newcomer.id
    await store.finish(claim, Done())
    store.pass_time(HOUR)
    assert await store.claim(n=10) == []
    assert await store.counts() == {Status.DEAD: 1, Status.DONE: 1}


@pytest.mark.spec("KEY-07")
async def test_a_waiting_job_that_is_not_superseded_gets_its_retry(store: Store) -> None:
    """A weak key costs nothing as long as no newcomer asks for it."""
    job = await _waiting(store)
    store.pass_time(HOUR)
    claim = await store.take()
    assert (claim.id, claim.attempt) == (job, 2)
    assert await store.finish(claim, Done()) is Verdict.APPLIED


@pytest.mark.core
@pytest.mark.spec("KEY-08")
@_MODES
async def test_claiming_a_retry_makes_its_key_strong_again(store: Store, mode: Mode) -> None:
    """As soon as the retry runs, a newcomer meets a running holder."""
    job = await _waiting(store)
    store.pass_time(HOUR)
    claim = await store.take()
    if mode == "raise":
        with pytest.raises(Duplicate):
            await _put(store, unique=Unique("k", mode=mode))
    else:
        assert await _put(store, unique=Unique("k", mode=mode)) == Receipt(job, Stored.EXISTING)
    assert await store.finish(claim, Done()) is Verdict.APPLIED


@pytest.mark.spec("KEY-08")
async def test_a_key_is_weak_again_after_the_next_failure(store: Store) -> None:
    """Every wait for a retry is weak, not only the first one."""
    job = await _waiting(store, after=0)
    await store.finish(await store.take(), Failed("again", after=HOUR))
    assert (await _put(store)).stored is Stored.INSERTED
    assert await store.status(job) is Status.DEAD


@pytest.mark.core
@pytest.mark.spec("KEY-09")
@_MODES
async def test_a_key_can_be_held_through_retries(store: Store, mode: Mode) -> None:
    """With hold="retrying" a waiting job keeps its key: no draft supersedes or replaces it."""
    job = await _waiting(store, hold="retrying")
    before = await store.snapshot([job])
    if mode == "raise":
        with pytest.raises(Duplicate):
            await _put(store, unique=Unique("k", mode=mode))
    else:
        assert await _put(store, unique=Unique("k", mode=mode)) == Receipt(job, Stored.EXISTING)
    assert await store.snapshot([job]) == before


@pytest.mark.spec("KEY-09")
async def test_the_holders_word_decides_how_firmly_it_waits(store: Store) -> None:
    """A newcomer that would hold through retries still supersedes a holder that does not."""
    weak = await _waiting(store)
    assert (await _put(store, unique=Unique("k", hold="retrying"))).stored is Stored.INSERTED
    assert await store.status(weak) is Status.DEAD


# --- other ways to become active ------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("KEY-10")
async def test_requeueing_a_job_whose_key_is_held_is_blocked(store: Store) -> None:
    """A dead job stays dead while another one has its key, pending or running."""
    dead = await store.add(unique=Unique("k"))
    await store.finish(await store.take(), Rejected("no"))
    await _put(store)
    for _ in range(2):
        before = await store.snapshot([dead])
        tally = await store.engine.operator.alter(Selection((dead,)), Requeue())
        assert (tally.changed, tally.blocked) == (0, 1)
        assert await store.snapshot([dead]) == before
        await store.claim()


@pytest.mark.core
@pytest.mark.spec("KEY-10")
async def test_requeueing_a_superseded_job_supersedes_in_turn(store: Store) -> None:
    """Every activation obeys the key rule, so a later batch claim meets one job with the key and does not fail."""
    first = await _waiting(store, after=MINUTE)
    second = (await _put(store)).id
    await store.finish(await store.take(), Failed("boom", after=MINUTE))
    assert (await store.engine.operator.alter(Selection((first,)), Requeue())).changed == 1
    assert await store.status(second) is Status.DEAD
    bystander = await store.add()
    store.pass_time(HOUR)
    assert [claim.id for claim in await store.claim(n=10)] == [first, bystander]
    assert await store.counts() == {Status.DEAD: 1, Status.RUNNING: 2}


@pytest.mark.spec("KEY-10")
async def test_requeueing_against_a_key_held_through_retries_is_blocked(store: Store) -> None:
    """A firm waiting holder is not superseded by an operator's requeue either."""
    dead = await store.add(unique=Unique("k", hold="retrying"))
    await store.finish(await store.take(), Rejected("no"))
    holder = await _waiting(store, hold="retrying")
    assert (await store.engine.operator.alter(Selection((dead,)), Requeue())).blocked == 1
    assert (await store.status(dead), await store.status(holder)) == (Status.DEAD, Status.RETRYING)


@pytest.mark.spec("KEY-10")
async def test_of_dead_jobs_with_one_key_only_one_comes_back(store: Store) -> None:
    """A batch requeue brings back the first and reports the others as blocked; keyless ones are not hindered."""
    dead = []
    for unique in (Unique("k"), Unique("k"), None, Unique("k")):
        dead.append(await store.add(unique=unique))
        await store.finish(await store.take(), Rejected("no"))
    tally = await store.engine.operator.alter(Selection(tuple(dead)), Requeue())
    assert (tally.changed, tally.blocked) == (2, 2)
    assert await store.counts() == {Status.PENDING: 2, Status.DEAD: 2}
    assert [claim.id for claim in await store.claim(n=10)] == [dead[0], dead[2]]


@pytest.mark.spec("KEY-10")
@pytest.mark.parametrize("hold", ["active", "retrying"])
async def test_requeueing_a_waiting_job_makes_its_key_strong(store: Store, hold: Hold) -> None:
    """A job does not block itself; once an operator made it pending it is not superseded any more."""
    job = await _waiting(store, hold=hold)
    tally = await store.engine.operator.alter(Selection((job,)), Requeue())
    assert (tally.changed, tally.blocked) == (1, 0)
    record = await store.job(job)
    assert (record.status, record.last_error, len(record.history)) == (Status.PENDING, "boom", 1)
    assert await _put(store) == Receipt(job, Stored.EXISTING)


@pytest.mark.spec("KEY-10")
async def test_cloning_a_job_whose_key_is_held_is_blocked(store: Store) -> None:
    """A copy that would double a key is not made, and the original stays dead."""
    dead = await store.add(unique=Unique("k"))
    await store.finish(await store.take(), Rejected("no"))
    await _put(store)
    copy = store.mint()
    tally = await store.engine.operator.alter(Selection((dead,)), Clone((copy,)))
    assert (tally.changed, tally.blocked, tally.created) == (0, 1, ())
    assert await store.gone(copy)
    assert await store.status(dead) is Status.DEAD


@pytest.mark.spec("KEY-11")
async def test_at_most_one_active_job_per_key_over_a_long_life(store: Store) -> None:
    """Through failures, newcomers and requeues there is never more than one pending or running job of a key."""
    ids: list[JobId] = []
    held: list[Claim] = []
    for turn in range(30):
        match turn % 5:
            case 0 | 3:
                ids.append((await _put(store)).id)
            case 1:
                held = await store.claim(f"w{turn}", 10)
            case 2:
                for claim in held:
                    await store.finish(claim, Failed("boom", after=SECOND))
            case _:
                store.pass_time(2 * SECOND)
                await store.engine.operator.alter(Selection((ids[turn % len(ids)],)), Requeue())
        records = [job for job in await store.engine.operator.get(sorted(set(ids))) if job is not None]
        active = [job for job in records if job.status in {Status.PENDING, Status.RUNNING, Status.RETRYING}]
        assert len(active) <= 1


@pytest.mark.spec("KEY-12")
async def test_a_follow_up_supersedes_like_any_newcomer(store: Store) -> None:
    """A follow-up that meets a weak holder ends it in the same step as the settlement."""
    weak = await _waiting(store)
    await store.add("parent")
    child = store.draft(unique=Unique("k"))
    assert await store.finish(await store.take(), Done(followups=(child,))) is Verdict.APPLIED
    assert (await store.status(weak), await store.status(child.job_id)) == (Status.DEAD, Status.PENDING)
