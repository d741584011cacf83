"""What an app can do besides enqueueing: pause a queue, spend from a budget, hold a named lock.

Each object here is a name and the app it belongs to; the state is in the store, shared by every process. Every action
has an async form and, for code without a loop, a sync one that ends in `_sync` (a lock is used with `with`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker import records
from stoker.model import ids
from stoker.model.control import Tuning
from stoker.model.errors import StokerError
from stoker.model.job import check_name
from stoker.model.time import Seconds, span
from stoker.records import Grant

if TYPE_CHECKING:
    from stoker.app import Stoker


class QueueHandle:
    """One queue, by name."""

    __slots__ = ("_app", "name")

    def __init__(self, app: Stoker, name: str) -> None:
        check_name("queue", name)
        self._app = app
        self.name = name

    def __repr__(self) -> str:
        return f"<QueueHandle {self.name}>"

    async def pause(self) -> None:
        """Stop every worker from claiming jobs of this queue; running jobs and enqueueing go on."""
        await self._tune(paused=True)

    async def resume(self) -> None:
        """Let workers claim from this queue again, and wake one."""
        await self._tune(paused=False)

    def pause_sync(self) -> None:
        """`pause` for code without a loop."""
        self._app.run(self.pause(), instead=f"`await jobs.queue({self.name!r}).pause()`")

    def resume_sync(self) -> None:
        """`resume` for code without a loop."""
        self._app.run(self.resume(), instead=f"`await jobs.queue({self.name!r}).resume()`")

    async def _tune(self, *, paused: bool) -> None:
        engine = await self._app.engine()
        await engine.tune(self.name, Tuning(paused=paused))


class BudgetHandle:
    """One budget, by name: tokens in the store that every process spends from."""

    __slots__ = ("_app", "name")

    def __init__(self, app: Stoker, name: str) -> None:
        check_name("budget", name)
        self._app = app
        self.name = name

    def __repr__(self) -> str:
        return f"<BudgetHandle {self.name}>"

    async def spend(self, n: int = 1) -> Grant:
        """Take `n` tokens or none, in one atomic step. A refusal costs nothing; an unknown budget refuses."""
        engine = await self._app.engine()
        return records.grant(await engine.spend(self.name, n))

    async def drain(self) -> bool:
        """Empty the budget, because the real limiter refused. False when there is none of that name."""
        engine = await self._app.engine()
        return await engine.drain(self.name)

    def spend_sync(self, n: int = 1) -> Grant:
        """`spend` for code without a loop."""
        return self._app.run(self.spend(n), instead=f"`await jobs.budget({self.name!r}).spend()`")

    def drain_sync(self) -> bool:
        """`drain` for code without a loop."""
        return self._app.run(self.drain(), instead=f"`await jobs.budget({self.name!r}).drain()`")


class LockHandle:
    """A named lock that never waits: `async with` and `with` return whether it is held.

    It lapses after its lease, so a process that dies does not keep it.
    """

    __slots__ = ("_app", "_lease", "_owner", "name")

    def __init__(self, app: Stoker, name: str, lease: Seconds) -> None:
        check_name("lock", name)
        self._app = app
        self._lease = span(lease, "lease")
        self._owner: str | None = None
        self.name = name

    def __repr__(self) -> str:
        return f"<LockHandle {self.name}>"

    async def __aenter__(self) -> bool:
        if self._owner is not None:
            raise StokerError(f"lock {self.name!r} is entered already; call jobs.lock({self.name!r}) for each block")
        owner = ids.text(self._app.mint())
        engine = await self._app.engine()
        held = await engine.lock(self.name, owner, self._lease)
        if held:
            self._owner = owner
        return held

    async def __aexit__(self, *exc: object) -> None:
        owner, self._owner = self._owner, None
        if owner is not None:
            engine = await self._app.engine()
            await engine.unlock(self.name, owner)

    def __enter__(self) -> bool:
        return self._app.run(self.__aenter__(), instead=f"`async with jobs.lock({self.name!r})`")

    def __exit__(self, *exc: object) -> None:
        self._app.run(self.__aexit__(*exc), instead=f"`async with jobs.lock({self.name!r})`")
