"""Schedules: in words, their next day as ticks, what became of the last fire, and the form to change one."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from stoker import records
from stoker.model import ids
from stoker.model.cron import zone
from stoker.model.cron_words import in_words
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.job import Status
from stoker.model.query import Query
from stoker.model.schedule import SCHEDULE, Schedule, upcoming
from stoker.model.time import DAY, Instant, moment
from stoker.model.words import clock, count, span, until
from stoker.web import view
from stoker.web.pages import jobs, shared
from stoker.web.visit import Visit

MOST_TICKS = 100
SHOWN_JOBS = 20
MISFIRES = {"once": "makes up for missed ones once", "skip": "skips what was missed", "all": "makes up for all"}


async def show(visit: Visit) -> Response:
    """Every schedule."""
    reading = await visit.board.hub.reading()
    engine = await visit.board.store.engine()
    found = await engine.schedules()
    visit.board.hub.schedules = found
    last = [ids.occurrence(one.name, one.last_fire) for one in found if one.last_fire is not None]
    outcomes = {job.id: job.status for job in await engine.get(last[:1_000]) if job is not None}
    now = reading.census.at
    rows = [row(visit, one, now, outcomes) for one in found]
    soon = min(
        (one for one in found if one.enabled and one.next_fire), key=lambda one: one.next_fire or 0, default=None
    )
    sub = f"{count(len(found), 'schedule')}."
    if soon is not None and soon.next_fire is not None:
        sub += f" Next: {soon.name} {until(soon.next_fire, now)}."
    hours = [f"{moment(now + DAY * part // 4):%H:%M}" for part in range(1, 5)]
    context = view.common(visit, "schedules", "Schedules", shared.found(visit, reading)) | {
        "now": now,
        "rows": rows,
        "sub": sub,
        "hours": ["now", *hours],
        "live_url": "",
    }
    return view.page(visit, "schedules.html", context)


def row(visit: Visit, one: Schedule, now: Instant, outcomes: dict[bytes, Status]) -> dict[str, Any]:
    """A schedule as a line of the table."""
    last_job = None if one.last_fire is None else ids.occurrence(one.name, one.last_fire)
    status = outcomes.get(last_job) if last_job is not None else None
    error = one.last_error if one.last_status is not None and one.last_status.value in {"error", "disabled"} else None
    return {
        "name": one.name,
        "path": quote(one.name, safe=""),
        "words": in_words(one.expression),
        "expression": one.expression,
        "note": _note(one),
        "enabled": one.enabled,
        "pill": "error" if error else "paused" if not one.enabled else "edited" if one.edited else "",
        "tone": "st-dead" if error else "",
        "error": error or "",
        "ticks": ticks(one, now),
        "next": one.next_fire if one.enabled else None,
        "next_text": until(one.next_fire, now) if one.enabled and one.next_fire else "–",
        "next_clock": _own(one, now),
        "last_status": None if status is None else "ready" if status is Status.PENDING else status.value,
        "last_url": "" if status is None or last_job is None else visit.url(f"jobs/{ids.text(last_job)}"),
        "last": one.last_fire,
        "did": "" if one.last_status is None else one.last_status.value,
        "may": visit.may("operate", one.template.queue),
    }


def _note(one: Schedule) -> str:
    kind = "" if one.template.kind == one.name else f"{one.template.kind}, "
    where = "" if one.tz == "UTC" else f", {one.tz}"
    skips = ", skips while the one before still runs" if one.overlap == "skip" else ""
    return f"{kind}to {one.template.queue}{where}{skips}"


def _own(one: Schedule, now: Instant) -> str:
    if not one.enabled or one.next_fire is None:
        return ""
    if one.tz == "UTC":
        return clock(one.next_fire, now)
    try:
        there = moment(one.next_fire).astimezone(zone(one.tz))
    except InvalidInput:
        return clock(one.next_fire, now)
    return f"{there:%a %H:%M} in {one.tz.rpartition('/')[2].replace('_', ' ')}"


def ticks(one: Schedule, now: Instant) -> list[float] | None:
    """Fires of the next day at per cents of it; None: more than can be drawn apart."""
    try:
        found = [at for at in upcoming(one, now, MOST_TICKS + 1) if at < now + DAY]
    except InvalidInput:
        return []
    return None if len(found) > MOST_TICKS else [100 * (at - now) / DAY for at in found]


async def one(visit: Visit) -> Response:
    """One schedule: what it is, its next fires, its last jobs, and a form."""
    found = await named(visit)
    reading = await visit.board.hub.reading()
    engine = await visit.board.store.engine()
    now = reading.census.at
    page = await engine.find(Query(kinds=frozenset({found.template.kind}), limit=200))
    own = [job for job in page.jobs if _made_by(job.metadata, job.options.metadata, found.name)][:SHOWN_JOBS]
    try:
        place = zone(found.tz)
        fires = [(moment(at).astimezone(place), at) for at in upcoming(found, now, 5)]
    except InvalidInput:
        fires = []
    context = view.common(visit, "schedules", found.name, shared.found(visit, reading)) | {
        "now": now,
        "s": row(visit, found, now, {}),
        "schedule": found,
        "misfire": MISFIRES[found.misfire],
        "grace": span(found.grace),
        "fires": [(f"{there:%a %d %b %Y %H:%M:%S} {found.tz}", at) for there, at in fires],
        "rows": [jobs.row(visit, records.job(job), now) for job in own],
        "declared": found.name in visit.board.jobs.declared_schedules,
        "live_url": "",
    }
    return view.page(visit, "schedule.html", context)


async def named(visit: Visit) -> Schedule:
    """The schedule that the address names."""
    name = visit.request.path_params["name"]
    engine = await visit.board.store.engine()
    found = next((one for one in await engine.schedules() if one.name == name), None)
    if found is None:
        raise NotFound(f"There is no schedule {name}.")
    return found


def _made_by(metadata: dict[str, str], given: dict[str, str] | None, name: str) -> bool:
    return {**(given or {}), **metadata}.get(SCHEDULE) == name
