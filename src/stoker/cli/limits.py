"""`stoker limits …`: rate budgets with what is left of them; tune and drain them."""

from __future__ import annotations

from typing import Any

import click

from stoker.admin.limits import BudgetView
from stoker.cli.groups import NearestGroup
from stoker.cli.store import EXIT_CODES, as_json_option, ask, length, objects, on_store, read_rate, said, show

COLUMNS = ("budget", "tokens", "of", "rate", "next token")


@click.group(cls=NearestGroup)
def limits() -> None:
    """Show rate budgets; tune and drain them."""


@limits.command("list")
@click.option("--json", "as_json", is_flag=True, help="One object per line, with every field.")
@on_store
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
@click.argument("budget")
@click.option("--rate", required=True, metavar="N/TIME", help="N tokens per time, as in 100/1m.")
@as_json_option
@on_store
def tune(budget: str, rate: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Set the rate of a budget; tokens at hand are kept as far as they fit."""
    wanted = read_rate("--rate", rate)
    ask(path, url, lambda admin: admin.limits.tune(budget, wanted))
    said(f"budget {budget} is tuned to {rate}", as_json, budget=budget, n=wanted.n, per=wanted.per)


@limits.command(epilog=EXIT_CODES)
@click.argument("budget")
@as_json_option
@on_store
def drain(budget: str, as_json: bool, path: str | None, url: str | None) -> None:
    """Empty a budget, because the real limiter refused."""
    ask(path, url, lambda admin: admin.limits.drain(budget))
    said(f"budget {budget} is drained", as_json, budget=budget, drained=True)
