"""Groups that close: the engine whose call closes one reports it once, with the callbacks that were stored."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from stoker.engines.base import Feature
from stoker.model.groups import ABANDONED_AFTER, Closing, into_group, new_group
from stoker.model.ids import JobId
from stoker.model.job import Draft
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Done, Rejected
from stoker.model.query import Cancel, Delete, Selection
from stoker.model.time import MINUTE, SECOND
from stoker.model.unique import Unique
from stoker.testing.conformance.group_helpers import AFTER
from stoker.testing.conformance.harness import Store, needs


class _Made(msgspec.Struct):
    """A stored group, its members and what the engine has reported since."""

    group: JobId
    members: list[Draft]
    reported: list[Closing]

    @property
    def selected(self) -> Selection:
        return Selection(tuple(draft.job_id for draft in self.members))


async def _make(store: Store, *drafts: Draft, sealed: bool = True, **callbacks: Draft) -> _Made:
    group = store.mint()
    members = into_group(group, drafts)
    chosen = callbacks or {name: store.draft(name, queue=AFTER) for name in ("then", "on_failure")}
    reported: list[Closing] = []
    store.engine.groups.watch_closings(reported.append)
    await store.engine.jobs.insert(members, group=new_group(group, keep=None, sealed=sealed, **chosen))
    return _Made(group, members, reported)


async def _reported(store: Store, made: _Made) -> list[str]:
    """Return the kinds that the one reported closing stored; the queue and the times are those of the group."""
    if Feature.CLOSES_AT_ONCE not in store.engine.features:
        await store.engine.groups.sweep()
    [closing] = made.reported
    [found] = await store.engine.groups.get([made.group])
    assert found is not None
    for name in ("id", "queue", "created_at", "closed_at", "succeeded"):
        assert getattr(closing.group, name) == getattr(found, name), name
    assert found.closed_at is not None
    assert all([await store.job(draft.job_id) for draft in closing.stored])
    return [draft.kind for draft in closing.stored]


@pytest.mark.core
@pytest.mark.spec("GROUP-32")
async def test_the_end_of_the_last_member_is_reported(store: Store) -> None:
    """Not the end of the first; a repeated settlement reports nothing more."""
    made = await _make(store, store.draft(), store.draft())
    first, second = await store.claim(n=2)
    await store.finish(first, Done())
    await store.engine.groups.sweep()
    assert made.reported == []
    store.pass_time(SECOND)
    await store.finish(second, Done())
    assert await _reported(store, made) == ["then"]
    await store.settle(conclude(second, Done()))
    await store.engine.groups.sweep()
    assert len(made.reported) == 1


@pytest.mark.spec("GROUP-32")
async def test_a_failed_group_is_reported_with_what_it_stores(store: Store) -> None:
    made = await _make(store, store.draft())
    await store.finish(await store.take(), Rejected("no"))
    assert await _reported(store, made) == ["on_failure"]


@pytest.mark.spec("GROUP-32")
async def test_a_group_without_callbacks_is_reported(store: Store) -> None:
    made = await _make(store, store.draft(), on_failure=store.draft("on_failure", queue=AFTER))
    await store.finish(await store.take(), Done())
    assert await _reported(store, made) == []


async def _cancel(store: Store, made: _Made) -> None:
    await store.engine.operator.alter(made.selected, Cancel("no"))


async def _cancel_running(store: Store, made: _Made) -> None:
    await store.take()
    await store.engine.operator.alter(made.selected, Cancel("no", force=True))


async def _delete(store: Store, made: _Made) -> None:
    await store.engine.operator.alter(made.selected, Delete())


async def _supersede(store: Store, _: _Made) -> None:
    await store.engine.jobs.insert([store.draft(unique=Unique("k", mode="replace"))])


@pytest.mark.core
@pytest.mark.parametrize("end", [_cancel, _cancel_running, _delete, _supersede], ids=lambda end: end.__name__[1:])
@pytest.mark.spec("GROUP-32")
async def test_a_closing_by_another_call_is_reported(
    store: Store, end: Callable[[Store, _Made], Awaitable[None]]
) -> None:
    """An operator cancels or deletes the last member, or a newer job takes its key."""
    made = await _make(store, store.draft(unique=Unique("k")))
    await end(store, made)
    assert await _reported(store, made) == ["on_failure"]


@pytest.mark.core
@pytest.mark.spec("GROUP-32")
async def test_a_seal_that_closes_a_group_is_reported(store: Store) -> None:
    """Its members had ended before; the seal of a group that goes on reports nothing."""
    made = await _make(store, store.draft(), sealed=False)
    await store.finish(await store.take(), Done())
    await store.engine.groups.sweep()
    assert made.reported == []
    assert await store.engine.groups.seal(made.group)
    assert await _reported(store, made) == ["then"]
    open_ = await _make(store, store.draft(), sealed=False)
    assert await store.engine.groups.seal(open_.group)
    await store.engine.groups.sweep()
    assert open_.reported == []


@pytest.mark.spec("GROUP-32")
async def test_an_empty_group_is_reported_as_it_is_stored(store: Store) -> None:
    assert await _reported(store, await _make(store)) == ["then"]


@pytest.mark.spec("GROUP-32")
async def test_a_sweep_that_closes_a_group_is_reported(store: Store) -> None:
    """The maker has died: the sweep abandons the group, whose members have ended."""
    made = await _make(store, store.draft(), sealed=False)
    await store.finish(await store.take(), Done())
    store.pass_time(ABANDONED_AFTER + MINUTE)
    assert (await store.engine.groups.sweep()).abandoned == 1
    assert await _reported(store, made) == ["on_failure"]


@pytest.mark.spec("GROUP-32")
async def test_a_callback_whose_key_is_held_is_not_reported(store: Store) -> None:
    """Another job stands for it; the others are reported."""
    await store.engine.jobs.insert([store.draft("holder", queue=AFTER, unique=Unique("k"))])
    tidy = store.draft("holder", queue=AFTER, unique=Unique("k"))
    made = await _make(store, store.draft(), then=store.draft("then", queue=AFTER), on_finish=tidy)
    await store.finish(await store.take(), Done())
    assert await _reported(store, made) == ["then"]


@pytest.mark.spec("GROUP-32")
async def test_a_closing_is_reported_with_the_commit(store: Store) -> None:
    """A settlement that is rolled back reports nothing, one that is committed does."""
    needs(store, Feature.OWN_TRANSACTION)
    made = await _make(store, store.draft())
    claim = await store.take()
    with pytest.raises(ZeroDivisionError):
        async with store.engine.transaction() as tx:
            await store.engine.jobs.settle([conclude(claim, Done())], tx=tx)
            raise ZeroDivisionError
    await store.engine.groups.sweep()
    assert made.reported == []
    async with store.engine.transaction() as tx:
        await store.engine.jobs.settle([conclude(claim, Done())], tx=tx)
        assert made.reported == []
    assert await _reported(store, made) == ["then"]


@pytest.mark.spec("GROUP-32")
async def test_only_the_engine_that_closes_a_group_reports_it(store: Store) -> None:
    """Another engine on the store is not told."""
    made = await _make(store, store.draft())
    other = store.engine.for_loop()
    await other.open()
    unexpected: list[Closing] = []
    other.groups.watch_closings(unexpected.append)
    await store.finish(await store.take(), Done())
    assert await _reported(store, made) == ["then"]
    await other.groups.sweep()
    await other.close()
    assert unexpected == []
