"""Acting on many jobs: see first how many, then do it; what takes long runs on while its page shows how far it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

from stoker.admin import Bulk, Filter, InvalidFilter
from stoker.admin.bulk import check_given
from stoker.admin.operations import OperationView
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.derived import keys_taken
from stoker.model.errors import InvalidInput
from stoker.model.explain import Reason, notes
from stoker.model.job import ACTIVE, Job, Status
from stoker.model.operations import bound_of
from stoker.model.query import (
    ALLOWED,
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Move,
    Prioritize,
    Query,
    Requeue,
    RunNow,
    as_of,
    matched_at,
    queues_of,
)
from stoker.model.time import instant, moment
from stoker.model.words import clock, count
from stoker.web import view
from stoker.web.forms import Form, moment_of, whole
from stoker.web.hub import Reading, Want
from stoker.web.pages import jobs, shared
from stoker.web.problems import Problem
from stoker.web.view import Flash
from stoker.web.visit import Visit

MOST = 10_000
TYPED_ABOVE = 100
LARGEST_SELECTION = 1_000
PAGE = 1_000
KEYED = 2_000
"""Jobs whose unique keys are looked at."""
READIES: Final = frozenset({"requeue", "retry", "run-now"})
"""Actions that make jobs ready, which then wait for their queue."""
KEYS: Final = frozenset[type[Change]]({Requeue, Clone})
"""Changes that make a finished job active again, for which its key must be free."""

VERBS: Final[dict[str, tuple[str, type[Change], str, str]]] = {
    "requeue": (
        "Requeue",
        Requeue,
        "They run again as soon as a worker is free, each with a fresh budget of attempts.",
        "Keep them as they are",
    ),
    "retry": (
        "Retry as copies",
        Clone,
        "Each gets a new job; the old ones are kept as retried.",
        "Keep them as they are",
    ),
    "run-now": ("Run now", RunNow, "They are due at once.", "Let them wait"),
    "cancel": ("Cancel", Cancel, "Waiting jobs end; running ones are asked to stop.", "Let them go on"),
    "discard": ("Discard", Discard, "They leave the dead list and are kept.", "Leave them on the list"),
    "delete": (
        "Delete",
        Delete,
        "Their records and histories are gone for good. Running jobs are left alone.",
        "Keep them",
    ),
    "move": ("Move", Move, "They wait in the other queue.", "Leave them where they are"),
    "prioritize": ("Prioritize", Prioritize, "Lower numbers run first.", "Keep their order"),
}


LETTERS: Final = {"replay-letters": "Replay of letters", "discard-letters": "Discarding of letters"}
"""What is done to many letters."""

LABELS: Final = {**{name: found[0] for name, found in VERBS.items()}, **LETTERS}
"""Every operation by name."""


async def preview(visit: Visit) -> Response:
    """What an action on a filter would do, counted."""
    return await _preview(visit, visit.parameter("do", "requeue"), visit.parameter("q"), [])


def again(visit: Visit, form: Form, refused: Problem) -> Awaitable[Response]:
    """The preview counted anew, with the same filter and what was typed, above it why nothing was changed."""
    typed = {name: form.get(name) for name in ("queue", "priority")}
    return _preview(visit, form.get("do"), form.get("q"), [], refused, typed)


async def preview_selection(visit: Visit) -> Response:
    """What an action on ticked jobs would do."""
    form = await visit.board.form(visit)
    chosen = form.all("id")
    if not chosen:
        back = visit.url("jobs", q=form.get("q"))
        return view.redirect(visit, back, Flash("No job was ticked. Nothing was changed.", bad=True))
    return await _preview(visit, form.get("do"), "", chosen)


async def _preview(
    visit: Visit,
    do: str,
    text: str,
    chosen: list[str],
    refused: Problem | None = None,
    given: Mapping[str, str] | None = None,
) -> Response:
    if do not in VERBS:
        raise InvalidInput("do", do, f"must be one of {', '.join(VERBS)}")
    label, change, follows, keep = VERBS[do]
    reading = await visit.board.hub.reading()
    allowed = _allowed(change, by_filter=not chosen)
    counted = await _count(visit, reading, text, chosen, change)
    statuses, complete = counted.statuses, counted.complete
    can = counted.changeable(allowed)
    every = sum(statuses.values())
    shown = f"{can:,}" if complete else f"more than {can:,}"
    title = f"{label} {shown}{'' if can == every else f' of {every:,}'} {'job' if every == 1 else 'jobs'}?"
    typed = not chosen and (can > TYPED_ABOVE or change is Delete)
    context = view.common(visit, "jobs", title, shared.found(visit, reading)) | {
        "now": reading.census.at,
        "do": do,
        "label": label,
        "follows": follows,
        "keep": keep,
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
        "verbs": [(name, visit.url("operations/new", do=name, q=text)) for name in VERBS] if text else [],
        "verb_names": LABELS,
        "needs": {"move": "queue", "prioritize": "priority"}.get(do, ""),
        "queue_names": shared.queue_names(reading),
        "notes": _notes(reading, counted.queues) if do in READIES else [],
        "running": [one for one in await visit.admin.operations.list() if not one.ended][:5],
        "back": visit.url("jobs", q=text),
        "may": visit.may("operate"),
        "refused": "" if refused is None else refused.detail,
        "given": {"queue": "", "priority": "", **(given or {})},
        "live_url": "",
    }
    return view.page(visit, "operation-new.html", context, 200 if refused is None else refused.status)


class Counted(NamedTuple):
    """What an action would meet: jobs by status, and those whose key is taken, if only among so many (`taken_of`).

    `queues` are those that they are in.
    """

    statuses: Counter[Status]
    complete: bool
    taken: int = 0
    taken_of: int | None = None
    queues: frozenset[str] = frozenset()

    def changeable(self, allowed: frozenset[Status]) -> int:
        """How many of them it would change."""
        return sum(n for status, n in self.statuses.items() if status in allowed) - self.taken


def _allowed(change: type[Change], *, by_filter: bool) -> frozenset[Status]:
    """The statuses that a change applies to; a deletion by filter leaves running jobs alone."""
    return frozenset(ALLOWED[change]) - ({Status.RUNNING} if change is Delete and by_filter else frozenset())


async def _count(visit: Visit, reading: Reading, text: str, chosen: list[str], change: type[Change]) -> Counted:
    """What an action would meet now."""
    engine = await visit.board.store.engine()
    if chosen:
        if len(chosen) > LARGEST_SELECTION:
            raise InvalidInput("id", f"{len(chosen)} ids", f"must be {LARGEST_SELECTION:,} at most; use a filter")
        there = [job for job in await engine.operator.get([ids.parse(one) for one in chosen]) if job is not None]
        found = Counted(Counter(job.status for job in there), True, queues=_queues_of(there, change))
        return await _with_keys(engine, found, there, True, change)
    wanted = Filter.parse(text)
    query = await visit.admin.jobs.question(wanted, PAGE)
    if query is None:
        return Counted(Counter(), True)
    if known := _by_status(wanted, reading):
        statuses = Counter({status: n for status, n in known.items() if not query.statuses or status in query.statuses})
        looked, whole = await _walked(engine, query, KEYED) if change in KEYS else ([], True)
        named = queues_of(query, reading.census)
        return await _with_keys(engine, Counted(statuses, True, queues=named), looked, whole, change)
    return await _counted(engine, query, change)


async def _counted(engine: Engine, query: Query, change: type[Change]) -> Counted:
    looked, whole = await _walked(engine, query, MOST)
    found = Counted(Counter(job.status for job in looked), whole, queues=_queues_of(looked, change))
    return await _with_keys(engine, found, looked, whole, change)


def _queues_of(jobs_: list[Job], change: type[Change]) -> frozenset[str]:
    """The queues of the jobs that a change applies to."""
    return frozenset(job.queue for job in jobs_ if job.status in ALLOWED[change])


def _by_status(wanted: Filter, reading: Reading) -> dict[Status, int]:
    """What the shared counts know; empty where they do not, as of a name that only a schedule or the app has."""
    try:
        return jobs.by_status(wanted, reading.census)
    except InvalidFilter:
        return {}


async def _walked(engine: Engine, query: Query, most: int) -> tuple[list[Job], bool]:
    """Jobs of a question, up to so many, and whether these are all."""
    found: list[Job] = []
    at = query.ended_by
    while len(found) < most:
        page = await engine.operator.find(query)
        found += [job for job in page.jobs if at is None or matched_at(job, query, at)]
        if page.cursor is None:
            return found, True
        query = msgspec.structs.replace(query, cursor=page.cursor)
    return found, False


async def _with_keys(engine: Engine, counted: Counted, looked: list[Job], whole: bool, change: type[Change]) -> Counted:
    """Count the jobs whose unique key another job has."""
    keyed = [job for job in looked if job.unique is not None and job.status in ALLOWED[change]]
    if change not in KEYS or not keyed:
        return counted
    everywhere = any(job.unique is not None and job.unique.scope == "global" for job in keyed)
    kinds = frozenset[str]() if everywhere else frozenset(job.kind for job in keyed)
    active, all_active = await _walked(engine, Query(statuses=ACTIVE, kinds=kinds, limit=PAGE), KEYED)
    of = None if whole and all_active else len(looked)
    return counted._replace(taken=keys_taken(keyed, active), taken_of=of)


def _notes(reading: Reading, queues: frozenset[str]) -> list[tuple[str, str]]:
    """What matters about the queues that the jobs go back to."""
    signs = {Reason.PAUSED: "pause", Reason.COOLING: "snow"}
    return [(signs[why], text) for why, text in notes(reading.queues, queues, reading.census)][:3]


async def start(visit: Visit) -> Response:
    """Do what was previewed; a long walk goes on in the background."""
    form = await visit.board.form(visit)
    do = form.get("do")
    if do not in VERBS:
        raise InvalidInput("do", do, f"must be one of {', '.join(VERBS)}")
    chosen, text = form.all("id"), form.get("q")
    if chosen:
        return await _on_selection(visit, form, do, chosen)
    if not visit.who.reaches_all:
        raise Problem(403, "queue", f"{visit.who.name} is limited to some queues and cannot act on a filter.")
    wanted, at = Filter.parse(text), moment_of("counted_at", form)
    visit.board.hub.forget()  # a refusal counts anew, not from a reading that others share
    try:
        left = await _check_count(visit, form, wanted, at, VERBS[do][1])
    except Problem as refused:
        return await again(visit, form, refused)
    begun = await begin(visit, do, wanted, _needs(form, do), at)
    return view.redirect(visit, visit.url(f"operations/{begun.id}"), left)


async def _check_count(
    visit: Visit, form: Form, wanted: Filter, at: datetime | None, change: type[Change]
) -> Flash | None:
    """Refuse if more matched at the moment of the preview than it showed, or if its number was not typed.

    Fewer are no mistake: jobs end and change while people think. Returns what to say of those.
    """
    of = whole("of", form.get("of") or "0")
    query = await visit.admin.jobs.question(wanted, PAGE)
    engine = await visit.board.store.engine()
    bound = bound_of(None if at is None else instant(at, "counted_at"), await engine.now())
    counted = Counted(Counter(), True) if query is None else await _counted(engine, as_of(query, bound), change)
    now = counted.changeable(_allowed(change, by_filter=True))
    if now > of or (not counted.complete and of <= now):
        shown = f"{'' if counted.complete else 'more than '}{count(now, 'job')}"
        why = f"{shown} would be changed, and the preview showed {of:,}. Nothing was changed."
        raise Problem(409, "count", f"{why} They are counted anew below.")
    if of > TYPED_ABOVE or change is Delete:
        check_typed(form, of, "jobs")
    if not counted.complete or now == of:
        return None
    changed = "1 has" if of - now == 1 else f"{of - now:,} have"
    return Flash(f"Of the {count(of, 'job')} that were counted, {changed} changed since: nothing is done to those.")


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


async def _on_selection(visit: Visit, form: Form, do: str, chosen: list[str]) -> Response:
    if len(chosen) > LARGEST_SELECTION:
        raise InvalidInput("id", f"{len(chosen)} ids", f"must be {LARGEST_SELECTION:,} at most; use a filter")
    engine = await visit.board.store.engine()
    before = await engine.operator.get([ids.parse(one) for one in chosen])
    for job in before:
        if job is not None:
            shared.check_queue(visit, job.queue)
    needs = _needs(form, do)
    if do == "move":
        shared.check_queue(visit, needs["queue"])
    done = await act(visit, do, chosen, needs)
    visit.board.hub.forget()
    said = [in_words(do, done)]
    if do in READIES and done.changed:
        said += await visit.admin.queues.notes({job.queue for job in before if job is not None})
    return view.redirect(visit, visit.url("jobs", q=form.get("q")), Flash(" ".join(said)))


def _needs(form: Form, do: str) -> dict[str, Any]:
    if do == "move":
        return {"queue": form.get("queue"), "create": form.get("create") == "yes"}
    if do == "prioritize":
        return {"priority": whole("priority", form.get("priority"))}
    return {}


async def begin(
    visit: Visit, do: str, wanted: Filter, needs: dict[str, Any], counted_at: datetime | None
) -> OperationView:
    """Start an operation on what was there at the moment of its preview; the dashboard keeps the task that walks it."""
    begun = await visit.admin.operations.start(do, wanted, needs, counted_at=counted_at)
    visit.board.walking = [*visit.board.walking[-99:], visit.admin]
    return begun


async def go_on(visit: Visit, id_: str) -> OperationView:
    """Go on with an operation that was stopped, failed or interrupted; the dashboard keeps the task that walks it."""
    resumed = await visit.admin.operations.resume(id_)
    visit.board.walking = [*visit.board.walking[-99:], visit.admin]
    return resumed


async def act(visit: Visit, do: str, chosen: str | list[str], needs: dict[str, Any]) -> Bulk:
    """Do it to these jobs, in one or a few steps."""
    check_given(do, needs)
    jobs_ = visit.admin.jobs
    match do:
        case "requeue":
            return await jobs_.requeue(chosen)
        case "retry":
            return await jobs_.retry(chosen)
        case "run-now":
            return await jobs_.run_now(chosen, **needs)
        case "cancel":
            return await jobs_.cancel(chosen, **needs)
        case "discard":
            return await jobs_.discard(chosen)
        case "delete":
            return await jobs_.delete(chosen)
        case "move":
            return await jobs_.move(chosen, **needs)
        case _:
            return await jobs_.prioritize(chosen, needs["priority"])


async def everything(visit: Visit) -> Response:
    """Every operation that the store remembers."""
    reading = await visit.board.hub.reading()
    context = view.common(visit, "jobs", "Operations", shared.found(visit, reading)) | {
        "now": reading.census.at,
        "rows": [(one, LABELS[one.action], _tally(one)) for one in (await visit.admin.operations.list())[:200]],
        "live_url": "",
    }
    return view.page(visit, "operations.html", context)


def wants(visit: Visit) -> list[Want]:
    """The operation that the address names."""
    id_ = visit.request.path_params["id"]

    async def read(_: Engine) -> tuple[OperationView, int]:
        return await visit.admin.operations.get(id_), 1

    return [Want(("operation", id_), read)]


async def show(visit: Visit) -> Response:
    """How far an operation is."""
    found = await visit.admin.operations.get(visit.request.path_params["id"])
    return view.page(visit, "operation.html", live_context(visit, await visit.board.hub.reading(), found))


def live_context(visit: Visit, reading: Reading, found: OperationView) -> dict[str, Any]:
    """What is shown of an operation; all of it changes by itself."""
    label = LABELS[found.action]
    page = "outbox" if found.noun == "letter" else "jobs"
    back = visit.url("outbox/letters", **given(found)) if found.noun == "letter" else visit.url("jobs", q=found.filter)
    return view.common(visit, page, f"{label} {STATES[found.state]}", shared.found(visit, reading)) | {
        "now": reading.census.at,
        "w": found,
        "seen": _seen(found),
        "tally": _tally(found),
        "back": back,
        "may": visit.may("operate") and visit.who.reaches_all,
        "live_url": visit.url("live", page="operation", id=found.id),
    }


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


def in_words(verb: str, done: Bulk) -> str:
    """A tally in words."""
    past = {"requeue": "Requeued", "retry": "Copied", "cancel": "Canceled", "discard": "Discarded", "delete": "Deleted"}
    first = {"run-now": f"{count(done.changed, 'job')} made due"}.get(
        verb, f"{past.get(verb, 'Changed')} {count(done.changed, 'job')}"
    )
    parts = [first]
    if done.cancel_requested:
        parts.append(f"{done.cancel_requested:,} running and asked to stop")
    if done.blocked:
        parts.append(f"{done.blocked:,} left: their key is taken")
    if done.missing:
        parts.append(f"{done.missing:,} gone meanwhile")
    parts += [f"{n:,} left: {status.value}" for status, n in sorted(done.refused.items())]
    return "; ".join(parts) + "."


def _seen(found: OperationView) -> int:
    refused = sum(found.refused.values())
    return found.changed + found.cancel_requested + found.missing + found.blocked + refused


def _tally_of(found: OperationView) -> Bulk:
    names = ("changed", "cancel_requested", "missing", "blocked")
    return Bulk(**{name: getattr(found, name) for name in names}, refused=Counter(found.refused))


def _tally(found: OperationView) -> str:
    if found.noun == "letter":
        done = "to be delivered again" if found.action == "replay-letters" else "discarded"
        return f"{count(found.changed, 'letter')} {done}."
    text = in_words(found.action, _tally_of(found))
    if not found.later:
        return text
    at = clock(found.counted_at, instant(found.seen_at))
    return f"{text} {found.later:,} left: created or ended after the count at {at}."
