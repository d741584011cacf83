"""What the state of queues, workers, runs and streams means; the same on every engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from stoker.model.budgets import Budget, address, tune_command, words
from stoker.model.control import live
from stoker.model.findings import Finding, Noun, Tone, findings
from stoker.model.findings import Situation as Work
from stoker.model.health.check import Check, Grade, note, ok, or_ok, warning, wrong
from stoker.model.health.facts import MOST_COUNTED, Facts
from stoker.model.humanize import count, span
from stoker.model.query import Census
from stoker.model.time import MINUTE, SECOND, Span, moment

CLOCK_NOTICED: Span = 2 * SECOND
CLOCK_WRONG: Span = MINUTE
"""Difference between the store's clock and the host's that is worth a warning, and that is wrong."""

LEAST_RUNS = 20
"""A kind with fewer runs in the window is not judged."""

OF_FINDINGS: Final[dict[Noun, str]] = {
    "worker": "workers",
    "queue": "queues",
    "kind": "kinds",
    "jobs": "deaths",
    "schedule": "schedules",
    "consumer": "consumers",
}
"""The checks that are made of findings, by what these are about: what `stoker status` says, `stoker doctor` says."""

GRADES: Final[dict[Tone, Grade]] = {"bad": Grade.WRONG, "warn": Grade.WARNING, "plain": Grade.NOTE}


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

    `work` is what findings are made from. `apart` is the store's clock minus the host's, give or take `unsure`. `runs`
    are (succeeded, failed) of each kind in the last hour. `lost` counts events that workers dropped, by worker.
    """

    work: Work
    apart: Span = 0
    unsure: Span = 0
    overdue: Sequence[Overdue] = ()
    misdated: Sequence[Misdated] = ()
    runs: Mapping[str, tuple[int, int]] = {}
    lost: Mapping[str, int] = {}
    budgets: Sequence[Budget] = ()

    @property
    def census(self) -> Census:
        """The counts that are judged."""
        return self.work.census


def judge(given: Situation) -> Iterator[Check]:
    """Every check that all engines share."""
    yield _clock(given)
    yield from or_ok(list(_misdated(given)), "dates", "no waiting job was stored under a time that has not come")
    yield from _found(given)
    yield from or_ok(list(_overdue(given)), "running jobs", "none runs longer than its limit")
    yield from or_ok(list(_storms(given)), "retry storms", f"{count(len(given.runs), 'kind')} ran in the last hour")
    yield from or_ok(list(_lost(given)), "event buffers", "no worker dropped events")
    yield from or_ok(
        list(_held(given)), "budgets", f"{count(len(given.budgets), 'budget')}; each can grant what is asked"
    )


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
            f"{one.queue} has {count(one.counter, f'{one.status} job')} by the counter, {_really(one.found)} in fact",
            "Lists, metrics and the dashboard show a wrong number; which jobs run is not decided by it.",
            "Tell Stoker's maintainers; the counter is right again when the queue was empty",
        )
        for one in facts.counters
        if one.counter != one.found and not one.counter >= one.found > MOST_COUNTED
    ]
    yield from or_ok(found, "counters", f"{count(len(facts.counters), 'counter')} compared with a count")
    if facts.idle_keys is None:
        return
    if facts.idle_keys:
        read = f"{_really(facts.idle_keys)} unique keys are held by no active job"
        meaning = "Enqueues with these keys meet a job that will never run."
        yield wrong("unique keys", read, meaning, "Requeue or delete the jobs that hold them: stoker jobs list key:…")
    else:
        yield ok("unique keys", "every one is held by an active job, or kept for a time after a success")


def _really(found: int) -> str:
    return f"more than {MOST_COUNTED:,}" if found > MOST_COUNTED else f"{found:,}"


def _longest(given: Situation) -> Span:
    return max((given.census.lag(name) for name in given.work.names), default=0)


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


def _found(given: Situation) -> Iterator[Check]:
    """Findings as checks, and a check that passed for each thing that they have nothing to say about."""
    found = findings(given.work)
    census, work = given.census, given.work
    fine = {
        "worker": f"{count(len(live(work.presences, census.at)), 'worker')} at work; none that is silent holds jobs",
        "queue": f"the oldest due job has waited {span(_longest(given))}; where jobs are due, workers are",
        "kind": "no worker meets a kind that it does not know",
        "jobs": "no job is dead that died in the last hour",
        "schedule": f"{count(len(work.schedules), 'schedule')}; none is overdue or could not fire",
        "consumer": f"{count(len(work.deliveries), 'consumer')}; none is behind, no letter or parked key waits",
    }
    for noun, name in OF_FINDINGS.items():
        if noun == "consumer" and not work.deliveries:
            continue
        about = [one for one in found if one.noun == noun]
        yield from or_ok([_as_check(name, one) for one in about], name, fine[noun])


def _as_check(name: str, one: Finding) -> Check:
    read = f"{one.name} {one.text}".strip()
    meaning = f"{one.detail.removesuffix('.')}." if one.detail else ""
    return Check(name, GRADES[one.tone], read, meaning, one.remedy)


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
            meaning = "Most work on this kind is in vain, and takes slots from others."
            yield warning("retry storms", read, meaning, f"stoker jobs list kind:{kind} is:dead,retrying")


def _lost(given: Situation) -> Iterator[Check]:
    for worker, n in sorted(given.lost.items()):
        if n:
            read = f"{count(n, 'event')} did not fit into the buffer of {worker}"
            meaning = "They are missing from the timeline and the statistics; jobs are not affected."
            yield note("event buffers", read, meaning, "Raise STOKER_EVENT_BUFFER, or flush more often")


def _held(given: Situation) -> Iterator[Check]:
    asked: Counter[str] = Counter()
    for one in live(given.work.presences, given.census.at):
        asked |= Counter(one.held)
    for budget in given.budgets:
        for measure, bucket in budget.buckets.items():
            n, most = asked[address(budget.name, measure)], bucket.rate.capacity
            if n > most:
                wish = f"jobs ask budget {budget.name} for {words(measure, n)}"
                read = f"{wish}, and it was tuned to hold at most {most:,.12g}"
                yield warning("budgets", read, "They never run.", tune_command(budget.name, measure, n))
