"""What a job tells those who watch it: `async for event in handle.watch()`, and the same for browsers.

A watcher reads the job's record and what its runs emitted, whenever the store has news of the job and once a second
anyhow. Emitted values are numbered, so a watcher that comes back goes on behind the last one; status, progress and log
are those of the record, and a watcher that comes back is told how they are now.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import msgspec

from stoker.chain_before import not_found
from stoker.model import ids
from stoker.model.emitted import Entry, Place, What, entries_of, lines_behind
from stoker.model.errors import InvalidArgument
from stoker.model.job import FINISHED, Job, Status
from stoker.model.redact import EVERYTHING_SHOWN, Redaction
from stoker.model.steps import Step
from stoker.model.time import moment

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.base import Engine

T = TypeVar("T")

FIRST_PAUSE, LAST_PAUSE = 0.1, 1.0
"""Seconds between two readings without news; each pause is twice the one before."""

RECALLED = 100
"""How many of the last values a returning watcher reads again, for their progress."""

QUIET = 15.0
"""Seconds without news after which a stream sends a comment, so that proxies keep it open."""


EVENT_STREAM = "text/event-stream"
STREAM_HEADERS = {"x-accel-buffering": "no", "cache-control": "no-store"}
"""Headers of a stream: a proxy must not collect what is meant to arrive at once."""


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    """`cursor`: with `watch(after=event.cursor)` another watcher goes on behind this event."""

    cursor: str


class Emitted(_Event, frozen=True, kw_only=True):
    """A value of `emit`. `n` only grows, over all attempts; a new `attempt` emits from its beginning again."""

    n: int
    value: Any
    attempt: int
    at: datetime


class Progressed(_Event, frozen=True, kw_only=True):
    """The job's progress from 0 to 1, with what `progress` was given beside it."""

    fraction: float
    text: str | None = None
    data: Any = None
    attempt: int


class Logged(_Event, frozen=True, kw_only=True):
    """New lines of the job's log."""

    lines: tuple[str, ...]


class Changed(_Event, frozen=True, kw_only=True):
    """The job's status. `ended`: it is final, and this is the last event."""

    status: Status
    attempt: int
    ended: bool
    error: str | None


class Missed(_Event, frozen=True, kw_only=True):
    """So many values the watcher does not get: it came too late for them, or lacks the key that sealed them."""

    count: int


News: TypeAlias = Emitted | Progressed | Logged | Changed | Missed


def told(entry: Entry, redact: Redaction, cursor: str) -> Emitted | Progressed:
    """An entry as watchers get it, secrets masked."""
    n, attempt, value = entry.n, entry.attempt, msgspec.json.decode(redact.json(entry.body))
    if entry.what is What.VALUE:
        return Emitted(cursor=cursor, n=n, value=value, attempt=attempt, at=moment(entry.at))
    fraction, text, data = value
    text = None if text is None else redact.text(text)
    return Progressed(cursor=cursor, fraction=fraction, text=text, data=data, attempt=attempt)


class _Watcher:
    """What one watcher was told, and what is new to it."""

    def __init__(self, job: ids.JobId, after: int | str | None, redact: Redaction) -> None:
        self.place = Place.read(after)
        self._job = job
        self._redact = redact
        self._log: tuple[str, ...] | None = None
        self._state: tuple[Status, int] | None = None
        self._noted: float | None = None  # the record's progress
        self._ahead: list[float | None] = []  # progress told with a text, which the record has not reached yet

    async def look(self, engine: Engine) -> list[News]:
        """Read the job and return what is new. The record comes first: its last run has emitted before its end."""
        [found] = await engine.operator.get([self._job])
        if found is None:
            raise await not_found(engine, self._job)
        n, back = self.place.n, self._state is None and self.place.n > 0
        rows = await engine.steps.emitted(self._job, max(n - RECALLED, 0) if back else n)
        if back:
            self._recall(rows, found)
        runs = found.status is Status.RUNNING
        before = self._changed(found) if runs else []
        values = [event for entry in entries_of(rows, n) for event in self._value(entry)]
        values += self._missed(max((row.until or 0 for row in rows), default=0))  # sealed with a key that is not here
        rest = [*self._logged(found), *self._progressed(found, values)]
        return [*before, *values, *rest, *(() if runs else self._changed(found))]

    def _recall(self, rows: list[Step], found: Job) -> None:
        """Take note of the progress that a watcher which comes back was told: the record may be behind it."""
        n = self.place.n
        if all((row.until or 0) < n for row in rows):  # the last page stays for ever, so the number was never told
            raise InvalidArgument(
                "after", n, f"must be a number that job {ids.text(self._job)} has told; without it, all comes"
            )
        for entry in entries_of(rows, 0):
            if entry.n <= n and entry.what is What.PROGRESS:
                self._ahead.append(msgspec.json.decode(entry.body)[0])
                self._noted = found.progress

    def _value(self, entry: Entry) -> list[News]:
        missed, self.place = self._missed(entry.n - 1), self.place._replace(n=entry.n)
        return [*missed, told(entry, self._redact, self.place.text)]

    def _missed(self, last: int) -> list[News]:
        """What no value told up to a number."""
        missed, self.place = last - self.place.n, self.place._replace(n=max(last, self.place.n))
        return [Missed(cursor=self.place.text, count=missed)] if missed > 0 else []

    def _logged(self, found: Job) -> list[News]:
        log = found.log
        lines = self.place.lines_behind(log) if self._log is None else lines_behind(self._log, log)
        self._log = log
        if not lines:
            return []
        self.place = self.place.logged(log)
        return [Logged(cursor=self.place.text, lines=tuple(map(self._redact.text, lines)))]

    def _progressed(self, found: Job, values: list[News]) -> list[News]:
        """The record's progress, unless it was told with its text: a worker writes it about once a second."""
        self._ahead += [event.fraction for event in values if isinstance(event, Progressed)]
        before, self._noted = self._noted, found.progress
        if found.progress is None or found.progress == before:
            return []
        if found.progress in self._ahead:
            del self._ahead[: self._ahead.index(found.progress) + 1]
            return []
        return [Progressed(cursor=self.place.text, fraction=found.progress, attempt=found.attempts)]

    def _changed(self, found: Job) -> list[News]:
        before, self._state = self._state, (found.status, found.attempts)
        if self._state == before:
            return []
        ended = found.status in FINISHED
        self.place = self.place._replace(ended=ended)
        error = None if found.last_error is None else self._redact.text(found.last_error)
        cursor = self.place.text
        return [Changed(cursor=cursor, status=found.status, attempt=found.attempts, ended=ended, error=error)]


async def watch(
    app: Stoker, job: ids.JobId, after: int | str | None = None, redact: Redaction = EVERYTHING_SHOWN
) -> AsyncGenerator[News | None, None]:
    """What is new of a job, until it has ended. None: nothing was new within a second.

    Raises `NotFound`, and `InvalidInput` for an `after` that is not a place of this job.
    """
    watcher, seen, pause = _Watcher(job, after, redact), 0, FIRST_PAUSE
    engine = await app.engine()
    while not watcher.place.ended:
        seen = await engine.jobs.news(job, seen, pause)
        pause = min(2 * pause, LAST_PAUSE)
        events = await watcher.look(engine)
        for event in events:
            yield event
        if not events:
            yield None


async def streamed(events: AsyncGenerator[News | None, None]) -> AsyncGenerator[str, None]:
    """Events as server-sent events, with a comment now and then that shows that the stream lives.

    The first event has come: what is refused is refused before a response begins.
    """
    first = await anext(events, None)

    async def frames() -> AsyncGenerator[str, None]:
        last = time.monotonic()
        async with aclosing(events):
            if first is not None:
                yield frame(first)
            async for event in events:
                if event is not None:
                    yield frame(event)
                elif time.monotonic() - last > QUIET:
                    yield ": still here\n\n"
                else:
                    continue
                last = time.monotonic()

    return frames()


def frame(event: News) -> str:
    """An event as a server-sent event, named like its class; `Last-Event-ID` is then its cursor. The end is `ended`."""
    name = "ended" if isinstance(event, Changed) and event.ended else type(event).__name__.lower()
    told = msgspec.to_builtins(event)
    del told["cursor"]
    return f"event: {name}\nid: {event.cursor}\ndata: {msgspec.json.encode(told).decode()}\n\n"


def without_values(event: News | None) -> News | None:
    """An event for people who may not see values."""
    if isinstance(event, Emitted):
        return msgspec.structs.replace(event, value=None)
    return msgspec.structs.replace(event, data=None) if isinstance(event, Progressed) else event


def over(after: str | None) -> bool:
    """Whether a reader with this `Last-Event-ID` has seen the end: HTTP 204 tells a browser not to come back."""
    return Place.read(after).ended


def in_turn(app: Stoker, events: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """An asynchronous generator for code without a loop."""
    end, instead = object(), "`async for event in handle.watch()`"
    try:
        while (event := app.run(anext(events, end), instead=instead)) is not end:
            yield cast("T", event)
    finally:
        app.run(events.aclose(), instead=instead)
