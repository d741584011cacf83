"""Schedules: what a tick does about each of them.

Rule 1: an occurrence is fired by compare-and-set. A `Tick` names the next fire it has seen; an engine stores the tick
and its jobs in one step and only while `applies` holds, so of many tickers one wins and nothing is fired twice.
Rule 2: a schedule never stops the others. What cannot be read is disabled with its error; a job that could not be
stored is recorded and the schedule goes on.
Rule 3: this file knows no clock. The ticker brings the store's time, the engine makes the write atomic.

The life of a schedule: `put` stores it without a next fire; the first tick seeds the next fire and starts nothing; from
then on each due tick fires and moves on. `cron` decides when one fires.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Literal, Protocol, TypeAlias, get_args

import msgspec

from stoker.model import ids
from stoker.model.cron import Timetable, following, parse
from stoker.model.errors import InvalidInput, InvalidSchedule
from stoker.model.ids import JobId
from stoker.model.job import PARENT, Draft, Receipt, check_name, check_span
from stoker.model.time import MILLISECOND, MINUTE, SECOND, Instant, Span, rfc3339
from stoker.model.unique import Unique, keep_plain, plain

replace = msgspec.structs.replace

Misfire: TypeAlias = Literal["once", "skip", "all"]
"""Missed occurrences: once = one job for all of them, skip = none past the grace, all = one each."""

Overlap: TypeAlias = Literal["allow", "skip"]
"""An occurrence whose predecessor's job is still active: start it beside, or leave it out."""

Source: TypeAlias = Literal["code", "api"]
"""Where a schedule comes from: declared in code, or stored by a call."""

CATCH_UP = 100
"""`misfire="all"` fires at most so many in one tick and goes on in the next: a write stays small."""

MOST_COUNTED = 1_000
"""Missed occurrences are counted up to here; beyond it the exact number is worth less than the time to find it."""

SHORTEST_SLEEP: Span = 500 * MILLISECOND
LONGEST_SLEEP: Span = 5 * SECOND

SCHEDULE = "stoker.schedule"
OCCURRENCE = "stoker.occurrence"
"""The metadata keys under which a job carries the name of its schedule and the instant it was made for."""

NO_ID: JobId = bytes(16)
"""The id of a template: each job that is made from it gets its own."""


SMALL, REMEMBERED = 4 << 10, 4_000
"""Limits of the parse cache: bytes of a schedule, and number of schedules."""


class Action(enum.StrEnum):
    """What became of a schedule in one tick. `missed`: everything due was too old; `skipped`: its last job is active;
    `error`: the job could not be stored.
    """

    IDLE = "idle"
    SEED = "seeded"
    FIRE = "fired"
    MISS = "missed"
    SKIP = "skipped"
    FAIL = "error"
    DISABLE = "disabled"


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job to be, again and again. The expression is judged by `check` and by each tick, not here: a stored schedule
    must be readable even when its zone has gone from the machine.

    `template` is the whole draft of its jobs, without an id. `edited` marks what an operator changed, so that the next
    deployment does not undo it. `last_status` is what the last due tick did, `last_missed` how many of its occurrences
    made no job, `missed` how many did not in all.
    """

    name: str
    expression: str
    template: Draft
    tz: str = "UTC"
    enabled: bool = True
    misfire: Misfire = "once"
    overlap: Overlap = "allow"
    grace: Span = MINUTE
    jitter: Span = 0
    source: Source = "api"
    edited: bool = False
    changed_at: Instant = 0
    last_fire: Instant | None = None
    next_fire: Instant | None = None
    last_status: Action | None = None
    last_missed: int = 0
    last_error: str | None = None
    missed: int = 0

    def __post_init__(self) -> None:
        keep_plain(self, name=check_name("schedule name", self.name))
        keep_plain(self, expression=plain(self.expression), tz=plain(self.tz))
        draft = self.template
        if draft.job_id != NO_ID or draft.at is not None or draft.options.group is not None:
            raise InvalidSchedule("template", draft, "must have neither an id nor a time of its own (at=) nor a group")
        for field, value, known in (("misfire", self.misfire, _MISFIRES), ("overlap", self.overlap, _OVERLAPS)):
            if value not in known:
                raise InvalidSchedule(field, value, f"must be one of {', '.join(known)}")
        check_span("grace", self.grace)
        check_span("jitter", self.jitter)
        if self.misfire == "all" and self.exclusive:
            raise InvalidSchedule("misfire", "all", "needs jobs side by side: leave out overlap='skip' and unique")

    @property
    def exclusive(self) -> bool:
        """Whether at most one of its jobs is active at a time."""
        return self.overlap == "skip" or self.template.unique is not None

    def is_due(self, now: Instant) -> bool:
        """Whether a tick at this instant has anything to do."""
        return self.enabled and (self.next_fire is None or self.next_fire <= now)


_MISFIRES, _OVERLAPS = get_args(Misfire), get_args(Overlap)


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to a stored schedule by an operator: None leaves a field as it is."""

    name: str
    expression: str | None = None
    tz: str | None = None
    template: Draft | None = None
    enabled: bool | None = None
    misfire: Misfire | None = None
    overlap: Overlap | None = None
    grace: Span | None = None
    jitter: Span | None = None


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """One decision. It rests on `at`, `seen`, `changed_at`, `expression` and `tz`; the rest is what to store.

    `at` is the store's time it was made at, `seen` the next fire it saw. `fires` holds the instants to make jobs for,
    in `queue`; `missed` is how many due occurrences get none.
    """

    name: str
    queue: str
    expression: str
    tz: str
    changed_at: Instant
    at: Instant
    seen: Instant | None
    action: Action = Action.IDLE
    next_fire: Instant | None = None
    fires: tuple[Instant, ...] = ()
    missed: int = 0
    error: str | None = None


class Met(Protocol):
    """What of a stored job tells whether it is that of an occurrence."""

    @property
    def kind(self) -> str: ...
    @property
    def queue(self) -> str: ...


class Fired(msgspec.Struct, frozen=True):
    """What a store did with a tick. `schedule` is the one stored now, None if there is none of that name.

    `now` is the store's time: a tick that was made later than that did not apply.
    """

    applied: bool
    now: Instant
    schedule: Schedule | None
    receipts: tuple[Receipt, ...] = ()


# --- storing --------------------------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Schedule).decode

UNREADABLE = "unreadable"
"""The kind of a schedule that cannot be read."""


def pack(schedule: Schedule) -> bytes:
    """A schedule as engines store it."""
    return _encode(schedule)


def unpack(name: str, stored: bytes) -> Schedule:
    """What `pack` wrote. What cannot be read becomes a disabled schedule that says so, and hinders no other one.

    A ticker reads every schedule again and again, and few have changed: the small ones are remembered.
    """
    return _remembered(name, stored) if len(stored) <= SMALL else _unpack(name, stored)


def _unpack(name: str, stored: bytes) -> Schedule:
    try:
        return _decode(stored)
    except (msgspec.MsgspecError, ValueError) as error:
        why = f"the stored schedule cannot be read ({error}); drop it or store it again"
        # Its status is that of a schedule that no operator switched off: the next declaration by code makes it anew.
        return Schedule(
            name=name,
            expression="",
            template=Draft(NO_ID, UNREADABLE),
            enabled=False,
            last_status=Action.DISABLE,
            last_error=why,
        )


def is_unreadable(schedule: Schedule) -> bool:
    """Does this stand for a stored schedule that cannot be read?"""
    return not schedule.expression and schedule.template.kind == UNREADABLE


_remembered = lru_cache(maxsize=REMEMBERED)(_unpack)


# --- making and changing --------------------------------------------------------------------------------------------


def template(draft: Draft) -> Draft:
    """A draft as the template of a schedule's jobs: no id of this one draft is left in it or in its chain."""
    metadata = {key: value for key, value in (draft.options.metadata or {}).items() if key != PARENT}
    then = tuple(map(template, draft.options.then))
    return replace(draft, job_id=NO_ID, options=replace(draft.options, metadata=metadata or None, then=then))


def check(schedule: Schedule, now: Instant) -> Schedule:
    """Refuse what can never fire or can make no job; otherwise the schedule itself."""
    first = following(parse(schedule.expression, schedule.tz), now)
    if first is None:
        raise InvalidSchedule("expression", schedule.expression, "has no occurrence in the next fifty years")
    draft_of(schedule, now)
    return schedule


def put(stored: Schedule | None, given: Schedule | Edit, now: Instant, *, keep_edited: bool = False) -> Schedule | None:
    """The schedule after a call of `put`; the stored one itself where nothing changes; None where there is none."""
    if isinstance(given, Schedule):
        return ensure(stored, given, now, keep_edited=keep_edited)
    return None if stored is None else edit(stored, given, now)


def ensure(stored: Schedule | None, declared: Schedule, now: Instant, *, keep_edited: bool = True) -> Schedule:
    """What code declares at every start: new ones are added, changed ones follow the code, edited ones are kept.

    One that an operator switched off stays off. Without `keep_edited` everything is as declared. What a call stores
    over a schedule that code declares counts as an operator's edit; what a call stored before for another kind or queue
    only has the name, and gives way.
    """
    check(declared, now)
    if stored is None:
        return replace(declared, edited=False, changed_at=now, **_FRESH)
    if (stored.source, declared.source) == ("api", "code") and _job(stored) != _job(declared):
        return replace(declared, edited=False, changed_at=max(now, stored.changed_at + 1), **_FRESH)
    if keep_edited and stored.edited:
        return stored
    paused = keep_edited and not stored.enabled and stored.last_status is not Action.DISABLE
    edited = stored.source == "code" and declared.source == "api"
    source = stored.source if edited else declared.source
    return _carried(stored, replace(declared, enabled=not paused, edited=edited, source=source), now)


def edit(stored: Schedule, change: Edit, now: Instant) -> Schedule:
    """A change by an operator. Switching off is always possible, also for a schedule that cannot be read.

    Switching on and off alone is no edit: the schedule goes on following the code.
    """
    given = {field: value for field in _EDITABLE if (value := getattr(change, field)) is not None}
    wanted = replace(stored, **given, edited=stored.edited or bool(given.keys() - {"enabled"}))
    if wanted.enabled or _timing(wanted) != _timing(stored):
        check(wanted, now)
    return _carried(stored, wanted, now)


_FRESH = {"last_fire": None, "next_fire": None, "last_status": None, "last_missed": 0, "last_error": None, "missed": 0}
_EDITABLE = tuple(field for field in Edit.__struct_fields__ if field != "name")


def _job(schedule: Schedule) -> tuple[str, str]:
    return schedule.template.kind, schedule.template.queue


def _timing(schedule: Schedule) -> tuple[str, str]:
    return schedule.expression, schedule.tz


def _carried(stored: Schedule, wanted: Schedule, now: Instant) -> Schedule:
    """Take the memory along, unless the timing changed or the schedule is switched on: then it starts afresh."""
    afresh = _timing(wanted) != _timing(stored) or (wanted.enabled and not stored.enabled)
    after = replace(
        wanted,
        name=stored.name,
        changed_at=stored.changed_at,
        last_fire=stored.last_fire,
        missed=stored.missed,
        next_fire=None if afresh else stored.next_fire,
        last_status=None if afresh else stored.last_status,
        last_missed=0 if afresh else stored.last_missed,
        last_error=None if afresh else stored.last_error,
    )
    return stored if after == stored else replace(after, changed_at=max(now, stored.changed_at + 1))


# --- ticking --------------------------------------------------------------------------------------------------------


def upcoming(schedule: Schedule, after: Instant, count: int) -> list[Instant]:
    """The next few occurrences, to check an expression."""
    return list(islice(_occurrences(parse(schedule.expression, schedule.tz), after), count))


def tick(schedule: Schedule, now: Instant) -> Tick:
    """Decide about one schedule."""
    decision = _idle(schedule, now)
    if not schedule.is_due(now):
        return decision
    try:
        timetable = parse(schedule.expression, schedule.tz)
    except InvalidSchedule as error:
        return disabled(schedule, now, str(error))
    if schedule.next_fire is None:
        return _moved(decision, Action.SEED, following(timetable, now))
    return _due(schedule, timetable, schedule.next_fire, now, decision)


def disabled(schedule: Schedule, now: Instant, why: str) -> Tick:
    """Switch off a schedule that cannot be evaluated."""
    return replace(_idle(schedule, now), action=Action.DISABLE, next_fire=None, error=why)


def _idle(schedule: Schedule, now: Instant) -> Tick:
    return Tick(
        name=schedule.name,
        queue=schedule.template.queue,
        expression=schedule.expression,
        tz=schedule.tz,
        changed_at=schedule.changed_at,
        at=now,
        seen=schedule.next_fire,
        next_fire=schedule.next_fire,
    )


def _due(schedule: Schedule, timetable: Timetable, first: Instant, now: Instant, decision: Tick) -> Tick:
    """Choose among the occurrences from `first` to now, by misfire policy."""
    past = [first, *islice(_until(timetable, first, now), MOST_COUNTED)]
    fires: tuple[Instant, ...]
    since = now
    if schedule.misfire == "once":
        fires = (first,)
    elif schedule.misfire == "all":
        past = past[:CATCH_UP]
        fires, since = tuple(past), past[-1]
    else:
        fresh = first if first >= now - schedule.grace else following(timetable, now - schedule.grace - 1)
        fires = (fresh,) if fresh is not None and fresh <= now else ()
    action = Action.FIRE if fires else Action.MISS
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
    return replace(decision, action=action, next_fire=onward, fires=fires, missed=missed, error=error)


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


# --- jobs -----------------------------------------------------------------------------------------------------------


def draft_of(schedule: Schedule, at: Instant) -> Draft:
    """The job of one occurrence: its id, its time and its key are the same whichever process makes it."""
    draft = _draft(schedule, {SCHEDULE: schedule.name, OCCURRENCE: rfc3339(at)})
    due = at + draft.delay + delay_by_jitter(schedule.name, at, schedule.jitter)
    return _identified(replace(draft, delay=0, at=due), ids.occurrence(schedule.name, at))


def extra_draft(schedule: Schedule, job: JobId) -> Draft:
    """A job beside the timetable, due at once."""
    return _identified(replace(_draft(schedule, {SCHEDULE: schedule.name}), delay=0), job)


def _identified(draft: Draft, job: JobId) -> Draft:
    """A template with an id; what follows it in a chain gets ids that are derived from it."""
    then = tuple(_identified(link, ids.link(job, n)) for n, link in enumerate(draft.options.then))
    return replace(draft, job_id=job, options=replace(draft.options, then=then))


def _draft(schedule: Schedule, carried: dict[str, str]) -> Draft:
    draft = schedule.template
    options = replace(draft.options, metadata={**(draft.options.metadata or {}), **carried})
    return replace(draft, options=options, unique=key(schedule))


def key(schedule: Schedule) -> Unique | None:
    """The unique key of its jobs; None: they may run side by side.

    An exclusive schedule has one key for all of them, held through retry waits, so the store itself leaves out what
    overlaps.
    """
    if (own := schedule.template.unique) is not None:
        return replace(own.stored, mode="existing", hold="retrying")
    return Unique(f"schedule:{schedule.name}", hold="retrying") if schedule.overlap == "skip" else None


def delay_by_jitter(name: str, at: Instant, jitter: Span) -> Span:
    """How much later than its occurrence a job is due: less than `jitter`, the same in every process."""
    digest = hashlib.sha256(f"jitter {name}@{at}".encode()).digest()
    return int.from_bytes(digest[:8]) % jitter if jitter else 0


# --- storing a tick -------------------------------------------------------------------------------------------------


def applies(stored: Schedule, decision: Tick, now: Instant) -> bool:
    """The guard of the write: the schedule is still as the tick has seen it, and the tick is not ahead of the store."""
    return (
        stored.enabled
        and stored.next_fire == decision.seen
        and _timing(stored) == (decision.expression, decision.tz)
        and stored.changed_at == decision.changed_at <= decision.at <= now
    )


def check_id(draft: Draft, stored: Met | None) -> None:
    """Refuse the job of an occurrence whose id another kind of job has: it must not pass for the schedule's own.

    Only Stoker makes such ids, so one that is taken was stored by another program, or the schedule was changed since.
    """
    if stored is not None and (stored.kind, stored.queue) != (draft.kind, draft.queue):
        why = f"is the id of a job of kind {stored.kind} in queue {stored.queue}; delete that job, or run this one now"
        raise InvalidInput("occurrence", draft.id, why)


def met(decision: Tick, drafts: Sequence[Draft], receipts: Sequence[Receipt]) -> Tick:
    """The tick after its jobs were stored: those that met an active job under their key are skipped.

    A job whose own id was stored before is there, and that is all a fire wants.
    """
    pairs = zip(decision.fires, drafts, receipts, strict=True)
    fires = tuple(at for at, draft, receipt in pairs if receipt.id == draft.job_id)
    if len(fires) == len(decision.fires):
        return decision
    action = decision.action if fires else Action.SKIP
    missed = decision.missed + len(decision.fires) - len(fires)
    return replace(decision, action=action, fires=fires, missed=missed)


def failed(decision: Tick, why: str) -> Tick:
    """The same move without its jobs, because they could not be stored: recorded, not repeated, still enabled."""
    missed = decision.missed + len(decision.fires)
    return replace(decision, action=Action.FAIL, fires=(), missed=missed, error=why)


def after_tick(stored: Schedule, decision: Tick) -> Schedule:
    """The schedule once a tick that `applies` is stored."""
    if decision.action is Action.IDLE:
        return stored
    moved = replace(stored, enabled=decision.next_fire is not None, next_fire=decision.next_fire)
    if decision.action is Action.SEED:
        return moved
    kept = None if decision.action is Action.FIRE else stored.last_error
    return replace(
        moved,
        last_fire=decision.fires[-1] if decision.fires else stored.last_fire,
        last_status=decision.action,
        last_missed=decision.missed,
        last_error=kept if decision.error is None else decision.error,
        missed=stored.missed + decision.missed,
    )


def nap(schedules: Iterable[Schedule], now: Instant) -> Span:
    """How long the ticker sleeps: until the next due fire, within bounds; at once means the lower bound."""
    due = [now if one.next_fire is None else one.next_fire for one in schedules if one.enabled]
    wait = min(due, default=now + LONGEST_SLEEP) - now
    return max(SHORTEST_SLEEP, min(wait, LONGEST_SLEEP))
