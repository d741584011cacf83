"""Schedules for operators: when they fire, what became of the last time, and how to steer them."""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

import msgspec

from stoker.admin.audit import audited
from stoker.admin.context import Noun
from stoker.handle import JobHandle
from stoker.model.errors import InvalidSchedule, NotFound
from stoker.model.job import Draft, check_name
from stoker.model.schedule import Edit
from stoker.model.schedule import Schedule as StoredSchedule
from stoker.schedules import ScheduleHandle, ScheduleOptions, as_template, parse, plan
from stoker.views import Schedule


class SchedulesAdmin(Noun):
    """Questions about schedules, and changes to them. Every call about one raises `NotFound` where there is none."""

    async def get(self, name: str) -> Schedule:
        """One schedule as it is stored now."""
        return self._shown(await self._handle(name).info())

    async def next(self, name: str, n: int = 5) -> list[datetime]:
        """The next occurrences after now, in the schedule's zone, whether or not it is enabled."""
        return await self._handle(name).next(n)

    async def pause(self, name: str) -> None:
        """Stop firing, on every worker, until `resume`."""
        await self._put(Edit(name=name, enabled=False))

    async def resume(self, name: str) -> None:
        """Fire again from the next occurrence on; nothing is caught up."""
        await self._put(Edit(name=name, enabled=True))

    async def run_now(self, name: str) -> str:
        """Enqueue one job beside the timetable; returns its id.

        With `overlap="skip"` the id of an active job of the schedule is returned instead.
        """
        job: JobHandle[object] = await self._handle(name).run_now()
        await audited(self._context, "schedules.run", f"schedule {name}", after={"job": job.id})
        return job.id

    async def create(self, name: str, draft: Draft, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Store a new schedule that enqueues `draft`; one of that name must not be there yet."""
        given = plan(name, draft, "api", parse(options))
        engine = await self._context.engine()
        if any(one.name == name for one in await engine.schedules.read()):
            raise InvalidSchedule(
                "name", name, "is the name of another schedule: edit that one, or choose another name"
            )
        return self._shown(await self._put(given))

    async def edit(self, name: str, draft: Draft | None = None, **options: Unpack[ScheduleOptions]) -> Schedule:
        """Change what is given; deployments keep the edit until `reset`."""
        given = parse(options)
        if draft is not None:
            given["template"] = as_template(draft)
        return self._shown(await self._put(Edit(name=name, **given)))

    async def reset(self, name: str) -> Schedule:
        """Give an edited schedule back to the code that declares it; needs the app."""
        declaration = self._context.app.declared_schedules.get(name)
        if declaration is None:
            return self._shown(await self._handle(name).reset())  # which says that nothing declares it
        return self._shown(await self._put(declaration.schedule()))

    async def drop(self, name: str) -> None:
        """Remove a schedule; jobs that it made stay. One that code declares comes back when a worker starts."""
        check_name("schedule name", name)
        engine = await self._context.engine()
        if not await engine.schedules.drop(name, by=self._context.signed()):
            raise NotFound(f"schedule {name!r} is not in the store")

    async def list(self) -> list[Schedule]:
        """Every schedule of the store, by name, those of other apps included."""
        return [self._shown(one) for one in await self._context.app.schedules()]

    async def _put(self, given: Edit | StoredSchedule) -> Schedule:
        check_name("schedule name", given.name)
        engine = await self._context.engine()
        stored = await engine.schedules.put(given, by=self._context.signed())
        if stored is None:
            raise NotFound(f"schedule {given.name!r} is not in the store: it was never stored, or it was dropped")
        return self._context.app.schedule_record(stored)

    def _handle(self, name: str) -> ScheduleHandle:
        return self._context.app.schedule_handle(name)

    def _shown(self, one: Schedule) -> Schedule:
        context = self._context
        error = None if one.last_error is None else context.redact.text(one.last_error)
        return msgspec.structs.replace(one, payload=context.listed_payload(one.payload), last_error=error)
