"""When a schedule fires: an expression and a zone, and the first instant after another.

Called by `schedule` and by nothing else. `cronsim` reads the fields and walks the calendar; this module hands it wall
clocks without a zone and does the zone itself, because a walk in steps of an hour misses minutes where a zone shifts by
half an hour or off the hour. The rule it keeps is Debian's, for five and for six fields alike:

* *Running* expressions, whose minute or hour begins with `*`, fire at every instant at which the wall clock matches:
  nothing inside a skipped hour, both times inside a repeated one.
* *Fixed* expressions, all others, fire once for every wall clock time they name: one that the clocks skip fires at the
  moment they jump (several skipped ones together, once), one that they show twice fires the first time.
* `@every` counts whole seconds from 1970 UTC. All processes agree on that grid without talking to one another, and no
  restart, edit or clock change shifts it.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TypeAlias
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from stoker.model.errors import InvalidInput, InvalidSchedule
from stoker.model.time import DAY, HOUR, LONGEST, MINUTE, SECOND, Instant, Seconds, Span, instant, span

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
LONGEST_EXPRESSION = 256
_EVERY = re.compile(r"@every\s+(\d{1,9})(s|m|h|d)?")
_STEPS = re.compile(r"\b(\w+)-(\w+)/\d+")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_NAMES = {name: str(n) for n, name in (*enumerate(_DAYS), *enumerate(_MONTHS, 1))}
_UNITS = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_LAST: Instant = instant(datetime(9900, 1, 1, tzinfo=UTC))
_DAY = 86_400


class Cron(msgspec.Struct, frozen=True):
    """Five fields, or six with seconds first, read on the wall clock of a zone."""

    fields: str
    tz: str = "UTC"


class Every(msgspec.Struct, frozen=True):
    """Each multiple of `span` since 1970 UTC."""

    span: Span


Timetable: TypeAlias = Cron | Every


def every(interval: Seconds) -> str:
    """The expression for a fixed interval of whole seconds: `every(90)` is `@every 90s`."""
    try:
        micros = span(interval, "every")
    except InvalidInput as error:
        raise InvalidSchedule("every", interval, error.why) from error
    if micros < SECOND or micros % SECOND:
        raise InvalidSchedule("every", interval, "must be whole seconds, at least one")
    return f"@every {micros // SECOND}s"


def _counted(expression: str, number: str, unit: str | None) -> Every:
    micros = int(number) * _UNITS[unit or "s"]
    if not SECOND <= micros <= LONGEST:
        raise InvalidSchedule("expression", expression, "must be at least one second and at most ten years")
    return Every(micros)


def parse(expression: str, tz: str = "UTC") -> Timetable:
    """Read an expression and its zone; `InvalidSchedule` says which of them is wrong and what is understood."""
    if not isinstance(expression, str) or len(expression) > LONGEST_EXPRESSION:
        raise InvalidSchedule("expression", expression, f"must be text of at most {LONGEST_EXPRESSION} characters")
    text = expression.strip().lower()
    zone(tz)
    if counted := _EVERY.fullmatch(text):
        return _counted(expression, *counted.groups())
    fields = ALIASES.get(text, text)
    if fields.startswith("@"):
        known = ", ".join(sorted(ALIASES))
        raise InvalidSchedule("expression", expression, f"knows only {known} and '@every 90s' (also m, h, d)")
    try:
        CronSim(fields, datetime(2000, 1, 1))  # noqa: DTZ001 - a wall clock, see above
    except (CronSimError, ValueError) as error:
        why = f"{error}: write minute hour day month weekday, with seconds before them if need be"
        raise InvalidSchedule("expression", expression, why) from error
    return Cron(" ".join(_STEPS.sub(_one_value, field) for field in fields.split()), tz)


def _one_value(steps: re.Match[str]) -> str:
    """A range of one value with a step is that value: to cronsim it is steps from there to the end of the field."""
    first, last = (_NAMES.get(end.lower(), end).lstrip("0") for end in steps.group(1, 2))
    return steps[1] if first == last else steps[0]


def zone(tz: str) -> tzinfo:
    """The zone of that name. UTC is known even where no zone database is installed."""
    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz)
    except (LookupError, ValueError, TypeError, OSError) as error:
        # a folder of the database is an OSError, a path that leaves it a ValueError
        raise InvalidSchedule("tz", tz, "is not a zone of this machine's database; try 'Europe/Paris'") from error


def following(timetable: Timetable, after: Instant) -> Instant | None:
    """The first occurrence strictly after an instant; None when none comes within fifty years."""
    if after >= _LAST:
        return None
    if isinstance(timetable, Every):
        return (after // timetable.span + 1) * timetable.span
    fields, place, second = timetable.fields, zone(timetable.tz), after // SECOND
    minute, hour = fields.split()[-5:-3]
    walk = _running if minute.startswith("*") or hour.startswith("*") else _fixed
    found = walk(fields, place, second)
    return None if found is None else found * SECOND


def _running(fields: str, place: tzinfo, after: int) -> int | None:
    """Walk on one offset at a time: where it holds, wall clock and UTC move together and the walk is exact."""
    since, offset = after, _offset(place, after)
    while True:
        wall = next(CronSim(fields, _wall(after, offset)), None)
        if wall is None:
            return None
        found = _utc(wall, offset)
        shift = _shift(place, since, found)
        if shift is None:
            return found
        since, offset, after = shift, _offset(place, shift), shift - 1


def _fixed(fields: str, place: tzinfo, after: int) -> int | None:
    """Walk the wall clock as if it never shifted and give each time it names its one instant."""
    for wall in CronSim(fields, _wall(after, _offset(place, after))):
        found = _first(place, wall)
        if found > after:
            return found
    return None


def _first(place: tzinfo, wall: datetime) -> int:
    """The instant at which a zone's clocks first show a wall time, or jump over it."""
    before, behind = (_utc(wall, _seconds(wall.replace(tzinfo=place, fold=fold).utcoffset())) for fold in (0, 1))
    if _wall(before, _offset(place, before)) == wall:
        return before
    jump = _shift(place, behind, before)
    assert jump is not None, "a wall time that never shows lies across a shift"
    return jump


def _shift(place: tzinfo, low: int, high: int) -> int | None:
    """The first second in (low, high] whose offset differs from `low`'s, looked for day by day.

    No zone has ever shifted and shifted back within a day, so equal ends of a day mean a constant offset.
    """
    offset = _offset(place, low)
    while low < high:
        step = min(low + _DAY, high)
        if _offset(place, step) != offset:
            while step - low > 1:
                middle = (low + step) // 2
                low, step = (middle, step) if _offset(place, middle) == offset else (low, middle)
            return step
        low = step
    return None


def _offset(place: tzinfo, second: int) -> int:
    return _seconds(datetime.fromtimestamp(second, place).utcoffset())


def _seconds(offset: timedelta | None) -> int:
    assert offset is not None, "zones of the database always know their offset"
    return offset // timedelta(seconds=1)


def _wall(second: int, offset: int) -> datetime:
    return datetime.fromtimestamp(second + offset, UTC).replace(tzinfo=None)


def _utc(wall: datetime, offset: int) -> int:
    return int(wall.replace(tzinfo=UTC).timestamp()) - offset
