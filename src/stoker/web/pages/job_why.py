"""Why a job does not run: every gate in the order in which a claim asks, with a button that opens it."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from stoker.engines.base import CORRUPT
from stoker.model import ids
from stoker.model.control import Queue, live
from stoker.model.explain import Explanation, Gate, Reason, explain
from stoker.model.humanize import count, span
from stoker.model.job import FIRST, Job, Status
from stoker.model.names import meant_queue
from stoker.model.operator_metrics import slots
from stoker.model.steps import waits_for
from stoker.model.throttle import level
from stoker.web.hub import Reading
from stoker.web.pages.job_facts import Facts
from stoker.web.request import RequestContext


def why(visit: RequestContext, job: Job, reading: Reading, facts: Facts) -> Explanation:
    """The gates that are shut, from what the page has read."""
    return explain(
        job,
        queue_of(job, reading),
        reading.presences,
        reading.census,
        unreadable=job.metadata.get(CORRUPT),
        group=facts.group,
        subqueue=facts.subqueue,
        buckets=facts.buckets,
        steps=facts.steps,
        home=visit.board.jobs.queue_of(job.kind),
        app=visit.board.app_path,
        origins=facts.origins,
    )


def queue_of(job: Job, reading: Reading) -> Queue:
    """The settings of its queue."""
    return next((one for one in reading.queues if one.name == job.queue), Queue(name=job.queue))


def besides(found: Explanation | None) -> list[str]:
    """What else keeps the job from running, but for those before it in line."""
    return [] if found is None else [gate.detail for gate in found.gates if gate.reason is not Reason.BEHIND]


ELSEWHERE: Final = frozenset({Reason.UNKNOWN_TASK, Reason.NO_WORKER, Reason.WORKER_UNHEALTHY})
"""Reasons that end with a change of the workers: the page says which."""

COMMAND: Final = re.compile("`(stoker work [^`]+)`")

GATES: Final = (
    ("Due", frozenset({Reason.SCHEDULED, Reason.WAITING, Reason.HELD_BY_BUDGET}), "scheduled"),
    ("Queue open", frozenset({Reason.PAUSED, Reason.COOLING}), "pause"),
    ("Task known", frozenset({Reason.UNKNOWN_TASK}), "warn"),
    ("Worker", frozenset({Reason.NO_WORKER, Reason.WORKER_UNHEALTHY}), "warn"),
    ("Rate", frozenset({Reason.RATE_LIMITED}), "limits"),
    ("Limit", frozenset({Reason.KEY_LIMITED}), "limits"),
    ("Line", frozenset({Reason.BEHIND}), "gap"),
)


class Remedy(NamedTuple):
    """A button that opens a gate: the form it sends."""

    path: str
    label: str
    fields: tuple[tuple[str, str], ...] = ()


ASKS: Final = (("asks", "yes"),)
"""The field of a remedy that reaches other jobs too: it asks first, with their number."""


def gates(visit: RequestContext, job: Job, found: Explanation, reading: Reading, facts: Facts) -> list[dict[str, Any]]:
    """Every gate in the order in which a claim asks: passed, shut with its remedy, or not reached."""
    shut: dict[Reason, Gate] = {gate.reason: gate for gate in found.all}
    rows: list[dict[str, Any]] = []
    blocked = False
    for name, reasons, sign in GATES:
        gate = next((shut[reason] for reason in shut if reason in reasons), None)
        if name == "Limit" and job.options.limit is None:
            continue
        row: dict[str, Any] = {"name": name, "look": "", "sign": "check", "act": None, "todo": "", "command": ""}
        if gate is None:
            rows.append(row | {"text": _passed(name, job, reading)})
            continue
        line = gate.reason is Reason.BEHIND
        command = COMMAND.search(gate.remedy)
        rows.append(
            row
            | {
                "look": "later" if line else "shut",
                "sign": "snow" if gate.reason is Reason.COOLING else sign,
                "text": _line(job, reading, blocked) if line else gate.detail,
                "act": _remedy(visit, job, gate.reason, reading, facts),
                "todo": gate.remedy if gate.reason in ELSEWHERE and command is None else "",
                "command": command[1] if gate.reason in ELSEWHERE and command is not None else "",
            }
        )
        blocked = True
    return rows


def _line(job: Job, reading: Reading, blocked: bool) -> str:
    is_ready = job.status is Status.PENDING and job.scheduled_at <= reading.census.at
    ahead = max(reading.census.ready(job.queue) - is_ready, 0)
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
        bucket = queue_of(job, reading).bucket
        return "none is set" if bucket is None else f"{level(bucket, now):.0f} of {bucket.rate.capacity:.0f} tokens"
    return "yes" if name == "Task known" else f"{job.queue} hands out jobs"


def _remedy(visit: RequestContext, job: Job, reason: Reason, reading: Reading, facts: Facts) -> Remedy | None:
    """What an operator can do here about a reason; None where only workers or time can."""
    if not visit.may("operate", job.queue):
        return None
    path, queue = f"jobs/{ids.text(job.id)}", f"queues/{quote(job.queue, safe='')}"
    match reason:
        case Reason.SCHEDULED | Reason.HELD_BY_BUDGET | Reason.RATE_LIMITED:
            return Remedy(f"{path}/run-now", "Run this one now")
        case Reason.WAITING:
            slept = next((row.name for row in facts.steps if waits_for(row) == "time"), None)
            return None if slept is None else Remedy(f"{path}/signal", "End the sleep", (("name", slept),))
        case Reason.BEHIND:
            return None if job.priority == FIRST else Remedy(f"{path}/run-now", "Run this one now")
        case Reason.PAUSED:
            return Remedy(f"{queue}/resume", "Resume the queue…", ASKS)
        case Reason.COOLING:
            return Remedy(f"{queue}/reopen", "End the cool-down…", ASKS)
        case Reason.KEY_LIMITED:
            return _one_more(job, facts)
        case _:
            there = _other_queue(visit, job, reading)
            return None if there is None else Remedy(f"{path}/move", f"Move to {there}", (("queue", there),))


def _one_more(job: Job, facts: Facts) -> Remedy | None:
    full = facts.subqueue
    if full is None or full.limit is None or full.most is None:
        return None
    before = (("before", str(full.most)),) if full.pinned else ()
    fields = (("limit", full.limit), ("n", str(full.most + 1)), *before, *ASKS)
    return Remedy(f"limits/{quote(job.queue, safe='')}/set", f"Let {full.most + 1:,} of each key run…", fields)


def _other_queue(visit: RequestContext, job: Job, reading: Reading) -> str | None:
    """The queue that was meant by one that no worker serves, else the shortest open one whose workers know the task."""
    now = reading.census.at
    if not any(job.queue in one.queues for one in live(reading.presences, now)):
        meant = meant_queue(job.queue, job.kind, visit.board.jobs.queue_of(job.kind), reading.presences, now)
        if meant is not None and visit.who.reaches(meant):
            return meant
    shut = {one.name for one in reading.queues if one.is_paused(now) or one.cooldown.shut(now)}
    able = {name for one in live(reading.presences, now) if job.kind in one.kinds for name in one.queues}
    reached = {name for name in able - shut - {job.queue} if visit.who.reaches(name)}
    return min(reached, key=lambda name: (reading.census.ready(name), name), default=None)
