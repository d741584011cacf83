"""`stoker completion`: what a shell needs to complete commands, options, and names that are in a store.

A shell asks at every press of the tab key. What goes wrong meanwhile is no business of a half-typed line: nothing is
completed then, and nothing is said.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING, TypeAlias

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from stoker.cli.text import say
from stoker.model.filter import VIEWS, WORDS
from stoker.model.query import ORDERS

if TYPE_CHECKING:
    from stoker.admin import Operators

SHELLS = ("bash", "zsh", "fish")

WHERE = """\b
Where it goes:
  bash  echo 'eval "$(stoker completion bash)"' >> ~/.bashrc
  zsh   echo 'eval "$(stoker completion zsh)"' >> ~/.zshrc
  fish  stoker completion fish > ~/.config/fish/completions/stoker.fish
"""

Completer: TypeAlias = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


async def queue_names(admin: Operators) -> Iterable[str]:
    """Every queue that was used, tuned or served."""
    return [one.name for one in await admin.queues.list()]


async def kind_names(admin: Operators) -> Iterable[str]:
    """Every kind that has or had jobs."""
    return [one.kind for one in await admin.kinds.list()]


async def schedule_names(admin: Operators) -> Iterable[str]:
    """Every schedule."""
    return [one.name for one in await admin.schedules.list()]


async def operation_ids(admin: Operators) -> Iterable[str]:
    """Every operation that is kept, the last one first."""
    return [one.id for one in await admin.operations.list()]


async def finding_ids(admin: Operators) -> Iterable[str]:
    """Every finding that there is now."""
    return [one.id for one in await admin.health.findings()]


async def worker_ids(admin: Operators) -> Iterable[str]:
    """Every worker that was seen lately."""
    return [one.worker for one in await admin.workers.list()]


def from_store(ctx: click.Context, names: Callable[[Operators], Awaitable[Iterable[str]]]) -> list[str]:
    """Names in the store that the line, the environment or pyproject.toml names; none if it cannot be asked."""
    from stoker.cli.store import ask

    path, url = (ctx.meta.get(f"stoker.{name}") for name in ("path", "url"))
    unheard = io.StringIO()
    logging.disable()
    try:
        with redirect_stdout(unheard), redirect_stderr(unheard):
            return list(ask(path, url, names))
    except (SystemExit, Exception):  # noqa: BLE001 - the app of the user may raise anything when it is imported
        return []
    finally:
        logging.disable(logging.NOTSET)


def _completing(names: Callable[[Operators], Awaitable[Iterable[str]]]) -> Completer:
    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in from_store(ctx, names) if name.startswith(incomplete)]

    return complete


complete_queues = _completing(queue_names)
complete_kinds = _completing(kind_names)
complete_schedules = _completing(schedule_names)
complete_operations = _completing(operation_ids)
complete_findings = _completing(finding_ids)
complete_workers = _completing(worker_ids)

COMPLETERS: dict[str, Completer] = {
    "queue": complete_queues,
    "schedule": complete_schedules,
    "finding": complete_findings,
    "worker": complete_workers,
}
"""How arguments of these names are completed."""

VALUES: dict[str, Callable[[Operators], Awaitable[Iterable[str]]]] = {"queue": queue_names, "kind": kind_names}


def complete_terms(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The words of a filter, and what may stand behind `is:`, `order:`, `queue:` and `kind:`, also after a comma."""
    left_out = "-" if incomplete.startswith("-") else ""
    word, colon, typed = incomplete.removeprefix("-").partition(":")
    if not colon:
        return [CompletionItem(f"{left_out}{one}:") for one in WORDS if one.startswith(word)]
    before, comma, last = typed.rpartition(",")
    known: Iterable[str] = VIEWS if word == "is" else ORDERS if word == "order" else ()
    if word in VALUES:
        known = from_store(ctx, VALUES[word])
    return [CompletionItem(f"{left_out}{word}:{before}{comma}{one}") for one in known if one.startswith(last)]


class Bash(BashComplete):
    """Completion in bash, which takes a term such as `is:dead` for three words and replaces the last one alone."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is completed, and this one, with terms put together again."""
        words = os.environ["COMP_WORDS"].split("\n")
        at = int(os.environ["COMP_CWORD"])
        joined: list[str] = []
        glue = False
        for word in [*words[1:at], *words[at : at + 1]]:
            if joined and (glue or word == ":"):
                joined[-1] += word
            else:
                joined.append(word)
            glue = word == ":"
        return joined[:-1], joined[-1] if joined else ""

    def complete(self) -> str:
        """The answer, without what stands before the last colon: bash keeps that."""
        args, incomplete = self.get_completion_args()
        begin, _, _ = incomplete.rpartition(":")
        found = self.get_completions(args, incomplete)
        for item in found:
            item.value = item.value.removeprefix(f"{begin}:" if begin else "")
        return "\n".join(self.format_completion(item) for item in found)


add_completion_class(Bash)


@click.command(epilog=WHERE)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that makes a shell complete `stoker`."""
    from stoker.cli.command import stoker

    found = get_completion_class(shell)
    assert found is not None, "click knows these shells"
    script = found(stoker, {}, "stoker", "_STOKER_COMPLETE").source()
    say(script)
