"""What all viewers share: one cache of what was read from the store, however many look.

A page takes what is young enough, and so do live streams: while a live page is open, the hub makes one store call every
two seconds, of what is most overdue. Whatever is read is a `Want`: the parts of the shared reading, and what streams of
pages that show more name. When the store does not answer, the last good reading stays, with its time.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

import msgspec

from stoker.admin.attention import Closer, Slowly, closer, homes, look_closer, read_slowly
from stoker.admin.documents import acknowledgements, releases
from stoker.app import Stoker
from stoker.app_path import named
from stoker.engines.base import Engine
from stoker.model.control import Presence, Queue
from stoker.model.errors import StokerError
from stoker.model.findings import LATE_AFTER, Situation
from stoker.model.query import Census
from stoker.model.redact import Redaction
from stoker.model.releases import Release
from stoker.model.schedule import Schedule
from stoker.model.time import MINUTE, SECOND, Span
from stoker.web.charts import PerMinute

logger = logging.getLogger("stoker.web")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

EVERY = 2.0
"""Seconds between two store calls of the hub."""

YOUNG = 2.0
"""A page is made from the shared reading if it is no older than this."""

LIMIT = 2.0
"""Seconds after which a question to the store is given up."""

CLOSELY = 6.0
"""Seconds after which what silent workers hold and what queues that wait long are used to is read again."""

RARELY = 30.0
"""Seconds after which schedules, streams, letters and deaths are read again."""

LATEST = 9.0
"""No prompt part grows older than this while a live page is open: it is read before anything else, or debts."""

WANTED = 6.0
"""Seconds after which what a live page wants besides is due again."""

MOST_OWED = 4
"""Beats that are left out at most for pages that open; each saves a store call."""


class Want(NamedTuple):
    """An extra query of a page, how many store calls it costs, and after how many seconds it is read again."""

    what: Hashable
    read: Callable[[Engine], Awaitable[tuple[Any, int]]]
    every: float = WANTED


class Turns(Generic[K, V]):
    """What is read of several things, a store call each: all at first, later a few at a time, in turn."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._known: dict[K, V] = {}

    async def read(self, things: Sequence[K], one: Callable[[K], Awaitable[V]]) -> tuple[dict[K, V], int]:
        """What is known of each of the things, and how many calls were made."""
        known = {thing: self._known[thing] for thing in self._known if thing in things}
        turn = [thing for thing in things if thing not in known] or list(known)[: self._at_once]
        fresh = {thing: await one(thing) for thing in turn}
        self._known = {thing: value for thing, value in known.items() if thing not in fresh} | fresh
        return self._known, len(turn)


@dataclass
class Kept:
    """What was read for a want, when, and how many streams show it."""

    want: Want
    value: Any = None
    read_at: float = -1e9
    viewers: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Reading(NamedTuple):
    """Counts, settings and workers, as one page needs them."""

    census: Census
    queues: Sequence[Queue]
    presences: Sequence[Presence]


def _part(name: str, ask: Callable[[Engine], Awaitable[Any]], every: float) -> Want:
    async def read(engine: Engine) -> tuple[Any, int]:
        return await ask(engine), 1

    return Want(name, read, every)


PARTS: Final = (
    _part("census", lambda engine: engine.operator.census(), 4.0),
    _part("queues", lambda engine: engine.control.queues(), 8.0),
    _part("presences", lambda engine: engine.control.workers(), 8.0),
)
"""What every page shows, by its name in a `Reading`; together they fill every beat."""

PROMPT: Final = ("queues", "presences")
"""Parts that the title of the overview follows: a pause and a worker that stops are seen within `LATEST` seconds."""


class Hub:
    """The shared reading of one store, on one loop."""

    def __init__(
        self,
        store: Stoker,
        clock: Callable[[], float] = time.monotonic,
        *,
        redact: Redaction | None = None,
        late_after: Span = LATE_AFTER,
    ) -> None:
        self._store = store
        self._app = named(store)
        self._clock = clock
        self._redact = redact or Redaction()
        self._late_after = late_after
        self._read_at = -1e9
        self._reading: Reading | None = None
        self._lock = asyncio.Lock()
        self._past: deque[Census] = deque(maxlen=40)
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._closely_at = -1e9
        self._slowly = Kept(Want("slowly", self._read_slowly, RARELY), Slowly(), viewers=1)
        self._kept: dict[Hashable, Kept] = {part.what: Kept(part, viewers=1) for part in PARTS}
        self._kept["slowly"] = self._slowly
        self.owed = 0
        self.version = ""
        self.releases: Sequence[Release] = ()
        """The latest first, as they were read last."""
        self._closer = Closer()
        self.away_since: float | None = None
        self.generation = 0
        self.calls = 0

    @property
    def last(self) -> Reading | None:
        """The last good reading, if there was one."""
        return self._reading

    def forget(self) -> None:
        """Read anew for the next page: something was changed."""
        self._read_at = self._closely_at = -1e9
        for kept in self._kept.values():
            if kept.want not in PARTS:  # the age of counts tells what time it is
                kept.read_at = -1e9

    async def reading(self) -> Reading:
        """A reading that is young enough; concurrent pages share one."""
        async with self._lock:
            if self._reading is None or self._clock() - self._read_at > YOUNG:
                engine = await self._store.engine()
                self.version = engine.version
                for part in PARTS:
                    await self._read(engine, self._kept[part.what])
                self._take(Reading(*(self._kept[name].value for name in Reading._fields)))
                self._read_at = self._clock()
                self._kept["presences"].read_at -= EVERY  # a beat before the queues: neither waits for the other
                if self._clock() - self._slowly.read_at > RARELY:
                    await self._read(engine, self._slowly)
                await self._look_closer(engine)
            assert self._reading is not None
            return self._reading

    async def wanted(self, want: Want, *, live: bool = False) -> Any:
        """What a page wants besides; what another viewer of the same thing has just read is shared.

        What a live page makes the hub read is saved by leaving out beats.
        """
        kept = self._kept.setdefault(want.what, Kept(want))
        async with kept.lock:
            if not self._young(kept):
                calls = await self._read(await self._store.engine(), kept)
                self.owed = min(self.owed + calls, MOST_OWED) if live else self.owed
        self._kept = {
            key: one for key, one in self._kept.items() if one.viewers or one.lock.locked() or self._young(one)
        }
        return kept.value

    def known(self, want: Want) -> Any:
        """What was read for a want of an open stream."""
        return self._kept[want.what].value

    def _young(self, kept: Kept) -> bool:
        return self._clock() - kept.read_at <= YOUNG

    async def _read(self, engine: Engine, kept: Kept) -> int:
        kept.value, calls = await kept.want.read(engine)
        kept.read_at = self._clock()
        self.calls += calls
        return calls

    async def _read_slowly(self, engine: Engine) -> tuple[Slowly, int]:
        found = await read_slowly(engine, self._kept["census"].value, self._redact)
        self.releases = await releases(engine)
        known, calls = await acknowledgements(engine), found.calls + 2
        return msgspec.structs.replace(found, acknowledged=known, calls=calls), calls

    @property
    def slowly(self) -> Slowly:
        """What is read more rarely, as it was read last."""
        return cast("Slowly", self._slowly.value)

    def learn_schedules(self, schedules: Sequence[Schedule]) -> None:
        """Take in the schedules that a page has just read."""
        self._slowly.value = msgspec.structs.replace(self.slowly, schedules=schedules)

    async def _look_closer(self, engine: Engine) -> int:
        """Read what trouble needs, from time to time while there is any."""
        if self._reading is None or self._clock() - self._closely_at <= CLOSELY:
            return 0
        self._closer = await look_closer(engine, self._plainly(self._reading))
        if self._closer.calls:
            self._closely_at = self._clock()
        self.calls += self._closer.calls
        return self._closer.calls

    def situation(self, reading: Reading) -> Situation:
        """What findings are made from, with what is read more rarely as it was read last."""
        return closer(self._plainly(reading), self._closer)

    def _plainly(self, reading: Reading) -> Situation:
        return Situation(
            census=reading.census,
            queues=reading.queues,
            presences=reading.presences,
            deaths=self.slowly.deaths,
            schedules=self.slowly.schedules,
            deliveries=self.slowly.deliveries,
            acknowledged=self.slowly.acknowledged,
            homes=homes(self._store, reading.census),
            app=self._app,
            late_after=self._late_after,
        )

    def current(self, reading: Reading) -> Reading:
        """The reading as of this moment: a job that was enqueued after its counts were read is no scheduled one."""
        passed = round(max(self._clock() - self._kept["census"].read_at, 0) * SECOND)
        return reading._replace(census=msgspec.structs.replace(reading.census, at=reading.census.at + passed))

    def _take(self, reading: Reading) -> None:
        self._reading = reading
        if not self._past or self._past[-1].at < reading.census.at:
            self._past.append(reading.census)
        self.away_since = None

    def flow(self, queue: str | None = None) -> PerMinute | None:
        """What came and went per minute, in a queue or in all, from totals some seconds apart; None without two."""
        if not self._past:
            return None
        now = self._past[-1]
        before = next((one for one in self._past if now.at - one.at <= MINUTE), now)
        apart = now.at - before.at
        if apart < 3 * SECOND:
            return None
        per = MINUTE / apart
        enqueued, completed, failed = (_sum(now, name, queue) - _sum(before, name, queue) for name in PerMinute._fields)
        return PerMinute(max(enqueued, 0) * per, max(completed, 0) * per, max(failed, 0) * per)

    # --- live -------------------------------------------------------------------------------------------------------

    def enter(self, wants: Sequence[Want] = ()) -> None:
        """One more viewer, of what `wanted` has read for it; the first one starts the beat."""
        self._viewers += 1
        for want in wants:
            self._kept.setdefault(want.what, Kept(want)).viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._beat(), name="stoker-dashboard")

    def leave(self, wants: Sequence[Want] = ()) -> None:
        """One viewer less; without any the hub asks nothing."""
        self._viewers -= 1
        for want in wants:
            kept = self._kept[want.what]
            kept.viewers -= 1
            if not kept.viewers:
                del self._kept[want.what]
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    @property
    def viewers(self) -> int:
        """How many streams are open."""
        return self._viewers

    async def news(self, seen: int, timeout: float) -> int:
        """Wait for a newer generation than the one seen, or for the time-out; returns the present one."""
        try:
            async with asyncio.timeout(timeout):
                while self.generation == seen:
                    await self._news.wait()
        except TimeoutError:
            pass
        return self.generation

    async def close(self) -> None:
        """End the beat."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            try:
                async with asyncio.timeout(LIMIT):
                    if self.owed and not self._late(self._clock()):  # what took more calls is saved by silent beats
                        self.owed -= 1
                    else:
                        await self._refresh()
            except Exception as error:
                if self.away_since is None:
                    known = isinstance(error, StokerError | TimeoutError)
                    logger.warning(
                        "the dashboard cannot read the store: %s. Trying again.",
                        type(error).__name__,
                        exc_info=None if known else error,
                    )
                    self.away_since = self._clock()
            self.generation += 1
            self._news.set()
            self._news.clear()

    def _late(self, now: float) -> list[Kept]:
        """The prompt parts that would be too old at the next beat."""
        return [self._kept[name] for name in PROMPT if now + EVERY - self._kept[name].read_at > LATEST]

    async def _refresh(self) -> None:
        """Read what is most overdue, prompt parts first."""
        if self._reading is None:
            await self.reading()
            return
        now, engine = self._clock(), await self._store.engine()
        rarely = [self._slowly] if now - self._slowly.read_at > RARELY else []
        shown = self._late(now) or rarely or [kept for kept in self._kept.values() if kept.viewers]
        chosen = max(shown, key=lambda kept: (now - kept.read_at) / kept.want.every)
        chosen.read_at = now  # also when it cannot be read: the others come first then
        async with chosen.lock:
            calls = await self._read(engine, chosen)
        if chosen.want in PARTS:
            self._take(Reading(*(self._kept[name].value for name in Reading._fields)))
            calls += await self._look_closer(engine)
        self.owed += max(calls - 1, 0)


def _sum(census: Census, name: str, queue: str | None) -> int:
    totals = census.totals
    counted = totals.values() if queue is None else [totals[queue]] if queue in totals else []
    return sum(getattr(total, name) for total in counted)
