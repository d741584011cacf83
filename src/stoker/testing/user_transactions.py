"""Transactions of the user's, on a kit in memory: what is stored in them stands aside until they end.

Two kinds of handle say what becomes of a transaction, and of the savepoints in it: SQLAlchemy's sessions by events, and
Django's connections by the list of their hooks, from which a rollback removes what was added since. To each the kit has
a transaction of its store, which it commits when the handle says so. Neither library is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from stoker.engines.memory.engine import MemoryEngine
from stoker.engines.memory.transaction import MemoryTransaction
from stoker.engines.sql.user_handles.handles import describe_handle
from stoker.model.errors import EngineRefused


class UserTransactions:
    """The transactions that are open, of the sessions and connections that were given as `tx=`."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._open: list[tuple[Any, MemoryTransaction]] = []
        self._watched: WeakSet[Any] = WeakSet()
        self.committed: Callable[[], None] = lambda: None
        """Called after each commit of a handle, inside of it; what it raises comes out of the handle's commit."""

    def of(self, handle: Any, *, writes: bool) -> MemoryTransaction:
        """The transaction for a call with this handle. Refuses handles that do not say how they end."""
        session = _session(handle)
        if session is not None:
            return self._of_session(session, writes=writes)
        if _is_django(handle):
            return self._of_connection(handle.on_commit.__self__, writes=writes)
        raise EngineRefused(
            f"tx= is a {describe_handle(handle)}, which does not say when it commits and when it rolls back, so a "
            "TestKit in memory cannot know what becomes of the call: use TestKit(jobs, url). Nothing was stored."
        )

    def commit(self) -> None:
        """Store everything that stands aside, whether or not its transaction commits."""
        for holder, tx in self._open:
            tx.undo(_is_gone(holder))
            self._engine.commit(tx)
        self._open = []

    def forget(self) -> None:
        """Store nothing any more, whatever the handles say later."""
        self._open = []

    def _find(self, holder: Any) -> MemoryTransaction | None:
        return next((tx for one, tx in self._open if one is holder), None)

    def _begun(self, holder: Any) -> MemoryTransaction:
        found = self._find(holder)
        if found is None:
            found = self._engine.begin()
            self._open.append((holder, found))
        return found

    def _drop(self, holder: Any) -> None:
        self._open = [one for one in self._open if one[0] is not holder]

    # --- SQLAlchemy ---------------------------------------------------------------------------------------------

    def _of_session(self, session: Any, *, writes: bool) -> MemoryTransaction:
        if not writes:
            return self._find(session) or self._engine.begin()
        if session not in self._watched:
            self._watched.add(session)
            self._watch(session)
        tx = self._begun(session)
        tx.inside = _transactions(session)
        return tx

    def _watch(self, session: Any) -> None:
        def committed(session: Any) -> None:
            tx = None if session.in_nested_transaction() else self._find(session)
            if tx is not None:
                self._drop(session)
                self._engine.commit(tx)
                self.committed()

        def rolled_back(session: Any, transaction: Any) -> None:
            tx = self._find(session)
            if tx is not None:
                tx.undo(lambda inside: transaction in inside)

        def ended(session: Any, transaction: Any) -> None:
            if transaction.parent is None:
                self._drop(session)

        listen = sys.modules["sqlalchemy.event"].listen
        listen(session, "after_commit", committed)
        listen(session, "after_soft_rollback", rolled_back)
        listen(session, "after_transaction_end", ended)

    # --- Django -------------------------------------------------------------------------------------------------

    def _of_connection(self, connection: Any, *, writes: bool) -> MemoryTransaction:
        tx = self._find(connection) or self._engine.begin()
        tx.undo(_is_gone(connection))
        if not writes:
            return tx
        if not connection.in_atomic_block:
            raise EngineRefused(
                "tx= is Django's connection outside of an atomic block, where every statement is committed by itself. "
                "Call this inside `with transaction.atomic():`. Nothing was stored."
            )
        tx = self._begun(connection)

        def committed() -> None:
            if self._find(connection) is tx:
                self._engine.commit(tx.split(lambda inside: inside is committed))
                if tx.is_empty:  # else other hooks are still to come, which an error would keep from running
                    self.committed()

        connection.on_commit(committed)
        tx.inside = committed
        return tx


def _is_gone(holder: Any) -> Callable[[Any], bool]:
    """Whether a call was rolled back: Django has forgotten the hook that came with it."""
    hooks = [hook[1] for hook in getattr(holder, "run_on_commit", ())]
    return lambda inside: callable(inside) and inside not in hooks


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
