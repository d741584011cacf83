"""Templates and what they may use. Everything is escaped; only the drawings of `svg` are markup."""

from __future__ import annotations

import json
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from stoker.model import humanize as plain
from stoker.model.filter import as_value
from stoker.model.findings import Finding, badges
from stoker.model.releases import in_words
from stoker.web import assets, humanize, svg
from stoker.web.request import RequestContext

FLASH_COOKIE = "stoker_flash"
THEME_COOKIE = "stoker_theme"

PAGES: Final = (
    ("overview", "", "Overview"),
    ("jobs", "jobs", "Jobs"),
    ("queues", "queues", "Queues"),
    ("kinds", "kinds", "Kinds"),
    ("workers", "workers", "Workers"),
    ("schedules", "schedules", "Schedules"),
    ("outbox", "outbox", "Outbox"),
    ("limits", "limits", "Limits"),
    ("health", "health", "Health"),
    ("audit", "audit", "Audit"),
)
"""The sidebar: key, path and name of each page."""

RANGES: Final = ("1h", "6h", "24h", "7d", "30d")


class Flash(NamedTuple):
    """What an action did, shown once on the next page; `undo` is the path and the fields of a form that reverts it."""

    text: str
    undo: str = ""
    fields: tuple[tuple[str, str], ...] = ()
    bad: bool = False


@cache
def environment() -> Environment:
    """The templates with their filters and drawings."""
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        n=plain.number,
        short=lambda value: humanize.tight(plain.short(value)),
        span=lambda value: humanize.tight(plain.span(value)),
        size=lambda value: humanize.tight(plain.size(value)),
        ms=lambda value: humanize.tight(plain.milliseconds(value)),
        tight=humanize.tight,
        json=json.dumps,
    )
    found.globals.update(
        icon=svg.icon,
        st=svg.status,
        gauge=svg.gauge,
        ended_gauge=svg.ended,
        spark=svg.spark,
        life=svg.life,
        runs=svg.runs,
        ticks=svg.ticks,
        partitions=svg.partitions,
        trace=svg.trace,
        chart_flow=svg.flow,
        chart_strip=svg.strip,
        chart_lines=svg.lines,
        time=humanize.time,
        moments=humanize.moments,
        ago=lambda at, now: humanize.time(at, plain.ago(at, now)),
        until=lambda at, now: humanize.time(at, plain.until(at, now)),
        clock=lambda at, now: humanize.time(at, plain.clock(at, now)),
        count=lambda n, noun, plural=None: humanize.tight(plain.count(n, noun, plural)),
        share=lambda part, whole: humanize.tight(plain.share(part, whole)),
        quoted=as_value,
        in_releases=in_words,
        ranges=RANGES,
        range_of=range,
    )
    return found


def common(visit: RequestContext, page: str, title: str, found: list[Finding] | None = None) -> dict[str, Any]:
    """What every page of the shell needs."""
    board = visit.board
    numbers = badges(found or [])
    theme = visit.cookie(THEME_COOKIE)
    return {
        "v": visit,
        "board": board,
        "page": page,
        "title": title,
        "env_name": board.env or "",
        "nav": [(key, path, name, *numbers.get(key, (0, ""))) for key, path, name in PAGES],
        "static": visit.url(f"static/{assets.version()}"),
        "theme": theme if theme in {"light", "dark"} else "",
        "flash": _flash(visit),
        "store": board.store.root(),
        "version": board.hub.version,
        "stoker_version": stoker_version(),
        "live_url": "",
    }


@cache
def stoker_version() -> str:
    """The version that is installed; none in a bare checkout."""
    try:
        return installed("stoker")
    except PackageNotFoundError:
        return ""


def _flash(visit: RequestContext) -> Flash | None:
    try:
        raw = json.loads(unquote(visit.cookie(FLASH_COOKIE)))
        fields = tuple((str(name), str(value)) for name, value in raw["fields"])
        return Flash(str(raw["text"]), str(raw["undo"]), fields, bool(raw["bad"]))
    except (ValueError, TypeError, KeyError):
        return None


def render(template: str, context: dict[str, Any]) -> str:
    """A page as text."""
    return environment().get_template(template).render(_with_parts(context))


def _with_parts(context: dict[str, Any]) -> dict[str, Any]:
    """The context with the macros that pages share, which see it too."""
    return {**context, "parts": environment().get_template("_parts.html").make_module(context)}


def pieces(template: str, context: dict[str, Any]) -> dict[str, str]:
    """The parts of a page that change by themselves: its blocks named `live_…`, each one element with that id."""
    found = environment().get_template(template)
    scope = found.new_context(_with_parts(context))
    return {name: "".join(block(scope)).strip() for name, block in found.blocks.items() if name.startswith("live_")}


def part(template: str, context: dict[str, Any]) -> Response:
    """A part of a page by itself."""
    return HTMLResponse(environment().get_template(template).render(context))


def page(visit: RequestContext, template: str, context: dict[str, Any], status: int = 200) -> Response:
    """The page; a flash is shown once."""
    response = HTMLResponse(render(template, context), status)
    if context.get("flash") is not None:
        response.headers.append("set-cookie", visit.board.cookie(visit, FLASH_COOKIE, "", age=0))
    return response


def redirect(visit: RequestContext, path: str, flash: Flash | None = None) -> Response:
    """Go on to a page after a form, which says what was done."""
    response = Response(status_code=303, headers={"location": path})
    if flash is not None:
        raw = json.dumps({"text": flash.text, "undo": flash.undo, "fields": flash.fields, "bad": flash.bad})
        response.headers.append("set-cookie", visit.board.cookie(visit, FLASH_COOKIE, raw, age=30))
    return response
