"""Writes the parts of the documentation that the code knows better: tables, the state diagram, the text of `--help`.

A page holds a pair of comments, `<!-- generated: NAME -->` and `<!-- end -->`; what stands between them is made here.
Run it after a change of settings, options, engines or statuses; a test fails while a page is out of date.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from stoker import settings
from stoker.cli.command import stoker
from stoker.engines.base import Feature
from stoker.engines.postgres.url import DEFAULTS as POSTGRES
from stoker.engines.redis.engine import DEFAULTS as REDIS
from stoker.engines.url import SCHEMES
from stoker.model.job import ACTIVE, Status
from stoker.model.lifecycle import TRANSITIONS
from stoker.model.time import DAY, HOUR, MINUTE, SECOND

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.peers import report as peers  # noqa: E402 - none of these is a package that is installed
from lab import page  # noqa: E402
from tests.mutants import results as mutants  # noqa: E402

DEFAULTS = {"postgres": POSTGRES, "redis": REDIS, "redis+cluster": REDIS}
"""Of engines on servers, whose options may stand in the URL: a constructor tells only that they were not given."""

PART = re.compile(r"(<!-- generated: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


# --- engines ----------------------------------------------------------------------------------------------------


def engines() -> list[Any]:
    """The classes of the engines that exist, in the order of the URL table."""
    found: list[Any] = []
    for maker in dict.fromkeys(SCHEMES.values()):
        try:
            engine = getattr(importlib.import_module(maker.module), maker.cls, None)
        except ModuleNotFoundError:
            continue
        if engine is not None:
            found.append(engine)
    return found


def engine_table() -> str:
    """What each engine gives beyond the common contract, from the very sets that decide which cases are skipped."""
    columns = engines()
    heads = [f"`{engine.name}://`" for engine in columns]
    rows = [
        [
            f"`{feature.name}`",
            feature.value,
            *("yes" if feature in engine.features else "no" for engine in columns),
        ]
        for feature in Feature
    ]
    return table(["Name", "Meaning", *heads], rows)


def engine_options() -> str:
    """The options of each engine's constructor, which are also those of its URL."""
    rows = []
    for engine in engines():
        hints = typing.get_type_hints(engine.__init__)
        defaults = DEFAULTS.get(engine.name, {})
        for name, parameter in inspect.signature(engine).parameters.items():
            if parameter.default is not inspect.Parameter.empty:
                default = defaults.get(name, parameter.default)
                hint = hints[name] if default is None else _given(hints[name])
                rows.append([f"`{engine.name}`", f"`{name}`", _choices(hint), f"`{default!r}`"])
    return table(["Engine", "Option", "Values", "Default"], rows)


def _given(hint: Any) -> Any:
    """A hint without the None that stands for an option that was not given."""
    parts = [part for part in typing.get_args(hint) if part is not type(None)]
    return parts[0] if len(parts) == 1 and type(None) in typing.get_args(hint) else hint


def _choices(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(hint))
    names = [getattr(part, "__name__", str(part)) for part in typing.get_args(hint) or [hint]]
    if "Callable" in str(hint):
        return "a clock, for tests"
    return " or ".join("none" if name == "NoneType" else name for name in names)


# --- settings ---------------------------------------------------------------------------------------------------


def settings_table(name: str) -> str:
    """Every field of a dataclass in `stoker.settings`, with the sentence that stands below it there."""
    room = getattr(settings, name)
    meanings = _meanings(name)
    rows = [
        [
            f"`{field.name}`",
            f"`{settings.PREFIX}{field.name.upper()}`",
            _shown(field.default, field.metadata),
            _bounds(field.metadata),
            meanings[field.name],
        ]
        for field in dataclasses.fields(room)
    ]
    return table(["Setting", "Variable", "Default", "Bounds", "Meaning"], rows)


def _meanings(name: str) -> dict[str, str]:
    source = inspect.getsource(settings)
    [room] = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name]
    found: dict[str, str] = {}
    field = ""
    for node in room.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            field = node.target.id
        elif field and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[field] = " ".join(str(node.value.value).split())
    return found


def _shown(value: Any, metadata: Any) -> str:
    if value is None:
        return "none"
    return _span(value) if metadata.get("span") else f"{value:,}"


def _bounds(metadata: Any) -> str:
    low, high = metadata.get("low"), metadata.get("high")
    if low is None and high is None:
        return ""
    lowest = _shown(low or 0, metadata)
    return f"{lowest} or more" if high is None else f"{lowest} to {_shown(high, metadata)}"


def _span(micros: int) -> str:
    for unit, word in ((DAY, "d"), (HOUR, "h"), (MINUTE, "min")):
        if micros and micros % unit == 0:
            return f"{micros // unit} {word}"
    return f"{micros / SECOND:g} s"


# --- statuses ---------------------------------------------------------------------------------------------------


def state_diagram() -> str:
    """The transition table as a diagram. Steps from a status to itself are left to the table beside it."""
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> pending"]
    for before, afters in TRANSITIONS.items():
        lines += [f"    {before} --> {after}" for after in Status if after in afters and after is not before]
    lines += [f"    {status} --> [*]" for status in Status if not TRANSITIONS[status]]
    return "\n".join([*lines, "```"])


def state_table() -> str:
    """The same as a table."""
    rows = [
        [
            f"`{before}`",
            "active" if before in ACTIVE else "finished",
            ", ".join(f"`{after}`" for after in Status if after in afters) or "nothing",
        ]
        for before, afters in TRANSITIONS.items()
    ]
    return table(["Status", "", "May become"], rows)


# --- the command line -------------------------------------------------------------------------------------------


def help_text(*command: str) -> str:
    """What `stoker … --help` prints on a terminal of 80 columns."""
    shown = CliRunner().invoke(stoker, [*command, "--help"], prog_name="stoker", terminal_width=80)
    return f"```text\n{shown.output.rstrip()}\n```"


# --- pages ------------------------------------------------------------------------------------------------------


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def api_table() -> str:
    """The calls of the REST API."""
    from stoker.web.api.endpoint import ROOT
    from stoker.web.api.endpoints import ENDPOINTS

    rows = ["| Call | Takes | Answers | Role | |", "|---|---|---|---|---|"]
    for one in ENDPOINTS:
        given = "" if one.given is None else f"`{one.given.__name__}`"
        answer = f"{one.status} `{one.answer.__name__}`"
        rows.append(f"| `{one.method} {ROOT}{one.path}` | {given} | {answer} | {one.role} | {one.summary} |")
    return "\n".join(rows)


def api_types() -> str:
    """What the REST API takes and answers, field by field."""
    from msgspec import NODEFAULT, structs

    from stoker.web.api.endpoints import ENDPOINTS

    used = {kind for one in ENDPOINTS for kind in (one.given, one.answer) if kind is not None}
    rows = ["| Type | Fields |", "|---|---|"]
    for kind in sorted(used, key=lambda kind: kind.__name__):
        optional = {one.name: one.default is not NODEFAULT for one in structs.fields(kind)}
        names = ", ".join(f"`{name}`{'?' if left_out else ''}" for name, left_out in optional.items()) or "none"
        rows.append(f"| `{kind.__name__}` | {names} |")
    return "\n".join(rows)


PARTS: dict[str, Callable[[], str]] = {
    **page.PARTS,
    "rest calls": api_table,
    "rest types": api_types,
    "engines": engine_table,
    "engine options": engine_options,
    "WorkerSettings": lambda: settings_table("WorkerSettings"),
    "TimelineSettings": lambda: settings_table("TimelineSettings"),
    "RetentionSettings": lambda: settings_table("RetentionSettings"),
    "state diagram": state_diagram,
    "state table": state_table,
    **peers.PARTS,
    **mutants.PARTS,
}


def renewed(page: str) -> str:
    """A page with every generated part made anew."""
    return PART.sub(lambda part: f"{part[1]}\n{made(part[2])}\n\n{part[3]}", page)


def made(part: str) -> str:
    """One generated part: by name, or `help …` for the help of a command."""
    words = part.split()
    return help_text(*words[1:]) if words[0] == "help" else PARTS[part]()


def pages() -> list[Path]:
    """The README and every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    """Bring the pages up to date."""
    for path in pages():
        before = path.read_text(encoding="utf-8")
        after = renewed(before)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
