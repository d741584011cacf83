"""What a form does to a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from stoker.model.errors import InvalidInput, NotFound
from stoker.model.schedule import Schedule
from stoker.web.actions.result import ActionResult, Doing, answer, come_from
from stoker.web.forms import Form
from stoker.web.pages import schedules
from stoker.web.pages.shared import check_queue
from stoker.web.request import RequestContext
from stoker.web.view import Flash


@dataclass(frozen=True)
class ScheduleForm:
    """A form about one schedule: the schedule as it was before, and the page to go back to."""

    visit: RequestContext
    form: Form
    before: Schedule
    back: str

    @property
    def name(self) -> str:
        return self.before.name

    def undo(self, text: str, verb: str) -> ActionResult:
        """What was done, with the form that reverts it and comes back here."""
        return ActionResult(Flash(text, f"schedules/{quote(self.name, safe='')}/{verb}", (("next", self.back),)))


async def run(verb: str, visit: RequestContext) -> Response:
    """Do one thing to the schedule of the address."""
    name = visit.request.path_params["name"]
    form = await visit.board.form(visit)
    engine = await visit.board.store.engine()
    before = next((one for one in await engine.schedules.read() if one.name == name), None)
    if before is None:
        raise NotFound(f"There is no schedule {name}.")
    check_queue(visit, before.template.queue)
    back = come_from(visit, form.get("next"), f"schedules/{quote(name, safe='')}")
    return answer(visit, await VERBS[verb](ScheduleForm(visit, form, before, back)), back)


async def _pause(one: ScheduleForm) -> ActionResult:
    await one.visit.admin.schedules.pause(one.name)
    return one.undo(f"Paused {one.name}.", "resume")


async def _resume(one: ScheduleForm) -> ActionResult:
    await one.visit.admin.schedules.resume(one.name)
    return one.undo(f"Resumed {one.name}.", "pause")


async def _run_now(one: ScheduleForm) -> ActionResult:
    job = await one.visit.admin.schedules.run_now(one.name)
    return ActionResult(Flash(f"Enqueued one job of {one.name}: {job}."))


async def _edit(one: ScheduleForm) -> ActionResult | Response:
    if one.form.get("preview"):
        return await schedules.page(one.visit, given=one.form)
    try:
        return ActionResult(await schedules.save(one.visit, one.form, one.before))
    except InvalidInput as error:
        return await schedules.page(one.visit, str(error), one.form)


async def _reset(one: ScheduleForm) -> ActionResult:
    await one.visit.admin.schedules.reset(one.name)
    return ActionResult(Flash(f"{one.name} follows the code again."))


VERBS: Final[dict[str, Doing[ScheduleForm]]] = {
    "pause": _pause,
    "resume": _resume,
    "run-now": _run_now,
    "edit": _edit,
    "reset": _reset,
}
