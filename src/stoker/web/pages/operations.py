"""Bulk actions: preview the number of jobs, start the operation, follow its progress."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Collection, Mapping
from datetime import datetime
from typing import Any, Final

from markupsafe import Markup
from starlette.responses import Response

from stoker.admin import Bulk, Filter
from stoker.admin.history import RECENT, closed
from stoker.admin.operations import OperationView
from stoker.admin.preview import PAGE, Counted, Lasts, count_for, counted_jobs, with_keys
from stoker.admin.queues import MEASURED, slowest, views
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.actions import MANY, Action, on_many
from stoker.model.errors import InvalidInput
from stoker.model.explain import Reason, notes
from stoker.model.humanize import count, iso, pace, span
from stoker.model.operations import RESEAL, bound_of
from stoker.model.query import as_of
from stoker.model.time import MINUTE, instant, moment
from stoker.web import view
from stoker.web.actions.result import act
from stoker.web.forms import Form, given_in, moment_of, whole
from stoker.web.hub import Reading, Want
from stoker.web.humanize import moments
from stoker.web.pages import jobs, shared
from stoker.web.problems import Problem
from stoker.web.request import RequestContext
from stoker.web.view import Flash

TYPED_ABOVE = 100
LARGEST_SELECTION = 1_000

LETTERS: Final = {
    "replay-letters": "Replay of letters",
    "resolve-letters": "Resolving of letters",
    "discard-letters": "Discarding of letters",
}
"""What is done to many letters."""

LABELS: Final = {**{name: one.many_label() for name, one in MANY.items()}, **LETTERS, RESEAL: "Reseal"}
"""Every operation by name."""


async def preview(visit: RequestContext) -> Response:
    """What an action on a filter would do, counted."""
    return await _preview(visit, visit.parameter("do", "requeue"), visit.parameter("q"), [])


def again(visit: RequestContext, form: Form, refused: Problem) -> Awaitable[Response]:
    """The preview counted anew, with the same filter and what was typed, above it why nothing was changed."""
    typed = {one.name: form.get(one.name) for one in on_many(form.get("do"), "do").required}
    return _preview(visit, form.get("do"), form.get("q"), [], refused, typed)


async def preview_selection(visit: RequestContext) -> Response:
    """What an action on ticked jobs would do."""
    form = await visit.board.form(visit)
    chosen = form.all("id")
    if not chosen:
        back = visit.url("jobs", q=form.get("q"))
        return view.redirect(visit, back, Flash("No job was ticked. Nothing was changed.", bad=True))
    return await _preview(visit, form.get("do"), "", chosen)


async def _preview(
    visit: RequestContext,
    do: str,
    text: str,
    chosen: list[str],
    refused: Problem | None = None,
    given: Mapping[str, str] | None = None,
) -> Response:
    action = on_many(do, "do")
    label = action.many_label()
    reading = await visit.board.hub.reading()
    allowed = action.allowed(by_filter=not chosen)
    counted = await _count(visit, reading, text, chosen, action)
    statuses, complete = counted.statuses, counted.complete
    can = counted.changeable(allowed)
    every = sum(statuses.values())
    shown = f"{can:,}" if complete else f"more than {can:,}"
    title = f"{label} {shown}{'' if can == every else f' of {every:,}'} {'job' if every == 1 else 'jobs'}?"
    typed = not chosen and (can > TYPED_ABOVE or action.destroys)
    context = view.common(visit, "jobs", title, shared.found(visit, reading)) | {
        "now": reading.census.at,
        "do": do,
        "action": action,
        "label": label,
        "q": text,
        "chosen": chosen,
        "chips": [(word, value) for word, value, _ in jobs.terms(Filter.parse(text))] if text else [],
        "rows": [(status.value, n, status in allowed) for status, n in sorted(statuses.items()) if n],
        "can": can,
        "counted_at": moment(reading.census.at).isoformat(),
        "taken": counted.taken,
        "taken_of": counted.taken_of,
        "every": every,
        "complete": complete,
        "typed": typed,
        "verbs": [(name, visit.url("operations/new", do=name, q=text)) for name in MANY] if text else [],
        "verb_names": LABELS,
        "queue_names": shared.queue_names(reading),
        "notes": _notes(reading, counted.queues) if action.readies else [],
        "lasts": await _lasts(visit, reading, counted.queues) if action.readies and counted.queues else None,
        "running": [one for one in await visit.admin.operations.list() if not one.ended][:5],
        "back": visit.url("jobs", q=text),
        "may": visit.may("operate"),
        "refused": "" if refused is None else refused.detail,
        "given": given or {},
        "live_url": "",
    }
    return view.page(visit, "operation-new.html", context, 200 if refused is None else refused.status)


async def _count(visit: RequestContext, reading: Reading, text: str, chosen: list[str], action: Action) -> Counted:
    """What an action would meet now."""
    engine = await visit.board.store.engine()
    if chosen:
        if len(chosen) > LARGEST_SELECTION:
            raise InvalidInput("id", f"{len(chosen)} ids", f"must be {LARGEST_SELECTION:,} at most; use a filter")
        there = [job for job in await engine.operator.get([ids.parse(one) for one in chosen]) if job is not None]
        return await with_keys(engine, counted_jobs(there, True, action), there, True, action)
    query = await visit.admin.jobs.question(Filter.parse(text), PAGE)
    return Counted(Counter(), True) if query is None else await count_for(engine, query, action, reading.census)


async def _lasts(visit: RequestContext, reading: Reading, more: Mapping[str, int]) -> Lasts | None:
    """How long the slowest of the queues takes for what it gets."""
    engine = await visit.board.store.engine()
    since, until = closed(reading.census.at)
    points = await engine.timeline.points(since, until, MEASURED, width=RECENT * MINUTE)
    return slowest(views(reading.census, reading.queues, reading.presences, points), more)


def _notes(reading: Reading, queues: Collection[str]) -> list[tuple[str, str]]:
    """What matters about the queues that the jobs go back to."""
    signs = {Reason.PAUSED: "pause", Reason.COOLING: "snow"}
    return [(signs[why], text) for why, text in notes(reading.queues, queues, reading.census)][:3]


async def start(visit: RequestContext) -> Response:
    """Do what was previewed; a long walk goes on in the background."""
    form = await visit.board.form(visit)
    action = on_many(form.get("do"), "do")
    chosen, text = form.all("id"), form.get("q")
    if chosen:
        return await _on_selection(visit, form, action, chosen)
    check_reach(visit)
    wanted, at = Filter.parse(text), moment_of("counted_at", form)
    visit.board.hub.forget()  # a refusal counts anew, not from a reading that others share
    try:
        left, total = await _check_count(visit, form, wanted, at, action)
    except Problem as refused:
        return await again(visit, form, refused)
    begun = await begin(visit, action.name, wanted, given_in(form, action), at, total)
    return view.redirect(visit, visit.url(f"operations/{begun.id}"), left)


async def _check_count(
    visit: RequestContext, form: Form, wanted: Filter, at: datetime | None, action: Action
) -> tuple[Flash | None, int | None]:
    """Refuse if more matched at the moment of the preview than it showed, or if its number was not typed.

    Fewer are no mistake: jobs end and change while people think. Returns what to say of those, and how many still
    match; None: more than were counted.
    """
    of = whole("of", form.get("of") or "0")
    query = await visit.admin.jobs.question(wanted, PAGE)
    engine = await visit.board.store.engine()
    bound = bound_of(None if at is None else instant(at, "counted_at"), await engine.now())
    counted = Counted(Counter(), True) if query is None else await count_for(engine, as_of(query, bound), action)
    now = counted.changeable(action.allowed(by_filter=True))
    if now > of or (not counted.complete and of <= now):
        shown = f"{'' if counted.complete else 'more than '}{count(now, 'job')}"
        why = f"{shown} would be changed, and the preview showed {of:,}. Nothing was changed."
        raise Problem(409, "count", f"{why} They are counted anew below.")
    if of > TYPED_ABOVE or action.destroys:
        check_typed(form, of, "jobs")
    total = sum(counted.statuses.values()) if counted.complete else None
    if not counted.complete or now == of:
        return None, total
    changed = "1 has" if of - now == 1 else f"{of - now:,} have"
    text = f"Of the {count(of, 'job')} that were counted, {changed} changed since: nothing is done to those."
    return Flash(text), total


def grown(why: str, now: int, counted_at: datetime) -> Problem:
    """The refusal where more match than were counted; it has a new count and its moment."""
    detail = f"{why}. Nothing was changed. Now {now:,} match: look at them first, then act on this count."
    return Problem(409, "count", detail, count=now, counted_at=counted_at)


def check_typed(form: Form, of: int, noun: str) -> None:
    """Refuse if the number that was typed is not the one that is meant."""
    typed = form.get("count").replace(",", "").strip()
    if typed != str(of):
        text = f"You typed {typed or 'nothing'}, and {of:,} {noun} are meant. Nothing was changed."
        raise Problem(422, "count", text)


async def _on_selection(visit: RequestContext, form: Form, action: Action, chosen: list[str]) -> Response:
    if len(chosen) > LARGEST_SELECTION:
        raise InvalidInput("id", f"{len(chosen)} ids", f"must be {LARGEST_SELECTION:,} at most; use a filter")
    engine = await visit.board.store.engine()
    before = await engine.operator.get([ids.parse(one) for one in chosen])
    for job in before:
        if job is not None:
            shared.check_queue(visit, job.queue)
    done = await act(visit, action, chosen, given_in(form, action))
    visit.board.hub.forget()
    said = [in_words(action, done)]
    if action.readies and done.changed:
        said += await visit.admin.queues.notes({job.queue for job in before if job is not None})
    return view.redirect(visit, visit.url("jobs", q=form.get("q")), Flash(" ".join(said)))


def check_reach(visit: RequestContext) -> None:
    """Refuse one who is limited to some queues: what a filter means may be in others."""
    if not visit.who.reaches_all:
        raise Problem(403, "queue", f"{visit.who.name} is limited to some queues and cannot act on a filter.")


async def begin(
    visit: RequestContext,
    do: str,
    wanted: Filter,
    needs: dict[str, Any],
    counted_at: datetime | None,
    total: int | None = None,
) -> OperationView:
    """Start an operation on what was there at the moment of its preview; the dashboard keeps the task that walks it."""
    visit.needs(on_many(do).role)
    begun = await visit.admin.operations.start(do, wanted, needs, counted_at=counted_at, total=total)
    visit.board.walking = [*visit.board.walking[-99:], visit.admin]
    return begun


async def go_on(visit: RequestContext, id_: str) -> OperationView:
    """Go on with an operation that was stopped, failed or interrupted; the dashboard keeps the task that walks it."""
    resumed = await visit.admin.operations.resume(id_)
    visit.board.walking = [*visit.board.walking[-99:], visit.admin]
    return resumed


async def everything(visit: RequestContext) -> Response:
    """Every operation that the store remembers."""
    reading = await visit.board.hub.reading()
    context = view.common(visit, "jobs", "Operations", shared.found(visit, reading)) | {
        "now": reading.census.at,
        "rows": [(one, LABELS[one.action], _tally(one)) for one in (await visit.admin.operations.list())[:200]],
        "live_url": "",
    }
    return view.page(visit, "operations.html", context)


def wants(visit: RequestContext) -> list[Want]:
    """The operation that the address names."""
    id_ = visit.request.path_params["id"]

    async def read(_: Engine) -> tuple[OperationView, int]:
        return await visit.admin.operations.get(id_), 1

    return [Want(("operation", id_), read)]


async def show(visit: RequestContext) -> Response:
    """How far an operation is."""
    found = await visit.admin.operations.get(visit.request.path_params["id"])
    return view.page(visit, "operation.html", live_context(visit, await visit.board.hub.reading(), found))


def live_context(visit: RequestContext, reading: Reading, found: OperationView) -> dict[str, Any]:
    """What is shown of an operation; all of it changes by itself."""
    label = LABELS[found.action]
    page = "outbox" if found.noun == "letter" else "jobs"
    back = visit.url("outbox/letters", **given(found)) if found.noun == "letter" else visit.url("jobs", q=found.filter)
    return view.common(visit, page, f"{label} {STATES[found.state]}", shared.found(visit, reading)) | {
        "now": reading.census.at,
        "w": found,
        "speed": speed(found),
        "tally": _tally(found),
        "back": back,
        "may": visit.may("operate") and visit.who.reaches_all,
        "live_url": visit.url("live", page="operation", id=found.id),
    }


def speed(found: OperationView) -> str:
    """How fast an operation is, and how long it still takes, as far as it is known."""
    if found.rate is None:
        return ""
    left = f", about {span(found.lasts)} left" if found.lasts else ""
    return f"{pace(found.rate)} {found.noun}s a second{left}"


def given(found: OperationView) -> dict[str, str]:
    """The fields that choose the letters of an operation."""
    return {name: str(value) for name, value in found.given.items() if value is not None}


STATES: Final = {
    "running": "is under way",
    "stopping": "stops",
    "stopped": "was stopped",
    "done": "is done",
    "failed": "failed",
    "interrupted": "was interrupted: its process has gone",
}


def in_words(action: Action, done: Bulk) -> str:
    """A tally in words."""
    jobs_ = count(done.changed, "job")
    parts = [action.tally.format(jobs=jobs_) if action.tally else f"{action.past} {jobs_}"]
    if done.cancel_requested:
        parts.append(f"{done.cancel_requested:,} running and asked to stop")
    if done.blocked:
        parts.append(f"{done.blocked:,} left: their key is taken")
    if done.missing:
        parts.append(f"{done.missing:,} gone meanwhile")
    parts += [f"{n:,} left: {status.value}" for status, n in sorted(done.refused.items())]
    return "; ".join(parts) + "."


def _tally_of(found: OperationView) -> Bulk:
    names = ("changed", "cancel_requested", "missing", "blocked")
    return Bulk(**{name: getattr(found, name) for name in names}, refused=Counter(found.refused))


def _tally(found: OperationView) -> Markup:
    return moments(_told(found), instant(found.seen_at))


def _told(found: OperationView) -> str:
    if found.noun == "letter":
        done = "to be delivered again" if found.action == "replay-letters" else "discarded"
        return f"{count(found.changed, 'letter')} {done}."
    if found.action == RESEAL:
        return f"{count(found.changed, 'record')} sealed with the current key, {found.blocked:,} cannot be opened."
    text = in_words(MANY[found.action], _tally_of(found))
    if not found.later:
        return text
    return f"{text} {found.later:,} left: created or ended after the count at {iso(found.counted_at)}."
