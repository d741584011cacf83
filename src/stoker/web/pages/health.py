"""Health: the check-up of `stoker doctor`, every finding, and what the store says about itself."""

from __future__ import annotations

from starlette.responses import Response

from stoker.model.health.check import Grade
from stoker.model.stats import measured
from stoker.model.words import in_words, size
from stoker.web import view
from stoker.web.auth import Open, travels_open
from stoker.web.pages import shared
from stoker.web.visit import Visit

FINE = frozenset({Grade.OK, Grade.NOTE})


async def show(visit: Visit) -> Response:
    """The page of checks."""
    board = visit.board
    reading = await board.hub.reading()
    engine = await board.store.engine()
    checks = await visit.admin.health.check()
    description = await engine.describe()
    board.hub.version = description.version
    found = shared.found(visit, reading)
    bad = sum(one.verdict is Grade.WRONG for one in checks) + sum(one.tone == "bad" for one in found)
    warn = sum(one.verdict is Grade.WARNING for one in checks) + sum(one.tone == "warn" for one in found)
    timings = engine.timings()
    timed = (("reads", timings.reads), ("writes", timings.writes))
    facts = [
        ("Engine", f"{description.engine} {description.version}"),
        ("Where", engine.where),
        ("Durability", description.durability),
        ("Size", size(description.size)),
        *((name, str(value)) for name, value in description.facts.items()),
    ]
    context = view.common(visit, "health", _title(bad, warn), found) | {
        "now": reading.census.at,
        "findings": [shared.issue(visit, one) for one in found],
        "failed": [one for one in checks if one.verdict not in FINE],
        "passed": [one for one in checks if one.verdict in FINE],
        "checked": len(checks),
        "facts": facts,
        "calls": [(name, measured("", name, 0, spans)) for name, spans in timed if spans],
        "notes": notes(visit),
        "live_url": "",
    }
    return view.page(visit, "health.html", context)


def notes(visit: Visit) -> list[str]:
    """What is to be said about this dashboard itself."""
    board, found = visit.board, []
    if isinstance(board.auth, Open):
        found.append("Everybody on this machine may use this dashboard: auth=Open().")
    if travels_open(visit.request):
        found.append("This page came without TLS: whoever is on the way can read tokens and payloads.")
    if board.read_only:
        found.append("This dashboard is read-only.")
    return found


def _title(bad: int, warn: int) -> str:
    parts = [
        f"{in_words(n)} {noun if n == 1 else noun + 's'}" for n, noun in ((bad, "problem"), (warn, "warning")) if n
    ]
    return ", ".join(parts).capitalize() if parts else "Everything is in order"
