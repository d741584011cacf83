"""Looking jobs up: `get` by id, and what `find` finds by its filters."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.job import Note, Options, Status, chain
from stoker.model.outcome import Done, Failed, Rejected
from stoker.model.query import (
    Cancel,
    Clone,
    Query,
    Requeue,
    Selection,
)
from stoker.model.same_error import fingerprint_of
from stoker.model.time import HOUR, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.find_helpers import dead_job, ended_job, found_ids, walk
from stoker.testing.conformance.group_helpers import AFTER, add, close, make
from stoker.testing.conformance.harness import Store

# --- get --------------------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.spec("FIND-01")
async def test_get_answers_in_the_order_asked(store: Store) -> None:
    """Records come back in the order of the ids, also when that is not the order of creation."""
    a, b, c = await store.insert(*(store.draft(kind) for kind in ("one", "two", "three")))
    found = await store.engine.operator.get([c, a, b, a])
    assert [job and job.id for job in found] == [c, a, b, a]


@pytest.mark.core
@pytest.mark.spec("FIND-01")
async def test_get_leaves_a_gap_for_what_is_missing(store: Store) -> None:
    """An id without a record gives None in its position and does not affect the others."""
    job = await store.add()
    missing, found = await store.engine.operator.get([store.mint(), job])
    assert missing is None
    assert found is not None
    assert found.id == job


@pytest.mark.spec("FIND-01")
async def test_get_of_nothing_is_nothing(store: Store) -> None:
    """No ids, no records."""
    await store.add()
    assert await store.engine.operator.get([]) == []


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
    job = await store.job(draft.job_id)
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
    page = await store.engine.operator.find(Query())
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
        page = await store.engine.operator.find(query)
        assert (page.jobs, page.cursor) == ([], None), query


@pytest.mark.core
@pytest.mark.spec("FIND-04")
async def test_find_shows_the_same_record_as_get(store: Store) -> None:
    """A page holds whole records, not summaries."""
    job = await store.add(payload=b'{"a":1}', tenant="t", unique=Unique("k"), options=Options(timeout=SECOND))
    await store.finish(await store.take(), Failed("no luck", after=SECOND))
    page = await store.engine.operator.find(Query())
    assert page.jobs == [await store.job(job)]


@pytest.mark.core
@pytest.mark.spec("FIND-05")
async def test_find_filters_by_status(store: Store) -> None:
    """One or several statuses; none means all."""
    pending = await store.add()
    dead = await dead_job(store)
    done = await store.add(queue="other")
    await store.finish(await store.take(queue="other"), Done())
    assert await found_ids(store, statuses=frozenset({Status.DEAD})) == [dead]
    assert await found_ids(store, statuses=frozenset({Status.DEAD, Status.PENDING})) == sorted([pending, dead])
    assert await found_ids(store) == sorted([pending, dead, done])


@pytest.mark.core
@pytest.mark.spec("FIND-05")
async def test_find_follows_a_status_as_it_changes(store: Store) -> None:
    """A job is found under the status it has now and under no other."""
    job = await store.add()

    async def where() -> set[Status]:
        return {status for status in Status if await found_ids(store, statuses=frozenset({status})) == [job]}

    assert await where() == {Status.PENDING}
    claim = await store.take()
    assert await where() == {Status.RUNNING}
    await store.finish(claim, Failed("later", after=SECOND))
    assert await where() == {Status.RETRYING}
    await store.engine.operator.alter(Selection((job,)), Cancel())
    assert await where() == {Status.CANCELED}
    await store.engine.operator.alter(Selection((job,)), Requeue())
    assert await where() == {Status.PENDING}
    await store.finish(await store.take(), Done())
    assert await where() == {Status.DONE}


@pytest.mark.spec("FIND-06")
async def test_find_filters_by_queue(store: Store) -> None:
    """One or several queues."""
    a, b, c = await store.insert(*(store.draft(queue=queue) for queue in ("a", "b", "c")))
    assert await found_ids(store, queues=frozenset({"b"})) == [b]
    assert await found_ids(store, queues=frozenset({"c", "a"})) == [a, c]


@pytest.mark.spec("FIND-06")
async def test_find_filters_by_kind(store: Store) -> None:
    """One or several kinds, matched as a whole and by case."""
    a, b, c = await store.insert(*(store.draft(kind) for kind in ("send", "send.more", "Send")))
    assert await found_ids(store, kinds=frozenset({"send"})) == [a]
    assert await found_ids(store, kinds=frozenset({"Send", "send.more"})) == [b, c]


@pytest.mark.spec("FIND-06")
async def test_find_filters_by_tenant(store: Store) -> None:
    """Only the tenant's own jobs; jobs without a tenant are not among them."""
    mine = await store.add(tenant="acme")
    await store.add(tenant="acme2")
    await store.add()
    assert await found_ids(store, tenant="acme") == [mine]


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
    assert await found_ids(store, key="img:7") == [first, second, third]


@pytest.mark.core
@pytest.mark.spec("FIND-30")
async def test_find_by_group_shows_its_members(store: Store) -> None:
    """Members in every status, those that joined later and those behind others; no job of another group or of none."""
    first, second = (store.draft(options=Options(metadata={"group": "not the group's"})) for _ in range(2))
    last = store.draft("behind")
    group, _ = await make(store, chain(first, last), second, sealed=False)
    other, [theirs] = await make(store, store.draft(queue="other"))
    await store.add(queue="none")
    await store.finish(await store.take(), Done())
    await store.finish(await store.take(), Rejected("no luck"))
    [late] = await add(store, group, store.draft())
    members = sorted([first.job_id, second.job_id, last.job_id, late])
    assert await found_ids(store, group=group) == members
    assert await walk(store, Query(group=group, limit=2)) == members[::-1]
    assert await found_ids(store, group=group, statuses=frozenset({Status.DEAD})) == [second.job_id]
    assert await found_ids(store, group=group, kinds=frozenset({"behind"})) == [last.job_id]
    assert await found_ids(store, group=other) == [theirs]
    assert await found_ids(store, group=store.mint()) == []
    by_time = {"finished": [first.job_id, second.job_id], "due": [last.job_id, late]}
    for order, expected in by_time.items():
        page = await store.engine.operator.find(Query(group=group, order=order))  # type: ignore[arg-type]
        assert sorted(job.id for job in page.jobs) == sorted(expected), order


@pytest.mark.core
@pytest.mark.spec("FIND-31")
async def test_find_by_metadata_compares_one_entry_as_people_see_it(store: Store) -> None:
    """Given at the enqueue or noted by a run, the newest value of an entry counts, in every status and order."""
    given = await store.add(options=Options(metadata={"customer": "42", "plan": "pro"}))
    await store.add(options=Options(metadata={"customer": "421", "42": "customer"}), payload=b'{"customer":"42"}')
    await store.add()
    behind = store.draft(options=Options(metadata={"customer": "42"}))
    await store.add(queue="other", options=Options(metadata={"customer": "4"}, then=(behind,)))
    asked: dict[str, Any] = {"meta": ("customer", "42")}
    assert await found_ids(store, **asked) == [given]
    assert await found_ids(store, **asked, payload="customer") == []
    claim = await store.take()
    assert await found_ids(store, **asked) == [given]
    await store.engine.jobs.note([Note(given, claim.worker, claim.token, metadata={"customer": "43"}, ref=claim.ref)])
    assert await found_ids(store, **asked) == []
    assert await found_ids(store, meta=("customer", "43")) == [given]
    assert await found_ids(store, meta=("plan", "pro"), statuses=frozenset({Status.RUNNING})) == [given]
    await store.finish(claim, Rejected("no luck"))
    for order in ("newest", "oldest", "finished"):
        page = await store.engine.operator.find(Query(meta=("customer", "43"), order=order))
        assert [job.id for job in page.jobs] == [given], order
    odd = {'\u212aey "q" \\': "\u00e9 = \n,\u4e2d%_"}
    strange = await store.add(options=Options(metadata=odd))
    assert await found_ids(store, meta=next(iter(odd.items()))) == [strange]
    due = await store.engine.operator.find(Query(meta=next(iter(odd.items())), order="due"))
    assert [job.id for job in due.jobs] == [strange]


@pytest.mark.spec("FIND-30")
async def test_find_by_group_is_not_bounded_by_the_ids_that_a_group_keeps(store: Store) -> None:
    """All of more than a thousand members are found, page by page."""
    group, members = await make(store, *(store.draft() for _ in range(800)), sealed=False)
    members += await add(store, group, *(store.draft() for _ in range(800)))
    assert await walk(store, Query(group=group, order="oldest", limit=1_000)) == sorted(members)


@pytest.mark.spec("FIND-30")
async def test_find_by_group_outlives_the_group(store: Store) -> None:
    """The copy of a member of a closed group is found, and so is whatever is kept longer than the group."""
    group, [dead, done] = await make(store, store.draft(), store.draft(), on_finish=store.draft(queue=AFTER))
    await store.finish(await store.take(), Rejected("no luck"))
    await store.finish(await store.take(), Done())
    await close(store)
    copy = store.mint()
    await store.engine.operator.alter(Selection((dead,)), Clone((copy,)))
    assert await found_ids(store, group=group) == sorted([dead, done, copy])
    moved, [taken] = await make(store, store.draft(unique=Unique("k", mode="replace"), delay=HOUR))
    newer = store.draft(unique=Unique("k", mode="replace"))
    await store.insert(newer)
    assert await found_ids(store, group=moved) == []
    assert (await store.job(taken)).options.group is None


@pytest.mark.core
@pytest.mark.spec("FIND-08")
async def test_find_splits_pending_by_due_time(store: Store) -> None:
    """`now` shows what is ready, due exactly now included; `later` what is scheduled; nothing but pending jobs."""
    ready = await store.add()
    later = await store.add(delay=SECOND)
    await store.add(queue="busy")
    await store.finish(await store.take(queue="busy"), Failed("retrying is not pending", after=HOUR))
    assert await found_ids(store, due="now") == [ready]
    assert await found_ids(store, due="later") == [later]
    store.pass_time(SECOND - 1)
    assert await found_ids(store, due="later") == [later]
    store.pass_time(1)
    assert await found_ids(store, due="now") == [ready, later]
    assert await found_ids(store, due="later") == []


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
    assert await found_ids(store, since=start + SECOND) == [b, c]
    assert await found_ids(store, since=start + SECOND + 1) == [c]
    assert await found_ids(store, until=start + SECOND) == [a]
    assert await found_ids(store, since=start, until=start + 2 * SECOND) == [a, b]
    assert await found_ids(store, since=start + SECOND, until=start + SECOND) == []


@pytest.mark.spec("FIND-09")
async def test_find_window_goes_by_the_time_of_storing(store: Store) -> None:
    """A job counts from when it was stored, not from when its id was minted."""
    draft = store.draft()
    store.pass_time(HOUR)
    stored = store.now()
    await store.insert(draft)
    assert await found_ids(store, since=stored) == [draft.job_id]
    assert await found_ids(store, until=stored) == []


@pytest.mark.core
@pytest.mark.spec("FIND-10")
async def test_find_text_looks_into_the_payload(store: Store) -> None:
    """Text is found anywhere in the payload, whatever its case."""
    job = await store.add(payload=b'{"to":"Ann.Smith@example.com"}')
    await store.add(payload=b'{"to":"bob@example.com"}')
    for text in ("ann", "SMITH@", '"to":"ann'):
        assert await found_ids(store, text=text) == [job], text
    assert len(await found_ids(store, text="EXAMPLE")) == 2


@pytest.mark.core
@pytest.mark.spec("FIND-10")
async def test_find_text_looks_into_the_last_error(store: Store) -> None:
    """Text is found in the last error, and no longer once another error took its place."""
    job = await dead_job(store, "SMTPError: Mailbox full")
    await store.add(queue="graves", payload=b'{"a":1}')
    assert await found_ids(store, text="mailbox FULL") == [job]
    await store.engine.operator.alter(Selection((job,)), Requeue())
    claim = await store.take(queue="graves")
    assert claim.id == job
    await store.finish(claim, Rejected("greylisted"))
    assert await found_ids(store, text="mailbox full") == []
    assert await found_ids(store, text="Greylisted") == [job]


@pytest.mark.spec("FIND-10")
async def test_find_text_ignores_case_beyond_ascii(store: Store) -> None:
    """Letters of any alphabet are compared without case."""
    job = await store.add(payload='{"name":"Ärger in der STRASSE Ω"}'.encode())
    for text in ("ärger", "ÄRGER", "straße", "ω"):
        assert await found_ids(store, text=text) == [job], text


@pytest.mark.spec("FIND-10")
async def test_find_text_takes_every_character_literally(store: Store) -> None:
    """Per cent signs, underscores, stars, brackets and backslashes in a text are no patterns."""
    job = await store.add(payload=b'{"a":"50%_off*[x]?\\\\"}')
    await store.add(payload=b'{"a":"500xoff"}')
    for text in ("50%", "%_o", "off*", "[x]", "]?", "\\"):
        assert await found_ids(store, text=text) == [job], text


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
    assert await found_ids(store, **filters) == [wanted]
    assert await found_ids(store, **filters, key="k") == [wanted]


@pytest.mark.core
@pytest.mark.spec("FILTER-13")
async def test_find_by_worker(store: Store) -> None:
    """The jobs that a worker runs, by its id or how that begins; what it ran before is not among them."""
    await store.add(queue="mail")
    await store.finish(await store.take(queue="mail"), Done())
    mine = await store.add(queue="mail")
    claim = await store.take(queue="mail")
    await store.add(queue="mail")
    assert await found_ids(store, worker=claim.worker) == [mine]
    assert await found_ids(store, worker=claim.worker[:1], statuses=frozenset({Status.RUNNING})) == [mine]
    assert await found_ids(store, worker=f"{claim.worker}0") == []


@pytest.mark.core
@pytest.mark.spec("FIND-23")
async def test_find_by_error_payload_and_attempts(store: Store) -> None:
    """Error and payload apart, ignoring case; attempts between two numbers."""
    twice = await store.add(payload=b'"needle"', queue="mail")
    await store.finish(await store.take(queue="mail"), Failed("first"))
    store.pass_time(HOUR)
    await store.finish(await store.take(queue="mail"), Rejected("Timeout"))
    once = await ended_job(store, Rejected("the needle"), payload=b'"timeout"')
    waits = await store.add(payload=b'"needle"', queue="mail")
    assert await found_ids(store, error="TIMEOUT") == [twice]
    assert await found_ids(store, payload="TIMEOUT") == [once]
    assert await found_ids(store, text="timeout") == [twice, once]
    assert await found_ids(store, attempts_from=1) == [twice, once]
    assert await found_ids(store, attempts_from=2) == [twice]
    assert await found_ids(store, attempts_to=0) == [waits]
    assert await found_ids(store, attempts_from=1, attempts_to=1, error="needle") == [once]


@pytest.mark.core
@pytest.mark.spec("FIND-24")
async def test_find_jobs_with_the_same_error(store: Store) -> None:
    """Their first lines agree but for ids, numbers and quoted text, and so do the user's own frames."""

    def error(n: int, frame: str, line: str = "Timeout") -> str:
        return f"{line}: order {n} of '{n}'\nTraceback (most recent call last):\n  File \"{frame}\", line {n}, in send"

    same = [await ended_job(store, Rejected(error(n, "/srv/shop/mail.py"))) for n in range(3)]
    await ended_job(store, Rejected(error(1, "/srv/shop/letters.py")))
    await ended_job(store, Rejected(error(1, "/srv/shop/mail.py", "Refused")))
    await ended_job(store, Rejected("Timeout: order 1 of '1'"))
    await ended_job(store, Done())
    wanted = fingerprint_of(error(9, "/opt/shop/mail.py"))
    assert await found_ids(store, same_error=wanted) == same
    assert await walk(store, Query(order="finished", same_error=wanted, limit=2)) == same[::-1]
