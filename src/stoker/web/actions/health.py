"""What a form does on the page of health: check up again, acknowledge a finding."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from stoker.web import view
from stoker.web.actions.result import ActionResult, Doing, answer, come_from
from stoker.web.forms import number
from stoker.web.pages.health import check_up
from stoker.web.pages.shared import needs_everything
from stoker.web.request import RequestContext
from stoker.web.view import Flash


async def check(visit: RequestContext) -> Response:
    """Check the store up again; within a minute of the last time, say when that can be done."""
    await visit.board.form(visit)
    _, fresh = await check_up(visit)
    made = visit.board.check_ups
    said = "The store was checked again."
    if not fresh:
        old, left = (max(round(each), 1) for each in (made.age, made.again_in))
        said = f"This check-up is {old} s old, and at most one is made in a minute. Ask again in {left} s."
    return view.redirect(visit, visit.url("health"), Flash(said))


async def run(verb: str, visit: RequestContext) -> Response:
    """Do one thing to the finding that the form names."""
    return answer(visit, await FINDING_VERBS[verb](visit), visit.url("health"))


async def _acknowledge(visit: RequestContext) -> ActionResult:
    form = await visit.board.form(visit)
    needs_everything(visit)
    finding, hours = form.get("finding"), number("hours", form.get("hours") or "24")
    await visit.admin.health.acknowledge(finding, reason=form.get("reason"), for_=hours * 3_600)
    undo = Flash(f"Acknowledged: {finding}.", "findings/withdraw", (("finding", finding),))
    return ActionResult(undo, come_from(visit, form.get("next"), "health"))


async def _withdraw(visit: RequestContext) -> ActionResult:
    form = await visit.board.form(visit)
    needs_everything(visit)
    await visit.admin.health.withdraw(form.get("finding"))
    return ActionResult(Flash(f"It counts again: {form.get('finding')}."), come_from(visit, form.get("next"), "health"))


FINDING_VERBS: Final[dict[str, Doing[RequestContext]]] = {"acknowledge": _acknowledge, "withdraw": _withdraw}
