"""`stoker groups …`: which groups there are, how far one is, and what may be done to all its members."""

from __future__ import annotations

import json
from typing import Any

import click

from stoker.admin import Operators
from stoker.admin.as_json import plain
from stoker.admin.groups import STATES, GroupDetail, GroupView, State
from stoker.admin.operations import OperationView
from stoker.cli.command import NearestGroup
from stoker.cli.job_arguments import LARGEST_PAGE
from stoker.cli.jobs import ASKS_ABOVE, act_on_many, acting, report_operation
from stoker.cli.store import EXIT_CODES, as_json_option, ask, on_store
from stoker.cli.tables import Columns, as_lines_option, columns, mark, table
from stoker.cli.text import safe, say
from stoker.model.actions import OF_GROUP, Action
from stoker.model.humanize import count

COLUMNS: Columns[GroupView] = {
    **columns("group=id", "state", "total", "done"),
    "dead": lambda one: mark(one.dead, "bad", when=one.dead),
    **columns("canceled", "waiting", "queue", "created=created_at"),
}
GOES_FIRST = ("canceled", "queue", "created")
"""What a narrow terminal does without."""


@click.group(cls=NearestGroup)
def groups() -> None:
    """List groups of jobs, read one; cancel or retry all members."""


@groups.command("list", epilog=EXIT_CODES)
@click.option("--state", type=click.Choice(STATES), help="Only these; else open ones, then closed ones.")
@click.option("--limit", type=click.IntRange(1), default=25, show_default=True, help="Maximum number of groups.")
@as_lines_option
@on_store
def list_(state: State | None, limit: int, as_json: bool, path: str | None, url: str | None) -> None:
    """List groups, newest first; open ones before closed ones."""

    async def read(admin: Operators) -> list[GroupView]:
        page = await admin.groups.list(state=state, limit=min(limit, LARGEST_PAGE))
        found = list(page.groups)
        while page.cursor is not None and len(found) < limit:
            rest = min(limit - len(found), LARGEST_PAGE)
            page = await admin.groups.list(state=state, limit=rest, cursor=page.cursor)
            found += page.groups
        return found

    table(ask(path, url, read), COLUMNS, as_json, goes_first=GOES_FIRST, empty="No group was made yet.")


@groups.command("show", epilog=EXIT_CODES)
@click.argument("group")
@as_json_option
@on_store
def show_(group: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Show one group: its numbers, its members by status, and its callbacks."""
    found = ask(path, url, lambda admin: admin.groups.get(group))
    if as_json:
        say(json.dumps(plain(found)))
        return
    for line in _lines(found):
        say(safe(line))


def _lines(found: GroupDetail) -> list[str]:
    state = "abandoned, " if found.abandoned else "" if found.sealed else "not sealed, "
    numbers = f"{found.done:,} done, {found.dead:,} dead, {found.canceled:,} canceled, {found.waiting:,} waiting"
    lines = [f"{found.id} {found.state}", f"{state}{count(found.total, 'member')}: {numbers}"]
    if found.statuses:
        lines.append("by status: " + ", ".join(f"{n:,} {status.value}" for status, n in found.statuses.items()))
    lines.append(f"made: {found.created_at.isoformat()}")
    if found.closed_at is not None:
        lines.append(f"closed: {found.closed_at.isoformat()}")
    lines.append(found.note)
    called = (
        f"{one.name}: {one.kind} {one.job} ({'not stored' if one.status is None else one.status.value})"
        for one in found.callbacks
    )
    return [*lines, *called, f"`stoker jobs list group:{found.id}` lists the members"]


def _add_command(action: Action) -> None:
    """Add the command of an action of the table: it changes all members of a group."""

    def command(
        group: str, yes: bool, dry_run: bool, as_json: bool, path: str | None, url: str | None, **given: Any
    ) -> None:
        wanted = {key: value for key, value in given.items() if value not in (None, False)}

        async def call(admin: Operators) -> OperationView | None:
            filter_ = await admin.groups.members(group, action.name)
            found = await admin.groups.get(group)
            if found.closed_at is not None:
                say(f"note: group {found.id}: {found.note}", err=True)
            return await act_on_many(admin, action, filter_, wanted, yes=yes, dry_run=dry_run, as_json=as_json)

        done = ask(path, url, call)
        if done is not None:
            report_operation(done, as_json)

    text = f"{action.help}\n\nAll members of the group that are {action.of_group}. It asks above {ASKS_ABOVE} jobs."
    decorated = click.argument("group")(acting(action, on_store(command)))
    groups.command(action.name, help=text, epilog=EXIT_CODES)(decorated)


for _one in OF_GROUP.values():
    _add_command(_one)
