"""Calls a listener after a user's commit, where the handle's library reports it.

SQLAlchemy and Django do, drivers do not. The call is a hint that lets workers start early. It may come from any thread
and may be missing; a rollback is not reported. SQLAlchemy's Connection reports shortly before it commits, the others
afterwards; the listener is given the seconds after which the commit should be done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

Listener: TypeAlias = Callable[[float], None]

MOMENT = 0.02
"""Seconds that a commit takes after SQLAlchemy's Connection has announced it."""

_listeners: WeakKeyDictionary[Any, list[Listener]] = WeakKeyDictionary()


def after_commit(handle: Any, listener: Listener) -> bool:
    """Call the listener once after the handle's transaction commits. False: this handle does not report it."""
    for kind in type(handle).__mro__:
        match (kind.__module__.partition(".")[0], kind.__name__):
            case ("sqlalchemy", "Session"):
                _join(handle, _on_session, listener)
            case ("sqlalchemy", "AsyncSession"):
                _join(handle.sync_session, _on_session, listener)
            case ("sqlalchemy", "scoped_session" | "async_scoped_session"):
                return after_commit(handle.registry(), listener)
            case ("sqlalchemy", "Connection"):
                _join(handle, _on_connection, listener)
            case ("sqlalchemy", "AsyncConnection"):
                _join(handle.sync_connection, _on_connection, listener)
            case ("django", "BaseDatabaseWrapper" | "ConnectionProxy") if getattr(handle, "in_atomic_block", False):
                # A savepoint that is rolled back takes it along; an error in it would keep the user's own from running.
                handle.on_commit(lambda: listener(0.0), robust=True)
            case _:
                continue
        return True
    return False


def _join(target: Any, listen: Callable[[Any, Any], None], listener: Listener) -> None:
    """One event listener for all calls on a handle: SQLAlchemy cannot take one away while it is being called."""
    waiting = _listeners.get(target)
    if waiting is None:
        waiting = _listeners[target] = []
        listen(sys.modules["sqlalchemy.event"], target)
    waiting.append(listener)


def _on_session(event: Any, session: Any) -> None:
    def committed(session: Any) -> None:
        if not session.in_nested_transaction():
            _tell(session, 0.0)

    def ended(session: Any, transaction: Any) -> None:
        if transaction.parent is None:
            _listeners[session].clear()

    event.listen(session, "after_commit", committed)
    event.listen(session, "after_transaction_end", ended)


def _on_connection(event: Any, connection: Any) -> None:
    event.listen(connection, "commit", lambda connection: _tell(connection, MOMENT))
    event.listen(connection, "rollback", lambda connection: _listeners[connection].clear())


def _tell(target: Any, delay: float) -> None:
    waiting = _listeners[target]
    listeners = waiting[:]
    waiting.clear()
    for listener in listeners:
        listener(delay)
