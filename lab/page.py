"""The tables of `docs/explanation/reliability.md`, made from the file of results by `scripts/doc_tables.py`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any, Final

from lab import results
from lab.faults import FAULTS
from lab.judge import WORDS
from lab.results import Sum
from lab.workloads import WORKLOADS

NONE: Final = "none"

RECOVERED: Final = {
    "killed": "a job whose process was killed runs again",
    "frozen": "a job whose process was frozen runs elsewhere",
    "back": "the first end after the store was back",
}
"""The times of recovery, by the words of the ledger."""


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _by_engine(rows: dict[str, Callable[[Sum], str]], first: str) -> str:
    found = results.sums(results.read())
    cells = [[name, *(show(one) for one in found.values())] for name, show in rows.items()]
    return _table([first, *(results.NAMES[engine] for engine in found)], cells)


def _number(*path: str) -> Callable[[Sum], str]:
    """A count: the room of the sum, and the name in it."""
    room, name = path
    return lambda one: f"{getattr(one, room)[name]:,}"


def work() -> str:
    """What was done, how it was disturbed, and what was wrong in the end."""
    rows: dict[str, Callable[[Sum], str]] = {
        "storms": lambda one: f"{one.runs}",
        "minutes under faults": lambda one: f"{one.minutes:,.0f}",
        "**kill -9**": _number("faults", "kills"),
        "**frozen beyond the lease**": _number("faults", "freezes"),
        "**server restarts** (SQLite: reboots)": _number("faults", "restarts"),
        "failovers to a replica": _number("faults", "failovers"),
        "jobs acknowledged": _number("work", "acked"),
        "runs of handlers": _number("work", "runs"),
        "**durable steps**": _number("work", "steps"),
        "messages of the outbox": _number("work", "messages"),
        "writes of blocks and steps in a transaction": _number("work", "effects"),
        "occurrences of a schedule": _number("work", "occurrences"),
    }
    wrong = {f"**{word}**: {meaning}": _number("wrong", word) for word, meaning in WORDS.items()}
    return _by_engine({**rows, **wrong}, "")


def summary() -> str:
    """What the README shows: how much was disturbed, and the sum of what was wrong."""
    rows: dict[str, Callable[[Sum], str]] = {
        "processes killed by `kill -9`": _number("faults", "kills"),
        "processes frozen beyond the lease": _number("faults", "freezes"),
        "server restarts (SQLite: reboots)": _number("faults", "restarts"),
        "jobs acknowledged": _number("work", "acked"),
        "durable steps": _number("work", "steps"),
        f"**{', '.join(WORDS)}**": lambda one: f"{sum(one.wrong.values()):,}",
    }
    return _by_engine(rows, "While jobs ran")


def recovery() -> str:
    """How long it took until jobs ran again."""

    def shown(after: str) -> Callable[[Sum], str]:
        return lambda one: one.recovered(after)

    return _by_engine({text: shown(after) for after, text in RECOVERED.items()}, "p50 / p99 / longest, seconds")


def thawed() -> str:
    """What frozen processes did before they knew."""
    names = ("runs after the end of their job", "steps after they were stored", "runs over a limit")
    return _by_engine({name: _number("thawed", name) for name in names}, "")


def faults() -> str:
    """The table of faults, with how often each was done, or why an engine cannot have it."""
    found = results.sums(results.read())
    rows, notes = [], dict[str, int]()
    for fault in FAULTS:
        cells = []
        for engine, one in found.items():
            if engine in fault.cannot:
                number = notes.setdefault(fault.cannot[engine], len(notes) + 1)
                cells.append(f"({number})")
            else:
                cells.append(f"{one.faults[fault.name]:,}")
        rows.append([fault.name, fault.what, *cells])
    listed = [f"({number}) {why}" for why, number in notes.items()]
    heads = ["Fault", "", *(results.NAMES[engine] for engine in found)]
    return _table(heads, rows) + "\n\n" + "; ".join(listed) + "."


def workloads() -> str:
    """The table of workloads, as a paragraph."""
    listed = [f"**{one.name}** ({one.what}{'; not on Redis' * one.transactional})" for one in WORKLOADS]
    return textwrap.fill(", ".join(listed) + ".", 118, break_long_words=False, break_on_hyphens=False)


def _revision(line: dict[str, Any]) -> str:
    """The revision that made a line, and whether its code was another one; of old lines that is not known."""
    tree = line.get("tree", "taken at its end")
    return line["revision"] if tree == "clean" else f"{line['revision']} ({tree})"


def made_with() -> str:
    """Versions and settings of the storms."""
    rows = []
    for engine, one in results.sums(results.read()).items():
        lines = [line for line in results.current(results.read()) if line["engine"] == engine]
        settings = {f"{name} {value}" for line in lines for name, value in line["settings"].items()}
        cells = [", ".join(sorted(some)) or NONE for some in (one.servers, one.pythons, settings)]
        revisions = ", ".join(dict.fromkeys(_revision(line) for line in lines)) or NONE
        rows.append([results.NAMES[engine], *cells, revisions])
    return _table(["", "Server", "Python", "Settings", "Revisions"], rows)


PARTS: Final[dict[str, Callable[[], str]]] = {
    "lab summary": summary,
    "lab work": work,
    "lab recovery": recovery,
    "lab thawed": thawed,
    "lab faults": faults,
    "lab workloads": workloads,
    "lab versions": made_with,
}
