"""What a job went through: its life to scale, its attempts, and how others of its kind fared."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from markupsafe import Markup

from stoker import views
from stoker.model import run_origins
from stoker.model.events import Event
from stoker.model.humanize import clock, count, share, span, until
from stoker.model.job import Job, Status
from stoker.model.lifetime_bar import Part, sums
from stoker.model.query import Page
from stoker.model.same_error import error_line, fingerprint, signature_of
from stoker.model.steps import NEVER
from stoker.model.time import SECOND, Instant, instant
from stoker.web import svg
from stoker.web.hub import Reading
from stoker.web.humanize import tight, time

LOOKS: Final = {
    "waiting": "b-wait",
    "running": "b-run",
    "between": "b-retry",
    "suspended": "b-none",
    "died": "b-dead",
    "left_out": "b-none",
}
NAMES: Final = {
    "waiting": "in line",
    "running": "running",
    "between": "between attempts",
    "suspended": "waiting",
    "left_out": "left out",
}
OUTCOMES: Final = {Status.DONE: "b-done", Status.DEAD: "b-dead", Status.RUNNING: "b-run", Status.RETRYING: "b-retry"}


def part_of_life(part: Part, now: Instant) -> svg.Part:
    """A part of the life bar, with its length in words."""
    ongoing = part.until >= now
    words = {
        "waiting": f"in line for {span(part.length)}",
        "suspended": f"waiting for {span(part.length)}",
        "running": f"attempt {part.attempt} {'runs since' if ongoing else 'ran'} {span(part.length)}",
        "died": f"attempt {part.attempt} died after {span(part.length)}",
        "between": f"{span(part.length)} after attempt {part.attempt}",
        "left_out": count(part.attempts, "attempt"),
    }
    return svg.Part(LOOKS[part.phase], part.length, words[part.phase])


def legend(parts: Sequence[Part]) -> list[tuple[str, str, int]]:
    """The look, name and length of each phase; where the only run died, that of running is the colour it has."""
    ran = any(part.phase == "running" for part in parts)
    looks = LOOKS if ran else LOOKS | {"running": LOOKS["died"]}
    return [(looks[phase], NAMES[phase], length) for phase, length in sums(parts).items()]


def ends(job: views.Job, status: str, now: Instant) -> Markup:
    """The text at the right end of the lifetime bar."""
    here = Markup("now {}, {}").format
    this = time(now, clock(now, now))
    if status == "running":
        started = instant(job.started_at) if job.started_at else now
        return here(this, tight(f"running for {span((now - started) // SECOND * SECOND)}"))
    if status in {"ready", "scheduled", "waiting", "retrying"}:
        due = instant(job.scheduled_at)
        if due >= NEVER:
            return here(this, "waits for a signal or for jobs that it called")
        if due > now:
            return here(this, tight(f"{'next attempt' if status == 'retrying' else 'due'} {until(due, now)}"))
        return here(this, tight(f"due since {span(now - due)}"))
    return Markup("{} {}").format(time(job.finished_at) if job.finished_at else "", status)


def ran_on(origin: views.Origin | None) -> str:
    """Where a run was, in words; empty where it is not known."""
    return "" if origin is None else run_origins.ran_on(origin.host, origin.pid, origin.release)


def attempts(
    record: views.Job, job: Job, events: Sequence[Event], reading: Reading, wanted: str
) -> list[dict[str, Any]]:
    """Every attempt that is remembered, the latest first; the one that is wanted, else the latest error, is open.

    `record` is the job as people read it, with the origins of its runs.
    """
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
            {
                "n": job.attempts,
                "status": "done",
                "line": ran_on(record.origin),
                "trace": "",
                "took": span(took),
                "at": job.started_at,
            }
        )
    last = max((one.attempt for one in job.history), default=0)
    for one, failed in zip(reversed(job.history), reversed(record.history), strict=True):
        end = ends.get(one.attempt)
        dead = job.status in {Status.DEAD, Status.DISCARDED, Status.RETRIED} and one.attempt == last
        took = None if end is None else end.duration
        if took is None and dead and job.started_at is not None:
            took = max(one.at - job.started_at, 0)
        found.append(
            {
                "n": one.attempt,
                "status": "dead" if dead else "retrying",
                "line": error_line(one.error),
                "trace": one.error,
                "origin": failed.origin,
                "took": "–" if took is None else span(took),
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
        origin = entry.get("origin")
        entry |= {"ran_on": ran_on(origin), "worker": "" if origin is None else origin.worker}
        entry["open"] = str(entry["n"]) == wanted if wanted else index == 0 and bool(entry["trace"])
    return found


def attempts_note(job: Job) -> str:
    """How much of the budget is used."""
    used = f"{max(job.attempts - job.base, 0)} of {job.budget} used"
    return used + (f", {count(job.crashes, 'crash', 'crashes')}" if job.crashes else "")


def others(jobs: Sequence[Job], now: Instant) -> list[tuple[float, str]]:
    """The length and outcome of each run, the oldest first."""
    found = []
    for job in reversed(jobs):
        if job.started_at is not None:
            end = job.finished_at if job.finished_at is not None else now
            found.append((float(max(end - job.started_at, 0)), OUTCOMES.get(job.status, "b-wait")))
    return found


def others_note(found: Page) -> str:
    """The median length, and how many completed."""
    ended = [job for job in found.jobs if job.started_at is not None and job.finished_at is not None]
    if not ended:
        return f"None among the latest {count(found.scanned, 'job')}."
    lengths = [max((job.finished_at or 0) - (job.started_at or 0), 0) for job in ended]
    done = sum(job.status is Status.DONE for job in ended)
    return f"Median {span(round(median(lengths)))}; {done} of {len(ended)} completed ({share(done, len(ended))})."


def same_error(jobs: Sequence[Job], error: str, job: Job) -> int:
    """How many others among them are dead and have the error with this fingerprint."""
    dead = [one for one in jobs if one.status is Status.DEAD and one.id != job.id]
    return sum(fingerprint(signature_of(one)) == error for one in dead if one.last_error is not None)
