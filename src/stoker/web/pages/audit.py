"""The audit log: who changed what, when, through what and why. Nothing here can be changed."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from stoker.admin.audit import AuditView
from stoker.model.audit import difference, in_words
from stoker.model.errors import InvalidArgument
from stoker.model.time import DAY, HOUR, SECOND
from stoker.web import view
from stoker.web.pages import shared
from stoker.web.request import RequestContext

SHOWN = 100
WAYS: Final = {"page": "dashboard", "token": "API"}
"""How people call what they came through."""
WINDOWS: Final = {"1h": HOUR, "24h": DAY, "7d": 7 * DAY, "30d": 30 * DAY, "90d": 90 * DAY}


async def show(visit: RequestContext) -> Response:
    """The latest entries."""
    reading = await visit.board.hub.reading()
    since = visit.parameter("since", "7d")
    if since not in WINDOWS:
        raise InvalidArgument("since", since, f"must be one of {', '.join(WINDOWS)}")
    who, target = visit.parameter("who") or None, visit.parameter("target") or None
    found = await visit.admin.audit.list(WINDOWS[since] / SECOND, who=who, target=target, limit=SHOWN)
    context = view.common(visit, "audit", "Audit", shared.found(visit, reading)) | {
        "now": reading.census.at,
        "rows": [_row(visit, one) for one in found],
        "since": since,
        "windows": [(name, visit.url("audit", since=name, who=who, target=target)) for name in WINDOWS],
        "who": who or "",
        "target": target or "",
        "live_url": "",
    }
    return view.page(visit, "audit.html", context)


def _row(visit: RequestContext, one: AuditView) -> dict[str, Any]:
    noun, _, name = one.target.partition(" ")
    links = {"job": f"jobs/{name}", "queue": f"queues/{name}", "schedule": f"schedules/{name}"}
    return {
        "entry": one,
        "way": WAYS.get(one.way, one.way),
        "did": in_words(one.action, one.before, one.after),
        "link": visit.url(links[noun]) if noun in links and name else "",
        "count": one.count if noun == "letters" else 0,
        "change": difference(one.before, one.after),
    }
