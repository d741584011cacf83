"""The store as the engine's modules see it: shards, scripts, the clock, and units of work.

Routing is here and nowhere else. A single Redis has one shard for everything. On a cluster each queue has its own, and
the home shard holds the set of known queues; a queue is written there before anything is stored under it.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from stoker.engines.base import CONTROL, PLACELESS, Clock, Transaction
from stoker.engines.call_times import CallTimes
from stoker.engines.redis import groups, record_format
from stoker.engines.redis.cluster.fan_out import spread
from stoker.engines.redis.connection import Address, Connection
from stoker.engines.redis.keys import WAKE, Keys, Shard
from stoker.engines.redis.scripts import Script, script
from stoker.engines.redis.stored_job import StoredJob
from stoker.engines.redis.unit_of_work import Unit
from stoker.engines.redis.wakeup import Notifier
from stoker.engines.shared.audit_lines import tell
from stoker.engines.shared.job_end_waiters import Interest
from stoker.model.errors import CorruptRecord, EngineBusy, EngineError, EngineRefused, EngineUnavailable
from stoker.model.groups import Closing, ignore
from stoker.model.humanize import count
from stoker.model.ids import JobId
from stoker.model.job import Status, salvaged
from stoker.model.record import Record
from stoker.model.time import MINUTE, Instant

T = TypeVar("T")
log = logging.getLogger("stoker.engines.redis")

MOST_TRIES = 100
MOST_LOSSES = 3
MOST_REMEMBERED = 10_000
LOADED_AT_ONCE = 1_000

_interests: dict[tuple[str, str], Interest] = {}
"""By store: the jobs that other processes wait for. One engine of a process receives them, any may end the job."""

BLANK: dict[str, Any] = {"kind": "", "queue": "", "priority": 0, "budget": 0, "created_at": 0, "scheduled_at": 0}
"""What a job has of whose body nothing can be read."""

_LOAD = script("load")
_ENDED = script("ended")
_NOW = script("now")
_COMMIT = script("commit")


class Options(msgspec.Struct, frozen=True):
    """What an engine is made with, and each copy for another loop."""

    address: Address
    prefix: str
    clock: Clock | None = None
    timeout: float = 5.0
    patience: float = 2.0


class Store:
    """One engine's view of the store."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.call_times = CallTimes()
        self.history: int | None = None
        self.connection = Connection(options.address, timeout=options.timeout, patience=options.patience)
        self.home = Shard(options.prefix)
        interest = _interests.setdefault((options.address.url, options.prefix), Interest())
        self.notifier = Notifier(self.connection, self.home, f"{options.prefix}@control", interest, self._ended)
        self._shards: dict[str, Shard] = {}
        self._known: set[str] = set()
        self._keyed: dict[str, str] = {}
        self.enlisted: set[tuple[str, str]] = set()
        self.with_subqueues: set[str] = set()
        """Queues that have or had subqueues: scripts about them are called in the form that knows these."""
        self._latest: Instant = 0
        self.counted_as = ""
        self.emit_closing: Callable[[Closing], None] = ignore
        self.notes: OrderedDict[tuple[JobId, int], bytes] = OrderedDict()

    # --- life and time ------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.connection.open()

    async def close(self) -> None:
        await self.notifier.close()
        await self.connection.close()

    def arg_now(self) -> str:
        """The time as scripts take it: the injected clock's, or nothing for the server's own."""
        return self.counted_as if self.options.clock is None else str(self.options.clock())

    def local_now(self) -> Instant:
        """About now, without a call."""
        return time.time_ns() // 1_000 if self.options.clock is None else self.options.clock()

    async def now(self) -> Instant:
        return self.seen(await self.run(_NOW, self.home, ()))

    def seen(self, instant: bytes) -> Instant:
        """An instant that a script returned; logs when the store's clock went back."""
        now = int(instant)
        if now < self._latest - MINUTE:
            log.warning("the clock of Redis went back by more than a minute; the store's clock followed it")
            self._latest = now
        self._latest = max(self._latest, now)
        return now

    # --- shards -------------------------------------------------------------------------------------------------

    def shard(self, queue: str) -> Shard:
        """Where a queue's jobs are."""
        if not self.connection.cluster:
            return self.home
        found = self._shards.get(queue)
        if found is None:
            found = self._shards[queue] = Shard(self.options.prefix, queue)
        return found

    async def shards(self) -> list[Shard]:
        """Every shard that holds jobs."""
        if not self.connection.cluster:
            return [self.home]
        names = await self.connection.call("SMEMBERS", self.home.key("known"))
        self._known = {name.decode() for name in names}
        return [self.shard(name) for name in sorted(self._known)]

    def familiar(self) -> list[Shard]:
        """The home shard and those of queues this engine has used."""
        return [self.home, *(self.shard(name) for name in sorted(self._known) if self.connection.cluster)]

    async def introduce(self, queues: Iterable[str]) -> None:
        """Make queues known before something is stored under them."""
        new = [queue for queue in queues if queue not in self._known]
        if new and self.connection.cluster:
            await self.connection.call("SADD", self.home.key("known"), *new)
            self._known.update(new)

    async def knows(self, queue: str) -> bool:
        """Was anything ever stored in this queue?"""
        if queue not in self._known and self.connection.cluster:
            await self.shards()
        return queue in self._known or not self.connection.cluster

    async def queue_of_kind(self, kind: str, queue: str) -> str:
        """The one queue of a cluster to which keyed jobs of this kind go: the first one they were sent to."""
        if kind not in self._keyed:
            key = self.home.key("keyed")
            _, found = await self.connection.pipeline([("HSETNX", key, kind, queue), ("HGET", key, kind)])
            self._keyed[kind] = found.decode()
        return self._keyed[kind]

    # --- scripts ------------------------------------------------------------------------------------------------

    async def run(
        self,
        script_: Script,
        shard: Shard,
        args: Sequence[Any],
        *,
        queues: Sequence[str] = (),
        more: Sequence[str] = (),
        repeat: bool = True,
        with_subqueues: bool = False,
    ) -> Any:
        """Run a script on a shard, with the keys of these queues and whatever more it is about.

        `with_subqueues`: the script is in the form that knows subqueues.
        """
        keys = [*shard.all_keys(queues, with_subqueues=with_subqueues), *more]
        return await self.connection.run(script_, keys, (self.arg_now(), *args), repeat=repeat)

    async def read(
        self, shard: Shard, ids: Sequence[JobId], *, details: bool = False
    ) -> tuple[Instant, list[StoredJob | None]]:
        """Records by id, in the order asked, and the store's now."""
        found: list[StoredJob | None] = []
        now = 0
        for start in range(0, max(len(ids), 1), LOADED_AT_ONCE):
            part = ids[start : start + LOADED_AT_ONCE]
            instant, rows = await self.run(_LOAD, shard, ("1" if details else "", *part))
            now = now or self.seen(instant)
            found += [stored_of(row) if row else None for row in rows]
        return now, found

    async def _ended(self, jobs: Sequence[JobId]) -> list[JobId]:
        """Those of the jobs that are active on no shard."""
        found = await spread(await self.shards(), lambda shard: self.run(_ENDED, shard, jobs))
        return [job for number, job in enumerate(jobs) if not any(letters[number] == ord("a") for _, letters in found)]

    def remember(self, job: JobId, token: int, notes: bytes) -> None:
        """Keep what a running job's notes are: only its own worker writes them."""
        self.notes[job, token] = notes
        self.notes.move_to_end((job, token))
        while len(self.notes) > MOST_REMEMBERED:
            self.notes.popitem(last=False)

    # --- units of work ------------------------------------------------------------------------------------------

    async def work(
        self, shard: Shard, task: Callable[[Unit], Awaitable[T]], *, repeat: bool = False, make: type[Unit] = Unit
    ) -> T:
        """Do a task by compare-and-set, again until no other call changed the same jobs meanwhile.

        `repeat`: also when the reply was lost, because the task gives the same result when it is done twice.
        """
        losses = 0
        for _ in range(MOST_TRIES):
            unit = make(self, shard)
            answer = await task(unit)
            try:
                done = unit.idle or await self._commit(unit)
            except EngineUnavailable:
                losses += 1
                if not repeat or losses > MOST_LOSSES:
                    raise
                continue
            if done:
                await self.wake_for(unit)
                await self.close_groups(shard, unit.completed)
                tell(unit.entries)
                return answer
        raise EngineBusy("others changed the same jobs a hundred times in a row. Nothing was written; try again.")

    async def _commit(self, unit: Unit) -> bool:
        keys = Keys(unit.shard.fixed)
        args = unit.encoded(keys)
        instant, written, *closed = await self.connection.run(
            _COMMIT, keys.names, (self.arg_now(), *args), repeat=False
        )
        self.seen(instant)
        unit.completed = closed[0] if closed else []
        return bool(written)

    async def close_groups(self, shard: Shard, closed: Sequence[groups.Completed]) -> None:
        """Emit groups that a script has closed, and store their callbacks; a sweep does so where that fails now."""
        if not closed:
            return
        try:
            await groups.close(self, shard, closed)
        except EngineError as error:
            log.warning("the next sweep stores the callbacks of %s: %s", count(len(closed), "group"), error)

    async def wake_for(self, unit: Unit) -> None:
        """Wake the waiters that a unit's script could not reach."""
        topics = unit.woken if self.connection.cluster else unit.woken & {CONTROL}
        if topics:
            await self.wake(topics)

    async def wake(self, topics: Iterable[str]) -> None:
        """Wake waiters on every process."""
        wanted = list(dict.fromkeys(topics))
        queues = [topic for topic in wanted if topic != CONTROL]
        commands: list[tuple[Any, ...]] = []
        if CONTROL in wanted:
            commands.append(("PUBLISH", self.notifier.channel, "1"))
        for queue in queues:
            key = self.home.of_queue(WAKE, queue)
            # One token is enough; a second one, by a race, only makes a worker claim once more.
            commands += [("RPUSH", key, "1"), ("LTRIM", key, -1, -1)]
        if commands:
            await self.connection.pipeline(commands)


def refuse(tx: Transaction | None) -> None:
    """Redis has no transactions that hold anything back, so it takes part in none."""
    if tx is not None:
        kind = type(tx)
        raise EngineRefused(
            f"Redis takes no tx= (it was given {kind.__module__}.{kind.__qualname__}): a job there cannot wait for a "
            f"database to commit. Nothing was stored. Do it after the commit, or keep the jobs in that database."
        )


def stored_of(row: list[Any]) -> StoredJob:
    """A job from the answer of `load`; one that cannot be read is shown as a dead job, as far as it can."""
    body, state, last, aside = row[:4]
    try:
        job = record_format.read_body(body)
    except CorruptRecord as error:
        return _broken(StoredJob(Record(**BLANK, id=body[:16], payload=body, options=salvaged(body))), error)
    if state == b"":
        return _broken(job, CorruptRecord(PLACELESS))
    try:
        record_format.apply_state(job, state)
    except CorruptRecord as error:
        return _broken(job, error)
    if aside is not None:
        job.corrupt, job.aside = aside.decode(errors="replace"), True
    if state is not None:
        more: dict[str, Any] = {"last_error": last.decode(errors="replace") if last is not None else None}
        if len(row) > 4:
            job.notes = row[4]
            more |= {"result": row[5], "history": record_format.history(job.errors, row[6])}
        job.change(**more)
    return job


def _broken(job: StoredJob, error: CorruptRecord) -> StoredJob:
    job.corrupt, job.broken = str(error), True
    job.change(status=Status.DEAD, last_error=f"corrupt record: {error}")
    return job
