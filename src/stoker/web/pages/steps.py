"""Steps and emitted values of a job on its page; the page of jobs that wait for a person, with a form for each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Raw
from starlette.responses import Response

from stoker.model import ids
from stoker.model.answer_form import fields
from stoker.model.emitted import entries_of
from stoker.model.job import Job
from stoker.model.same_error import error_line
from stoker.model.steps import Step, StepState, about, called_job, shown, waits_for
from stoker.model.time import instant
from stoker.watching import Emitted, Progressed, told
from stoker.web import view
from stoker.web.pages import shared
from stoker.web.pages.job_facts import Facts
from stoker.web.request import RequestContext

SHOWN = 50
MOST_ROWS = 200
"""Steps that the page of a job shows: the latest."""

SHOWN_VALUES, LONGEST_SHOWN = 20, 500
"""Emitted values that the page of a job shows, and how many characters of each."""

VALUED: Final = frozenset({StepState.DONE, StepState.EARLY})
"""States of rows that hold a value of the user's."""

LOOKS: Final = {
    StepState.DONE: "done",
    StepState.FAILED: "dead",
    StepState.WAITING: "waiting",
    StepState.EARLY: "ready",
    StepState.CALLED: "running",
}
"""The status whose icon and colour stand for a step."""


def rows(visit: RequestContext, job: Job, facts: Facts) -> dict[str, Any]:
    """The steps of a job: the latest, and how many there are."""
    found = shown(facts.steps)
    may = visit.may("operate", job.queue)
    return {"all": len(found), "rows": [_row(visit, job, one, may=may) for one in found[-MOST_ROWS:]]}


def emitted(visit: RequestContext, job: Job, facts: Facts) -> dict[str, Any]:
    """The last values that a job emitted, masked, and how many there were; a role that may only read sees none."""
    found, may, rows = entries_of(facts.emitted, 0), visit.may("operate", job.queue), []
    for one in found[-SHOWN_VALUES:]:
        event = told(one, visit.board.redact, "")
        value = event.value if isinstance(event, Emitted) else event.data
        text = "" if value is None or not may else json.dumps(value, ensure_ascii=False)
        if isinstance(event, Progressed):
            text = f"{event.fraction:.0%} {event.text or ''} {text}"
        rows.append({"n": one.n, "attempt": one.attempt, "at": one.at, "text": text[:LONGEST_SHOWN]})
    return {"all": found[-1].n if found else 0, "rows": rows, "hidden": not may}


def size(found: Iterable[Step]) -> int | None:
    """The bytes of the stored values; None: there are none."""
    return sum(len(one.value or b"") for one in found if one.state in VALUED) or None


def values(found: Iterable[Step]) -> bytes:
    """The stored values by name, as JSON."""
    return msgspec.json.encode({one.name: Raw(one.value or b"null") for one in shown(found) if one.state in VALUED})


def _row(visit: RequestContext, job: Job, step: Step, *, may: bool) -> dict[str, Any]:
    told, waits, called = about(step), waits_for(step), called_job(step)
    mask = visit.board.redact.text
    return {
        "name": step.name,
        "look": LOOKS[step.state],
        "said": _said(step, waits),
        "error": mask(error_line(told.error)),
        "ask": "" if told.ask is None else mask(told.ask),
        "until": step.until,
        "at": step.at,
        "child": "" if called is None else visit.url(f"jobs/{ids.text(called)}"),
        "fields": fields(told.schema) if waits == "signal" and may else [],
        "signal": f"jobs/{ids.text(job.id)}/signal",
        "ends": waits == "time" and may,
        "fork": f"jobs/{ids.text(job.id)}/fork" if may and step.state in (StepState.DONE, StepState.FAILED) else "",
    }


def _said(step: Step, waits: str | None) -> str:
    match waits:
        case "signal":
            return "waits for a signal"
        case "time":
            return "sleeps"
        case "try":
            return "is tried again"
        case "job":
            return "waits for the job that it called"
        case _:
            return {StepState.FAILED: "failed", StepState.EARLY: "signal that came early"}.get(step.state, "")


async def show(visit: RequestContext) -> Response:
    """The signals that jobs wait for, a page of them."""
    after, text = visit.parameter("after") or None, visit.parameter("q")
    reading = await visit.board.hub.reading()
    found = await visit.admin.jobs.waits(text, limit=SHOWN, cursor=after)
    context = view.common(visit, "jobs", "Waiting for an answer", shared.found(visit, reading)) | {
        "now": reading.census.at,
        "q": text,
        "hint": found.hint,
        "rows": [
            {
                "w": one,
                "since": instant(one.since, "since"),
                "url": visit.url(f"jobs/{one.job}"),
                "queue_url": visit.url(f"queues/{quote(one.queue, safe='')}"),
                "signal": f"jobs/{one.job}/signal",
                "fields": fields(one.schema) if visit.may("operate", one.queue) else [],
            }
            for one in found.waits
        ],
        "scanned": found.scanned,
        "first": "" if after is None else visit.url("waits", q=text),
        "older": "" if found.cursor is None else visit.url("waits", q=text, after=found.cursor),
        "live_url": "",
    }
    return view.page(visit, "waits.html", context)
