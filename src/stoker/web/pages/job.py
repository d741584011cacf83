"""One job: its life, why it does not run, its attempts, log, payload, and others of its kind."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import median
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

from starlette.responses import Response

from stoker import records
from stoker.engines.base import CORRUPT, Engine
from stoker.model import ids
from stoker.model.control import Queue, live
from stoker.model.derived import error_line, normalized_error, slots
from stoker.model.errors import InvalidInput, NotFound
from stoker.model.events import Event, Window
from stoker.model.explain import Explanation, Gate, Reason, explain
from stoker.model.groups import Group
from stoker.model.job import FINISHED, PARENT, Job, Status, links
from stoker.model.life import Part, life, sums
from stoker.model.origin import origin
from stoker.model.query import (
    ALLOWED,
    WAITING,
    Cancel,
    Clone,
    Delete,
    Discard,
    Edit,
    Move,
    Page,
    Prioritize,
    Query,
    Requeue,
    RunNow,
)
from stoker.model.retry import Backoff, Exponential, Fixed, Linear
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import level
from stoker.model.time import LATEST, SECOND, Instant, Seconds, instant, moment
from stoker.model.time import span as read_span
from stoker.model.words import absolute, clock, count, share, span, until
from stoker.web import marks, view
from stoker.web.board import Form
from stoker.web.hub import Reading, Want
from stoker.web.pages import shared
from stoker.web.problems import Problem
from stoker.web.view import Flash
from stoker.web.visit import Visit

OTHERS = 40
SHOWN_BYTES = 64 * 1024
RELATIVES = 60
"""Members of a group that are shown as marks."""
LOOKS: Final = {"waiting": "b-wait", "running": "b-run", "between": "b-retry", "died": "b-dead", "left_out": "b-none"}
NAMES: Final = {"waiting": "in line", "running": "running", "between": "between attempts", "left_out": "left out"}
OUTCOMES: Final = {Status.DONE: "b-done", Status.DEAD: "b-dead", Status.RUNNING: "b-run", Status.RETRYING: "b-retry"}

DEAD_END = "No job has this id. It may have been deleted, or its retention has passed."


class Facts(NamedTuple):
    """A job with its events and what it belongs to; `relatives` are the jobs of its group and chain that are stored."""

    job: Job
    events: Sequence[Event] = ()
    group: Group | None = None
    subqueue: SubqueueView | None = None
    relatives: Mapping[bytes, Job] = MappingProxyType({})
    gone: bool = False


def wants(visit: Visit) -> list[Want]:
    """The job of the address."""
    id_ = named(visit)
    last: Facts | None = None

    async def read(engine: Engine) -> tuple[Facts, int]:
        nonlocal last
        found, calls = await _facts_of(engine, id_)
        if found is None and last is None:
            raise NotFound(DEAD_END)
        last = found or cast(Facts, last)._replace(gone=True)
        return last, calls

    return [Want(("job", id_), read)]


async def _facts_of(engine: Engine, id_: bytes) -> tuple[Facts | None, int]:
    [job] = await engine.get([id_])
    if job is None:
        return None, 1
    events = await engine.events(Window(0, LATEST, job=job.id, limit=1_000))
    group, subqueue, relatives, calls = None, None, dict[bytes, Job](), 2
    if job.options.group is not None:
        [group] = await engine.groups([job.options.group])
        calls += 1
    if job.options.limit is not None:
        found = await engine.subqueues(job.queue, names=[job.options.limit.subqueue])
        subqueue, calls = next(iter(found), None), calls + 1
    if near := _near(job, group):
        relatives = {one.id: one for one in await engine.get(near) if one is not None}
        calls += 1
    return Facts(job, events, group, subqueue, relatives), calls


def _near(job: Job, group: Group | None) -> list[bytes]:
    """The ids of what comes before and after it in its chain, and of the other members of its group."""
    parent = _metadata(job).get(PARENT)
    before = [] if parent is None else [ids.parse(parent)]
    members = () if group is None else group.members[:RELATIVES]
    return list(dict.fromkeys([*before, *(one.id for one in links(job.options)), *members]))


def _metadata(job: Job) -> dict[str, str]:
    return {**(job.options.metadata or {}), **job.metadata}


async def show(visit: Visit) -> Response:
    """The page of a job."""
    return view.page(visit, "job.html", await _load(visit))


async def _load(visit: Visit) -> dict[str, Any]:
    reading = await visit.board.hub.reading()
    [want] = wants(visit)
    facts: Facts = await visit.board.hub.wanted(want)
    if facts.gone:
        raise NotFound(DEAD_END)
    engine = await visit.board.store.engine()
    # Finished jobs are one list; a walk over all jobs would pass a whole backlog before it meets a run.
    others = await engine.find(Query(kinds=frozenset({facts.job.kind}), statuses=FINISHED, limit=OTHERS))
    return live_context(visit, reading, facts) | {
        "others": _others(others.jobs, reading.census.at),
        "others_note": _others_note(others),
        "same": _same(others.jobs, facts.job),
        "payload_size": len(facts.job.payload),
        "result_size": None if facts.job.result is None else len(facts.job.result),
        "revealed": None,
        "may_reveal": visit.may("operate", facts.job.queue),
    }


def live_context(visit: Visit, reading: Reading, facts: Facts) -> dict[str, Any]:
    """What changes by itself: everything but the payload and the others of its kind."""
    reading = visit.board.hub.current(reading)
    now = reading.census.at
    job = visit.board.redact.job(facts.job)
    record = records.job(job)
    status = shared.shown_status(record, now)
    parts = life(job, facts.events, now)
    why = _why(job, reading, facts) if job.status not in {Status.RUNNING, Status.DONE} else None
    return view.common(visit, "jobs", f"{job.kind}, {status}", shared.found(visit, reading)) | {
        "j": record,
        "gone": facts.gone,
        "status": status,
        "now": now,
        "life_parts": [_part(part, now) for part in parts],
        "sums": [(LOOKS[phase], NAMES[phase], length) for phase, length in sums(parts).items()],
        "ends": _ends(record, status, now),
        "why": why,
        "besides": _besides(why),
        "gates": _gates(visit, job, why, reading) if why is not None and job.status in WAITING else [],
        "attempts": _attempts(job, facts.events, reading, visit.parameter("attempt")),
        "attempts_note": _attempts_note(job),
        "facts": _facts(visit, job, record, reading),
        "chain": _chain(visit, job, facts, now),
        "group": _group(visit, facts, now),
        "actions": {"main": [], "more": []} if facts.gone else _actions(visit, job),
        "live_url": visit.url("live", page="job", id=ids.text(job.id), attempt=visit.parameter("attempt")),
    }


def named(visit: Visit) -> bytes:
    """The id that the address names."""
    try:
        return ids.parse(visit.request.path_params["id"])
    except ValueError:
        raise NotFound(DEAD_END) from None


async def stored(visit: Visit) -> Job:
    """The record that the address names."""
    engine = await visit.board.store.engine()
    [found] = await engine.get([named(visit)])
    if found is None:
        raise NotFound(DEAD_END)
    return found


# --- chains and groups ----------------------------------------------------------------------------------------------


def _chain(visit: Visit, job: Job, facts: Facts, now: Instant) -> list[dict[str, Any]]:
    """The chain of a job from what came before it to what comes last; empty where it is alone."""
    found = []
    parent = _metadata(job).get(PARENT)
    if parent is not None:
        before = facts.relatives.get(ids.parse(parent))
        found.append(_link(visit, parent, "its record is not kept any more", before, now, "ran before it"))
    found.append(_link(visit, ids.text(job.id), job.kind, job, now, "this job"))
    for link in links(job.options):
        there = facts.relatives.get(link.id)
        found.append(_link(visit, ids.text(link.id), link.kind, there, now, "follows its success"))
    return found if len(found) > 1 else []


def _link(visit: Visit, id_: str, kind: str, there: Job | None, now: Instant, place: str) -> dict[str, Any]:
    return {
        "kind": kind if there is None else there.kind,
        "place": place,
        "status": "" if there is None else shared.shown_status(records.job(there), now),
        "url": "" if there is None or place == "this job" else visit.url(f"jobs/{id_}"),
    }


def _group(visit: Visit, facts: Facts, now: Instant) -> dict[str, Any] | None:
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
        "done": group.done,
        "total": group.total,
        "note": _group_note(group),
        "members": [
            {
                "status": (status := shared.shown_status(records.job(one), now)),
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


# --- parts ----------------------------------------------------------------------------------------------------------


def _part(part: Part, now: Instant) -> marks.Part:
    ongoing = part.until >= now
    words = {
        "waiting": f"waited {span(part.length)}",
        "running": f"attempt {part.attempt} {'runs since' if ongoing else 'ran'} {span(part.length)}",
        "died": f"attempt {part.attempt} died after {span(part.length)}",
        "between": f"{span(part.length)} after attempt {part.attempt}",
        "left_out": count(part.attempts, "attempt"),
    }
    return marks.Part(LOOKS[part.phase], part.length, words[part.phase])


def _ends(job: records.Job, status: str, now: Instant) -> str:
    if status == "running":
        started = instant(job.started_at) if job.started_at else now
        return f"now {clock(now, now)}, running for {span((now - started) // SECOND * SECOND)}"
    if status in {"ready", "scheduled", "retrying"}:
        due = instant(job.scheduled_at)
        if due > now:
            return f"now {clock(now, now)}, {'next attempt' if status == 'retrying' else 'due'} {until(due, now)}"
        return f"now {clock(now, now)}, due since {span(now - due)}"
    return f"{absolute(job.finished_at) if job.finished_at else ''} {status}"


def _why(job: Job, reading: Reading, facts: Facts) -> Explanation:
    queue = next((one for one in reading.queues if one.name == job.queue), Queue(name=job.queue))
    return explain(
        job,
        queue,
        reading.presences,
        reading.census,
        unreadable=job.metadata.get(CORRUPT),
        group=facts.group,
        subqueue=facts.subqueue,
    )


def _besides(why: Explanation | None) -> list[str]:
    """What else keeps the job from running, but for those before it in line."""
    return [] if why is None else [gate.detail for gate in why.gates if gate.reason is not Reason.BEHIND]


GATES: Final = (
    ("Due", frozenset({Reason.SCHEDULED}), "scheduled"),
    ("Queue open", frozenset({Reason.PAUSED, Reason.COOLING}), "pause"),
    ("Task known", frozenset({Reason.UNKNOWN_TASK}), "warn"),
    ("Worker", frozenset({Reason.NO_WORKER, Reason.WORKER_UNHEALTHY}), "warn"),
    ("Rate", frozenset({Reason.RATE_LIMITED}), "limits"),
    ("Limit", frozenset({Reason.KEY_LIMITED}), "limits"),
    ("Line", frozenset({Reason.BEHIND}), "gap"),
)


def _gates(visit: Visit, job: Job, why: Explanation, reading: Reading) -> list[dict[str, Any]]:
    """Every gate in the order in which a claim asks: passed, shut with its remedy, or not reached."""
    shut: dict[Reason, Gate] = {gate.reason: gate for gate in (why.first, *why.gates)}
    found: list[dict[str, Any]] = []
    blocked = False
    for name, reasons, sign in GATES:
        gate = next((shut[reason] for reason in shut if reason in reasons), None)
        line = name == "Line"
        if name == "Limit" and job.options.limit is None:
            continue
        if gate is None:
            found.append({"name": name, "look": "", "sign": "check", "text": _passed(name, job, reading), "act": None})
            continue
        look = "later" if line else "shut"
        sign = "snow" if gate.reason is Reason.COOLING else sign
        act = _remedy(visit, job, gate.reason)
        text = gate.detail if not line else _line(job, reading, blocked)
        found.append({"name": name, "look": look, "sign": sign, "text": text, "act": act})
        blocked = True
    return found


def _line(job: Job, reading: Reading, blocked: bool) -> str:
    ahead = max(reading.census.ready(job.queue) - (not blocked), 0)
    if not ahead:
        return "then it runs next" if blocked else "it runs next"
    return f"{'then ' if blocked else ''}among {count(ahead, 'other due job')}, by priority, time and id"


def _passed(name: str, job: Job, reading: Reading) -> str:
    now = reading.census.at
    if name == "Due":
        return f"since {span(max(now - job.scheduled_at, 0))}"
    if name == "Worker":
        serving = [one for one in live(reading.presences, now) if job.queue in one.queues]
        running = reading.census.by_status(job.queue)[Status.RUNNING]
        free = max(slots(job.queue, reading.presences, now) - running, 0)
        serve = f"{count(len(serving), 'worker')} {'serves' if len(serving) == 1 else 'serve'} {job.queue}"
        return f"{serve}, {count(free, 'slot')} free"
    if name == "Limit" and job.options.limit is not None:
        return f"{job.options.limit.name} has a free place"
    if name == "Rate":
        queue = next((one for one in reading.queues if one.name == job.queue), None)
        if queue is None or queue.bucket is None:
            return "none is set"
        return f"{level(queue.bucket, now):.0f} of {queue.bucket.rate.capacity:.0f} tokens"
    return "yes" if name == "Task known" else f"{job.queue} hands out jobs"


def _remedy(visit: Visit, job: Job, reason: Reason) -> tuple[str, str] | None:
    if not visit.may("operate", job.queue):
        return None
    path, queue = f"jobs/{ids.text(job.id)}", f"queues/{quote(job.queue, safe='')}"
    ways = {
        Reason.SCHEDULED: (f"{path}/requeue", "Requeue now")
        if job.status is Status.RETRYING
        else (f"{path}/run-now", "Run now"),
        Reason.PAUSED: (f"{queue}/resume", "Resume"),
        Reason.COOLING: (f"{queue}/reopen", "End cool-down"),
        Reason.BEHIND: (f"{path}/prioritize", "Move to the front"),
    }
    return ways.get(reason)


def _attempts(job: Job, events: Sequence[Event], reading: Reading, wanted: str) -> list[dict[str, Any]]:
    ends = {one.attempt: one for one in events if one.duration is not None}
    now = reading.census.at
    found: list[dict[str, Any]] = []
    if job.status is Status.RUNNING:
        place = next((one for one in reading.presences if one.worker == job.worker), None)
        where = f"on {job.worker}" if place is None else f"on {place.host} / {place.pid}"
        age = span((now - (job.started_at or now)) // SECOND * SECOND)
        found.append(
            {
                "n": job.attempts,
                "status": "running",
                "line": where,
                "trace": "",
                "took": f"{age} so far",
                "at": job.started_at,
            }
        )
    if job.status is Status.DONE:
        took = None if job.started_at is None or job.finished_at is None else job.finished_at - job.started_at
        found.append(
            {"n": job.attempts, "status": "done", "line": "", "trace": "", "took": span(took), "at": job.started_at}
        )
    last = max((one.attempt for one in job.history), default=0)
    for one in reversed(job.history):
        end = ends.get(one.attempt)
        dead = job.status in {Status.DEAD, Status.DISCARDED, Status.RETRIED} and one.attempt == last
        found.append(
            {
                "n": one.attempt,
                "status": "dead" if dead else "retrying",
                "line": error_line(one.error),
                "trace": one.error,
                "took": "–" if end is None or end.duration is None else span(end.duration),
                "at": one.at,
            }
        )
    if not job.history and job.last_error and job.status is not Status.DONE:
        status = "dead" if job.status is Status.DEAD else job.status.value
        shown = {"pending": "retrying", "running": "retrying"}.get(status, status)
        found.append(
            {
                "n": job.attempts,
                "status": shown,
                "line": error_line(job.last_error),
                "trace": job.last_error,
                "took": "–",
                "at": job.finished_at,
            }
        )
    for index, entry in enumerate(found):
        entry["open"] = str(entry["n"]) == wanted if wanted else index == 0 and bool(entry["trace"])
    return found


def _attempts_note(job: Job) -> str:
    used = f"{max(job.attempts - job.base, 0)} of {job.budget} used"
    return used + (f", {count(job.crashes, 'crash', 'crashes')}" if job.crashes else "")


def _facts(visit: Visit, job: Job, record: records.Job, reading: Reading) -> list[tuple[str, str, str]]:
    """Name, text and link of what is set; nothing for what is not."""
    place = next((one for one in reading.presences if one.worker == job.worker), None)
    whose = origin(job.payload)
    kept = ""
    if record.expires_at is not None:
        kept = f"until {absolute(record.expires_at)}"
    found = [
        ("Queue", job.queue, visit.url(f"queues/{quote(job.queue, safe='')}")),
        ("Priority", str(job.priority), ""),
        ("Tenant", job.tenant or "", visit.url("jobs", q=f"tenant:{shared.quoted(job.tenant)}") if job.tenant else ""),
        (
            "Unique key",
            job.unique.key if job.unique else "",
            visit.url("jobs", q=f"key:{shared.quoted(job.unique.key)}") if job.unique else "",
        ),
        ("Principal", whose.principal or "", ""),
        ("Correlation", whose.correlation or "", ""),
        (
            "Worker",
            ""
            if job.status is not Status.RUNNING
            else job.worker or ""
            if place is None
            else f"{place.host} / {place.pid}",
            visit.url("workers"),
        ),
        ("Isolation", record.isolation or "", ""),
        ("Enqueued", absolute(job.created_at), ""),
        ("Due", absolute(job.scheduled_at) if job.scheduled_at != job.created_at else "", ""),
        ("Started", "" if job.started_at is None else absolute(job.started_at), ""),
        ("Finished", "" if job.finished_at is None else absolute(job.finished_at), ""),
        ("Timeout", span(record.timeout) if record.timeout else "none", ""),
        ("Backoff", _backoff(record.backoff), ""),
        ("Kept", kept, ""),
        ("Copy", record.successor or "", visit.url(f"jobs/{record.successor}") if record.successor else ""),
    ]
    return [(name, text, link) for name, text, link in found if text]


def _backoff(given: Backoff | None) -> str:
    match given:
        case None:
            return ""
        case Fixed():
            return f"{seconds(given.interval)} each time"
        case Linear():
            return f"{seconds(given.initial)}, {seconds(given.increment)} more each time, up to {seconds(given.max)}"
        case Exponential():
            grows = "doubling" if given.factor == 2 else f"times {given.factor:g}"
            return f"exponential, {seconds(given.base)} {grows} up to {seconds(given.max)}"
        case _:
            return type(given).__name__.lower()


def seconds(value: Seconds) -> str:
    """A number of seconds in words."""
    return span(read_span(value, "seconds"))


def _others(jobs: Sequence[Job], now: Instant) -> list[tuple[float, str]]:
    found = []
    for job in reversed(jobs):
        if job.started_at is not None:
            end = job.finished_at if job.finished_at is not None else now
            found.append((float(max(end - job.started_at, 0)), OUTCOMES.get(job.status, "b-wait")))
    return found


def _others_note(found: Page) -> str:
    ended = [job for job in found.jobs if job.started_at is not None and job.finished_at is not None]
    if not ended:
        return f"None among the latest {count(found.scanned, 'job')}."
    lengths = [max((job.finished_at or 0) - (job.started_at or 0), 0) for job in ended]
    done = sum(job.status is Status.DONE for job in ended)
    return f"Median {span(round(median(lengths)))}; {done} of {len(ended)} completed ({share(done, len(ended))})."


def _same(jobs: Sequence[Job], job: Job) -> int:
    if job.last_error is None:
        return 0
    error = normalized_error(job.last_error)
    return sum(
        one.id != job.id and one.last_error is not None and normalized_error(one.last_error) == error for one in jobs
    )


def _actions(visit: Visit, job: Job) -> dict[str, list[tuple[str, str, str]]]:
    """Buttons by rank: path, label, and what it means."""
    if not visit.may("operate", job.queue):
        return {"main": [], "more": []}
    path, status = f"jobs/{ids.text(job.id)}", job.status
    ways = (
        (
            "main",
            Requeue,
            "requeue",
            "Requeue now" if status is Status.RETRYING else "Requeue",
            "The same job again, with a fresh budget",
        ),
        ("main", RunNow, "run-now", "Run now", "Due at once"),
        ("main", Cancel, "cancel", "Cancel", "Waiting jobs end; a running one is asked to stop"),
        ("main", Clone, "retry", "Retry as copy", "A new job; this one is kept as retried"),
        ("main", Discard, "discard", "Discard", "Off the dead list, kept"),
        ("more", Prioritize, "prioritize", "Move to the front", "Priority -100"),
        ("more", Edit, "edit", "Edit…", "Priority, time or payload"),
        ("more", Move, "move", "Move…", "To another queue"),
        ("more", Delete, "delete", "Delete…", "Gone, with its history"),
    )
    found: dict[str, list[tuple[str, str, str]]] = {"main": [], "more": []}
    for rank, change, verb, label, hint in ways:
        if status in ALLOWED[change] and not (change is RunNow and job.scheduled_at <= job.created_at):
            found[rank].append((f"{path}/{verb}", label, hint))
    if status is Status.RUNNING:
        found["more"].append((f"{path}/force-cancel", "Take the claim away…", "Another worker may go on"))
    return found


# --- edit -----------------------------------------------------------------------------------------------------------


async def edit(visit: Visit) -> Response:
    """The form that changes priority, due time or payload of a job that waits or is dead."""
    return await edit_form(visit)


async def edit_form(visit: Visit, mistake: str = "", given: Form | None = None) -> Response:
    """The form, with what was typed where it was refused."""
    reading = await visit.board.hub.reading()
    job = await stored(visit)
    if job.status not in ALLOWED[Edit]:
        raise Problem(409, "wrong_status", f"{job.kind} is {job.status.value}: only waiting and dead jobs are edited.")
    fields = Form([]) if given is None else given
    record = records.job(job)
    context = view.common(visit, "jobs", f"Edit {job.kind}", shared.found(visit, reading)) | {
        "j": record,
        "status": shared.shown_status(record, reading.census.at),
        "now": reading.census.at,
        "mistake": mistake,
        "timed": job.status in WAITING,
        "typed_priority": fields.get("priority", str(job.priority)),
        "typed_at": fields.get("at", f"{moment(job.scheduled_at):%Y-%m-%dT%H:%M:%S}"),
        "typed_payload": fields.get("payload"),
        "payload_size": len(job.payload),
        "back": visit.url(f"jobs/{record.id}"),
        "live_url": "",
    }
    return view.page(visit, "job-edit.html", context, 422 if mistake else 200)


async def save(visit: Visit, form: Form, before: Job) -> Flash:
    """Change what the form says differently; raises `InvalidInput` and changes nothing where it cannot be."""
    given: dict[str, Any] = {}
    if (text := form.get("priority").strip()) not in {"", str(before.priority)}:
        if not text.lstrip("-").isdigit():
            raise InvalidInput("priority", text, "must be a whole number")
        given["priority"] = int(text)
    shown_at = f"{moment(before.scheduled_at):%Y-%m-%dT%H:%M:%S}"
    if before.status in WAITING and (text := form.get("at", shown_at).strip()) not in {shown_at, shown_at[:-3]}:
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            raise InvalidInput("at", text, "must be a time such as 2026-11-16T14:00") from None
        given["at"] = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    if text := form.get("payload").replace("\r\n", "\n").strip():
        given["payload"] = text.encode()
    if not given:
        return Flash("Nothing was different. The job is as it was.")
    await visit.admin.jobs.edit(ids.text(before.id), **given)
    names = {"priority": "priority", "at": "due time", "payload": "payload"}
    told = f"Changed the {' and '.join(names[name] for name in given)} of {before.kind}."
    if "payload" in given:
        return Flash(told)
    former = (("priority", str(before.priority)), ("at", moment(before.scheduled_at).isoformat()))
    return Flash(told, f"jobs/{ids.text(before.id)}/edit", former)


async def move(visit: Visit) -> Response:
    """The form that moves a job to another queue."""
    reading = await visit.board.hub.reading()
    job = await stored(visit)
    if job.status not in ALLOWED[Move]:
        raise Problem(409, "wrong_status", f"{job.kind} is {job.status.value}: only waiting jobs are moved.")
    context = view.common(visit, "jobs", f"Move {job.kind}", shared.found(visit, reading)) | {
        "j": records.job(job),
        "queues": [name for name in shared.queue_names(reading) if name != job.queue],
        "back": visit.url(f"jobs/{ids.text(job.id)}"),
        "live_url": "",
    }
    return view.page(visit, "job-move.html", context)


# --- reveal ---------------------------------------------------------------------------------------------------------


async def reveal(visit: Visit) -> Response:
    """Show the payload or the result, or send it as a file; the audit log names the visitor."""
    form = await visit.board.form(visit)
    job = await stored(visit)
    part = "result" if form.get("part") == "result" else "payload"
    raw = visible(visit, (job.result if part == "result" else job.payload) or b"")
    await visit.admin.audit.write("jobs.reveal", f"job {ids.text(job.id)}")
    if form.get("as") == "file":
        name = f"{ids.text(job.id)}-{part}.json"
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        return Response(raw, media_type="application/octet-stream", headers=headers)
    context = await _load(visit)
    told = {"revealed": shown(raw), "revealed_part": part, "cut": max(len(raw) - SHOWN_BYTES, 0), "live_url": ""}
    return view.page(visit, "job.html", context | told)


def visible(visit: Visit, raw: bytes) -> bytes:
    """The bytes with secrets masked; as they are stored for the role admin."""
    return raw if visit.who.may("admin") else visit.board.redact.json(raw)


def shown(raw: bytes) -> str:
    """Bytes as people read them: indented only where that changes nothing but space, else as they are."""
    text = raw[:SHOWN_BYTES].decode(errors="replace")
    if len(raw) > SHOWN_BYTES:
        return text
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return text
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if compact.encode() == raw or json.dumps(value).encode() == raw:
        return json.dumps(value, ensure_ascii=False, indent=2)
    return text
