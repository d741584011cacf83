"""Everything about streams in memory. A transaction works on a copy of it, which takes its place when it commits.

Messages get their numbers then, so that numbers follow commits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from stoker.engines.shared.unit_of_work import UnitOfWork
from stoker.model.outbox.consumers import landing
from stoker.model.outbox.cursor import Cursor, Start
from stoker.model.outbox.letters import Letter, LetterStatus
from stoker.model.outbox.stream import Entry, Message, Stream, numbered, numbers, topic
from stoker.model.time import Instant

_Partition: TypeAlias = tuple[str, str, int]
"""Stream, consumer and partition."""


class Mark(NamedTuple):
    """A parked key. `released`: its letters are to be delivered."""

    since: Instant
    reason: str
    released: bool = False


class Tables:
    """Streams, consumers, cursors, parked keys, letters, received ids, and the log of each partition."""

    def __init__(self) -> None:
        self.streams: dict[str, Stream] = {}
        self.consumers: dict[tuple[str, str], None] = {}
        self.cursors: dict[_Partition, Cursor] = {}
        self.marks: dict[tuple[str, str, int, str], Mark] = {}
        self.letters: dict[tuple[str, str, int, int], Letter] = {}
        self.receipts: dict[tuple[str, str], Instant] = {}
        self.logs: dict[tuple[str, int], list[Message]] = {}
        self.swept: dict[tuple[str, int], int] = {}
        self.appended: list[tuple[str, Entry]] = []
        """Messages without a number: those of a transaction that is not committed."""

    def copy(self) -> Tables:
        """A copy to change. Both have the same logs, which only a commit writes."""
        twin = Tables()
        for name, table in vars(self).items():
            setattr(twin, name, table if name in {"logs", "swept"} else table.copy())
        return twin

    def number(self, now: Instant) -> set[str]:
        """Number what was appended; returns the topics to wake."""
        topics = {topic(stream) for stream, _ in self.appended}
        for stream, entry in self.appended:
            [number] = numbers(self.last(stream, entry.partition), 1)
            self.logs.setdefault((stream, entry.partition), []).append(numbered(entry, number, now))
        self.appended = []
        return topics

    def forget(self, limit: int, now: Instant) -> int:
        """Forget received ids whose time has passed; returns how many."""
        old = [key for key, until in self.receipts.items() if until <= now][: max(limit, 0)]
        for key in old:
            del self.receipts[key]
        return len(old)

    # --- partitions ---------------------------------------------------------------------------------------------

    def last(self, stream: str, partition: int) -> int:
        """The highest number of a partition."""
        log = self.logs.get((stream, partition))
        return log[-1].number if log else self.swept.get((stream, partition), 0)

    def behind(self, cursor: Cursor, limit: int) -> list[Message]:
        """Messages behind a cursor, by number."""
        log = self.logs.get((cursor.stream, cursor.partition), [])
        first = cursor.position - self.swept.get((cursor.stream, cursor.partition), 0)
        return log[first : first + limit]

    def first_since(self, stream: str, partition: int, to: object) -> int | None:
        """The lowest number of a message that was appended at an instant or later."""
        if not isinstance(to, int):
            return None
        log = self.logs.get((stream, partition), [])
        return next((message.number for message in log if message.created >= to), None)

    def landing(self, stream: str, partition: int, to: Start | dict[int, int]) -> int | None:
        """Where a start or a seek leads."""
        return landing(
            to,
            partition,
            swept=self.swept.get((stream, partition), 0),
            last=self.last(stream, partition),
            first=self.first_since(stream, partition, to),
        )

    # --- consumers ----------------------------------------------------------------------------------------------

    def cursors_of(self, stream: str, consumer: str) -> list[Cursor]:
        """The cursors of a consumer by partition; none when it is not known."""
        if (stream, consumer) not in self.consumers:
            return []
        return [self.cursors[stream, consumer, n] for n in range(self.streams[stream].partitions)]

    def put(self, cursor: Cursor) -> None:
        self.cursors[cursor.stream, cursor.consumer, cursor.partition] = cursor

    def released_key(self, cursor: Cursor) -> str | None:
        """The key of the partition that was parked first among those released."""
        found = [(mark.since, key) for key, mark in self.marks_of(cursor).items() if mark.released]
        return min(found)[1] if found else None

    def marks_of(self, cursor: Cursor) -> dict[str, Mark]:
        """The parked keys of a partition."""
        place = (cursor.stream, cursor.consumer, cursor.partition)
        return {key[3]: mark for key, mark in self.marks.items() if key[:3] == place}

    def letters_of(self, cursor: Cursor, wants: Callable[[Letter], bool]) -> list[Letter]:
        """Letters of a partition, by number."""
        place = (cursor.stream, cursor.consumer, cursor.partition)
        found = [letter for key, letter in self.letters.items() if key[:3] == place and wants(letter)]
        return sorted(found, key=lambda letter: letter.number)

    def parked_letters(self, cursor: Cursor, key: str) -> list[Letter]:
        return self.letters_of(cursor, lambda one: one.status is LetterStatus.PARKED and one.key == key)

    def ready(self, cursor: Cursor) -> bool:
        """Whether the partition has something to deliver."""
        return (
            self.last(cursor.stream, cursor.partition) > cursor.position
            or self.released_key(cursor) is not None
            or bool(self.letters_of(cursor, lambda letter: letter.due))
        )


class StreamUnit(UnitOfWork):
    """The unit of work of a transaction, with its copy of the streams."""

    def __init__(self, now: Instant, tables: Tables) -> None:
        super().__init__(now)
        self.tables = tables.copy()
