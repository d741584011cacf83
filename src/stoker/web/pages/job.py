"""One job: its life, why it does not run, its attempts, log, payload, and others of its kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from stoker import records
from stoker.engines.base import CORRUPT
from stoker.model import ids
from stoker.model.control import Queue, live
from stoker.model.derived import error_line, normalized_error, slots
from stoker.model.errors import NotFound
from stoker.model.events import Event, Window
from stoker.model.explain import Explanation, Gate, Reason, explain
from stoker.model.job import Job, Status
from stoker.model.life import Part, life, sums
from stoker.model.origin import origin
from stoker.model.query import ALLOWED, Cancel, Clone, Delete, Discard, Prioritize, Query, Requeue, RunNow
from stoker.model.retry import Backoff
from stoker.model.throttle import level
from stoker.model.time import DAY, SECOND, Instant, instant
from stoker.model.words import absolute, clock, count, share, span, until
from stoker.web import marks, view
from stoker.web.hub import Reading
from stoker.web.pages import shared
from stoker.web.visit import Visit

OTHERS = 40
SHOWN_BYTES = 64 * 1024
LOOKS: Final = {"waiting": "b-wait", "running": "b-run", "between": "b-retry", "died": "b-dead", "left_out": "b-none"}
NAMES: Final = {"waiting": "in line", "running": "running", "between": "between attempts", "left_out": "left out"}
OUTCOMES: Final = {Status.DONE: "b-done", Status.DEAD: "b-dead", Status.RUNNING: "b-run", Status.RETRYING: "b-retry"}

DEAD_END = "No job has this id. It may have been deleted, or its retention has passed."


async def show(visit: Visit) -> Response:
    """The page of a job."""
    context = await _load(visit)
    return view.page(visit, "job.html", context)


async def _load(visit: Visit, revealed: str | None = None) -> dict[str, Any]:
    reading = await visit.board.hub.reading()
    now = reading.census.at
    engine = await visit.board.store.engine()
    job = visit.board.redact.job(await stored(visit))
    record = records.job(job)
    events = await engine.events(Window(job.created_at - DAY, now + DAY, job=job.id, limit=1_000))
    others = await engine.find(Query(kinds=frozenset({job.kind}), limit=OTHERS))
    status = shared.shown_status(record, now)
    parts = life(job, events, now)
    why = _why(job, reading) if job.status not in {Status.RUNNING, Status.DONE} else None
    return view.common(visit, "jobs", f"{job.kind}, {status}", shared.found(visit, reading)) | {
        "j": record,
        "status": status,
        "now": now,
        "life_parts": [_part(part, now) for part in parts],
        "sums": [(LOOKS[phase], NAMES[phase], length) for phase, length in sums(parts).items()],
        "ends": _ends(record, status, now),
        "why": why,
        "gates": _gates(visit, job, why, reading)
        if why is not None and job.status.value in {"pending", "retrying"}
        else [],
        "attempts": _attempts(job, events, reading, visit.parameter("attempt")),
        "attempts_note": _attempts_note(job),
        "facts": _facts(visit, job, record, reading),
        "others": [(length, look) for length, look in _others(others.jobs, now)],
        "others_note": _others_note(others.jobs),
        "same": _same(others.jobs, job),
        "actions": _actions(visit, job),
        "payload_size": len(job.payload),
        "result_size": None if job.result is None else len(job.result),
        "revealed": revealed,
        "may_reveal": visit.may("operate", job.queue),
        "live_url": "",
    }


async def stored(visit: Visit) -> Job:
    """The record that the address names."""
    text = visit.request.path_params["id"]
    try:
        id_ = ids.parse(text)
    except ValueError:
        raise NotFound(DEAD_END) from None
    engine = await visit.board.store.engine()
    [found] = await engine.get([id_])
    if found is None:
        raise NotFound(DEAD_END)
    return found


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


def _why(job: Job, reading: Reading) -> Explanation:
    queue = next((one for one in reading.queues if one.name == job.queue), Queue(name=job.queue))
    return explain(job, queue, reading.presences, reading.census, unreadable=job.metadata.get(CORRUPT))


GATES: Final = (
    ("Due", frozenset({Reason.SCHEDULED}), "scheduled"),
    ("Queue open", frozenset({Reason.PAUSED, Reason.COOLING}), "pause"),
    ("Task known", frozenset({Reason.UNKNOWN_TASK}), "warn"),
    ("Worker", frozenset({Reason.NO_WORKER, Reason.WORKER_UNHEALTHY}), "warn"),
    ("Rate", frozenset({Reason.RATE_LIMITED}), "limits"),
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
        if gate is None:
            found.append({"name": name, "look": "", "sign": "check", "text": _passed(name, job, reading), "act": None})
            continue
        look = "later" if line else "shut"
        sign = "snow" if gate.reason is Reason.COOLING else sign
        act = _remedy(visit, job, gate.reason)
        text = gate.detail if not line or not blocked else f"then {gate.detail}"
        found.append({"name": name, "look": look, "sign": sign, "text": text, "act": act})
        blocked = True
    return found


def _passed(name: str, job: Job, reading: Reading) -> str:
    now = reading.census.at
    if name == "Due":
        return f"since {span(max(now - job.scheduled_at, 0))}"
    if name == "Worker":
        serving = [one for one in live(reading.presences, now) if job.queue in one.queues]
        running = reading.census.by_status(job.queue)[Status.RUNNING]
        free = max(slots(job.queue, reading.presences, now) - running, 0)
        return f"{count(len(serving), 'worker')} serve {job.queue}, {count(free, 'slot')} free"
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
        ("Group", record.group or "", ""),
        ("Then", ", ".join(record.then), ""),
        ("Copy", record.successor or "", visit.url(f"jobs/{record.successor}") if record.successor else ""),
    ]
    return [(name, text, link) for name, text, link in found if text]


def _backoff(given: Backoff | None) -> str:
    return "" if given is None else type(given).__name__.lower()


def _others(jobs: Sequence[Job], now: Instant) -> list[tuple[float, str]]:
    found = []
    for job in reversed(jobs):
        if job.started_at is not None:
            end = job.finished_at if job.finished_at is not None else now
            found.append((float(max(end - job.started_at, 0)), OUTCOMES.get(job.status, "b-wait")))
    return found


def _others_note(jobs: Sequence[Job]) -> str:
    ended = [job for job in jobs if job.started_at is not None and job.finished_at is not None]
    if not ended:
        return "None of the latest has ended yet."
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
        ("more", Clone, "retry", "Retry as copy", "A new job; this one is kept as retried"),
        ("more", Discard, "discard", "Discard", "Off the dead list, kept"),
        ("more", Prioritize, "prioritize", "Move to the front", "Priority -100"),
        ("more", Delete, "delete", "Delete…", "Gone, with its history"),
    )
    found: dict[str, list[tuple[str, str, str]]] = {"main": [], "more": []}
    for rank, change, verb, label, hint in ways:
        if status in ALLOWED[change] and not (change is RunNow and job.scheduled_at <= job.created_at):
            found[rank].append((f"{path}/{verb}", label, hint))
    if status is Status.RUNNING:
        found["more"].append((f"{path}/force-cancel", "Take the claim away…", "Another worker or nobody goes on"))
    return found


# --- reveal ---------------------------------------------------------------------------------------------------------


async def reveal(visit: Visit) -> Response:
    """Show the payload or the result; written to the audit log under the visitor's name."""
    form = await visit.board.form(visit)
    job = await stored(visit)
    part = "result" if form.get("part") == "result" else "payload"
    raw = job.result if part == "result" else job.payload
    await visit.admin.audit.write("jobs.reveal", f"job {ids.text(job.id)}")
    context = await _load(visit, shown(visible(visit, raw or b"")))
    return view.page(visit, "job.html", context | {"revealed_part": part})


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
