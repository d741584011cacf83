"""A stream as operators see and steer it, by its name: no handler is needed for that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Literal, Unpack

import msgspec

from stoker.app import Stoker
from stoker.engines.base import Outbox as Streams
from stoker.engines.base import outbox_of
from stoker.model import ids
from stoker.model.audit import By, Deed
from stoker.model.errors import InvalidInput, NotFound, shown
from stoker.model.outbox import consumers as stored
from stoker.model.outbox.consumers import Drop, Pause, Release, Resume, Seek, Steering
from stoker.model.outbox.letters import LetterFilter, LetterStatus
from stoker.model.time import Seconds, instant, moment
from stoker.outbox import letters
from stoker.outbox.letters import Letter, LetterListing, LetterPage, LetterQuery, LetterTerms, read_filter


class PartitionState(msgspec.Struct, frozen=True, kw_only=True):
    """A partition and one consumer of it.

    `last`: its highest number. `waiting`: messages behind the consumer's `position`, `oldest` when the first of them
    was appended. `attempts` since the position last moved, `failures` in a row. `holder`: the worker that delivers now.
    `due`: no delivery before this moment. `parked`: how many keys are.
    """

    partition: int
    last: int
    position: int
    waiting: int
    oldest: datetime | None
    attempts: int
    failures: int
    last_error: str | None
    holder: str | None
    due: datetime | None
    parked: int


class ConsumerState(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer: all its partitions, and what they come to."""

    name: str
    paused: bool
    waiting: int
    oldest: datetime | None
    failures: int
    parked: int
    partitions: tuple[PartitionState, ...]

    @property
    def last_error(self) -> str | None:
        """The error of the partition that failed most often."""
        worst = max(self.partitions, key=lambda one: one.failures)
        return worst.last_error


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """A stream at one instant. `messages`: how many were ever appended and are committed."""

    name: str
    partitions: int
    keep: timedelta
    messages: int
    consumers: tuple[ConsumerState, ...]


async def streams_of(app: Stoker) -> Streams:
    """The streams of an app's store."""
    return outbox_of(await app.engine())


async def states(app: Stoker, names: Iterable[str] = ()) -> list[StreamState]:
    """The named streams, or all, by name."""
    return [stream_state(one) for one in await (await streams_of(app)).streams([*names])]


def stream_state(found: stored.StreamState) -> StreamState:
    """A stored stream as users see it."""
    by_consumer: dict[str, list[stored.CursorState]] = {}
    for one in found.cursors:
        by_consumer.setdefault(one.cursor.consumer, []).append(one)
    return StreamState(
        name=found.stream.name,
        partitions=found.stream.partitions,
        keep=timedelta(microseconds=found.stream.keep),
        messages=sum(found.last),
        consumers=tuple(_consumer(name, cursors, found.last) for name, cursors in by_consumer.items()),
    )


def _consumer(name: str, cursors: list[stored.CursorState], last: tuple[int, ...]) -> ConsumerState:
    partitions = tuple(_partition(one, last[one.cursor.partition]) for one in cursors)
    return ConsumerState(
        name=name,
        paused=any(one.cursor.paused for one in cursors),
        waiting=sum(one.waiting for one in partitions),
        oldest=min((one.oldest for one in partitions if one.oldest is not None), default=None),
        failures=max(one.failures for one in partitions),
        parked=sum(one.parked for one in partitions),
        partitions=partitions,
    )


def _partition(one: stored.CursorState, last: int) -> PartitionState:
    cursor = one.cursor
    return PartitionState(
        partition=cursor.partition,
        last=last,
        position=cursor.position,
        waiting=one.waiting,
        oldest=None if one.oldest is None else moment(one.oldest),
        attempts=cursor.attempts,
        failures=cursor.failures,
        last_error=cursor.last_error,
        holder=cursor.holder,
        due=moment(cursor.due) if cursor.due else None,
        parked=cursor.parked,
    )


class StreamHandle:
    """One stream of an app's store, by name. `by`: who steers it; changes are then in the audit log."""

    def __init__(self, app: Stoker, name: str, *, by: By | None = None) -> None:
        self.app = app
        self.name = name
        self._by = by

    def __repr__(self) -> str:
        return f"<StreamHandle {self.name}>"

    async def state(self) -> StreamState:
        """The stream with its consumers: what waits for each, how old it is, and what failed."""
        for found in await states(self.app, [self.name]):
            return found
        raise NotFound(
            f"stream {shown(self.name)} is not in the store: nothing was appended to it yet, and no worker has served "
            "it"
        )

    # --- consumers ----------------------------------------------------------------------------------------------

    async def seek(self, consumer: str, to: Literal["beginning", "end"] | datetime | Mapping[int, int], /) -> None:
        """Move a consumer: to the oldest message that is kept, behind the newest, to a moment, or by partition.

        A mapping names partitions and the numbers that they have passed. A turn under way is refused when it ends, so
        its messages may be delivered again; letters stay.
        """
        if isinstance(to, datetime):
            change = Seek(instant(to, "seek"))
        else:
            change = Seek(to if isinstance(to, str) else dict(to))
            if isinstance(change.to, dict):
                await self._check_partitions(change.to)
        await self._steer(consumer, change)

    async def _check_partitions(self, named: Mapping[int, int]) -> None:
        for found in await states(self.app, [self.name]):
            if any(one >= found.partitions for one in named):
                why = f"names a partition that stream {self.name!r} has not: it has 0 to {found.partitions - 1}"
                raise InvalidInput("seek", dict(named), why)

    async def pause(self, consumer: str) -> None:
        """Deliver nothing more to a consumer until `resume`; a turn under way goes on. Messages are kept for it."""
        await self._steer(consumer, Pause())

    async def resume(self, consumer: str) -> None:
        """Deliver to a consumer again."""
        await self._steer(consumer, Resume())

    async def drop(self, consumer: str) -> None:
        """Forget a consumer with its position, letters and parked keys; messages are no longer kept for it.

        A worker that serves it says so and stops; the next start of one registers it anew, at its `start`.
        """
        await self._steer(consumer, Drop())

    async def release(self, key: str, *, consumer: str | None = None) -> None:
        """Deliver the letters of a parked key, in order, and then its newer messages.

        The consumer does so in its next turn. Without a consumer it is released for all that have parked it.
        """
        change = Release(key)
        names = [consumer] if consumer is not None else [one.name for one in (await self.state()).consumers]
        streams = await streams_of(self.app)
        released = [await streams.steer(self.name, name, change, by=self._by) for name in names]
        if not any(released):
            where = "any consumer" if consumer is None else f"consumer {shown(consumer)}"
            raise NotFound(
                f"key {shown(key)} is not parked by {where} of stream {shown(self.name)}. Nothing was changed."
            )

    async def _steer(self, consumer: str, change: Steering) -> None:
        if not await (await streams_of(self.app)).steer(self.name, consumer, change, by=self._by):
            known = ", ".join(one.name for found in await states(self.app, [self.name]) for one in found.consumers)
            raise NotFound(
                f"stream {shown(self.name)} has no consumer {shown(consumer)} (known: {known or 'none'}). "
                "Nothing was changed."
            )

    # --- letters ------------------------------------------------------------------------------------------------

    async def letters(self, **chosen: Unpack[LetterListing]) -> LetterPage:
        """List letters, latest failure first: pending ones, unless another status or None for all is asked for."""
        return await letters.page(await streams_of(self.app), read_filter(self.name, paged=True, **chosen))

    async def count_letters(self, **chosen: Unpack[LetterQuery]) -> int:
        """Count letters, by the same filter."""
        return await letters.count(await streams_of(self.app), read_filter(self.name, **chosen))

    async def replay(self, ids: Iterable[str] | None = None, **chosen: Unpack[LetterTerms]) -> int:
        """Have consumers deliver pending letters again; returns how many were marked.

        A letter is delivered alone, in the consumer's next turn on its partition: then it is resolved, or pending again
        with one attempt more. Without ids or a filter all pending letters of the stream are meant.
        """
        found = read_filter(self.name, ids, status=None, **chosen)
        return await letters.mark(await streams_of(self.app), found, self._by)

    async def discard(
        self,
        ids: Iterable[str] | None = None,
        *,
        status: LetterStatus | str | None = None,
        **chosen: Unpack[LetterTerms],
    ) -> int:
        """Give pending and parked letters up; returns how many. They stay listed as discarded until `clean`."""
        found = read_filter(self.name, ids, status=status, **chosen)
        return await letters.discard(await streams_of(self.app), found, self._by)

    async def letter(self, id: str, *, consumer: str | None = None) -> Letter:  # noqa: A002 - as callers say it
        """One letter by the id of its message; of several consumers' the one that failed last. Raises `NotFound`."""
        found = await letters.page(await streams_of(self.app), self._one(id, consumer))
        if not found.letters:
            raise NotFound(
                f"stream {shown(self.name)} has no letter with the id {shown(id)}: it was never one, or was deleted"
            )
        return found.letters[0]

    def _one(self, id_: str, consumer: str | None) -> LetterFilter:
        return read_filter(self.name, [id_], paged=True, status=None, consumer=consumer, limit=1)

    async def resolve(
        self,
        ids: Iterable[str] | None = None,
        *,
        status: LetterStatus | str | None = None,
        **chosen: Unpack[LetterTerms],
    ) -> int:
        """Note that pending and parked letters were dealt with in another way; returns how many.

        They stay listed as resolved until `clean`.
        """
        found = read_filter(self.name, ids, status=status, **chosen)
        return await letters.resolve(await streams_of(self.app), found, self._by)

    async def restore(self, ids: Iterable[str], *, ended: datetime | None = None, consumer: str | None = None) -> int:
        """Undo: letters that were resolved or discarded at the moment `ended` are pending again; returns how many.

        Without a moment letters that wait for their replay are not replayed.
        """
        found = read_filter(self.name, ids, status=None, consumer=consumer)
        at = None if ended is None else instant(ended, "ended")
        return await letters.restore(await streams_of(self.app), found, at, self._by)

    async def replace(self, id: str, payload: bytes, *, consumer: str | None = None) -> str:  # noqa: A002 - likewise
        """Append the message of a pending letter anew, with this JSON as its body, and resolve the letter.

        Returns the id of the new message; its header `replaces` has the old one. Every consumer of the stream gets it.
        """
        new = self.app.mint()
        await letters.replace(await streams_of(self.app), self._one(id, consumer), payload, new)
        if self._by is not None:
            deed = Deed(
                action="letters.replace", target=f"letter {id} of {self.name}", after={"message": ids.text(new)}
            )
            await (await self.app.engine()).audit.write(self._by, deed)
        return ids.text(new)

    async def clean(self, older_than: Seconds) -> int:
        """Delete letters that were resolved or discarded so long ago; returns how many. Others are never deleted."""
        return await letters.clean(await streams_of(self.app), self.name, older_than, self._by)
