"""Jobs: the filter as text, tabs with counts where they can be known, a page of fifty, errors by group."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import RedirectResponse, Response

from stoker.admin import Filter, InvalidFilter
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.actions import MANY, Action
from stoker.model.errors import Forbidden, InvalidArgument, InvalidInput
from stoker.model.filter import as_value
from stoker.model.humanize import ago, clock, span, until
from stoker.model.job import Status
from stoker.model.names import in_use
from stoker.model.operator_metrics import later_of
from stoker.model.query import Census, Query, cursor_time, read_cursor
from stoker.model.same_error import error_line
from stoker.model.steps import NEVER
from stoker.model.time import SECOND, Instant, instant
from stoker.views import Job
from stoker.web import problems, view
from stoker.web.hub import Reading, Want
from stoker.web.pages import shared
from stoker.web.request import RequestContext

SHOWN = 50
GROUPS = 25
"""Errors on a page."""
LONGEST_NUMBER = 6
LONGEST_FILTER = 2_000
SUGGESTED = 100
WORDS: Final = ("tenant:", "key:", "meta:", "error:", "payload:", "finished:1h", "attempts:>=3")

TABS: Final = (
    ("", "All"),
    ("ready", "Ready"),
    ("scheduled", "Scheduled"),
    ("waiting", "Waiting"),
    ("running", "Running"),
    ("retrying", "Retrying"),
    ("dead", "Dead"),
    ("done", "Done"),
    ("canceled", "Canceled"),
    ("discarded", "Discarded"),
    ("retried", "Retried"),
)
VIEWS: Final = (
    ("Dead, by error", {"q": "is:dead", "group": "error"}),
    ("Running, oldest first", {"q": "is:running order:oldest"}),
    ("Retrying, oldest first", {"q": "is:retrying order:oldest"}),
    ("Enqueued in the last hour", {"q": "since:1h"}),
)
LISTS: Final = (
    ("is", "views"),
    ("-is", "but_views"),
    ("queue", "queues"),
    ("-queue", "but_queues"),
    ("kind", "kinds"),
    ("-kind", "but_kinds"),
)
ORDERED: Final = {
    "newest": ("Newest", "Older", "back"),
    "oldest": ("Oldest", "Newer", "up"),
    "finished": ("Latest end", "Earlier", "back"),
    "due": ("Soonest due", "Later", "up"),
}
"""What is first in each order, what the next page has, and where it leads."""

COUNTED = frozenset(field for _, field in LISTS)
"""Fields of a filter that the census can count by."""


async def show(visit: RequestContext) -> Response:
    """A page of jobs."""
    text = visit.parameter("q")
    if added := visit.parameter("add").strip():
        return RedirectResponse(visit.url("jobs", q=f"{text} {added}".strip()), 303)
    reading = await visit.board.hub.reading()
    try:
        if len(text) > LONGEST_FILTER:
            raise InvalidFilter("filter", text, f"must have {LONGEST_FILTER:,} characters at most")
        wanted = Filter.parse(text)
        if wanted.id is not None:
            return RedirectResponse(visit.url(f"jobs/{wanted.id}"), 303)
        if visit.parameter("group") == "error":
            return await _by_error(visit, reading, wanted)
        found = await visit.admin.jobs.find(wanted, limit=SHOWN, cursor=visit.parameter("after") or None)
    except (InvalidInput, Forbidden) as error:
        problem = problems.of(error)
        assert problem is not None  # both are refusals
        context = _context(visit, reading, Filter(), text) | {"mistake": problem.detail, "rows": [], "found": None}
        return view.page(visit, "jobs.html", context, problem.status)
    now = visit.board.hub.current(reading).census.at
    back = cursor_time(read_cursor(found.cursor)) if found.cursor else None
    context = _context(visit, reading, wanted, text) | {
        "found": found,
        "rows": [row(visit, job, now) for job in found.jobs],
        "back_to": back,
        "older": visit.url("jobs", q=text, after=found.cursor) if found.cursor else "",
        "actions": _actions(visit, found.jobs),
        "page_number": "after" in visit.request.query_params,
        "hint": found.hint,
    }
    if found.jobs:
        first = _countable(visit, wanted)
        shown = {"top": found.jobs[0].id} if first else {"rows": _written([job.id for job in found.jobs])}
        context["live_url"] = visit.url("live", page="jobs", q=text, after=visit.parameter("after"), **shown)
    return view.page(visit, "jobs.html", context)


async def _by_error(visit: RequestContext, reading: Reading, wanted: Filter) -> Response:
    errors = await visit.admin.jobs.errors(wanted)
    first = _number(visit.parameter("from"))
    text = str(wanted)
    rest = len(errors.groups) - first - GROUPS
    context = _context(visit, reading, wanted, text) | {
        "groups": errors.groups[first : first + GROUPS],
        "errors": errors,
        "first": first,
        "names": (wanted.queues, wanted.kinds),
        "next_groups": visit.url("jobs", q=text, group="error", **{"from": str(first + GROUPS)}) if rest > 0 else "",
        "hint": errors.hint,
        "found": None,
        "rows": [],
    }
    return view.page(visit, "jobs-by-error.html", context)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < LONGEST_NUMBER else 0


class Listed(NamedTuple):
    """What became of the jobs of a list: the statuses of those that are there, the newest first.

    A job that is not among them has left the list, if they are the `whole` of it or the job is newer than their last.
    """

    now: dict[bytes, str]
    whole: bool


NOTHING_LISTED: Final = Listed({}, whole=False)


def _written(jobs: Sequence[str]) -> str:
    """The ids of the jobs on a page, for the address of its live parts."""
    return urlsafe_b64encode(b"".join(map(ids.parse, jobs))).decode().rstrip("=")


def _rows(text: str) -> list[bytes]:
    """The ids that `_written` wrote."""
    try:
        raw = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        raw = b"?"
    if len(raw) % 16 or len(raw) > 16 * SHOWN:
        raise InvalidArgument("rows", text[:40], "must be the ids of the jobs on a page")
    return [raw[start : start + 16] for start in range(0, len(raw), 16)]


def wants(visit: RequestContext) -> list[Want]:
    """What became of the jobs of the list: its newest ones, where these can be looked up without reading texts."""
    text, hub = visit.parameter("q"), visit.board.hub
    try:
        wanted = Filter.parse(text)
    except InvalidInput:
        return []
    if rows := _rows(visit.parameter("rows")):
        return [_these(visit, rows)]
    if not _countable(visit, wanted):
        return []

    async def read(engine: Engine) -> tuple[Listed, int]:
        census = (hub.last or await hub.reading()).census
        try:
            query = wanted.query(census.at, in_use(census), limit=SHOWN + 1)
        except InvalidInput:  # a queue or kind is left out that the shared counts do not know
            query = None
        if query is None:
            return NOTHING_LISTED, 0
        found = await engine.operator.find(query)
        now = hub.current(hub.last or await hub.reading()).census.at
        return Listed({job.id: job.view(now) for job in found.jobs}, whole=found.cursor is None), 1

    return [Want(("newest", text), read)]


def _these(visit: RequestContext, rows: list[bytes]) -> Want:
    """The jobs of a page that is not the newest."""
    hub = visit.board.hub

    async def read(engine: Engine) -> tuple[Listed, int]:
        found = await engine.operator.get(rows)
        now = hub.current(hub.last or await hub.reading()).census.at
        return Listed({job.id: job.view(now) for job in found if job is not None}, whole=True), 1

    return Want(("these", *rows), read)


def _countable(visit: RequestContext, wanted: Filter) -> bool:
    """Does the first page say what is newer than it?"""
    searches = wanted.text or wanted.payload or wanted.error or wanted.same_error or wanted.id
    first = not visit.parameter("after") and not visit.parameter("group")
    return first and wanted.order in {None, "newest"} and not searches


def live_context(visit: RequestContext, reading: Reading, listed: Listed = NOTHING_LISTED) -> dict[str, Any]:
    """What changes by itself: the counts on the tabs, what became of the jobs, and how many are newer than them."""
    text, top = visit.parameter("q"), visit.parameter("top")
    try:
        wanted = Filter.parse(text)
    except InvalidInput:
        wanted = Filter()
    try:
        newer = sum(one > ids.parse(top) for one in listed.now) if top else 0
        newer = newer if top or visit.parameter("rows") else len(listed.now)
    except ValueError:
        raise InvalidArgument("top", top, "must be the id of a job") from None
    last = min(listed.now, default=None)
    return _context(visit, reading, wanted, text) | {
        "rows": [],
        "found": None,
        "newer": newer,
        "became": " ".join(f"{ids.text(one)}={status}" for one, status in listed.now.items()),
        "since": "" if listed.whole or last is None else ids.text(last),
        "told": listed is not NOTHING_LISTED,
    }


def _context(visit: RequestContext, reading: Reading, wanted: Filter, text: str) -> dict[str, Any]:
    active = wanted.views[0] if len(wanted.views) == 1 else "" if not wanted.views else "several"
    title = f"Jobs: {', '.join(wanted.views)}" if wanted.views else "Jobs"
    return view.common(visit, "jobs", title, shared.found(visit, reading)) | {
        "now": reading.census.at,
        "q": text,
        "chips": [(word, value, visit.url("jobs", q=str(rest))) for word, value, rest in terms(wanted)],
        "tabs": [
            (name, label, n, visit.url("jobs", q=str(_with(wanted, name))))
            for name, label, n in tabs(wanted, reading.census)
        ],
        "active": active,
        "groupable": active in {"dead", "retrying"} or set(wanted.views) == {"dead", "retrying"},
        "grouped": visit.parameter("group") == "error",
        "views": [(name, visit.url("jobs", **query)) for name, query in VIEWS],
        "order": ORDERED[wanted.order or "newest"],
        "mistake": "",
        "actions": [],
        "older": "",
        "hint": "",
        "newer": 0,
        "told": False,
        "most_newer": SHOWN,
        "words": _words(visit, reading),
        "acts_on_all": visit.may("admin") or not wanted.has_texts,
        "live_url": visit.url(
            "live", page="jobs", q=text, **{name: visit.parameter(name) for name in ("after", "group")}
        ),
    }


def _words(visit: RequestContext, reading: Reading) -> list[str]:
    """What the next term of a filter may be, for the field's list of suggestions."""
    census = reading.census
    queues = [f"queue:{as_value(name)}" for name in shared.queue_names(reading)[:SUGGESTED]]
    kinds = [f"kind:{as_value(name)}" for name in census.kinds()[:SUGGESTED]]
    statuses = [f"is:{name}" for name, _ in TABS if name] + [f"is:{name}" for name in ("pending", "active", "finished")]
    since = [f"since:{window}" for window in ("15m", "1h", "6h", "24h", "7d")]
    words = [word for word in WORDS if word != "payload:" or visit.who.may("operate")]
    return [*statuses, *queues, *kinds, *since, "order:oldest", "order:newest", *words]


def _with(wanted: Filter, name: str) -> Filter:
    return msgspec.structs.replace(wanted, views=(name,) if name else (), but_views=())


def terms(wanted: Filter) -> Iterator[tuple[str, str, Filter]]:
    """Each term of a filter, and the filter without it."""
    for word, field in LISTS:
        if values := getattr(wanted, field):
            yield word, ",".join(values), msgspec.structs.replace(wanted, **{field: ()})
    known = {field for _, field in LISTS}
    for field in wanted.__struct_fields__:
        value = getattr(wanted, field)
        if field not in known and value is not None:
            yield field, str(value), msgspec.structs.replace(wanted, **{field: None})


def tabs(wanted: Filter, census: Census) -> list[tuple[str, str, int | None]]:
    """The tabs with their counts; None where the census does not know."""
    counts = _counts(wanted, census)
    return [(name, label, counts.get(name)) for name, label in TABS]


def by_status(wanted: Filter, census: Census) -> dict[Status, int]:
    """How many jobs a filter means, by status, whatever it says of statuses; empty where the census does not know."""
    plain = Filter()
    others = [field for field in wanted.__struct_fields__ if field not in COUNTED and field != "order"]
    if any(getattr(wanted, field) != getattr(plain, field) for field in others):
        return {}
    query = wanted.query(census.at, in_use(census))
    if query is None:
        return dict.fromkeys(Status, 0)
    chosen = [
        one
        for one in census.counts
        if (not query.queues or one.queue in query.queues) and (not query.kinds or one.kind in query.kinds)
    ]
    found = {status: sum(one.n for one in chosen if one.status is status) for status in Status}
    if query.due is not None:
        later, waiting = _later(query, census), _waiting(query, census)
        if later is None or (waiting is None and query.due != "now"):
            return {}
        parts = {"now": found[Status.PENDING] - later, "later": later - (waiting or 0), "waiting": waiting or 0}
        found[Status.PENDING] = parts[query.due]
    return found


def _later(query: Query, census: Census) -> int | None:
    """How many of the pending jobs of a question are not due; None where the census does not know."""
    if not query.kinds:
        return sum(census.later.get(name, 0) for name in query.queues or {one.queue for one in census.counts})
    each = [later_of(census, kind, query.queues) for kind in query.kinds]
    return None if None in each else sum(one or 0 for one in each)


def _waiting(query: Query, census: Census) -> int | None:
    """How many of the pending jobs of a question are suspended; None where the census does not know."""
    found = sum(n for name, n in census.waiting.items() if not query.queues or name in query.queues)
    return None if query.kinds and found else found


def _counts(wanted: Filter, census: Census) -> dict[str, int]:
    whole = msgspec.structs.replace(wanted, views=(), but_views=(), order=None)
    try:
        counted = by_status(whole, census)
    except InvalidInput:
        return {}
    found = {status.value: n for status, n in counted.items()}
    for word in ("ready", "scheduled", "waiting"):
        if part := by_status(msgspec.structs.replace(whole, views=(word,)), census):
            found[word] = part[Status.PENDING]
    return found


def row(visit: RequestContext, job: Job, now: Instant) -> dict[str, Any]:
    """A job as a line of the list; its payload is never in it."""
    status = shared.shown_status(job, now)
    error = error_line(job.last_error) if status in {"dead", "retrying", "canceled", "discarded"} else ""
    took = None
    if job.started_at is not None and job.finished_at is not None:
        took = max(instant(job.finished_at) - instant(job.started_at), 0)
    return {
        "id": job.id,
        "status": status,
        "kind": job.kind,
        "label": job.label or "",
        "queue": job.queue,
        "tenant": job.tenant or "",
        "error": error,
        "note": "" if error else _note(job, status),
        "attempts": f"{max(job.attempts - job.base, 0)} of {job.budget}",
        "took": span(took) if took is not None else "–",
        "at": _moment(job, status),
        "when": _when(job, status, now),
        "clock": clock(job.scheduled_at, now) if status in COMING and now < instant(job.scheduled_at) < NEVER else "",
        "url": visit.url(f"jobs/{job.id}"),
    }


COMING: Final = frozenset({"scheduled", "waiting", "retrying"})
"""Statuses of jobs that are due at a moment to come."""


def _note(job: Job, status: str) -> str:
    if status == "running" and job.progress is not None:
        return f"{job.progress:.0%}".replace("%", " %")
    if job.successor is not None:
        return f"continued as {job.successor}"
    return f"key {job.unique.key}" if job.unique is not None else ""


def _moment(job: Job, status: str) -> Instant:
    if status == "running" and job.started_at is not None:
        return instant(job.started_at)
    if status == "ready" or status in COMING:
        return instant(job.scheduled_at)
    return instant(job.finished_at or job.created_at)


def _when(job: Job, status: str, now: Instant) -> str:
    at = _moment(job, status)
    if status == "running":
        return span((now - at) // SECOND * SECOND if now - at > 10 * SECOND else now - at)
    if status == "ready":
        return f"waits {span(now - at)}"
    if at >= NEVER:
        return "until a signal"
    if status in COMING:
        return f"due {until(at, now)}" if at > now else "due now"
    return ago(at, now)


def _actions(visit: RequestContext, jobs: list[Job]) -> list[tuple[str, str, str, str]]:
    """Buttons for the selection: what at least one job of the page allows, and the statuses that allow it."""
    statuses = {job.status for job in jobs}
    return [
        (one.name, _label(one), _look(one), " ".join(_shown_as(status) for status in sorted(one.statuses)))
        for one in MANY.values()
        if one.statuses & statuses and visit.may(one.role)
    ]


def _label(one: Action) -> str:
    """With dots where more is asked before anything is done."""
    return f"{one.label}…" if one.required or one.destroys else one.label


def _look(one: Action) -> str:
    return "danger" if one.destroys else "primary" if one.name == next(iter(MANY)) else ""


def _shown_as(status: Status) -> str:
    """A status as rows of a list show it."""
    return "ready scheduled waiting" if status is Status.PENDING else status.value
