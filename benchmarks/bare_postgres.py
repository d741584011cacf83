"""The limit on Postgres: the engine's statements in a plain loop, each on a session of its own.

What is sent is learnt from the engine itself: on a scratch schema it stores, claims and settles, its statements are
written down, and the loop sends the same ones about other jobs. So the limit follows when the engine learns a better
way. What is missing here is what the engine adds: values of the model, verdicts, marks, turns that are waited for,
wake-ups.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from benchmarks.app import QUEUE
from benchmarks.doors import WORKER, drafts, successes
from stoker.engines.postgres import PostgresEngine
from stoker.engines.postgres.claim_cursor import MIN_TAKEN, SLACK
from stoker.engines.postgres.columns import listed
from stoker.engines.postgres.connection import FOR_JOBS, Connection
from stoker.engines.postgres.statements import STATEMENTS
from stoker.engines.postgres.wakeup.listener import CHANNEL
from stoker.model.ids import JobId
from stoker.model.job import Demand
from stoker.model.time import HOUR
from stoker.registry import mint

PATIENCE = 60.0

Rows: TypeAlias = list[Any]
Value: TypeAlias = Callable[[Rows, Sequence[JobId]], Any]


class Statement(NamedTuple):
    """A statement, and how each of its values follows from the rows that are held or the ids that are stored."""

    text: str
    values: list[Value]
    answers: bool

    def about(self, rows: Rows, ids: Sequence[JobId] = ()) -> list[Any]:
        return [value(rows, ids) for value in self.values]


class Lesson(NamedTuple):
    """What the engine sends for batches of one size. `turn` ends a batch and takes the next."""

    insert: Statement
    first: Statement
    turn: list[Statement]


def meaning(value: Any, rows: Rows, ids: Sequence[JobId]) -> Value:
    """Where a value came from: the ids to be stored, a column of the rows that are held, a mark, or nowhere."""
    if isinstance(value, list) and value and value == ids:
        return lambda _rows, ids: ids
    if [value] == ids:
        return lambda _rows, ids: ids[0]
    for column in range(len(rows[0]) if rows else 0):
        for source in (_last, _first, _every, _mark, _mark_before):
            if value == source(rows, column):
                return partial(_held, source, column)
    return lambda _rows, _ids: value


def _held(source: Callable[[Rows, int], Any], column: int, rows: Rows, _ids: Sequence[JobId]) -> Any:
    return source(rows, column)


def _last(rows: Rows, column: int) -> Any:
    return [rows[-1][column]]


def _first(rows: Rows, column: int) -> Any:
    return [rows[0][column]]


def _every(rows: Rows, column: int) -> Any:
    return [row[column] for row in rows]


def _mark(rows: Rows, column: int, slack: int = 0) -> Any:
    last = rows[-1][column]
    return listed([last - slack]) if isinstance(last, int) else None


def _mark_before(rows: Rows, column: int) -> Any:
    return _mark(rows, column, SLACK)


class Pupil:
    """Writes down what passes an engine's connections."""

    def __init__(self, scratch: str, schema: str) -> None:
        self._names = (f'"{scratch}".', f'"{schema}".')
        self.sent: list[tuple[str, Sequence[Any], Rows]] = []
        self._claim = ""

    async def listen(self, engine: PostgresEngine) -> None:
        """Note the statements about jobs, which is all that is run as one statement."""
        store: Any = engine._store  # noqa: SLF001 - what passes there is the point
        take, give_back = store.take, store.give_back
        self._claim = store.texts["claim"]

        async def taking(lane: str) -> Any:
            connection = await take(lane)
            return Noted(connection, self.sent) if lane in ("write", "settle", "claim") else connection

        def giving_back(lane: str, connection: Any) -> None:
            give_back(lane, connection.noted if isinstance(connection, Noted) else connection)

        store.take, store.give_back = taking, giving_back

    def take(self, rows: Rows, ids: Sequence[JobId] = ()) -> list[Statement]:
        """What was sent since the last time, for the other schema."""
        sent, self.sent[:] = list(self.sent), []
        return [
            Statement(text.replace(*self._names), [meaning(value, rows, ids) for value in values], text == self._claim)
            for text, values, _ in sent
        ]

    def claimed(self) -> Rows:
        """What the claim answered that was sent since the last time."""
        return next(found for text, _, found in self.sent if text == self._claim)


class Noted:
    """A connection that is listened to."""

    def __init__(self, connection: Connection, sent: list[tuple[str, Sequence[Any], Rows]]) -> None:
        self.noted = connection
        self._sent = sent

    async def run(self, text: str, values: Sequence[Any], patience: float) -> Rows:
        rows = await self.noted.run(text, values, patience)
        self._sent.append((text, values, rows))
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self.noted, name)


async def learn(url: str, schema: str, batch: int) -> Lesson:
    """What the engine sends for a batch, once it knows how fast its line is."""
    scratch = f"{schema}_scratch"
    engine = PostgresEngine(url, schema=scratch)
    await engine.open()
    pupil = Pupil(scratch, schema)
    demand = Demand(WORKER, ((QUEUE, batch),), batch)
    try:
        await engine.jobs.renew(WORKER, [], first=True, lease=HOUR)
        for _ in range(MIN_TAKEN // batch + 3):
            await engine.jobs.insert(drafts([mint() for _ in range(batch)]))
        await pupil.listen(engine)
        ids = [mint() for _ in range(batch)]
        await engine.jobs.insert(drafts(ids))
        [insert] = pupil.take([], ids)
        claims = await engine.jobs.claim(demand)
        rows = pupil.claimed()
        [first] = pupil.take([])
        turn: list[Statement] = []
        for _ in range(MIN_TAKEN // batch + 2):
            claims = (await engine.jobs.settle(successes(claims), demand=demand)).claims
            held, rows = rows, pupil.claimed()
            turn = pupil.take(held)
    finally:
        await engine.close()
    return Lesson(insert, first, turn)


class BarePostgres:
    """Sessions on one schema."""

    def __init__(self, links: Sequence[Any], url: str, schema: str) -> None:
        self._links = links
        self._url = url
        self._schema = schema
        self._lessons: dict[int, Lesson] = {}
        self._held: Rows = []
        self._news: asyncio.Event | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, schema: str) -> AsyncIterator[BarePostgres]:
        engine = PostgresEngine(url, schema=schema)
        await engine.open()
        await engine.jobs.renew(WORKER, [], first=True, lease=HOUR)
        await engine.close()
        opened = [
            await Connection.open(
                url, "the bare loop", purpose="jobs", settings=FOR_JOBS, pooler="none", patience=PATIENCE
            )
            for _ in range(3)
        ]
        try:
            yield cls([connection.link for connection in opened], url, schema)
        finally:
            for connection in opened:
                await connection.close()

    async def prepare(self, batch: int) -> None:
        """Learn how batches of this size are sent."""
        if batch not in self._lessons:
            self._lessons[batch] = await learn(self._url, self._schema, batch)

    async def insert(self, ids: Sequence[JobId]) -> None:
        """Store one batch; one job alone is notified of, as an idle worker waits for it."""
        statement = self._lessons[len(ids)].insert
        await self._links[0].fetch(statement.text, *statement.about([], ids))
        if len(ids) == 1:
            await self._links[0].fetch(STATEMENTS["notify"], CHANNEL, f"{self._schema} bare {QUEUE}")

    async def turn(self, batch: int) -> int:
        """End what is held and take the next; how many were ended. What is left of a batch at the end is left."""
        lesson, held = self._lessons[batch], self._held
        statements = lesson.turn if held else [lesson.first]
        answers = await asyncio.gather(
            *(
                link.fetch(statement.text, *statement.about(held))
                for link, statement in zip(self._links, statements, strict=False)
            )
        )
        rows: Rows = next((rows for rows, said in zip(answers, statements, strict=False) if said.answers), [])
        self._held = rows if len(rows) == batch else []
        return len(held)

    async def heard(self) -> None:
        """Wait for a notification that there are jobs. From the first call on nothing is missed."""
        if self._news is None:
            self._news = asyncio.Event()
            await self._links[2].add_listener(CHANNEL, self._told)
        await self._news.wait()
        self._news.clear()

    def _told(self, _link: Any, _pid: int, _channel: str, message: str) -> None:
        assert self._news is not None
        if message.startswith(f"{self._schema} "):
            self._news.set()

    @property
    def holding(self) -> bool:
        return bool(self._held)
