"""Looking jobs up: `get` by id and `find` page by page.

Pages follow the ids, so a walk sees every job that was there from its beginning to its end exactly once, whatever
comes, goes or changes meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
from stoker.model.same_error import normalized_error
from stoker.model.time import DAY, HOUR, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.harness import Store


async def _walk(store: Store, query: Query, between: Callable[[Page], Awaitable[object]] | None = None) -> list[JobId]:
    """The ids of all pages, in the order they came; `between` runs after each page."""
    found: list[JobId] = []
    for _ in range(10_000):
        page = await store.engine.find(query)
        assert len(page.jobs) <= query.limit
        assert len(page.jobs) <= page.scanned <= LONGEST_WALK
        found += [job.id for job in page.jobs]
        if between is not None:
            await between(page)
        if page.cursor is None:
            return found
        query = _after(query, page.cursor)
    raise AssertionError("the walk does not end")


def _after(query: Query, cursor: bytes) -> Query:
    return Query(
        **{field: getattr(query, field) for field in query.__struct_fields__ if field != "cursor"}, cursor=cursor
    )


async def _ids(store: Store, **filters: Any) -> list[JobId]:
    """Everything a filter finds, oldest first."""
    return await _walk(store, Query(order="oldest", limit=100, **filters))


async def _dead(store: Store, error: str = "broken", **options: Any) -> JobId:
    options.setdefault("queue", "graves")
    job = await store.add(**options)
    await store.finish(await store.take(queue=options["queue"]), Rejected(error))
    return job


# --- get --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("FIND-01")
async def test_get_answers_in_the_order_asked(store: Store) -> None:
    """Records come back in the order of the ids, also when that is not the order of creation."""
    a, b, c = await store.insert(*(store.draft(kind) for kind in ("one", "two", "three")))
    found = await store.engine.get([c, a, b, a])
    assert [job and job.id for job in found] == [c, a, b, a]


@pytest.mark.core
@pytest.mark.spec("FIND-01")
async def test_get_leaves_a_gap_for_what_is_missing(store: Store) -> None:
    """An id without a record gives None in its position and does not affect the others."""
    job = await store.add()
    missing, found = await store.engine.get([store.mint(), job])
    assert missing is None
    assert found is not None
    assert found.id == job


@pytest.mark.spec("FIND-01")
async def test_get_of_nothing_is_nothing(store: Store) -> None:
    """No ids, no records."""
    await store.add()
    assert await store.engine.get([]) == []


@pytest.mark.core
@pytest.mark.spec("FIND-02")
async def test_get_shows_the_whole_draft(store: Store) -> None:
    """Every field of a draft comes back as it went in, the payload byte for byte."""
    payload = b'{"n": 12345678901234567890, "empty": [], "f": 1.10, "text": "\xc3\xa4"}'
    draft = store.draft(
        "mail.send",
        payload=payload,
        queue="mail",
        priority=-7,
        delay=HOUR,
        attempts=9,
        unique=Unique("user 7", scope=store.scope, hold="retrying"),
        tenant="acme & söhne",
        options=Options(timeout=SECOND, keep=HOUR, metadata={"trace": "4711"}),
    )
    await store.insert(draft)
    job = await store.job(draft.id)
    assert (job.kind, job.payload, job.queue, job.priority) == ("mail.send", payload, "mail", -7)
    assert (job.budget, job.attempts, job.base, job.crashes) == (9, 0, 0, 0)
    assert (job.unique, job.tenant, job.options) == (draft.unique, draft.tenant, draft.options)
    assert (job.created_at, job.scheduled_at) == (store.now(), store.now() + HOUR)
    assert (job.status, job.worker, job.started_at, job.finished_at) == (Status.PENDING, None, None, None)
    assert (job.last_error, job.history, job.result, job.successor) == (None, (), None, None)


# --- filters ----------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("FIND-03")
async def test_find_in_an_empty_store_is_an_empty_page(store: Store) -> None:
    """No jobs: an empty page without a cursor."""
    page = await store.engine.find(Query())
    assert (page.jobs, page.cursor) == ([], None)


@pytest.mark.spec("FIND-03")
async def test_find_without_a_match_is_an_empty_page(store: Store) -> None:
    """A filter that no job meets gives an empty page without a cursor."""
    await store.add()
    for query in (
        Query(kinds=frozenset({"other"})),
        Query(queues=frozenset({"other"})),
        Query(statuses=frozenset({Status.DEAD})),
        Query(tenant="other"),
        Query(key="other"),
        Query(text="other"),
        Query(due="later"),
        Query(until=store.now()),
    ):
        page = await store.engine.find(query)
        assert (page.jobs, page.cursor) == ([], None), query


@pytest.mark.core
@pytest.mark.spec("FIND-04")
async def test_find_shows_the_same_record_as_get(store: Store) -> None:
    """A page holds whole records, not summaries."""
    job = await store.add(payload=b'{"a":1}', tenant="t", unique=Unique("k"), options=Options(timeout=SECOND))
    await store.finish(await store.take(), Failed("no luck", after=SECOND))
    page = await store.engine.find(Query())
    assert page.jobs == [await store.job(job)]


@pytest.mark.core
@pytest.mark.spec("FIND-05")
async def test_find_filters_by_status(store: Store) -> None:
    """One or several statuses; none means all."""
    pending = await store.add()
    dead = await _dead(store)
    done = await store.add(queue="other")
    await store.finish(await store.take(queue="other"), Done())
    assert await _ids(store, statuses=frozenset({Status.DEAD})) == [dead]
    assert await _ids(store, statuses=frozenset({Status.DEAD, Status.PENDING})) == sorted([pending, dead])
    assert await _ids(store) == sorted([pending, dead, done])


@pytest.mark.core
@pytest.mark.spec("FIND-05")
async def test_find_follows_a_status_as_it_changes(store: Store) -> None:
    """A job is found under the status it has now and under no other."""
    job = await store.add()

    async def where() -> set[Status]:
        return {status for status in Status if await _ids(store, statuses=frozenset({status})) == [job]}

    assert await where() == {Status.PENDING}
    claim = await store.take()
    assert await where() == {Status.RUNNING}
    await store.finish(claim, Failed("later", after=SECOND))
    assert await where() == {Status.RETRYING}
    await store.engine.alter(Selection((job,)), Cancel())
    assert await where() == {Status.CANCELED}
    await store.engine.alter(Selection((job,)), Requeue())
    assert await where() == {Status.PENDING}
    await store.finish(await store.take(), Done())
    assert await where() == {Status.DONE}


@pytest.mark.spec("FIND-06")
async def test_find_filters_by_queue(store: Store) -> None:
    """One or several queues."""
    a, b, c = await store.insert(*(store.draft(queue=queue) for queue in ("a", "b", "c")))
    assert await _ids(store, queues=frozenset({"b"})) == [b]
    assert await _ids(store, queues=frozenset({"c", "a"})) == [a, c]


@pytest.mark.spec("FIND-06")
async def test_find_filters_by_kind(store: Store) -> None:
    """One or several kinds, matched as a whole and by case."""
    a, b, c = await store.insert(*(store.draft(kind) for kind in ("send", "send.more", "Send")))
    assert await _ids(store, kinds=frozenset({"send"})) == [a]
    assert await _ids(store, kinds=frozenset({"Send", "send.more"})) == [b, c]


@pytest.mark.spec("FIND-06")
async def test_find_filters_by_tenant(store: Store) -> None:
    """Only the tenant's own jobs; jobs without a tenant are not among them."""
    mine = await store.add(tenant="acme")
    await store.add(tenant="acme2")
    await store.add()
    assert await _ids(store, tenant="acme") == [mine]


@pytest.mark.core
@pytest.mark.spec("FIND-07")
async def test_find_by_key_shows_every_job_that_ever_had_it(store: Store) -> None:
    """A key finds its holder, finished jobs that held it before, and every scope and kind."""
    first = await store.add(unique=Unique("img:7"))
    await store.finish(await store.take(), Done())
    second = await store.add(unique=Unique("img:7"))
    third = await store.add("other", unique=Unique("img:7", scope=store.scope))
    await store.add(unique=Unique("img:70"))
    await store.add()
    assert await _ids(store, key="img:7") == [first, second, third]


@pytest.mark.core
@pytest.mark.spec("FIND-08")
async def test_find_splits_pending_by_due_time(store: Store) -> None:
    """`now` shows what is ready, due exactly now included; `later` what is scheduled; nothing but pending jobs."""
    ready = await store.add()
    later = await store.add(delay=SECOND)
    await store.add(queue="busy")
    await store.finish(await store.take(queue="busy"), Failed("retrying is not pending", after=HOUR))
    assert await _ids(store, due="now") == [ready]
    assert await _ids(store, due="later") == [later]
    store.pass_time(SECOND - 1)
    assert await _ids(store, due="later") == [later]
    store.pass_time(1)
    assert await _ids(store, due="now") == [ready, later]
    assert await _ids(store, due="later") == []


@pytest.mark.core
@pytest.mark.spec("FIND-09")
async def test_find_window_is_half_open(store: Store) -> None:
    """`since` is included, `until` is not."""
    start = store.now()
    a = await store.add()
    store.pass_time(SECOND)
    b = await store.add()
    store.pass_time(SECOND)
    c = await store.add()
    assert await _ids(store, since=start + SECOND) == [b, c]
    assert await _ids(store, since=start + SECOND + 1) == [c]
    assert await _ids(store, until=start + SECOND) == [a]
    assert await _ids(store, since=start, until=start + 2 * SECOND) == [a, b]
    assert await _ids(store, since=start + SECOND, until=start + SECOND) == []


@pytest.mark.spec("FIND-09")
async def test_find_window_goes_by_the_time_of_storing(store: Store) -> None:
    """A job counts from when it was stored, not from when its id was minted."""
    draft = store.draft()
    store.pass_time(HOUR)
    stored = store.now()
    await store.insert(draft)
    assert await _ids(store, since=stored) == [draft.id]
    assert await _ids(store, until=stored) == []


@pytest.mark.core
@pytest.mark.spec("FIND-10")
async def test_find_text_looks_into_the_payload(store: Store) -> None:
    """Text is found anywhere in the payload, whatever its case."""
    job = await store.add(payload=b'{"to":"Ann.Smith@example.com"}')
    await store.add(payload=b'{"to":"bob@example.com"}')
    for text in ("ann", "SMITH@", '"to":"ann'):
        assert await _ids(store, text=text) == [job], text
    assert len(await _ids(store, text="EXAMPLE")) == 2


@pytest.mark.core
@pytest.mark.spec("FIND-10")
async def test_find_text_looks_into_the_last_error(store: Store) -> None:
    """Text is found in the last error, and no longer once another error took its place."""
    job = await _dead(store, "SMTPError: Mailbox full")
    await store.add(queue="graves", payload=b'{"a":1}')
    assert await _ids(store, text="mailbox FULL") == [job]
    await store.engine.alter(Selection((job,)), Requeue())
    claim = await store.take(queue="graves")
    assert claim.id == job
    await store.finish(claim, Rejected("greylisted"))
    assert await _ids(store, text="mailbox full") == []
    assert await _ids(store, text="Greylisted") == [job]


@pytest.mark.spec("FIND-10")
async def test_find_text_ignores_case_beyond_ascii(store: Store) -> None:
    """Letters of any alphabet are compared without case."""
    job = await store.add(payload='{"name":"Ärger in der STRASSE Ω"}'.encode())
    for text in ("ärger", "ÄRGER", "straße", "ω"):
        assert await _ids(store, text=text) == [job], text


@pytest.mark.spec("FIND-10")
async def test_find_text_takes_every_character_literally(store: Store) -> None:
    """Per cent signs, underscores, stars, brackets and backslashes in a text are no patterns."""
    job = await store.add(payload=b'{"a":"50%_off*[x]?\\\\"}')
    await store.add(payload=b'{"a":"500xoff"}')
    for text in ("50%", "%_o", "off*", "[x]", "]?", "\\"):
        assert await _ids(store, text=text) == [job], text


@pytest.mark.core
@pytest.mark.spec("FIND-11")
async def test_find_combines_filters(store: Store) -> None:
    """A job has to meet every filter of a query."""
    wanted = await store.add("send", queue="mail", tenant="t", payload=b'{"x":"yes"}', unique=Unique("k"))
    await store.add("send", queue="mail", tenant="t", payload=b'{"x":"no"}')
    await store.add("send", queue="mail", tenant="u", payload=b'{"x":"yes"}')
    await store.add("send", queue="post", tenant="t", payload=b'{"x":"yes"}')
    await store.add("push", queue="mail", tenant="t", payload=b'{"x":"yes"}')
    await store.add("send", queue="mail", tenant="t", payload=b'{"x":"yes"}', delay=HOUR)
    filters: dict[str, Any] = {
        "statuses": frozenset({Status.PENDING}),
        "queues": frozenset({"mail"}),
        "kinds": frozenset({"send"}),
        "tenant": "t",
        "due": "now",
        "text": "YES",
        "since": store.now(),
    }
    assert await _ids(store, **filters) == [wanted]
    assert await _ids(store, **filters, key="k") == [wanted]


# --- order and pages --------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("FIND-12")
async def test_find_orders_by_id_either_way(store: Store) -> None:
    """Newest first unless asked otherwise; priority, due time and status play no part."""
    jobs = await store.insert(
        store.draft(priority=5), store.draft(delay=HOUR), store.draft(priority=-5), store.draft(queue="other")
    )
    await store.finish(await store.take(), Done())
    assert [job.id for job in (await store.engine.find(Query())).jobs] == sorted(jobs, reverse=True)
    assert [job.id for job in (await store.engine.find(Query(order="oldest"))).jobs] == sorted(jobs)


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
    assert await _walk(store, Query(statuses=statuses, queues=queues, order="oldest", limit=5)) == wanted
    assert await _walk(store, Query(statuses=statuses, queues=queues, limit=5)) == wanted[::-1]


@pytest.mark.core
@pytest.mark.spec("FIND-13")
@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("limit", [1, 3, 5, 10, 11])
async def test_find_pages_have_no_gaps_and_no_repeats(store: Store, order: Any, limit: int) -> None:
    """Whatever the page size, the pages together are all jobs once, also when the last page is exactly full."""
    jobs = await store.insert(*(store.draft() for _ in range(10)))
    assert await _walk(store, Query(order=order, limit=limit)) == sorted(jobs, reverse=order == "newest")


@pytest.mark.spec("FIND-13")
async def test_find_pages_with_a_filter_tested_row_by_row(store: Store) -> None:
    """Pages of a sparse match are complete too."""
    jobs = await store.insert(*(store.draft(payload=b'{"hit":%d}' % (n % 3 == 0)) for n in range(30)))
    assert await _walk(store, Query(text='"hit":1', order="oldest", limit=4)) == jobs[::3]


@pytest.mark.core
@pytest.mark.spec("FIND-14")
async def test_find_walk_survives_rows_that_leave_the_filter(store: Store) -> None:
    """A walk whose every page is changed out of the filter still reaches every job once."""
    jobs = await store.insert(*(store.draft() for _ in range(9)))

    async def cancel(page: Page) -> None:
        await store.engine.alter(Selection(tuple(job.id for job in page.jobs)), Cancel())

    assert await _walk(store, Query(statuses=frozenset({Status.PENDING}), order="oldest", limit=2), cancel) == jobs
    assert await store.counts() == {Status.CANCELED: 9}


@pytest.mark.spec("FIND-14")
async def test_find_walk_survives_inserts_and_deletes(store: Store) -> None:
    """Jobs that come or go during a walk neither repeat nor hide those that stay; a deleted cursor still holds."""
    jobs = await store.insert(*(store.draft() for _ in range(12)))

    async def churn(page: Page) -> None:
        await store.add()
        if page.jobs:
            await store.engine.alter(Selection((page.jobs[-1].id,)), Delete())

    assert await _walk(store, Query(limit=5), churn) == jobs[::-1]


@pytest.mark.spec("FIND-14")
async def test_find_walk_survives_rows_that_change_status(store: Store) -> None:
    """A job that is claimed and finished during an unfiltered walk is seen once."""
    jobs = await store.insert(*(store.draft() for _ in range(12)))

    async def work(_: Page) -> None:
        for claim in await store.claim(n=2):
            await store.finish(claim, Done())

    assert await _walk(store, Query(limit=3), work) == jobs[::-1]


@pytest.mark.spec("FIND-15")
async def test_find_cursor_need_not_be_a_stored_job(store: Store) -> None:
    """Any id is a place to go on from: strictly after it in the order asked."""
    before = await store.insert(store.draft(), store.draft())
    between = store.mint()
    after = await store.insert(store.draft(), store.draft())
    oldest = await store.engine.find(Query(order="oldest", cursor=between))
    newest = await store.engine.find(Query(order="newest", cursor=between))
    assert [job.id for job in oldest.jobs] == after
    assert [job.id for job in newest.jobs] == before[::-1]
    past = await store.engine.find(Query(order="oldest", cursor=after[-1]))
    assert (past.jobs, past.cursor) == ([], None)


@pytest.mark.spec("FIND-16")
async def test_find_gives_the_largest_page(store: Store) -> None:
    """The largest page is really that large, and the rest follows."""
    jobs = await store.insert(*(store.draft() for _ in range(LARGEST_PAGE)))
    jobs.append(await store.add())
    page = await store.engine.find(Query(order="oldest", limit=LARGEST_PAGE))
    assert [job.id for job in page.jobs] == jobs[:LARGEST_PAGE]
    assert page.cursor is not None
    rest = await store.engine.find(Query(order="oldest", limit=LARGEST_PAGE, cursor=page.cursor))
    assert [job.id for job in rest.jobs] == jobs[LARGEST_PAGE:]
    assert rest.cursor is None


@pytest.mark.core
@pytest.mark.spec("FIND-17")
async def test_find_says_how_many_records_it_looked_at(store: Store) -> None:
    """A page looked at no fewer records than it shows and at no more than there are."""
    await store.insert(*(store.draft(payload=b'{"n":%d}' % n) for n in range(20)))
    every = await store.engine.find(Query(limit=20))
    assert every.scanned == 20
    sparse = await store.engine.find(Query(text='"n":7', limit=20))
    assert len(sparse.jobs) == 1
    assert 1 <= sparse.scanned <= 20


# --- the order of a time ------------------------------------------------------------------------------------------


async def _ended(store: Store, outcome: Any, queue: str = "mail", **options: Any) -> JobId:
    job = await store.add(queue=queue, **options)
    await store.finish(await store.take(queue=queue), outcome)
    store.pass_time(SECOND)
    return job


@pytest.mark.core
@pytest.mark.spec("FIND-20")
@pytest.mark.parametrize("limit", [1, 2, 3, 100])
async def test_finished_jobs_by_the_time_of_their_end(store: Store, limit: int) -> None:
    """The latest end first, whatever the status, queue, age or retention; active jobs are not among them."""
    early = [await store.add(queue="late") for _ in range(3)]
    first = await _ended(store, Done(), options=Options(keep=DAY))
    second = await _ended(store, Rejected("no"), queue="bulk")
    third = await _ended(store, Done(), queue="bulk", options=Options(keep=HOUR))
    fourth = await _ended(store, Done(), options=Options(keep=9 * DAY))
    await store.engine.alter(Selection((early[0],)), Cancel())
    store.pass_time(SECOND)
    fifth = await _ended(store, Done(), options=Options(keep=HOUR))
    await store.claim("w1", 1, "late")
    everything = [fifth, early[0], fourth, third, second, first]
    assert await _walk(store, Query(order="finished", limit=limit)) == everything
    done = Query(order="finished", limit=limit, statuses=frozenset({Status.DONE}))
    assert await _walk(store, done) == [fifth, fourth, third, first]
    failed = Query(order="finished", limit=limit, statuses=frozenset({Status.DEAD, Status.CANCELED, Status.RUNNING}))
    assert await _walk(store, failed) == [early[0], second]
    narrow = Query(order="finished", limit=limit, queues=frozenset({"bulk"}))
    assert await _walk(store, narrow) == [third, second]


@pytest.mark.core
@pytest.mark.spec("FIND-20")
async def test_jobs_that_ended_together_are_ordered_by_id(store: Store) -> None:
    """Higher ids first, and no page leaves one of them out."""
    jobs = await store.insert(*(store.draft() for _ in range(7)))
    claims = await store.claim("w1", 7)
    await store.settle(*(conclude(claim, Done() if n % 2 else Rejected("x")) for n, claim in enumerate(claims)))
    for limit in (1, 2, 3, 7, 8):
        assert await _walk(store, Query(order="finished", limit=limit)) == sorted(jobs, reverse=True)


@pytest.mark.core
@pytest.mark.spec("FIND-21")
@pytest.mark.parametrize("order", ["finished", "newest"])
async def test_a_window_over_the_end(store: Store, order: Any) -> None:
    """It includes its beginning and not its end, in every order."""
    start = store.now()
    jobs = [await _ended(store, Done() if n % 2 else Rejected("no")) for n in range(5)]
    await store.add()
    window = Query(order=order, finished_since=start + SECOND, finished_until=start + 4 * SECOND, limit=2)
    assert await _walk(store, window) == [jobs[3], jobs[2], jobs[1]]
    dead = frozenset({Status.DEAD})
    assert await _walk(store, Query(order=order, finished_since=start + SECOND, statuses=dead)) == [jobs[4], jobs[2]]
    assert await _walk(store, Query(order=order, finished_until=start)) == []


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
    await _ended(store, Done())
    assert await _walk(store, Query(order="due", limit=limit)) == [ready, again, soon, middle, late]
    assert await _walk(store, Query(order="due", limit=limit, due="later")) == [soon, middle, late]
    assert await _walk(store, Query(order="due", limit=limit, due="now")) == [ready]
    retrying = Query(order="due", limit=limit, statuses=frozenset({Status.RETRYING}))
    assert await _walk(store, retrying) == [again]
    assert await _walk(store, Query(order="due", limit=limit, queues=frozenset({"a"}), due="later")) == [middle, late]


@pytest.mark.spec("FIND-22")
async def test_jobs_that_are_due_together_are_ordered_by_id(store: Store) -> None:
    """Lower ids first, also across queues and priorities, and no page leaves one of them out."""
    drafts = [store.draft(delay=HOUR, queue="ab"[n % 2], priority=n % 3) for n in range(8)]
    jobs = sorted(await store.insert(*drafts[::-1]))
    for limit in (1, 3, 8, 9):
        assert await _walk(store, Query(order="due", limit=limit)) == jobs


@pytest.mark.spec("FIND-22")
async def test_many_jobs_inserted_together_are_found_by_due_time(store: Store) -> None:
    """Engines may store such jobs together; each has its place."""
    jobs = sorted(await store.insert(*(store.draft(queue="mail") for _ in range(70))))
    assert await _walk(store, Query(order="due", limit=9)) == jobs


@pytest.mark.core
@pytest.mark.spec("FIND-23")
async def test_find_by_error_payload_and_attempts(store: Store) -> None:
    """Error and payload apart, ignoring case; attempts between two numbers."""
    twice = await store.add(payload=b'"needle"', queue="mail")
    await store.finish(await store.take(queue="mail"), Failed("first"))
    store.pass_time(HOUR)
    await store.finish(await store.take(queue="mail"), Rejected("Timeout"))
    once = await _ended(store, Rejected("the needle"), payload=b'"timeout"')
    waits = await store.add(payload=b'"needle"', queue="mail")
    assert await _ids(store, error="TIMEOUT") == [twice]
    assert await _ids(store, payload="TIMEOUT") == [once]
    assert await _ids(store, text="timeout") == [twice, once]
    assert await _ids(store, attempts_from=1) == [twice, once]
    assert await _ids(store, attempts_from=2) == [twice]
    assert await _ids(store, attempts_to=0) == [waits]
    assert await _ids(store, attempts_from=1, attempts_to=1, error="needle") == [once]


@pytest.mark.core
@pytest.mark.spec("FIND-24")
async def test_find_jobs_with_the_same_error(store: Store) -> None:
    """Their first lines agree but for ids, numbers and quoted text."""
    same = [await _ended(store, Rejected(f"Timeout: order {n} of '{n}'\nmore {n}")) for n in range(3)]
    await _ended(store, Rejected("Refused: order 1 of '1'"))
    await _ended(store, Done())
    wanted = normalized_error("Timeout: order 9 of 'x'")
    assert await _ids(store, same_error=wanted) == same
    assert await _walk(store, Query(order="finished", same_error=wanted, limit=2)) == same[::-1]


@pytest.mark.spec("FIND-25")
async def test_jobs_that_change_during_a_walk_by_time_hide_no_others(store: Store) -> None:
    """Jobs are requeued and deleted between pages; those that stay are found once each."""
    jobs = [await _ended(store, Rejected("no") if n % 3 else Done()) for n in range(9)]

    async def disturb(page: Page) -> None:
        if page.cursor is not None and page.jobs:
            await store.engine.alter(Selection((page.jobs[0].id,)), Delete())
            await store.engine.alter(Selection((jobs[1],)), Requeue())

    found = await _walk(store, Query(order="finished", limit=2), disturb)
    assert found == [*jobs[:1:-1], jobs[0]]
    with pytest.raises(InvalidInput, match="begin without"):
        await store.engine.find(Query(order="finished", cursor=jobs[0]))


@pytest.mark.spec("FIND-18")
async def test_find_gives_a_page_up_after_the_longest_walk(store: Store) -> None:
    """A match behind very many others is reached over pages that carry a cursor, none of which walked too far."""
    needle = await store.add(payload=b'{"needle":1}')
    for _ in range(LONGEST_WALK // 1_000 + 1):
        await store.insert(*(store.draft() for _ in range(1_000)))
    looked: list[int] = []

    async def note(page: Page) -> None:
        looked.append(page.scanned)

    assert await _walk(store, Query(text="needle", limit=10), note) == [needle]
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
    page = await store.engine.find(Query(statuses=frozenset({Status.RETRYING}), order=order, limit=4))
    expected = sorted(retrying, reverse=order == "newest")
    assert [job.id for job in page.jobs] == expected[:4]
    rest = await store.engine.find(
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
    everything = (await store.engine.find(Query(limit=100))).jobs
    assert len(everything) == len(texts)
    start = min(job.created_at for job in everything)
    needles = ["plain", "ss", "k", "E", "[a]", "%", "*", "'", "ß", "text", "pipe", "nowhere"]
    asked: list[dict[str, Any]] = [{part: needle} for needle in needles for part in ("text", "payload", "error")]
    asked += [{"queues": frozenset({"q1"})}, {"kinds": frozenset({"k0"}), "tenant": "t0"}, {"tenant": "t9"}]
    asked += [{"since": start + SECOND, "until": start + 4 * SECOND}, {"same_error": normalized_error("Broken PIPE 1")}]
    for one in asked:
        for order in ORDERS:
            query = Query(**one, order=order, limit=100)
            wanted = {job.id for job in everything if matches(job, query, store.now())}
            assert {job.id for job in (await store.engine.find(query)).jobs} == wanted, query
