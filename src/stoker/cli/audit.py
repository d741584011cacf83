"""`stoker audit`: who changed what, when and why."""

from __future__ import annotations

import click

from stoker.admin.audit import AuditView
from stoker.cli.store import ask, on_target, read_time
from stoker.cli.tables import Columns, as_lines_option, table
from stoker.model.audit import difference
from stoker.model.time import SECOND


@click.command()
@click.option("--since", default="90d", show_default=True, metavar="TIME", help="How far back, as in 2h.")
@click.option("--who", metavar="NAME", help="Only what this person changed.")
@click.option("--action", metavar="ACTION", help="Only this, as in jobs.cancel; jobs. means all about jobs.")
@click.option("--target", metavar="TARGET", help='Only changes of this, as in "queue mail".')
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="Maximum number of entries.")
@as_lines_option
@on_target
def audit(since: str, limit: int, as_json: bool, path: str | None, url: str | None, **chosen: str | None) -> None:
    """List who changed what, when, how and why, the latest first."""
    window = read_time("--since", since) / SECOND
    table(
        ask(path, url, lambda admin: admin.audit.list(window, limit=limit, **chosen)),
        COLUMNS,
        as_json,
        goes_first=GOES_FIRST,
        empty="No change was made in this time.",
    )


COLUMNS: Columns[AuditView] = {
    "when": "at",
    "who": "who",
    "way": "way",
    "action": "action",
    "target": "target",
    "count": lambda one: one.count if one.action.startswith(("jobs.", "letters.")) else "",
    "change": lambda one: difference(one.before, one.after),
    "reason": "reason",
    "entry": "id",
}
GOES_FIRST = ("entry", "way", "count")
"""What a narrow terminal does without."""
