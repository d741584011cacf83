"""What needs a person: sentences about trouble, made from what the store knows, worst first, one for each cause.

`status`, `top`, `doctor`, the metrics, the overview's title, the page of health and the badges of the dashboard are
this list. A finding is bad (something stands still or dies), warn (it will) or plain (worth knowing, not counted).
Counting what is often normal would make people blind. A finding ends with its cause: what was taken over, requeued or
discarded is history.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Final, Literal, TypeAlias

import msgspec

from stoker.model.control import QUIET, Presence, Queue, is_silent, live
from stoker.model.humanize import clock, count, in_words, span
from stoker.model.job import Status
from stoker.model.names import AN_APP, meant_queue, to_serve
from stoker.model.query import Census
from stoker.model.schedule import Action, Schedule, is_unreadable
from stoker.model.throttle import until_token
from stoker.model.time import DAY, MINUTE, SECOND, Instant, Span, moment

Tone: TypeAlias = Literal["bad", "warn", "plain"]
Noun: TypeAlias = Literal["worker", "queue", "kind", "jobs", "schedule", "consumer"]

ALONE_AFTER: Span = 60 * SECOND
"""How long due jobs may be without a worker, as while one is replaced, before that is trouble."""

LATE_AFTER: Span = 60 * SECOND
TIMES_USUAL = 5
"""The oldest due job of an open queue waits too long above both: this span, and so many times the p95 of a day."""

OVERDUE_AFTER: Span = MINUTE
"""A schedule is overdue when it has not fired for longer than this and than its grace."""

FORGOTTEN_AFTER: Span = DAY
"""A pause with a due job that has waited for longer may have been forgotten."""

DELIVERED_WITHIN: Span = 30 * SECOND
STUCK_AFTER: Span = 10 * MINUTE
"""A consumer whose oldest message has waited longer is behind, and does not move at all."""

STUCK = "No worker runs it, or its handler fails again and again."
UNDECIDED = "Messages wait for a decision: deliver them again, or discard them."

LEAST_DEATHS = 10
TIMES_MEAN = 3
"""Deaths of an hour are many above both: this number, and so many times the hourly mean of the last day."""

LATELY_DEAD = "is:dead finished:1h"
"""The jobs that are meant by those that died in the last hour."""

MOST_NAMED = 3
"""The most workers that one sentence names."""


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person knows of a finding, and says why it may stay as it is for a while.

    `finding` is its id; `tone` and `figure` are those that it had then.
    """

    finding: str
    by: str
    reason: str
    at: Instant
    until: Instant
    tone: Tone
    figure: int = 0

    def holds(self, one: Finding, now: Instant) -> bool:
        """Does it still cover the finding? Not after its time, nor when the tone is worse or the number has doubled."""
        worse = WORST.index(one.tone) < WORST.index(self.tone)
        doubled = bool(self.figure) and one.figure >= 2 * self.figure
        return now < self.until and not worse and not doubled


class Acknowledged(msgspec.Struct, frozen=True):
    """Who knows of a finding, until when and why."""

    by: str
    until: datetime
    reason: str

    def __str__(self) -> str:
        return f"Acknowledged by {self.by or 'nobody by name'} until {self.until:%H:%M} UTC: {self.reason}"


LONGEST_ACKNOWLEDGED: Span = DAY
"""The longest time for which one acknowledgement counts."""

LONGEST_REASON = 500

WORST: Final[tuple[Tone, ...]] = ("bad", "warn", "plain")
"""Tones, the worst first."""


class Finding(msgspec.Struct, frozen=True):
    """One sentence: `name` is what it is about, `text` goes on from there, `detail` is a second sentence.

    `noun` says of what kind `name` is, so that a page can link to it. `remedy` is the command that mends it, or what to
    do; every finding that counts has one. `filter` means the jobs behind it. `id` is its rule and its subject, without
    numbers: the same while the cause lasts. `figure` is the number that tells how bad it is, 0 where none does. One
    that was `acknowledged` is plain: it is history.
    """

    tone: Tone
    noun: Noun
    name: str
    text: str
    detail: str = ""
    remedy: str = ""
    filter: str = ""
    id: str = ""
    figure: int = 0
    acknowledged: Acknowledged | None = None

    def __str__(self) -> str:
        sentence = f"{self.name} {self.text}".strip()
        mend = f"Run `{self.remedy}`" if self.remedy.startswith("stoker ") else self.remedy
        mend = mend if self.acknowledged is None else str(self.acknowledged)
        return " ".join(f"{part.removesuffix('.')}." for part in (sentence, self.detail, mend) if part)


class Deaths(msgspec.Struct, frozen=True):
    """Jobs that are dead and died in the last hour, at least so many if they were not all counted (`complete`).

    `times` is how often any job died in that hour: one that was requeued and died again did so twice. `day` is how
    often in the last day. `same` of the jobs share the commonest error, and `kind` is theirs. `about`: the jobs were
    not counted one by one, but their deaths were; those that were requeued since are among them.
    """

    jobs: int
    times: int = 0
    day: int = 0
    complete: bool = True
    same: int = 0
    error: str = ""
    kind: str = ""
    about: bool = False

    @property
    def hedge(self) -> str:
        """What stands before the number, if it is not exact."""
        return "" if self.complete else "about " if self.about else "more than "

    @property
    def many(self) -> bool:
        """Did unusually many die?"""
        return self.jobs > max(LEAST_DEATHS, TIMES_MEAN * self.day / 24)

    @property
    def figure(self) -> str:
        """How many jobs; if some died twice or are not dead any more, also how many deaths there were."""
        if not self.jobs:
            return "none in the last hour"
        jobs = f"{self.hedge}{self.jobs:,} in the last hour"
        return f"{jobs}, of {self.times:,} deaths" if self.again else jobs

    @property
    def again(self) -> bool:
        """Were there more deaths than jobs that are dead of them?"""
        return self.complete and self.times > self.jobs


class Delivery(msgspec.Struct, frozen=True):
    """A consumer of a stream: how long its oldest message waits, its parked keys, its letters, and how many wait."""

    stream: str
    consumer: str
    waits: Span = 0
    parked: int = 0
    letters: int = 0
    waiting: int = 0


class Situation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What findings are made from; what is left out is not judged.

    `held` is how many jobs silent workers hold, by worker; None: as many as they reported last. `usual` is the p95 of
    the waits of a day, by queue. `full` names the limit that holds the oldest due job of a queue. `retries` are the
    retrying jobs that are due, at least so many, of `unserved_retries`. `homes` is the own queue of each kind that the
    app knows; `app` is how commands name it.
    """

    census: Census
    queues: Sequence[Queue] = ()
    presences: Sequence[Presence] = ()
    deaths: Deaths | None = None
    schedules: Sequence[Schedule] = ()
    deliveries: Sequence[Delivery] = ()
    held: Mapping[str, int] | None = None
    usual: Mapping[str, Span] = {}
    full: Mapping[str, str] = {}
    retries: Mapping[str, int] = {}
    homes: Mapping[str, str] = {}
    app: str = AN_APP
    late_after: Span = LATE_AFTER
    acknowledged: Sequence[Acknowledgement] = ()

    @property
    def now(self) -> Instant:
        """The instant that is judged."""
        return self.census.at

    @cached_property
    def names(self) -> list[str]:
        """The queues that have jobs."""
        return sorted({one.queue for one in self.census.counts})

    def queue(self, name: str) -> Queue:
        """The settings of a queue."""
        return self._settings.get(name) or Queue(name=name)

    def serving(self, name: str) -> list[Presence]:
        """The live workers of a queue."""
        return self._served.get(name, [])

    @cached_property
    def unserved_retries(self) -> list[str]:
        """The queues with retrying jobs that no live worker serves and that are not paused."""
        held = {one.queue for one in self.census.counts if one.status is Status.RETRYING and one.n}
        return sorted(name for name in held if not self.serving(name) and not self.queue(name).is_paused(self.now))

    def due(self, name: str) -> int:
        """How many jobs of a queue wait for a worker now; retries count where none serves it."""
        return self.census.ready(name) + self.retries.get(name, 0)

    @cached_property
    def _settings(self) -> dict[str, Queue]:
        return {one.name: one for one in self.queues}

    @cached_property
    def _served(self) -> dict[str, list[Presence]]:
        found: defaultdict[str, list[Presence]] = defaultdict(list)
        for one in live(self.presences, self.now):
            for name in one.queues if one.state != QUIET else ():
                found[name].append(one)
        return found


def findings(given: Situation) -> list[Finding]:
    """Everything that needs attention, in the order in which a person should look."""
    alone = standstill(given)
    found = [
        *_workers(given, alone),
        *_deaths(given.deaths),
        *_schedules(given, alone is None),
        *_late(given),
        *_deliveries(given.deliveries, alone is None),
        *_versions(given),
        *_paused(given),
    ]
    known = {one.finding: one for one in given.acknowledged}
    return [_acknowledged(one, known.get(one.id), given.now) for one in found]


def _acknowledged(one: Finding, known: Acknowledgement | None, now: Instant) -> Finding:
    """A finding of which a person knows is history, as long as it has not become worse."""
    if known is None or not known.holds(one, now):
        return one
    told = Acknowledged(known.by, moment(known.until), known.reason)
    return msgspec.structs.replace(one, tone="plain", acknowledged=told)


def verdict(found: Sequence[Finding]) -> str:
    """The title over all of it."""
    n = sum(one.tone != "plain" for one in found)
    if not n:
        return "Everything keeps up"
    return "One thing needs you" if n == 1 else f"{in_words(n).capitalize()} things need you"


# --- workers --------------------------------------------------------------------------------------------------------


class Standstill(msgspec.Struct, frozen=True):
    """No worker lives, and something is due. `seen` is when one showed itself last; None: none is known."""

    seen: Instant | None
    jobs: int
    schedules: int
    consumers: int
    held: int

    def lasts(self, now: Instant) -> Span | None:
        """For how long; None: for as long as the store remembers."""
        return None if self.seen is None else now - self.seen

    def finding(self, now: Instant, app: str) -> Finding:
        """One sentence for all that waits for a worker of the app."""
        lasts = self.lasts(now)
        text = "No worker is at work" if lasts is None else f"No worker has been at work for {span(lasts)}"
        named = {"due job": self.jobs, "due schedule": self.schedules, "consumer": self.consumers}
        waits = [count(n, noun) for noun, n in named.items() if n]
        waits += [f"{count(self.held, 'job')} of silent workers"] if self.held else []
        one = self.held + sum(named.values()) == 1
        detail = f"{_listed(waits)} {'waits' if one else 'wait'} for one."
        bad = lasts is None or lasts > ALONE_AFTER
        due = self.held + sum(named.values())
        tone: Tone = "bad" if bad else "plain"
        return Finding(tone, "worker", "", text, detail, f"stoker work {app}", id="no worker", figure=due)


def standstill(given: Situation) -> Standstill | None:
    """What is due while no worker lives; None: one does, or nothing is."""
    now = given.now
    if live(given.presences, now):
        return None
    jobs = sum(given.due(name) for name in given.names if not given.queue(name).is_paused(now))
    schedules = sum(one.is_due(now) and not is_unreadable(one) for one in given.schedules)
    consumers = sum(one.waits > DELIVERED_WITHIN for one in given.deliveries)
    held = sum(held_by_silent(given).values())
    if not (jobs or schedules or consumers or held):
        return None
    seen = max((one.seen_at for one in given.presences), default=None)
    return Standstill(seen, jobs, schedules, consumers, held)


def _workers(given: Situation, alone: Standstill | None) -> Iterator[Finding]:
    if alone is None:
        yield from _silent(given)
        yield from _unserved(given)
        return
    found = alone.finding(given.now, given.app)
    if found.tone == "plain":
        yield from _silent(given)
    yield found


def held_by_silent(given: Situation) -> dict[str, int]:
    """How many jobs each silent worker holds, without workers whose jobs were taken over."""
    quiet = [one for one in given.presences if is_silent(one, given.now)]
    found = {one.worker: one.running if given.held is None else given.held.get(one.worker, 0) for one in quiet}
    return {worker: n for worker, n in found.items() if n}


def _silent(given: Situation) -> Iterator[Finding]:
    held, now = held_by_silent(given), given.now
    lost = sorted((one for one in given.presences if one.worker in held), key=lambda one: (one.seen_at, one.worker))
    if not lost:
        return
    places = [f"{one.host} / {one.pid}" for one in lost]
    apart = span((now - lost[0].seen_at) // SECOND * SECOND)
    jobs, ends = sum(held.values()), max(one.passes_on_at for one in lost)
    remedy = "Look at its log and restart it"
    if len(lost) == 1:
        detail, id_ = fate(jobs, ends, now), f"silent worker: {lost[0].host}"
        yield Finding("bad", "worker", places[0], f"was last seen {apart} ago", detail, remedy, id=id_, figure=jobs)
        return
    more = f" and {len(lost) - MOST_NAMED} more" if len(lost) > MOST_NAMED else ""
    text = f"were last seen up to {apart} ago: {', '.join(places[:MOST_NAMED])}{more}"
    detail, remedy = fate(jobs, ends, now, alone=False), "Look at their logs and restart them"
    name = count(len(lost), "worker")
    yield Finding("bad", "worker", name, text, detail, remedy, id="silent workers", figure=len(lost))


def fate(jobs: int, ends: Instant, now: Instant, *, alone: bool = True) -> str:
    """What becomes of the jobs of a silent worker, or of several, whose leases end at this instant."""
    its, it, stays = ("its", "it", "stays") if alone else ("their", "they", "stay")
    held = f"{its} {count(jobs, 'job')}"
    if ends > now:
        go = "goes" if jobs == 1 else "go"
        return f"If {it} {stays} silent {held} {go} to another worker at {clock(ends, now)}."
    return f"The lease of {held} ran out at {clock(ends, now)}: another worker takes {'it' if jobs == 1 else 'them'}."


def _unserved(given: Situation) -> Iterator[Finding]:
    census = given.census
    pending: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for one in census.counts:
        if one.status is Status.PENDING or (one.status is Status.RETRYING and given.retries.get(one.queue)):
            pending[one.queue][one.kind] = pending[one.queue].get(one.kind, 0) + one.n
    for name in sorted(pending):
        ready = given.due(name)
        if not ready or given.queue(name).is_paused(census.at):
            continue
        serving = given.serving(name)
        if not serving:
            yield _without_worker(given, name, ready, pending[name])
            continue
        known = {kind for one in serving for kind in one.kinds}
        waiting = {kind: n for kind, n in pending[name].items() if kind not in known}
        for kind, n in sorted(waiting.items() if known else ()):
            text = f"has {count(n, 'waiting job')} in {name} and no worker of that queue knows it"
            detail = "They are put back again and again, and are dead after a while."
            remedy, id_ = f"Deploy the task to the workers of {name}", f"unknown kind: {kind} in {name}"
            yield Finding("bad", "kind", kind, text, detail, remedy, id=id_, figure=n)


def _without_worker(given: Situation, name: str, ready: int, kinds: Mapping[str, int]) -> Finding:
    """A queue with due jobs that none of the live workers serves; a misspelt one is told what was meant."""
    if quiet := [one for one in live(given.presences, given.now) if name in one.queues]:
        text = f"has {count(ready, 'ready job')}, and its workers are quiet"
        detail = "A user told them to claim nothing."
        remedy = f"stoker workers resume {quiet[0].worker}"
        return Finding("bad", "queue", name, text, detail, remedy, id=f"quiet workers: {name}", figure=ready)
    text, start = f"has {count(ready, 'ready job')} and no worker", to_serve(name, given.app)
    found = {meant_queue(name, kind, given.homes.get(kind), given.presences, given.now) for kind in kinds}
    detail, remedy = f"{'It waits' if ready == 1 else 'They wait'} until one serves it.", start
    if len(found) == 1 and (meant := found.pop()) is not None:
        detail = f"If {name} is a typing error, move them to {meant}; else start `{start}`."
        remedy = f"stoker jobs move queue:{name} --to {meant}"
    return Finding("bad", "queue", name, text, detail, remedy, id=f"no worker: {name}", figure=ready)


# --- jobs -----------------------------------------------------------------------------------------------------------


def _deaths(deaths: Deaths | None) -> Iterator[Finding]:
    if deaths is None or not deaths.jobs:
        return
    jobs = count(deaths.jobs, "job") if deaths.complete else f"{deaths.hedge.capitalize()}{deaths.jobs:,} jobs"
    text = "died in the last hour"
    if deaths.same > 1:
        whole = deaths.complete and deaths.same == deaths.jobs
        text += f", {'all' if whole else f'{deaths.same:,} of them'} with the same error"
    detail = f"{deaths.error} in {deaths.kind}" if deaths.error else "Their records tell why."
    if deaths.again:
        # A job that was requeued died more than once; one that was discarded or deleted is not dead any more.
        text += f"; with those that were requeued, discarded or deleted since there were {deaths.times:,} deaths"
    tone: Tone = "bad" if deaths.many else "plain"
    remedy = f"stoker jobs list {LATELY_DEAD}"
    yield Finding(tone, "jobs", jobs, text, detail, remedy, LATELY_DEAD, id="deaths", figure=deaths.jobs)


def late_queues(given: Situation) -> list[str]:
    """The open queues whose oldest due job waits longer than is usual there, the longest wait first."""
    found = [name for name in waiting_long(given) if not _shut(given, name)]
    return [
        name for name in found if given.census.lag(name) > max(given.late_after, TIMES_USUAL * given.usual.get(name, 0))
    ]


def limited_queues(given: Situation) -> list[str]:
    """The queues whose oldest due job waits long because of a rate, a number of workers or a limit."""
    return [name for name in waiting_long(given) if _shut(given, name)]


def waiting_long(given: Situation) -> list[str]:
    """Queues with live workers whose oldest due job waits long and that are neither paused nor cooling."""
    census, now = given.census, given.now
    found = []
    for name in sorted(given.names, key=lambda name: (-census.lag(name), name)):
        queue = given.queue(name)
        shut = queue.is_paused(now) or queue.cooldown.shut(now)
        if census.ready(name) and census.lag(name) > given.late_after and not shut and given.serving(name):
            found.append(name)
    return found


def _shut(given: Situation, name: str) -> str:
    """What holds the jobs of a queue back that more workers would not change; empty: nothing does."""
    queue = given.queue(name)
    if queue.workers is not None and given.census.by_status(name)[Status.RUNNING] >= queue.workers:
        return f"runs as many at once as it may, which are {queue.workers:,}"
    if queue.bucket is not None and until_token(queue.bucket, given.now):
        rate = queue.bucket.rate
        return f"is at its rate of {rate.n:,.15g} in {span(round(float(rate.per) * SECOND))}"  # type: ignore[arg-type]
    return f"is held back by its limit {given.full[name]}" if name in given.full else ""


def _late(given: Situation) -> Iterator[Finding]:
    census, late = given.census, late_queues(given)
    for name in waiting_long(given):
        detail, ready = _waits(given, name), census.ready(name)
        if name in late:
            slots = sum(one.queues[name] for one in given.serving(name))
            busy = census.by_status(name)[Status.RUNNING] >= slots
            remedy = to_serve(name, given.app) if busy else "Its workers have free slots: look at their logs"
            yield Finding("warn", "queue", name, "is falling behind", detail, remedy, id=f"late: {name}", figure=ready)
        elif shut := _shut(given, name):
            yield Finding("plain", "queue", name, shut, detail, id=f"held back: {name}", figure=ready)
    for name in given.names:
        cooldown = given.queue(name).cooldown
        paused = given.queue(name).is_paused(given.now)
        if cooldown.until is None or not cooldown.shut(given.now) or paused or not census.ready(name):
            continue
        if not given.serving(name):
            continue
        text = f"cools down until {clock(cooldown.until, given.now)}"
        runs = "A throttled run made it."
        if cooldown.count > 1:
            runs = f"{cooldown.count:,} throttled runs in a row made it."
        remedy = f"Wait until then, or end it: stoker queues reopen {name}"
        detail = f"{_waits(given, name)} {runs}"
        yield Finding("warn", "queue", name, text, detail, remedy, id=f"cooling: {name}", figure=census.ready(name))


def _waits(given: Situation, name: str) -> str:
    ready = given.census.ready(name)
    are = "is" if ready == 1 else "are"
    return f"{count(ready, 'job')} {are} ready and the oldest has waited {span(given.census.lag(name))}."


def _paused(given: Situation) -> Iterator[Finding]:
    census = given.census
    for queue in given.queues:
        ready = census.ready(queue.name)
        if queue.pause is None or not queue.is_paused(census.at) or not ready:
            continue
        by = "" if queue.pause.by is None else f" by {queue.pause.by}"
        why = "" if queue.pause.reason is None else f": “{queue.pause.reason}”"
        detail = f"{count(ready, 'job')} {'waits' if ready == 1 else 'wait'} in it"
        forgotten = census.lag(queue.name) > FORGOTTEN_AFTER
        if forgotten:
            detail += f", the oldest for {span(census.lag(queue.name))}; it may have been forgotten"
        remedy = f"stoker queues resume {queue.name}" if forgotten else ""
        tone: Tone = "warn" if forgotten else "plain"
        text, id_ = f"is paused{by}{why}", f"paused: {queue.name}"
        yield Finding(tone, "queue", queue.name, text, f"{detail}.", remedy, id=id_, figure=ready)


# --- schedules, streams, versions -----------------------------------------------------------------------------------


def overdue_by(schedule: Schedule, now: Instant) -> Span:
    """For how long a schedule should have fired, beyond its grace and a minute; 0: it is not overdue."""
    if not schedule.enabled or schedule.next_fire is None or is_unreadable(schedule):
        return 0
    late = now - schedule.next_fire
    return late if late > max(schedule.grace, OVERDUE_AFTER) else 0


def could_not_fire(schedule: Schedule) -> bool:
    """Whether its latest job could not be stored, or the schedule cannot be read."""
    return schedule.last_error is not None and schedule.last_status in {Action.FAIL, Action.DISABLE, None}


def _schedules(given: Situation, served: bool) -> Iterator[Finding]:
    for one in sorted(given.schedules, key=lambda one: one.name):
        late = overdue_by(one, given.now) if served else 0
        tone: Tone = "bad" if late else "warn"
        if could_not_fire(one):
            why, remedy = one.last_error or "", f"stoker schedules show {one.name}"
            id_ = f"could not fire: {one.name}"
            yield Finding(tone, "schedule", one.name, "could not fire", why, remedy, id=id_)
        elif late:
            detail = "Workers are there, and none of them ticks."
            remedy = "Look at their logs for what keeps the schedules from ticking"
            text, id_ = f"is overdue by {span(late)}", f"overdue: {one.name}"
            yield Finding(tone, "schedule", one.name, text, detail, remedy, id=id_)


def _deliveries(deliveries: Sequence[Delivery], served: bool) -> Iterator[Finding]:
    for one in deliveries:
        parts = []
        late = served and one.waits > DELIVERED_WITHIN
        if late:
            parts.append(f"has not delivered for {span(one.waits)}")
        if one.parked:
            parts.append(f"has {count(one.parked, 'parked key')}")
        if one.letters:
            parts.append(f"has {count(one.letters, 'letter')} to decide on")
        if parts:
            tone: Tone = "bad" if late and one.waits > STUCK_AFTER else "warn"
            about, status = ("show", "") if late else ("letters", "" if one.letters else " --status parked")
            remedy = f"stoker outbox {about} {one.stream}{status}"
            detail = STUCK if late else UNDECIDED
            name, left = f"{one.stream} / {one.consumer}", one.parked + one.letters
            text, id_ = " and ".join(parts), f"{'not delivered' if late else 'letters'}: {name}"
            yield Finding(tone, "consumer", name, text, detail, remedy, id=id_, figure=left)


def _versions(given: Situation) -> Iterator[Finding]:
    present = [one for one in live(given.presences, given.now) if one.version]
    versions = Counter(one.version for one in present)
    if len(versions) < 2:
        return
    common = max(versions, key=lambda version: (versions[version], version))
    for version in sorted(versions.keys() - {common}):
        hosts = sorted({one.host for one in present if one.version == version})
        name = hosts[0] if len(hosts) == 1 else count(len(hosts), "host")
        text = f"{'runs' if len(hosts) == 1 else 'run'} Stoker {version} beside {common} on the others"
        detail = "Workers of two versions run the same jobs."
        yield Finding("warn", "worker", name, text, detail, "Finish the deployment", id="two versions")


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


PAGES: Final[dict[Noun, str]] = {
    "worker": "workers",
    "queue": "queues",
    "kind": "kinds",
    "jobs": "jobs",
    "schedule": "schedules",
    "consumer": "outbox",
}
"""On which page a finding is shown."""


def badges(found: Sequence[Finding]) -> dict[str, tuple[int, Tone]]:
    """How many findings a page has, and the worst tone among them; plain ones do not count."""
    counted = [one for one in found if one.tone != "plain"]
    numbers = Counter(PAGES[one.noun] for one in counted)
    bad = {PAGES[one.noun] for one in counted if one.tone == "bad"}
    return {page: (n, "bad" if page in bad else "warn") for page, n in numbers.items()}
