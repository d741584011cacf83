"""Groups for operators: which there are, how far one is, and what may be done to all members at once."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Literal, Self, TypeAlias

import msgspec

from stoker.admin.context import Noun, OperatorContext
from stoker.admin.operations import OperationsAdmin, OperationView
from stoker.model import ids
from stoker.model.actions import Given, on_group
from stoker.model.errors import InvalidArgument, NotFound
from stoker.model.filter import Filter
from stoker.model.groups import CALLBACKS, Group
from stoker.model.job import Status
from stoker.model.query import LARGEST_PAGE, Place, Query, cursor_at, cursor_time, read_cursor, write_cursor
from stoker.model.time import moment

State: TypeAlias = Literal["open", "closed"]
STATES: tuple[State, ...] = ("open", "closed")
"""The lists of groups, in the order in which they follow each other."""


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A group: what became of its members. `waiting` are those that are not finished.

    `state` is open, and once it is closed done (every member is) or failed. `sealed`: no more members are awaited;
    `abandoned`: its maker raised or died before that. `then`, `on_failure` and `on_finish` are the kinds of its
    callbacks. `members` are ids, none in a list and for a group of more than 1,000.
    """

    id: str
    state: str
    total: int
    done: int
    dead: int
    canceled: int
    waiting: int
    sealed: bool
    abandoned: bool
    queue: str | None
    created_at: datetime
    closed_at: datetime | None
    expires_at: datetime | None
    members: tuple[str, ...]
    then: str | None
    on_failure: str | None
    on_finish: str | None


class CallbackView(msgspec.Struct, frozen=True, kw_only=True):
    """A callback of a group: when it is called (then, on_failure or on_finish), and the job that it is.

    `status` is that of the job, None while it is not stored or when it is gone.
    """

    name: str
    kind: str
    queue: str
    job: str
    status: Status | None


class GroupDetail(GroupView, frozen=True, kw_only=True):
    """A group with its callbacks, and its members by status, which are counted up to 1,000; None: there are more.

    `note` says what its state means for it, in a sentence.
    """

    note: str
    statuses: dict[Status, int] | None
    callbacks: tuple[CallbackView, ...]


class GroupPage(msgspec.Struct, frozen=True):
    """Groups, the one that was made last first, open ones before closed ones; `cursor` goes on, None at the end."""

    groups: list[GroupView]
    cursor: str | None


class GroupsAdmin(Noun):
    """Questions about groups, and actions on all members of one. Every call about one raises `NotFound`."""

    def __init__(self, context: OperatorContext, operations: OperationsAdmin) -> None:
        super().__init__(context)
        self._operations = operations

    def under(self, context: OperatorContext) -> Self:
        """The same for another one who asks; so are the operations that it starts."""
        twin = super().under(context)
        twin._operations = self._operations.under(context)  # noqa: SLF001 - of the same class
        return twin

    async def get(self, group: str) -> GroupDetail:
        """One group as it is stored now, with what became of its callbacks."""
        found = await self._stored(group)
        engine = await self._context.engine()
        statuses: Counter[Status] | None = None
        if found.total <= LARGEST_PAGE:
            page = await engine.operator.find(Query(group=found.id, limit=LARGEST_PAGE))
            statuses = None if page.cursor is not None else Counter(job.status for job in page.jobs)
        callbacks = {name: draft for name in CALLBACKS if (draft := getattr(found, name)) is not None}
        jobs = await engine.operator.get([draft.job_id for draft in callbacks.values()]) if callbacks else []
        return GroupDetail(
            **msgspec.structs.asdict(group_view(found)),
            note=note_on(found),
            statuses=None if statuses is None else {one: statuses[one] for one in Status if statuses[one]},
            callbacks=tuple(
                CallbackView(
                    name=name,
                    kind=draft.kind,
                    queue=draft.queue,
                    job=ids.text(draft.job_id),
                    status=None if job is None else job.status,
                )
                for (name, draft), job in zip(callbacks.items(), jobs, strict=True)
            ),
        )

    async def members(self, group: str, action: str) -> Filter:
        """The filter that means the members of a group to which an action applies: `cancel` or `retry`."""
        found = await self._stored(group)
        return Filter(views=(on_group(action).of_group,), group=ids.text(found.id))

    async def act(
        self, action: str, group: str, given: Given | None = None, *, counted_at: datetime | None = None
    ) -> OperationView:
        """Start an operation on all members of a group, however many; returns at once (`operations.finish` waits)."""
        return await self._operations.start(action, await self.members(group, action), given, counted_at=counted_at)

    async def cancel(self, group: str, *, reason: str | None = None, force: bool = False) -> OperationView:
        """Cancel the members that wait and ask those that run to stop; `force` takes their claims away."""
        return await self.act("cancel", group, {"reason": reason, "force": force})

    async def retry(self, group: str) -> OperationView:
        """Enqueue copies of the dead members. In an open group they take the places of these."""
        return await self.act("retry", group)

    async def list(self, *, state: State | None = None, limit: int = 25, cursor: str | None = None) -> GroupPage:
        """One page of groups, the one that was made last first; open ones before closed ones unless one is asked for.

        A group that closes between two pages may be on both.
        """
        if state not in (None, *STATES):
            raise InvalidArgument("state", state, f"must be one of {', '.join(STATES)}")
        if not 1 <= limit <= LARGEST_PAGE:
            raise InvalidArgument("limit", limit, f"must be between 1 and {LARGEST_PAGE}")
        engine = await self._context.engine()
        behind: Place | None = None
        first: State = STATES[0] if state is None else state
        if cursor is not None:
            first, behind = _read_cursor(cursor)
        found: list[tuple[State, Group]] = []
        for one in STATES[STATES.index(first) :] if state is None else (state,):
            rest = limit + 1 - len(found)
            page = await engine.groups.find(closed=one == "closed", behind=behind, limit=rest) if rest else []
            found += [(one, group) for group in page]
            behind = None
        last = found[limit - 1] if len(found) > limit else None
        after = None if last is None else f"{last[0]}-{write_cursor(cursor_at(last[1].created_at, last[1].id))}"
        return GroupPage([group_view(group) for _, group in found[:limit]], after)

    async def _stored(self, group: str) -> Group:
        engine = await self._context.engine()
        [found] = await engine.groups.get([ids.parse(group, "group id")])
        if found is None:
            raise NotFound(f"group {group} is not in the store: it was never stored, or its retention has passed")
        return found


def _read_cursor(text: str) -> tuple[State, Place]:
    state, _, place = text.partition("-")
    found = read_cursor(place)
    if state not in STATES or len(found) != len(cursor_at(0, bytes(16))):
        raise InvalidArgument("cursor", text, "must be the one of the page before")
    return ("closed" if state == "closed" else "open"), (cursor_time(found), found[8:])


def note_on(group: Group) -> str:
    """What the state of a group means for it."""
    if group.closed_at is not None:
        what = "what happens to its members from now on counts nothing, and stores no callback"
        return f"It is closed and stays {group.state}: {what}."
    if group.abandoned:
        return "Its maker raised or died before it was sealed, so it fails whatever its members do."
    if not group.sealed:
        return "It is not sealed: more members may join."
    return f"It closes when {'the last member has' if group.waiting == 1 else 'all members have'} ended."


def group_view(group: Group) -> GroupView:
    """A group as people read it."""
    callbacks = {name: getattr(group, name) for name in CALLBACKS}
    return GroupView(
        id=ids.text(group.id),
        state=group.state,
        total=group.total,
        done=group.done,
        dead=group.dead,
        canceled=group.canceled,
        waiting=group.waiting,
        sealed=group.sealed,
        abandoned=group.abandoned,
        queue=group.queue,
        created_at=moment(group.created_at),
        closed_at=None if group.closed_at is None else moment(group.closed_at),
        expires_at=None if group.expires_at is None else moment(group.expires_at),
        members=tuple(map(ids.text, group.members)),
        **{name: None if draft is None else draft.kind for name, draft in callbacks.items()},
    )
