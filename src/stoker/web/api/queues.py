"""Queues, with the limits by key in them, kinds and workers."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, convert

from stoker.admin.kinds import KindView
from stoker.admin.limits import KeyView
from stoker.admin.queues import QueueView
from stoker.admin.scale import ScaleView
from stoker.admin.workers import FormerJob, OrderView, StackView, WorkerView
from stoker.model.control import SETTINGS, Tuning
from stoker.model.errors import NotFound
from stoker.model.orders import Verb
from stoker.model.scale import LONGEST_TARGET, TARGET_WAIT
from stoker.model.throttle import Rate
from stoker.model.time import SECOND, span
from stoker.settings import MOST_SLOTS
from stoker.views import Curve, JobState
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun, place
from stoker.web.pages import shared
from stoker.web.request import RequestContext

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


class WorkerBody(t.Strict):
    """Why, for the audit log."""

    reason: t.Reason | None = None


class KeysQuery(t.Strict):
    """Which keys: those behind the name `after`."""

    after: Annotated[str, Meta(max_length=1_000)] | None = None
    limit: t.Limit = 100


class LimitBody(t.Strict):
    """How many jobs of each key may run at once, whatever jobs bring. `create` takes a limit that is not known yet."""

    n: Annotated[int, Meta(ge=1, le=1_000_000)]
    create: bool = False


class Queues(Struct, kw_only=True):
    """Every queue, by name."""

    queues: list[QueueView]


class Keys(Struct, kw_only=True):
    """What runs and waits under each limit key and tenant; `after` goes on behind them, null at the end."""

    keys: list[KeyView]
    after: str | None


class KindsQuery(t.Strict):
    """In which order: by name, or the most of something first."""

    sort: str = "kind"


class ScaleQuery(t.Strict):
    """Of which queues, with a comma between them (none: all), and with how many slots of each in a process.

    `target_wait` is how many seconds a due job may wait.
    """

    queue: Annotated[str, Meta(max_length=10_000)] = ""
    slots: Annotated[int, Meta(ge=1, le=MOST_SLOTS)] | None = None
    target_wait: Annotated[float, Meta(ge=0, le=LONGEST_TARGET / SECOND)] = TARGET_WAIT / SECOND


class Kinds(Struct, kw_only=True):
    """Every kind."""

    kinds: list[KindView]


class Workers(Struct, kw_only=True):
    """Every worker, by id."""

    workers: list[WorkerView]


class RunningState(Struct, kw_only=True):
    """A job that runs; `long`: for over five minutes without a timeout."""

    job: JobState
    long: bool


class WorkerRecord(WorkerView, frozen=True, kw_only=True):
    """A worker with what it runs, and what became of the jobs of a silent one."""

    jobs: list[RunningState]
    former: list[FormerJob]


# --- queues ---------------------------------------------------------------------------------------------------------


@api.get("/queues")
async def listed(visit: RequestContext) -> Queues:
    """List queues."""
    return Queues(queues=await visit.admin.queues.list())


@api.get("/queues/{name}")
async def read(visit: RequestContext) -> QueueView:
    """Read a queue."""
    return await visit.admin.queues.get(place(visit, "name"))


@api.get("/scale")
async def scale(visit: RequestContext, given: ScaleQuery) -> ScaleView:
    """Read how many worker processes the claimable work needs."""
    names = [name.strip() for name in given.queue.split(",") if name.strip()]
    return await visit.admin.queues.scale(*names, slots=given.slots, target_wait=given.target_wait)


@api.patch("/queues/{name}")
async def tune(visit: RequestContext, given: TuneBody) -> QueueView:
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
async def pause(visit: RequestContext, given: PauseBody) -> QueueView:
    """Pause a queue."""
    name = _reached(visit)
    await visit.admin.queues.pause(name, for_=given.seconds, reason=given.reason, create=given.create)
    return await _after(visit, name)


@api.post("/queues/{name}/resume")
async def resume(visit: RequestContext, given: t.NoBody) -> QueueView:  # noqa: ARG001 - nothing is said in it
    """Resume a queue."""
    name = await _known(visit)
    await visit.admin.queues.resume(name)
    return await _after(visit, name)


@api.post("/queues/{name}/reopen")
async def reopen(visit: RequestContext, given: t.NoBody) -> QueueView:  # noqa: ARG001 - nothing is said in it
    """End the cool-down of a queue."""
    name = await _known(visit)
    await visit.admin.queues.reopen(name)
    return await _after(visit, name)


@api.get("/queues/{name}/keys")
async def keys(visit: RequestContext, given: KeysQuery) -> Keys:
    """List the limit keys and tenants of a queue."""
    name = place(visit, "name")
    await visit.admin.queues.get(name)
    found = list(await visit.admin.limits.keys(name, after=given.after, limit=given.limit))
    return Keys(keys=found, after=found[-1].name if len(found) == given.limit else None)


@api.put("/queues/{name}/limits/{limit}")
async def set_limit(visit: RequestContext, given: LimitBody) -> t.Done:
    """Set the number of a limit by key."""
    await visit.admin.limits.set(await _known(visit), place(visit, "limit"), given.n, create=given.create)
    return t.Done()


@api.delete("/queues/{name}/limits/{limit}")
async def clear_limit(visit: RequestContext) -> t.Done:
    """Give a limit by key back to its jobs."""
    await visit.admin.limits.clear(await _known(visit), place(visit, "limit"))
    return t.Done()


def _reached(visit: RequestContext) -> str:
    name = place(visit, "name")
    shared.check_queue(visit, name)
    return name


async def _known(visit: RequestContext) -> str:
    name = _reached(visit)
    await visit.admin.queues.get(name)
    return name


async def _after(visit: RequestContext, name: str) -> QueueView:
    visit.board.hub.forget()
    return await visit.admin.queues.get(name)


class TakenBack(Struct, kw_only=True):
    """How many jobs of a worker were handed back."""

    jobs: int


# --- kinds and workers ----------------------------------------------------------------------------------------------


@api.get("/kinds")
async def kinds(visit: RequestContext, given: KindsQuery) -> Kinds:
    """List kinds, with how long runs of the last hour took."""
    return Kinds(kinds=await visit.admin.kinds.list(sort=given.sort))


@api.get("/kinds/{name}")
async def kind(visit: RequestContext) -> KindView:
    """Read a kind."""
    return await visit.admin.kinds.get(place(visit, "name"))


@api.get("/workers")
async def workers(visit: RequestContext) -> Workers:
    """List workers."""
    return Workers(workers=await visit.admin.workers.list())


@api.get("/workers/{worker}")
async def worker(visit: RequestContext) -> WorkerRecord:
    """Read a worker, with what it runs."""
    found = await visit.admin.workers.get(place(visit, "worker"))
    return convert(found, WorkerRecord, from_attributes=True)


@api.post("/workers/{worker}/take-back")
async def take_back(visit: RequestContext, given: WorkerBody) -> TakenBack:
    """Hand the jobs of a worker back now."""
    shared.needs_everything(visit)
    return TakenBack(jobs=await visit.admin.workers.take_back(place(visit, "worker"), reason=given.reason))


@api.post("/workers/{worker}/quiet", role="admin")
async def quiet(visit: RequestContext, given: WorkerBody) -> OrderView:
    """Tell a worker to claim no more jobs; running ones go on."""
    return await _ordered(visit, "quiet", given)


@api.post("/workers/{worker}/resume", role="admin")
async def resume_worker(visit: RequestContext, given: WorkerBody) -> OrderView:
    """Tell a quiet worker to claim jobs again."""
    return await _ordered(visit, "resume", given)


@api.post("/workers/{worker}/stop", role="admin")
async def stop_worker(visit: RequestContext, given: WorkerBody) -> OrderView:
    """Tell a worker to finish its running jobs and end."""
    return await _ordered(visit, "stop", given)


@api.post("/workers/{worker}/stack", role="admin")
async def ask_stack(visit: RequestContext, given: WorkerBody) -> OrderView:
    """Ask a worker where its running handlers stand."""
    return await _ordered(visit, "stack", given)


@api.get("/workers/{worker}/stack", role="admin")
async def stack(visit: RequestContext) -> StackView:
    """Read where the handlers of a worker stood when it was asked last."""
    shared.needs_everything(visit)
    name = place(visit, "worker")
    found = await visit.admin.workers.last_stack(name)
    if found is None:
        why = "was not asked where its handlers stand, has not answered yet, or did so over ten minutes ago"
        raise NotFound(f"worker {name} {why}")
    return found


async def _ordered(visit: RequestContext, order: Verb, given: WorkerBody) -> OrderView:
    shared.needs_everything(visit)
    found = await visit.admin.workers.order(place(visit, "worker"), order, reason=given.reason)
    visit.board.hub.forget()
    return found
