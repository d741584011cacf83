"""Why a job does not run: every gate in the order in which a claim asks, with a button that opens it."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from stoker.engines.base import CORRUPT
from stoker.model import ids
from stoker.model.control import Queue, live
from stoker.model.derived import slots
from stoker.model.explain import Explanation, Gate, Reason, explain
from stoker.model.job import Job, Status
from stoker.model.throttle import level
from stoker.model.words import count, span
from stoker.web.hub import Reading
from stoker.web.pages.job_facts import Facts
from stoker.web.visit import Visit


def why(job: Job, reading: Reading, facts: Facts) -> Explanation:
    """The gates that are shut, from what the page has read."""
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


def besides(found: Explanation | None) -> list[str]:
    """What else keeps the job from running, but for those before it in line."""
    return [] if found is None else [gate.detail for gate in found.gates if gate.reason is not Reason.BEHIND]


GATES: Final = (
    ("Due", frozenset({Reason.SCHEDULED}), "scheduled"),
    ("Queue open", frozenset({Reason.PAUSED, Reason.COOLING}), "pause"),
    ("Task known", frozenset({Reason.UNKNOWN_TASK}), "warn"),
    ("Worker", frozenset({Reason.NO_WORKER, Reason.WORKER_UNHEALTHY}), "warn"),
    ("Rate", frozenset({Reason.RATE_LIMITED}), "limits"),
    ("Limit", frozenset({Reason.KEY_LIMITED}), "limits"),
    ("Line", frozenset({Reason.BEHIND}), "gap"),
)


def gates(visit: Visit, job: Job, why: Explanation, reading: Reading) -> list[dict[str, Any]]:
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
