"""Jobs of a user's transaction, on a kit in memory: they stand aside until the transaction ends.

Two kinds of handle say what becomes of a transaction, and of the savepoints in it: SQLAlchemy's sessions by events, and
Django's connections by the list of their hooks, from which a rollback removes what was added since. Neither library is
imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from stoker import views
from stoker.app import Stoker
from stoker.engines.base import Clock
from stoker.engines.sql.user_handles.handles import describe_handle
from stoker.model.errors import EngineRefused
from stoker.model.groups import Group
from stoker.model.job import Draft, Receipt, Stored
from stoker.model.record import Record
from stoker.views import Job


class Held:
    """What one call has enqueued. `holder` is the session or connection, `inside` its transactions, innermost first."""

    def __init__(self, holder: Any, drafts: Sequence[Draft], group: Group | None, inside: tuple[Any, ...] = ()) -> None:
        self.holder = holder
        self.drafts = drafts
        self.group = group
        self.inside = inside
        self.gone: Callable[[], bool] = lambda: False


class HeldJobs:
    """The jobs that stand aside, in the order of their enqueue. `store` stores what is committed."""

    def __init__(self, store: Callable[[Sequence[Draft], Group | None], object], clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._held: list[Held] = []
        self._watched: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()

    def hold(self, tx: Any, drafts: Sequence[Draft], group: Group | None) -> list[Receipt]:
        """Keep drafts until the transaction of `tx` ends. Refuses handles that do not say how it does."""
        holder = _session(tx)
        if holder is not None:
            self._watch(holder)
            self._held.append(Held(holder, drafts, group, _transactions(holder)))
        elif _is_django(tx):
            self._hold_for_django(tx, drafts, group)
        else:
            raise EngineRefused(
                f"tx= is a {describe_handle(tx)}, which does not say when it commits and when it rolls back, so a "
                "TestKit in memory cannot know what becomes of the job: use TestKit(jobs, url). Nothing was stored."
            )
        return [Receipt(draft.job_id, Stored.INSERTED) for draft in drafts]

    def of(self, tx: Any) -> list[Job]:
        """The jobs that wait for the commit of `tx`, as they would be stored now."""
        holder = _session(tx)
        waiting = [one for one in self._waiting() if one.holder is holder or one.holder == tx]
        drafts = [draft for one in waiting for draft in one.drafts]
        return [views.job(Record.drafted(draft, self._clock()).as_job()) for draft in drafts]

    def commit(self) -> int:
        """Store everything that stands aside, whether or not its transaction commits; returns how many jobs."""
        return self._release(self._waiting())

    def _waiting(self) -> list[Held]:
        self._held = [one for one in self._held if not one.gone()]
        return list(self._held)

    def _release(self, released: Sequence[Held]) -> int:
        for one in released:
            self._held.remove(one)
            self._store(one.drafts, one.group)
        return sum(len(one.drafts) for one in released)

    # --- SQLAlchemy ---------------------------------------------------------------------------------------------

    def _watch(self, session: Any) -> None:
        if session in self._watched:
            return
        self._watched[session] = True
        listen = sys.modules["sqlalchemy.event"].listen

        def committed(session: Any) -> None:
            if not session.in_nested_transaction():
                self._release([one for one in self._held if one.holder is session])

        def rolled_back(session: Any, transaction: Any) -> None:
            self._held = [one for one in self._held if one.holder is not session or transaction not in one.inside]

        def ended(session: Any, transaction: Any) -> None:
            if transaction.parent is None:
                self._held = [one for one in self._held if one.holder is not session]

        listen(session, "after_commit", committed)
        listen(session, "after_soft_rollback", rolled_back)
        listen(session, "after_transaction_end", ended)

    # --- Django -------------------------------------------------------------------------------------------------

    def _hold_for_django(self, connection: Any, drafts: Sequence[Draft], group: Group | None) -> None:
        if not connection.in_atomic_block:
            raise EngineRefused(
                "tx= is Django's connection outside of an atomic block, where every statement is committed by itself. "
                "Call this inside `with transaction.atomic():`. Nothing was stored."
            )
        held = Held(connection, drafts, group)

        def committed() -> None:
            if held in self._held:
                self._release([held])

        connection.on_commit(committed)
        held.gone = lambda: all(hook[1] is not committed for hook in connection.run_on_commit)
        self._held.append(held)


def _session(handle: Any) -> Any | None:
    """SQLAlchemy's session behind a handle; None if it is none."""
    for kind in type(handle).__mro__:
        match (kind.__module__.partition(".")[0], kind.__name__):
            case ("sqlalchemy", "Session"):
                return handle
            case ("sqlalchemy", "AsyncSession"):
                return handle.sync_session
            case ("sqlalchemy", "scoped_session" | "async_scoped_session"):
                return _session(handle.registry())
    return None


def _transactions(session: Any) -> tuple[Any, ...]:
    """The transactions that a session is in, the innermost first; one is begun if there is none."""
    found = session.get_nested_transaction() or session.get_transaction() or session.begin()
    inside = [found]
    while inside[-1].parent is not None:
        inside.append(inside[-1].parent)
    return tuple(inside)


def _is_django(handle: Any) -> bool:
    names = ("BaseDatabaseWrapper", "ConnectionProxy")
    return any(kind.__module__.startswith("django.") and kind.__name__ in names for kind in type(handle).__mro__)


of_apps: WeakKeyDictionary[Stoker, HeldJobs] = WeakKeyDictionary()
"""The jobs that stand aside, of each app that has a kit in memory."""
