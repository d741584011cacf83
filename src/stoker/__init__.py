"""Background jobs and a transactional outbox in one library, on SQLite, Postgres, Redis or memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.app import Stoker
from stoker.codec.signature import Raw
from stoker.context import Context, current
from stoker.handle import JobHandle
from stoker.hooks import FailedRun
from stoker.limits import Limit
from stoker.model.chunk import Chunk
from stoker.model.errors import (
    Duplicate,
    EngineError,
    GroupClosed,
    GroupFailed,
    InvalidInput,
    JobCanceled,
    JobFailed,
    NotFound,
    ResultUnavailable,
    StokerError,
    UnknownTask,
)
from stoker.model.events import Transition
from stoker.model.job import Draft, Status, chain
from stoker.model.outcome import Reject, Retry, Snooze, Throttle
from stoker.model.retry import Exponential, Fixed, Linear, Never
from stoker.model.throttle import Rate
from stoker.model.unique import Unique
from stoker.records import Curve, Job, Receipt, Schedule
from stoker.task import Task

if TYPE_CHECKING:
    from stoker.outbox import Inbox, Outbox
    from stoker.worker import Worker

__all__ = [
    "Stoker",
    "Worker",
    "Outbox",
    "Inbox",
    "Task",
    "Chunk",
    "JobHandle",
    "Job",
    "Draft",
    "chain",
    "Receipt",
    "Schedule",
    "current",
    "Context",
    "Transition",
    "FailedRun",
    "Unique",
    "Limit",
    "Rate",
    "Curve",
    "Exponential",
    "Linear",
    "Fixed",
    "Never",
    "Snooze",
    "Throttle",
    "Retry",
    "Reject",
    "StokerError",
    "JobFailed",
    "JobCanceled",
    "GroupFailed",
    "GroupClosed",
    "ResultUnavailable",
    "NotFound",
    "Duplicate",
    "UnknownTask",
    "InvalidInput",
    "EngineError",
    "Raw",
    "Status",
]


if not TYPE_CHECKING:  # a checker would take it for a promise that every name exists

    def __getattr__(name: str) -> Any:
        """Import on first use what not every producer needs."""
        if name == "Worker":
            from stoker.worker import Worker

            return Worker
        if name in ("Inbox", "Outbox"):
            from stoker import outbox

            return getattr(outbox, name)
        raise AttributeError(f"module 'stoker' has no attribute {name!r}")
