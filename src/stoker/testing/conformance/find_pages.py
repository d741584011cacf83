"""The order in which `find` returns jobs, page by page.

Pages follow the ids, so a walk sees every job that was there from its beginning to its end exactly once, whatever
comes, goes or changes meanwhile.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from stoker.model.errors import InvalidInput
from stoker.model.ids import JobId
from stoker.model.job import Options, Status
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Failed, Rejected
from stoker.model.query import (
    LARGEST_PAGE,
    LONGEST_WALK,
    ORDERS,
    Cancel,
    Delete,
    Page,
    Query,
    Requeue,
    Selection,
    matches,
)
from stoker.model.same_error import fingerprint_of
from stoker.model.time import DAY, HOUR, SECOND
from stoker.testing.conformance.find_helpers import ended_job, walk
from stoker.testing.conformance.harness import Store

# --- order and pages --------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("FIND-12")
async def test_find_orders_by_id_either_way(store: Store) -> None:
    """Newest first unless asked otherwise; priority, due time and status play no part."""
    jobs = await store.insert(
        store.draft(priority=5), store.draft(delay=HOUR), store.draft(priority=-5), store.draft(queue="other")
    )
    await store.finish(await store.take(), Done())
    assert [job.id for job in (await store.engine.operator.find(Query())).jobs] == sorted(jobs, reverse=True)
    assert [job.id for job in (await store.engine.operator.find(Query(order="oldest"))).jobs] == sorted(jobs)


@pytest.mark.spec("FIND-12")
async def test_find_merges_statuses_and_queues_in_one_order(store: Store) -> None:
    """Jobs of several queues and statuses come in one order, across page borders too."""
    jobs: list[JobId] = []
    for n in range(24):
        jobs.append(await store.add(queue=f"q{n % 3}"))
        if n % 4 == 0:
            await store.finish(await store.take(queue=f"q{n % 3}"), Rejected("no"))
    statuses, queues = frozenset({Status.PENDING, Status.DEAD}), frozenset({"q0", "q2"})
    wanted = [job for n, job in enumerate(jobs) if n % 3 != 1]
    assert await walk(store, Query(statuses=statuses, queues=queues, order="oldest", limit=5)) == wanted
    assert await walk(store, Query(statuses=statuses, queues=queues, limit=5)) == wanted[::-1]


@pytest.mark.core
@pytest.mark.spec("FIND-13")
@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [1, 3, 5, 10, 11])
async def test_find_pages_have_no_gaps_and_no_repeats(store: Store, order: Any, limit: int) -> None:
    """Whatever the page size, the pages together are all jobs once, also when the last page is exactly full."""
    jobs = await store.insert(*(store.draft() for _ in range(10)))
    assert await walk(store, Query(order=order, limit=limit)) == sorted(jobs, reverse=order == "newest")


@pytest.mark.spec("FIND-13")
async def test_find_pages_with_a_filter_tested_row_by_row(store: Store) -> None:
    """Pages of a sparse match are complete too."""
    jobs = await store.insert(*(store.draft(payload=b'{"hit":%d}' % (n % 3 == 0)) for n in range(30)))
    assert await walk(store, Query(text='"hit":1', order="oldest", limit=4)) == jobs[::3]


@pytest.mark.core
@pytest.mark.spec("FIND-14")
async def test_find_walk_survives_rows_that_leave_the_filter(store: Store) -> None:
    """A walk whose every page is changed out of the filter still reaches every job once."""
    jobs = await store.insert(*(store.draft() for _ in range(9)))

    async def cancel(page: Page) -> None:
        await store.engine.operator.alter(Selection(tuple(job.id for job in page.jobs)), Cancel())

    assert await walk(store, Query(statuses=frozenset({Status.PENDING}), order="oldest", limit=2), cancel) == jobs
    assert await store.counts() == {Status.CANCELED: 9}


@pytest.mark.spec("FIND-14")
async def test_find_walk_survives_inserts_and_deletes(store: Store) -> None:
    """Jobs that come or go during a walk neither repeat nor hide those that stay; a deleted cursor still holds."""
    jobs = await store.insert(*(store.draft() for _ in range(12)))

    async def churn(page: Page) -> None:
        await store.add()
        if page.jobs:
            await store.engine.operator.alter(Selection((page.jobs[-1].id,)), Delete())

    assert await walk(store, Query(limit=5), churn) == jobs[::-1]


@pytest.mark.spec("FIND-14")
async def test_find_walk_survives_rows_that_change_status(store: Store) -> None:
    """A job that is claimed and finished during an unfiltered walk is seen once."""
    jobs = await store.insert(*(store.draft() for _ in range(12)))

    async def work(_: Page) -> None:
        for claim in await store.claim(n=2):
            await store.finish(claim, Done())

    assert await walk(store, Query(limit=3), work) == jobs[::-1]


@pytest.mark.spec("FIND-15")
async def test_find_cursor_need_not_be_a_stored_job(store: Store) -> None:
    """Any id is a place to go on from: strictly after it in the order asked."""
    before = await store.insert(store.draft(), store.draft())
    between = store.mint()
    after = await store.insert(store.draft(), store.draft())
    oldest = await store.engine.operator.find(Query(order="oldest", cursor=between))
    newest = await store.engine.operator.find(Query(order="newest", cursor=between))
    assert [job.id for job in oldest.jobs] == after
    assert [job.id for job in newest.jobs] == before[::-1]
    past = await store.engine.operator.find(Query(order="oldest", cursor=after[-1]))
    assert (past.jobs, past.cursor) == ([], None)


@pytest.mark.spec("FIND-16")
async def test_find_gives_the_largest_page(store: Store) -> None:
    """The largest page is really that large, and the rest follows."""
    jobs = await store.insert(*(store.draft() for _ in range(LARGEST_PAGE)))
    jobs.append(await store.add())
    page = await store.engine.operator.find(Query(order="oldest", limit=LARGEST_PAGE))
    assert [job.id for job in page.jobs] == jobs[:LARGEST_PAGE]
    assert page.cursor is not None
    rest = await store.engine.operator.find(Query(order="oldest", limit=LARGEST_PAGE, cursor=page.cursor))
    assert [job.id for job in rest.jobs] == jobs[LARGEST_PAGE:]
    assert rest.cursor is None


@pytest.mark.core
@pytest.mark.spec("FIND-17")
async def test_find_says_how_many_records_it_looked_at(store: Store) -> None:
    """A page looked at no fewer records than it shows and at no more than there are."""
    await store.insert(*(store.draft(payload=b'{"n":%d}' % n) for n in range(20)))
    every = await store.engine.operator.find(Query(limit=20))
    assert every.scanned == 20
    sparse = await store.engine.operator.find(Query(text='"n":7', limit=20))
    assert len(sparse.jobs) == 1
    assert 1 <= sparse.scanned <= 20


# --- the order of a time ------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("FIND-20")
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_finished_jobs_by_the_time_of_their_end(store: Store, limit: int) -> None:
    """The latest end first, whatever the status, queue, age or retention; active jobs are not among them."""
    early = [await store.add(queue="late") for _ in range(3)]
    first = await ended_job(store, Done(), options=Options(keep=DAY))
    second = await ended_job(store, Rejected("no"), queue="bulk")
    third = await ended_job(store, Done(), queue="bulk", options=Options(keep=HOUR))
    fourth = await ended_job(store, Done(), options=Options(keep=9 * DAY))
    await store.engine.operator.alter(Selection((early[0],)), Cancel())
    store.pass_time(SECOND)
    fifth = await ended_job(store, Done(), options=Options(keep=HOUR))
    await store.claim("w1", 1, "late")
    everything = [fifth, early[0], fourth, third, second, first]
    assert await walk(store, Query(order="finished", limit=limit)) == everything
    done = Query(order="finished", limit=limit, statuses=frozenset({Status.DONE}))
    assert await walk(store, done) == [fifth, fourth, third, first]
    failed = Query(order="finished", limit=limit, statuses=frozenset({Status.DEAD, Status.CANCELED, Status.RUNNING}))
    assert await walk(store, failed) == [early[0], second]
    narrow = Query(order="finished", limit=limit, queues=frozenset({"bulk"}))
    assert await walk(store, narrow) == [third, second]


@pytest.mark.core
@pytest.mark.spec("FIND-20")
async def test_jobs_that_ended_together_are_ordered_by_id(store: Store) -> None:
    """Higher ids first, and no page leaves one of them out."""
    jobs = await store.insert(*(store.draft() for _ in range(7)))
    claims = await store.claim("w1", 7)
    await store.settle(*(conclude(claim, Done() if n % 2 else Rejected("x")) for n, claim in enumerate(claims)))
    for limit in (1, 2, 3, 7, 8):
        assert await walk(store, Query(order="finished", limit=limit)) == sorted(jobs, reverse=True)


@pytest.mark.core
@pytest.mark.spec("FIND-21")
@pytest.mark.parametrize("order", ["finished", "newest"])
async def test_a_window_over_the_end(store: Store, order: Any) -> None:
    """It includes its beginning and not its end, in every order."""
    start = store.now()
    jobs = [await ended_job(store, Done() if n % 2 else Rejected("no")) for n in range(5)]
    await store.add()
    window = Query(order=order, finished_since=start + SECOND, finished_until=start + 4 * SECOND, limit=2)
    assert await walk(store, window) == [jobs[3], jobs[2], jobs[1]]
    dead = frozenset({Status.DEAD})
    assert await walk(store, Query(order=order, finished_since=start + SECOND, statuses=dead)) == [jobs[4], jobs[2]]
    assert await walk(store, Query(order=order, finished_until=start)) == []


@pytest.mark.core
@pytest.mark.spec("FIND-28")
@pytest.mark.parametrize("order", ["finished", "newest", "oldest"])
async def test_jobs_that_ended_later_are_left_out(store: Store, order: Any) -> None:
    """`ended_by` is included, in every order and beside every other condition; a job without an end stays."""
    jobs = [await ended_job(store, Done() if n % 2 else Rejected("no")) for n in range(4)]
    bound = (await store.job(jobs[1])).finished_at
    waiting = [] if order == "finished" else [await store.add()]
    found = await walk(store, Query(order=order, ended_by=bound, limit=2))
    assert sorted(found) == sorted([*jobs[:2], *waiting])
    dead = Query(order=order, ended_by=bound, statuses=frozenset({Status.DEAD}))
    assert await walk(store, dead) == [jobs[0]]


@pytest.mark.core
@pytest.mark.spec("FIND-22")
@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_waiting_jobs_by_when_they_are_due(store: Store, limit: int) -> None:
    """The soonest first, whatever queue and priority; scheduled and retrying jobs apart or together."""
    late = await store.add(delay=3 * HOUR, queue="a", priority=-5)
    soon = await store.add(delay=HOUR, queue="b")
    middle = await store.add(delay=2 * HOUR, queue="a", priority=7)
    again = await store.add(queue="c")
    await store.finish(await store.take(queue="c"), Failed("later"))
    due = (await store.job(again)).scheduled_at - store.now()
    assert 0 < due < HOUR
    ready = await store.add(queue="a", priority=7)
    await store.add(queue="d")
    await store.take(queue="d")
    await ended_job(store, Done())
    assert await walk(store, Query(order="due", limit=limit)) == [ready, again, soon, middle, late]
    assert await walk(store, Query(order="due", limit=limit, due="later")) == [soon, middle, late]
    assert await walk(store, Query(order="due", limit=limit, due="now")) == [ready]
    retrying = Query(order="due", limit=limit, statuses=frozenset({Status.RETRYING}))
    assert await walk(store, retrying) == [again]
    assert await walk(store, Query(order="due", limit=limit, queues=frozenset({"a"}), due="later")) == [middle, late]


@pytest.mark.spec("FIND-22")
async def test_jobs_that_are_due_together_are_ordered_by_id(store: Store) -> None:
    """Lower ids first, also across queues and priorities, and no page leaves one of them out."""
    drafts = [store.draft(delay=HOUR, queue="ab"[n % 2], priority=n % 3) for n in range(8)]
    jobs = sorted(await store.insert(*drafts[::-1]))
    for limit in (1, 3, 8, 9):
        assert await walk(store, Query(order="due", limit=limit)) == jobs


@pytest.mark.spec("FIND-22")
async def test_many_jobs_inserted_together_are_found_by_due_time(store: Store) -> None:
    """Engines may store such jobs together; each has its place."""
    jobs = sorted(await store.insert(*(store.draft(queue="mail") for _ in range(70))))
    assert await walk(store, Query(order="due", limit=9)) == jobs


@pytest.mark.spec("FIND-25")
async def test_jobs_that_change_during_a_walk_by_time_hide_no_others(store: Store) -> None:
    """Jobs are requeued and deleted between pages; those that stay are found once each."""
    jobs = [await ended_job(store, Rejected("no") if n % 3 else Done()) for n in range(9)]

    async def disturb(page: Page) -> None:
        if page.cursor is not None and page.jobs:
            await store.engine.operator.alter(Selection((page.jobs[0].id,)), Delete())
            await store.engine.operator.alter(Selection((jobs[1],)), Requeue())

    found = await walk(store, Query(order="finished", limit=2), disturb)
    assert found == [*jobs[:1:-1], jobs[0]]
    with pytest.raises(InvalidInput, match="begin without"):
        await store.engine.operator.find(Query(order="finished", cursor=jobs[0]))


@pytest.mark.spec("FIND-18")
async def test_find_gives_a_page_up_after_the_longest_walk(store: Store) -> None:
    """A match behind very many others is reached over pages that carry a cursor, none of which walked too far."""
    needle = await store.add(payload=b'{"needle":1}')
    for _ in range(LONGEST_WALK // 1_000 + 1):
        await store.insert(*(store.draft() for _ in range(1_000)))
    looked: list[int] = []

    async def note(page: Page) -> None:
        looked.append(page.scanned)

    assert await walk(store, Query(text="needle", limit=10), note) == [needle]
    assert all(scanned <= LONGEST_WALK for scanned in looked)
    assert len(looked) <= 4


@pytest.mark.spec("FIND-19")
@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_jobs_that_wait_for_a_retry_are_found_behind_many_that_wait(
    store: Store, order: Literal["newest", "oldest"]
) -> None:
    """Pages of them are full and in order, however many others wait."""
    retrying = await store.insert(*(store.draft() for _ in range(6)))
    for claim in await store.claim(n=6):
        await store.finish(claim, Failed("boom", after=HOUR))
    await store.insert(*(store.draft() for _ in range(300)))
    page = await store.engine.operator.find(Query(statuses=frozenset({Status.RETRYING}), order=order, limit=4))
    expected = sorted(retrying, reverse=order == "newest")
    assert [job.id for job in page.jobs] == expected[:4]
    rest = await store.engine.operator.find(
        Query(statuses=frozenset({Status.RETRYING}), order=order, limit=4, cursor=page.cursor)
    )
    assert [job.id for job in rest.jobs] == expected[4:]


@pytest.mark.core
@pytest.mark.spec("FIND-26")
async def test_find_passes_over_what_cannot_match_and_over_nothing_else(store: Store) -> None:
    """Every order and filter finds what a look at every record finds; texts in any alphabet, whatever the case."""
    texts = ["plain", "PLAIN", "Straße", "STRASSE", "\u212aelvin", "kelvin", "\\u00e9", "%_*[a]'"]
    for n, text in enumerate(texts):
        payload = msgspec.json.encode({"text": text})
        traits = {"queue": f"q{n % 2}", "tenant": f"t{n % 3}", "delay": n % 2 * HOUR}
        await store.add(kind=f"k{n % 2}", payload=payload, **traits)
        store.pass_time(SECOND)
    for n in range(2):
        claim = await store.take(queue="q0")
        await store.finish(claim, Failed(f"Broken PIPE {n}", retry=False))
    everything = (await store.engine.operator.find(Query(limit=100))).jobs
    assert len(everything) == len(texts)
    start = min(job.created_at for job in everything)
    needles = ["plain", "ss", "k", "E", "[a]", "%", "*", "'", "ß", "text", "pipe", "nowhere"]
    asked: list[dict[str, Any]] = [{part: needle} for needle in needles for part in ("text", "payload", "error")]
    asked += [{"queues": frozenset({"q1"})}, {"kinds": frozenset({"k0"}), "tenant": "t0"}, {"tenant": "t9"}]
    asked += [{"since": start + SECOND, "until": start + 4 * SECOND}, {"same_error": fingerprint_of("Broken PIPE 1")}]
    for one in asked:
        for order in ORDERS:
            query = Query(**one, order=order, limit=100)
            wanted = {job.id for job in everything if matches(job, query, store.now())}
            assert {job.id for job in (await store.engine.operator.find(query)).jobs} == wanted, query


@pytest.mark.core
@pytest.mark.spec("FIND-27")
@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_what_failed_is_found_together_however_many_others_there_are(
    store: Store, order: Literal["newest", "oldest"]
) -> None:
    """Dead, canceled and retrying jobs of several queues come in one order, page after page, and no other is read."""
    failed: list[JobId] = []
    for n in range(12):
        queue = f"q{n % 5}"
        await store.insert(*(store.draft(queue=queue) for _ in range(3)))
        claims = await store.claim(n=3, queue=queue)
        failed += [claims[0].id, claims[1].id]
        await store.finish(claims[0], Failed("boom", after=HOUR) if n % 3 else Rejected("boom"))
        await store.finish(claims[1], Rejected("boom") if n % 2 else Failed("boom", after=HOUR))
        await store.finish(claims[2], Done())
        canceled = await store.add(queue=queue)
        await store.engine.operator.alter(Selection((canceled,)), Cancel())
        failed.append(canceled)
        await store.insert(*(store.draft(queue=f"waiting{n % 5}") for _ in range(5)))
    statuses = frozenset({Status.DEAD, Status.RETRYING, Status.CANCELED})
    found = await walk(store, Query(statuses=statuses, order=order, limit=7))
    assert found == sorted(failed, reverse=order == "newest")
    some = await store.engine.operator.find(
        Query(statuses=statuses, queues=frozenset({"q1", "q4"}), order=order, limit=50)
    )
    assert {job.queue for job in some.jobs} == {"q1", "q4"}
    assert len(some.jobs) == 15
