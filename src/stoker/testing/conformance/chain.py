"""Chains: what stands behind a job is stored with its success, and only then."""

from __future__ import annotations

import pytest

from stoker.engines.base import Feature
from stoker.model.ids import text
from stoker.model.job import (
    LARGEST_BATCH,
    LARGEST_PAYLOAD,
    MOST_LINKS,
    PARENT,
    Draft,
    Options,
    Status,
    Verdict,
    chain,
)
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Canceled, Done, Expired, Failed, HandedBack, Outcome, Rejected, Snoozed
from stoker.model.query import Cancel, Clone, Delete, Requeue, Selection
from stoker.model.time import LONGEST, MINUTE
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import Store, needs


async def _kinds(store: Store, *drafts: Draft) -> list[str]:
    """The kinds of those drafts that are stored."""
    return [job.kind for job in await store.engine.operator.get([draft.job_id for draft in drafts]) if job is not None]


@pytest.mark.core
@pytest.mark.spec("CHAIN-01", "CHAIN-02")
async def test_each_link_is_stored_with_the_success_of_the_one_before(store: Store) -> None:
    """The first is stored alone; every success stores the next, with its options and the id of its parent."""
    first, second = store.draft("first"), store.draft("second", payload=b'{"a": 1}', priority=3, tenant="acme")
    third = store.draft("third", options=Options(timeout=MINUTE, metadata={"a": "b"}))
    await store.insert(chain(first, second, third))
    assert await _kinds(store, first, second, third) == ["first"]
    assert await store.finish(await store.take(), Done(b"1")) is Verdict.APPLIED
    link = await store.job(second.job_id)
    assert (link.status, link.kind, link.payload, link.priority, link.tenant) == ("pending", "second", *_given(second))
    assert link.options.metadata == {PARENT: text(first.job_id)}
    assert await store.gone(third.job_id)
    assert await store.finish(await store.take(), Done()) is Verdict.APPLIED
    last = await store.job(third.job_id)
    assert last.options == Options(timeout=MINUTE, metadata={"a": "b", PARENT: text(second.job_id)})
    assert await store.finish(await store.take(), Done()) is Verdict.APPLIED
    assert await store.counts() == {Status.DONE: 3}


def _given(draft: Draft) -> tuple[bytes, int, str | None]:
    return draft.payload, draft.priority, draft.tenant


@pytest.mark.core
@pytest.mark.spec("CHAIN-03")
async def test_links_side_by_side_are_stored_together(store: Store) -> None:
    """Both exist after the success, beside the follow-up that the run added."""
    one, two, other = store.draft("one"), store.draft("two"), store.draft("other")
    await store.insert(store.draft("first").then(one, two))
    assert await store.finish(await store.take(), Done(followups=(other,))) is Verdict.APPLIED
    assert await _kinds(store, one, two, other) == ["one", "two", "other"]
    assert await store.counts() == {Status.DONE: 1, Status.PENDING: 3}


@pytest.mark.core
@pytest.mark.spec("CHAIN-04")
@pytest.mark.parametrize(
    "outcome", [Failed("boom"), Failed("boom", retry=False), Rejected("no"), Snoozed(0), HandedBack(), Canceled()]
)
async def test_no_other_end_stores_a_link(store: Store, outcome: Outcome) -> None:
    """Not a retry, a death, a snooze, a hand-back, a cancel; the record shows what stands behind it."""
    link = store.draft("link")
    [job] = await store.insert(store.draft("first").then(link))
    assert await store.finish(await store.take(), outcome) is Verdict.APPLIED
    assert await store.gone(link.job_id)
    assert [draft.kind for draft in (await store.job(job)).options.then] == ["link"]


@pytest.mark.spec("CHAIN-04")
async def test_a_job_that_is_canceled_deleted_or_expired_stores_no_link(store: Store) -> None:
    """Neither waiting nor claimed too late."""
    links = [store.draft("link") for _ in range(3)]
    options = Options(expires=MINUTE)
    canceled, deleted, late = await store.insert(*(store.draft("first", options=options).then(one) for one in links))
    await store.engine.operator.alter(Selection((canceled,)), Cancel())
    await store.engine.operator.alter(Selection((deleted,)), Delete())
    store.pass_time(2 * MINUTE)
    assert await store.finish(await store.take(), Expired()) is Verdict.APPLIED
    assert await store.status(late) is Status.CANCELED
    assert await _kinds(store, *links) == []


@pytest.mark.core
@pytest.mark.spec("CHAIN-04")
async def test_a_lost_settlement_stores_no_link(store: Store) -> None:
    """A forced cancel took the claim away; what the run returned comes too late."""
    link = store.draft("link")
    [job] = await store.insert(store.draft("first").then(link))
    claim = await store.take()
    await store.engine.operator.alter(Selection((job,)), Cancel(force=True))
    assert await store.finish(claim, Done()) is Verdict.LOST
    assert await store.gone(link.job_id)


@pytest.mark.core
@pytest.mark.spec("CHAIN-05")
@pytest.mark.parametrize("keep", [None, 0])
async def test_a_repeated_settlement_stores_a_link_once(store: Store, keep: int | None) -> None:
    """Also after the link has run, and where success deletes the record."""
    link = store.draft("link")
    await store.insert(store.draft("first", options=Options(keep=keep)).then(link))
    settlement = conclude(await store.take(), Done())
    assert await store.settle(settlement) == [Verdict.APPLIED]
    assert await store.settle(settlement) != [Verdict.APPLIED]
    assert await store.finish(await store.take(), Done()) is Verdict.APPLIED
    assert await store.settle(settlement) != [Verdict.APPLIED]
    assert await store.status(link.job_id) is Status.DONE
    assert await store.claim() == []


@pytest.mark.core
@pytest.mark.spec("CHAIN-06")
async def test_requeueing_a_dead_link_continues_the_chain(store: Store) -> None:
    """Its success stores what stands behind it."""
    link = store.draft("link")
    [job] = await store.insert(store.draft("first").then(link))
    await store.finish(await store.take(), Rejected("no"))
    assert (await store.engine.operator.alter(Selection((job,)), Requeue())).changed == 1
    assert await store.finish(await store.take(), Done()) is Verdict.APPLIED
    assert (await store.job(link.job_id)).options.metadata == {PARENT: text(job)}


@pytest.mark.spec("CHAIN-06")
async def test_a_copy_of_a_dead_link_continues_the_chain(store: Store) -> None:
    """The copy is the parent of what it stores."""
    link, copy = store.draft("link"), store.mint()
    [job] = await store.insert(store.draft("first").then(link))
    await store.finish(await store.take(), Rejected("no"))
    assert (await store.engine.operator.alter(Selection((job,)), Clone((copy,)))).changed == 1
    assert await store.finish(await store.take(), Done()) is Verdict.APPLIED
    assert (await store.job(link.job_id)).options.metadata == {PARENT: text(copy)}


@pytest.mark.spec("CHAIN-07")
@pytest.mark.parametrize("mode", ["existing", "raise"])
async def test_a_held_key_ends_the_chain_there(store: Store, mode: str) -> None:
    """The holder stands for the link, and what came behind the link is not stored."""
    unique = Unique("k", mode=mode)  # type: ignore[arg-type]  # both are modes
    last = store.draft("last")
    link = store.draft("link", unique=unique)
    await store.insert(store.draft("first", priority=-1).then(link.then(last)))
    holder = await store.add("link", unique=unique)
    assert await store.finish(await store.take(), Done()) is Verdict.APPLIED
    assert await store.gone(link.job_id)
    claim = await store.take()
    assert claim.id == holder
    assert await store.finish(claim, Done()) is Verdict.APPLIED
    assert await store.gone(last.job_id)


@pytest.mark.spec("CHAIN-07")
async def test_a_draft_that_replaces_a_waiting_job_replaces_its_chain(store: Store) -> None:
    """What stood behind the job goes with its other options."""
    before, after = store.draft("before"), store.draft("after")
    unique = Unique("k", mode="replace")
    [job] = await store.insert(store.draft("first", unique=unique).then(before))
    assert await store.insert(store.draft("first", unique=unique).then(after)) == [job]
    assert await store.finish(await store.take(), Done()) is Verdict.APPLIED
    assert await _kinds(store, before, after) == ["after"]


@pytest.mark.spec("CHAIN-08")
async def test_the_delay_of_a_link_counts_from_its_parents_success(store: Store) -> None:
    """Not from the enqueue of the chain."""
    link = store.draft("link", delay=MINUTE)
    await store.insert(store.draft("first").then(link))
    store.pass_time(10 * MINUTE)
    await store.finish(await store.take(), Done())
    assert (await store.job(link.job_id)).scheduled_at == store.now() + MINUTE


@pytest.mark.spec("CHAIN-02")
async def test_a_link_may_go_to_another_queue(store: Store) -> None:
    """It is claimed there."""
    link = store.draft("link", queue="other")
    await store.insert(store.draft("first").then(link))
    assert await store.finish(await store.take(), Done()) is Verdict.APPLIED
    assert (await store.take(queue="other")).id == link.job_id


@pytest.mark.spec("CHAIN-09")
async def test_the_longest_chain_runs_to_its_end(store: Store) -> None:
    """As many links as a chain may have, one after the other."""
    drafts = [store.draft("link", delay=0, payload=b"[%d]" % place) for place in range(MOST_LINKS)]
    await store.insert(chain(*drafts))
    for place in range(MOST_LINKS):
        claim = await store.take()
        assert (claim.id, claim.payload) == (drafts[place].job_id, b"[%d]" % place)
        assert await store.finish(claim, Done()) is Verdict.APPLIED
    assert await store.counts() == {Status.DONE: MOST_LINKS}


@pytest.mark.spec("CHAIN-01")
async def test_a_full_batch_of_chains_is_settled_in_one_call(store: Store) -> None:
    """Every success stores its own link."""
    await store.insert(*(store.draft("first").then(store.draft("link", delay=LONGEST)) for _ in range(LARGEST_BATCH)))
    claims = await store.claim(n=LARGEST_BATCH)
    assert await store.settle(*(conclude(claim, Done()) for claim in claims)) == [Verdict.APPLIED] * LARGEST_BATCH
    assert await store.counts() == {Status.DONE: LARGEST_BATCH, Status.PENDING: LARGEST_BATCH}


@pytest.mark.spec("CHAIN-01")
async def test_a_settlement_that_is_rolled_back_stores_no_link(store: Store) -> None:
    """The transaction takes both away."""
    needs(store, Feature.OWN_TRANSACTION)
    link = store.draft("link")
    [job] = await store.insert(store.draft("first").then(link))
    settlement = conclude(await store.take(), Done())
    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            assert (await store.engine.jobs.settle([settlement], tx=tx)).verdicts == [Verdict.APPLIED]
            raise ZeroDivisionError
    assert await store.status(job) is Status.RUNNING
    assert await store.gone(link.job_id)
    assert await store.settle(settlement) == [Verdict.APPLIED]
    assert await store.status(link.job_id) is Status.PENDING


# --- results ----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("PASS-01")
async def test_a_link_has_the_result_of_the_job_before(store: Store) -> None:
    """Where `PREVIOUS` stood; side by side each has it, and the marker is gone."""
    wants = Options(previous=("n",))
    one = store.draft("one", payload=b'{"n":"PREVIOUS","m":1.50}', options=wants)
    two, last = (store.draft(kind, payload=b'{"n":"PREVIOUS"}', options=wants) for kind in ("two", "last"))
    await store.insert(store.draft("first").then(one, two.then(last)))
    assert await store.finish(await store.take(), Done(b'{"x":[1,2]}')) is Verdict.APPLIED
    assert [(await store.job(draft.job_id)).payload for draft in (one, two)] == [
        *(b'{"n":{"x":[1,2]},"m":1.50}', b'{"n":{"x":[1,2]}}')
    ]
    for _ in range(2):
        claim = await store.take()
        assert claim.options.previous == ()
        assert await store.finish(claim, Done(None)) is Verdict.APPLIED
    assert (await store.take()).payload == b'{"n":null}'


@pytest.mark.core
@pytest.mark.spec("PASS-02")
@pytest.mark.parametrize("copied", [False, True])
async def test_a_dead_link_goes_on_with_what_it_was_given(store: Store, *, copied: bool) -> None:
    """Requeued or copied, it has the result of the job before, and passes its own on."""
    wants, copy = Options(previous=("n",)), store.mint()
    link, last = (store.draft(kind, payload=b'{"n":"PREVIOUS"}', options=wants) for kind in ("link", "last"))
    await store.insert(chain(store.draft("first"), link, last))
    await store.finish(await store.take(), Done(b"1"))
    await store.finish(await store.take(), Rejected("no"))
    change = Clone((copy,)) if copied else Requeue()
    assert (await store.engine.operator.alter(Selection((link.job_id,)), change)).changed == 1
    claim = await store.take()
    assert (claim.id, claim.payload) == (copy if copied else link.job_id, b'{"n":1}')
    await store.finish(claim, Done(b"2"))
    assert (await store.job(last.job_id)).payload == b'{"n":2}'


@pytest.mark.spec("PASS-02")
async def test_only_the_success_passes_a_result_on(store: Store) -> None:
    """Not a snooze and not a retry before it."""
    link = store.draft("link", payload=b'{"n":"PREVIOUS"}', options=Options(previous=("n",)))
    await store.insert(store.draft("first").then(link))
    for outcome in (Snoozed(0), Failed("boom", after=0)):
        await store.finish(await store.take(), outcome)
        assert await store.gone(link.job_id)
    await store.finish(await store.take(), Done(b"3"))
    assert (await store.job(link.job_id)).payload == b'{"n":3}'


@pytest.mark.spec("PASS-03")
async def test_a_result_that_is_too_large_to_pass_on_ends_the_chain(store: Store) -> None:
    """The job is dead and says why; requeued with a smaller result it goes on."""
    link = store.draft("link", payload=b'{"n":"PREVIOUS"}', options=Options(previous=("n",)))
    [job] = await store.insert(store.draft("first").then(link))
    await store.finish(await store.take(), Done(b'"' + b"x" * (LARGEST_PAYLOAD - 2) + b'"'))
    assert "cannot be passed on to the job behind it (link)" in ((await store.job(job)).last_error or "")
    assert await store.gone(link.job_id)
    await store.engine.operator.alter(Selection((job,)), Requeue())
    await store.finish(await store.take(), Done(b"1"))
    assert (await store.job(link.job_id)).payload == b'{"n":1}'
