"""Where the jobs are while Django's tests run: in a test kit, or in the test database.

| test | store |
|---|---|
| `TestCase`: a transaction that is rolled back | a fresh kit in memory for each test |
| any, with a test database in memory | a kit in memory |
| `TransactionTestCase` on another test database | that database, emptied with it |
| `SimpleTestCase`, and any before there is a test database | a kit in memory: never the real one |

Nothing in Django tells when a test begins, so the app looks each time that its store is asked for.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from stoker.contrib.django import settings
from stoker.contrib.django.transactions import opened
from stoker.engine_pool import EnginePool
from stoker.testing import kit as kits

if TYPE_CHECKING:
    from stoker.contrib.django.app import DjangoStoker
    from stoker.contrib.django.testing import Kit
    from stoker.testing import TestKit


class TestStores:
    """Gives the app the store of the test in progress."""

    __test__ = False  # pytest would take the class for one with tests

    def __init__(self, app: DjangoStoker) -> None:
        self._app = app
        self._lock = Lock()
        self._at: object = app.made_for
        self._round = 0
        self.kit: Kit | None = None
        self.used = False
        """Was the store asked for since it was empty?"""

    def follow(self) -> None:
        """Change the store if the test in progress has another one; a test kit of the user's own stays."""
        if not self._lock.acquire(blocking=False):
            return  # the change itself asks for the store, perhaps in another thread
        try:
            self.used = True
            explicit = kits.kit_of(self._app)
            if explicit is not None and explicit is not self.kit:
                return
            wanted = self._wanted()
            if (wanted is not self._at and wanted != self._at) or (self.kit is not None and explicit is None):
                self._move(wanted)
        finally:
            self._lock.release()

    def open_kit(self) -> TestKit | None:
        """The kit that is the store now."""
        self.follow()
        return kits.kit_of(self._app)

    def emptied(self) -> None:
        """Note that the test database is empty: so is a kit from now on."""
        self._round += 1
        self.used = False

    def _wanted(self) -> object:
        """The address of a store, or what a kit belongs to: a block of a `TestCase`, or a number."""
        for connection in opened():
            for block in reversed(connection.atomic_blocks):
                if block._from_testcase:  # noqa: SLF001 - as Django's `durable` looks
                    return block
        given = self._app.given
        if settings.is_forbidden() if given.alias is None else settings.is_out_of_reach(given.alias):
            return self._round
        return given.address

    def _move(self, wanted: object) -> None:
        from stoker.contrib.django.testing import Kit

        if self.kit is not None:
            self.kit.__exit__()
            self.kit = None
        if isinstance(wanted, str):
            self._change_pool(wanted)
        else:
            self.kit = Kit(self._app)
            self.kit.gives_way = True
            self.kit.__enter__()
        self._at = wanted

    def _change_pool(self, url: str) -> None:
        former: EnginePool = vars(self._app)["_pool"]
        vars(self._app)["_pool"] = self._app.pool_at(url)
        for member in former.take_all():
            kits.close_elsewhere(member)
