"""Why a job does not run: from its record, its queue, the live workers and the counts of the store.

A job passes several gates before it starts. `explain` names the first one that is shut, and all others that are shut
too. It uses only what the store knows: a reason that cannot be read is not guessed.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from stoker.model.budgets import address_in_words, read_address, tune_command, words
from stoker.model.control import STOPPED, Presence, Queue, is_silent, live, serving_of
from stoker.model.groups import GROUP, Group
from stoker.model.humanize import count, span
from stoker.model.ids import text as id_text
from stoker.model.job import ACTIVE, PARENT, Job, Status, links
from stoker.model.lifecycle import HELD_BY, HELD_FOR, UNFIT_SINCE, UNFIT_WHY
from stoker.model.names import AN_APP, meant_queue, to_serve
from stoker.model.operator_metrics import Flow
from stoker.model.query import Census
from stoker.model.run_origins import RunOrigin, ran_on
from stoker.model.schedule import OCCURRENCE, SCHEDULE
from stoker.model.steps import NEVER, Step, about, called_job, shown, waits_for
from stoker.model.subqueues import SubqueueView
from stoker.model.throttle import Bucket, until_token, until_tokens
from stoker.model.time import Instant, rfc3339

DEPLOY = "Deploy the task to the workers of this queue."
GIVE_KEY = "Give the workers of this queue the seal= that opens it; the job waits until then and uses no attempt."


class Reason(enum.StrEnum):
    """Why a job does not run, in the order in which the gates are asked."""

    UNREADABLE = "unreadable"
    FINISHED = "finished"
    RUNNING = "running"
    CANCELING = "canceling"
    HELD_BY_BUDGET = "held_by_budget"
    WAITING = "waiting"
    SCHEDULED = "scheduled"
    PAUSED = "paused"
    COOLING = "cooling"
    UNKNOWN_TASK = "unknown_task"
    NO_WORKER = "no_worker"
    WORKER_UNHEALTHY = "worker_unhealthy"
    RATE_LIMITED = "rate_limited"
    KEY_LIMITED = "key_limited"
    BEHIND = "behind"


class Gate(msgspec.Struct, frozen=True):
    """One reason: since when, until when (None: not known), in words, and what to do about it."""

    reason: Reason
    detail: str
    remedy: str = ""
    since: Instant | None = None
    until: Instant | None = None


class Line(msgspec.Struct, frozen=True):
    """How many due jobs of its queue a claim takes before a job; at least so many if they were not all counted."""

    before: int
    complete: bool = True


def comes_before(other: Job, job: Job) -> bool:
    """Does a claim take another due job of the queue first: by priority, time and id?"""
    return (other.priority, other.scheduled_at, other.id) < (job.priority, job.scheduled_at, job.id)


class Explanation(msgspec.Struct, frozen=True):
    """The first gate that is shut, and the others behind it. `beside` names its chain, group and schedule."""

    first: Gate
    gates: tuple[Gate, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[Gate, ...]:
        """Every gate that is shut, the one that decides first."""
        return (self.first, *self.gates)

    @property
    def reason(self) -> Reason:
        return self.first.reason

    @property
    def detail(self) -> str:
        return self.first.detail

    @property
    def remedy(self) -> str:
        return self.first.remedy

    @property
    def still(self) -> str:
        """What keeps a job from running that an action has just made ready; empty: it runs when its turn comes."""
        shut = next((one for one in self.all if one.reason not in _PASSING), None)
        return "" if shut is None else f"It still waits: {shut.detail}."


_PASSING = frozenset({Reason.RATE_LIMITED, Reason.BEHIND, Reason.RUNNING, Reason.FINISHED})
"""Reasons that end by themselves as soon as it is the job's turn."""


def notes(queues: Iterable[Queue], names: Collection[str], census: Census) -> list[tuple[Reason, str]]:
    """What keeps the jobs of these queues from running once an action has made them ready."""
    found = []
    for queue in queues:
        if queue.name not in names:
            continue
        if queue.pause is not None and queue.is_paused(census.at):
            until = queue.pause.until
            lasts = "it is resumed" if until is None else rfc3339(until)
            found.append((Reason.PAUSED, f"Queue {queue.name} is paused: its jobs wait until {lasts}."))
        elif queue.cooldown.until is not None and queue.cooldown.shut(census.at):
            rest, ready = span(queue.cooldown.until - census.at), count(census.ready(queue.name), "job")
            found.append((Reason.COOLING, f"Queue {queue.name} cools down for {rest} and has {ready} ready."))
    return found


def explain(
    job: Job,
    queue: Queue,
    presences: Sequence[Presence],
    census: Census,
    *,
    unreadable: str | None = None,
    group: Group | None = None,
    flow: Flow | None = None,
    subqueue: SubqueueView | None = None,
    line: Line | None = None,
    turns: int | None = None,
    buckets: Mapping[str, Bucket] | None = None,
    steps: Sequence[Step] = (),
    home: str | None = None,
    app: str = AN_APP,
    origins: Mapping[int, RunOrigin] = MappingProxyType({}),
) -> Explanation:
    """Name the gates that are shut for this job at the census' instant.

    `group` is the job's group, `flow` what went in and out of its queue lately, `subqueue` what runs under its limit,
    `line` its place in the queue, `turns` how many take their turn before it in a fair queue, `buckets` those of the
    budget and the key that `held_by` names, `steps` what a suspended one waits for, `home` the own queue of its task,
    as far as they are known. `app` is how commands name the app. `origins` say where
    runs were.
    """
    beside = (*_ran(job, origins), *_beside(job, group))
    if unreadable is not None:
        remedy = "Read it with `stoker jobs show`, then delete it."
        return Explanation(Gate(Reason.UNREADABLE, f"its record cannot be read: {unreadable}", remedy), beside=beside)
    if job.status not in ACTIVE:
        return Explanation(_finished(job), beside=beside)
    if job.status is Status.RUNNING:
        return Explanation(_running(job, presences, census.at), beside=beside)
    first, *others = _gates(job, queue, presences, census, flow, subqueue, line, turns, buckets or {}, steps, home, app)
    return Explanation(first, tuple(others), beside)


def _ran(job: Job, origins: Mapping[int, RunOrigin]) -> Iterator[str]:
    """Where the run was that ended the job, or the last one that failed, in words."""
    last = job.history[-1].origin if job.history else 0
    found = origins.get(job.origin or last)
    if found is not None and job.status is not Status.RUNNING:
        what = "its last run was" if job.origin else "its last failed run was"
        yield f"{what} {ran_on(found.host, found.pid, found.release)}"


def _beside(job: Job, group: Group | None) -> Iterator[str]:
    """What the job belongs to, in words."""
    metadata = {**(job.options.metadata or {}), **job.metadata}
    if (name := metadata.get(SCHEDULE)) is not None:
        at = metadata.get(OCCURRENCE)
        yield f"schedule {name} made it" + (" beside its timetable" if at is None else f" for {at}")
    if (parent := metadata.get(PARENT)) is not None:
        yield f"in its chain it comes after job {parent}"
    behind = [link.kind for link in links(job.options)]
    if behind:
        yield f"in its chain {', '.join(behind)} {'comes' if len(behind) == 1 else 'come'} after its success"
    if job.options.group is not None:
        member = f"it is a member of group {id_text(job.options.group)}"
        if group is None:
            yield f"{member}, which is not kept any more"
        elif group.closed_at is not None:
            yield f"{member}, which is closed: {group.done:,} of {group.total:,} done"
        else:
            yield f"{member}: {group.waiting:,} of {group.total:,} have not ended"
    if (closed := metadata.get(GROUP)) is not None:
        yield f"the end of group {closed} stored it"
    if job.successor is not None:
        yield f"job {id_text(job.successor)} is its copy"


def _finished(job: Job) -> Gate:
    ways = {
        Status.DONE: "it is done",
        Status.DEAD: "it is dead",
        Status.CANCELED: "it was canceled",
        Status.DISCARDED: "it was dead and is discarded",
        Status.RETRIED: "it was dead, and a copy of it was enqueued",
    }
    error = "" if job.last_error is None else f": {_first_line(job.last_error)}"
    can = job.status in {Status.DEAD, Status.CANCELED, Status.DISCARDED}
    remedy = f"`stoker jobs requeue {id_text(job.id)}` runs it again." if can else ""
    return Gate(Reason.FINISHED, f"{ways[job.status]}{error}", remedy, job.finished_at)


def _running(job: Job, presences: Sequence[Presence], now: Instant) -> Gate:
    place = next((one for one in presences if one.worker == job.worker), None)
    where = f"in worker {job.worker}" + ("" if place is None else f" on {place.host}, process {place.pid}")
    if job.cancel_requested:
        remedy = f"A handler that ignores the request ends with `stoker jobs cancel {id_text(job.id)} --force`."
        return Gate(Reason.CANCELING, f"it runs {where} and was asked to stop", remedy, job.cancel_requested_at)
    since = "" if job.started_at is None else f" since {rfc3339(job.started_at)}"
    stalled = place is None or is_silent(place, now)
    ends = "when its lease ends" if place is None else f"when its lease ends at {rfc3339(place.passes_on_at)}"
    if place is not None and place.passes_on_at <= now:
        ends = f"because its lease ended at {rfc3339(place.passes_on_at)}"
    silent = f", but this worker has been silent lately: another one takes the job over {ends}"
    progress = "" if job.progress is None else f", {job.progress:.0%} done"
    return Gate(Reason.RUNNING, f"it runs {where}{since}{progress}{silent if stalled else ''}", "", job.started_at)


def _gates(
    job: Job,
    queue: Queue,
    presences: Sequence[Presence],
    census: Census,
    flow: Flow | None,
    subqueue: SubqueueView | None,
    line: Line | None,
    turns: int | None,
    buckets: Mapping[str, Bucket],
    steps: Sequence[Step],
    home: str | None,
    app: str,
) -> Iterator[Gate]:
    now, name = census.at, repr(job.queue)
    unfit, waits = UNFIT_SINCE in job.metadata, False
    if unfit:  # this comes first: it is why such a job waits
        sealed = job.metadata.get(UNFIT_WHY)
        why = sealed or "it is unknown there, or has other arguments"
        detail = f"the workers of queue {name} cannot run task {job.kind!r}: {why}"
        yield Gate(Reason.UNKNOWN_TASK, detail, GIVE_KEY if sealed else DEPLOY)
    if (held := held_by(job, now)) is not None:
        yield _held(job, *held, buckets, now)
    elif waits := job.scheduled_at > now and job.suspended:
        yield _waiting(job, steps)
    elif job.scheduled_at > now:
        retrying = f"waits for attempt {job.attempts + 1} of {job.base + job.budget}"
        what = retrying if job.status is Status.RETRYING else "is scheduled"
        remedy = f"`stoker jobs run-now {id_text(job.id)}` starts it at once." if job.status is Status.PENDING else ""
        yield Gate(Reason.SCHEDULED, f"it {what} until {rfc3339(job.scheduled_at)}", remedy, until=job.scheduled_at)
    if queue.pause is not None and queue.is_paused(now):
        until = queue.pause.until
        lasts = "until it is resumed" if until is None else f"until {rfc3339(until)}"
        by = "" if queue.pause.by is None else f" by {queue.pause.by}"
        why = "" if queue.pause.reason is None else f": {queue.pause.reason}"
        detail = f"queue {name} is paused{by} {lasts}{why}"
        yield Gate(Reason.PAUSED, detail, f"`stoker queues resume {job.queue}` opens it.", until=until)
    if queue.cooldown.until is not None and queue.cooldown.shut(now):
        until = queue.cooldown.until
        detail = f"queue {name} cools down until {rfc3339(until)}, because a handler was throttled"
        yield Gate(Reason.COOLING, detail, until=until)
    serving = serving_of(job.queue, presences, now)
    if serving and not unfit and not any(job.kind in one.kinds or not one.kinds for one in serving):
        yield Gate(Reason.UNKNOWN_TASK, f"no worker of queue {name} has the task {job.kind!r}", DEPLOY)
    if not serving:
        yield _unserved(job, presences, now, home, app)
    if queue.bucket is not None and (wait := until_token(queue.bucket, now)):
        until = now + wait
        detail = f"queue {name} is at its rate; its next start is at {rfc3339(until)}"
        yield Gate(Reason.RATE_LIMITED, detail, until=until)
    if subqueue is not None and job.id not in subqueue.holders and subqueue.full:
        yield _key_limited(subqueue)
    if waits:
        return  # it is in no line
    if line is None:
        others = max(census.ready(job.queue) - 1, 0)
        order = f"with {others:,} other due jobs, which run by priority, time and id" if others else "and runs next"
    else:
        others = line.before
        least = "" if line.complete else "at least "
        others_too = turns is None and (queue.fair or job.options.limit is not None)
        mixed = "; those of other keys take turns with it" if others_too else ""
        jobs = "1 job" if others == 1 else f"{others:,} jobs"
        order = f"behind {least}{jobs}, by priority, time and id{mixed}" if others else "and runs next"
    if turns is not None:
        said = "it is next" if not turns else f"{turns:,} {'has its' if turns == 1 else 'have their'} turn before it"
        order = f"{order}; tenants take turns, and {said}"
    clear = None if flow is None or not others else flow.clear_in(others)
    takes = (
        "" if flow is None or clear is None else f"; at the rate of the last {flow.minutes} min {span(clear)} at most"
    )
    yield Gate(Reason.BEHIND, f"it waits in queue {name} {order}{takes}", since=job.scheduled_at)


MOST_NAMED = 3
"""Waits of a job that are named; the others are counted."""


def _waiting(job: Job, steps: Sequence[Step]) -> Gate:
    """A suspended job: what it waits for, and how to answer it."""
    waits = [row for row in shown(steps) if waits_for(row) is not None]
    waits.sort(key=lambda row: waits_for(row) != "signal")  # what a person can answer
    said = [_wait(row) for row in waits[:MOST_NAMED]]
    more = [f"{len(waits) - MOST_NAMED:,} more"] if len(waits) > MOST_NAMED else []
    named = " and ".join([*said, *more]) or "what its last run left open"
    asked = next((row for row in waits if waits_for(row) == "signal"), None)
    slept = next((row for row in waits if waits_for(row) == "time"), None)
    remedy = ""
    if asked is not None:
        remedy = f"`stoker jobs signal {id_text(job.id)} {asked.name} VALUE` answers it."
    elif slept is not None:
        remedy = f"`stoker jobs signal {id_text(job.id)} {slept.name}` ends the sleep."
    since = min((row.at for row in waits), default=None)
    until = None if job.scheduled_at >= NEVER else job.scheduled_at
    return Gate(Reason.WAITING, f"it waits for {named}", remedy, since, until)


def _wait(row: Step) -> str:
    told, until = about(row), "" if row.until is None else rfc3339(row.until)
    match waits_for(row):
        case "time":
            return f"{until} ({row.name})"
        case "try":
            return f"the next try of step {row.name} at {until}, which failed: {_first_line(told.error or '')}"
        case "job":
            called = called_job(row)
            return f"job {'' if called is None else id_text(called)} ({row.name})"
        case _:
            ask = "" if told.ask is None else f" ({told.ask})"
            return f"the signal {row.name}{ask}{f' until {until}' if until else ''}"


def held_by(job: Job, now: Instant) -> tuple[str, int] | None:
    """The bucket that refused a waiting job its tokens (`budgets.address`), and how many; None: no budget holds it."""
    budget = job.metadata.get(HELD_BY)
    if not budget or job.status is not Status.PENDING or job.scheduled_at <= now:
        return None
    tokens = job.metadata.get(HELD_FOR, "")
    return budget, int(tokens) if tokens.isdecimal() and len(tokens) < 20 else 1


def _held(job: Job, held: str, n: int, buckets: Mapping[str, Bucket], now: Instant) -> Gate:
    """A budget refused the job its tokens; one that cannot hold that many refuses for ever."""
    name, measure, key = read_address(held)
    refused = f"it is held by budget {address_in_words(name, measure, key)}, which refused it {words(measure, n)}"
    detail = f"{refused}; it asks again at {rfc3339(job.scheduled_at)}"
    bucket = buckets.get(measure)
    if bucket is not None and n > bucket.rate.capacity:
        detail = f"{detail}, and in vain: the budget holds at most {bucket.rate.capacity:,.12g}"
        return Gate(Reason.HELD_BY_BUDGET, detail, f"`{tune_command(name, measure, n)}` lets it run.")
    if bucket is not None:
        has = until_tokens(bucket, n, now)
        when = f"in about {span(has)}, at {rfc3339(now + has)}, if no other job takes any" if has else "now"
        detail = f"{detail}; the budget has as many {when}"
    return Gate(Reason.HELD_BY_BUDGET, detail, until=job.scheduled_at)


def _key_limited(subqueue: SubqueueView) -> Gate:
    """All slots of the job's limit are taken."""
    key = "" if subqueue.key is None else f" for key {subqueue.key!r}"
    holders = ", ".join(map(id_text, subqueue.holders))
    more = subqueue.running - len(subqueue.holders)
    rest = f" and {more:,} more" if more > 0 else ""
    detail = (
        f"limit {subqueue.limit!r} of queue {subqueue.queue!r} lets {subqueue.most:,} run at once{key}, and "
        f"{subqueue.running:,} hold a place: {holders}{rest}"
    )
    remedy = f"It starts when one of them ends; `stoker limits set {subqueue.queue} {subqueue.limit} N` allows more."
    return Gate(Reason.KEY_LIMITED, detail, remedy)


def _unserved(job: Job, presences: Sequence[Presence], now: Instant, home: str | None, app: str) -> Gate:
    """No worker claims from the queue: none was there, all are quiet or stopped, or do not report any more."""
    if quiet := [one for one in live(presences, now) if job.queue in one.queues]:
        detail = f"every worker of queue {job.queue!r} is quiet: a user told it to claim nothing for now"
        return Gate(Reason.NO_WORKER, detail, f"`stoker workers resume {quiet[0].worker}` lets it claim again.")
    former = [one for one in presences if job.queue in one.queues]
    last = max(former, key=lambda one: one.seen_at, default=None)
    if last is not None and (lost := [one for one in former if one.state != STOPPED]):
        newest = max(lost, key=lambda one: one.seen_at)
        silent = f"{newest.worker} on {newest.host} was last seen {span(now - newest.seen_at)} ago"
        detail = f"{len(lost)} of the workers of queue {job.queue!r} do not report any more: {silent}"
        remedy = "Look at their logs: they are frozen, dead, or cannot reach the store."
        return Gate(Reason.WORKER_UNHEALTHY, detail, remedy, newest.seen_at)
    before = "" if last is None else f"; {last.worker} on {last.host} did until {rfc3339(last.seen_at)}"
    start = f"`{to_serve(job.queue, app)}`"
    remedy = f"Start one: {start}."
    if (meant := meant_queue(job.queue, job.kind, home, presences, now)) is not None:
        move = f"`stoker jobs move {id_text(job.id)} --to {meant}`"
        remedy = f"If {job.queue} is a typing error, {move} puts it where it belongs; else start one: {start}."
    since = None if last is None else last.seen_at
    return Gate(Reason.NO_WORKER, f"no worker serves queue {job.queue!r}{before}", remedy, since)


def _first_line(error: str) -> str:
    return (error.strip().splitlines() or [""])[0][:200]


def served(queue: str, presences: Sequence[Presence], now: Instant) -> bool:
    """Does a worker that showed itself lately claim from this queue?"""
    return bool(serving_of(queue, presences, now))


def unserved(census: Census, queues: Sequence[Queue], presences: Sequence[Presence]) -> dict[str, int]:
    """Return the queues that are not paused, have due jobs and no worker, with the number of these jobs."""
    paused = {one.name for one in queues if one.is_paused(census.at)}
    names = sorted({count.queue for count in census.counts} - paused)
    due = {name: census.ready(name) for name in names if not served(name, presences, census.at)}
    return {name: number for name, number in due.items() if number > 0}


def limits_unserved(queues: Sequence[Queue], presences: Sequence[Presence], now: Instant) -> dict[str, int]:
    """Return the queues that are not paused, limited to some slots and have no worker, with the number of slots."""
    limited = {one.name: one.workers for one in queues if one.workers and not one.is_paused(now)}
    return {name: number for name, number in limited.items() if not served(name, presences, now)}
