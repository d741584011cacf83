"""Values that runs emit, as stores keep them: a ring of pages, which are rows of the job (`model.steps`).

A run adds values to its newest page and writes that row again until the page is full; the next page overwrites the
oldest one. So the rows of a job hold at least its last 1,000 values, as long as these have no more than 256 KiB, and no
row is ever removed on the way. A page says the place of its values in its run, so a process that has the values of a
run can tell which rows they are: a worker that writes them again, and a block in a child process, write the same.
"""

from __future__ import annotations

import enum
import re
import threading
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple
from zlib import crc32

import msgspec

from stoker.model.errors import InvalidArgument
from stoker.model.steps import PAGE_NAMES, Step
from stoker.model.time import Instant

LARGEST_EMITTED = 64 << 10
"""Bytes of one emitted value."""

PAGES = 32
"""Pages of a ring."""

SLOTS = [f"{PAGE_NAMES}{slot:02}" for slot in range(PAGES)]
"""The names of their rows."""

PAGE_VALUES, PAGE_BYTES = 33, 8 << 10
"""What a page holds at most. A larger value has a page alone, in place of several."""


class What(enum.IntEnum):
    """What an entry is: a value, or progress as `[fraction, text, data]`."""

    VALUE = 0
    PROGRESS = 1


class Entry(NamedTuple):
    """One entry as readers get it. `n` grows over all attempts of the job."""

    n: int
    what: What
    body: bytes
    attempt: int
    at: Instant


class Base(NamedTuple):
    """Where the ring of a run begins: the last number before it, and the slot of its first page."""

    n: int = 0
    slot: int = 0


class _Page(msgspec.Struct, array_like=True, frozen=True):
    """A page as it is stored: the number of its first entry and its own place, both in its run, and the attempt."""

    first: int
    place: int
    attempt: int
    entries: list[msgspec.Raw]


_PLACE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,3})-([0-9a-f]{8}))?(-end)?")
_decode = msgspec.json.Decoder(_Page).decode
_entry = msgspec.json.Decoder(tuple[Instant, What, msgspec.Raw]).decode


def entry(at: Instant, what: What, body: bytes) -> bytes:
    """An entry as it is stored."""
    return b"[%d,%d,%b]" % (at, what, body)


def weight(size: int) -> int:
    """In place of how many pages a page with so many bytes is."""
    return max(1, -(-size // PAGE_BYTES))


class _Open:
    """A page that a run writes, or an empty slot beside a page with a large value."""

    __slots__ = ("entries", "first", "place", "size")

    def __init__(self, place: int, first: int) -> None:
        self.place = place
        self.first = first
        self.entries: list[bytes] = []
        self.size = 0


class Ring:
    """What one run has emitted: its last pages, and which of them are not written. Any thread may use it.

    `base` is None until it was looked up; a job's first run has nothing before it.
    """

    __slots__ = ("_attempt", "_count", "_last", "_lock", "_next", "_pages", "_unsaved", "base", "token")

    def __init__(self, token: int, attempt: int, *, fresh: bool) -> None:
        self.base = Base() if fresh else None
        self.token = token
        self._attempt = attempt
        self._lock = threading.Lock()
        self._count = 0
        self._next = 0
        self._last: _Open | None = None
        self._pages: dict[int, _Open] = {}
        self._unsaved: set[int] = set()

    def __bool__(self) -> bool:
        """Is there anything to write?"""
        return bool(self._unsaved)

    def add(self, one: bytes) -> None:
        """Take an entry; the oldest page goes if there is no room."""
        with self._lock:
            self._count += 1
            page = self._last
            if page is None or len(page.entries) == PAGE_VALUES or page.size + len(one) > PAGE_BYTES:
                place = self._next
                self._next += weight(len(one))
                for taken in range(place, self._next):
                    self._pages[taken % PAGES] = _Open(taken, self._count)
                    self._unsaved.add(taken % PAGES)
                page = self._last = self._pages[place % PAGES]
            page.entries.append(one)
            page.size += len(one)
            self._unsaved.add(page.place % PAGES)

    def take(self, base: Base, *, everything: bool = False) -> tuple[tuple[Step, ...], frozenset[int]]:
        """The rows to write, which are then taken for written, and which they are. `everything`: also what was."""
        with self._lock:
            taken = frozenset(self._pages if everything else self._unsaved)
            self._unsaved = set()
            return tuple(self._row(self._pages[slot], base) for slot in sorted(taken)), taken

    def put_back(self, taken: frozenset[int]) -> None:
        """Take note that these were not written."""
        with self._lock:
            self._unsaved |= taken

    def _row(self, page: _Open, base: Base) -> Step:
        name = SLOTS[(base.slot + page.place) % PAGES]
        if not page.entries:
            return Step(name, until=0)
        head = b"[%d,%d,%d,[" % (page.first, page.place, self._attempt)
        last = base.n + page.first + len(page.entries) - 1
        return Step(name, value=head + b",".join(page.entries) + b"]]", until=last)


def base_of(rows: Sequence[Step], token: int) -> Base:
    """Where the ring of the run with this token begins, by all pages of its job."""
    if not rows:
        return Base()
    last = max(rows, key=_last_of)
    slot, page = int(last.name.removeprefix(PAGE_NAMES)), _page(last)
    if page is not None and last.token == token:
        return Base(_last_of(last) - page.first - len(page.entries) + 1, (slot - page.place) % PAGES)
    size = 0 if page is None else sum(map(len, page.entries))
    return Base(_last_of(last), (slot + weight(size)) % PAGES)


def entries_of(rows: Iterable[Step], after: int) -> list[Entry]:
    """The entries of pages behind a number, in their order; a page that cannot be read is left out."""
    found: list[Entry] = []
    for row in sorted(rows, key=_last_of):
        page = _page(row)
        if page is None:
            continue
        for n, raw in zip(count(_last_of(row) - len(page.entries) + 1), page.entries, strict=False):
            if n > after:
                at, what, body = _entry(raw)
                found.append(Entry(n, what, bytes(body), page.attempt, at))
    return found


def _last_of(row: Step) -> int:
    return row.until or 0


def _page(row: Step) -> _Page | None:
    try:
        return _decode(row.value or b"")
    except msgspec.MsgspecError:
        return None


# --- readers ----------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """How far a reader is: the last number, and how many lines of the log it has seen, with their checksum.

    `ended`: it has seen the end of the job.
    """

    n: int = 0
    lines: int = 0
    sum: int = 0
    ended: bool = False

    @classmethod
    def read(cls, after: int | str | None) -> Place:
        """The place that `text` or a number names; None is the beginning."""
        if after is None:
            return cls()
        found = None if isinstance(after, bool) else _PLACE.fullmatch(str(after))
        if found is None:
            raise InvalidArgument("after", after, "must be the number or the cursor of an event")
        n, lines, sum_, end = found.groups()
        return cls(int(n), int(lines or 0), int(sum_ or "0", 16), end is not None)

    @property
    def text(self) -> str:
        """The place as readers keep it, such as `57`, `57-12-9f3a12bc` and `57-12-9f3a12bc-end`."""
        log = f"-{self.lines}-{self.sum:08x}" if self.lines else ""
        return f"{self.n}{log}{'-end' if self.ended else ''}"

    def logged(self, log: Sequence[str]) -> Place:
        """The place behind all lines of a log."""
        return self._replace(lines=len(log), sum=_sum(log))

    def lines_behind(self, log: Sequence[str]) -> Sequence[str]:
        """The lines of a log behind this place; all of them if it does not begin as it did."""
        return log[self.lines :] if _sum(log[: self.lines]) == self.sum else log


def lines_behind(before: Sequence[str], log: Sequence[str]) -> Sequence[str]:
    """What was added to a log whose oldest lines may be gone."""
    gone = next(gone for gone in range(len(before) + 1) if before[gone:] == log[: len(before) - gone])
    return log[len(before) - gone :]


def _sum(log: Sequence[str]) -> int:
    return crc32("\n".join(log).encode(errors="replace")) if log else 0
