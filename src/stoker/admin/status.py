"""The overview: what an operator looks at first."""

from __future__ import annotations

import msgspec

from stoker.admin.queues import QueueView, views
from stoker.admin.workers import WorkerView, worker_views
from stoker.app import Stoker
from stoker.model.explain import unserved
from stoker.model.query import Totals


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Queues with counts and settings, workers, and kinds that failed.

    `findings` need attention now; `notes` are what the store warns of about itself.
    """

    queues: list[QueueView]
    workers: list[WorkerView]
    kinds: dict[str, Totals]
    findings: list[str]
    notes: list[str]


async def overview(app: Stoker) -> Overview:
    """Read everything in four calls."""
    engine = await app.engine()
    census, queues, presences = await engine.census(), await engine.queues(), await engine.workers()
    description = await engine.describe()
    findings: list[str] = []
    for name, n in unserved(census, presences).items():
        findings.append(f"queue {name!r} has {n:,} due jobs and no worker serves it")
    return Overview(
        queues=views(census, queues, presences),
        workers=worker_views(presences, census.at),
        kinds={kind: total for kind, total in sorted(census.totals.items()) if total.failed or total.last_error},
        findings=findings,
        notes=list(description.warnings),
    )
