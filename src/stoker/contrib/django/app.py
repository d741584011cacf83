"""The app that `settings.STOKER` describes: one per process, with the tasks of every installed app.

Under Django's tests the app follows them (`test_stores`): to the test database, and to a test kit inside of `TestCase`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

import django
from asgiref.sync import async_to_sync
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from stoker.app import Stoker, engine_maker
from stoker.app_path import remember
from stoker.contrib.django import settings
from stoker.contrib.django.fresh_connections import fresh_connections, fresh_connections_on_loop
from stoker.contrib.django.transactions import Ambient
from stoker.engine_pool import EnginePool
from stoker.engines.base import Engine
from stoker.engines.sql.user_handles.handles import running_loop
from stoker.groups import NewGroup
from stoker.model.errors import StokerError, sentence
from stoker.task import Task

if TYPE_CHECKING:
    from stoker.contrib.django.test_stores import TestStores
    from stoker.testing import TestKit

T = TypeVar("T")

logger = logging.getLogger("stoker.django")

PATH = "stoker.contrib.django:jobs"
"""Where every process finds the app."""

TESTS = "django.test.testcases"
"""The module whose import says that Django's tests may run in this process."""

_lock = Lock()
_made: list[DjangoStoker] = []
_opened_in: list[int] = []


def the_app() -> DjangoStoker:
    """The app of this process; sets Django up first, unless that is under way."""
    if not apps.ready and not apps.loading:
        django.setup()
    with _lock:
        if not _made:
            _made.append(DjangoStoker(settings.read()))
            remember(_made[0], PATH)
        return _made[0]


def open_once(**_: Any) -> None:
    """Open the store before a process's first request: only then a commit wakes idle workers at once."""
    if settings.testing() or _opened_in == [os.getpid()]:
        return
    _opened_in[:] = [os.getpid()]
    app = the_app()
    try:
        app.run(app.open())
    except StokerError as error:
        logger.warning("the store of jobs could not be opened: %s The next enqueue tries again.", sentence(error))


class DjangoStoker(Stoker):
    """A `Stoker` whose store, transactions and connections are Django's."""

    def __init__(self, given: settings.Given) -> None:
        self.given = given
        self.made_for = given.address
        self.backend_queues: set[str] = set()
        """The queues that each `StokerBackend` names."""
        self._tests: TestStores | None = None
        options = dict(given.options)
        if given.alias is not None:
            options.setdefault("transaction", atomic_block(given.alias))
        middleware = [fresh_connections, fresh_connections_on_loop, *options.pop("middleware", ())]
        try:
            super().__init__(self.made_for or "memory://", middleware=middleware, **options)
        except (StokerError, TypeError) as error:
            raise ImproperlyConfigured(f"STOKER: {error}") from error
        self.ambient = Ambient(self, given)

    @property
    def _pool(self) -> EnginePool:
        """The engines of the store; in Django's tests of the store that the test in progress has."""
        if TESTS in sys.modules and _made and self is _made[0]:
            self.tests.follow()
        pool: EnginePool = vars(self)["_pool"]
        return pool

    @_pool.setter
    def _pool(self, pool: EnginePool) -> None:
        vars(self)["_pool"] = pool

    @property
    def tests(self) -> TestStores:
        """What follows Django's tests; only for use in them."""
        from stoker.contrib.django.test_stores import TestStores

        if self._tests is None:
            self._tests = TestStores(self)
        return self._tests

    @property
    def kit_class(self) -> type[TestKit]:
        """The kit that pytest's fixture `stoker_kit` makes for this app."""
        from stoker.contrib.django.testing import Kit

        return Kit

    def _make_pool(self, url: str | Engine | None, options: dict[str, Any]) -> EnginePool:
        self._engine_options = options
        return super()._make_pool(url, options)

    def pool_at(self, url: str) -> EnginePool:
        """New engines for the store at another address, with the same options."""
        pool = EnginePool(engine_maker(url, self._engine_options), around=self.around)
        pool.added = self._watch_closings
        return pool

    def find_task(self, kind: str) -> Task[..., Any] | None:
        """The task of a kind, or None; a task of `django.tasks` is imported by its path if need be."""
        found = super().find_task(kind)
        if found is None and "." in kind and _import_module_of(kind):
            found = super().find_task(kind)
        return found

    def served_queues(self) -> set[str]:
        """The queues of the tasks, and those that a `StokerBackend` names."""
        return super().served_queues() | self.backend_queues

    def run(self, awaitable: Awaitable[T], *, instead: str = "`await`") -> T:
        """Run any of Stoker's coroutines from code without a loop, and wait for it."""
        group: Any = awaitable
        inline = "insert_drafts" in vars(
            self
        )  # a kit runs jobs at their enqueue: in this thread, where a test's data is
        if not inline or isinstance(group, NewGroup) or running_loop() is not None:
            return super().run(awaitable, instead=instead)
        return async_to_sync(_awaited)(awaitable)


def atomic_block(alias: str) -> Any:
    """A factory for `current().transaction()`: `atomic()`, which yields the connection."""

    @contextmanager
    def atomic() -> Iterator[Any]:
        with transaction.atomic(using=alias):
            yield connections[alias]

    return atomic


def _import_module_of(path: str) -> bool:
    """Import the module of a function, if it belongs to an installed app; returns whether there is one."""
    module = path.rpartition(".")[0]
    if apps.get_containing_app_config(module) is None or find_spec(module) is None:
        return False
    import_module(module)
    return True


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable
