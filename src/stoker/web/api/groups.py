"""Groups: read them, and act on all members of one in the background."""

from __future__ import annotations

from msgspec import Struct

from stoker.admin.groups import GroupDetail, GroupView, State
from stoker.admin.operations import OperationView
from stoker.model import ids
from stoker.model.actions import OF_GROUP, Action
from stoker.model.errors import InvalidInput, NotFound
from stoker.web.api import types as t
from stoker.web.api.endpoint import Noun, place
from stoker.web.api.jobs import BODIES
from stoker.web.pages import operations as pages
from stoker.web.request import RequestContext

api = Noun("groups")


class GroupsQuery(t.Strict):
    """Which groups: open ones, closed ones, or both, open ones first."""

    state: State | None = None
    limit: t.Limit = 50
    after: t.Cursor | None = None


class Groups(Struct, kw_only=True):
    """A page of groups, the one that was made last first; `after` goes on behind it, null at the end."""

    groups: list[GroupView]
    after: str | None


@api.get("/groups")
async def listed(visit: RequestContext, given: GroupsQuery) -> Groups:
    """List groups of jobs."""
    page = await visit.admin.groups.list(state=given.state, limit=given.limit, cursor=given.after)
    return Groups(groups=page.groups, after=page.cursor)


@api.get("/groups/{id}")
async def read(visit: RequestContext) -> GroupDetail:
    """Read a group of jobs."""
    return await visit.admin.groups.get(_id(visit))


def _id(visit: RequestContext) -> str:
    """The id of the group in the address. Raises `NotFound` where it is no id."""
    try:
        return ids.text(ids.parse(place(visit, "id")))
    except InvalidInput:
        raise NotFound("No group has this id.") from None


def _declare(action: Action) -> None:
    """Add the call that does an action of the table to all members of a group."""

    async def do(visit: RequestContext, given: t.Strict) -> OperationView:
        pages.check_reach(visit)
        wanted = await visit.admin.groups.members(_id(visit), action.name)
        found = await pages.begin(visit, action.name, wanted, t.given_in(given, action.parameters), None)
        visit.board.hub.forget()
        return found

    do.__doc__ = f"{action.many_label()} all members of a group that are {action.of_group}."
    do.__annotations__ = {"visit": RequestContext, "given": BODIES[action.name], "return": OperationView}
    api.post(f"/groups/{{id}}/{action.name}", role=action.role, status=202)(do)


for _action in OF_GROUP.values():
    _declare(_action)
