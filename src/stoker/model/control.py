"""What an operator tunes and watches: queues, named locks, presences. Budgets have a file of their own.

A tuning is a patch: None leaves a field as it is. Values out of range are pulled in where the meaning is plain (worker
counts, curves, retention) and refused where it is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from stoker.model.errors import InvalidInput
from stoker.model.job import LEASE, check_name
from stoker.model.lifecycle import KEEP_DEAD, KEEP_DONE
from stoker.model.limit import check_limit_name, check_number
from stoker.model.retry import OFF, Curve, clamped_curve
from stoker.model.throttle import OPEN, Bucket, Cooldown, Rate, full, level, retuned
from stoker.model.time import HOUR, LONGEST, MINUTE, SECOND, Instant, Span
from stoker.model.unique import keep_plain, plain

MOST_WORKERS = 10_000
LONGEST_REASON = 1_000
"""Characters of the reason for a pause."""

SETTINGS = ("workers", "fair", "rate", "keep_done", "keep_dead", "curve")
"""What an app's code may declare for a queue, and what can be cleared."""

SHOWN_WITHIN: Span = 20 * SECOND
"""A worker that has not shown itself for longer has no share of a limited queue."""

MOST_NAMED = 6
"""The most queues of a worker that are named one by one."""

SILENT_AFTER: Span = 10 * SECOND
"""A worker that has not shown itself for longer is silent: frozen, dead, or cut off from the store."""

MOST_SHOWN = 64
"""The most jobs that a worker's presence names, of those that it runs."""

REMEMBERED: Span = HOUR
"""How long a worker is remembered after it showed itself last; one that stopped by itself, for a minute."""

STOPPED, QUIET = "stopped", "quiet"
"""The state of a presence that will not come back, and of one whose worker claims nothing for now."""


class Tuning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changes to a queue. `workers` is the cluster-wide number of slots; None there means: whatever workers bring.

    `paused=True` pauses the queue for `pause_for` (None: until it is resumed) and replaces an earlier pause;
    `paused=False` resumes it. `fair`: tenants take turns. `limits` sets the numbers of limits by name, over what jobs
    bring; None gives a limit back to its jobs. `reopen` ends a cool-down. `clear` names settings that go back to their
    defaults.
    """

    paused: bool | None = None
    pause_for: Span | None = None
    reason: str | None = None
    by: str | None = None
    workers: int | None = None
    fair: bool | None = None
    rate: Rate | None = None
    keep_done: Span | None = None
    keep_dead: Span | None = None
    curve: Curve | None = None
    reopen: bool = False
    clear: frozenset[str] = frozenset()
    limits: tuple[tuple[str, int | None], ...] = ()

    def __post_init__(self) -> None:
        for field in ("pause_for", "reason", "by"):
            if self.paused is not True and getattr(self, field) is not None:
                raise InvalidInput(field, getattr(self, field), "belongs to a pause; it needs paused=True")
        if self.pause_for is not None and not 0 < self.pause_for <= LONGEST:
            raise InvalidInput("pause", self.pause_for, "must end in the future and within ten years")
        for field in ("reason", "by"):
            keep_plain(self, **{field: _check_text(field, getattr(self, field))})
        self._bound("workers", MOST_WORKERS)
        self._bound("keep_done", LONGEST)
        self._bound("keep_dead", LONGEST)
        if self.rate is not None and not isinstance(self.rate, Rate):
            raise InvalidInput("rate", self.rate, "must be a Rate, such as Rate(100, per=60)")
        if self.fair not in (None, True, False):
            raise InvalidInput("fair", self.fair, "must be True or False")
        for _, n in self.limits:
            if n is not None:
                check_number(n)
        keep_plain(self, limits=tuple((check_limit_name(name), n) for name, n in self.limits))
        if self.curve is not None:
            msgspec.structs.force_setattr(self, "curve", clamped_curve(self.curve))
        for field in sorted(self.clear):
            if field not in SETTINGS:
                raise InvalidInput("clear", field, f"must be one of {', '.join(SETTINGS)}")
            if getattr(self, field) is not None:
                raise InvalidInput("clear", field, "is set and cleared at once; do one of them")

    def _bound(self, field: str, highest: int) -> None:
        value = getattr(self, field)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidInput(field, value, "must be a whole number")
            msgspec.structs.force_setattr(self, field, min(max(value, 0), highest))


def _check_text(field: str, value: str | None) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_REASON:
        raise InvalidInput(field, value, f"must be a text of 1 to {LONGEST_REASON:,} characters")
    if "\0" in value:
        raise InvalidInput(field, value, "must not contain NUL")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, value, "must not contain lone surrogates") from error
    return plain(value)


UNDECLARED = Tuning()


class Pause(msgspec.Struct, frozen=True, gc=False):
    """A pause of a queue: until when (None: until it is resumed), why, and by whom."""

    until: Instant | None = None
    reason: str | None = None
    by: str | None = None

    def lasts(self, now: Instant) -> bool:
        """Does the queue hand out nothing? The end of a pause needs no write."""
        return self.until is None or self.until > now


class Starts(NamedTuple):
    """How many jobs of a queue a claim may start; `first_only`: only one that an operator put first (`job.FIRST`)."""

    n: int
    first_only: bool = False


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as stored. One that was never tuned acts like `Queue(name=…)`.

    `bucket` holds its rate and tokens. `limits` are the numbers of limits that an operator set, by name. `declared` is
    what an app's code declared last.
    """

    name: str
    pause: Pause | None = None
    workers: int | None = None
    fair: bool = False
    limits: tuple[tuple[str, int], ...] = ()
    bucket: Bucket | None = None
    keep_done: Span = KEEP_DONE
    keep_dead: Span = KEEP_DEAD
    curve: Curve = OFF
    cooldown: Cooldown = OPEN
    declared: Tuning | None = None

    @property
    def rate(self) -> Rate | None:
        """How many jobs may start in a time; None: any number."""
        return None if self.bucket is None else self.bucket.rate

    def is_paused(self, now: Instant) -> bool:
        """Is it paused at this instant?"""
        return self.pause is not None and self.pause.lasts(now)

    def starts(self, wanted: int, now: Instant) -> Starts:
        """How many of the wanted jobs a claim may start: none while paused or cooling, no more than tokens.

        Without a whole token one job that an operator put first may start all the same. It takes the tokens below zero,
        and the next such job waits until that is paid back.
        """
        if self.is_paused(now) or self.cooldown.shut(now):
            return Starts(0)
        if self.bucket is None:
            return Starts(wanted)
        tokens = level(self.bucket, now)
        if wanted > 0 and 0 <= tokens < 1:
            return Starts(1, first_only=True)
        return Starts(min(wanted, math.floor(tokens)))


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker reports about itself, for operators and for counting slots. Its lease decides whether it lives.

    `kinds` maps each kind the worker can run to the path of its function: module and name. `lease` is how long its
    claims are valid without a renewal. `dropped` events did not fit into its buffer. `held` names budgets that can
    never grant what its jobs asked for, with the most tokens asked for.

    `release` is that of the app. `jobs` are ids of what it runs, `MOST_SHOWN` at most: when it has died they tell what
    became of them. `uptime` is how long it has been at work, `memory` the bytes it has resident, `hour` how many of its
    runs succeeded and failed in each of the last sixty minutes, the latest last.
    """

    worker: str
    host: str
    pid: int
    queues: dict[str, int]
    kinds: dict[str, str] = {}
    running: int = 0
    version: str = ""
    release: str = ""
    state: str = "running"
    seen_at: Instant = 0
    dropped: int = 0
    held: dict[str, int] = {}
    lease: Span = LEASE
    jobs: tuple[str, ...] = ()
    uptime: Span = 0
    memory: int = 0
    hour: tuple[tuple[int, int], ...] = ()

    @property
    def slots(self) -> int:
        """How many jobs it can run at once."""
        return sum(self.queues.values())

    @property
    def passes_on_at(self) -> Instant:
        """When its jobs go to another worker, if it shows itself no more."""
        return self.seen_at + self.lease


class NamedLock(msgspec.Struct, frozen=True, gc=False):
    """A named lock as stored: the owner has it until `until`."""

    owner: str
    until: Instant


def guardian_of(worker: str) -> str | None:
    """The supervisor of a worker, read from its id `supervisor.worker`; None: it has none.

    A supervisor sees how its workers die and reports it, so other workers do not reap them while the supervisor lives.
    """
    guardian, _, _ = worker.rpartition(".")
    return guardian or None


def tuned(queue: Queue, tuning: Tuning, now: Instant, *, keep_done: Span = KEEP_DONE, declared: bool = False) -> Queue:
    """The queue after the patch; the same one when nothing changes. `keep_done` is the engine's default.

    `declared`: the tuning is what an app's code declares, and `declare` decides what of it counts.
    """
    check_name("queue", queue.name)
    plain = Queue(name=queue.name, keep_done=keep_done)
    if declared:
        patch = declare(queue, queue.declared or UNDECLARED, tuning, plain)
        queue, tuning = msgspec.structs.replace(queue, declared=tuning), patch
    changes: dict[str, object] = {}
    if tuning.paused is not None:
        until = None if tuning.pause_for is None else now + tuning.pause_for
        changes["pause"] = Pause(until, tuning.reason, tuning.by) if tuning.paused else None
    for field in ("workers", "fair", "keep_done", "keep_dead", "curve"):
        if field in tuning.clear:
            changes[field] = getattr(plain, field)
        elif getattr(tuning, field) is not None:
            changes[field] = getattr(tuning, field)
    if tuning.reopen and queue.cooldown != OPEN:
        changes["cooldown"] = OPEN
    if "rate" in tuning.clear:
        changes["bucket"] = None
    elif tuning.rate is not None:
        changes["bucket"] = _at_rate(queue.bucket, tuning.rate, now)
    if tuning.limits:
        pins = {**dict(queue.limits), **dict(tuning.limits)}
        changes["limits"] = tuple(sorted((name, n) for name, n in pins.items() if n is not None))
    return msgspec.structs.replace(queue, **changes)


def declare(stored: Queue, before: Tuning, now: Tuning, plain: Queue) -> Tuning:
    """What a queue takes over from its app's code: `before` is the last declaration, `now` the new one.

    A setting that still has the value last declared (undeclared: the default, as in `plain`) follows the code. One
    that people changed stays.
    """
    if now.paused is not None or now.clear or now.limits or now.reopen:
        raise InvalidInput("declaration", now, f"may hold only {', '.join(SETTINGS)}")
    follow = frozenset(SETTINGS) - overridden(stored, before, plain)
    sets = {field: getattr(now, field) for field in follow}
    return Tuning(clear=frozenset(field for field in follow if sets[field] is None), **sets)


def overridden(stored: Queue, declared: Tuning, plain: Queue) -> frozenset[str]:
    """The settings that differ from what was declared last, or where that is nothing from the default."""
    wanted = {field: getattr(declared, field) for field in SETTINGS}
    values = {field: getattr(plain, field) if value is None else value for field, value in wanted.items()}
    return frozenset(field for field in SETTINGS if getattr(stored, field) != values[field])


def opens(before: Queue, after: Queue) -> bool:
    """Whether a tuning may let jobs start earlier than waiters expect, so that one of them is woken."""
    sooner = before.pause is not None and before.pause != after.pause
    if before.limits != after.limits or before.cooldown != after.cooldown:
        return True
    return sooner or (before.rate is not None and before.rate != after.rate)


def _at_rate(bucket: Bucket | None, rate: Rate, now: Instant) -> Bucket:
    return full(rate, now) if bucket is None else retuned(bucket, rate, now)


def may_take(lock: NamedLock | None, owner: str, now: Instant) -> bool:
    """Whether a lock can be taken: it is free, lapsed, or held by `owner`, who extends it."""
    return lock is None or lock.until <= now or lock.owner == owner


def may_release(lock: NamedLock | None, owner: str) -> bool:
    """Whether `owner` holds the lock and so may release it."""
    return lock is not None and lock.owner == owner


def shares(total: int, hosts: list[str]) -> dict[str, int]:
    """Split a queue's slots among the hosts that serve it: 10 over 3 gives 4, 3, 3 in host order."""
    if not hosts:
        return {}
    each, rest = divmod(max(total, 0), len(hosts))
    return {host: each + (index < rest) for index, host in enumerate(sorted(hosts))}


def share_of(worker: str, queue: Queue, presences: Sequence[Presence]) -> int | None:
    """How many slots of a queue are this worker's by `Tuning.workers`; None: the queue is not limited.

    A worker that serves the queue reports itself every few seconds; one that no longer does has no share. Nor has a
    quiet one, once nothing runs there any more.
    """
    if queue.workers is None:
        return None
    present = [one for one in live(presences) if queue.name in one.queues]
    serving = [one.worker for one in present if one.state != QUIET or one.running]
    return shares(queue.workers, serving).get(worker, 0)


def live(presences: Sequence[Presence], now: Instant | None = None) -> list[Presence]:
    """The workers that reported themselves lately and have not stopped; without `now`, by the newest report."""
    newest = max((one.seen_at for one in presences), default=0) if now is None else now
    return [one for one in presences if one.state != STOPPED and newest - one.seen_at <= SHOWN_WITHIN]


def serving_of(queue: str, presences: Sequence[Presence], now: Instant) -> list[Presence]:
    """The live workers that claim from a queue: those that serve it and are not quiet."""
    return [one for one in live(presences, now) if queue in one.queues and one.state != QUIET]


def remembered(presences: Sequence[Presence], now: Instant) -> list[Presence]:
    """The workers that are shown: all but those that stopped by themselves a while ago."""
    return [one for one in presences if one.state != STOPPED or now - one.seen_at <= MINUTE]


def queues_in_words(queues: Mapping[str, int]) -> str:
    """The queues that a worker serves, with its slots for each; many of them are counted."""
    if len(queues) <= MOST_NAMED:
        return ", ".join(f"{queue} {n}" for queue, n in sorted(queues.items()))
    least, most = min(queues.values()), max(queues.values())
    each = f"{most:,}" if least == most else f"{least:,} to {most:,}"
    return f"{len(queues):,} queues, {each} {'slot' if most == 1 else 'slots'} each"


def is_silent(presence: Presence, now: Instant) -> bool:
    """Whether a worker has not stopped and has not shown itself lately."""
    return presence.state != STOPPED and now - presence.seen_at > SILENT_AFTER


class Clash(msgspec.Struct, frozen=True):
    """Two workers run different functions under one kind: `here` is the own one, `there` the one of `worker`."""

    kind: str
    here: str
    there: str
    worker: str
    host: str


def clashes(kinds: Mapping[str, str], presences: Sequence[Presence]) -> list[Clash]:
    """Functions that live workers run under one of these kinds, from another place; one entry per kind and place."""
    found: dict[tuple[str, str], Clash] = {}
    for other in live(presences):
        for kind, there in other.kinds.items():
            here = kinds.get(kind, there)
            if here != there:
                found.setdefault((kind, there), Clash(kind, here, there, other.worker, other.host))
    return list(found.values())
