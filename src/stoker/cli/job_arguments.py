"""How a command names jobs: by the terms of a filter, or by an id that may be cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from stoker.admin import Filter, Operators
from stoker.cli.completion import complete_terms
from stoker.cli.text import safe
from stoker.model.errors import NotFound
from stoker.model.filter import WORDS, InvalidFilter
from stoker.model.humanize import in_words
from stoker.model.ids import LEAST_DIGITS, parse, shortened
from stoker.model.same_error import PREFIX

F = TypeVar("F", bound=Callable[..., Any])

LARGEST_PAGE = 200


class FilterCommand(click.Command):
    """A command whose arguments are terms of a filter: `-kind:plan` is one, and no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put terms that begin with a minus behind the options."""
        at = args.index("--") if "--" in args else len(args)
        minus = [one for one in args[:at] if _LEFT_OUT.match(one)]
        options = [one for one in args[:at] if one not in minus]
        return super().parse_args(ctx, [*options, "--", *minus, *args[at + 1 :]] if minus else args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete `-kind:` as a term, too."""
        terms = next(one for one in self.params if one.name == "terms")
        return (
            complete_terms(ctx, terms, incomplete)
            if _LEFT_OUT.match(incomplete)
            else super().shell_complete(ctx, incomplete)
        )


_LEFT_OUT = re.compile(rf"-({'|'.join(WORDS)}):")
_APP = re.compile(r"[\w.]+:[\w.]+|\w+://.*")


def _no_app(ctx: click.Context, _: click.Parameter, given: Any) -> Any:
    """Refuse an app or a URL in the place of a filter or an id, and say how it is given."""
    first = given if isinstance(given, str) else next(iter(given), "")
    if not _APP.fullmatch(first) or first.partition(":")[0] in WORDS:
        return given
    why = f"{first} is no {'id of a job' if first is given else 'term of a filter'}."
    try:
        Filter.parse(first)
    except InvalidFilter as error:
        why = why if first is given else str(error)
    hint = f"If it is the store, write --url {first}" if "://" in first else f"If it is the app, write -A {first}"
    raise click.UsageError(safe(f"{why} {hint}"), ctx)


def terms_argument(metavar: str, *, required: bool = False) -> Callable[[F], F]:
    """Give a command the terms of a filter."""
    return click.argument(
        "terms", metavar=metavar, nargs=-1, required=required, callback=_no_app, shell_complete=complete_terms
    )


job_argument = click.argument("job", metavar="JOB", callback=_no_app)


async def whole_id(admin: Operators, given: str) -> str:
    """The id of a job that may be cut to its first eight digits or more, or to both ends."""
    cut = shortened(given)
    if cut is None:
        parse(given, why=f"must be a UUID, or its first {in_words(LEAST_DIGITS)} digits or more")
        return given
    found = await admin.jobs.of_id(cut)
    if len(found) == 1:
        return found[0].id
    if not found:
        raise NotFound(f"no job in the store has an id like {given}")
    lines = "".join(f"\n  {safe(f'{one.id}  {one.status.value}  {one.kind}')}" for one in found)
    raise click.UsageError(f"several jobs have an id like {safe(given)}: give more of it{lines}")


async def whole(admin: Operators, terms: tuple[str, ...]) -> str:
    """A filter with every id in it whole; a term alone may be one."""
    if len(terms) == 1 and shortened(terms[0]) is not None:
        try:
            return await whole_id(admin, terms[0])
        except NotFound as error:
            raise NotFound(f"{error}. For text in payloads and errors write '\"{terms[0]}\"'") from None
    ends = {
        term: f"{word}:{await whole_id(admin, term.removeprefix(f'{word}:'))}"
        for term in terms
        for word in ("id", "same_error")
        if term.startswith(f"{word}:") and not term.startswith(f"same_error:{PREFIX}")
    }
    return " ".join(ends.get(term, term) for term in terms)
