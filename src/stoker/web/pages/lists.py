"""Workers: what presences say, as a table."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from markupsafe import Markup
from starlette.responses import Response

from stoker.admin.workers import SILENT, WorkerDetail
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.control import QUIET, STOPPED, Presence, is_silent, live, queues_in_words
from stoker.model.errors import InvalidArgument
from stoker.model.findings import fate
from stoker.model.humanize import count, size, span
from stoker.model.job import Job, Status
from stoker.model.operator_metrics import runs_long
from stoker.model.query import Query
from stoker.model.time import SECOND, Instant, instant
from stoker.web import view
from stoker.web.hub import Reading, Want
from stoker.web.humanize import time
from stoker.web.pages import shared
from stoker.web.request import RequestContext

SQUARES = 64
"""More slots than this are shown as a gauge."""


TONES = {"silent": "st-dead", "stopping": "st-retrying", QUIET: "st-retrying"}
SAID = {
    "stopping": "takes no more jobs and ends when these are done",
    QUIET: "takes no more jobs until it is resumed",
}
"""What the state of a worker looks like, and what it means."""


# --- workers --------------------------------------------------------------------------------------------------------


async def _running(engine: Engine) -> tuple[list[Job], int]:
    return list((await engine.operator.find(Query(statuses=frozenset({Status.RUNNING}), limit=1_000))).jobs), 1


def workers_wants(_: RequestContext) -> list[Want]:
    """What runs."""
    return [Want("running", _running)]


async def workers(visit: RequestContext) -> Response:
    """Every worker by host, with a square per slot."""
    reading = await visit.board.hub.reading()
    jobs = await visit.board.hub.wanted(workers_wants(visit)[0])
    return view.page(visit, "workers.html", workers_context(visit, reading, jobs))


def workers_context(visit: RequestContext, reading: Reading, jobs: list[Job]) -> dict[str, Any]:
    """Hosts, processes and slots."""
    now = reading.census.at
    wanted, find, sort = visit.parameter("host"), visit.parameter("find").strip().lower(), visit.parameter("sort")
    if sort not in {"", "host", "busy"}:
        raise InvalidArgument("sort", sort, "must be one of host, busy")
    every = [one for one in reading.presences if one.state != STOPPED and (not wanted or one.host == wanted)]
    shown = [one for one in every if _is_found(one, find)]
    lost = {job.worker for job in jobs}
    presences = [one for one in shown if not is_silent(one, now) or one.worker in lost]
    gone = sorted((one for one in shown if one not in presences), key=lambda one: -one.seen_at)
    held: dict[str, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: job.started_at or now):
        held.setdefault(job.worker or "", []).append(job)
    hosts: dict[str, list[dict[str, Any]]] = {}
    for one in sorted(presences, key=lambda one: (one.host, one.pid)):
        hosts.setdefault(one.host, []).append(_process(visit, one, held.get(one.worker, []), now))
    slots = sum(sum(one.queues.values()) for one in live(presences, now))
    running = sum(len(held.get(one.worker, [])) for one in presences)
    where = f"{count(len(presences), 'worker process', 'worker processes')} on {count(len(hosts), 'host')}"
    silent = [one for one in presences if is_silent(one, now)]
    return view.common(visit, "workers", "Workers", shared.found(visit, reading)) | {
        "now": now,
        "sub": f"{where}, {running:,} of {count(slots, 'slot')} busy. Each square is a slot; a full one is a job.",
        "hosts": sorted(
            (_host(name, found) for name, found in hosts.items()), key=lambda one: -one["busy"] if sort == "busy" else 0
        ),
        "find": find,
        "sort": sort or "host",
        "every": len(every),
        "host": wanted,
        "looks": {square["look"] for found in hosts.values() for process in found for square in process["squares"]},
        "silent": [_silent(one, len(held.get(one.worker, [])), now) for one in silent],
        "gone": [_gone(visit, one, now) for one in gone],
        "may": visit.may("operate") and visit.who.reaches_all,
        "live_url": visit.url("live", page="workers", host=wanted, find=find, sort=sort),
    }


def _is_found(one: Presence, text: str) -> bool:
    """Has a worker this in its host, its process, its id or the name of a queue that it serves?"""
    return any(text in name.lower() for name in (one.host, str(one.pid), one.worker, *one.queues))


def _host(name: str, processes: list[dict[str, Any]]) -> dict[str, Any]:
    versions = sorted({one["version"] for one in processes if one["version"]})
    busy, slots = sum(one["busy"] for one in processes), sum(one["slots"] for one in processes)
    version = f", Stoker {', '.join(versions)}" if versions else ""
    releases = sorted({one["release"] for one in processes if one["release"]})
    released = f", release {', '.join(releases)}" if releases else ""
    note = f"{count(len(processes), 'process', 'processes')}{version}{released}"
    return {"name": name, "note": note, "busy": busy, "slots": slots, "processes": processes}


def _named(visit: RequestContext, job: Job) -> str:
    label = visit.board.redact.text(job.options.label or "")
    return f"{job.kind}, {label}" if label else job.kind


def _process(visit: RequestContext, one: Presence, jobs: list[Job], now: Instant) -> dict[str, Any]:
    silent = is_silent(one, now)
    kinds = Counter(job.kind for job in jobs)
    squares = []
    for job in jobs:
        age = now - (job.started_at or now)
        squares.append(
            {
                "look": "gone" if silent else "long" if runs_long(job, now) else "busy",
                "title": f"{_named(visit, job)}, {span(age // SECOND * SECOND if age > SECOND else age)}",
                "url": visit.url(f"jobs/{ids.text(job.id)}"),
            }
        )
    slots = sum(one.queues.values())
    state = "silent" if silent else one.state
    seen = f"last seen {span((now - one.seen_at) // SECOND * SECOND)} ago" if silent else ""
    return {
        "pid": one.pid,
        "worker": one.worker,
        "state": "" if state == "running" else state,
        "tone": TONES.get(state, ""),
        "queues": queues_in_words(one.queues),
        "url": visit.url(_path(one)),
        "version": one.version,
        "release": one.release,
        "busy": len(jobs),
        "slots": slots,
        "squares": squares,
        "free": max(slots - len(jobs), 0),
        "many": slots > SQUARES or len(jobs) > SQUARES,
        "doing": shared.listed([f"{kind} {n}" for kind, n in kinds.most_common()]) or "nothing",
        "seen": seen or SAID.get(state, ""),
    }


def _path(one: Presence) -> str:
    return f"workers/{quote(one.worker, safe='')}"


def _gone(visit: RequestContext, one: Presence, now: Instant) -> dict[str, str]:
    """A worker that was lost in the last hour, and whose jobs have passed on."""
    ran = f"It ran {count(one.running, 'job')}." if one.running else "It ran nothing."
    text = f"was last seen {span((now - one.seen_at) // SECOND * SECOND)} ago. {ran}"
    return {"name": f"{one.host} / {one.pid}", "text": text, "url": visit.url(_path(one))}


async def worker(visit: RequestContext) -> Response:
    """One worker: what it runs, and of one that was lost what became of its jobs."""
    reading = await visit.board.hub.reading()
    now, name = reading.census.at, visit.request.path_params["worker"]
    found = await visit.admin.workers.get(name)
    may_order = visit.may("admin") and visit.who.reaches_all
    silent, passes_on = found.state == SILENT, instant(found.seen_at) + _micros(found.lease)
    done, failed = (sum(minute[i] for minute in found.hour) for i in (0, 1))
    fates = Counter(one.became for one in found.former)
    context = view.common(visit, "workers", f"{found.host} / {found.pid}", shared.found(visit, reading)) | {
        "w": found,
        "now": now,
        "tone": TONES.get(found.state, ""),
        "seen": span((now - instant(found.seen_at)) // SECOND * SECOND),
        "fate": fate(len(found.jobs), passes_on, now) if silent and found.jobs else "",
        "became": ", ".join(f"{n:,} {what}" for what, n in fates.most_common()),
        "sparks": ([float(sum(minute)) for minute in found.hour], [float(minute[1]) for minute in found.hour]),
        "hour": f"{count(done + failed, 'run')} ended in {count(len(found.hour), 'minute')}, {failed:,} of them failed",
        "facts": _facts(visit, found),
        "said": SAID.get(found.state, ""),
        "orders": _orders(found.state) if may_order else (),
        "stack": await visit.admin.workers.last_stack(name) if may_order else None,
        "may": visit.may("operate") and visit.who.reaches_all,
        "live_url": "",
    }
    return view.page(visit, "worker.html", context)


def _orders(state: str) -> list[tuple[str, str]]:
    """What this worker can be told from afar: the verb, and the words on its button."""
    if state == STOPPED:
        return []
    work = [("resume", "Resume…")] if state == QUIET else [("quiet", "Quiet…")]
    return [("stack", "Stacks…"), *([] if state == "stopping" else [*work, ("stop", "Stop…")])]


def _facts(visit: RequestContext, one: WorkerDetail) -> list[tuple[str, str | Markup, str]]:
    found: list[tuple[str, str | Markup, str]] = [
        ("Host", one.host, visit.url("workers", host=one.host)),
        ("Process", str(one.pid), ""),
        ("Stoker", one.version, ""),
        ("Release", one.release, ""),
        ("Up for", span(_micros(one.uptime)) if one.uptime else "", ""),
        ("Memory", size(one.memory) if one.memory else "", ""),
        ("Seen", time(one.seen_at), ""),
        ("Lease", span(_micros(one.lease)), ""),
        ("Slots", f"{len(one.jobs):,} of {one.slots:,} busy", ""),
        ("Kinds", f"{len(one.kinds):,}", ""),
        ("Its jobs", "list", visit.url("jobs", q=f"worker:{one.worker}")),
    ]
    return [(name, text, link) for name, text, link in found if text]


def _micros(given: timedelta) -> Instant:
    return given // timedelta(microseconds=1)


def _silent(one: Presence, jobs: int, now: Instant) -> dict[str, str]:
    text = f"was last seen {span((now - one.seen_at) // SECOND * SECOND)} ago."
    if jobs:
        text += f" {fate(jobs, one.passes_on_at, now)}"
    return {"name": f"{one.host} / {one.pid}", "text": text}
