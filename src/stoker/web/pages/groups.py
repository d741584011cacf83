"""Pages of groups: the list, and one group with members by status, callbacks and actions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from starlette.responses import Response

from stoker.admin.groups import STATES, CallbackView, GroupDetail, GroupView, State
from stoker.engines.base import Engine
from stoker.model import ids
from stoker.model.actions import OF_GROUP
from stoker.model.errors import InvalidArgument, InvalidInput, NotFound
from stoker.model.humanize import count
from stoker.model.job import Status
from stoker.web import view
from stoker.web.hub import Reading, Want
from stoker.web.pages import shared
from stoker.web.request import RequestContext

SHOWN = 50
DEAD_END = "No group has this id. Its retention may have passed."
PILLS: Final = {"open": "", "done": "st-done", "failed": "st-dead"}
WHEN: Final = {
    "then": "every member is done",
    "on_failure": "one is dead or canceled, or the group was abandoned",
    "on_finish": "all have ended",
}
"""What calls a callback."""
STANDINGS: Final = {"waiting": "active", "done": "done", "dead": "dead,discarded", "canceled": "canceled"}
"""The numbers of a group that are always known, and the members that they count, as `is:` says."""


async def show(visit: RequestContext) -> Response:
    """A page of groups, open ones first."""
    state, after = visit.parameter("state"), visit.parameter("after") or None
    if state not in ("", *STATES):
        raise InvalidArgument("state", state, f"must be one of {', '.join(STATES)}")
    wanted: State | None = "open" if state == "open" else "closed" if state == "closed" else None
    reading = await visit.board.hub.reading()
    found = await visit.admin.groups.list(state=wanted, limit=SHOWN, cursor=after)
    context = view.common(visit, "jobs", "Groups", shared.found(visit, reading)) | {
        "now": reading.census.at,
        "rows": [_row(visit, one) for one in found.groups],
        "states": [(name or "all", visit.url("groups", state=name)) for name in ("", *STATES)],
        "state": state or "all",
        "first": "" if after is None else visit.url("groups", state=state),
        "older": "" if found.cursor is None else visit.url("groups", state=state, after=found.cursor),
        "live_url": "",
    }
    return view.page(visit, "groups.html", context)


def _row(visit: RequestContext, one: GroupView) -> dict[str, Any]:
    return {
        "g": one,
        "url": visit.url(f"groups/{one.id}"),
        "pill": PILLS[one.state],
        "ended": one.total - one.waiting,
        "waiting_url": _members(visit, one, "waiting"),
        "dead_url": _members(visit, one, "dead"),
    }


def _members(visit: RequestContext, one: GroupView, number: str) -> str:
    """The members that a number of a group counts."""
    return visit.url("jobs", q=f"is:{STANDINGS[number]} group:{one.id}")


def _named(visit: RequestContext) -> str:
    """The id that the address names."""
    try:
        return ids.text(ids.parse(visit.request.path_params["id"]))
    except InvalidInput:
        raise NotFound(DEAD_END) from None


def wants(visit: RequestContext) -> list[Want]:
    """The group of the address; one that expires while it is looked at stays as it was."""
    id_ = _named(visit)
    last: GroupDetail | None = None

    async def read(_: Engine) -> tuple[GroupDetail, int]:
        nonlocal last
        try:
            last = await visit.admin.groups.get(id_)
        except NotFound:
            if last is None:
                raise NotFound(DEAD_END) from None
        return last, 3

    return [Want(("group", id_), read)]


async def one(visit: RequestContext) -> Response:
    """The page of a group."""
    reading = await visit.board.hub.reading()
    found: GroupDetail = await visit.board.hub.wanted(wants(visit)[0])
    return view.page(visit, "group.html", live_context(visit, reading, found))


def live_context(visit: RequestContext, reading: Reading, found: GroupDetail) -> dict[str, Any]:
    """What is shown of a group; all of it changes by itself."""
    return view.common(visit, "jobs", _title(found), shared.found(visit, reading)) | {
        "now": reading.census.at,
        "g": found,
        "pill": PILLS[found.state],
        "note": found.note,
        "ended": found.total - found.waiting,
        "members": list(_by_status(visit, found)),
        "callbacks": [_callback(visit, found, one) for one in found.callbacks],
        "all_url": visit.url("jobs", q=f"group:{found.id}"),
        "actions": list(_actions(visit, found)),
        "live_url": visit.url("live", page="group", id=found.id),
    }


def _title(found: GroupDetail) -> str:
    ended = f"{found.total - found.waiting:,} of {count(found.total, 'member')}"
    return f"Group {found.state}, {ended} ended"


def _by_status(visit: RequestContext, found: GroupDetail) -> Iterator[tuple[str, str, int, str]]:
    """Mark, words, number and address of the members in each status; of a large group, of what is known."""
    if found.statuses is None:
        for name in STANDINGS:
            if value := getattr(found, name):
                mark, words = ("ready", "not finished") if name == "waiting" else (name, name)
                yield mark, words, value, _members(visit, found, name)
        return
    for status in Status:
        if value := found.statuses.get(status, 0):
            mark = "ready" if status is Status.PENDING else status.value
            yield mark, status.value, value, visit.url("jobs", q=f"is:{status.value} group:{found.id}")


def _callback(visit: RequestContext, found: GroupDetail, one: CallbackView) -> dict[str, Any]:
    if one.status is not None:
        status = "ready" if one.status is Status.PENDING else one.status.value
        return {"c": one, "status": status, "when": WHEN[one.name], "url": visit.url(f"jobs/{one.job}")}
    called = found.state == {"then": "done", "on_failure": "failed"}.get(one.name, found.state)
    note = "not stored yet" if found.closed_at is None else "gone, or its key was held" if called else "not called"
    return {"c": one, "status": "", "note": note, "when": WHEN[one.name], "url": ""}


def _actions(visit: RequestContext, found: GroupDetail) -> Iterator[tuple[str, str]]:
    """Label and address of what may be done to all members, where there are any for it."""
    meant = {"active": found.waiting, "dead": found.dead}
    for name, action in OF_GROUP.items():
        if meant[action.of_group] and visit.may(action.role) and visit.who.reaches_all:
            wanted = f"is:{action.of_group} group:{found.id}"
            yield f"{action.many_label()}…", visit.url("operations/new", do=name, q=wanted)
