"""Every action of operators on jobs, declared once: what it changes, in which statuses, and the words for it.

The admin, the REST API, pages, operations, the audit log, the command line and `stoker top` read this table. What a
change does to a stored job is decided by `Record`; which statuses allow it is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

from msgspec import Meta, Struct

from stoker.model.access import Role
from stoker.model.errors import InvalidInput
from stoker.model.ids import JobId
from stoker.model.job import FINISHED, PRIORITIES, Status
from stoker.model.lifecycle import TRANSITIONS
from stoker.model.query import (
    WAITING,
    Cancel,
    Change,
    Clone,
    Delete,
    Discard,
    Edit,
    Fork,
    Move,
    Prioritize,
    Requeue,
    Reseal,
    Restore,
    RunNow,
)
from stoker.model.steps import LONGEST_ROW

Given: TypeAlias = Mapping[str, str | int | float | bool | None]
"""What is given with an action, by the names of its parameters."""

Making: TypeAlias = Callable[[int], Change]
"""Makes the change for a step over so many jobs."""

NAME: Final = r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$"
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern=NAME)]
Priority: TypeAlias = Annotated[int, Meta(ge=PRIORITIES[0], le=PRIORITIES[-1])]
Reason: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1_000)]

DEAD: Final = frozenset({Status.DEAD})
RUNNING: Final = frozenset({Status.RUNNING})
REQUEUEABLE: Final = frozenset(status for status in FINISHED if Status.PENDING in TRANSITIONS[status]) | {
    Status.RETRYING
}


class Parameter(Struct, frozen=True, kw_only=True):
    """What an action takes beside its jobs. `type` is what the REST API accepts: a text, a whole number or a flag.

    `help` explains its option on the command line, `--name` unless `option` names another; `placeholder` is in its
    field on a page. `one_job`: it goes with the id of one job only.
    """

    name: str
    type: Any
    help: str
    option: str = ""
    metavar: str | None = None
    placeholder: str = ""
    required: bool = False
    one_job: bool = False

    @property
    def plain(self) -> type:
        """The type without its bounds: str, int or bool."""
        found: type = getattr(self.type, "__origin__", self.type)
        return found

    @property
    def is_number(self) -> bool:
        """Is it a whole number?"""
        return self.plain is int

    def read(self, value: object) -> str | int | bool:
        """The value as the change takes it; raises `InvalidInput`."""
        if self.is_number and not isinstance(value, int):
            raise InvalidInput(self.name, value, "must be a whole number")
        found: str | int | bool = self.plain(value)
        return found


class Question(NamedTuple):
    """What a page asks before it acts: title, consequence, the button that does it, the one that does not."""

    title: str
    text: str
    yes: str
    no: str


class Button(Struct, frozen=True, kw_only=True):
    """How the page of a job offers an action, and what it says afterwards.

    `verb` is its address, the action's name unless it says otherwise, and `given` is sent with it. Without a `label`
    the page has no button, only the address. `main`: not in the menu; `once_asked`: only after a request to stop.
    `question` is asked in the statuses `asks`; with `form` it has fields for the required parameters.
    `done` and `idle` are the sentences after it changed the job, or found nothing to do. `undo` is the verb that
    reverts it, with the former values that it sends.
    """

    label: str = ""
    hint: str = ""
    verb: str = ""
    labels: Mapping[Status, str] = {}
    statuses: frozenset[Status] | None = None
    given: Given = {}
    main: bool = True
    form: bool = False
    once_asked: bool = False
    question: Question | None = None
    asks: frozenset[Status] = frozenset()
    done: str = ""
    idle: str = ""
    undo: str = ""
    former: tuple[str, ...] = ()


class Action(Struct, frozen=True, kw_only=True):
    """One action. `statuses` allow its change; in those of `idle` a job has already what the action is for.

    Words: `label` is on buttons, `labels` on those for many jobs; `summary` says what it does to one job, `help` to
    many; `follows` is the consequence for many, and `keep` the way out. `past` is what was done, `tally` the same with
    the number of `{jobs}`.

    `many`: it can be done to a filter; `spares` are statuses that it leaves alone there. `destroys`: nothing brings the
    job back, so it always asks. `readies`: it makes jobs ready, which then wait for their queue. `takes_key`: the
    unique key of the job must be free. `restorable`: `restore` undoes it. `becomes` is the status of a changed job.
    `of_group` are the members that it means when it is done to a group, as `is:` says; empty: it is not.
    """

    name: str
    change: type[Change]
    statuses: frozenset[Status]
    parameters: tuple[Parameter, ...] = ()
    role: Role = "operate"
    label: str
    labels: str = ""
    summary: str
    help: str = ""
    follows: str = ""
    keep: str = ""
    past: str
    tally: str = ""
    buttons: tuple[Button, ...] = ()
    many: bool = True
    spares: frozenset[Status] = frozenset()
    idle: frozenset[Status] = frozenset()
    becomes: Status | None = None
    destroys: bool = False
    readies: bool = False
    takes_key: bool = False
    restorable: bool = False
    of_group: str = ""

    @property
    def method(self) -> str:
        """The name of the method of an admin that does it."""
        return self.name.replace("-", "_")

    @property
    def deed(self) -> str:
        """What the audit log calls it."""
        return f"jobs.{self.method}"

    @property
    def required(self) -> list[Parameter]:
        """The parameters without which it cannot be done."""
        return [one for one in self.parameters if one.required]

    def many_label(self) -> str:
        """The label of a button for many jobs."""
        return self.labels or self.label

    def allowed(self, *, by_filter: bool) -> frozenset[Status]:
        """The statuses that it applies to."""
        return self.statuses - self.spares if by_filter else self.statuses

    def check(self, given: Given) -> None:
        """Refuse what it does not take, and name what it lacks."""
        known = {one.name: one for one in self.parameters}
        if unknown := sorted(given.keys() - known.keys()):
            raise InvalidInput(unknown[0], given[unknown[0]], f"does not belong to {self.name}")
        if missing := [one.name for one in self.required if given.get(one.name) is None]:
            raise InvalidInput(missing[0], None, f"is needed by {self.name}")

    def check_many(self, given: Given) -> None:
        """Refuse what is meant for one job: of many that were put first none would be."""
        for one in self.parameters:
            if one.one_job and given.get(one.name):
                raise InvalidInput(one.name, "several jobs", "goes with the id of one job")

    def making(self, given: Given, mint: Callable[[], JobId]) -> Making:
        """What it changes, with what is given; a copy gets its id from `mint`."""
        self.check(given)
        if self.change is Clone:
            return lambda n: Clone(tuple(mint() for _ in range(n)))
        if self.change is Fork:
            after = str(given["after"]) if given.get("after") else None
            return lambda n: Fork(tuple(mint() for _ in range(n)), after)
        taken = [one for one in self.parameters if one.name in self.change.__struct_fields__]
        fields: dict[str, Any] = {
            one.name: one.read(given[one.name]) for one in taken if given.get(one.name) is not None
        }
        change = self.change(**fields)
        return lambda _: change


_ALL: Final = (
    Action(
        name="requeue",
        change=Requeue,
        statuses=REQUEUEABLE,
        label="Requeue",
        summary="Run a job again.",
        help="Put jobs back, due now, with a fresh budget of attempts.",
        follows="They run again as soon as a worker is free, each with a fresh budget of attempts.",
        keep="Keep them as they are",
        past="Requeued",
        buttons=(
            Button(
                label="Requeue",
                labels={Status.RETRYING: "Requeue now"},
                hint="The same job again, with a fresh budget",
                done="Requeued {kind}. {follows}",
                idle="{kind} waits or runs already. Nothing was changed.",
            ),
        ),
        idle=frozenset({Status.PENDING, Status.RUNNING}),
        becomes=Status.PENDING,
        readies=True,
        takes_key=True,
    ),
    Action(
        name="retry",
        change=Clone,
        statuses=DEAD,
        label="Retry as copy",
        labels="Retry as copies",
        summary="Enqueue a copy of a dead job.",
        help="Enqueue copies of dead jobs under new ids.",
        follows="Each gets a new job; the old ones are kept as retried.",
        keep="Keep them as they are",
        past="Copied",
        buttons=(
            Button(
                label="Retry as copy",
                hint="A new job; this one is kept as retried",
                done="Enqueued a copy of {kind}. The old job is kept as retried. {still}",
            ),
        ),
        becomes=Status.RETRIED,
        of_group="dead",
        readies=True,
        takes_key=True,
    ),
    Action(
        name="fork",
        change=Fork,
        statuses=frozenset(Status),
        parameters=(
            Parameter(
                name="after",
                type=Annotated[str, Meta(min_length=1, max_length=LONGEST_ROW)],
                one_job=True,
                metavar="STEP",
                help="One ID: keep its finished steps up to this one.",
            ),
        ),
        label="Fork",
        summary="Enqueue a copy of a job, from its beginning or behind one of its steps.",
        help="Enqueue copies that run from their beginning; the jobs stay as they are.",
        follows="Each gets a new job that runs from its beginning; the old ones stay as they are.",
        keep="Make no copies",
        past="Forked",
        buttons=(
            Button(
                label="Fork",
                hint="A copy from the beginning; this one stays",
                main=False,
                done="Enqueued a copy of {kind}; this one stays as it is. {still}",
            ),
        ),
        readies=True,
    ),
    Action(
        name="run-now",
        change=RunNow,
        statuses=frozenset({Status.PENDING}),
        parameters=(
            Parameter(
                name="first", type=bool, one_job=True, help="One ID: before all others, ahead of its queue's rate."
            ),
        ),
        label="Run now",
        summary="Make a job due now.",
        help="Make scheduled jobs due now.",
        follows="They are due at once.",
        keep="Let them wait",
        past="Made due",
        tally="{jobs} made due",
        buttons=(
            Button(
                label="Run this one now",
                hint="First in its queue, and ahead of its rate",
                statuses=WAITING,
                given={"first": True},
                done="{kind} is the first of {queue} now. {still}",
                idle="{kind} runs already. Nothing was changed.",
                undo="edit",
                former=("priority", "at"),
            ),
        ),
        idle=RUNNING,
        readies=True,
    ),
    Action(
        name="cancel",
        change=Cancel,
        statuses=WAITING | RUNNING,
        parameters=(
            Parameter(name="reason", type=Reason, help="Becomes the last error of the jobs."),
            Parameter(name="force", type=bool, help="Take running jobs away from handlers that ignore the request."),
            Parameter(
                name="children",
                type=bool,
                one_job=True,
                help="One ID: also the jobs that it called and that have not ended.",
            ),
        ),
        label="Cancel",
        summary="Cancel a job.",
        help="Cancel waiting jobs; ask running ones to stop.",
        follows="Waiting jobs end; running ones are asked to stop.",
        keep="Let them go on",
        past="Canceled",
        buttons=(
            Button(
                label="Cancel",
                hint="Waiting jobs end; a running one is asked to stop",
                question=Question(
                    "Ask it to stop?",
                    "Its worker is told to stop it. A handler that ignores this goes on.",
                    "Ask it to stop",
                    "Let it run",
                ),
                asks=RUNNING,
                done="Canceled {kind}.",
                undo="restore",
            ),
            Button(
                verb="force-cancel",
                given={"force": True},
                label="Take the claim away…",
                hint="Another worker may go on",
                statuses=RUNNING,
                main=False,
                once_asked=True,
                question=Question(
                    "Take the claim away?",
                    "The job ends now. Its handler may still be running, and what it does from now on is not recorded.",
                    "Take the claim away",
                    "Leave it with its worker",
                ),
                asks=frozenset(Status),
                done="Canceled {kind}.",
                undo="restore",
            ),
        ),
        becomes=Status.CANCELED,
        restorable=True,
        of_group="active",
    ),
    Action(
        name="discard",
        change=Discard,
        statuses=DEAD,
        label="Discard",
        summary="Take a job off the dead list.",
        help="Take dead jobs off the dead list without running them again.",
        follows="They leave the dead list and are kept.",
        keep="Leave them on the list",
        past="Discarded",
        buttons=(
            Button(
                label="Discard",
                hint="Off the dead list, kept",
                done="Discarded {kind}. It is off the dead list and kept.",
                undo="restore",
            ),
        ),
        becomes=Status.DISCARDED,
        restorable=True,
    ),
    Action(
        name="restore",
        change=Restore,
        statuses=frozenset({Status.CANCELED, Status.DISCARDED}),
        label="Restore",
        summary="Undo a cancel or a discard.",
        past="Restored",
        many=False,
    ),
    Action(
        name="edit",
        change=Edit,
        statuses=WAITING | DEAD,
        label="Edit",
        summary="Change what a job was enqueued with.",
        past="Edited",
        buttons=(Button(label="Edit…", hint="Priority, time or payload", main=False, form=True),),
        many=False,
    ),
    Action(
        name="move",
        change=Move,
        statuses=WAITING,
        parameters=(
            Parameter(name="queue", type=Name, required=True, option="to", metavar="QUEUE", help="The other queue."),
            Parameter(name="create", type=bool, help="Accept a name that is not known yet."),
        ),
        label="Move",
        summary="Put a job into another queue.",
        help="Put waiting jobs into another queue.",
        follows="They wait in the other queue.",
        keep="Leave them where they are",
        past="Moved",
        buttons=(
            Button(
                label="Move…",
                hint="To another queue",
                main=False,
                form=True,
                question=Question(
                    "Move {kind}",
                    "It waits in {queue} and goes to the queue you name, under its own id.",
                    "Move the job",
                    "Leave it in {queue}",
                ),
                done="Moved {kind} to {queue}. {still}",
                undo="move",
                former=("queue",),
            ),
        ),
    ),
    Action(
        name="prioritize",
        change=Prioritize,
        statuses=WAITING,
        parameters=(
            Parameter(
                name="priority",
                type=Priority,
                required=True,
                metavar="N",
                help="-1000 to 1000.",
                placeholder="-1000 to 1000, lower runs first",
            ),
        ),
        label="Prioritize",
        summary="Give a job another priority.",
        help="Give waiting jobs another priority; lower runs first.",
        follows="Lower numbers run first.",
        keep="Keep their order",
        past="Prioritized",
        buttons=(Button(done="{kind} has priority {priority}.", undo="prioritize", former=("priority",)),),
    ),
    Action(
        name="delete",
        change=Delete,
        statuses=frozenset(Status),
        label="Delete",
        summary="Delete a job.",
        help="Remove jobs and their events.",
        follows="Their records and histories are gone for good. Running jobs are left alone.",
        keep="Keep them",
        past="Deleted",
        buttons=(
            Button(
                label="Delete…",
                hint="Gone, with its history",
                main=False,
                question=Question(
                    "Delete this job?", "Its record and its history are gone for good.", "Delete the job", "Keep it"
                ),
                asks=frozenset(Status),
                done="Deleted {kind}.",
            ),
        ),
        spares=RUNNING,
        destroys=True,
    ),
)

ACTIONS: Final = {one.name: one for one in _ALL}
"""Every action by name, in the order in which they are offered."""

MANY: Final = {name: one for name, one in ACTIONS.items() if one.many}
"""Those that can be done to many jobs."""

OF_GROUP: Final = {name: one for name, one in MANY.items() if one.of_group}
"""Those that can be done to the members of a group."""

_OF: Final = {one.change: one for one in _ALL}


def action_of(change: Change) -> Action:
    """The action that makes a change."""
    return _OF[type(change)]


def on_many(name: str, field: str = "action") -> Action:
    """An action on many jobs by its name; `field` is what a refusal names."""
    found = MANY.get(name)
    if found is None:
        raise InvalidInput(field, name, f"must be one of {', '.join(MANY)}")
    return found


def on_group(name: str) -> Action:
    """An action on the members of a group by its name."""
    found = OF_GROUP.get(name)
    if found is None:
        raise InvalidInput("action", name, f"must be one of {', '.join(OF_GROUP)}")
    return found


def allows(change: Change, status: Status) -> bool:
    """May this change touch a job in this status? On a running job cancel and delete become a request to stop."""
    if isinstance(change, Reseal):
        return True
    if isinstance(change, Edit) and change.at is not None and status is Status.DEAD:
        return False
    if isinstance(change, RunNow) and change.first:
        return status in WAITING
    return status in action_of(change).statuses
