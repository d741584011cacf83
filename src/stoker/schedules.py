"""Schedules as an app declares, stores and steers them.

A schedule is in the store, with the whole draft of its jobs, so the ticker of any worker fires it. `Declaration` is one
that code declares with `@jobs.cron`; workers store it when they start. `ScheduleHandle` is a name and the app it
belongs to: every action reads or changes what is stored, and has a sync form for code without a loop.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

from stoker.model import schedule as stored
from stoker.model.cron import every as interval
from stoker.model.cron import zone
from stoker.model.errors import InvalidSchedule, NotFound, StokerError
from stoker.model.job import Draft, check_markers, check_name
from stoker.model.schedule import NO_ID, Edit, Misfire, Overlap, Source, extra_draft, template, upcoming
from stoker.model.seal import check_open
from stoker.model.time import Instant, Seconds, moment, span
from stoker.model.unique import Unique
from stoker.settings import check_known
from stoker.sync import in_sync
from stoker.views import Schedule

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.handle import JobHandle
    from stoker.task import Task


class ScheduleOptions(TypedDict, total=False):
    """When a schedule fires and what it does about missed and overlapping occurrences, as a caller writes it."""

    cron: str | None
    every: Seconds | None
    tz: str | None
    misfire: Misfire | None
    grace: Seconds | None
    overlap: Overlap | None
    jitter: Seconds | None


def parse(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a schedule that a caller gave; raises `InvalidSchedule` naming the first that is wrong."""
    check_known(options, ScheduleOptions.__annotations__, "the schedule option")
    given = {name: value for name, value in options.items() if value is not None}
    cron, every = given.pop("cron", None), given.pop("every", None)
    if cron is not None and every is not None:
        raise InvalidSchedule("every", every, f"cannot go with cron={cron!r}: give one of them")
    if every is not None and "tz" in given:
        raise InvalidSchedule("tz", given["tz"], "belongs to cron=; every= counts seconds since 1970 UTC")
    for name in given.keys() & {"grace", "jitter"}:
        given[name] = span(given[name], name)
    if every is not None:
        given |= {"expression": interval(every), "tz": "UTC"}
    elif cron is not None:
        given["expression"] = cron
    return given


def plan(name: str, draft: Draft, source: Source, given: Mapping[str, Any]) -> stored.Schedule:
    """A schedule as it is stored, of fields that `parse` returned."""
    if "expression" not in given:
        raise InvalidSchedule("cron", None, "is missing: give cron='0 9 * * *' or every=90")
    return stored.Schedule(name=name, template=as_template(draft), source=source, **given)


def as_template(draft: Draft) -> Draft:
    """What a caller gave as the job of a schedule."""
    if not isinstance(draft, Draft):
        raise InvalidSchedule("draft", draft, "must be a draft, as task.draft(...) makes it")
    check_markers(draft)
    return template(draft)


class Declaration(NamedTuple):
    """A schedule that code declares: the task it calls without arguments, and where it is declared."""

    name: str
    task: Task[..., Any]
    given: Mapping[str, Any]
    place: str

    def schedule(self) -> stored.Schedule:
        """The schedule, with the options that its task resolves to now."""
        return plan(self.name, self.task.draft(), "code", self.given)

    def check(self, now: Instant) -> None:
        """Raise for what can never fire, without asking the app's router and hooks."""
        _check_defaults(self.task)
        unique = Unique("probe") if self.task.options.unique else None
        stored.check(plan(self.name, Draft(NO_ID, self.task.name, unique=unique), "code", self.given), now)


def _check_defaults(task: Task[..., Any]) -> None:
    for one in inspect.signature(task.fn).parameters.values():
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            why = (
                f"needs a default for its parameter {one.name!r}, because a schedule calls it without arguments; "
                f"with arguments, store one: jobs.schedule(name, {task.__name__}.draft(...), cron=...)"
            )
            raise InvalidSchedule(f"task {task.name!r}", task.fn, why)


class ScheduleHandle:
    """One schedule, by name."""

    __slots__ = ("_app", "name")

    def __init__(self, app: Stoker, name: str) -> None:
        self._app = app
        self.name = check_name("schedule name", name)

    def __repr__(self) -> str:
        return f"<ScheduleHandle {self.name}>"

    # --- looking ------------------------------------------------------------------------------------------------

    async def info(self) -> Schedule:
        """The schedule as it is stored now: its timing, its next fire, and what became of the last one."""
        return self._app.schedule_record(await self._stored())

    async def next(self, n: int = 5) -> list[datetime]:
        """The next occurrences after now, in the schedule's zone, whether or not it is enabled."""
        found = await self._stored()
        engine = await self._app.engine()
        place = zone(found.tz)
        return [moment(at).astimezone(place) for at in upcoming(found, await engine.now(), n)]

    # --- steering -----------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stop firing, on every worker, until `resume`; jobs that were made go on."""
        await self._edit(Edit(name=self.name, enabled=False))

    async def resume(self) -> None:
        """Fire again from the next occurrence on; what was missed meanwhile is not caught up."""
        await self._edit(Edit(name=self.name, enabled=True))

    async def run_now(self) -> JobHandle[Any]:
        """Enqueue one job beside the timetable. With `overlap="skip"` an active job of the schedule is returned."""
        found = await self._stored()
        check_open(found.template.payload, f"the arguments of schedule {self.name}")
        return await self._app.enqueue(extra_draft(found, self._app.mint()))

    async def edit(self, draft: Draft | None = None, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Change what is given: the draft of its jobs, its timing, its policies.

        Deployments keep the edit of a declared schedule until `reset`.
        """
        given = parse(options)
        if draft is not None:
            given["template"] = as_template(draft)
        return await self._edit(Edit(name=self.name, **given))

    async def reset(self) -> Schedule:
        """Store the schedule as this app's code declares it, without the edits, and enabled."""
        declaration = self._app.declared_schedules.get(self.name)
        if declaration is None:
            raise StokerError(
                f"no code of this app declares schedule {self.name!r}, so there is nothing to reset it to. "
                "It is unchanged. Call this where its @jobs.cron is imported, or use edit()."
            )
        engine = await self._app.engine()
        reset = await engine.schedules.put(declaration.schedule())
        assert reset is not None, "a whole schedule is stored"
        return self._app.schedule_record(reset)

    # --- without a loop -----------------------------------------------------------------------------------------

    info_sync = in_sync(info)
    next_sync = in_sync(next)  # noqa: A003 - the method above
    pause_sync = in_sync(pause)
    resume_sync = in_sync(resume)
    run_now_sync = in_sync(run_now)
    edit_sync = in_sync(edit)
    reset_sync = in_sync(reset)

    # --- what is stored -----------------------------------------------------------------------------------------

    async def _stored(self) -> stored.Schedule:
        engine = await self._app.engine()
        for one in await engine.schedules.read():
            if one.name == self.name:
                return one
        raise self._missing()

    async def _edit(self, change: Edit) -> Schedule:
        engine = await self._app.engine()
        edited = await engine.schedules.put(change)
        if edited is None:
            raise self._missing()
        return self._app.schedule_record(edited)

    def _missing(self) -> NotFound:
        return NotFound(
            f"schedule {self.name!r} is not in the store: it was never stored, it was dropped, or no worker whose "
            "code declares it has started yet"
        )
