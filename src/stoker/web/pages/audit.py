"""The audit log: who changed what, when, through what and why. Nothing here can be changed."""

from __future__ import annotations

import json
from typing import Any, Final

from starlette.responses import Response

from stoker.model.audit import AuditEntry, in_words
from stoker.model.errors import InvalidInput
from stoker.model.time import DAY, HOUR, SECOND
from stoker.web import view
from stoker.web.pages import shared
from stoker.web.visit import Visit

SHOWN = 100
WAYS: Final = {"page": "dashboard", "token": "API"}
"""How people call what they came through."""
WINDOWS: Final = {"1h": HOUR, "24h": DAY, "7d": 7 * DAY, "30d": 30 * DAY, "90d": 90 * DAY}


async def show(visit: Visit) -> Response:
    """The latest entries."""
    reading = await visit.board.hub.reading()
    since = visit.parameter("since", "7d")
    if since not in WINDOWS:
        raise InvalidInput("since", since, f"must be one of {', '.join(WINDOWS)}")
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


def _row(visit: Visit, one: AuditEntry) -> dict[str, Any]:
    noun, _, name = one.deed.target.partition(" ")
    links = {"job": f"jobs/{name}", "queue": f"queues/{name}", "schedule": f"schedules/{name}"}
    return {
        "at": one.at,
        "who": one.by.who,
        "way": WAYS.get(one.by.way, one.by.way),
        "action": one.deed.action,
        "did": in_words(one.deed),
        "target": one.deed.target,
        "link": visit.url(links[noun]) if noun in links and name else "",
        "count": one.deed.count if noun == "letters" else 0,
        "reason": one.by.reason or "",
        "request": one.by.request or "",
        "change": _change(one),
    }


def _change(one: AuditEntry) -> str:
    names = sorted({*one.deed.before, *one.deed.after})
    return ", ".join(f"{name} {_text(one.deed.before.get(name))} → {_text(one.deed.after.get(name))}" for name in names)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, default=str)
