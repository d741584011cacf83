"""Groups: jobs that are counted together, and what is stored when all of them are finished.

A group closes once: at the first instant when it is sealed and every member is finished. What each step of a job means
for its group is `changes`, written here for all engines: whatever ends a job, a settlement, a cancel, a newer job with
its key, or its removal, is a record before and a record after. A closed group is final: later changes of its members
count nothing and store nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from stoker.model.control import Queue
from stoker.model.errors import InvalidInput
from stoker.model.ids import JobId, text
from stoker.model.job import ACTIVE, LARGEST_BATCH, PARENT, Draft, Job, Status, check_once, path_to
from stoker.model.lifecycle import HELD
from stoker.model.markers import PREVIOUS
from stoker.model.record import Record
from stoker.model.steps import Signal, group_wait
from stoker.model.time import HOUR, LONGEST, MINUTE, Instant, Span

ABANDONED_AFTER: Span = HOUR
"""How long a group may stay unsealed after its last member was added; then the janitor abandons it."""

MOST_KNOWN = LARGEST_BATCH
"""The ids of a group's members are kept up to this number of members."""

LEAST_KEPT: Span = MINUTE
"""A closed group stays at least so long, so that a caller who waits for it can read how it ended."""

LOOKED_AGAIN: Span = HOUR
"""How long a sweep leaves a closed group alone that has a member or a callback which has not ended."""

GROUP = "stoker.group"
"""Metadata key: the group whose end stored this job."""


CALLBACKS = ("then", "on_failure", "on_finish")
"""The callbacks of a group, by their names."""


R = TypeVar("R", bound=Record)


class Standing(enum.StrEnum):
    """What a member counts as."""

    WAITING = "waiting"
    DONE = "done"
    DEAD = "dead"
    CANCELED = "canceled"


class GroupChange(msgspec.Struct):
    """What a write changes about a group: signed numbers, and the ids and the first queue of those that joined."""

    total: int = 0
    done: int = 0
    dead: int = 0
    canceled: int = 0
    members: list[JobId] = []
    queue: str | None = None

    @property
    def waiting(self) -> int:
        """How many more members are not finished."""
        return self.total - self.done - self.dead - self.canceled

    def add(self, other: GroupChange) -> None:
        """Take in what else the write changes."""
        self.total += other.total
        self.done += other.done
        self.dead += other.dead
        self.canceled += other.canceled
        self.members += other.members
        self.queue = self.queue or other.queue


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A group as it is stored; `new_group` makes one.

    `abandoned`: its maker raised or died before it was sealed. `keep` is how long its app keeps what is done. `wakes`
    is a job and its wait that the closing answers. `members` are the ids of all that joined, empty when they are more
    than `MOST_KNOWN`. `queue` is that of its first member. `placed` is how many drafts of its maker are stored, of one
    that is stored in steps and goes on after a crash (`placing`); else 0. `touched_at` is when the last member joined.
    A sweep may put `expires_at` off (`kept_until`).
    """

    id: JobId
    then: Draft | None = None
    on_failure: Draft | None = None
    on_finish: Draft | None = None
    keep: Span | None = None
    wakes: tuple[JobId, str] | None = None
    sealed: bool = False
    abandoned: bool = False
    total: int = 0
    done: int = 0
    dead: int = 0
    canceled: int = 0
    members: tuple[JobId, ...] = ()
    queue: str | None = None
    placed: int = 0
    created_at: Instant = 0
    touched_at: Instant = 0
    closed_at: Instant | None = None
    expires_at: Instant | None = None

    @property
    def waiting(self) -> int:
        """How many members are not finished."""
        return self.total - self.done - self.dead - self.canceled

    @property
    def succeeded(self) -> bool:
        """Whether every member is done, and none will be missing."""
        return self.done == self.total and not self.abandoned

    @property
    def state(self) -> str:
        """Its state: open, or once it is closed done (every member is) or failed."""
        return "open" if self.closed_at is None else "done" if self.succeeded else "failed"

    @property
    def counts(self) -> str:
        """What became of its members, in words."""
        waiting = f", {self.waiting} not finished" if self.waiting else ""
        abandoned = ", abandoned before it was sealed" if self.abandoned else ""
        open_ = "" if self.sealed else ", not sealed yet"
        ended = f"{self.done} done, {self.dead} dead, {self.canceled} canceled"
        return f"of {self.total} members {ended}{waiting}{abandoned}{open_}"

    @property
    def complete(self) -> bool:
        """Whether it is to be closed now."""
        return self.sealed and self.closed_at is None and self.waiting <= 0

    @property
    def calls_back(self) -> bool:
        """May its closing store anything?"""
        return not (self.then is self.on_failure is self.on_finish is None)

    @property
    def callbacks(self) -> tuple[Draft, ...]:
        """What its closing stores."""
        chosen = self.then if self.succeeded else self.on_failure
        return tuple(draft for draft in (chosen, self.on_finish) if draft is not None)

    def leads_to(self, job: JobId) -> tuple[str, tuple[Draft, ...]] | None:
        """The name of the callback that is this job, or that it is behind, with the drafts up to it; None: neither."""
        for name in CALLBACKS:
            callback: Draft | None = getattr(self, name)
            if callback is not None and (path := (callback, *path_to(callback.options, job)))[-1].job_id == job:
                return name, path
        return None

    @property
    def kept(self) -> Span:
        """How long it is kept, as far as that is known."""
        return (self.expires_at or 0) - (self.closed_at or 0)

    def made(self, now: Instant) -> Group:
        """As it is stored first."""
        return replace(self, created_at=now, touched_at=now)

    def counted(self, change: GroupChange, now: Instant) -> Group:
        """After a write that changed its members."""
        return replace(
            self,
            total=self.total + change.total,
            done=self.done + change.done,
            dead=self.dead + change.dead,
            canceled=self.canceled + change.canceled,
            members=known_members(self.members, self.total, change.members),
            queue=self.queue or change.queue,
            touched_at=now if change.members else self.touched_at,
        )

    def seal(self, *, abandoned: bool) -> Group:
        """No more members are awaited. An abandoned group fails."""
        return replace(self, sealed=True, abandoned=abandoned)

    def close(self, now: Instant, queue: Queue | None, keep_done: Span) -> Group:
        """Final, and kept like a done job of its first member's queue: as that was tuned, else as its app says.

        `queue` is None for a group without members, `keep_done` is the engine's default. Of a large group the ids of
        the members are not known: if it did not succeed, it is kept at least as long as a dead job of that queue.
        """
        tuned = queue is not None and queue.keep_done != keep_done
        keep = queue.keep_done if queue is not None and tuned else keep_done if self.keep is None else self.keep
        if queue is not None and self.total > MOST_KNOWN and not self.succeeded:
            keep = max(keep, queue.keep_dead)
        return replace(self, closed_at=now, expires_at=now + max(keep, LEAST_KEPT))


def placing(stored: Group | None, given: Group | None, n: int) -> Group | None:
    """The stored group when the next `n` drafts of its maker are placed in it; None: nothing is placed in one.

    `given` has the number of drafts that are placed afterwards. Raises `InvalidInput` where the drafts are not the next
    ones, or not the first ones of a group that is not stored: another call stores them in other steps.
    """
    if given is None or not given.placed or is_placed(stored, given):
        return None
    before = 0 if stored is None else stored.placed
    if before != given.placed - n:
        why = f"has {before} drafts stored, and these begin at {given.placed - n}: another call makes it, too"
        raise InvalidInput("group", text(given.id), why)
    return None if stored is None else replace(stored, placed=given.placed)


def is_placed(stored: Group | None, given: Group | None) -> bool:
    """Were these drafts of a group's maker stored before, by a call that is repeated now?"""
    return stored is not None and given is not None and 0 < given.placed <= stored.placed


class Closing(msgspec.Struct, frozen=True):
    """A group that has closed, and the callbacks that were stored by it: not those whose key was held."""

    group: Group
    stored: tuple[Draft, ...] = ()


def ignore(closing: Closing) -> None:
    """Do nothing with a closing: what an engine does that no app watches."""


class Callbacks(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a group stores and answers when it closes, and how long its app keeps it, as engines store it."""

    then: Draft | None = None
    on_failure: Draft | None = None
    on_finish: Draft | None = None
    keep: Span | None = None
    wakes: tuple[JobId, str] | None = None


_encode = msgspec.json.Encoder().encode
unpack_callbacks = msgspec.json.Decoder(Callbacks).decode
"""What `pack_callbacks` wrote."""


def pack_callbacks(group: Group | Callbacks) -> bytes:
    """The callbacks of a group, its app's `keep` and what it wakes, as engines store them."""
    return _encode(Callbacks(group.then, group.on_failure, group.on_finish, group.keep, group.wakes))


def pack_members(members: Iterable[JobId]) -> bytes:
    """Ids as engines store them."""
    return b"".join(members)


def unpack_members(stored: bytes) -> tuple[JobId, ...]:
    """What `pack_members` wrote."""
    return tuple(stored[at : at + 16] for at in range(0, len(stored), 16))


def known_members(before: tuple[JobId, ...], total: int, joined: Sequence[JobId]) -> tuple[JobId, ...]:
    """Member ids to store after a join; none above `MOST_KNOWN`."""
    if not joined or (total and not before):
        return before
    return (*before, *joined) if len(before) + len(joined) <= MOST_KNOWN else ()


def kept_until(expiries: Iterable[Instant | None], now: Instant) -> Instant | None:
    """Until when a closed group stays for the sake of its members and callbacks; None: it can be removed.

    `expiries` are those of the jobs that are stored, None for one that has not ended. A group that holds a member for
    its callbacks is looked at again.
    """
    looked_again = now + LOOKED_AGAIN
    ends = (looked_again if one is None or one > now + LONGEST else one for one in expiries)
    latest = max(ends, default=None)
    return None if latest is None or latest < now else latest


def let_go(record: R, group: Group) -> R:
    """A done member that its group holds no more: kept as it asked for, else as long as the group."""
    assert record.finished_at is not None
    keep = group.kept if record.options.keep is None else record.options.keep
    return replace(record, expires_at=record.finished_at + keep)


def is_held(record: Record) -> bool:
    """Is it a done member that its group holds?"""
    return (record.expires_at or 0) - (record.finished_at or 0) == HELD


def in_order(members: Sequence[JobId], jobs: Mapping[JobId, Job]) -> list[JobId]:
    """The members of a group as they were given: a link behind the job before it, a copy in place of its original."""
    copies = {job.successor for job in jobs.values() if job.successor is not None}
    known = {text(member) for member in members}
    behind: dict[str | None, list[JobId]] = {}
    for member in members:
        if member not in copies:
            before = (jobs[member].options.metadata or {}).get(PARENT) if member in jobs else None
            behind.setdefault(before if before in known else None, []).append(member)
    found: list[JobId] = []
    waiting = behind.pop(None, [])[::-1]
    while waiting:
        member = waiting.pop()
        links = behind.pop(text(member), [])
        while member in jobs and (successor := jobs[member].successor) is not None:
            member = successor
            links += behind.pop(text(member), [])
        found.append(member)
        waiting += reversed(links)
    return found


class Swept(msgspec.Struct, frozen=True, kw_only=True):
    """What one sweep of the groups did. `closed`: complete groups that the write of the last end had left open."""

    abandoned: int = 0
    closed: int = 0
    removed: int = 0


def new_group(
    group: JobId,
    *,
    then: Draft | None = None,
    on_failure: Draft | None = None,
    on_finish: Draft | None = None,
    keep: Span | None = None,
    sealed: bool = False,
) -> Group:
    """A group that is not stored yet, without members."""
    return Group(
        id=group,
        then=_callback("then", then, group),
        on_failure=_callback("on_failure", on_failure, group),
        on_finish=_callback("on_finish", on_finish, group),
        keep=keep,
        sealed=sealed,
    )


def called_group(group: JobId, parent: JobId) -> Group:
    """A group of jobs that another one calls: its closing answers the wait of that job."""
    return Group(id=group, wakes=(parent, group_wait(group)), sealed=True)


def closing_signals(closed: Iterable[Group]) -> list[Signal]:
    """What groups that close answer."""
    return [Signal(*group.wakes) for group in closed if group.wakes is not None]


def _callback(name: str, draft: Draft | None, group: JobId) -> Draft | None:
    if draft is None:
        return None
    if not isinstance(draft, Draft):
        raise InvalidInput(name, draft, "must be a draft, such as task.draft(...)")
    _check_free(name, draft)
    if draft.options.previous:
        why = f"stands for the result of the job before it, and {name}= has none; use RESULTS for those of the members"
        raise InvalidInput(PREVIOUS.name, draft.kind, why)
    metadata = {**(draft.options.metadata or {}), GROUP: text(group)}
    return replace(draft, options=replace(draft.options, metadata=metadata))


def standing(status: Status) -> Standing | None:
    """What a member in this status counts as. None: its copy stands for it."""
    if status in ACTIVE:
        return Standing.WAITING
    match status:
        case Status.DONE:
            return Standing.DONE
        case Status.DEAD | Status.DISCARDED:
            return Standing.DEAD
        case Status.CANCELED:
            return Standing.CANCELED
        case _:
            return None


def changes(
    before: Record | None, after: Record | None, *, deleted: bool = False
) -> Iterator[tuple[JobId, GroupChange]]:
    """What a step of a job changes about its groups.

    A job that is removed while it is active was done if a settlement removed it, and canceled if an operator `deleted`
    it; removing a finished one changes nothing. A waiting job that a newer draft takes into another group, or out of
    its group, is canceled for the former one.
    """
    left = None if before is None else before.options.group
    joined = None if after is None else after.options.group
    if before is not None and left is not None:
        now = standing(before.status)
        if after is None:
            if now is Standing.WAITING:
                yield left, moved(now, Standing.CANCELED if deleted else Standing.DONE)
        elif left != joined:
            yield left, moved(now, Standing.CANCELED)
        elif (next_ := standing(after.status)) is not now:
            yield left, moved(now, next_)
    if after is not None and joined is not None and left != joined:
        yield joined, GroupChange(1, members=[after.id], queue=after.queue)


def moved(before: Standing | None, after: Standing | None) -> GroupChange:
    """The numbers of a member that counts as something else now."""

    def turn(standing: Standing) -> int:
        return (after is standing) - (before is standing)

    total = (after is not None) - (before is not None)
    return GroupChange(total, turn(Standing.DONE), turn(Standing.DEAD), turn(Standing.CANCELED))


def into_group(group: JobId, drafts: Iterable[Draft], *, awaited: bool = False) -> list[Draft]:
    """Drafts, and all behind them, as members of a group; `awaited` by its callbacks."""
    members = [_member(group, draft, awaited) for draft in drafts]
    check_once("group", members)
    return members


def _member(group: JobId, draft: Draft, awaited: bool) -> Draft:
    if not isinstance(draft, Draft):
        raise InvalidInput("group", draft, "must be made of drafts, such as task.draft(...)")
    _check_free("group", draft)
    then = tuple(into_group(group, draft.options.then, awaited=awaited))
    options = replace(draft.options, group=group, then=then, awaited=awaited)
    return replace(draft, options=options)


def _check_free(field: str, draft: Draft) -> None:
    if draft.options.group is not None:
        raise InvalidInput(field, draft.kind, f"is a member of group {text(draft.options.group)} already")
