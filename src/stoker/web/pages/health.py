"""Health: the check-up of `stoker doctor`, every finding, and what the store says about itself."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from stoker.engines.base import Engine
from stoker.model.findings import verdict
from stoker.model.health.check import Check, Grade, summary
from stoker.model.health.jobs import OF_FINDINGS
from stoker.model.humanize import in_words, number, size
from stoker.model.stats import measured
from stoker.web import view
from stoker.web.auth import Open, travels_open
from stoker.web.health_cache import CheckUp
from stoker.web.hub import Reading, Want
from stoker.web.pages import shared
from stoker.web.request import RequestContext
from stoker.web.tokens import KnownTokens

CALLS = 12
"""Store calls of a check-up, about."""


async def check_up(visit: RequestContext) -> tuple[CheckUp, bool]:
    """The check-up of the last minute, and whether it was made for this visit."""

    async def examine() -> CheckUp:
        engine, hub = await visit.board.store.engine(), visit.board.hub
        checks = await visit.admin.health.check(hub.situation(await hub.reading()))
        return CheckUp(await engine.now(), checks, await engine.describe())

    return await visit.board.check_ups.look(examine)


def wants(visit: RequestContext) -> list[Want]:
    """The latest check-up. A live page makes none of its own: checks read as a writer does."""

    async def read(_: Engine) -> tuple[CheckUp, int]:
        latest = visit.board.check_ups.latest
        return (latest, 0) if latest is not None else ((await check_up(visit))[0], CALLS)

    return [Want(("health",), read)]


async def show(visit: RequestContext) -> Response:
    """The page of checks; they are made for it unless they were in the last minute."""
    made, _ = await check_up(visit)
    engine = await visit.board.store.engine()
    timings = engine.call_times.drain()
    timed = (("reads", timings.reads), ("writes", timings.writes))
    description = made.description
    facts = [
        ("Engine", f"{description.engine} {description.version}"),
        ("Where", engine.where),
        ("Durability", description.durability),
        ("Size", size(description.size)),
        *(_fact(name, value) for name, value in description.facts.items() if name not in {"path", "where"}),
    ]
    context = live_context(visit, await visit.board.hub.reading(), made) | {
        "facts": facts,
        "calls": [(name, measured("", name, 0, spans)) for name, spans in timed if spans],
        "notes": notes(visit),
    }
    return view.page(visit, "health.html", context)


def live_context(visit: RequestContext, reading: Reading, made: CheckUp) -> dict[str, Any]:
    """What changes by itself: the findings, as the overview has them, and the checks beside them.

    A check that passed and that is made of findings is left out while there is one: it was made up to a minute ago.
    """
    found = shared.found(visit, reading)
    now_found = {OF_FINDINGS[one.noun] for one in found}
    failed = [one for one in own(made.checks) if one.verdict in {Grade.WARNING, Grade.WRONG}]
    noted = [one for one in own(made.checks) if one.verdict is Grade.NOTE]
    passed = [one for one in made.checks if one.verdict is Grade.OK and one.name not in now_found]
    return view.common(visit, "health", _title(verdict(found), failed), found) | {
        "now": made.at,
        "findings": [shared.issue(visit, one) for one in found],
        "failed": failed,
        "noted": noted,
        "passed": passed,
        "checked": summary(made.checks),
        "live_url": visit.url("live", page="health"),
    }


def own(checks: list[Check]) -> list[Check]:
    """The checks that are not made of findings: these are on the page as they are now."""
    return [one for one in checks if one.name not in OF_FINDINGS.values()]


def notes(visit: RequestContext) -> list[str]:
    """What is to be said about this dashboard itself."""
    board, found = visit.board, []
    if isinstance(board.auth, Open):
        found.append("Everybody on this machine may use this dashboard: auth=Open().")
    if isinstance(board.door, KnownTokens) and (board.read_only or board.door.refused_writes):
        found.append("Cookies hold the token itself, because no session is stored: signing out ends it in its browser.")
    if travels_open(visit.request):
        found.append("This page came without TLS: anyone on the network can read tokens and payloads.")
    if board.read_only:
        found.append("This dashboard is read-only.")
    return found


def _fact(name: str, value: str) -> tuple[str, str]:
    """A fact of the store in words: sizes with their unit, numbers with their thousands."""
    if value.isdecimal():
        value = size(int(value)) if name.endswith("_bytes") else number(int(value))
    words = name.removesuffix("_bytes").replace("_", " ").replace("wal", "WAL").replace("tls", "TLS")
    return words[:1].upper() + words[1:], value


def _title(said: str, failed: list[Check]) -> str:
    """The title of the overview; checks of the store that complain are named beside it."""
    if not failed:
        return said
    n = len(failed)
    return f"{said}, and {in_words(n)} {'check' if n == 1 else 'checks'} of the store {'warns' if n == 1 else 'warn'}"
