"""What the state of queues, workers, runs and streams means; the same on every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from stoker.model.control import STOPPED, Budget, Presence, Queue, live
from stoker.model.explain import unserved
from stoker.model.findings import LATE_AFTER, Delivery
from stoker.model.health.check import Check, note, ok, or_ok, warning, wrong
from stoker.model.health.facts import MOST_COUNTED, Facts
from stoker.model.job import Status
from stoker.model.query import Census
from stoker.model.time import DAY, MINUTE, SECOND, Span, moment
from stoker.model.words import count, span

CLOCK_NOTICED: Span = 2 * SECOND
CLOCK_WRONG: Span = MINUTE
"""Difference between the store's clock and the host's that is worth a warning, and that is wrong."""

LEAST_RUNS = 20
"""A kind with fewer runs in the window is not judged."""

STUCK_AFTER: Span = 10 * MINUTE
"""A consumer that has not delivered its oldest message for so long does not move."""

FORGOTTEN_AFTER: Span = DAY


class Overdue(msgspec.Struct, frozen=True):
    """A job that runs longer than its limit."""

    job: str
    kind: str
    limit: Span
    ran: Span


class Misdated(msgspec.Struct, frozen=True):
    """Waiting jobs of a queue that were stored under a time that has not come yet.

    `first` is one of them, which is due in `wait`. `more`: there may be others that were not looked at.
    """

    queue: str
    n: int
    first: str
    wait: Span
    more: bool = False


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What is judged.

    `apart` is the store's clock minus the host's, give or take `unsure`. `runs` are (succeeded, failed) of each kind in
    the last hour, `flow` (came, ended) of each queue in the last minutes. `lost` counts events that workers dropped,
    by worker. `deliveries` is None where the store has no streams.
    """

    census: Census
    queues: Sequence[Queue] = ()
    presences: Sequence[Presence] = ()
    apart: Span = 0
    unsure: Span = 0
    overdue: Sequence[Overdue] = ()
    misdated: Sequence[Misdated] = ()
    runs: Mapping[str, tuple[int, int]] = {}
    flow: Mapping[str, tuple[int, int]] = {}
    lost: Mapping[str, int] = {}
    deliveries: Sequence[Delivery] | None = None
    budgets: Sequence[Budget] = ()


def judge(given: Situation) -> Iterator[Check]:
    """Every check that all engines share."""
    yield _clock(given)
    yield from or_ok(list(_misdated(given)), "dates", "no waiting job was stored under a time that has not come")
    yield from or_ok(
        list(_unserved(given)), "queues", f"{count(len(_queues(given)), 'queue')}; where jobs are due, workers are"
    )
    yield from or_ok(list(_unknown(given)), "kinds", "no worker meets a kind that it does not know")
    yield from _workers(given)
    yield from or_ok(list(_overdue(given)), "running jobs", "none runs longer than its limit")
    yield from or_ok(list(_storms(given)), "retry storms", f"{count(len(given.runs), 'kind')} ran in the last hour")
    yield from or_ok(list(_lag(given)), "lag", f"the oldest due job has waited {span(_longest(given))}")
    yield from or_ok(list(_forgotten(given)), "forgotten queues", "none is shut with jobs that wait for a day")
    yield from or_ok(list(_lost(given)), "event buffers", "no worker dropped events")
    yield from or_ok(
        list(_held(given)), "budgets", f"{count(len(given.budgets), 'budget')}; each can grant what is asked"
    )
    if given.deliveries is not None:
        yield from or_ok(list(_consumers(given.deliveries)), "consumers", count(len(given.deliveries), "consumer"))
        yield from or_ok(list(_left(given.deliveries)), "letters and parked keys", "none wait")


def judge_damage(facts: Facts) -> Iterator[Check]:
    """What is stored and cannot be read."""
    meaning = "It is set aside, and everything else goes on. A disk, a backup or another program damaged it."
    remedy = "Find out what else writes to the store; restore the data from a backup, or remove it"
    found = [wrong("damaged data", one, meaning, remedy) for one in facts.damaged]
    yield from or_ok(found, "damaged data", "none was found")


def judge_counts(facts: Facts) -> Iterator[Check]:
    """Counters and keys against what is really there."""
    found = [
        wrong(
            "counters",
            f"{one.counter:,} {one.status} jobs in {one.queue} by the counter, {_really(one.found)} by counting",
            "Lists, metrics and the dashboard show a wrong number; which jobs run is not decided by it.",
            "Tell Stoker's maintainers; the counter is right again when the queue was empty",
        )
        for one in facts.counters
        if one.counter != one.found and not one.counter >= one.found > MOST_COUNTED
    ]
    yield from or_ok(found, "counters", f"{len(facts.counters)} counters compared with a count")
    if facts.idle_keys is None:
        return
    if facts.idle_keys:
        read = f"{_really(facts.idle_keys)} unique keys are held by no active job"
        meaning = "Enqueues with these keys meet a job that will never run."
        yield wrong("unique keys", read, meaning, "Requeue or delete the jobs that hold them: stoker jobs list key:…")
    else:
        yield ok("unique keys", "every one is held by an active job")


def _really(found: int) -> str:
    return f"more than {MOST_COUNTED:,}" if found > MOST_COUNTED else f"{found:,}"


def _queues(given: Situation) -> set[str]:
    return {one.queue for one in given.census.counts} | {one.name for one in given.queues}


def _longest(given: Situation) -> Span:
    return max((given.census.lag(name) for name in _queues(given)), default=0)


def _clock(given: Situation) -> Check:
    apart = max(abs(given.apart) - given.unsure, 0)
    way = "ahead of" if given.apart > 0 else "behind"
    read = f"the store's clock is {span(apart)} {way} this host's" if apart else "the store's clock is this host's"
    meaning = "Due times, leases and limits go by the store's clock; times that this host computes (at=) are off."
    remedy = "Let both keep the time: timedatectl set-ntp true"
    if apart > CLOCK_WRONG:
        return wrong("clock", read, meaning, remedy)
    return warning("clock", read, meaning, remedy) if apart > CLOCK_NOTICED else ok("clock", read)


def _misdated(given: Situation) -> Iterator[Check]:
    since = moment(given.census.at + CLOCK_WRONG).isoformat(timespec="seconds")
    for one in given.misdated:
        many = f"{'at least ' if one.more else ''}{count(one.n, 'job')}"
        read = (
            f"{many} of {one.queue} were stored under a time that has not come; {one.first} is due in {span(one.wait)}"
        )
        meaning = "The store's clock was ahead when they came. They wait until it is as late as it was then."
        remedy = f"stoker jobs list queue:{one.queue} since:{since}, then stoker jobs run-now with each id"
        yield warning("dates", read, meaning, remedy)


def _unserved(given: Situation) -> Iterator[Check]:
    for name, n in unserved(given.census, given.presences).items():
        read = f"{count(n, 'due job')} in {name}, and no live worker serves it"
        yield wrong("queues", read, "They wait until one does.", f"stoker work app:jobs -q {name}")


def _unknown(given: Situation) -> Iterator[Check]:
    present = live(given.presences, given.census.at)
    for one in given.census.counts:
        serving = [worker for worker in present if one.queue in worker.queues and worker.kinds]
        waits = one.status in {Status.PENDING, Status.RETRYING}
        if waits and serving and not any(one.kind in worker.kinds for worker in serving):
            read = f"{count(one.n, 'waiting job')} of {one.kind} in {one.queue}, and no worker of it knows that kind"
            meaning = "They are put back again and again, and are dead after a while."
            yield wrong("kinds", read, meaning, f"Deploy the task {one.kind} to the workers of {one.queue}")


def _workers(given: Situation) -> Iterator[Check]:
    present = live(given.presences, given.census.at)
    silent = [one for one in given.presences if one.state != STOPPED and one not in present]
    for one in silent:
        read = f"{one.worker} on {one.host} was last seen {span(given.census.at - one.seen_at)} ago"
        meaning = "It died, is frozen, or cannot reach the store; other workers take its jobs when its lease ends."
        yield warning("workers", read, meaning, f"Look at process {one.pid} on {one.host}; restart it")
    if not silent:
        yield ok("workers", f"{count(len(present), 'worker')} at work")


def _overdue(given: Situation) -> Iterator[Check]:
    for one in given.overdue:
        read = f"job {one.job} ({one.kind}) runs for {span(one.ran)}; its limit is {span(one.limit)}"
        meaning = "Its handler does not stop, or its worker is gone and no other worker took the job over yet."
        yield warning("running jobs", read, meaning, f"stoker jobs cancel {one.job} --force")


def _storms(given: Situation) -> Iterator[Check]:
    for kind, (succeeded, failed) in sorted(given.runs.items()):
        runs = succeeded + failed
        if runs >= LEAST_RUNS and failed * 2 > runs:
            read = f"{failed:,} of {runs:,} runs of {kind} failed in the last hour"
            meaning = "Most work on this kind is in vain, and its retries take slots from others."
            yield warning("retry storms", read, meaning, f"stoker jobs list kind:{kind} is:retrying")


def _lag(given: Situation) -> Iterator[Check]:
    for name, (came, ended) in sorted(given.flow.items()):
        lag = given.census.lag(name)
        if lag > LATE_AFTER and came > ended:
            read = f"{name}: the oldest due job has waited {span(lag)}; {came:,} came and {ended:,} ended lately"
            yield warning("lag", read, "The queue falls further behind.", f"stoker work app:jobs -q {name}:20 -p 2")


def _forgotten(given: Situation) -> Iterator[Check]:
    now = given.census.at
    for queue in given.queues:
        lag = given.census.lag(queue.name)
        if lag <= FORGOTTEN_AFTER:
            continue
        if queue.is_paused(now):
            by = "" if queue.pause is None or queue.pause.by is None else f" by {queue.pause.by}"
            read = f"{queue.name} is paused{by}, and its oldest due job has waited {span(lag)}"
            yield warning("forgotten queues", read, "It may have been forgotten.", f"stoker queues resume {queue.name}")
        elif queue.cooldown.shut(now):
            read = f"{queue.name} cools down, and its oldest due job has waited {span(lag)}"
            meaning = "Whatever it calls has refused it for long."
            yield warning("forgotten queues", read, meaning, f"stoker queues show {queue.name}")


def _lost(given: Situation) -> Iterator[Check]:
    for worker, n in sorted(given.lost.items()):
        if n:
            read = f"{count(n, 'event')} did not fit into the buffer of {worker}"
            meaning = "They are missing from the timeline and the statistics; jobs are not affected."
            yield note("event buffers", read, meaning, "Raise STOKER_EVENT_BUFFER, or flush more often")


def _held(given: Situation) -> Iterator[Check]:
    asked: Counter[str] = Counter()
    for one in live(given.presences, given.census.at):
        asked |= Counter(one.held)
    for budget in given.budgets:
        n, most = asked[budget.name], budget.bucket.rate.capacity
        if n > most:
            read = f"jobs ask budget {budget.name} for {n:,} tokens, and it was tuned to hold at most {most:,.12g}"
            yield warning("budgets", read, "They never run.", f"stoker limits tune {budget.name} --rate {n}/TIME")


def _consumers(deliveries: Sequence[Delivery]) -> Iterator[Check]:
    for one in deliveries:
        if one.waits > STUCK_AFTER:
            read = f"{one.consumer} of {one.stream} has not delivered its oldest message for {span(one.waits)}"
            meaning = "No worker runs it, it is paused, or its handler fails again and again."
            yield wrong("consumers", read, meaning, f"stoker outbox show {one.stream}")


def _left(deliveries: Sequence[Delivery]) -> Iterator[Check]:
    for one in deliveries:
        if one.parked or one.letters:
            read = f"{one.consumer} of {one.stream}: {count(one.parked, 'parked key')}, {count(one.letters, 'letter')}"
            meaning = "Messages wait for a decision: deliver them again, or discard them."
            status = "" if one.letters else " --status parked"
            yield warning("letters and parked keys", read, meaning, f"stoker outbox letters {one.stream}{status}")
