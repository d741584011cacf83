"""Operations: actions on everything that a filter means, seen first and then done in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import asdict

from stoker.admin import Filter, Preview
from stoker.admin.operations import OperationView
from stoker.model.actions import MANY
from stoker.model.humanize import count
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun, place
from stoker.web.api.jobs import PARAMETERS, Acting
from stoker.web.pages import operations as pages
from stoker.web.pages.shared import needs_everything
from stoker.web.request import RequestContext

api = Noun("operations")

if TYPE_CHECKING:
    MaybeAction: TypeAlias = str | None
else:
    MaybeAction = Literal[tuple(MANY)] | None


class PreviewQuery(t.Strict):
    """Which jobs, and what would be done to them: then the answer says what would be skipped, and how long it lasts."""

    q: t.FilterText = ""
    action: MaybeAction = None


class NewOperation(Acting, kw_only=True):
    """An action on what a preview counted: `count` and `counted_at` are its answer.

    Jobs that were created or ended later are not touched. Where more matched at that moment, or counting stopped at as
    many, nothing is changed, and the refusal has a new count.
    """

    q: Annotated[str, Meta(min_length=1, max_length=2_000)]
    count: t.Count
    counted_at: t.Moment


class NewOperationRecord(OperationView, frozen=True, kw_only=True):
    """An operation that has begun. `left` of what was counted still match: at least so many unless `complete`."""

    left: int
    complete: bool


class Operations(Struct, kw_only=True):
    """Operations, the latest first."""

    operations: list[OperationView]


@api.get("/preview")
async def preview(visit: RequestContext, given: PreviewQuery) -> Preview:
    """Count the jobs that a filter means."""
    return await visit.admin.jobs.preview(given.q, action=given.action)


@api.get("/operations")
async def listed(visit: RequestContext) -> Operations:
    """List operations."""
    return Operations(operations=(await visit.admin.operations.list())[:200])


@api.post("/operations", status=202)
async def start(visit: RequestContext, given: NewOperation) -> NewOperationRecord:
    """Act on everything that a preview counted."""
    pages.check_reach(visit)
    wanted = Filter.parse(given.q)
    more = t.given_in(given, PARAMETERS)
    left = await visit.admin.jobs.preview(wanted, counted_at=given.counted_at)
    if left.count > given.count or (not left.complete and given.count <= left.count):
        shown = count(left.count, "job") if left.complete else f"more than {left.count:,} jobs"
        now = await visit.admin.jobs.preview(wanted)
        raise pages.grown(f"{shown} matched then, and {given.count:,} are meant", now.count, now.counted_at)
    found = await pages.begin(
        visit, given.action, wanted, more, given.counted_at, left.count if left.complete else None
    )
    visit.board.hub.forget()
    return begun(found, left.count, complete=left.complete)


@api.get("/operations/{id}")
async def read(visit: RequestContext) -> OperationView:
    """Read an operation."""
    return await visit.admin.operations.get(place(visit, "id"))


@api.post("/operations/{id}/stop")
async def stop(visit: RequestContext, given: t.NoBody) -> OperationView:  # noqa: ARG001 - nothing is said in it
    """Stop an operation."""
    needs_everything(visit)
    return await visit.admin.operations.stop(place(visit, "id"))


@api.post("/operations/{id}/resume")
async def resume(visit: RequestContext, given: t.NoBody) -> OperationView:  # noqa: ARG001 - nothing is said in it
    """Go on with an operation."""
    needs_everything(visit)
    return await pages.go_on(visit, place(visit, "id"))


def begun(found: OperationView, left: int, *, complete: bool) -> NewOperationRecord:
    """An operation that has begun, with how many of the counted jobs or letters it can still meet."""
    return NewOperationRecord(**asdict(found), left=left, complete=complete)
