"""What an app can do besides enqueueing: pause and tune a queue, spend from a budget, hold a named lock.

Each object here is a name and the app it belongs to; the state is in the store, shared by every process. Every action
has an async form and, for code without a loop, a sync one that ends in `_sync` (a lock is used with `with`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stoker import views
from stoker.model import ids, throttle
from stoker.model.budgets import (
    ONLY,
    Buckets,
    Rates,
    Refusal,
    Spend,
    asked_of,
    at_hand,
    read_address,
    refusal,
    unfit,
)
from stoker.model.control import SETTINGS, UNDECLARED, Queue, Tuning
from stoker.model.errors import InvalidInput, LockLost, StokerError
from stoker.model.job import check_name
from stoker.model.throttle import Rate
from stoker.model.time import SECOND, Seconds, Span, instant, span
from stoker.sync import in_sync
from stoker.views import Curve, Grant, QueueSettings

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.base import Engine

logger = logging.getLogger("stoker.lock")


def tuning(
    workers: int | None = None,
    fair: bool | None = None,
    rate: Rate | None = None,
    keep_done: Seconds | None = None,
    keep_dead: Seconds | None = None,
    curve: Curve | None = None,
) -> Tuning:
    """The tuning for settings as users write them."""
    if curve is not None and not isinstance(curve, Curve):
        raise InvalidInput("curve", curve, "must be a Curve, such as Curve(base=60, max=1800)")
    return Tuning(
        workers=workers,
        fair=fair,
        rate=rate,
        keep_done=None if keep_done is None else span(keep_done, "keep_done"),
        keep_dead=None if keep_dead is None else span(keep_dead, "keep_dead"),
        curve=None if curve is None else curve.stored(),
    )


class Declarations:
    """What an app's code declares: settings of queues and rates of budgets. A worker stores them when it starts.

    `keep_dead` is declared for each queue that declares none of its own.
    """

    def __init__(self, keep_dead: Seconds | None = None) -> None:
        self.queues: dict[str, Tuning] = {}
        self.budgets: dict[str, Rates] = {}
        self._keep_dead = tuning(keep_dead=keep_dead).keep_dead

    def queue(self, name: str, tuning: Tuning) -> None:
        """Declare settings of a queue. Settings of several declarations add up; two values for one are refused."""
        before = self.queues.get(name, Tuning())
        both: dict[str, Any] = {}
        for field in SETTINGS:
            old, new = getattr(before, field), getattr(tuning, field)
            if old is not None and new is not None and old != new:
                raise InvalidInput(field, new, f"queue {name!r} is declared with {old} already; declare it once")
            both[field] = old if new is None else new
        if (declared := Tuning(**both)) != Tuning():
            self.queues[name] = declared

    def budget(self, name: str, rates: Rates) -> None:
        """Declare the rates of a budget; two different declarations are refused."""
        before = self.budgets.setdefault(name, rates)
        if before != rates:
            was = f"budget {name!r} is declared with {_declared(before)} already; declare it once"
            raise InvalidInput("budget", _declared(rates), was)

    async def store(self, engine: Engine, served: Iterable[str] = ()) -> None:
        """Store what is declared, the retention of dead jobs also for queues `served`; what people changed stays."""
        for queue in dict.fromkeys((*self.queues, *(() if self._keep_dead is None else served))):
            settings = self.queues.get(queue, UNDECLARED)
            if settings.keep_dead is None:
                settings = replace(settings, keep_dead=self._keep_dead)
            await engine.control.tune(queue, settings, declared=True)
        for budget, rates in self.budgets.items():
            await engine.control.tune(budget, rates, declared=True)


def given_rates(rate: Rate | None, measures: Mapping[str, Rate], *, keyed: bool = False) -> Rates | None:
    """The rates that a caller gives: one, or one for each measure; None: none."""
    found = {**({} if rate is None else {ONLY: rate}), **measures}
    if not found and keyed:
        raise InvalidInput("keyed", keyed, "belongs to a declaration; give the rate of each measure too")
    return Rates(found, keyed) if found else None


def _declared(rates: Rates) -> str:
    each = (f"{measure}={rate.in_words}" if measure else rate.in_words for measure, rate in rates.rates.items())
    return ", ".join(each) + (", keyed" if rates.keyed else "")


class QueueHandle:
    """One queue, by name."""

    __slots__ = ("_app", "name")

    def __init__(self, app: Stoker, name: str) -> None:
        self._app = app
        self.name = check_name("queue", name)

    def __repr__(self) -> str:
        return f"<QueueHandle {self.name}>"

    async def pause(
        self,
        *,
        for_: Seconds | None = None,
        until: datetime | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> None:
        """Stop every worker from claiming jobs of this queue; running jobs and enqueueing go on.

        With `for_` or `until` the queue opens by itself. A pause replaces the one before.
        """
        if until is not None and for_ is not None:
            raise InvalidInput("until", until, "cannot go with for_; give one of them")
        lasts = None if for_ is None else span(for_, "for_")
        if until is not None:
            lasts = instant(until, "until") - await (await self._app.engine()).now()
        if lasts is not None and lasts <= 0:
            raise InvalidInput("for_" if until is None else "until", until or for_, "must end in the future")
        await self._tune(Tuning(paused=True, pause_for=lasts, reason=reason, by=by))

    async def resume(self) -> None:
        """Let workers claim from this queue again, and wake one."""
        await self._tune(Tuning(paused=False))

    async def tune(
        self,
        *,
        workers: int | None = None,
        fair: bool | None = None,
        rate: Rate | None = None,
        keep_done: Seconds | None = None,
        keep_dead: Seconds | None = None,
        curve: Curve | None = None,
    ) -> None:
        """Change settings of this queue, for every worker; what is not given stays."""
        await self._tune(tuning(workers, fair, rate, keep_done, keep_dead, curve))

    async def clear(self, *settings: str) -> None:
        """Give settings their defaults again: workers, fair, rate, keep_done, keep_dead, curve."""
        await self._tune(Tuning(clear=frozenset(settings)))

    async def settings(self) -> QueueSettings:
        """The settings of this queue as stored now, defaults included."""
        engine = await self._app.engine()
        plain = Queue(name=self.name, keep_done=engine.keep_done)
        found = next((queue for queue in await engine.control.queues() if queue.name == self.name), plain)
        return views.queue_settings(found, plain, await engine.now())

    async def _tune(self, tuning: Tuning) -> None:
        engine = await self._app.engine()
        await engine.control.tune(self.name, tuning)

    pause_sync = in_sync(pause)
    resume_sync = in_sync(resume)
    tune_sync = in_sync(tune)
    clear_sync = in_sync(clear)
    settings_sync = in_sync(settings)


class BudgetHandle:
    """One budget, by name: tokens in the store that every process spends from."""

    __slots__ = ("_app", "name")

    def __init__(self, app: Stoker, name: str) -> None:
        self._app = app
        self.name = check_name("budget", name)

    def __repr__(self) -> str:
        return f"<BudgetHandle {self.name}>"

    async def tune(self, /, rate: Rate | None = None, **measures: Rate) -> None:
        """Set the rate, or those of some measures; tokens at hand are kept as far as they fit. A new budget is full."""
        declared = self._app.declarations.budgets.get(self.name)
        rates = given_rates(rate, measures, keyed=declared is not None and declared.keyed)
        if rates is None:
            raise InvalidInput("rate", rate, "must be a Rate, such as Rate(100, per=60)")
        engine = await self._app.engine()
        await engine.control.tune(self.name, rates)

    async def spend(self, /, n: int | None = None, *, key: str | None = None, **measures: int) -> Grant:
        """Take `n` tokens, or those of every measure that is named, or none, in one atomic step.

        A refusal costs nothing and says which measure refuses, and why. An unknown budget refuses, and so does one that
        can never hold as many. `key`: whose tokens, where each key has its own.
        """
        given, refused = await self.request(Spend(asked_of(n, measures), key))
        return views.grant(given, None if refused is None else refused.why)

    async def request(self, spend: Spend) -> tuple[throttle.Grant, Refusal | None]:
        """Ask for tokens; a refusal comes with its cause."""
        declared = self._app.declarations.budgets.get(self.name)
        if declared is not None and (why := unfit(self.name, spend, declared)) is not None:
            raise InvalidInput("spend", self.name, why)
        engine = await self._app.engine()
        given = await engine.control.spend(self.name, spend)
        if given.granted:
            return given, None
        stored = None
        if given.capacity is None or (declared is None and spend.asked[given.measure] > given.capacity):
            stored = next((one for one in await engine.control.budgets() if one.name == self.name), None)
        if declared is None and stored is not None and given.capacity is not None:
            declared = stored.declared
        return given, refusal(self.name, spend, given, declared, stored)

    async def drain(self, *, key: str | None = None) -> bool:
        """Empty the budget, or one key of it, because the real limiter refused. False when there is no such bucket."""
        engine = await self._app.engine()
        return await engine.control.drain(self.name, key=key)

    tune_sync = in_sync(tune)
    spend_sync = in_sync(spend)
    drain_sync = in_sync(drain)


async def holding(engine: Engine, held: str) -> Buckets:
    """The buckets of the budget, and the key, that refused a job (`explain.held_by`); empty: there are none."""
    name, _, key = read_address(held)
    budget = next((one for one in await engine.control.budgets() if one.name == name), None)
    kept = [] if key is None else await engine.control.buckets(name, keys=[key])
    return at_hand(budget, key, kept[0].buckets if kept else None, now=0) or {}


def _lease(given: Seconds) -> Span:
    """How long a lock is held. One of no length guards nothing, so it is refused."""
    length = span(given, "lease")
    if length == 0:
        raise InvalidInput("lease", given, "must be more than 0, else the lock guards nothing")
    return length


class LockHandle:
    """A named lock that never waits: `async with` and `with` return whether it is held.

    It lapses after its lease, so a process that dies does not keep it. A block that needs longer calls `extend` before
    the lease ends. A block that has lost the lock when it ends raises `LockLost`.
    """

    __slots__ = ("_app", "_lease", "_owner", "_until", "name")

    def __init__(self, app: Stoker, name: str, lease: Seconds) -> None:
        check_name("lock", name)
        self._app = app
        self._lease = _lease(lease)
        self._owner: str | None = None
        self._until = 0.0
        self.name = name

    def __repr__(self) -> str:
        return f"<LockHandle {self.name}>"

    @property
    def held(self) -> bool:
        """Does the block hold the lock, as far as this process knows? False from the end of its lease."""
        return self._owner is not None and monotonic() < self._until

    async def extend(self, lease: Seconds | None = None) -> bool:
        """Hold the lock for `lease` from now on, the one it was made with unless given; return whether it is held.

        False: it lapsed and another process took it, or the block never had it.
        """
        length = self._lease if lease is None else _lease(lease)
        if self._owner is None:
            return False
        engine = await self._app.engine()
        # A lapsed lock may have been another's since. Releasing tells: it is refused to all but the last owner.
        if not self.held and not await engine.control.unlock(self.name, self._owner):
            return False
        return await self._take(engine, self._owner, length)

    extend_sync = in_sync(extend)

    async def _take(self, engine: Engine, owner: str, lease: Span) -> bool:
        asked = monotonic()
        taken = await engine.control.lock(self.name, owner, lease)
        self._until = asked + lease / SECOND if taken else 0.0
        return taken

    async def __aenter__(self) -> bool:
        if self._owner is not None:
            raise StokerError(f"lock {self.name!r} is entered already; call jobs.lock({self.name!r}) for each block")
        owner = ids.text(self._app.mint())
        engine = await self._app.engine()
        held = await self._take(engine, owner, self._lease)
        if held:
            self._owner = owner
        return held

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        lapsed = not self.held
        owner, self._owner = self._owner, None
        if owner is None:
            return
        engine = await self._app.engine()
        if not await engine.control.unlock(self.name, owner):
            if error is None:
                raise LockLost(self.name)
            logger.warning("%s", LockLost(self.name))
        elif lapsed:
            logger.warning(
                "the block of lock %r outlasted the lease of the lock. No other process took the lock meanwhile, so "
                "nothing ran twice. Give jobs.lock a longer lease=, or call extend() in the block.",
                self.name,
            )

    def __enter__(self) -> bool:
        return self._app.run(self.__aenter__(), instead=f"`async with jobs.lock({self.name!r})`")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._app.run(self.__aexit__(kind, error, trace), instead=f"`async with jobs.lock({self.name!r})`")
