"""Kinds for operators: how many jobs of each there are, and what became of those before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stoker.admin.context import Noun
from stoker.model.control import Presence, live
from stoker.model.job import Status
from stoker.model.query import Census, Totals
from stoker.model.redact import Redaction


class KindView(msgspec.Struct, frozen=True, kw_only=True):
    """A kind: its jobs now, and what became of all of them since the store was made.

    `known`: a live worker has the task. `last_error` is that of the last run that ended, unless it succeeded.
    """

    kind: str
    queues: tuple[str, ...] = ()
    pending: int = 0
    running: int = 0
    retrying: int = 0
    dead: int = 0
    enqueued: int = 0
    completed: int = 0
    retried: int = 0
    failed: int = 0
    canceled: int = 0
    last_error: str | None = None
    known: bool = False


class KindsAdmin(Noun):
    """Questions about kinds."""

    async def list(self) -> list[KindView]:
        """Every kind that has or had jobs, and every task of this app, those in trouble first."""
        engine = await self._context.engine()
        return kind_views(
            await engine.operator.census(),
            await engine.control.workers(),
            self._context.app.tasks,
            self._context.redact,
        )


def kind_views(
    census: Census, presences: Sequence[Presence], registered: Iterable[str], redact: Redaction
) -> list[KindView]:
    """All kinds; those with dead or retrying jobs first, then by how many were completed."""
    known = {kind for one in live(presences, census.at) for kind in one.kinds}
    now: dict[str, dict[str, int]] = {}
    queues: dict[str, set[str]] = {}
    for count in census.counts:
        counts = now.setdefault(count.kind, {})
        counts[count.status] = counts.get(count.status, 0) + count.n
        queues.setdefault(count.kind, set()).add(count.queue)
    found = []
    for kind in sorted({*now, *census.totals, *registered}):
        totals, counts = census.totals.get(kind, Totals()), now.get(kind, {})
        found.append(
            KindView(
                kind=kind,
                queues=tuple(sorted(queues.get(kind, ()))),
                pending=counts.get(Status.PENDING, 0),
                running=counts.get(Status.RUNNING, 0),
                retrying=counts.get(Status.RETRYING, 0),
                dead=counts.get(Status.DEAD, 0),
                enqueued=totals.enqueued,
                completed=totals.completed,
                retried=totals.retried,
                failed=totals.failed,
                canceled=totals.canceled,
                last_error=None if totals.last_error is None else redact.text(totals.last_error),
                known=kind in known,
            )
        )
    return sorted(found, key=lambda one: (-(one.dead + one.retrying), -one.completed, one.kind))
