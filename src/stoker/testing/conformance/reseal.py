"""Values of stored jobs in another form: in every status, field by field, and never over what was written since."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.model.ids import JobId
from stoker.model.job import Claim, Job, Note, Options, Status
from stoker.model.outcome import Done, Failed, Rejected
from stoker.model.query import Cancel, Reseal, Selection
from stoker.model.steps import Save, Step
from stoker.testing.conformance.harness import Store

OPTIONS = Options(metadata={"who": "ann"}, label="ann")


async def _noted(store: Store, claim: Claim) -> None:
    """Give a running job everything that a run can leave behind."""
    await store.engine.jobs.note([Note(claim.id, claim.worker, claim.token, 0.5, {"a": "b"}, ("one", "two"))])
    await store.engine.steps.save([Save(claim.id, claim.worker, claim.token, (Step("s", value=b"1"),))])


async def _in(store: Store, status: Status) -> JobId:
    """A job in a status, with a run behind it where it had one."""
    job = await store.add(payload=b'{"x":1}', options=OPTIONS, attempts=3)
    if status in (Status.PENDING, Status.CANCELED):
        if status is Status.CANCELED:
            await store.engine.operator.alter(Selection((job,)), Cancel())
        return job
    claim = await store.take()
    await _noted(store, claim)
    if status is Status.DONE:
        await store.finish(claim, Done(b'"r"'))
    elif status is Status.DEAD:
        await store.finish(claim, Rejected("no"))
    elif status is Status.RETRYING:
        await store.finish(claim, Failed("boom"))
    return job


def _otherwise(job: Job) -> Job:
    """The same job with every value in another form."""
    return replace(
        job,
        payload=b'"sealed payload, which is longer"',
        options=replace(job.options, metadata={"who": "sealed"}, label="sealed"),
        result=None if job.result is None else b'"sealed result"',
        last_error=None if job.last_error is None else f"sealed {job.last_error}",
        history=tuple(replace(one, error=f"sealed {one.error}") for one in job.history),
        metadata=dict.fromkeys(job.metadata, "sealed"),
        log=tuple("sealed line" for _ in job.log),
    )


STATUSES = (Status.PENDING, Status.RUNNING, Status.RETRYING, Status.DONE, Status.DEAD, Status.CANCELED)


@pytest.mark.core
@pytest.mark.spec("SEAL-13")
@pytest.mark.parametrize("status", STATUSES)
async def test_reseal_stores_every_value_in_another_form(store: Store, status: Status) -> None:
    job = await _in(store, status)
    before = await store.job(job)
    [rows] = await store.engine.steps.get([job])
    changed = tuple((row, replace(row, value=b'"sealed row"')) for row in rows)
    after = _otherwise(before)
    tally = await store.engine.operator.alter(Selection((job,)), Reseal((before,), (after,), (changed,)))
    assert tally.changed == 1
    assert await store.job(job) == after
    assert await store.engine.steps.get([job]) == [[new for _, new in changed]]
    assert (await store.engine.operator.census()).by_status()[status] == 1


@pytest.mark.core
@pytest.mark.spec("SEAL-13")
async def test_reseal_leaves_what_was_written_since(store: Store) -> None:
    job = await store.add(payload=b"{}", options=OPTIONS)
    claim = await store.take()
    await _noted(store, claim)
    before = await store.job(job)
    [[row]] = await store.engine.steps.get([job])
    await store.engine.jobs.note([Note(job, claim.worker, claim.token, None, {"new": "c"}, ("three",))])
    await store.engine.steps.save([Save(job, claim.worker, claim.token, (Step("s", value=b"2"),))])
    between = await store.job(job)
    change = Reseal((before,), (_otherwise(before),), (((row, replace(row, value=b"3")),),))
    await store.engine.operator.alter(Selection((job,)), change)
    found = await store.job(job)
    assert (found.payload, found.options.label) == (b'"sealed payload, which is longer"', "sealed")
    assert (found.metadata, found.log) == (between.metadata, between.log)
    [[kept]] = await store.engine.steps.get([job])
    assert kept.value == b"2"
    assert await store.finish(claim, Done(b"7")) == "applied"
    assert (await store.job(job)).result == b"7"


@pytest.mark.spec("SEAL-13")
async def test_a_resealed_job_runs_and_ends_as_ever(store: Store) -> None:
    job = await _in(store, Status.RETRYING)
    before = await store.job(job)
    await store.engine.operator.alter(Selection((job,)), Reseal((before,), (_otherwise(before),)))
    store.pass_time(3_600_000_000)
    claim = await store.take()
    assert (claim.payload, claim.options.label) == (_otherwise(before).payload, "sealed")
    assert claim.last_error == "sealed boom"
    await store.finish(claim, Done(b"1"))
    assert [one.error for one in (await store.job(job)).history] == ["sealed boom"]
