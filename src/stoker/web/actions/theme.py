"""Light or dark, as a visitor chose it."""

from __future__ import annotations

from starlette.responses import Response

from stoker.web import view
from stoker.web.request import RequestContext
from stoker.web.sign_in import local


async def choose(visit: RequestContext) -> Response:
    """Remember light or dark in a cookie."""
    form = await visit.board.form(visit)
    chosen = form.get("theme")
    response = view.redirect(visit, local(visit, form.get("next")))
    if chosen in {"light", "dark"}:
        response.headers.append("set-cookie", visit.board.cookie(visit, view.THEME_COOKIE, chosen, age=31_536_000))
    return response
