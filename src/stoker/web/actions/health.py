"""What a form does on the page of health."""

from __future__ import annotations

from starlette.responses import Response

from stoker.web import view
from stoker.web.pages.health import check_up
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
