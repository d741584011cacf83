"""Schedules: what a tick does about each of them.

Rule 1: an occurrence is fired by compare-and-set. A `Tick` names the next fire it has seen; an engine stores the tick
and its jobs in one step and only while `applies` holds, so of many tickers one wins and nothing is fired twice.
Rule 2: a schedule never stops the others. What cannot be read is disabled with its error; a job that could not be
stored is recorded and the schedule goes on.
Rule 3: this file knows no clock. The ticker brings the store's time, the engine makes the write atomic.

The life of a schedule: `ensure` (code) or `edit` (an operator) stores it without a next fire; the first tick seeds the
next fire and starts nothing; from then on each due tick fires and moves on. `cron` decides when one fires.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal, TypeAlias, get_args

import msgspec

from stoker.model.cron import Timetable, following, parse
from stoker.model.errors import InvalidSchedule
from stoker.model.job import DEFAULT_ATTEMPTS, MOST_ATTEMPTS, check_name, check_span
from stoker.model.time import MILLISECOND, MINUTE, SECOND, Instant, Span, rfc3339
from stoker.model.unique import Unique, check_text

Misfire: TypeAlias = Literal["once", "skip", "all"]
"""Missed occurrences: once = one job for all of them, skip = none past the grace, all = one each."""

Overlap: TypeAlias = Literal["allow", "skip"]
"""An occurrence whose predecessor's job is still active: start it beside, or leave it out."""

CATCH_UP = 100
"""`misfire="all"` fires at most so many in one tick and goes on in the next: a write stays small."""

MOST_COUNTED = 1_000
"""Missed occurrences are counted up to here; beyond it the exact number is worth less than the time to find it."""

SHORTEST_SLEEP: Span = 500 * MILLISECOND
LONGEST_SLEEP: Span = 5 * SECOND


class Schedule(msgspec.Struct, frozen=True):
    """A job to be, again and again. The expression is judged by `check` and by each tick, not here: a stored schedule
    must be readable even when its zone has gone from the machine.

    `edited` marks what an operator changed, so that the next deployment does not undo it.
    """

    name: str
    kind: str
    expression: str
    tz: str = "UTC"
    payload: bytes = b"{}"
    queue: str | None = None
    attempts: int | None = None
    unique: str | None = None
    enabled: bool = True
    misfire: Misfire = "once"
    overlap: Overlap = "allow"
    grace: Span = MINUTE
    edited: bool = False
    last_fire: Instant | None = None
    next_fire: Instant | None = None
    last_error: str | None = None

    def __post_init__(self) -> None:
        check_name("schedule name", self.name)
        check_name("kind", self.kind)
        if self.queue is not None:
            check_name("queue", self.queue)
        if self.unique is not None:
            check_text("unique key", self.unique)
        if not 1 <= (DEFAULT_ATTEMPTS if self.attempts is None else self.attempts) <= MOST_ATTEMPTS:
            raise InvalidSchedule("attempts", self.attempts, f"must be between 1 and {MOST_ATTEMPTS}")
        for field, value, known in (
            ("misfire", self.misfire, get_args(Misfire)),
            ("overlap", self.overlap, get_args(Overlap)),
        ):
            if value not in known:
                raise InvalidSchedule(field, value, f"must be one of {', '.join(known)}")
        check_span("grace", self.grace)
        if self.misfire == "all" and self.exclusive:
            raise InvalidSchedule("misfire", "all", "needs jobs side by side: leave out overlap='skip' and unique")

    @property
    def exclusive(self) -> bool:
        """Whether at most one of its jobs is active at a time."""
        return self.overlap == "skip" or self.unique is not None


class Action(enum.StrEnum):
    """What became of a schedule in one tick."""

    IDLE = "idle"
    SEED = "seed"
    FIRE = "fire"
    SKIP = "skip"
    DISABLE = "disable"


class Tick(msgspec.Struct, frozen=True):
    """One decision. `seen`, `expression` and `tz` are what it rests on, the rest is what to store.

    `fires` holds the instants to make jobs for; `missed` is how many due occurrences got none.
    """

    name: str
    expression: str
    tz: str
    seen: Instant | None
    action: Action
    next_fire: Instant | None = None
    fires: tuple[Instant, ...] = ()
    missed: int = 0
    error: str | None = None


# --- making and changing --------------------------------------------------------------------------------------------


def check(schedule: Schedule, now: Instant) -> Schedule:
    """Refuse what can never fire; otherwise the schedule itself."""
    if following(parse(schedule.expression, schedule.tz), now) is None:
        raise InvalidSchedule("expression", schedule.expression, "has no occurrence in the next fifty years")
    return schedule


def ensure(stored: Schedule | None, declared: Schedule, now: Instant, *, keep_edited: bool = True) -> Schedule:
    """What code declares at every start: new ones are added, changed ones follow the code, edited ones are kept."""
    check(declared, now)
    if stored is None:
        return msgspec.structs.replace(declared, edited=False, last_fire=None, next_fire=None, last_error=None)
    if stored.edited and keep_edited:
        return stored
    return _carried(stored, msgspec.structs.replace(declared, edited=False))


def edit(stored: Schedule, wanted: Schedule, now: Instant) -> Schedule:
    """A change by an operator. Switching off is always possible, also for a schedule that cannot be read."""
    if wanted.enabled or (wanted.expression, wanted.tz) != (stored.expression, stored.tz):
        check(wanted, now)
    return _carried(stored, msgspec.structs.replace(wanted, edited=True))


def _carried(stored: Schedule, wanted: Schedule) -> Schedule:
    """Take the memory along, unless the timing changed or the schedule is switched on: then it starts afresh."""
    retimed = (wanted.expression, wanted.tz) != (stored.expression, stored.tz)
    afresh = retimed or (wanted.enabled and not stored.enabled)
    return msgspec.structs.replace(
        wanted,
        name=stored.name,
        last_fire=stored.last_fire,
        next_fire=None if afresh else stored.next_fire,
        last_error=None if afresh else stored.last_error,
    )


# --- ticking --------------------------------------------------------------------------------------------------------


def next_after(schedule: Schedule, at: Instant) -> Instant | None:
    """The first occurrence strictly after an instant, None if there is none; an unreadable expression raises."""
    return following(parse(schedule.expression, schedule.tz), at)


def upcoming(schedule: Schedule, after: Instant, count: int) -> list[Instant]:
    """The next few occurrences, to check an expression."""
    return list(islice(_occurrences(parse(schedule.expression, schedule.tz), after), count))


def tick(schedule: Schedule, now: Instant, *, active: bool = False) -> Tick:
    """Decide about one schedule. `active`: whether a job of an earlier occurrence is still to be finished."""
    decision = Tick(
        schedule.name, schedule.expression, schedule.tz, schedule.next_fire, Action.IDLE, schedule.next_fire
    )
    if not schedule.enabled or (schedule.next_fire is not None and now < schedule.next_fire):
        return decision
    try:
        timetable = parse(schedule.expression, schedule.tz)
    except InvalidSchedule as error:
        return msgspec.structs.replace(decision, action=Action.DISABLE, next_fire=None, error=str(error))
    if schedule.next_fire is None:
        return _moved(decision, Action.SEED, following(timetable, now))
    return _due(schedule, timetable, schedule.next_fire, now, decision, active=active)


def _due(
    schedule: Schedule, timetable: Timetable, first: Instant, now: Instant, decision: Tick, *, active: bool
) -> Tick:
    """Choose among the occurrences from `first` to now, by overlap and misfire policy."""
    past = [first, *islice(_until(timetable, first, now), MOST_COUNTED)]
    fires: tuple[Instant, ...]
    since = now
    if active and schedule.exclusive:
        fires = ()
    elif schedule.misfire == "once":
        fires = (first,)
    elif schedule.misfire == "all":
        past = past[:CATCH_UP]
        fires, since = tuple(past), past[-1]
    else:
        fresh = first if first >= now - schedule.grace else following(timetable, now - schedule.grace - 1)
        fires = (fresh,) if fresh is not None and fresh <= now else ()
    action = Action.FIRE if fires else Action.SKIP
    missed = min(len(past) - len(fires), MOST_COUNTED)
    return _moved(decision, action, following(timetable, since), fires=fires, missed=missed)


def _moved(
    decision: Tick,
    action: Action,
    onward: Instant | None,
    *,
    fires: tuple[Instant, ...] = (),
    missed: int = 0,
) -> Tick:
    """Store the next fire; a schedule that has none left is switched off after what it fires now."""
    error = None if onward is not None else "no occurrence is left in the next fifty years; the schedule is disabled"
    if onward is None and not fires:
        action = Action.DISABLE
    return msgspec.structs.replace(decision, action=action, next_fire=onward, fires=fires, missed=missed, error=error)


def _occurrences(timetable: Timetable, after: Instant) -> Iterator[Instant]:
    found = following(timetable, after)
    while found is not None:
        yield found
        found = following(timetable, found)


def _until(timetable: Timetable, after: Instant, end: Instant) -> Iterator[Instant]:
    for found in _occurrences(timetable, after):
        if found > end:
            return
        yield found


# --- storing a tick -------------------------------------------------------------------------------------------------


def occurrence(name: str, at: Instant) -> str:
    """The identity of one occurrence: occurrences lie on whole seconds, so nothing is cut off."""
    return f"{name}@{rfc3339(at)}"


def key(schedule: Schedule, at: Instant) -> Unique:
    """The unique key of the job for one occurrence. An exclusive schedule has one key for all of them, held through
    retry waits, so the store itself leaves out what overlaps, whatever the ticker knew.
    """
    if schedule.unique is not None:
        return Unique(schedule.unique, hold="retrying")
    if schedule.overlap == "skip":
        return Unique(f"schedule:{schedule.name}", hold="retrying")
    return Unique(occurrence(schedule.name, at))


def applies(stored: Schedule, decision: Tick) -> bool:
    """The guard of the write: the schedule is still as the tick has seen it."""
    return (
        stored.enabled
        and stored.next_fire == decision.seen
        and stored.expression == decision.expression
        and stored.tz == decision.tz
    )


def skipped(decision: Tick) -> Tick:
    """The same move without its jobs, because the store met an active job under the key."""
    return msgspec.structs.replace(decision, action=Action.SKIP, fires=(), missed=decision.missed + len(decision.fires))


def failed(decision: Tick, why: str) -> Tick:
    """The same move without its jobs, because they could not be stored: recorded, not repeated, still enabled."""
    return msgspec.structs.replace(skipped(decision), error=why)


def after_tick(stored: Schedule, decision: Tick) -> Schedule:
    """The schedule once a tick that `applies` is stored."""
    if decision.action is Action.IDLE:
        return stored
    kept = stored.last_error if decision.action is Action.SKIP else None
    return msgspec.structs.replace(
        stored,
        enabled=decision.next_fire is not None,
        next_fire=decision.next_fire,
        last_fire=decision.fires[-1] if decision.fires else stored.last_fire,
        last_error=kept if decision.error is None else decision.error,
    )


def nap(schedules: Iterable[Schedule], now: Instant) -> Span:
    """How long the ticker sleeps: until the next due fire, within bounds; at once means the lower bound."""
    due = [now if one.next_fire is None else one.next_fire for one in schedules if one.enabled]
    wait = min(due, default=now + LONGEST_SLEEP) - now
    return max(SHORTEST_SLEEP, min(wait, LONGEST_SLEEP))
