"""What is known of each error: one small record per fingerprint, which the roll-up adds to; and groups of jobs.

A record counts how often jobs died of an error and how often they are tried again because of it, by the hour for a
week. A closed minute may be counted again, because events arrive late: a record remembers the minutes of the last two
hours one by one, so that counting one again adds only what is new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from stoker.model import ids
from stoker.model.events import FAILURES, EventCount, EventType
from stoker.model.job import Job
from stoker.model.same_error import error_line, fingerprint, normalized_error, parts, signature_of
from stoker.model.time import DAY, HOUR, MINUTE, Instant, Span, instant, moment

KEPT: Span = 7 * DAY
"""A record is kept for so long after the last failure."""

RECENT: Span = 2 * HOUR
"""Minutes of so long ago can be counted again; failures that are told of later are left out."""

MOST: Final = 1_000
"""Records of a store; failures beyond count in `OTHER`."""

IDLE: Span = DAY
"""Where there are so many, one that was not seen for so long makes room for a new error."""

OTHER: Final = "other"
"""The record of the errors that have none of their own."""

MOST_NAMES: Final = 20
"""Kinds and queues that a record lists: those seen last."""

HOURS = KEPT // HOUR


class Hourly(msgspec.Struct, frozen=True, array_like=True):
    """How often something happened in each hour; `counts` begin with the hour that `since` numbers.

    `minutes` are those that may be counted again.
    """

    since: int = 0
    counts: tuple[int, ...] = ()
    minutes: dict[int, int] = {}

    def at(self, minute: Instant, n: int, now: Instant) -> Hourly:
        """The same with so many in a closed minute, if that is more than it has already."""
        number, first, hour = minute // MINUTE, (now - RECENT) // MINUTE, minute // HOUR
        more = n - self.minutes.get(number, 0)
        if more <= 0:
            return self
        minutes = {one: counted for one, counted in self.minutes.items() if one >= first} | {number: n}
        counts = list(self.counts)
        since = self.since if counts else hour
        if hour < since:
            counts, since = [0] * (since - hour) + counts, hour
        counts += [0] * (hour - since + 1 - len(counts))
        counts[hour - since] += more
        late = max(len(counts) - HOURS, 0)
        return Hourly(since + late, tuple(counts[late:]), minutes)

    def plus(self, other: Hourly) -> Hourly:
        """Both together; of `other` no minute is counted again."""
        if not other.counts:
            return self
        since = min(self.since, other.since) if self.counts else other.since
        end = max(one.since + len(one.counts) for one in (self, other))
        counts = tuple(self.of(hour) + other.of(hour) for hour in range(since, end))
        return Hourly(since, counts, self.minutes)

    def of(self, hour: int) -> int:
        """How often in the hour with this number."""
        place = hour - self.since
        return self.counts[place] if 0 <= place < len(self.counts) else 0

    def minutes_since(self, first: Instant) -> int:
        """How often since an instant of the last two hours, by the minutes that were counted."""
        return sum(n for minute, n in self.minutes.items() if minute >= first // MINUTE)

    def last(self, hours: int, now: Instant) -> list[int]:
        """The last so many hours, oldest first, with the running one."""
        end = now // HOUR
        return [self.of(hour) for hour in range(end - hours + 1, end + 1)]


class ErrorRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One error: what jobs that failed with it have in common, when it was seen, where, and how often.

    `error` is the normalized first line, `frame` where the user's code raised it. `first` and `last` are minutes.
    `sample` is the id of the newest job that failed with it. Kinds and queues: those seen last come last. Releases:
    those in which it was seen, the first one first.
    """

    id: str
    error: str = ""
    frame: str = ""
    first: Instant
    last: Instant
    sample: str = ""
    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    died: Hourly = Hourly()
    retried: Hourly = Hourly()


def add_failures(
    known: Mapping[str, ErrorRecord], minute: Instant, counts: Iterable[EventCount], now: Instant
) -> dict[str, ErrorRecord | None]:
    """What changes in the records by the failures of a closed minute; None: a record goes.

    Counting the same minute again, with no more failures, changes nothing.
    """
    found: dict[str, list[EventCount]] = {}
    if minute >= now - RECENT:
        for one in counts:
            if one.error and one.type in FAILURES:
                found.setdefault(fingerprint(one.error), []).append(one)
    if not found:
        return {}
    here, changed = dict(known), dict[str, ErrorRecord | None]()
    for old in [one for one in known.values() if one.last < now - KEPT]:
        changed[old.id] = None
        del here[old.id]
    rest: list[EventCount] = []
    for name, mine in sorted(found.items()):
        before = here.get(name)
        if before is None and sum(one != OTHER for one in here) >= MOST and not _made_room(here, changed, now):
            rest += mine
            continue
        line, frame = parts(mine[0].error)
        after = _seen(
            before or ErrorRecord(id=name, error=line, frame=frame, first=minute, last=minute), minute, mine, now
        )
        if after != before:
            here[name] = changed[name] = after
    if rest:
        after = _seen(_other(here, minute), minute, rest, now)
        if after != here.get(OTHER):
            changed[OTHER] = after
    return changed


def _other(here: Mapping[str, ErrorRecord], minute: Instant) -> ErrorRecord:
    return here.get(OTHER) or ErrorRecord(id=OTHER, first=minute, last=minute)


def _made_room(here: dict[str, ErrorRecord], changed: dict[str, ErrorRecord | None], now: Instant) -> bool:
    """Move the record that was not seen for the longest time to the others, if that was long enough."""
    oldest = min((one for one in here.values() if one.id != OTHER), key=lambda one: (one.last, one.id))
    if oldest.last > now - IDLE:
        return False
    other = _other(here, oldest.first)
    changed[oldest.id] = None
    del here[oldest.id]
    here[OTHER] = changed[OTHER] = msgspec.structs.replace(
        other,
        first=min(other.first, oldest.first),
        last=max(other.last, oldest.last),
        died=other.died.plus(oldest.died),
        retried=other.retried.plus(oldest.retried),
    )
    return True


def _seen(record: ErrorRecord, minute: Instant, counts: list[EventCount], now: Instant) -> ErrorRecord:
    died = sum(one.n for one in counts if one.type is EventType.FAILED)
    retried = sum(one.n for one in counts if one.type is EventType.RETRIED)
    after = msgspec.structs.replace(
        record, died=record.died.at(minute, died, now), retried=record.retried.at(minute, retried, now)
    )
    if after == record:
        return record
    sample = max(one.sample for one in counts)
    return msgspec.structs.replace(
        after,
        first=min(record.first, minute),
        last=max(record.last, minute),
        sample=max(record.sample, ids.text(sample)),
        kinds=_named(record.kinds, (one.kind for one in counts)),
        queues=_named(record.queues, (one.queue for one in counts)),
        releases=_seen_in(record.releases, (one.release for one in counts if one.release)),
    )


def _named(known: tuple[str, ...], seen: Iterable[str]) -> tuple[str, ...]:
    fresh = sorted(set(seen))
    return (*(name for name in known if name not in fresh), *fresh)[-MOST_NAMES:]


def _seen_in(known: tuple[str, ...], seen: Iterable[str]) -> tuple[str, ...]:
    """With the releases that are new; of too many the first one stays and the latest ones do."""
    every = (*known, *sorted(set(seen) - {*known}))
    return every if len(every) <= MOST_NAMES else (every[0], *every[1 - MOST_NAMES :])


def commonest(records: Iterable[ErrorRecord], since: Instant) -> tuple[ErrorRecord | None, int, int]:
    """The error of which most jobs died since an instant of the last two hours, of how many, and how many died in all.

    None: no error of its own was seen.
    """
    found = [(record.died.minutes_since(since), record) for record in records]
    own = [one for one in found if one[0] and one[1].id != OTHER]
    n, worst = max(own, key=lambda one: (one[0], one[1].last, one[1].id), default=(0, None))
    return worst, n, sum(n for n, _ in found)


# --- groups of jobs ---------------------------------------------------------------------------------------------------

SHOWN_HOURS: Final = 24
"""Hours of deaths that a group lists."""


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs with the same error, whatever their kind. `count` of those that were looked at are dead or retrying.

    `error` is the first line of it, with `…` for what differs between jobs, if anything does. `frame` is where the
    user's code raised it. `sample` is the newest job. `died` is how many jobs died of it in the last seven days, and
    `deaths` how many in each of the last 24 hours, the running one last; both are counted once a minute. `releases` are
    those in which it was seen, the first one first, and `new_in` is the latest release, if the error came with it.
    """

    id: str
    error: str
    frame: str = ""
    count: int = 0
    first: datetime
    last: datetime
    sample: str = ""
    kinds: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    died: int = 0
    deaths: tuple[int, ...] = ()
    releases: tuple[str, ...] = ()
    new_in: str = ""


def error_groups(jobs: Iterable[Job], records: Iterable[ErrorRecord] = (), now: Instant = 0) -> list[ErrorGroup]:
    """Failed jobs by error, the largest group first, with what is known of each error; then errors without such jobs.

    Among equal groups the one of which more died is first, then the one that was seen last.
    """
    by_text: dict[str, list[Job]] = {}
    for job in jobs:
        if job.last_error is not None:
            by_text.setdefault(job.last_error, []).append(job)
    found: dict[str, list[Job]] = {}
    for members in by_text.values():  # of many jobs with one text, what varies is looked for once
        found.setdefault(signature_of(members[0]), []).extend(members)
    known = {one.id: one for one in records if one.last >= now - KEPT}
    groups = [_group(mine, members, known.pop(fingerprint(mine), None), now) for mine, members in found.items()]
    groups += [_group("", [], record, now) for record in known.values()]
    return sorted(groups, key=lambda one: (-one.count, -one.died, -instant(one.last), one.id))


def _group(mine: str, jobs: Sequence[Job], record: ErrorRecord | None, now: Instant) -> ErrorGroup:
    times = [_failed_at(job) for job in jobs]
    seen = [*times, *(() if record is None else (record.first, record.last))]
    line, frame = parts(mine) if record is None else (record.error, record.frame)
    lines = {error_line(job.last_error) for job in jobs}
    if any(job.known_as for job in jobs):  # the store does not know the line
        line = normalized_error(next(job.last_error for job in jobs if job.known_as))
    newest = max(zip(times, jobs, strict=True), key=lambda one: one[0], default=None)
    return ErrorGroup(
        id=fingerprint(mine) if record is None else record.id,
        error=lines.pop() if len(lines) == 1 else line,
        frame=frame,
        count=len(jobs),
        first=moment(min(seen)),
        last=moment(max(seen)),
        sample=ids.text(newest[1].id) if newest is not None else "" if record is None else record.sample,
        kinds=tuple(sorted({*(job.kind for job in jobs), *(() if record is None else record.kinds)})),
        queues=tuple(sorted({*(job.queue for job in jobs), *(() if record is None else record.queues)})),
        died=0 if record is None else sum(record.died.last(HOURS, now)),
        deaths=() if record is None else tuple(record.died.last(SHOWN_HOURS, now)),
        releases=() if record is None else record.releases,
    )


def _failed_at(job: Job) -> Instant:
    """When the last run failed, as far as the record tells."""
    if job.history:
        return job.history[-1].at
    return job.finished_at or job.started_at or job.created_at
