"""The limit on Redis: the engine's calls in a plain loop, one after the other on one connection.

What is sent is learnt from the engine itself: it stores, claims and settles one batch on a scratch prefix, its calls
are written down, and the loop sends the same ones with other ids. So the limit follows when the engine learns a better
way. What is missing here is what the engine adds: records that are read, values of the model, verdicts, repeated sends
after a loss, wake-ups.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from redis.asyncio import Connection

from benchmarks.app import QUEUE
from benchmarks.doors import WORKER, drafts, successes
from stoker.engines.redis import RedisEngine, record_format
from stoker.engines.redis.keys import WAKE, Shard
from stoker.model.ids import JobId
from stoker.model.job import Demand
from stoker.model.time import HOUR
from stoker.registry import mint


class Call(NamedTuple):
    """A call of the engine as it goes over the wire, and which of its words depend on the jobs."""

    words: list[Any]
    jobs: list[tuple[int, list[int]]]
    fences: list[int]

    def about(self, ids: Sequence[JobId], fence: bytes = b"") -> list[Any]:
        """The same about other jobs."""
        words = self.words.copy()
        for place, numbers in self.jobs:
            words[place] = b"".join([ids[number] for number in numbers])
        for place in self.fences:
            words[place] = fence
        return words


class Lesson(NamedTuple):
    """The three calls for batches of one size."""

    insert: Call
    claim: Call
    settle: Call


async def learn(url: str, prefix: str, batch: int) -> Lesson:
    """What the engine sends for a batch, for the keys of another prefix."""
    scratch = f"{prefix}_scratch"
    engine = RedisEngine(url, prefix=scratch)
    await engine.open()
    connection: Any = engine._store.connection  # noqa: SLF001 - what passes there is the point
    ask = connection._ask  # noqa: SLF001
    sent: list[list[Any]] = []

    async def noting(commands: Sequence[Sequence[Any]], **how: Any) -> Any:
        sent.extend([*command] for command in commands if command[0] == "EVALSHA")
        return await ask(commands, **how)

    try:
        await engine.jobs.renew(WORKER, [], first=True, lease=HOUR)
        ids = [mint() for _ in range(batch)]
        demand = Demand(WORKER, ((QUEUE, batch),), batch)
        # Once without listening: what the server has not seen before is sent twice.
        await engine.jobs.insert(drafts([mint() for _ in range(batch)]))
        await engine.jobs.settle(successes(await engine.jobs.claim(demand)), demand=demand)
        connection._ask = noting  # noqa: SLF001
        await engine.jobs.insert(drafts(ids))
        claims = await engine.jobs.claim(demand)
        await engine.jobs.settle(successes(claims), demand=demand)
    finally:
        await engine.close()
    places = {job: number for number, job in enumerate(ids)}
    fence = record_format.fence(WORKER, claims[0].token)

    def call(words: list[Any]) -> Call:
        renamed = [word.replace(scratch, prefix) if isinstance(word, str) else word for word in words]
        # Ids come alone and packed.
        packed = [(place, record_format.ids_of(word)) for place, word in enumerate(words) if isinstance(word, bytes)]
        jobs = [(place, [places[job] for job in ids]) for place, ids in packed if ids and places.keys() >= set(ids)]
        return Call(renamed, jobs, [place for place, word in enumerate(words) if word == fence])

    inserting, claiming, settling = (call(words) for words in sent)
    return Lesson(inserting, claiming, settling)


async def _connected(url: str) -> Any:
    parts = urlsplit(url)
    connection: Any = Connection(host=parts.hostname or "localhost", port=parts.port or 6379, socket_timeout=60)
    await connection.connect()
    return connection


class BareRedis:
    """One connection, one prefix."""

    def __init__(self, connection: Any, url: str, prefix: str) -> None:
        self._connection = connection
        self._url = url
        self._prefix = prefix
        self._lessons: dict[int, Lesson] = {}
        self._held: list[bytes] = []
        self._fence = b""
        self._ear: Any = None

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, prefix: str) -> AsyncIterator[BareRedis]:
        engine = RedisEngine(url, prefix=prefix)
        await engine.open()
        await engine.jobs.renew(WORKER, [], first=True, lease=HOUR)
        await engine.close()
        connection = await _connected(url)
        bare = cls(connection, url, prefix)
        try:
            yield bare
        finally:
            for one in filter(None, (connection, bare._ear)):
                await one.disconnect()

    async def prepare(self, batch: int) -> None:
        """Learn how batches of this size are sent."""
        if batch not in self._lessons:
            self._lessons[batch] = await learn(self._url, self._prefix, batch)

    async def _ask(self, command: Sequence[Any]) -> Any:
        await self._connection.send_command(*command)
        return await self._connection.read_response()

    async def insert(self, ids: Sequence[JobId]) -> None:
        """Store one batch."""
        await self._ask(self._lessons[len(ids)].insert.about(ids))

    async def turn(self, batch: int) -> int:
        """End what is held and take the next; how many were ended. What is left of a batch at the end is left."""
        lesson, held = self._lessons[batch], self._held
        told, *_, found = await self._ask(
            lesson.settle.about(held, self._fence) if held else lesson.claim.about((), self._fence)
        )
        jobs = [job[:16] for *_, jobs in found for job in jobs]
        self._held = jobs if len(jobs) == batch else []
        self._fence = record_format.fence(WORKER, int(told.partition(b":")[0]))  # behind the instant may stand a count
        return len(held)

    async def heard(self) -> None:
        """Wait for the token of a producer that stored something."""
        if self._ear is None:
            self._ear = await _connected(self._url)
        await self._ear.send_command("BLPOP", Shard(self._prefix).of_queue(WAKE, QUEUE), 0)
        await self._ear.read_response(timeout=None)

    @property
    def holding(self) -> bool:
        return bool(self._held)
