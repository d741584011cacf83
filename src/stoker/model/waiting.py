"""Explains why a job does not run, from its record, its queue and the live workers."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.model.control import SHOWN_WITHIN, STOPPED, Presence, Queue
from stoker.model.job import Job, Status
from stoker.model.lifecycle import UNFIT_SINCE
from stoker.model.query import Census
from stoker.model.throttle import until_token
from stoker.model.time import Instant, rfc3339, seconds


def served(queue: str, presences: Sequence[Presence], now: Instant) -> bool:
    """Does a worker that showed itself lately serve this queue?"""
    return any(queue in one.queues and one.state != STOPPED and now - one.seen_at <= SHOWN_WITHIN for one in presences)


def unserved(census: Census, presences: Sequence[Presence]) -> dict[str, int]:
    """Return the queues that have due jobs and no worker, with the number of these jobs."""
    queues = sorted({count.queue for count in census.counts})
    due = {queue: census.ready(queue) for queue in queues if not served(queue, presences, census.at)}
    return {queue: number for queue, number in due.items() if number > 0}


def why_waiting(job: Job, queue: Queue, presences: Sequence[Presence], now: Instant) -> str:
    """Return the reason why a job has not ended, as far as the store knows it, as the end of a sentence."""
    if job.status is Status.RUNNING:
        return "it is running"
    if not served(job.queue, presences, now):
        return f"no worker serves queue {job.queue!r}"
    if queue.pause is not None and queue.is_paused(now):
        end = "" if queue.pause.until is None else f" until {rfc3339(queue.pause.until)}"
        why = "" if queue.pause.reason is None else f" ({queue.pause.reason})"
        return f"queue {job.queue!r} is paused{end}{why}"
    if UNFIT_SINCE in job.metadata:
        why = "it is unknown there, or has other arguments"
        return f"the workers of queue {job.queue!r} cannot run task {job.kind!r}: {why}"
    if queue.cooldown.until is not None and queue.cooldown.shut(now):
        return f"queue {job.queue!r} cools down until {rfc3339(queue.cooldown.until)}"
    if job.scheduled_at > now:
        wait = "waits for its next attempt" if job.status is Status.RETRYING else "is scheduled"
        return f"it {wait} until {rfc3339(job.scheduled_at)}"
    if queue.bucket is not None and (left := until_token(queue.bucket, now)):
        return f"queue {job.queue!r} keeps its rate: its next job starts in {seconds(left):g} s"
    return f"it waits in queue {job.queue!r} behind other jobs"
