"""What the REST API takes and answers. Validation and the OpenAPI document are made from these types alone."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:@/-]+$")]
FilterText: TypeAlias = Annotated[str, Meta(max_length=2_000, description="a filter, such as is:dead queue:mail")]
Cursor: TypeAlias = Annotated[str, Meta(max_length=64, description="`after` of the page before")]
Uuid: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=315_000_000)]
Priority: TypeAlias = Annotated[int, Meta(ge=-1_000, le=1_000)]
Reason: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_000)]


class Strict(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """What a caller sends; a field that is not known is refused."""


# --- parameters -----------------------------------------------------------------------------------------------------


class JobsQuery(Strict):
    """Which jobs."""

    q: FilterText = ""
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    after: Cursor | None = None


class SeriesQuery(Strict):
    """Which points."""

    range: Literal["1h", "6h", "24h", "7d", "30d"] = "1h"
    queue: Name | None = None


# --- bodies ---------------------------------------------------------------------------------------------------------


class NewJob(Strict):
    """A job to enqueue. With the same `id` it is stored once, however often it is sent."""

    kind: Name
    payload: dict[str, Any] | None = None
    id: Uuid | None = None
    queue: Name | None = None
    priority: Priority | None = None
    delay: Seconds | None = None
    attempts: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    tenant: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    unique: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class NoBody(Strict):
    """Nothing needs to be said."""


class CancelBody(Strict):
    """How to cancel. `force` takes a running job away from its worker."""

    reason: Reason | None = None
    force: bool = False


class MoveBody(Strict):
    """Where to."""

    queue: Name


class PriorityBody(Strict):
    """Lower runs first."""

    priority: Priority


class RevealBody(Strict):
    """What to show; written to the audit log."""

    part: Literal["payload", "result"] = "payload"


class PauseBody(Strict):
    """Why, and for how many seconds; without an end until it is resumed."""

    reason: Reason | None = None
    seconds: Annotated[float, Meta(gt=0, le=315_000_000)] | None = None


class RateBody(Strict):
    """So many per so many seconds."""

    n: Annotated[float, Meta(ge=1, le=1_000_000)]
    per: Annotated[float, Meta(ge=1, le=86_400)] = 1.0


class TuneBody(Strict):
    """Settings of a queue; null clears one, what is left out stays."""

    workers: Annotated[int, Meta(ge=0, le=10000)] | UnsetType | None = UNSET
    rate: RateBody | UnsetType | None = UNSET
    keep_done: Seconds | UnsetType | None = UNSET
    keep_dead: Seconds | UnsetType | None = UNSET


Action: TypeAlias = Literal["requeue", "retry", "cancel", "discard", "delete", "run-now"]


class NewOperation(Strict):
    """An action on everything that matches. `count` is the number that a preview showed; a larger match is refused."""

    action: Action
    q: Annotated[str, Meta(min_length=1, max_length=2_000)]
    count: Annotated[int, Meta(ge=1, le=1_000_000_000)]


# --- answers --------------------------------------------------------------------------------------------------------


class JobSummary(Struct, kw_only=True):
    """A job in a list. `status` splits pending into ready and scheduled."""

    id: str
    kind: str
    queue: str
    status: str
    priority: int
    attempts: int
    allowed: int
    created_at: datetime
    scheduled_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    tenant: str | None
    key: str | None
    worker: str | None
    progress: float | None
    last_error: str | None


class JobList(Struct, kw_only=True):
    """A page of jobs; `after` goes on behind it, null at the end. `scanned` jobs were looked at."""

    jobs: list[JobSummary]
    after: str | None
    scanned: int


class Failed(Struct, kw_only=True):
    """A run that failed."""

    at: datetime
    attempt: int
    error: str


class JobRecord(JobSummary, kw_only=True):
    """Everything about a job but its payload and result, which are revealed by themselves."""

    principal: str | None
    correlation: str | None
    cancel_requested: bool
    expires_at: datetime | None
    successor: str | None
    group: str | None
    payload_bytes: int
    result_bytes: int | None
    history: list[Failed]
    log: list[str]
    metadata: dict[str, str]


class GateView(Struct, kw_only=True):
    """A reason why a job does not run."""

    reason: str
    detail: str
    remedy: str


class Why(Struct, kw_only=True):
    """The gates that are shut for a job; the first one decides."""

    gates: list[GateView]
    beside: list[str]


class Revealed(Struct, kw_only=True):
    """The text of a payload or result; secrets are masked unless the role is admin."""

    part: str
    text: str


class Stored(Struct, kw_only=True):
    """What became of a new job: inserted, or existing with the id of the one that is there."""

    id: str
    stored: str


class TallyView(Struct, kw_only=True):
    """What an action did, job by job, summed up."""

    changed: int
    cancel_requested: int
    missing: int
    blocked: int
    refused: dict[str, int]
    created: list[str]


class OperationRecord(Struct, kw_only=True):
    """An operation and how far it came."""

    id: str
    who: str
    action: str
    q: str
    state: str
    started_at: datetime
    seen_at: datetime
    changed: int
    cancel_requested: int
    missing: int
    blocked: int
    refused: dict[str, int]


class Operations(Struct, kw_only=True):
    """Operations, the latest first."""

    operations: list[OperationRecord]


class Preview(Struct, kw_only=True):
    """How many jobs a filter means; `complete` is false where counting stopped at 10,000."""

    count: int
    complete: bool


class RateView(Struct, kw_only=True):
    """So many per so many seconds."""

    n: float
    per: float


class QueueRecord(Struct, kw_only=True):
    """A queue at one instant; times in seconds."""

    name: str
    ready: int
    scheduled: int
    running: int
    retrying: int
    dead: int
    oldest_waits: float
    workers: int
    slots: int
    limit: int | None
    rate: RateView | None
    paused: bool
    paused_until: datetime | None
    paused_by: str | None
    paused_why: str | None
    cooling_until: datetime | None
    keep_done: float
    keep_dead: float


class Queues(Struct, kw_only=True):
    """Every queue, by name."""

    queues: list[QueueRecord]


class KindRecord(Struct, kw_only=True):
    """A kind: jobs by status, and what became of all of them ever."""

    kind: str
    jobs: dict[str, int]
    enqueued: int
    completed: int
    failed: int
    last_error: str | None


class Kinds(Struct, kw_only=True):
    """Every kind, by name."""

    kinds: list[KindRecord]


class WorkerRecord(Struct, kw_only=True):
    """A worker as it reported itself last."""

    worker: str
    host: str
    pid: int
    state: str
    queues: dict[str, int]
    running: int
    version: str
    seen_at: datetime


class Workers(Struct, kw_only=True):
    """Every worker, by id."""

    workers: list[WorkerRecord]


class ScheduleRecord(Struct, kw_only=True):
    """A schedule, its next fire and what became of the last one."""

    name: str
    kind: str
    queue: str
    cron: str
    words: str
    tz: str
    enabled: bool
    edited: bool
    next_fire: datetime | None
    last_fire: datetime | None
    last_status: str | None
    last_error: str | None


class Schedules(Struct, kw_only=True):
    """Every schedule, by name."""

    schedules: list[ScheduleRecord]


class BudgetRecord(Struct, kw_only=True):
    """A budget: its rate and what is left of it."""

    name: str
    n: float
    per: float
    left: float


class Limits(Struct, kw_only=True):
    """Every budget, by name."""

    budgets: list[BudgetRecord]


class FindingView(Struct, kw_only=True):
    """A sentence about what needs a person."""

    tone: str
    about: str
    name: str
    text: str


class OverviewRecord(Struct, kw_only=True):
    """The first page: its title, what needs a person, and jobs by status."""

    verdict: str
    findings: list[FindingView]
    counts: dict[str, int]
    at: datetime


class PointsRecord(Struct, kw_only=True):
    """Per minute: jobs enqueued, completed and dead; seconds from enqueue to done. Null where nothing ended."""

    at: list[datetime]
    enqueued: list[float | None]
    completed: list[float | None]
    failed: list[float | None]
    p50: list[float | None]
    p95: list[float | None]
    p99: list[float | None]


class Done(Struct, kw_only=True):
    """It was done."""

    done: bool = True


class JobId(Struct, kw_only=True):
    """The id of a job."""

    id: str


def unset(value: object) -> bool:
    """Was a field left out?"""
    return value is msgspec.UNSET
