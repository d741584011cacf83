"""The audit log for operators: who changed what, when, through what and why."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import asdict

from stoker.admin.context import Noun, OperatorContext
from stoker.model import ids
from stoker.model.audit import AuditEntry, AuditQuery, Deed, Way, instant_of, readable
from stoker.model.errors import InvalidArgument, NotFound
from stoker.model.job import Status
from stoker.model.query import Former
from stoker.model.time import DAY, SECOND, Seconds, moment, span

DAYS_KEPT = 90

MOST_AT_ONCE = 10_000
"""Entries of one instant that are looked through for an id."""


class FormerView(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was before a change; `ended` is its end after it."""

    id: str
    kind: str
    queue: str
    status: Status
    attempts: int
    scheduled_at: datetime
    started_at: datetime | None
    ended: datetime | None


class AuditView(msgspec.Struct, frozen=True, kw_only=True):
    """Who changed what, when, through what and why. `id` names the entry, `former` the jobs as they were."""

    id: str
    at: datetime
    who: str
    way: Way
    action: str
    target: str
    count: int
    reason: str | None
    request: str | None
    before: dict[str, Any]
    after: dict[str, Any]
    former: tuple[FormerView, ...]


def _view(one: AuditEntry) -> AuditView:
    deed = one.deed
    return AuditView(
        **asdict(one.by),
        id=one.id,
        at=moment(one.at),
        action=deed.action,
        target=deed.target,
        count=deed.count,
        before=readable(deed.before),
        after=readable(deed.after),
        former=tuple(map(_former, deed.former)),
    )


def _former(one: Former) -> FormerView:
    return FormerView(
        id=ids.text(one.id),
        kind=one.kind,
        queue=one.queue,
        status=one.status,
        attempts=one.attempts,
        scheduled_at=moment(one.scheduled_at),
        started_at=None if one.started_at is None else moment(one.started_at),
        ended=None if one.ended is None else moment(one.ended),
    )


class AuditAdmin(Noun):
    """Questions about changes, and entries of the caller's own."""

    async def list(
        self,
        window: Seconds = DAYS_KEPT * DAY / SECOND,
        *,
        who: str | None = None,
        action: str | None = None,
        target: str | None = None,
        limit: int = 100,
    ) -> list[AuditView]:
        """Entries of a window that ends now, latest first. `action` may end in a dot: `jobs.` means all about jobs."""
        engine = await self._context.engine()
        since = max(await engine.now() - span(window, "window", InvalidArgument), 0)
        wanted = AuditQuery(since=since, who=who, action=action, target=target, limit=limit)
        return [_view(one) for one in await engine.audit.read(wanted)]

    async def get(self, entry: str) -> AuditView:
        """One entry, by its id. Raises `NotFound`."""
        return _view(await self.stored(entry))

    async def stored(self, entry: str) -> AuditEntry:
        """One entry as it is stored, by its id. Raises `NotFound`."""
        engine = await self._context.engine()
        at = instant_of(entry)
        of_then = await engine.audit.read(AuditQuery(since=at, until=at + 1, limit=MOST_AT_ONCE))
        found = next((one for one in of_then if one.id == entry), None)
        if found is None:
            raise NotFound(f"the audit log has no entry {entry}: it was removed after its retention, or never written")
        return found

    async def write(self, action: str, target: str, *, reason: str | None = None) -> None:
        """Write an entry that belongs to no change: a payload was shown, an action refused, a user signed in."""
        await audited(self._context, action, target, reason=reason)


async def audited(
    context: OperatorContext,
    action: str,
    target: str,
    *,
    reason: str | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """Write an entry of its own, unless code without a name asks."""
    by = context.signed(reason)
    if by is not None:
        engine = await context.engine()
        await engine.audit.write(by, Deed(action=action, target=target, after=after or {}))
