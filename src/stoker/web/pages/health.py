"""Health: the check-up of `stoker doctor`, every finding, and what the store says about itself."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from stoker.engines.base import Engine
from stoker.model.findings import Finding
from stoker.model.health.check import Check, Grade
from stoker.model.stats import measured
from stoker.model.words import in_words, number, size
from stoker.web import view
from stoker.web.auth import Open, travels_open
from stoker.web.check_ups import CheckUp
from stoker.web.hub import Reading, Want
from stoker.web.pages import shared
from stoker.web.tokens import KnownTokens
from stoker.web.visit import Visit

CALLS = 12
"""Store calls of a check-up, about."""
FINE = frozenset({Grade.OK, Grade.NOTE})


async def check_up(visit: Visit) -> tuple[CheckUp, bool]:
    """The check-up of the last minute, and whether it was made for this visit."""

    async def examine() -> CheckUp:
        engine = await visit.board.store.engine()
        checks = await visit.admin.health.check()
        return CheckUp(await engine.now(), checks, await engine.describe())

    return await visit.board.check_ups.look(examine)


def wants(visit: Visit) -> list[Want]:
    """The latest check-up. A live page makes none of its own: checks read as a writer does."""

    async def read(_: Engine) -> tuple[CheckUp, int]:
        latest = visit.board.check_ups.latest
        return (latest, 0) if latest is not None else ((await check_up(visit))[0], CALLS)

    return [Want(("health",), read)]


async def show(visit: Visit) -> Response:
    """The page of checks; they are made for it unless they were in the last minute."""
    made, _ = await check_up(visit)
    engine = await visit.board.store.engine()
    timings = engine.timings()
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
        "passed": [one for one in made.checks if one.verdict in FINE],
        "facts": facts,
        "calls": [(name, measured("", name, 0, spans)) for name, spans in timed if spans],
        "notes": notes(visit),
    }
    return view.page(visit, "health.html", context)


def live_context(visit: Visit, reading: Reading, made: CheckUp) -> dict[str, Any]:
    """What changes by itself: the findings, and the title that counts them."""
    found = shared.found(visit, reading)
    findings, failed = _together(visit, found, [one for one in made.checks if one.verdict not in FINE])
    bad = sum(one.verdict is Grade.WRONG for one in failed) + sum(one["tone"] == "bad" for one in findings)
    warn = sum(one.verdict is Grade.WARNING for one in failed) + sum(one["tone"] == "warn" for one in findings)
    return view.common(visit, "health", _title(bad, warn), found) | {
        "now": made.at,
        "findings": findings,
        "failed": failed,
        "checked": len(made.checks),
        "live_url": visit.url("live", page="health"),
    }


def notes(visit: Visit) -> list[str]:
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


SAME: Final = {"queue": "lag", "worker": "workers", "consumer": "consumers"}
"""What a finding is about, and the check that looks at the same."""


def _together(visit: Visit, found: list[Finding], failed: list[Check]) -> tuple[list[dict[str, str]], list[Check]]:
    """Findings with the remedy of the check that complains about the same thing, and the checks that are left."""
    rows, left = [], list(failed)
    for one in found:
        same = next((check for check in left if _is_about(check, one)), None)
        row = shared.issue(visit, one) | {"remedy": "" if same is None else same.remedy}
        if same is not None:
            left.remove(same)
            row["tone"] = "bad" if same.verdict is Grade.WRONG else row["tone"]
        rows.append(row)
    return rows, left


def _is_about(check: Check, one: Finding) -> bool:
    said = f"{check.read} {check.remedy}"
    return (
        one.tone != "plain" and SAME.get(one.noun) == check.name and all(part in said for part in one.name.split(" / "))
    )


def _fact(name: str, value: str) -> tuple[str, str]:
    """A fact of the store in words: sizes with their unit, numbers with their thousands."""
    if value.isdecimal():
        value = size(int(value)) if name.endswith("_bytes") else number(int(value))
    words = name.removesuffix("_bytes").replace("_", " ").replace("wal", "WAL").replace("tls", "TLS")
    return words[:1].upper() + words[1:], value


def _title(bad: int, warn: int) -> str:
    parts = [
        f"{in_words(n)} {noun if n == 1 else noun + 's'}" for n, noun in ((bad, "problem"), (warn, "warning")) if n
    ]
    return ", ".join(parts).capitalize() if parts else "Everything is in order"
