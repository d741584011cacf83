"""Names that other job systems use, and what Stoker calls the same thing.

Read only when a name is not known, to end the error with what was probably meant.
"""

from __future__ import annotations

from typing import Final

_ATTEMPTS: Final = "attempts=, the number of runs in all: three retries are attempts=4"
_BACKOFF: Final = "backoff=, such as Fixed(30) or Exponential()"
_DELAY: Final = "task.using(delay=seconds).enqueue(...)"
_AT: Final = "task.using(at=moment).enqueue(...)"
_RATE: Final = "jobs.budget(name).spend() in the handler, or few slots for a queue of its own"

OPTIONS: Final = {
    "retries": _ATTEMPTS,
    "max_retries": _ATTEMPTS,
    "retry": _ATTEMPTS,
    "max_attempts": "attempts=",
    "max_tries": "attempts=",
    "countdown": _DELAY,
    "defer_by": _DELAY,
    "eta": _AT,
    "defer_until": _AT,
    "schedule_at": _AT,
    "time_limit": "timeout=",
    "soft_time_limit": "timeout=; current().remaining is the time left",
    "job_timeout": "timeout=",
    "rate_limit": _RATE,
    "ratelimit": _RATE,
    "retry_backoff": _BACKOFF,
    "default_retry_delay": _BACKOFF,
    "retry_delay": _BACKOFF,
    "min_backoff": _BACKOFF,
    "max_backoff": _BACKOFF,
    "autoretry_for": "retry_on=",
    "retry_for": "retry_on=",
    "throws": "give_up_on=",
    "dont_autoretry_for": "give_up_on=",
    "queue_name": "queue=",
    "flush_every": "chunk=Chunk(size, within=seconds)",
    "flush_interval": "chunk=Chunk(size, within=seconds)",
    "actor_name": "name=",
    "task_name": "name=",
    "result_ttl": "keep=",
    "keep_result": "keep=",
    "ignore_result": "keep=0, which removes the job with its success",
    "queueing_lock": "unique=",
    "task_id": "unique=",
    "job_id": "unique=",
    "id": "unique=, which keeps a second job with that key out; ids of jobs are made by Stoker",
    "link": "task.draft(...).then(...)",
    "depends_on": "draft.then(...) of the job before, or chain(...)",
    "bind": "current(), which a handler calls for its own run",
    "acks_late": "nothing: a job always counts as done only after its run",
    "broker": "the URL, Stoker's first argument",
    "backend": "nothing: results are in the same store as jobs",
    "result_backend": "nothing: results are in the same store as jobs",
    "include": "modules=",
    "imports": "modules=",
}
"""Options of an app, a task or a call."""

METHODS: Final = {
    "delay": "enqueue(...), or enqueue_sync(...) in code without a loop",
    "apply_async": "using(delay=...).enqueue(...), or enqueue_sync(...) in code without a loop",
    "apply": "a plain call, which runs the handler here",
    "send": "enqueue(...), or enqueue_sync(...) in code without a loop",
    "send_with_options": "using(...).enqueue(...)",
    "message": "draft(...)",
    "message_with_options": "using(...).draft(...)",
    "kiq": "enqueue(...)",
    "kicker": "using(...)",
    "defer": "enqueue_sync(...)",
    "defer_async": "enqueue(...)",
    "configure": "using(...)",
    "schedule": "using(delay=...).enqueue(...)",
    "perform_async": "enqueue(...)",
    "s": "draft(...)",
    "si": "draft(...)",
}
"""What is called on a task."""
