"""Values beside the jobs in another form: page by page, and never over what was written since."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.engines.base import Feature
from stoker.model.emitted import What, entry
from stoker.model.groups import Callbacks, into_group, new_group, pack_callbacks, unpack_callbacks
from stoker.model.ids import JobId
from stoker.model.kept import Kept, Part
from stoker.model.outbox.batch_size import Pace
from stoker.model.outbox.delivery import RetryLater, Rules
from stoker.model.outcome import Done, Failed
from stoker.model.query import Reseal, Selection
from stoker.model.steps import Save, Step
from stoker.testing.conformance.harness import Store
from stoker.testing.conformance.outbox import Orders

PARK = Rules(attempts=1, then="park", pace=Pace(batch=1))


async def _kept(store: Store, part: Part, limit: int = 2) -> list[Kept]:
    """All rows of a part, page by page."""
    found: list[Kept] = []
    while page := await store.engine.operator.kept(part, found[-1].at if found else None, limit):
        found += page
        assert len(page) <= limit
    assert len(found) == await store.engine.operator.count_kept(part)
    return found


async def _group(store: Store) -> tuple[JobId, JobId]:
    """A group of one member; returns it and its callback."""
    group, callback = store.mint(), store.draft("then", payload=b'"old"')
    await store.engine.jobs.insert(
        into_group(group, [store.draft()]), group=new_group(group, keep=None, sealed=True, then=callback)
    )
    return group, callback.job_id


def _otherwise(kept: Kept) -> Kept:
    callbacks = unpack_callbacks(kept.body or b"")
    assert callbacks.then is not None
    return kept._replace(body=pack_callbacks(Callbacks(then=replace(callbacks.then, payload=b'"new"'))))


@pytest.mark.core
@pytest.mark.spec("SEAL-16")
async def test_callbacks_of_groups_are_kept_in_another_form(store: Store) -> None:
    """A group that closes afterwards stores the new form; that of a closed one is a job already."""
    made = [await _group(store) for _ in range(3)]
    first = await store.take()
    await store.finish(first, Done(b"1"))
    await store.engine.groups.sweep()
    rows = await _kept(store, Part.GROUPS)
    assert len(rows) == 3
    swaps = [(row, _otherwise(row)) for row in rows]
    assert await store.engine.operator.swap_kept(Part.GROUPS, swaps) == 3
    assert await store.engine.operator.swap_kept(Part.GROUPS, swaps) == 0
    assert {row.body for row in await _kept(store, Part.GROUPS)} == {after.body for _, after in swaps}
    for group in await store.engine.groups.get([group for group, _ in made]):
        assert group is not None and group.then is not None
        assert group.then.payload == b'"new"'
    for claim in await store.claim(n=10):
        await store.finish(claim, Done(b"1"))
    await store.engine.groups.sweep()
    jobs = [await store.job(callback) for _, callback in made]
    assert sorted(job.payload for job in jobs) == [b'"new"', b'"new"', b'"old"']
    assert await store.engine.operator.swap_kept(Part.GROUPS, []) == 0


@pytest.mark.core
@pytest.mark.spec("SEAL-16")
async def test_the_last_error_of_a_kind_is_kept_in_another_form(store: Store) -> None:
    for kind in ("a", "b", "c"):
        await store.add(kind)
        await store.finish(await store.take(), Failed(f"{kind} failed"))
    rows = await _kept(store, Part.KINDS)
    assert {(row.of, row.error) for row in rows} == {(kind, f"{kind} failed") for kind in "abc"}
    await store.add("b")
    await store.finish(await store.take(), Failed("again"))
    swaps = [(row, row._replace(error=f"new {row.error}")) for row in rows]
    assert await store.engine.operator.swap_kept(Part.KINDS, swaps) >= 2
    totals = (await store.engine.operator.census()).totals
    assert {kind: totals[kind].last_error for kind in "abc"} == {"a": "new a failed", "b": "again", "c": "new c failed"}


@pytest.mark.core
@pytest.mark.spec("SEAL-16")
async def test_messages_are_kept_in_another_form_while_they_are_delivered(store: Store) -> None:
    """Small and large ones, numbered or not; the turn that has read them ends as ever."""
    orders = await Orders.begin(store)
    large = b'"%b"' % (b"x" * 5_000)
    entries = [replace(orders.entry("k", payload), headers={"h": "1"}) for payload in (b'"a"', large, b'"c"')]
    await orders.engine.append(orders.stream, entries[:2])
    lease = await orders.lease(limit=1)
    await orders.engine.append(orders.stream, entries[2:])
    swapped = 0
    for part in (Part.INCOMING, Part.MESSAGES):
        rows = await _kept(store, part)
        assert {row.of for row in rows} <= {"orders"}
        swaps = [(row, row._replace(body=b'"new %b' % (row.body or b"")[1:], headers='{"h":"2"}')) for row in rows]
        swapped += await store.engine.operator.swap_kept(part, swaps)
        assert await store.engine.operator.swap_kept(part, swaps) == 0
    assert swapped == 3
    assert (await orders.finish(lease)).applied
    left = await orders.drain()
    assert [(one.id, one.payload, one.headers) for one in left] == [
        (one.id, b'"new %b' % one.payload[1:], {"h": "2"}) for one in entries[1:]
    ]


@pytest.mark.core
@pytest.mark.spec("SEAL-16")
async def test_letters_and_reasons_are_kept_in_another_form(store: Store) -> None:
    orders = await Orders.begin(store)
    await orders.add("a", "b", "c")
    await orders.turn(RetryLater("odd", 0), PARK)
    held = await orders.beside("held")
    await held.turn(RetryLater("later", 3_600_000_000))
    for part, texts in ((Part.LETTERS, ["odd"]), (Part.PARKED, ["odd"]), (Part.CURSORS, ["later"])):
        rows = await _kept(store, part)
        assert {row.error for row in rows} >= set(texts), part
        swaps = [(row, row._replace(error=f"new {row.error}")) for row in rows]
        if part is Part.LETTERS:
            swaps = [(row, after._replace(body=b'"new"', headers='{"h":"2"}')) for row, after in swaps]
        assert await store.engine.operator.swap_kept(part, swaps) == len(rows)
        assert await store.engine.operator.swap_kept(part, swaps) == 0
        assert {row.error for row in await _kept(store, part)} == {after.error for _, after in swaps}
    [letter, *_] = sorted(await orders.letters(), key=lambda one: one.number)
    assert (letter.payload, letter.headers, letter.reason) == (b'"new"', {"h": "2"}, "new odd")
    [state] = await orders.engine.streams(["orders"])
    assert "new later" in {one.cursor.last_error for one in state.cursors}


@pytest.mark.core
@pytest.mark.spec("SEAL-16")
async def test_an_engine_without_streams_keeps_nothing_of_them(store: Store) -> None:
    streams = set(Part) - {Part.GROUPS, Part.KINDS}
    if Feature.OUTBOX in store.engine.features:
        await Orders.begin(store)
    assert [await _kept(store, part) for part in sorted(streams)] == [[]] * len(streams)


@pytest.mark.core
@pytest.mark.spec("SEAL-13", "EMIT-10")
async def test_reseal_leaves_a_page_that_was_written_since(store: Store) -> None:
    """Pages are among the rows of a job when they are asked for."""
    job = await store.add()
    claim = await store.take()
    page = Step("!00", value=b"[1,0,1,[%b]]" % entry(store.now(), What.VALUE, b"1"), until=1)
    other = Step("!01", value=b"[2,1,1,[%b]]" % entry(store.now(), What.VALUE, b"2"), until=2)
    await store.engine.steps.save([Save(job, claim.worker, claim.token, (page, other, Step("s", value=b"0")))])
    [rows] = await store.engine.steps.get([job], pages=True)
    assert sorted(row.name for row in rows) == ["!00", "!01", "s"]
    before = await store.job(job)
    await store.engine.steps.save([Save(job, claim.worker, claim.token, (replace(page, value=b"[]", until=2),))])
    changed = tuple((row, replace(row, value=b'"sealed"')) for row in rows)
    assert (await store.engine.operator.alter(Selection((job,)), Reseal((before,), (before,), (changed,)))).changed == 1
    [found] = await store.engine.steps.get([job], pages=True)
    assert {row.name: row.value for row in found} == {"!00": b"[]", "!01": b'"sealed"', "s": b'"sealed"'}
