"""The audit log for operators: who changed what, when, through what and why."""

from __future__ import annotations

from typing import Any

from stoker.admin.asking import Asking, Noun
from stoker.model.audit import AuditEntry, AuditQuery, Deed, instant_of
from stoker.model.errors import NotFound
from stoker.model.time import DAY, SECOND, Seconds, span

DAYS_KEPT = 90

MOST_AT_ONCE = 10_000
"""Entries of one instant that are looked through for an id."""


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
    ) -> list[AuditEntry]:
        """Entries of a window that ends now, latest first. `action` may end in a dot: `jobs.` means all about jobs."""
        engine = await self._asking.engine()
        since = max(await engine.now() - span(window, "window"), 0)
        return await engine.audit.read(AuditQuery(since=since, who=who, action=action, target=target, limit=limit))

    async def get(self, entry: str) -> AuditEntry:
        """One entry, by its id. Raises `NotFound`."""
        engine = await self._asking.engine()
        at = instant_of(entry)
        of_then = await engine.audit.read(AuditQuery(since=at, until=at + 1, limit=MOST_AT_ONCE))
        found = next((one for one in of_then if one.id == entry), None)
        if found is None:
            raise NotFound(f"the audit log has no entry {entry}: it was removed after its retention, or never written")
        return found

    async def write(self, action: str, target: str, *, reason: str | None = None) -> None:
        """Write an entry that belongs to no change: a payload was shown, an action refused, a user signed in."""
        await audited(self._asking, action, target, reason=reason)


async def audited(
    asking: Asking, action: str, target: str, *, reason: str | None = None, after: dict[str, Any] | None = None
) -> None:
    """Write an entry of its own, unless code without a name asks."""
    by = asking.signed(reason)
    if by is not None:
        engine = await asking.engine()
        await engine.audit.write(by, Deed(action=action, target=target, after=after or {}))
