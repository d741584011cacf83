"""`stoker scale`: how many worker processes the claimable work needs, and when the next job is due."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import click

from stoker.admin.as_json import plain
from stoker.admin.scale import QueueScale
from stoker.cli.completion import complete_queues
from stoker.cli.store import EXIT_CODES, as_json_option, ask, hinted, on_target, read_time
from stoker.cli.tables import Columns, columns, mark, on_screen, table
from stoker.cli.text import say
from stoker.model.humanize import count
from stoker.model.time import SECOND, instant

COLUMNS: Columns[QueueScale] = {
    **columns("queue=name", "processes", "claimable", "running"),
    "held": lambda one: mark(one.held, "warn", when=one.held),
    "held by": lambda one: ", ".join(one.held_by),
    **columns("run time=run_time", "slots needed=slots_needed", "slots each=slots"),
}
GOES_FIRST = ("slots each", "slots needed", "run time")
"""What a narrow terminal does without."""


@click.command(epilog=EXIT_CODES)
@click.option("--queue", "-q", "queues", multiple=True, shell_complete=complete_queues, help="Only this; repeatable.")
@click.option("--slots", type=click.IntRange(1), metavar="N", help="Slots of a queue in each process.")
@click.option("--target-wait", default="10s", show_default=True, metavar="TIME", help="How long a due job may wait.")
@as_json_option
@on_target
def scale(
    queues: tuple[str, ...], slots: int | None, target_wait: str, as_json: bool, path: str | None, url: str | None
) -> None:
    """Show how many worker processes the claimable jobs need.

    Jobs that are not due, or that a pause, a cool-down, a rate or a limit holds, need none. Without --slots those of
    the live workers count.
    """
    wait = read_time("--target-wait", target_wait) / SECOND
    found = ask(path, url, lambda admin: admin.queues.scale(*queues, slots=slots, target_wait=wait))
    if as_json:
        say(json.dumps(plain(found)))
        return
    table(found.queues, COLUMNS, goes_first=GOES_FIRST, empty="No queue has been used yet.")
    hinted(found.hint)
    now = instant(datetime.now(UTC))
    later = "" if found.next_due is None else f"; the next job is due {on_screen(found.next_due, now)}"
    say(f"{count(found.processes, 'process', 'processes')} needed{later}", err=True)
