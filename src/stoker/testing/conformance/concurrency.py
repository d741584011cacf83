"""Many calls at once: engines in several threads and loops on one store."""

from __future__ import annotations

from collections import Counter

import pytest

from stoker.engines.base import Engine
from stoker.model.control import Tuning
from stoker.model.groups import into_group, new_group
from stoker.model.ids import JobId
from stoker.model.job import Claim, Demand, Status, Verdict
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Rejected, Snoozed, Suspended
from stoker.model.query import Cancel, Clone, Delete, Requeue, Selection
from stoker.model.steps import Signal, Signaled, StepState, Wakes
from stoker.model.throttle import Rate
from stoker.model.time import HOUR
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import Store, Work, at_once
from stoker.testing.conformance.step_helpers import calls, saved, wait

OPEN, SIDE = wait("go"), wait("side")


@pytest.mark.core
@pytest.mark.spec("RACE-01")
async def test_race_of_two_drains_hands_each_job_out_once(store: Store) -> None:
    """Two workers drain two hundred jobs: no job goes to both, none is left."""
    jobs = await store.insert(*(store.draft() for _ in range(200)))

    def drain(worker: str) -> Work[list[Claim]]:
        async def work(engine: Engine) -> list[Claim]:
            await engine.jobs.renew(worker, [], first=True)
            taken: list[Claim] = []
            while claims := await engine.jobs.claim(Demand(worker, (("default", 7),))):
                settled = await engine.jobs.settle([conclude(claim, Done()) for claim in claims])
                assert set(settled.verdicts) == {Verdict.APPLIED}
                taken += claims
            return taken

        return work

    first, second = await at_once(store, [drain("w1"), drain("w2")])
    assert sorted(claim.id for claim in first + second) == sorted(jobs)
    assert await store.counts() == {Status.DONE: 200}


@pytest.mark.core
@pytest.mark.spec("RACE-01")
async def test_race_for_one_job_has_one_winner(store: Store) -> None:
    """Eight workers ask at once for the only job; one gets it."""
    job = await store.add()
    for n in range(8):
        await store.enlist(f"w{n}")

    def ask(worker: str) -> Work[list[Claim]]:
        async def work(engine: Engine) -> list[Claim]:
            return await engine.jobs.claim(Demand(worker, (("default", 1),)))

        return work

    found = await at_once(store, [ask(f"w{n}") for n in range(8)])
    [claim] = [claim for claims in found for claim in claims]
    record = await store.job(job)
    assert (record.worker, record.token, record.attempts) == (claim.worker, claim.token, 1)


@pytest.mark.core
@pytest.mark.spec("GROUP-20")
async def test_race_of_the_last_members_closes_a_group_once(store: Store) -> None:
    """Eight workers end the last eight members at the same moment; each callback is stored once."""
    group = store.mint()
    calls = {kind: store.draft(kind, queue="after") for kind in ("then", "on_finish")}
    await store.engine.jobs.insert(
        into_group(group, [store.draft() for _ in range(8)]), group=new_group(group, keep=None, sealed=True, **calls)
    )
    claims = [await store.take(f"w{n}") for n in range(8)]

    def end(claim: Claim) -> Work[list[Verdict]]:
        async def work(engine: Engine) -> list[Verdict]:
            return (await engine.jobs.settle([conclude(claim, Done())])).verdicts

        return work

    assert await at_once(store, [end(claim) for claim in claims]) == [[Verdict.APPLIED]] * 8
    await store.engine.groups.sweep()
    [found] = await store.engine.groups.get([group])
    assert found is not None
    assert (found.done, found.closed_at) == (8, store.now())
    assert await store.counts("after") == {Status.PENDING: 2}


@pytest.mark.core
@pytest.mark.spec("RACE-02")
async def test_race_of_inserts_with_one_key_stores_one_job(store: Store) -> None:
    """Eight callers enqueue under the same key at once: one job, and every caller gets its id."""
    drafts = [store.draft(unique=Unique("k")) for _ in range(8)]

    def put(n: int) -> Work[bytes]:
        async def work(engine: Engine) -> bytes:
            return (await engine.jobs.insert([drafts[n]]))[0].id

        return work

    ids = await at_once(store, [put(n) for n in range(8)])
    assert len(set(ids)) == 1
    assert await store.counts() == {Status.PENDING: 1}
    assert await store.status(ids[0]) is Status.PENDING


@pytest.mark.core
@pytest.mark.spec("RACE-02")
async def test_race_of_one_insert_repeated_stores_one_job(store: Store) -> None:
    """The same drafts sent by several callers at once are stored once."""
    drafts = [store.draft() for _ in range(20)]

    async def put(engine: Engine) -> list[bytes]:
        return [receipt.id for receipt in await engine.jobs.insert(drafts)]

    found = await at_once(store, [put] * 4)
    assert found == [[draft.job_id for draft in drafts]] * 4
    assert await store.counts() == {Status.PENDING: 20}


@pytest.mark.core
@pytest.mark.spec("RACE-03")
async def test_race_of_settlements_of_one_claim_applies_one(store: Store) -> None:
    """One claim, settled eight ways at once: exactly one applies and the record shows which."""
    job = await store.add()
    claim = await store.take()

    def end(n: int) -> Work[Verdict]:
        async def work(engine: Engine) -> Verdict:
            return (await engine.jobs.settle([conclude(claim, Done(b"%d" % n))])).verdicts[0]

        return work

    verdicts = await at_once(store, [end(n) for n in range(8)])
    counted = Counter(verdicts)
    assert counted[Verdict.APPLIED] == 1
    assert set(counted) <= {Verdict.APPLIED, Verdict.LOST, Verdict.REPEATED}
    record = await store.job(job)
    assert (record.status, record.result) == (Status.DONE, b"%d" % verdicts.index(Verdict.APPLIED))
    assert (await store.engine.operator.census()).totals["work"].completed == 1


@pytest.mark.core
@pytest.mark.spec("RACE-04")
async def test_race_of_clones_enqueues_one(store: Store) -> None:
    """Eight operators retry the same dead job at once: one copy."""
    job = await store.add()
    await store.finish(await store.take(), Rejected("no"))
    ids = [store.mint() for _ in range(8)]

    def clone(n: int) -> Work[tuple[bytes, ...]]:
        async def work(engine: Engine) -> tuple[bytes, ...]:
            return (await engine.operator.alter(Selection((job,)), Clone((ids[n],)))).created

        return work

    created = [new for made in await at_once(store, [clone(n) for n in range(8)]) for new in made]
    assert len(created) == 1
    assert (await store.job(job)).successor == created[0]
    assert await store.counts() == {Status.PENDING: 1, Status.RETRIED: 1}


@pytest.mark.spec("RACE-04")
async def test_race_of_requeues_under_one_key_activates_one(store: Store) -> None:
    """Dead jobs that share a key, requeued at once by different operators: one becomes active."""
    jobs = []
    for _ in range(6):
        jobs.append(await store.add(unique=Unique("k")))
        await store.finish(await store.take(), Rejected("no"))

    def requeue(n: int) -> Work[int]:
        async def work(engine: Engine) -> int:
            return (await engine.operator.alter(Selection((jobs[n],)), Requeue())).changed

        return work

    assert sum(await at_once(store, [requeue(n) for n in range(6)])) == 1
    assert await store.counts() == {Status.PENDING: 1, Status.DEAD: 5}


@pytest.mark.core
@pytest.mark.spec("RACE-05")
async def test_race_of_cancel_and_claim_never_does_both(store: Store) -> None:
    """A job is either canceled before it starts or handed out and asked to stop, never canceled and run."""
    jobs = await store.insert(*(store.draft() for _ in range(40)))
    await store.enlist("w1")

    async def cancel(engine: Engine) -> set[bytes]:
        changed: set[bytes] = set()
        for job in reversed(jobs):
            tally = await engine.operator.alter(Selection((job,), (Status.PENDING,)), Cancel())
            changed |= set(tally.changed_ids)
        return changed

    async def claim(engine: Engine) -> set[bytes]:
        taken: set[bytes] = set()
        while claims := await engine.jobs.claim(Demand("w1", (("default", 1),))):
            taken |= {claim.id for claim in claims}
        return taken

    canceled, taken = await at_once(store, [cancel, claim])
    assert not canceled & taken
    assert canceled | taken == set(jobs)
    assert {job: await store.status(job) for job in jobs} == {
        job: Status.CANCELED if job in canceled else Status.RUNNING for job in jobs
    }


@pytest.mark.core
@pytest.mark.spec("RACE-06")
async def test_race_of_reapers_passes_each_claim_on_once(store: Store) -> None:
    """Four workers reap a dead one at once: each of its claims goes to one of them."""
    jobs = await store.insert(*(store.draft() for _ in range(30)))
    former = {claim.id: claim.token for claim in await store.claim("late", 30)}
    assert len(former) == 30
    store.pass_time(HOUR)
    for n in range(4):
        await store.enlist(f"w{n}")

    def reap(worker: str) -> Work[list[Claim]]:
        async def work(engine: Engine) -> list[Claim]:
            got: list[Claim] = []
            while claims := await engine.jobs.reap(worker, 5):
                got += claims
            return got

        return work

    found = await at_once(store, [reap(f"w{n}") for n in range(4)])
    reaped = [claim for claims in found for claim in claims]
    assert sorted(claim.id for claim in reaped) == sorted(jobs)
    assert all(claim.token > former[claim.id] for claim in reaped)
    assert await store.counts() == {Status.RUNNING: 30}
    verdicts = await store.settle(*(conclude(claim, Snoozed(0)) for claim in reaped))
    assert set(verdicts) == {Verdict.APPLIED}


@pytest.mark.spec("RACE-07")
async def test_race_for_a_budget_grants_what_it_holds(store: Store) -> None:
    """Five threads of ten requests each for ten tokens: ten are granted."""
    await store.engine.control.tune("api", Rate(1, per=3600, burst=10))

    async def ask(engine: Engine) -> int:
        return sum([(await engine.control.spend("api")).granted for _ in range(10)])

    assert sum(await at_once(store, [ask] * 5)) == 10


@pytest.mark.spec("RACE-09")
async def test_race_for_the_tokens_of_a_queue_starts_what_it_allows(store: Store) -> None:
    """Five threads claim, a sixth changes the rate to the same number of tokens: ten jobs start."""
    await store.engine.control.tune("default", Tuning(rate=Rate(1, per=3600, burst=10)))
    await store.insert(*(store.draft() for _ in range(100)))
    for worker in range(5):
        await store.enlist(f"w{worker}")

    def take(n: int) -> Work[int]:
        async def work(engine: Engine) -> int:
            return sum([len(await engine.jobs.claim(Demand(f"w{n}", (("default", 3),)))) for _ in range(10)])

        return work

    async def tune(engine: Engine) -> int:
        for n in range(10):
            await engine.control.tune("default", Tuning(rate=Rate(1, per=3600 + n, burst=10), workers=n))
        return 0

    assert sum(await at_once(store, [*(take(n) for n in range(5)), tune])) == 10
    assert await store.counts() == {Status.PENDING: 90, Status.RUNNING: 10}


@pytest.mark.spec("RACE-08")
async def test_race_keeps_the_counters_true(store: Store) -> None:
    """After producers, workers and an operator worked at the same time the counts equal a recount."""
    batches = [[store.draft(queue=f"q{n % 2}") for n in range(20)] for _ in range(3)]
    await store.enlist("w1")
    await store.enlist("w2")

    def produce(n: int) -> Work[None]:
        async def work(engine: Engine) -> None:
            for draft in batches[n]:
                await engine.jobs.insert([draft])

        return work

    def consume(worker: str) -> Work[None]:
        async def work(engine: Engine) -> None:
            for n in range(30):
                for claim in await engine.jobs.claim(Demand(worker, (("q0", 1), ("q1", 1)))):
                    outcome = (Done(), Rejected("no"), Snoozed(0))[n % 3]
                    await engine.jobs.settle([conclude(claim, outcome)])

        return work

    async def meddle(engine: Engine) -> None:
        for batch in batches:
            for draft in batch:
                await engine.operator.alter(Selection((draft.job_id,)), Cancel())

    await at_once(store, [*(produce(n) for n in range(3)), consume("w1"), consume("w2"), meddle])
    every = [draft.job_id for batch in batches for draft in batch]
    recount: Counter[Status] = Counter([await store.status(job) for job in every])
    assert await store.counts() == recount
    assert sum(recount.values()) == 60


@pytest.mark.core
@pytest.mark.spec("ANSWER-12")
async def test_race_of_suspensions_and_signals_wakes_every_job(store: Store) -> None:
    """Twenty runs suspend while two others signal them: each job is due afterwards, with its answer, once."""
    for _ in range(5):
        await store.insert(*(store.draft() for _ in range(20)))
        claims = await store.claim(n=20)

        async def suspend(engine: Engine, claims: list[Claim] = claims) -> list[Signaled]:
            settled = await engine.jobs.settle([conclude(one, Suspended((OPEN, SIDE))) for one in claims])
            assert set(settled.verdicts) == {Verdict.APPLIED}
            return []

        def send(claims: list[Claim]) -> Work[list[Signaled]]:
            async def work(engine: Engine) -> list[Signaled]:
                return [(await engine.steps.signal([Signal(one.id, "go", b"7")]))[0] for one in claims]

            return work

        _, *answers = await at_once(store, [suspend, send(claims[:12]), send(claims[8:])])
        told = Counter(one for answer in answers for one in answer)
        assert told[Signaled.TAKEN] + told[Signaled.EARLY] == 20
        assert told[Signaled.ANSWERED] == 4
        again = await store.claim(n=40)
        assert sorted(one.id for one in again) == sorted(one.id for one in claims)
        found = await store.engine.steps.get([one.id for one in claims])
        assert [[(row.name, row.value) for row in one if row.state is StepState.DONE] for one in found] == [
            [("go", b"7")] for _ in claims
        ]
        await store.settle(*(conclude(one, Done()) for one in again))


@pytest.mark.spec("ANSWER-12")
async def test_race_of_the_last_answers_completes_a_job_once(store: Store) -> None:
    """Two callers answer the two waits of each job at the same moment: each is due when both are there."""
    await store.insert(*(store.draft() for _ in range(20)))
    claims = await store.claim(n=20)
    await store.settle(*(conclude(one, Suspended((OPEN, SIDE), wakes=Wakes.ALL)) for one in claims))

    def send(name: str) -> Work[list[Signaled]]:
        async def work(engine: Engine) -> list[Signaled]:
            return await engine.steps.signal([Signal(one.id, name) for one in claims])

        return work

    for answers in await at_once(store, [send("go"), send("side")]):
        assert set(answers) == {Signaled.TAKEN}
    assert len(await store.claim(n=40)) == 20


@pytest.mark.spec("ANSWER-12", "CALL-02")
async def test_race_of_the_last_called_jobs_wakes_their_callers_once(store: Store) -> None:
    """Two workers end the called jobs of many callers crosswise, while these suspend: none is left behind."""
    await store.insert(*(store.draft() for _ in range(10)))
    claims = await store.claim(n=10)
    waits, saves = [], []
    for one in claims:
        call = calls(store, *(store.draft("kid", queue="kids") for _ in range(2)))
        waits.append(call.wait)
        saves.append(saved(one, call.wait, drafts=call.drafts, groups=(call.group,)))
    assert set(await store.engine.steps.save(saves)) == {Verdict.APPLIED}
    kids = {one.id: one for one in await store.claim("w2", 20, "kids")}
    order = [draft.job_id for save in saves for draft in save.drafts]

    async def suspend(engine: Engine) -> None:
        for one, opened in zip(claims, waits, strict=True):
            assert (await engine.jobs.settle([conclude(one, Suspended((opened,)))])).verdicts == [Verdict.APPLIED]

    def end(ids: list[JobId]) -> Work[None]:
        async def work(engine: Engine) -> None:
            for at in range(0, len(ids), 5):
                batch = [conclude(kids[job], Done()) for job in ids[at : at + 5]]
                assert set((await engine.jobs.settle(batch)).verdicts) == {Verdict.APPLIED}

        return work

    await at_once(store, [suspend, end(order[::2]), end(order[1::2][::-1])])
    await store.engine.groups.sweep()
    assert len(await store.claim(n=20)) == 10


@pytest.mark.spec("ANSWER-13")
async def test_race_of_removals_and_signals_leaves_no_row(store: Store) -> None:
    """Waiting and finished jobs are deleted while they are signaled: a job of such an id begins without rows."""
    for _ in range(5):
        waiting, ended = ([store.draft() for _ in range(10)] for _ in range(2))
        await store.insert(*ended)
        await store.settle(*(conclude(one, Done()) for one in await store.claim(n=10)))
        await store.insert(*waiting)
        await store.settle(*(conclude(one, Suspended((OPEN,))) for one in await store.claim(n=10)))
        ids = [draft.job_id for draft in (*waiting, *ended)]

        async def delete(engine: Engine, ids: list[JobId] = ids) -> None:
            for job in ids:
                assert (await engine.operator.alter(Selection((job,)), Delete())).changed == 1

        def send(ids: list[JobId]) -> Work[None]:
            async def work(engine: Engine) -> None:
                for job in ids:
                    await engine.steps.signal([Signal(job, "go"), Signal(job, "early")])

            return work

        await at_once(store, [delete, send(ids), send(ids[::-1])])
        assert await store.counts() == {}
        await store.insert(*waiting, *ended)
        assert await store.engine.steps.get(ids) == [[] for _ in ids]
        await store.engine.operator.alter(Selection(tuple(ids)), Delete())
