"""`stoker audit`: who changed what, when and why."""

from __future__ import annotations

import json
from typing import Any

import click
import msgspec

from stoker.cli.store import Columns, as_lines_option, ask, on_target, read_time, table
from stoker.model.audit import AuditEntry
from stoker.model.ids import text
from stoker.model.query import Former
from stoker.model.time import SECOND, moment

TIMES = ("scheduled_at", "started_at", "ended")


@click.command()
@click.option("--since", default="90d", show_default=True, metavar="TIME", help="How far back, as in 2h.")
@click.option("--who", metavar="NAME", help="Only what this person changed.")
@click.option("--action", metavar="ACTION", help="Only this, as in jobs.cancel; jobs. means all about jobs.")
@click.option("--target", metavar="TARGET", help='Only changes of this, as in "queue mail".')
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many entries.")
@as_lines_option
@on_target
def audit(since: str, limit: int, as_json: bool, path: str | None, url: str | None, **chosen: str | None) -> None:
    """List who changed what, when, through what and why, the latest first."""
    window = read_time("--since", since) / SECOND
    table(ask(path, url, lambda admin: admin.audit.list(window, limit=limit, **chosen)), COLUMNS, as_json, _object)


def _object(entry: AuditEntry) -> dict[str, Any]:
    """An entry with ids and times as other commands print and take them."""
    deed: dict[str, Any] = msgspec.to_builtins(entry.deed)
    if entry.deed.former:
        deed["former"] = [_job(one) for one in entry.deed.former]
    by: dict[str, Any] = msgspec.to_builtins(entry.by)
    return {"id": entry.id, "at": moment(entry.at).isoformat(), "by": by, "deed": deed}


def _job(one: Former) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(one)
    del found["token"]
    times = {name: None if found[name] is None else moment(found[name]).isoformat() for name in TIMES}
    return {**found, "id": text(one.id), **times}


def _change(entry: AuditEntry) -> str:
    deed = entry.deed
    names = sorted(deed.before.keys() | deed.after.keys())
    if deed.before:
        parts = [f"{name} {_shown(deed.before.get(name))} → {_shown(deed.after.get(name))}" for name in names]
    else:
        parts = [f"{name} {_shown(deed.after[name])}" for name in names]
    return "; ".join(parts)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


COLUMNS: Columns[AuditEntry] = {
    "when": lambda entry: moment(entry.at),
    "who": lambda entry: entry.by.who,
    "way": lambda entry: entry.by.way,
    "action": lambda entry: entry.deed.action,
    "target": lambda entry: entry.deed.target,
    "jobs": lambda entry: entry.deed.count,
    "change": _change,
    "reason": lambda entry: entry.by.reason,
    "entry": "id",
}
