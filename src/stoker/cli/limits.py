"""`stoker limits …`: rate budgets with what is left of them, and what runs under each limit key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from stoker.admin import Filter, Operators
from stoker.admin.limits import BudgetView, KeyView
from stoker.cli.command import NearestGroup
from stoker.cli.store import (
    EXIT_CODES,
    as_json_option,
    ask,
    create_option,
    hinted,
    length,
    objects,
    on_store,
    on_target,
    read_rate,
    said,
    show,
)
from stoker.cli.text import safe

KEYS = ("key", "running", "most", "waiting", "holders")
COLUMNS = ("budget", "tokens", "of", "rate", "next token")


@click.group(cls=NearestGroup)
def limits() -> None:
    """Show rate budgets and limits by key; change them."""


@limits.command("list")
@click.option("--json", "as_json", is_flag=True, help="One object per line, with every field.")
@on_target
def list_(as_json: bool, path: str | None, url: str | None) -> None:
    """List budgets with the tokens that are left."""
    found = ask(path, url, lambda admin: admin.limits.list())
    if as_json:
        objects(found)
    else:
        show(COLUMNS, [_row(one) for one in found])


def _row(one: BudgetView) -> tuple[Any, ...]:
    following = f"in {length(one.next_token)}" if one.next_token else ""
    return one.name, f"{one.tokens:.1f}", f"{one.capacity:g}", f"{one.rate.n:g} per {one.rate.per:g} s", following


@limits.command(epilog=EXIT_CODES)
@click.argument("queue")
@click.option("--after", metavar="NAME", help="Only names behind this one.")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One object per line, with every field.")
@on_store
def keys(queue: str, after: str | None, limit: int, as_json: bool, path: str | None, url: str | None) -> None:
    """List what runs under each limit key, and each tenant, of a queue."""

    async def call(admin: Operators) -> Sequence[KeyView]:
        hinted((await admin.jobs.find(Filter(queues=(queue,)), limit=1)).hint)
        return await admin.limits.keys(queue, after=after, limit=limit)

    found = ask(path, url, call)
    if as_json:
        objects(found)
    else:
        show(KEYS, [_key_row(one) for one in found])


def _key_row(one: KeyView) -> tuple[Any, ...]:
    most = "any" if one.most is None else f"{one.most}{' (set)' if one.pinned else ''}"
    return safe(one.name), one.running, most, "yes" if one.due is not None else "", " ".join(one.holders)


@limits.command("full", epilog=EXIT_CODES)
@click.argument("queue", required=False)
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One object per line, with every field.")
@on_store
def full(queue: str | None, limit: int, as_json: bool, path: str | None, url: str | None) -> None:
    """List the keys at their limit for which jobs wait, of one queue or of all."""

    async def call(admin: Operators) -> Sequence[KeyView]:
        if queue is not None:
            hinted((await admin.jobs.find(Filter(queues=(queue,)), limit=1)).hint)
        return await admin.limits.at_limit(queue, limit=limit)

    found = ask(path, url, call)
    if as_json:
        objects(found)
    else:
        show(("queue", *KEYS), [(one.queue, *_key_row(one)) for one in found])


@limits.command("set", epilog=EXIT_CODES)
@click.argument("queue")
@click.argument("name")
@click.argument("n", type=click.IntRange(1))
@create_option
@as_json_option
@on_store
def set_(queue: str, name: str, n: int, create: bool, as_json: bool, path: str | None, url: str | None) -> None:
    """Let N jobs of each key of a limit run at once, until it is cleared."""
    ask(path, url, lambda admin: admin.limits.set(queue, name, n, create=create))
    said(f"limit {name} of queue {queue} is set to {n}", as_json, queue=queue, limit=name, n=n)


@limits.command(epilog=EXIT_CODES)
@click.argument("queue")
@click.argument("name")
@as_json_option
@on_store
def clear(queue: str, name: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Give a limit back to the number that its jobs bring."""
    ask(path, url, lambda admin: admin.limits.clear(queue, name))
    said(f"limit {name} of queue {queue} is that of its jobs", as_json, queue=queue, limit=name, cleared=True)


@limits.command(epilog=EXIT_CODES)
@click.argument("budget")
@click.option("--rate", required=True, metavar="N/TIME", help="N tokens per time, as in 100/1m.")
@create_option
@as_json_option
@on_store
def tune(budget: str, rate: str, create: bool, as_json: bool, path: str | None, url: str | None) -> None:
    """Set the rate of a budget; tokens at hand are kept as far as they fit."""
    wanted = read_rate("--rate", rate)
    ask(path, url, lambda admin: admin.limits.tune(budget, wanted, create=create))
    said(f"budget {budget} is tuned to {rate}", as_json, budget=budget, n=wanted.n, per=wanted.per)


@limits.command(epilog=EXIT_CODES)
@click.argument("budget")
@as_json_option
@on_store
def drain(budget: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Empty a budget, because the real limiter refused."""
    ask(path, url, lambda admin: admin.limits.drain(budget))
    said(f"budget {budget} is drained", as_json, budget=budget, drained=True)
