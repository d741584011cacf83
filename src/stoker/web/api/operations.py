"""Operations: actions on everything that a filter means, seen first and then done in the background."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct

from stoker.admin import Filter
from stoker.admin.operations import OperationView
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun, place
from stoker.web.api.jobs import Acting, needs
from stoker.web.pages import operations as pages
from stoker.web.pages.shared import needs_everything
from stoker.web.problems import Problem
from stoker.web.visit import Visit

api = Noun("operations")


class PreviewQuery(t.Strict):
    """Which jobs."""

    q: t.FilterText = ""


class NewOperation(Acting, kw_only=True):
    """An action on everything that matches. `count` is the number that a preview showed; a larger match is refused."""

    q: Annotated[str, Meta(min_length=1, max_length=2_000)]
    count: Annotated[int, Meta(ge=1, le=1_000_000_000)]


class Preview(Struct, kw_only=True):
    """How many jobs a filter means; `complete` is false where counting stopped at 10,000."""

    count: int
    complete: bool


class OperationRecord(Struct, kw_only=True):
    """An operation and how far it came."""

    id: str
    who: str
    action: str
    q: str
    state: str
    started_at: datetime
    seen_at: datetime
    changed: int
    cancel_requested: int
    missing: int
    blocked: int
    refused: dict[str, int]


class Operations(Struct, kw_only=True):
    """Operations, the latest first."""

    operations: list[OperationRecord]


@api.get("/preview")
async def preview(visit: Visit, given: PreviewQuery) -> Preview:
    """Count the jobs that a filter means."""
    found = await visit.admin.jobs.preview(given.q)
    return Preview(count=found.count, complete=found.complete)


@api.get("/operations")
async def listed(visit: Visit) -> Operations:
    """List operations."""
    return Operations(operations=[record(one) for one in (await visit.admin.operations.list())[:200]])


@api.post("/operations", status=202)
async def start(visit: Visit, given: NewOperation) -> OperationRecord:
    """Act on everything that matches a filter."""
    if not visit.who.reaches_all:
        raise Problem(403, "queue", f"{visit.who.name} is limited to some queues and cannot act on a filter.")
    wanted = Filter.parse(given.q)
    counted = await visit.admin.jobs.preview(wanted)
    count, complete = counted.count, counted.complete
    if count > given.count or (not complete and given.count <= count):
        shown = f"{count:,}" if complete else f"more than {count:,}"
        raise Problem(409, "count", f"{shown} jobs match, and {given.count:,} are meant. Nothing was changed.")
    found = await pages.begin(visit, given.action, wanted, needs(visit, given))
    visit.board.hub.forget()
    return record(found)


@api.get("/operations/{id}")
async def read(visit: Visit) -> OperationRecord:
    """Read an operation."""
    return record(await visit.admin.operations.get(place(visit, "id")))


@api.post("/operations/{id}/stop")
async def stop(visit: Visit, given: t.NoBody) -> OperationRecord:  # noqa: ARG001 - nothing is said in it
    """Stop an operation."""
    needs_everything(visit)
    return record(await visit.admin.operations.stop(place(visit, "id")))


@api.post("/operations/{id}/resume")
async def resume(visit: Visit, given: t.NoBody) -> OperationRecord:  # noqa: ARG001 - nothing is said in it
    """Go on with an operation."""
    needs_everything(visit)
    return record(await pages.go_on(visit, place(visit, "id")))


def record(found: OperationView) -> OperationRecord:
    same = (
        "id",
        "who",
        "action",
        "state",
        "started_at",
        "seen_at",
        "changed",
        "cancel_requested",
        "missing",
        "blocked",
    )
    return OperationRecord(
        **{name: getattr(found, name) for name in same},
        q=found.filter,
        refused={status.value: n for status, n in found.refused.items()},
    )
