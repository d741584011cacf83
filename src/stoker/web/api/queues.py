"""Queues, with the limits by key in them, kinds and workers."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from stoker.admin.limits import KeyView
from stoker.admin.queues import QueueView
from stoker.model.control import SETTINGS, Tuning
from stoker.model.throttle import Rate
from stoker.model.time import SECOND, span
from stoker.records import Curve
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun, place
from stoker.web.pages import shared
from stoker.web.visit import Visit

api = Noun("queues")


class PauseBody(t.Strict):
    """Why, and for how many seconds; without an end until it is resumed. `create` takes a queue that is not known."""

    reason: t.Reason | None = None
    seconds: t.Lasting | None = None
    create: bool = False


class TuneBody(t.Strict):
    """Settings of a queue; null clears one, what is left out stays. `create` takes a queue that is not known."""

    workers: Annotated[int, Meta(ge=0, le=10000)] | UnsetType | None = UNSET
    fair: bool | UnsetType | None = UNSET
    rate: t.RateBody | UnsetType | None = UNSET
    keep_done: t.Seconds | UnsetType | None = UNSET
    keep_dead: t.Seconds | UnsetType | None = UNSET
    curve: t.CurveBody | UnsetType | None = UNSET
    create: bool = False


class TakeBackBody(t.Strict):
    """Why, for the audit log."""

    reason: t.Reason | None = None


class KeysQuery(t.Strict):
    """Which keys: those behind the name `after`."""

    after: Annotated[str, Meta(max_length=1_000)] | None = None
    limit: t.Limit = 100


class LimitBody(t.Strict):
    """How many jobs of each key may run at once, whatever jobs bring."""

    n: Annotated[int, Meta(ge=1, le=1_000_000)]


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
    rate: t.RateView | None
    curve: t.CurveView | None
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


class Keys(Struct, kw_only=True):
    """What runs and waits under each limit key and tenant; `after` goes on behind them, null at the end."""

    keys: list[KeyView]
    after: str | None


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


# --- queues ---------------------------------------------------------------------------------------------------------


@api.get("/queues")
async def listed(visit: Visit) -> Queues:
    """List queues."""
    reading = await visit.board.hub.reading()
    rows = sorted(shared.queue_rows(visit, reading), key=lambda row: row.name)
    return Queues(queues=[_record(one) for one in rows])


@api.get("/queues/{name}")
async def read(visit: Visit) -> QueueRecord:
    """Read a queue."""
    return _record(await visit.admin.queues.get(place(visit, "name")))


@api.patch("/queues/{name}")
async def tune(visit: Visit, given: TuneBody) -> QueueRecord:
    """Tune a queue."""
    name = _reached(visit)
    fields = {field: value for field in SETTINGS if not t.unset(value := getattr(given, field))}
    clear = frozenset(field for field, value in fields.items() if value is None)
    values: dict[str, Any] = {field: value for field, value in fields.items() if value is not None}
    if "rate" in values:
        values["rate"] = Rate(values["rate"].n, per=values["rate"].per)
    if "curve" in values:
        values["curve"] = Curve(values["curve"].base, values["curve"].max).stored()
    for field in values.keys() & {"keep_done", "keep_dead"}:
        values[field] = span(values[field], field)
    await visit.admin.queues.tune(name, Tuning(clear=clear, **values), create=given.create)
    return await _after(visit, name)


@api.post("/queues/{name}/pause")
async def pause(visit: Visit, given: PauseBody) -> QueueRecord:
    """Pause a queue."""
    name = _reached(visit)
    await visit.admin.queues.pause(name, for_=given.seconds, reason=given.reason, create=given.create)
    return await _after(visit, name)


@api.post("/queues/{name}/resume")
async def resume(visit: Visit, given: t.NoBody) -> QueueRecord:  # noqa: ARG001 - nothing is said in it
    """Resume a queue."""
    name = await _known(visit)
    await visit.admin.queues.resume(name)
    return await _after(visit, name)


@api.post("/queues/{name}/reopen")
async def reopen(visit: Visit, given: t.NoBody) -> QueueRecord:  # noqa: ARG001 - nothing is said in it
    """End the cool-down of a queue."""
    name = await _known(visit)
    await visit.admin.queues.reopen(name)
    return await _after(visit, name)


@api.get("/queues/{name}/keys")
async def keys(visit: Visit, given: KeysQuery) -> Keys:
    """List the limit keys and tenants of a queue."""
    name = place(visit, "name")
    await visit.admin.queues.get(name)
    found = list(await visit.admin.limits.keys(name, after=given.after, limit=given.limit))
    return Keys(keys=found, after=found[-1].name if len(found) == given.limit else None)


@api.put("/queues/{name}/limits/{limit}")
async def set_limit(visit: Visit, given: LimitBody) -> t.Done:
    """Set the number of a limit by key."""
    await visit.admin.limits.set(await _known(visit), place(visit, "limit"), given.n)
    return t.Done()


@api.delete("/queues/{name}/limits/{limit}")
async def clear_limit(visit: Visit) -> t.Done:
    """Give a limit by key back to its jobs."""
    await visit.admin.limits.clear(await _known(visit), place(visit, "limit"))
    return t.Done()


def _reached(visit: Visit) -> str:
    name = place(visit, "name")
    shared.check_queue(visit, name)
    return name


async def _known(visit: Visit) -> str:
    name = _reached(visit)
    await visit.admin.queues.get(name)
    return name


async def _after(visit: Visit, name: str) -> QueueRecord:
    visit.board.hub.forget()
    return _record(await visit.admin.queues.get(name))


class TakenBack(Struct, kw_only=True):
    """How many jobs of a worker were handed back."""

    jobs: int


def rate_view(rate: Rate) -> t.RateView:
    """A rate as it is answered."""
    return t.RateView(n=rate.n, per=span(rate.per, "per") / SECOND)


def _record(view: QueueView) -> QueueRecord:
    apart = {"oldest_waits", "rate", "curve", "keep_done", "keep_dead"}
    return QueueRecord(
        **{name: getattr(view, name) for name in QueueRecord.__struct_fields__ if name not in apart},
        oldest_waits=max(view.lag / timedelta(seconds=1), 0.0),
        rate=None if view.rate is None else rate_view(view.rate),
        curve=None if view.curve is None else msgspec.convert(view.curve, t.CurveView, from_attributes=True),
        keep_done=view.keep_done / timedelta(seconds=1),
        keep_dead=view.keep_dead / timedelta(seconds=1),
    )


# --- kinds and workers ----------------------------------------------------------------------------------------------


@api.get("/kinds")
async def kinds(visit: Visit) -> Kinds:
    """List kinds."""
    census = (await visit.board.hub.reading()).census
    jobs: dict[str, dict[str, int]] = {}
    for one in census.counts:
        by = jobs.setdefault(one.kind, {})
        by[one.status.value] = by.get(one.status.value, 0) + one.n
    redact = visit.board.redact
    found = []
    for kind in sorted({*jobs, *census.totals, *visit.board.jobs.tasks}):
        total = census.totals.get(kind)
        error = None if total is None or total.last_error is None else redact.text(total.last_error)
        counts = {name: 0 if total is None else getattr(total, name) for name in ("enqueued", "completed", "failed")}
        found.append(KindRecord(kind=kind, jobs=jobs.get(kind, {}), last_error=error, **counts))
    return Kinds(kinds=found)


@api.get("/workers")
async def workers(visit: Visit) -> Workers:
    """List workers."""
    return Workers(
        workers=[msgspec.convert(one, WorkerRecord, from_attributes=True) for one in await visit.admin.workers.list()]
    )


@api.post("/workers/{worker}/take-back")
async def take_back(visit: Visit, given: TakeBackBody) -> TakenBack:
    """Hand the jobs of a worker back now."""
    shared.needs_everything(visit)
    return TakenBack(jobs=await visit.admin.workers.take_back(place(visit, "worker"), reason=given.reason))
