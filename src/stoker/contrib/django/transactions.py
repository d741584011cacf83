"""Which of Django's transactions does a call join? The answer of `jobs.ambient`, in the thread of the call.

Inside of `atomic()` of the database that holds the jobs it is that connection. Inside of `atomic()` of another database
`STOKER["OUTSIDE"]` decides. The blocks that a `TestCase` puts around a test do not count: what a program stores at once
is stored at once in its tests, too.

A coroutine joins nothing: Django has no async transactions, and its connections belong to threads.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from asgiref.sync import AsyncToSync
from django.db import connections
from django.db.backends.signals import connection_created

from stoker.engines.base import Engine, Transaction
from stoker.engines.sql.user_handles.handles import running_loop
from stoker.joining import Given
from stoker.model.errors import EngineRefused
from stoker.model.job import Draft, Receipt, Stored

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from stoker.app import Stoker
    from stoker.contrib.django import settings

T = TypeVar("T")

logger = logging.getLogger("stoker.django")

_opened: WeakSet[Any] = WeakSet()
_lock = threading.Lock()


def watch_connections() -> None:
    """Note each connection that Django opens from now on."""
    connection_created.connect(_note, dispatch_uid="stoker.contrib.django")


def _note(connection: Any, **_: Any) -> None:
    with _lock:
        _opened.add(connection)


def opened() -> list[Any]:
    """Every connection of Django's that was opened in this process, of all threads."""
    with _lock:
        return list(_opened)


class Ambient:
    """Finds the transaction of a call."""

    def __init__(self, app: Stoker, given: settings.Given) -> None:
        self._app = app
        self._given = given
        self._warned = False

    def __call__(self) -> Transaction | None:
        """The transaction that a call here joins; None: it is stored at once."""
        loop = running_loop()
        if loop is not None:
            self._warn_of_coroutines(loop)
            return None
        around = [one for one in connections.all(initialized_only=True) if is_in_atomic(one)]
        if not around:
            return None
        own = next((one for one in around if one.alias == self._given.alias), None)
        if own is not None or self._given.outside == "now":
            return own
        other = around[0]
        if self._given.outside == "refuse":
            raise EngineRefused(
                f"this call comes from inside of atomic() of the database {other.alias!r}, and the jobs are in "
                f'{self._app.root().where}, which cannot join it. STOKER["OUTSIDE"] is "refuse", so nothing was '
                "stored. Give the call tx=False to store it now, whatever becomes of the transaction."
            )
        return AfterCommit(self._app, other)

    def _warn_of_coroutines(self, loop: AbstractEventLoop) -> None:
        if self._warned or not any(is_in_atomic(one) for one in _connections_behind(loop)):
            return
        self._warned = True
        logger.warning(
            "an enqueue or append in a coroutine was stored at once, though the thread that the coroutine came from is "
            "inside of atomic(): Django has no async transactions. Call enqueue_sync() where the block is, if it is to "
            "share its fate. This is said once."
        )


def is_in_atomic(connection: Any) -> bool:
    """Is it inside of an atomic block, other than those that a `TestCase` puts around a test?"""
    return connection.in_atomic_block and not all(block._from_testcase for block in connection.atomic_blocks)  # noqa: SLF001 - as Django's `durable`


def _connections_behind(loop: AbstractEventLoop) -> Iterator[Any]:
    """The connections of this thread, and of the thread that waits in `async_to_sync` for this loop.

    Django shows a coroutine connections of its own, so these are looked for among all.
    """
    waiting = AsyncToSync.loop_thread_executors.get(loop)
    threads = {threading.get_ident(), None if waiting is None else waiting._work_thread.ident}  # noqa: SLF001 - no other way
    return (one for one in opened() if one._thread_ident in threads)  # noqa: SLF001 - as Django's own check


class AfterCommit(Given):
    """Stores what is enqueued or appended after the commit of a transaction that it cannot join.

    Django forgets it with a rollback. A process that dies between the commit and the call loses it.
    """

    __slots__ = ("_drafts",)
    deferred = True

    def __init__(self, app: Stoker, connection: Any) -> None:
        super().__init__(app, connection)
        self._drafts: Sequence[Draft] = ()

    def as_stored(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Drafts that the first claim tells the timeline about."""
        self._drafts = drafts
        return super().as_stored(drafts)

    async def join(self, call: Callable[[Engine, Transaction], Awaitable[T]], *, wakes: Iterable[str] = ()) -> T:
        """Make an engine's call after the commit."""
        return self.join_sync(call, wakes=wakes)

    def join_sync(self, call: Callable[[Engine, Transaction], Awaitable[T]], *, wakes: Iterable[str] = ()) -> T:  # noqa: ARG002 - the engine wakes
        """Make an engine's call after the commit; until then its answer is that every draft is stored."""

        async def store() -> None:
            await call(await self._app.engine(), None)

        self._handle.on_commit(lambda: self._app.run(store()))
        answer: Any = [Receipt(draft.job_id, Stored.INSERTED) for draft in self._drafts]
        return answer  # type: ignore[no-any-return]
