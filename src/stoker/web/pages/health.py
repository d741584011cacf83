"""Health: every finding, what the store says about itself, and how long its calls take."""

from __future__ import annotations

from starlette.responses import Response

from stoker.model.findings import Finding
from stoker.model.stats import measured
from stoker.model.words import in_words, size
from stoker.web import view
from stoker.web.auth import Open
from stoker.web.pages import shared
from stoker.web.visit import Visit


async def show(visit: Visit) -> Response:
    """The page of checks."""
    board = visit.board
    reading = await board.hub.reading()
    engine = await board.store.engine()
    description = await engine.describe()
    found = shared.found(visit, reading)
    found += [Finding("warn", "store", "", warning) for warning in description.warnings]
    bad = sum(one.tone == "bad" for one in found)
    warn = sum(one.tone == "warn" for one in found)
    timings = engine.timings()
    timed = (("reads", timings.reads), ("writes", timings.writes))
    calls = [(name, measured("", name, 0, spans)) for name, spans in timed if spans]
    facts = [
        ("Engine", f"{description.engine} {description.version}"),
        ("Where", engine.where),
        ("Durability", description.durability),
        ("Size", size(description.size)),
        *((name, str(value)) for name, value in description.facts.items()),
    ]
    notes = []
    if isinstance(board.auth, Open):
        notes.append("Everybody on this machine may use this dashboard: auth=Open().")
    if board.read_only:
        notes.append("This dashboard is read-only.")
    context = view.common(visit, "health", _title(bad, warn), [one for one in found if one.noun != "store"]) | {
        "now": reading.census.at,
        "checks": [shared.issue(visit, one) for one in found],
        "facts": facts,
        "calls": calls,
        "notes": notes,
        "live_url": "",
    }
    return view.page(visit, "health.html", context)


def _title(bad: int, warn: int) -> str:
    parts = [
        f"{in_words(n)} {noun if n == 1 else noun + 's'}" for n, noun in ((bad, "problem"), (warn, "warning")) if n
    ]
    return ", ".join(parts).capitalize() if parts else "Everything is in order"
