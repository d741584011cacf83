"""`stoker limits …`: rate budgets with what is left of them, and what runs under each limit key."""

from __future__ import annotations

from collections.abc import Sequence

import click

from stoker.admin import Filter, Operators
from stoker.admin.limits import BudgetView, KeyView
from stoker.cli.command import NearestGroup
from stoker.cli.completion import complete_queues
from stoker.cli.store import (
    EXIT_CODES,
    act_on,
    as_json_option,
    ask,
    create_option,
    hinted,
    on_store,
    on_target,
    read_rate,
    said,
)
from stoker.cli.tables import Columns, Figure, as_lines_option, table
from stoker.cli.text import safe
from stoker.model.budgets import address
from stoker.model.humanize import span

KEYS: Columns[KeyView] = {
    "key": lambda one: safe(one.name),
    "running": "running",
    "most": lambda one: Figure("any" if one.most is None else f"{one.most}{' (set)' if one.pinned else ''}"),
    "waiting": lambda one: "yes" if one.due is not None else "",
    "holders": lambda one: " ".join(one.holders),
}
TOKENS: Columns[BudgetView] = {
    "tokens": lambda one: Figure(f"{one.tokens:.1f}"),
    "of": lambda one: Figure(f"{one.capacity:,.15g}"),
    "rate": lambda one: one.rate.in_words,
    "next token": lambda one: f"in {span(one.next_token)}" if one.next_token else "",
}
COLUMNS: Columns[BudgetView] = {
    "budget": lambda one: f"{address(one.name, one.measure or '')}{' (each key)' if one.keyed else ''}",
    **TOKENS,
}


@click.group(cls=NearestGroup)
def limits() -> None:
    """Show rate budgets and limits by key; change them."""


@limits.command("list")
@as_lines_option
@on_target
def list_(as_json: bool, path: str | None, url: str | None) -> None:
    """List budgets with the tokens that are left."""
    table(ask(path, url, lambda admin: admin.limits.list()), COLUMNS, as_json, empty="No budget is in the store.")


@limits.command(epilog=EXIT_CODES)
@click.argument("queue", shell_complete=complete_queues)
@click.option("--after", metavar="NAME", help="Only names behind this one.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum number of keys.")
@as_lines_option
@on_store
def keys(queue: str, after: str | None, limit: int, as_json: bool, path: str | None, url: str | None) -> None:
    """List what runs under each limit key, and each tenant, of a queue."""

    async def call(admin: Operators) -> Sequence[KeyView]:
        hinted((await admin.jobs.find(Filter(queues=(queue,)), limit=1)).hint)
        return await admin.limits.keys(queue, after=after, limit=limit)

    table(ask(path, url, call), KEYS, as_json, empty="No job of the queue runs under a key.")


@limits.command("full", epilog=EXIT_CODES)
@click.argument("queue", required=False, shell_complete=complete_queues)
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum number of keys.")
@as_lines_option
@on_store
def full(queue: str | None, limit: int, as_json: bool, path: str | None, url: str | None) -> None:
    """List the keys at their limit for which jobs wait, of one queue or of all."""

    async def call(admin: Operators) -> Sequence[KeyView]:
        if queue is not None:
            hinted((await admin.jobs.find(Filter(queues=(queue,)), limit=1)).hint)
        return await admin.limits.at_limit(queue, limit=limit)

    table(ask(path, url, call), {"queue": "queue", **KEYS}, as_json, empty="No job waits for a key at its limit.")


@limits.command("set", epilog=EXIT_CODES)
@click.argument("queue", shell_complete=complete_queues)
@click.argument("name")
@click.argument("n", type=click.IntRange(1))
@create_option
@as_json_option
@on_store
def set_(queue: str, name: str, n: int, create: bool, as_json: bool, path: str | None, url: str | None) -> None:
    """Let N jobs of each key of a limit run at once, until it is cleared."""
    ask(path, url, lambda admin: admin.limits.set(queue, name, n, create=create))
    said(f"limit {name} of queue {queue} is set to {n}", as_json, queue=queue, limit=name, n=n)


_CLEARS = "Give a limit back to the number that its jobs bring."
_CLEARED = "limit {limit} of queue {queue} is that of its jobs"
act_on(limits, "clear", _CLEARS, _CLEARED, on=["queue", "limit"], cleared=True)


@limits.command(epilog=EXIT_CODES)
@click.argument("budget")
@click.option("--key", metavar="KEY", help="Only this key; one that has taken nothing has all its tokens.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="Maximum number of keys.")
@as_lines_option
@on_store
def buckets(budget: str, key: str | None, limit: int, as_json: bool, path: str | None, url: str | None) -> None:
    """List the keys of a budget with the tokens that are left, the emptiest first."""

    async def call(admin: Operators) -> Sequence[BudgetView]:
        found = await admin.limits.buckets(budget, key=key, limit=limit)
        if not found:
            keyed = any(one.keyed for one in await admin.limits.list() if one.name == budget)
            none = "no key lacks tokens" if keyed else "it has no keys, and `stoker limits` shows its tokens"
            hinted(f"budget {safe(budget)}: {none}")
        return found

    found = ask(path, url, call)
    table(found, {"key": lambda one: safe(one.key or ""), "measure": lambda one: one.measure or "", **TOKENS}, as_json)


@limits.command(epilog=EXIT_CODES)
@click.argument("budget")
@click.option("--rate", required=True, metavar="N/TIME", help="N tokens per time, as in 100/1m.")
@click.option("--measure", metavar="NAME", help="Which measure of a budget that has several.")
@create_option
@as_json_option
@on_store
def tune(
    budget: str, rate: str, measure: str | None, create: bool, as_json: bool, path: str | None, url: str | None
) -> None:
    """Set the rate of a budget; tokens at hand are kept as far as they fit."""
    wanted = read_rate("--rate", rate)
    ask(path, url, lambda admin: admin.limits.tune(budget, wanted, measure=measure, create=create))
    what, more = (f"{measure} of budget {budget}", {"measure": measure}) if measure else (f"budget {budget}", {})
    said(f"{what} is tuned to {rate}", as_json, budget=budget, **more, n=wanted.n, per=wanted.per)


@limits.command(epilog=EXIT_CODES)
@click.argument("budget")
@click.option("--key", metavar="KEY", help="Only this key of a budget that has keys.")
@as_json_option
@on_store
def drain(budget: str, key: str | None, as_json: bool, path: str | None, url: str | None) -> None:
    """Empty a budget, because the real limiter refused."""
    ask(path, url, lambda admin: admin.limits.drain(budget, key))
    what, more = (f"key {safe(key)} of budget {budget}", {"key": key}) if key is not None else (f"budget {budget}", {})
    said(f"{what} is drained", as_json, budget=budget, **more, drained=True)
