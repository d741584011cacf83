"""Groups: read, sealed and swept. `Store.apply` counts them in the write that changes their members."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from stoker.engines.memory.access import Facet
from stoker.engines.memory.store import Store
from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.model.groups import ABANDONED_AFTER, Closing, Group, Swept, is_held, let_go
from stoker.model.ids import JobId
from stoker.model.job import FINISHED
from stoker.model.query import Place


class Groups(Facet):
    """Jobs that are counted together."""

    async def get(self, ids: Sequence[JobId]) -> list[Group | None]:
        with self._read as store:
            return [store.groups.get(group) for group in ids]

    async def find(self, *, closed: bool, behind: Place | None = None, limit: int = 100) -> list[Group]:
        with self._read as store:
            placed = (
                (one.created_at, one.id) for one in store.groups.values() if (one.closed_at is not None) is closed
            )
            chosen = sorted((place for place in placed if behind is None or place < behind), reverse=True)[:limit]
            return [replace(store.groups[group], members=()) for _, group in chosen]

    async def seal(self, group: JobId, *, abandoned: bool = False) -> bool:
        return self._run(None, _seal, group, abandoned=abandoned)

    def watch_closings(self, emit: Callable[[Closing], None]) -> None:
        self._write.emit = emit

    async def sweep(self, limit: int = 1_000) -> Swept:
        return self._run(None, _sweep, limit)


def _seal(store: Store, unit: UnitOfWork, group: JobId, *, abandoned: bool) -> bool:
    """Seal a group; False when there is none, or it was sealed before."""
    store.load(unit, Wanted(groups=frozenset({group})))
    found = unit.group(group)
    if found is None or found.sealed:
        return False
    unit.put_group(found.seal(abandoned=abandoned))
    return True


def _sweep(store: Store, unit: UnitOfWork, limit: int) -> Swept:
    """Abandon groups that stayed unsealed, and remove those past their retention that no job of theirs keeps."""
    now = unit.now
    late = [one.id for one in store.groups.values() if not one.sealed and one.touched_at < now - ABANDONED_AFTER]
    old = [one for one in store.groups.values() if one.expires_at is not None and one.expires_at < now]
    for group in late[:limit]:
        _seal(store, unit, group, abandoned=True)
    removed = 0
    for one in old[:limit]:
        if all(store.jobs[draft.job_id].status in FINISHED for draft in one.callbacks if draft.job_id in store.jobs):
            held = [job for job in store.jobs.values() if job.options.group == one.id and is_held(job)]
            store.load(unit, Wanted(frozenset(job.id for job in held)))
            for job in held:
                unit.put(let_go(job, one))
        until = store.group_kept_until(one, now)
        if until is None:
            del store.groups[one.id]
            removed += 1
        else:
            store.groups[one.id] = replace(one, expires_at=until)
    return Swept(abandoned=len(late[:limit]), removed=removed)
