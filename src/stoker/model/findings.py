"""What needs a person: sentences about trouble, made from what the store knows, worst first.

`status`, the overview's title and the badges of the dashboard are this list. A finding is bad (something stands still
or dies), warn (it will) or plain (worth knowing, not counted). Counting what is often normal would make people blind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from stoker.model.control import STOPPED, Presence, Queue, live
from stoker.model.job import Status
from stoker.model.query import Census
from stoker.model.time import SECOND, Instant, Span
from stoker.model.words import clock, count, in_words, span

Tone: TypeAlias = Literal["bad", "warn", "plain"]
Noun: TypeAlias = Literal["store", "worker", "queue", "kind", "jobs", "schedule", "consumer", "health"]

SILENT_AFTER: Span = 10 * SECOND
"""A worker that holds jobs and was not seen for longer is worth a sentence."""

LATE_AFTER: Span = 60 * SECOND
"""A queue whose oldest due job has waited longer is falling behind."""

DELIVERED_WITHIN: Span = 30 * SECOND
"""A consumer whose oldest message has waited longer is behind."""

LEAST_DEATHS = 10
TIMES_MEAN = 3
"""Deaths of an hour are many above both: this number, and so many times the hourly mean of the last day."""


class Finding(msgspec.Struct, frozen=True):
    """One sentence: `name` is what it is about, `text` goes on from there, `detail` is a second sentence.

    `noun` says of what kind `name` is, so that a page can link to it; `filter` means the jobs behind it.
    """

    tone: Tone
    noun: Noun
    name: str
    text: str
    detail: str = ""
    filter: str = ""

    def __str__(self) -> str:
        sentence = f"{self.name} {self.text}".strip()
        return f"{sentence}. {self.detail}" if self.detail else f"{sentence}."


class Deaths(msgspec.Struct, frozen=True):
    """Jobs that died: in the last hour, in the last day, and how many of them share the commonest error."""

    hour: int
    day: int
    same: int = 0
    error: str = ""
    kind: str = ""
    sample: str = ""


class Delivery(msgspec.Struct, frozen=True):
    """A consumer of a stream: how long its oldest message waits, its parked keys and its letters."""

    stream: str
    consumer: str
    waits: Span = 0
    parked: int = 0
    letters: int = 0


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What findings are made from; what is left out is not judged."""

    census: Census
    queues: Sequence[Queue] = ()
    presences: Sequence[Presence] = ()
    leases: Mapping[str, Span] = {}
    deaths: Deaths | None = None
    failed_schedules: Mapping[str, str] = {}
    deliveries: Sequence[Delivery] = ()
    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()
    late_after: Span = LATE_AFTER
    lease: Span = 30 * SECOND


def findings(situation: Situation) -> list[Finding]:
    """Everything that needs attention, in the order in which a person should look."""
    return [
        *(Finding("bad", "health", "", problem) for problem in situation.problems),
        *_silent(situation),
        *_unserved(situation),
        *_deaths(situation.deaths),
        *_late(situation),
        *_schedules(situation.failed_schedules),
        *_deliveries(situation.deliveries),
        *_versions(situation),
        *(Finding("warn", "health", "", warning) for warning in situation.warnings),
        *_paused(situation),
    ]


def verdict(found: Sequence[Finding]) -> str:
    """The title over all of it."""
    n = sum(one.tone != "plain" for one in found)
    if not n:
        return "Everything keeps up"
    return "One thing needs you" if n == 1 else f"{in_words(n).capitalize()} things need you"


def _silent(given: Situation) -> Iterator[Finding]:
    now = given.census.at
    for one in given.presences:
        apart = now - one.seen_at
        if one.state != STOPPED and one.running and apart > SILENT_AFTER:
            ends = one.seen_at + given.leases.get(one.worker, given.lease)
            text = f"was last seen {span(apart // SECOND * SECOND)} ago"
            yield Finding("bad", "worker", f"{one.host} / {one.pid}", text, fate(one.running, ends, now))


def fate(jobs: int, ends: Instant, now: Instant) -> str:
    """What becomes of the jobs of a silent worker, whose leases end at this instant."""
    if ends > now:
        go = "goes" if jobs == 1 else "go"
        return f"If it stays silent its {count(jobs, 'job')} {go} to another worker at {clock(ends, now)}."
    return f"The lease of its {count(jobs, 'job')} ran out at {clock(ends, now)}: another worker takes them."


def _unserved(given: Situation) -> Iterator[Finding]:
    census = given.census
    present = live(given.presences, census.at)
    settings = {queue.name: queue for queue in given.queues}
    pending: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for one in census.counts:
        if one.status is Status.PENDING:
            pending[one.queue][one.kind] = one.n
    for name in sorted(pending):
        ready = census.ready(name)
        if not ready or _shut(settings.get(name), census.at):
            continue
        serving = [one for one in present if name in one.queues]
        if not serving:
            detail = f"Start `stoker work app:jobs -q {name}`."
            yield Finding("bad", "queue", name, f"has {count(ready, 'ready job')} and no worker", detail)
            continue
        known = {kind for one in serving for kind in one.kinds}
        waiting = {kind: n for kind, n in pending[name].items() if kind not in known}
        for kind, n in sorted(waiting.items() if known else ()):
            text = f"has {count(n, 'waiting job')} in {name} and no worker of that queue knows it"
            yield Finding("bad", "kind", kind, text, "Deploy the task to the workers of this queue.")


def _deaths(deaths: Deaths | None) -> Iterator[Finding]:
    if deaths is None or deaths.hour <= max(LEAST_DEATHS, TIMES_MEAN * deaths.day / 24):
        return
    text = "died in the last hour"
    if deaths.same > 1:
        text += f", {deaths.same:,} of the latest with the same error"
    detail = f"{deaths.error} in {deaths.kind}" if deaths.error else ""
    chosen = f"same_error:{deaths.sample}" if deaths.sample else "is:dead"
    yield Finding("bad", "jobs", count(deaths.hour, "job"), text, detail, chosen)


def _late(given: Situation) -> Iterator[Finding]:
    census = given.census
    settings = {queue.name: queue for queue in given.queues}
    present = live(given.presences, census.at)
    for name in sorted({one.queue for one in census.counts}, key=census.lag, reverse=True):
        queue, ready, lag = settings.get(name, Queue(name=name)), census.ready(name), census.lag(name)
        cooling = queue.cooldown.shut(census.at)
        if not ready or queue.is_paused(census.at) or not any(name in one.queues for one in present):
            continue
        late = lag > given.late_after
        if not late and not cooling:
            continue
        waits = f"{count(ready, 'job')} {'is' if ready == 1 else 'are'} ready and the oldest has waited {span(lag)}."
        if cooling and queue.cooldown.until is not None:
            runs = count(queue.cooldown.count, "throttled run")
            waits += f" It cools down until {clock(queue.cooldown.until, census.at)}, after {runs} in a row."
        yield Finding("warn", "queue", name, "is falling behind" if late else "cools down", waits)


def _schedules(failed: Mapping[str, str]) -> Iterator[Finding]:
    for name, why in sorted(failed.items()):
        yield Finding("warn", "schedule", name, "could not fire", why)


def _deliveries(deliveries: Sequence[Delivery]) -> Iterator[Finding]:
    for one in deliveries:
        parts = []
        if one.waits > DELIVERED_WITHIN:
            parts.append(f"has not delivered for {span(one.waits)}")
        if one.parked:
            parts.append(f"has {count(one.parked, 'parked key')}")
        if one.letters:
            parts.append(f"has {count(one.letters, 'letter')} to decide on")
        if parts:
            yield Finding("warn", "consumer", f"{one.stream} / {one.consumer}", " and ".join(parts))


def _versions(given: Situation) -> Iterator[Finding]:
    present = [one for one in live(given.presences, given.census.at) if one.version]
    versions = Counter(one.version for one in present)
    if len(versions) < 2:
        return
    common = max(versions, key=lambda version: (versions[version], version))
    for host, version in sorted({(one.host, one.version) for one in present if one.version != common}):
        text = f"runs Stoker {version} beside {common} on the others"
        yield Finding("warn", "worker", host, text, "Finish the deployment.")


def _paused(given: Situation) -> Iterator[Finding]:
    census = given.census
    for queue in given.queues:
        if queue.pause is None or not queue.is_paused(census.at) or not census.ready(queue.name):
            continue
        by = "" if queue.pause.by is None else f" by {queue.pause.by}"
        why = "" if queue.pause.reason is None else f": “{queue.pause.reason}”"
        detail = f"{count(census.ready(queue.name), 'job')} wait in it."
        yield Finding("plain", "queue", queue.name, f"is paused{by}{why}", detail)


def _shut(queue: Queue | None, now: Instant) -> bool:
    return queue is not None and queue.is_paused(now)


PAGES: Final[dict[Noun, str]] = {
    "store": "health",
    "health": "health",
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
