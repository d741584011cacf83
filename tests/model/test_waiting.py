"""Why a job does not run."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.model.control import SHOWN_WITHIN, STOPPED, Pause, Presence, Queue
from stoker.model.job import Job, Status
from stoker.model.lifecycle import UNFIT_SINCE
from stoker.model.query import Census, Count
from stoker.model.throttle import Cooldown, Rate, drained, full
from stoker.model.time import SECOND
from stoker.model.waiting import served, unserved, why_waiting

NOW = 1_000 * SECOND
HERE = Presence(worker="w", host="h", pid=1, queues={"mail": 3}, seen_at=NOW)


def job(**changes: Any) -> Job:
    fields: dict[str, Any] = {"id": bytes(16), "kind": "send", "queue": "mail", "payload": b"", "priority": 0}
    fields |= {"status": Status.PENDING, "attempts": 0, "base": 0, "budget": 3, "created_at": 0, "scheduled_at": NOW}
    return Job(**{**fields, **changes})


@pytest.mark.spec("START-05")
def test_the_reason_is_the_one_that_must_be_mended_first() -> None:
    queue = Queue(name="mail")
    cooling = Queue(name="mail", cooldown=Cooldown(NOW + SECOND, 1))
    dry = Queue(name="mail", bucket=drained(full(Rate(2), NOW), NOW))
    later = NOW + 60 * SECOND
    for found, told in [
        (why_waiting(job(status=Status.RUNNING), queue, [], NOW), "it is running"),
        (why_waiting(job(), Queue(name="mail", pause=Pause()), [], NOW), "no worker serves queue 'mail'"),
        (why_waiting(job(), Queue(name="mail", pause=Pause()), [HERE], NOW), "queue 'mail' is paused"),
        (
            why_waiting(job(), Queue(name="mail", pause=Pause(later, "deploy", "ann")), [HERE], NOW),
            "queue 'mail' is paused until 1970-01-01T00:17:40Z (deploy)",
        ),
        (why_waiting(job(), Queue(name="mail", pause=Pause(NOW)), [HERE], NOW), "behind other jobs"),
        (why_waiting(job(), dry, [HERE], NOW), "queue 'mail' keeps its rate: its next job starts in 0.5 s"),
        (why_waiting(job(), dry, [HERE], NOW + SECOND), "behind other jobs"),
        (why_waiting(job(metadata={UNFIT_SINCE: "1"}), queue, [HERE], NOW), "cannot run task 'send'"),
        (why_waiting(job(), cooling, [HERE], NOW), "queue 'mail' cools down until 1970-01-01T00:16:41"),
        (why_waiting(job(), cooling, [HERE], NOW - 5 * SECOND), "queue 'mail' cools down until"),
        (why_waiting(job(scheduled_at=later), queue, [HERE], NOW), "it is scheduled until 1970-01-01T00:17:40"),
        (
            why_waiting(job(status=Status.RETRYING, scheduled_at=later), queue, [HERE], NOW),
            "it waits for its next attempt until 1970-01-01T00:17:40",
        ),
        (why_waiting(job(), Queue(name="mail", cooldown=Cooldown(NOW, 1)), [HERE], NOW), "behind other jobs"),
        (why_waiting(job(), queue, [HERE], NOW), "it waits in queue 'mail' behind other jobs"),
    ]:
        assert told in found


@pytest.mark.spec("START-04")
def test_a_queue_with_due_jobs_and_no_worker_is_found() -> None:
    counts = tuple(Count(queue, "send", Status.PENDING, 3) for queue in ("mail", "maill", "later"))
    census = Census(at=NOW, counts=counts, scheduled={"later": 3})
    assert unserved(census, [HERE]) == {"maill": 3}
    assert unserved(census, []) == {"mail": 3, "maill": 3}
    gone = Presence(worker="w", host="h", pid=1, queues={"mail": 3}, seen_at=NOW, state=STOPPED)
    old = Presence(worker="w", host="h", pid=1, queues={"mail": 3}, seen_at=NOW - SHOWN_WITHIN - 1)
    assert not served("mail", [gone, old], NOW)
