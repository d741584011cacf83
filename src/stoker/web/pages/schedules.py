"""Schedules: in words, their next day as ticks, what became of the last fire, and the form to change one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from stoker import views
from stoker.codec.signature import Raw
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.cron import zone
from stoker.model.cron_words import in_words
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.humanize import clock, count, span, until
from stoker.model.job import Draft, Status
from stoker.model.query import Query
from stoker.model.schedule import SCHEDULE, Schedule, check, template, upcoming
from stoker.model.time import DAY, SECOND, Instant, moment
from stoker.schedules import parse
from stoker.web import view
from stoker.web.forms import Form, number
from stoker.web.hub import Reading, Want
from stoker.web.humanize import time
from stoker.web.pages import jobs, shared
from stoker.web.request import RequestContext
from stoker.web.view import Flash

MOST_TICKS = 100
SHOWN_JOBS = 20
MISFIRES = {"once": "makes up for missed ones once", "skip": "skips what was missed", "all": "makes up for all"}


def wants(_: RequestContext) -> list[Want]:
    """Every schedule, and what became of the last job of each."""

    async def read(engine: Engine) -> tuple[tuple[list[Schedule], dict[bytes, Status]], int]:
        found = await engine.schedules.read()
        last = [ids.occurrence(one.name, one.last_fire) for one in found if one.last_fire is not None][:1_000]
        outcomes = {job.id: job.status for job in await engine.operator.get(last) if job is not None} if last else {}
        return (found, outcomes), 2 if last else 1

    return [Want("schedules", read)]


async def show(visit: RequestContext) -> Response:
    """Every schedule."""
    reading = await visit.board.hub.reading()
    read = await visit.board.hub.wanted(wants(visit)[0])
    visit.board.hub.learn_schedules(read[0])
    return view.page(visit, "schedules.html", live_context(visit, reading, read))


def live_context(
    visit: RequestContext, reading: Reading, read: tuple[Sequence[Schedule], dict[bytes, Status]]
) -> dict[str, Any]:
    """The table of schedules."""
    found, outcomes = read
    now = reading.census.at
    rows = [row(visit, one, now, outcomes) for one in found]
    soon = min(
        (one for one in found if one.enabled and one.next_fire), key=lambda one: one.next_fire or 0, default=None
    )
    hours = [time(at, f"{moment(at):%H:%M}") for at in (now + DAY * part // 4 for part in range(1, 5))]
    return view.common(visit, "schedules", "Schedules", shared.found(visit, reading)) | {
        "now": now,
        "rows": rows,
        "sub": f"{count(len(found), 'schedule')}.",
        "soon": None if soon is None or soon.next_fire is None else (soon.name, _until(soon.next_fire, now)),
        "hours": ["now", *hours],
        "may": visit.may("operate"),
        "live_url": visit.url("live", page="schedules"),
    }


def row(visit: RequestContext, one: Schedule, now: Instant, outcomes: dict[bytes, Status]) -> dict[str, Any]:
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
        "error": visit.board.redact.text(error or ""),
        "ticks": ticks(one, now),
        "next": one.next_fire if one.enabled else None,
        "next_text": _until(one.next_fire, now) if one.enabled and one.next_fire else "–",
        "next_clock": _own(one, now),
        "last_status": None if status is None else "ready" if status is Status.PENDING else status.value,
        "last_url": "" if status is None or last_job is None else visit.url(f"jobs/{ids.text(last_job)}"),
        "last": one.last_fire,
        "did": "" if one.last_status is None else one.last_status.value,
        "may": visit.may("operate", one.template.queue),
    }


def _until(at: Instant, now: Instant) -> str:
    return until(at, now) if at > now else "now"


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


async def one(visit: RequestContext) -> Response:
    """One schedule: what it is, its next fires, its last jobs, and a form."""
    return await page(visit)


async def page(visit: RequestContext, mistake: str = "", given: Form | None = None) -> Response:
    """The page of a schedule, with what was typed into its form where that was refused or is tried."""
    found = await named(visit)
    reading = await visit.board.hub.reading()
    engine = await visit.board.store.engine()
    now = reading.census.at
    made = await engine.operator.find(Query(kinds=frozenset({found.template.kind}), limit=200))
    own = [job for job in made.jobs if _made_by(job.metadata, job.options.metadata, found.name)][:SHOWN_JOBS]
    fields = _typed(found) if given is None else _fields(given)
    context = view.common(visit, "schedules", found.name, shared.found(visit, reading)) | {
        "now": now,
        "s": row(visit, found, now, {}),
        "schedule": found,
        "misfire": MISFIRES[found.misfire],
        "grace": span(found.grace),
        "rows": [jobs.row(visit, views.job(visit.board.redact.listed(job)), now) for job in own],
        "declared": found.name in visit.board.jobs.declared_schedules,
        "f": fields,
        "fires": fires(fields, now),
        "mistake": mistake,
        "misfires": MISFIRES,
        "preview_url": visit.url("new-schedule/fires"),
        "live_url": "",
    }
    return view.page(visit, "schedule.html", context, 422 if mistake else 200)


async def named(visit: RequestContext) -> Schedule:
    """The schedule that the address names."""
    name = visit.request.path_params["name"]
    engine = await visit.board.store.engine()
    found = next((one for one in await engine.schedules.read() if one.name == name), None)
    if found is None:
        raise NotFound(f"There is no schedule {name}.")
    return found


def _made_by(metadata: dict[str, str], given: dict[str, str] | None, name: str) -> bool:
    return {**(given or {}), **metadata}.get(SCHEDULE) == name


# --- the form -------------------------------------------------------------------------------------------------------

FIELDS: Final = ("name", "kind", "queue", "payload", "cron", "tz", "misfire", "grace", "overlap", "jitter")


def _fields(form: Form) -> dict[str, str]:
    return {name: form.get(name).strip() for name in FIELDS}


def _typed(found: Schedule | None) -> dict[str, str]:
    """Initial values of the form of a schedule; None for a new one."""
    fields = dict.fromkeys(FIELDS, "") | {
        "tz": "UTC",
        "misfire": "once",
        "overlap": "allow",
        "grace": "60",
        "jitter": "0",
    }
    if found is None:
        return fields
    return fields | {
        "cron": found.expression,
        "tz": found.tz,
        "misfire": found.misfire,
        "overlap": found.overlap,
        "grace": f"{found.grace / SECOND:g}",
        "jitter": f"{found.jitter / SECOND:g}",
    }


def options(fields: dict[str, str]) -> dict[str, Any]:
    """The fields as the options of a schedule; raises `InvalidInput` naming what is wrong."""
    cron = fields["cron"]
    given: dict[str, Any] = {}
    if cron.startswith("@every "):
        given["every"] = number("every", cron.removeprefix("@every ").removesuffix("s"))
    else:
        given |= {"cron": cron, "tz": fields["tz"] or "UTC"}
    for name in ("misfire", "overlap"):
        if fields[name]:
            given[name] = fields[name]
    for name in ("grace", "jitter"):
        if fields[name]:
            given[name] = number(name, fields[name])
    return given


def fires(fields: dict[str, str], now: Instant) -> dict[str, Any]:
    """The next five fires of what the form says, in its zone and UTC, or why there are none."""
    if not fields["cron"]:
        return {"words": "", "at": [], "mistake": "Give an expression, as in 0 9 * * mon-fri or @every 90s."}
    try:
        given = options(fields)
        parsed = parse(given)
        tz = parsed.get("tz", "UTC")
        tried = Schedule(
            name="preview", expression=parsed["expression"], tz=tz, template=template(Draft(b"0" * 16, "preview"))
        )
        check(tried, now)
        there = [(moment(at).astimezone(zone(tz)), at) for at in upcoming(tried, now, 5)]
    except InvalidInput as error:
        return {"words": "", "at": [], "mistake": str(error).removesuffix(" Nothing was stored.")}
    return {
        "words": in_words(tried.expression),
        "at": [(f"{local:%a %d %b %Y %H:%M:%S} {tz}", at) for local, at in there],
        "mistake": "" if there else "It never fires.",
    }


async def preview(visit: RequestContext) -> Response:
    """The next fires of what is typed, as a part of the page."""
    fields = dict.fromkeys(FIELDS, "") | {name: visit.parameter(name).strip() for name in ("cron", "tz")}
    reading = await visit.board.hub.reading()
    return view.part("_fires.html", {"fires": fires(fields, reading.census.at)})


async def new(visit: RequestContext) -> Response:
    """The form of a new schedule."""
    return await new_page(visit)


async def new_page(visit: RequestContext, mistake: str = "", given: Form | None = None) -> Response:
    """The form of a new schedule, with what was typed where that was refused or is tried."""
    reading = await visit.board.hub.reading()
    fields = _typed(None) if given is None else _fields(given)
    app = visit.board.jobs
    context = view.common(visit, "schedules", "New schedule", shared.found(visit, reading)) | {
        "now": reading.census.at,
        "f": fields,
        "fires": fires(fields, reading.census.at),
        "mistake": mistake,
        "misfires": MISFIRES,
        "kinds": sorted({*app.tasks, *app.declared})[:200],
        "queue_names": shared.queue_names(reading),
        "preview_url": visit.url("new-schedule/fires"),
        "live_url": "",
    }
    return view.page(visit, "schedule-new.html", context, 422 if mistake else 200)


async def create(visit: RequestContext) -> Response:
    """Store a new schedule."""
    form = await visit.board.form(visit)
    if form.get("preview"):
        return await new_page(visit, given=form)
    fields = _fields(form)
    try:
        payload = Raw(fields["payload"].encode()) if fields["payload"] else None
        draft = visit.board.jobs.draft(fields["kind"], payload, queue=fields["queue"] or None)
        shared.check_kind(visit, draft.kind, draft.queue)
        stored = await visit.admin.schedules.create(fields["name"], draft, **options(fields))
    except (InvalidInput, NotFound) as error:
        return await new_page(visit, str(error), form)
    visit.board.hub.forget()
    flash = Flash(f"Stored {stored.name}. Every worker fires it from now on.")
    return view.redirect(visit, visit.url(f"schedules/{quote(stored.name, safe='')}"), flash)


async def save(visit: RequestContext, form: Form, before: Schedule) -> Flash:
    """Change what the form of a schedule says; raises `InvalidInput` and changes nothing where it cannot be."""
    typed = _typed(before)
    fields = typed | {name: form.get(name).strip() for name in typed if form.get(name)}
    await visit.admin.schedules.edit(before.name, **options(fields))
    undo = tuple((name, value) for name, value in typed.items() if value)
    told = f"Changed {before.name}. Deployments leave it alone from now on."
    return Flash(told, f"schedules/{quote(before.name, safe='')}/edit", undo)
