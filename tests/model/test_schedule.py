"""Schedules and the expressions they fire by: CRON-01 to CRON-24."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.model import cron, ids, schedule
from stoker.model.cron import Cron, Every, every, following, parse
from stoker.model.errors import InvalidInput, InvalidSchedule
from stoker.model.job import PLAIN, Draft, Options, Receipt, Stored
from stoker.model.schedule import (
    CATCH_UP,
    LONGEST_SLEEP,
    MOST_COUNTED,
    NO_ID,
    OCCURRENCE,
    SCHEDULE,
    SHORTEST_SLEEP,
    Action,
    Edit,
    Schedule,
    Tick,
    after_tick,
    applies,
    check,
    check_id,
    delay_by_jitter,
    draft_of,
    edit,
    ensure,
    extra_draft,
    failed,
    is_unreadable,
    key,
    met,
    nap,
    pack,
    put,
    template,
    tick,
    unpack,
    upcoming,
)
from stoker.model.time import DAY, HOUR, LONGEST, MINUTE, SECOND, Instant, instant
from stoker.model.unique import Unique

replace = msgspec.structs.replace
NOON = instant(datetime(2025, 6, 15, 12, 0, tzinfo=UTC))
FEW = settings(deadline=None, max_examples=settings().max_examples // 3)
instants = st.integers(0, 4_000_000_000).map(lambda second: second * SECOND)


def at(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> Instant:
    return instant(datetime(year, month, day, hour, minute, second, tzinfo=UTC))


MAIL = Draft(NO_ID, "mail")
OTHER = Draft(NO_ID, "mail", queue="slow")


def plan(expression: str = "0 * * * *", **more: Any) -> Schedule:
    return Schedule(**{"name": "digest", "expression": expression, "template": MAIL, **more})


def next_after(schedule: Schedule, at: Instant) -> Instant | None:
    return next(iter(upcoming(schedule, at, 1)), None)


def seeded(expression: str, next_fire: Instant, **more: Any) -> Schedule:
    return plan(expression, next_fire=next_fire, **more)


# --- expressions ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("CRON-01")
@pytest.mark.parametrize(
    "expression, expected",
    [
        ("30 9 * * mon-fri", at(2025, 6, 16, 9, 30)),
        ("15 30 9 * * MON-FRI", at(2025, 6, 16, 9, 30, 15)),
        ("*/5 * * * * *", at(2025, 6, 15, 12, 0, 5)),
        ("  0 0  L * * ", at(2025, 6, 30)),
        ("0 0 29 2 *", at(2028, 2, 29)),
    ],
)
def test_five_fields_or_six_with_seconds_first(expression: str, expected: Instant) -> None:
    assert following(parse(expression), NOON) == expected


@pytest.mark.spec("CRON-02")
@pytest.mark.parametrize(
    "alias, expected",
    [
        ("@hourly", at(2025, 6, 15, 13)),
        ("@daily", at(2025, 6, 16)),
        ("@midnight", at(2025, 6, 16)),
        ("@weekly", at(2025, 6, 22)),
        ("@monthly", at(2025, 7, 1)),
        ("@yearly", at(2026, 1, 1)),
        (" @Annually ", at(2026, 1, 1)),
    ],
)
def test_aliases(alias: str, expected: Instant) -> None:
    assert following(parse(alias), NOON) == expected


@pytest.mark.spec("CRON-03")
@pytest.mark.parametrize(
    "text, span",
    [
        (every(90), 90 * SECOND),
        (every(timedelta(hours=6)), 6 * HOUR),
        ("@every 45", 45 * SECOND),
        ("@EVERY 10m", 10 * MINUTE),
        ("@every 2h", 2 * HOUR),
        ("@every  7d", 7 * DAY),
    ],
)
def test_intervals(text: str, span: int) -> None:
    assert parse(text) == Every(span)


@pytest.mark.spec("CRON-03")
@given(span=st.integers(1, LONGEST // SECOND), after=instants)
def test_an_interval_fires_on_the_grid_of_its_multiples(span: int, after: Instant) -> None:
    found = following(parse(every(span)), after)
    assert found is not None
    assert found % (span * SECOND) == 0
    assert after < found <= after + span * SECOND


@pytest.mark.spec("CRON-03", "CRON-05")
@pytest.mark.parametrize("interval", [0, 0.5, 1.5, -1, float("nan"), True, LONGEST // SECOND + 1])
def test_intervals_are_whole_seconds_at_least_one(interval: float) -> None:
    with pytest.raises(InvalidSchedule):
        every(interval)


@pytest.mark.spec("CRON-05")
@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "0 24 * * *",
        "0 0 30 2 *",
        "*/0 * * * *",
        "@fortnightly",
        "@every 0s",
        "@every 999999999d",
        "@every soon",
        "9" * 250,
        "*" * 300,
        "9" * 5000 + " * * * *",
        None,
    ],
)
def test_unreadable_expressions_are_refused(expression: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse(expression)
    assert caught.value.field == "expression"


@pytest.mark.spec("CRON-05")
@given(st.text(st.sampled_from("0123456789*/-,#LWJAN monSUN@every²\0"), max_size=40))
def test_no_text_ever_breaks_the_parser(expression: str) -> None:
    try:
        timetable = parse(expression)
    except InvalidSchedule:
        return
    assert isinstance(timetable, Cron | Every)


@pytest.mark.spec("CRON-04", "CRON-05")
@pytest.mark.parametrize(
    "tz", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "America", "a\0b", "\ud800", None, 3]
)
def test_unknown_zones_are_refused(tz: str) -> None:
    with pytest.raises(InvalidSchedule) as caught:
        parse("* * * * *", tz)
    assert caught.value.field == "tz"


@pytest.mark.spec("CRON-04")
def test_the_fields_are_read_on_the_wall_clock_of_the_zone() -> None:
    assert next_after(plan("0 9 * * *", tz="Europe/Paris"), at(2025, 1, 10)) == at(2025, 1, 10, 8)
    assert next_after(plan("0 9 * * *", tz="Europe/Paris"), at(2025, 7, 10)) == at(2025, 7, 10, 7)
    assert next_after(plan("0 9 * * *", tz="Asia/Kathmandu"), at(2025, 7, 10)) == at(2025, 7, 10, 3, 15)


@pytest.mark.spec("CRON-06")
@pytest.mark.parametrize("expression", ["* * * * *", "30 2 * * *", "@hourly", "* * * * * *", "@every 1s"])
@given(after=instants, micros=st.integers(0, SECOND - 1))
@FEW
def test_next_is_strictly_after_and_nothing_lies_between(expression: str, after: Instant, micros: int) -> None:
    timetable = parse(expression, "America/New_York")
    found = following(timetable, after + micros)
    assert found is not None
    assert found > after + micros
    assert following(timetable, found - 1) == found


@pytest.mark.spec("CRON-06")
def test_leap_days_skip_a_century_year_and_the_calendar_ends() -> None:
    assert next_after(plan("0 0 29 2 *"), at(2096, 3, 1)) == at(2104, 2, 29)
    assert next_after(plan("* * * * *"), at(9950, 1, 1)) is None


# --- summer time ----------------------------------------------------------------------------------------------------

SHIFTS = [
    ("Australia/Lord_Howe", at(2025, 4, 5, 15)),
    ("Australia/Lord_Howe", at(2025, 10, 4, 15, 30)),
    ("Pacific/Chatham", at(2025, 4, 5, 14)),
    ("Pacific/Chatham", at(2025, 9, 27, 14)),
    ("Antarctica/Troll", at(2025, 3, 30, 1)),
    ("Antarctica/Troll", at(2025, 10, 26, 1)),
    ("America/Santiago", at(2025, 4, 6, 3)),
    ("America/Santiago", at(2025, 9, 7, 4)),
    ("America/New_York", at(2025, 3, 9, 7)),
    ("America/New_York", at(2025, 11, 2, 6)),
    ("Europe/Paris", at(2025, 3, 30, 1)),
    ("Europe/Paris", at(2025, 10, 26, 1)),
]
AROUND = (-3 * HOUR, 4 * HOUR)


def matches(fields: CronSim, wall: datetime) -> bool:
    return wall.minute in fields.minutes and wall.hour in fields.hours and fields.match_day(wall.date())


def oracle(expression: str, tz: str, start: Instant, end: Instant) -> list[Instant]:
    """Look at the wall clock of every single UTC minute, and at the minutes it jumped over to get there."""
    fields = CronSim(expression, datetime(2000, 1, 1))
    running = any(field.startswith("*") for field in expression.split()[:2])
    minute, found = timedelta(minutes=1), []
    before = datetime.fromtimestamp(start // SECOND - 60, ZoneInfo(tz)).replace(tzinfo=None, fold=0)
    for now in range(start, end, MINUTE):
        shown = datetime.fromtimestamp(now // SECOND, ZoneInfo(tz))
        wall = shown.replace(tzinfo=None, fold=0)
        jumped = [before + minute * n for n in range(1, (wall - before) // minute)]
        if running:
            hit = matches(fields, wall)
        else:
            first = shown.fold == 0 and matches(fields, wall)
            hit = first or any(matches(fields, skipped_wall) for skipped_wall in jumped)
        if hit:
            found.append(now)
        before = wall
    return found


def walk(expression: str, tz: str, start: Instant, end: Instant) -> list[Instant]:
    found, now = [], following(Cron(expression, tz), start - 1)
    while now is not None and now < end:
        found.append(now)
        now = following(Cron(expression, tz), now)
    return found


minutes = st.one_of(st.sampled_from(["*", "*/7", "*/30", "0", "45", "15,45", "0-20/10"]), st.integers(0, 59).map(str))
hours = st.one_of(st.sampled_from(["*", "*/2", "0", "0-3", "1,2,3", "23"]), st.integers(0, 4).map(str))
days = st.sampled_from(["* * *", "* * sun", "* * sat", "1-7 * */6"])


@pytest.mark.spec("CRON-07", "CRON-08", "CRON-09")
@pytest.mark.parametrize("tz, shift", SHIFTS)
@given(minute=minutes, hour=hours, day=days)
@FEW
def test_every_shift_agrees_with_the_oracle(tz: str, shift: Instant, minute: str, hour: str, day: str) -> None:
    start, end = (shift + edge for edge in AROUND)
    expression = f"{minute} {hour} {day}"
    assert walk(expression, tz, start, end) == oracle(expression, tz, start, end)


@pytest.mark.spec("CRON-06", "CRON-07", "CRON-08")
@pytest.mark.parametrize("expression", ["30 2 * * *", "*/20 2 * * *", "45 1 * * *"])
@given(which=st.sampled_from(SHIFTS), offset=st.integers(*AROUND))
@FEW
def test_from_any_instant_near_a_shift_the_next_is_the_oracles(
    expression: str, which: tuple[str, Instant], offset: int
) -> None:
    tz, shift = which
    after, end = shift + offset, shift + offset + 8 * HOUR
    expected = [one for one in oracle(expression, tz, shift - 4 * HOUR, end) if one > after]
    found = following(Cron(expression, tz), after)
    assert found is not None
    assert found == expected[0] if expected else found >= end - HOUR


@pytest.mark.spec("CRON-08")
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *", "*/10 30 2 * * *"])
def test_a_fixed_time_the_clocks_skip_fires_when_they_jump(expression: str) -> None:
    jump = at(2025, 3, 30, 1)
    assert following(Cron(expression, "Europe/Paris"), jump - HOUR) == jump
    after = following(Cron(expression, "Europe/Paris"), jump)
    assert after == at(2025, 3, 31, 0, 30)


@pytest.mark.spec("CRON-08")
@pytest.mark.parametrize("expression", ["30 2 * * *", "0 30 2 * * *"])
def test_a_fixed_time_the_clocks_show_twice_fires_the_first_time(expression: str) -> None:
    timetable = Cron(expression, "Europe/Paris")
    assert following(timetable, at(2025, 10, 26)) == at(2025, 10, 26, 0, 30)
    assert following(timetable, at(2025, 10, 26, 1, 15)) == at(2025, 10, 27, 1, 30)


@pytest.mark.spec("CRON-08")
def test_midnight_that_does_not_exist_and_a_day_that_was_left_out() -> None:
    assert next_after(plan("@daily", tz="America/Santiago"), at(2025, 9, 6, 12)) == at(2025, 9, 7, 4)
    assert next_after(plan("0 12 30 12 *", tz="Pacific/Apia"), at(2011, 12, 29)) == at(2011, 12, 30, 10)


@pytest.mark.spec("CRON-07")
def test_an_hourly_schedule_runs_in_both_of_the_repeated_hours() -> None:
    assert walk("30 * * * *", "Europe/Paris", at(2025, 10, 26), at(2025, 10, 26, 3)) == [
        at(2025, 10, 26, 0, 30),
        at(2025, 10, 26, 1, 30),
        at(2025, 10, 26, 2, 30),
    ]


@pytest.mark.spec("CRON-09")
def test_half_hour_shifts_lose_no_minute() -> None:
    """Walking in steps of an hour would miss 01:45 for the second time, and all before 03:30."""
    assert walk("45 * * * *", "Australia/Lord_Howe", at(2025, 4, 5, 14), at(2025, 4, 5, 16, 30)) == [
        at(2025, 4, 5, 14, 45),
        at(2025, 4, 5, 15, 15),
        at(2025, 4, 5, 16, 15),
    ]
    assert next_after(plan("* 3 * * *", tz="Australia/Lord_Howe"), at(2025, 10, 4, 14)) == at(2025, 10, 4, 16)


# --- making and changing --------------------------------------------------------------------------------------------


@pytest.mark.spec("CRON-10")
@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "no spaces please"},
        {"template": replace(MAIL, job_id=b"0123456789abcdef")},
        {"template": replace(MAIL, at=NOON)},
        {"template": replace(MAIL, options=Options(group=bytes(range(16))))},
        {"misfire": "sometimes"},
        {"overlap": "queue"},
        {"grace": -1},
        {"jitter": -1},
        {"misfire": "all", "overlap": "skip"},
        {"misfire": "all", "template": replace(MAIL, unique=Unique("one"))},
    ],
)
def test_impossible_schedules_cannot_be_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        plan(**wrong)


FULL = Draft(
    NO_ID,
    "mail",
    b'{"to":"a"}',
    queue="slow",
    priority=-3,
    delay=SECOND,
    attempts=7,
    unique=Unique("one", scope="global", mode="replace"),
    tenant="acme",
    options=Options(timeout=SECOND, keep=0, metadata={"team": "x"}),
)


@pytest.mark.spec("CRON-10")
def test_a_full_schedule_survives_storage() -> None:
    full = plan("@daily", template=FULL, tz="Europe/Paris", overlap="skip", grace=0, jitter=5, source="code", missed=3)
    full = replace(full, last_status=Action.FAIL, last_error="full", last_fire=1, next_fire=NOON, edited=True)
    assert unpack("digest", pack(full)) == full
    large = replace(full, template=replace(FULL, payload=b"x" * 10_000))
    assert unpack("digest", pack(large)) == large
    assert check(full, NOON) is full
    assert template(replace(MAIL, job_id=bytes(range(16)))) == MAIL


@pytest.mark.spec("CRON-21")
@pytest.mark.parametrize("stored", [b"", b"{}", b"[]", b"\xff", pack(plan()).replace(b"mail", b"/"), b'{"name":3}'])
def test_a_record_that_cannot_be_read_is_a_disabled_schedule(stored: bytes) -> None:
    read = unpack("digest", stored)
    assert (read.name, read.enabled) == ("digest", False)
    assert "cannot be read" in (read.last_error or "")
    assert tick(read, NOON).action is Action.IDLE
    assert is_unreadable(read)
    assert not is_unreadable(plan())
    for keep_edited in (False, True):
        assert put(read, plan("@daily"), NOON, keep_edited=keep_edited) == plan("@daily", changed_at=NOON)


@pytest.mark.spec("CRON-11")
@pytest.mark.parametrize("expression", ["61 * * * *", "0 0 31 2 *", "0 0 */30 2 mon#5", "* 0 */30 2 mon#5"])
def test_what_never_fires_is_refused(expression: str) -> None:
    with pytest.raises(InvalidSchedule):
        check(plan(expression), NOON)
    with pytest.raises(InvalidSchedule):
        ensure(None, plan(expression), NOON)


@pytest.mark.spec("CRON-11")
def test_what_can_make_no_job_is_refused() -> None:
    """The job carries the name and the instant as metadata, and there must be room for them."""
    crowded = replace(MAIL, options=Options(metadata={"k": "x" * 8_180}))
    with pytest.raises(InvalidInput, match="metadata"):
        put(None, plan(template=crowded), NOON)


@pytest.mark.spec("CRON-12")
def test_ensuring_adds_follows_the_code_and_repeats_without_effect() -> None:
    first = ensure(None, plan("@daily", next_fire=5, edited=True, missed=9), NOON)
    assert first == plan("@daily", changed_at=NOON)
    running = replace(first, next_fire=NOON, last_fire=1, last_error="full", last_status=Action.FAIL, missed=2)
    assert ensure(running, plan("@daily"), NOON + 5) is running
    slow = plan("@daily", template=OTHER)
    assert ensure(running, slow, NOON + 5) == replace(running, template=OTHER, changed_at=NOON + 5)
    assert ensure(running, slow, NOON) == replace(running, template=OTHER, changed_at=NOON + 1), "never the same again"
    assert ensure(running, plan("@hourly"), NOON + 5) == plan("@hourly", last_fire=1, missed=2, changed_at=NOON + 5)


@pytest.mark.spec("CRON-12")
def test_ensuring_keeps_what_an_operator_edited_unless_the_caller_says_otherwise() -> None:
    edited = edit(plan("@daily"), Edit(name="digest", expression="@weekly"), NOON)
    assert edited == plan("@weekly", edited=True, changed_at=NOON)
    assert ensure(edited, plan("@hourly"), NOON) is edited
    assert ensure(edited, plan("@hourly"), NOON, keep_edited=False) == plan("@hourly", changed_at=NOON + 1)


@pytest.mark.spec("CRON-12")
def test_what_an_operator_switched_off_stays_off_and_follows_the_code() -> None:
    off = edit(plan("@daily", source="code"), Edit(name="digest", enabled=False), NOON)
    assert (off.enabled, off.edited) == (False, False)
    hourly = plan("@hourly", source="code")
    assert ensure(off, hourly, NOON) == replace(hourly, enabled=False, changed_at=NOON + 1)
    assert ensure(off, hourly, NOON, keep_edited=False).enabled
    broken = after_tick(plan("nonsense"), tick(plan("nonsense"), NOON))
    assert ensure(broken, hourly, NOON).enabled, "the code was repaired"


@pytest.mark.spec("CRON-12")
def test_a_call_that_stores_over_the_code_is_an_edit() -> None:
    code = plan("@daily", source="code")
    changed = put(code, plan("@hourly", source="api"), NOON)
    assert changed == plan("@hourly", source="code", edited=True, changed_at=NOON)
    assert put(changed, code, NOON, keep_edited=True) is changed
    taken_over = put(plan("@daily", source="api"), code, NOON, keep_edited=True)
    assert taken_over == replace(code, changed_at=NOON)


@pytest.mark.spec("SCHED-25")
@pytest.mark.parametrize("change", [{"expression": "@weekly"}, {"enabled": False}], ids=["edited", "paused"])
@pytest.mark.parametrize("other", [replace(MAIL, kind="other"), OTHER], ids=["kind", "queue"])
def test_a_name_that_was_taken_for_another_job_keeps_no_schedule_from_the_code(
    change: dict[str, Any], other: Draft
) -> None:
    """Who may schedule mail could else take the name of a schedule of payments first, and edit or pause it."""
    code = plan("@daily", source="code")
    squatter = edit(plan("@daily", source="api", template=other, missed=3), Edit(name="digest", **change), NOON)
    assert ensure(squatter, code, NOON) == replace(code, changed_at=NOON + 1)
    own = edit(plan("@daily", source="api"), Edit(name="digest", **change), NOON)
    kept = ensure(own, code, NOON)
    assert (kept.expression, kept.enabled) == (own.expression, own.enabled), "the same job, so it is the operator's"
    moved = edit(code, Edit(name="digest", template=other), NOON)
    assert ensure(moved, code, NOON) is moved, "an edit of what the code declares"


@pytest.mark.spec("CRON-13")
def test_new_timing_or_switching_on_starts_afresh() -> None:
    old = plan("@daily", next_fire=NOON, last_fire=1, last_error="full", last_status=Action.FAIL, last_missed=2)

    def after(stored: Schedule, **change: Any) -> Schedule:
        return edit(stored, Edit(name="digest", **change), NOON)

    moved = after(old, tz="Europe/Paris")
    assert (moved.next_fire, moved.last_status, moved.last_missed) == (None, None, 0)
    off = after(old, enabled=False)
    assert (off.next_fire, off.last_error, off.last_status) == (NOON, "full", Action.FAIL)
    on = after(off, enabled=True)
    assert (on.next_fire, on.last_error, on.last_fire) == (None, None, 1)
    assert after(old, template=OTHER) == replace(old, template=OTHER, edited=True, changed_at=NOON)
    assert after(old, enabled=True) is old
    assert after(old, misfire="skip", overlap="skip", grace=0, jitter=9).jitter == 9
    assert put(None, Edit(name="digest", enabled=False), NOON) is None


@pytest.mark.spec("CRON-13")
def test_what_cannot_be_read_can_be_switched_off_but_not_on() -> None:
    broken = plan("nonsense")
    off = put(broken, Edit(name="digest", enabled=False), NOON)
    assert off is not None
    assert not off.enabled
    with pytest.raises(InvalidSchedule):
        edit(off, Edit(name="digest", enabled=True), NOON)
    with pytest.raises(InvalidSchedule):
        edit(off, Edit(name="digest", expression="other nonsense"), NOON)


# --- ticking --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("CRON-14")
def test_the_first_tick_seeds_and_fires_nothing() -> None:
    one = tick(plan("@hourly"), NOON)
    assert (one.action, one.fires, one.next_fire, one.seen) == (Action.SEED, (), NOON + HOUR, None)
    assert after_tick(plan("@hourly"), one) == plan("@hourly", next_fire=NOON + HOUR)


@pytest.mark.spec("CRON-15")
def test_a_due_schedule_fires_and_an_early_or_disabled_one_rests() -> None:
    due = seeded("@hourly", NOON)
    one = tick(due, NOON)
    assert (one.action, one.fires, one.next_fire, one.missed) == (Action.FIRE, (NOON,), NOON + HOUR, 0)
    moved = after_tick(replace(due, last_error="full"), one)
    assert (moved.last_fire, moved.next_fire, moved.last_error, moved.enabled) == (
        NOON,
        NOON + HOUR,
        None,
        True,
    )
    for resting in (tick(due, NOON - 1), tick(replace(due, enabled=False), NOON)):
        assert (resting.action, resting.fires, resting.next_fire) == (Action.IDLE, (), NOON)
        assert after_tick(due, resting) is due


@pytest.mark.spec("CRON-16")
def test_missed_occurrences_collapse_into_one_job() -> None:
    one = tick(seeded("@hourly", NOON), NOON + 5 * HOUR + MINUTE)
    assert (one.fires, one.missed, one.next_fire) == ((NOON,), 5, NOON + 6 * HOUR)
    long_ago = tick(seeded("* * * * * *", NOON), NOON + DAY)
    assert (len(long_ago.fires), long_ago.missed) == (1, MOST_COUNTED)


@pytest.mark.spec("CRON-17")
@pytest.mark.parametrize(
    "late, fires",
    [
        (0, True),
        (MINUTE, True),
        (MINUTE + 1, False),
        (HOUR - 1, False),
        (HOUR, True),
        (HOUR + MINUTE, True),
        (HOUR + 2 * MINUTE, False),
    ],
)
def test_skip_drops_what_is_older_than_the_grace(late: int, fires: bool) -> None:
    one = tick(seeded("@hourly", NOON, misfire="skip"), NOON + late)
    expected = (NOON + late // HOUR * HOUR,) if fires else ()
    assert (one.fires, one.action) == (expected, Action.FIRE if fires else Action.MISS)
    assert one.missed == late // HOUR + 1 - len(expected)
    assert one.next_fire == NOON + (late // HOUR + 1) * HOUR


@pytest.mark.spec("CRON-17")
def test_a_grace_longer_than_the_interval_fires_none_again() -> None:
    """The hours before its next one have fired already, and are within the grace."""
    for late in (0, MINUTE, 2 * HOUR):
        one = tick(seeded("@hourly", NOON, misfire="skip", grace=5 * HOUR), NOON + late)
        assert (one.fires, one.missed) == ((NOON,), late // HOUR)


@pytest.mark.spec("CRON-17")
def test_skip_without_any_later_occurrence_disables() -> None:
    end = at(9899, 12, 31, 23)
    one = tick(seeded("0 23 31 12 *", end, misfire="skip", grace=0), end + DAY)
    assert (one.action, one.fires, one.next_fire) == (Action.DISABLE, (), None)


@pytest.mark.spec("CRON-18")
def test_all_fires_each_missed_one_in_bounded_steps() -> None:
    now = NOON + 250 * MINUTE
    one, steps = seeded("* * * * *", NOON, misfire="all"), 0
    fired: list[Instant] = []
    while (decision := tick(one, now)).action is Action.FIRE:
        assert len(decision.fires) <= CATCH_UP
        assert decision.missed == 0
        fired += decision.fires
        one, steps = after_tick(one, decision), steps + 1
    assert fired == [NOON + n * MINUTE for n in range(251)]
    assert (steps, one.next_fire) == (3, NOON + 251 * MINUTE)


@pytest.mark.spec("CRON-15", "CRON-16", "CRON-17", "CRON-18")
@given(
    misfire=st.sampled_from(["once", "skip", "all"]),
    expression=st.sampled_from(["*/5 * * * *", "@hourly", "30 2 * * *", "@every 7m"]),
    gaps=st.lists(st.integers(0, 4 * HOUR), max_size=12),
)
@FEW
def test_whatever_the_pace_of_ticks_occurrences_are_real_ordered_and_never_repeated(
    misfire: str, expression: str, gaps: list[int]
) -> None:
    now = NOON
    fired: list[Instant] = []
    one = after_tick(plan(expression, misfire=misfire), tick(plan(expression), now))
    for gap in gaps:
        now += gap
        decision = tick(one, now)
        assert applies(one, decision, now)
        fired += decision.fires
        one = after_tick(one, decision)
        assert one.next_fire is not None
        assert one.next_fire > now or len(decision.fires) == CATCH_UP
    assert fired == sorted(set(fired))
    assert all(following(parse(expression), each - 1) == each and NOON < each <= now for each in fired)
    if misfire == "all":
        assert fired == [each for each in upcoming(one, NOON, len(fired) + 1) if each <= now][: len(fired)]


@pytest.mark.spec("CRON-19")
def test_an_exclusive_schedule_has_one_key_for_all_its_jobs() -> None:
    assert key(plan()) is None
    assert key(plan(overlap="skip")) == Unique("schedule:digest", hold="retrying")
    kept = Unique("one", scope="global", hold="retrying")
    assert key(plan(template=FULL)) == key(plan(template=FULL, overlap="skip")) == kept
    pushed = replace(FULL, unique=Unique("one", mode="replace", longest=60, for_=60))
    assert key(plan(template=pushed)) == Unique("one", hold="retrying", for_=60)


@pytest.mark.spec("CRON-19")
def test_a_holder_met_by_the_store_turns_a_fire_into_a_skip() -> None:
    due = seeded("@hourly", NOON, overlap="skip", last_error="full", missed=4)
    one = tick(due, NOON + HOUR)
    draft = draft_of(due, NOON)
    left_out = met(one, [draft], [Receipt(b"holder of the key", Stored.EXISTING)])
    assert left_out == replace(one, action=Action.SKIP, fires=(), missed=2)
    assert after_tick(due, left_out) == replace(
        due, next_fire=NOON + 2 * HOUR, last_status=Action.SKIP, last_missed=2, missed=6
    )
    assert met(one, [draft], [Receipt(draft.job_id, Stored.INSERTED)]) is one
    assert met(one, [draft], [Receipt(draft.job_id, Stored.EXISTING)]) is one, (
        "stored before: the occurrence has its job"
    )
    both = tick(seeded("@hourly", NOON, misfire="all"), NOON + HOUR)
    drafts = [draft_of(due, at_) for at_ in both.fires]
    some = met(
        both, drafts, [Receipt(b"holder of the key", Stored.EXISTING), Receipt(drafts[1].job_id, Stored.INSERTED)]
    )
    assert (some.action, some.fires, some.missed) == (Action.FIRE, (NOON + HOUR,), 1)


@pytest.mark.spec("SCHED-06")
def test_the_job_of_an_occurrence_is_the_whole_template() -> None:
    one = plan(template=FULL, jitter=20 * SECOND)
    draft = draft_of(one, NOON)
    assert draft.job_id == ids.occurrence("digest", NOON)
    assert draft.options == replace(
        FULL.options, metadata={"team": "x", SCHEDULE: "digest", OCCURRENCE: "2025-06-15T12:00:00Z"}
    )
    assert draft.at == NOON + FULL.delay + delay_by_jitter("digest", NOON, 20 * SECOND)
    assert draft == replace(FULL, job_id=draft.job_id, delay=0, at=draft.at, unique=key(one), options=draft.options)
    extra = extra_draft(one, bytes(range(16)))
    assert extra == replace(draft, job_id=bytes(range(16)), at=None, options=extra.options)
    assert extra.options.metadata == {"team": "x", SCHEDULE: "digest"}
    assert PLAIN.metadata is None


@pytest.mark.spec("SCHED-06")
def test_a_chain_is_stored_anew_for_each_occurrence() -> None:
    """A chain's ids are made when it is written; with the same ids the second occurrence would store nothing."""

    def declared(run: int) -> Schedule:
        first, middle, last, other = (
            Draft(b"written %d job %d" % (run, n), kind)
            for n, kind in enumerate(("first", "middle", "last", "other"), 10)
        )
        return plan(template=template(first.then(middle.then(last, other))))

    one = declared(1)
    assert one == declared(2), "declared again, it is the same"
    seen: set[bytes] = set()
    for draft in (draft_of(one, NOON), draft_of(one, NOON + HOUR), extra_draft(one, b"another job, 016")):
        [second] = draft.options.then
        found = [draft.job_id, second.job_id, *(link.job_id for link in second.options.then)]
        assert [second.kind, *(link.kind for link in second.options.then)] == ["middle", "last", "other"]
        assert len(set(found)) == 4
        assert seen.isdisjoint(found)
        seen.update(found)
    assert draft_of(one, NOON) == draft_of(one, NOON)


@pytest.mark.spec("SCHED-06")
@given(st.integers(0, LONGEST), st.integers(0, 10**9))
def test_jitter_is_the_same_everywhere_and_less_than_its_bound(jitter: int, second: int) -> None:
    at_ = second * SECOND
    delay = delay_by_jitter("digest", at_, jitter)
    assert delay == delay_by_jitter("digest", at_, jitter)
    assert 0 <= delay < max(jitter, 1)


@pytest.mark.spec("SCHED-06")
def test_jitter_spreads_the_jobs_of_schedules_that_fire_together() -> None:
    delays = [delay_by_jitter(f"s{n}", NOON, 10 * SECOND) // SECOND for n in range(1_000)]
    assert all(60 <= delays.count(second) <= 140 for second in range(10))


@pytest.mark.spec("CRON-20")
def test_of_many_tickers_one_wins() -> None:
    due = seeded("@hourly", NOON)
    mine, theirs = tick(due, NOON), tick(due, NOON + SECOND)
    assert applies(due, mine, NOON)
    assert applies(due, theirs, NOON + SECOND)
    stored = after_tick(due, mine)
    assert not applies(stored, theirs, NOON + HOUR)
    assert not applies(stored, mine, NOON + HOUR)


@pytest.mark.spec("CRON-20")
@pytest.mark.parametrize("late", [0, 1, SECOND - 1, SECOND, HOUR - 1])
def test_two_ticks_around_an_instant_fire_it_once_and_skip_no_other(late: int) -> None:
    """Both mean the same occurrence, wherever in its hour they are made; the schedule advances by one."""
    due = seeded("@hourly", NOON)
    assert tick(due, NOON - 1).action is Action.IDLE
    mine, theirs = tick(due, NOON), tick(due, NOON + late)
    assert mine.fires == theirs.fires == (NOON,)
    stored = after_tick(due, mine)
    assert not applies(stored, theirs, NOON + HOUR)
    assert stored == after_tick(due, theirs)
    assert tick(stored, NOON + HOUR - 1).action is Action.IDLE
    assert tick(stored, NOON + HOUR).fires == (NOON + HOUR,)


@pytest.mark.spec("CRON-20")
def test_a_tick_that_is_ahead_of_the_store_does_not_apply() -> None:
    due = seeded("@hourly", NOON, changed_at=NOON - HOUR)
    early = tick(due, NOON + SECOND)
    assert not applies(due, early, NOON + SECOND - 1)
    assert applies(due, early, NOON + SECOND)
    new = plan("@hourly", changed_at=NOON)
    assert not applies(new, tick(new, NOON - DAY), NOON), "a clock that is behind must not seed the past"


@pytest.mark.spec("CRON-20")
@pytest.mark.parametrize(
    "change", [{"expression": "@daily"}, {"tz": "Europe/Paris"}, {"enabled": False}, {"changed_at": 1}]
)
def test_a_tick_does_not_apply_to_a_schedule_that_was_edited_meanwhile(change: dict[str, object]) -> None:
    new = plan("@hourly")
    assert applies(new, tick(new, NOON), NOON)
    assert not applies(replace(new, **change), tick(new, NOON), NOON)


@pytest.mark.spec("CRON-21")
@pytest.mark.parametrize("wrong", [{"expression": "nonsense"}, {"tz": "Mars/Olympus"}])
@pytest.mark.parametrize("next_fire", [None, NOON])
def test_an_unreadable_schedule_is_disabled_with_its_error(wrong: dict[str, object], next_fire: Instant | None) -> None:
    broken = replace(plan(), next_fire=next_fire, **wrong)
    one = tick(broken, NOON)
    stored = after_tick(broken, one)
    assert (one.action, one.fires) == (Action.DISABLE, ())
    assert (stored.enabled, stored.next_fire, stored.last_error) == (False, None, one.error)
    assert one.error
    assert tick(stored, NOON).action is Action.IDLE


@pytest.mark.spec("CRON-21")
def test_the_last_occurrence_fires_and_then_the_schedule_is_off() -> None:
    end = at(9900, 1, 1)
    one = tick(seeded("@yearly", end), end)
    stored = after_tick(seeded("@yearly", end), one)
    assert (one.action, one.fires) == (Action.FIRE, (end,))
    assert (stored.enabled, stored.last_fire) == (False, end)
    assert "disabled" in (stored.last_error or "")
    assert tick(plan("@yearly"), end).action is Action.DISABLE


@pytest.mark.spec("CRON-22")
def test_jobs_that_could_not_be_stored_are_recorded_and_not_repeated() -> None:
    due = seeded("@hourly", NOON, last_fire=1)
    stored = after_tick(due, failed(tick(due, NOON), "disk full"))
    failure = {"last_error": "disk full", "last_status": Action.FAIL, "last_missed": 1, "missed": 1}
    assert stored == replace(due, next_fire=NOON + HOUR, **failure)
    skip = replace(tick(stored, NOON + HOUR), action=Action.SKIP, fires=(), missed=1)
    assert after_tick(stored, skip).last_error == "disk full", "only a job that was stored clears it"
    assert after_tick(stored, tick(stored, NOON + HOUR)).last_error is None


@pytest.mark.spec("CRON-23")
def test_the_ticker_sleeps_until_the_next_fire_within_bounds() -> None:
    def sleep(*waits: int | None) -> int:
        return nap([plan(next_fire=None if wait is None else NOON + wait) for wait in waits], NOON)

    assert sleep() == LONGEST_SLEEP == 5 * SECOND
    assert sleep(HOUR) == LONGEST_SLEEP
    assert sleep(HOUR, 2 * SECOND) == 2 * SECOND
    assert sleep(None) == sleep(0) == sleep(-HOUR) == SHORTEST_SLEEP == SECOND // 2
    assert nap([plan(enabled=False)], NOON) == LONGEST_SLEEP


@pytest.mark.spec("CRON-23")
@given(st.lists(st.integers(-HOUR, HOUR)))
def test_the_sleep_is_always_bounded(waits: list[int]) -> None:
    assert SHORTEST_SLEEP <= nap([plan(next_fire=NOON + wait) for wait in waits], NOON) <= LONGEST_SLEEP


@pytest.mark.spec("CRON-24")
def test_upcoming_shows_the_next_few() -> None:
    assert upcoming(plan("@daily"), NOON, 3) == [at(2025, 6, day) for day in (16, 17, 18)]
    assert upcoming(plan("@yearly"), at(9898, 6, 1), 5) == [at(9899, 1, 1), at(9900, 1, 1)]


@pytest.mark.spec("CRON-24")
def test_an_expression_may_be_as_long_as_it_says() -> None:
    assert parse("0 3 * * *".ljust(cron.LONGEST_EXPRESSION)) == parse("0 3 * * *")
    with pytest.raises(InvalidSchedule, match="at most 256 characters"):
        parse("0 3 * * *".ljust(cron.LONGEST_EXPRESSION + 1))


def test_a_tick_is_plain_data() -> None:
    """CRON-20: what a tick rests on travels with it."""
    one = tick(seeded("@hourly", NOON), NOON)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Tick) == one
    assert cron.LONGEST_EXPRESSION == 256
    assert schedule.CATCH_UP == 100


@pytest.mark.spec("SCHED-22")
def test_the_id_of_an_occurrence_is_refused_where_another_job_has_it() -> None:
    draft = draft_of(plan(), NOON)
    check_id(draft, None)
    check_id(draft, draft)
    for other in ({"kind": "foreign"}, {"queue": "foreign"}):
        with pytest.raises(InvalidInput, match=r"occurrence: is the id of a job of kind .*foreign.*; delete that job"):
            check_id(draft, replace(draft, **other))
