"""One job: its status, life, attempts, log and facts, why it does not run, and what may be done to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from markupsafe import Markup
from starlette.responses import Response

from stoker import views
from stoker.admin.documents import error_records
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.actions import ACTIONS
from stoker.model.error_records import error_groups
from stoker.model.errors import NotFound
from stoker.model.filter import FAILED, as_value
from stoker.model.groups import GROUP, Group
from stoker.model.humanize import count, span, until
from stoker.model.job import FINISHED, FIRST, PARENT, Job, Status, links
from stoker.model.lifetime_bar import life
from stoker.model.origin import TRACE, origin, trace_id
from stoker.model.query import WAITING, Census, Page, Query
from stoker.model.retry import Backoff, DelayList, Exponential, Fixed, Linear
from stoker.model.steps import NEVER
from stoker.model.time import Instant, Seconds
from stoker.model.time import span as read_span
from stoker.run_metadata import NOTED
from stoker.web import view
from stoker.web.hub import Reading
from stoker.web.humanize import time
from stoker.web.pages import job_runs, job_why, shared, steps
from stoker.web.pages.job_facts import DEAD_END, RELATIVES, Facts, metadata, wants
from stoker.web.pages.job_reveal import granted, told
from stoker.web.request import RequestContext

OTHERS = 40
FURTHER = 2
"""How often it is looked further back for the runs of a rare kind."""


async def show(visit: RequestContext) -> Response:
    """The page of a job."""
    return view.page(visit, "job.html", await load(visit))


async def load(visit: RequestContext, read: Job | None = None) -> dict[str, Any]:
    """Everything the page shows, with the payload hidden; `read` is the job if it has been read."""
    reading = await visit.board.hub.reading()
    [want] = wants(visit, read)
    facts: Facts = await visit.board.hub.wanted(want)
    if facts.gone:
        raise NotFound(DEAD_END)
    may_reveal = visit.may("operate", facts.job.queue)
    part = granted(visit, ids.text(facts.job.id), reading.census.at) if may_reveal else ""
    engine = await visit.board.store.engine()
    others = await _others(engine, facts.job.kind, reading.census)
    return live_context(visit, reading, facts) | {
        "others": job_runs.others(others.jobs, reading.census.at),
        "others_note": job_runs.others_note(others),
        "same": await _same_error(engine, facts.job, others.jobs, reading.census.at),
        "payload_size": len(facts.job.payload),
        "result_size": None if facts.job.result is None else len(facts.job.result),
        "steps_size": steps.size(facts.steps),
        "revealed": None,
        "may_reveal": may_reveal,
        "edits": may_reveal and facts.job.status in ACTIONS["edit"].statuses,
        **(await told(visit, facts.job, part) if part else {}),
    }


async def _same_error(engine: Engine, job: Job, others: Sequence[Job], now: Instant) -> dict[str, Any]:
    """The name of a job's error, and how many others died of it in the last days; nothing where it has not failed."""
    if job.last_error is None or job.status not in FAILED:
        return {}
    group = next(iter(error_groups([job], await error_records(engine), now)))
    here = job_runs.same_error(others, group.id, job)
    died = max(group.died - (job.status is Status.DEAD), here)
    return {"id": group.id, "died": died, "kinds": len(group.kinds)}


async def _others(engine: Engine, kind: str, census: Census) -> Page:
    """The latest runs of a kind. A rare kind is looked for further back while there are more, but not for long."""
    # Finished jobs are one list; a walk over all jobs would pass a whole backlog before it meets a run.
    query = Query(kinds=frozenset({kind}), statuses=FINISHED, limit=OTHERS)
    found = await engine.operator.find(query)
    there = sum(one.n for one in census.counts if one.kind == kind and one.status in FINISHED)
    for _ in range(FURTHER):
        if len(found.jobs) >= min(OTHERS, there) or found.cursor is None:
            break
        rest = OTHERS - len(found.jobs)
        more = await engine.operator.find(msgspec.structs.replace(query, limit=rest, cursor=found.cursor))
        found = Page([*found.jobs, *more.jobs], more.cursor, found.scanned + more.scanned)
    return found


def live_context(visit: RequestContext, reading: Reading, facts: Facts) -> dict[str, Any]:
    """What changes by itself: everything but the payload and the others of its kind."""
    reading = visit.board.hub.current(reading)
    now = reading.census.at
    job = visit.board.redact.job(facts.job)
    record = views.job(job, facts.origins)
    status = shared.shown_status(record, now)
    parts = life(job, facts.events, now)
    why = job_why.why(visit, job, reading, facts) if job.status not in {Status.RUNNING, Status.DONE} else None
    return view.common(visit, "jobs", f"{job.kind}, {status}", shared.found(visit, reading)) | {
        "j": record,
        "gone": facts.gone,
        "status": status,
        "now": now,
        "life_parts": [job_runs.part_of_life(part, now) for part in parts],
        "sums": job_runs.legend(parts),
        "ends": job_runs.ends(record, status, now),
        "why": why,
        "besides": job_why.besides(why),
        "gates": job_why.gates(visit, job, why, reading, facts) if why is not None and job.status in WAITING else [],
        "steps": steps.rows(visit, job, facts),
        "attempts": job_runs.attempts(record, job, facts.events, reading, visit.parameter("attempt")),
        "emitted": steps.emitted(visit, job, facts),
        "attempts_note": job_runs.attempts_note(job),
        "facts": _facts(visit, job, record, reading),
        "chain": _chain(visit, job, facts, now),
        "group": _group(visit, facts, now),
        "actions": {"main": [], "more": []} if facts.gone else _actions(visit, job),
        "live_url": visit.url("live", page="job", id=ids.text(job.id), attempt=visit.parameter("attempt")),
    }


def _facts(visit: RequestContext, job: Job, record: views.Job, reading: Reading) -> list[tuple[str, str | Markup, str]]:
    """Name, text and link of what is set; nothing for what is not."""
    place = next((one for one in reading.presences if one.worker == job.worker), None)
    whose = origin(job.payload, job.options.metadata)
    made_by = metadata(job).get(GROUP, "")
    kept: str | Markup = ""
    if record.expires_at is not None:
        kept = Markup("until {}").format(time(record.expires_at))
    found = [
        ("Queue", job.queue, visit.url(f"queues/{quote(job.queue, safe='')}")),
        ("Priority", "first" if job.priority == FIRST else str(job.priority), ""),
        ("Tenant", job.tenant or "", visit.url("jobs", q=f"tenant:{as_value(job.tenant)}") if job.tenant else ""),
        (
            "Unique key",
            _key(job, reading.census.at),
            visit.url("jobs", q=f"key:{as_value(job.unique.key)}") if job.unique else "",
        ),
        ("Principal", whose.principal or "", ""),
        ("Correlation", whose.correlation or "", ""),
        ("Trace", trace_id(job.options.metadata) or "", ""),
        ("Trace of its first failed run", _failed_in(job), ""),
        (
            "Worker",
            ""
            if job.status is not Status.RUNNING
            else job.worker or ""
            if place is None
            else f"{place.host} / {place.pid}",
            visit.url("workers" if place is None else f"workers/{quote(place.worker, safe='')}"),
        ),
        ("Isolation", record.isolation or "", ""),
        ("Enqueued", time(job.created_at), ""),
        ("Due", "" if job.scheduled_at in (job.created_at, NEVER) else _due(job.scheduled_at, reading.census.at), ""),
        ("Started", "" if job.started_at is None else time(job.started_at), ""),
        ("Finished", "" if job.finished_at is None else time(job.finished_at), ""),
        ("Timeout", span(record.timeout) if record.timeout else "none", ""),
        ("Backoff", _backoff(record.backoff), ""),
        ("Kept", kept, ""),
        ("Called by group", made_by, visit.url(f"groups/{made_by}")),
        ("Copy", record.successor or "", visit.url(f"jobs/{record.successor}") if record.successor else ""),
    ]
    return [(name, text, link) for name, text, link in found if text]


def _failed_in(job: Job) -> str:
    """The trace of its first failed run, where it is another one than its caller's."""
    found = trace_id(job.metadata, f"{NOTED}{TRACE}") or ""
    return "" if found == trace_id(job.options.metadata) else found


def _key(job: Job, now: Instant) -> str | Markup:
    """Its unique key; of one that its success keeps also until when."""
    if job.unique is None:
        return ""
    kept = job.unique.kept_until(job.created_at) if job.status is Status.DONE else None
    if kept is None or kept <= now:
        return job.unique.key
    return Markup("{}, kept until {}").format(job.unique.key, time(kept))


def _due(at: Instant, now: Instant) -> Markup:
    """When it is due; of a moment to come also how soon."""
    return Markup("{}, {}").format(time(at), until(at, now)) if at > now else time(at)


def _backoff(given: Backoff | None) -> str:
    match given:
        case None:
            return ""
        case Fixed():
            return f"{_seconds(given.interval)} each time"
        case Linear():
            return f"{_seconds(given.initial)}, {_seconds(given.increment)} more each time, up to {_seconds(given.max)}"
        case Exponential():
            grows = "doubling" if given.factor == 2 else f"times {given.factor:g}"
            return f"exponential, {_seconds(given.base)} {grows} up to {_seconds(given.max)}"
        case DelayList():
            return f"{', '.join(map(_seconds, given.delays))}, then the last again"
        case _:
            return type(given).__name__.lower()


def _seconds(value: Seconds) -> str:
    """A number of seconds in words."""
    return span(read_span(value, "seconds"))


def _actions(visit: RequestContext, job: Job) -> dict[str, list[tuple[str, str, str, bool, bool]]]:
    """Buttons by rank: path, label, what it means, whether it leads to a form, and whether it asks."""
    found: dict[str, list[tuple[str, str, str, bool, bool]]] = {"main": [], "more": []}
    for action in ACTIONS.values():
        for button in action.buttons:
            offered = visit.may(action.role, job.queue) and job.status in (button.statuses or action.statuses)
            if button.label and offered:
                path = f"jobs/{ids.text(job.id)}/{button.verb or action.name}"
                main = button.main or (button.once_asked and job.cancel_requested)
                label = button.labels.get(job.status, button.label)
                found["main" if main else "more"].append(
                    (path, label, button.hint, button.form, job.status in button.asks)
                )
    return found


# --- what it belongs to ----------------------------------------------------------------------------------------------


def _chain(visit: RequestContext, job: Job, facts: Facts, now: Instant) -> list[dict[str, Any]]:
    """The chain of a job from what came before it to what comes last; empty where it is alone."""
    found = []
    parent = metadata(job).get(PARENT)
    if parent is not None:
        before = facts.relatives.get(ids.parse(parent))
        found.append(_link(visit, parent, "its record is not kept any more", before, now, "ran before it"))
    found.append(_link(visit, ids.text(job.id), job.kind, job, now, "this job"))
    for link in links(job.options):
        there = facts.relatives.get(link.job_id)
        found.append(_link(visit, ids.text(link.job_id), link.kind, there, now, "follows its success"))
    return found if len(found) > 1 else []


def _link(visit: RequestContext, id_: str, kind: str, there: Job | None, now: Instant, place: str) -> dict[str, Any]:
    return {
        "kind": kind if there is None else there.kind,
        "place": place,
        "status": "" if there is None else there.view(now),
        "url": "" if there is None or place == "this job" else visit.url(f"jobs/{id_}"),
    }


def _group(visit: RequestContext, facts: Facts, now: Instant) -> dict[str, Any] | None:
    """The group of a job: what became of its members, and what its end stores."""
    group = facts.group
    if group is None:
        return None
    members = [facts.relatives[one] for one in group.members[:RELATIVES] if one in facts.relatives]
    after = (
        ("every member is done", group.then),
        ("one is not", group.on_failure),
        ("all have ended", group.on_finish),
    )
    return {
        "url": visit.url(f"groups/{ids.text(group.id)}"),
        "done": group.done,
        "total": group.total,
        "note": _group_note(group),
        "members": [
            {
                "status": (status := one.view(now)),
                "title": f"{one.kind}, {status}",
                "url": visit.url(f"jobs/{ids.text(one.id)}"),
                "here": one.id == facts.job.id,
            }
            for one in members
        ],
        "hidden": max(group.total - len(members), 0),
        "after": [f"{draft.kind} when {when}" for when, draft in after if draft is not None],
    }


def _group_note(group: Group) -> str:
    ended = [f"{n:,} {word}" for n, word in ((group.dead, "dead"), (group.canceled, "canceled")) if n]
    if group.closed_at is not None:
        rest = "closed"
    elif not group.sealed:
        rest = "more may join"
    else:
        rest = f"waits for {count(group.waiting, 'member')}"
    return ", ".join([f"{group.done:,} of {group.total:,} done", *ended, rest])
