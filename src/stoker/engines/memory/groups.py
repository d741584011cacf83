"""Groups: read, sealed and swept. `Store.apply` counts them in the write that changes their members."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from stoker.engines.memory.store import Store
from stoker.engines.shared.unit_of_work import UnitOfWork, Wanted
from stoker.model.groups import ABANDONED_AFTER, Group, Swept
from stoker.model.ids import JobId


def groups(store: Store, ids: Sequence[JobId]) -> list[Group | None]:
    """The groups, in the order of their ids."""
    return [store.groups.get(group) for group in ids]


def seal(store: Store, unit: UnitOfWork, group: JobId, *, abandoned: bool) -> bool:
    """Seal a group; False when there is none, or it was sealed before."""
    store.load(unit, Wanted(groups=frozenset({group})))
    found = unit.group(group)
    if found is None or found.sealed:
        return False
    unit.put_group(found.seal(abandoned=abandoned))
    return True


def sweep(store: Store, unit: UnitOfWork, limit: int) -> Swept:
    """Abandon groups that stayed unsealed, and remove those past their retention that no job of theirs keeps."""
    now = unit.now
    late = [one.id for one in store.groups.values() if not one.sealed and one.touched_at < now - ABANDONED_AFTER]
    old = [one for one in store.groups.values() if one.expires_at is not None and one.expires_at < now]
    for group in late[:limit]:
        seal(store, unit, group, abandoned=True)
    removed = 0
    for one in old[:limit]:
        until = store.group_kept_until(one, now)
        if until is None:
            del store.groups[one.id]
            removed += 1
        else:
            store.groups[one.id] = replace(one, expires_at=until)
    return Swept(abandoned=len(late[:limit]), removed=removed)
