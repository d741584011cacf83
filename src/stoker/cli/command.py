"""The `stoker` group: lists its commands, imports one when it is called, and names the nearest to a mistyped one."""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import click

from stoker.cli import ALIASES, COMMANDS

F = TypeVar("F", bound=Callable[..., Any])

STORE_OPTIONS = ("--url", "--app", "-A")


def nearest(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
    """What is given here, else before the command: `stoker -A app:jobs jobs list`."""
    place = f"stoker.{param.name}"
    if given is not None:
        ctx.meta[place] = given
    found: str | None = ctx.meta.get(place)
    return found


def app_option(command: F, *, expose_value: bool = True) -> F:
    """Give a command the option that names the app."""
    return click.option(
        "-A",
        "--app",
        "path",
        metavar="MODULE:APP",
        callback=nearest,
        expose_value=expose_value,
        help="The app. Or $STOKER_APP, or [tool.stoker] app.",
    )(command)


def store_options(command: F, *, expose_value: bool = True) -> F:
    """Give a command the options that name the store, by its app or by its URL."""
    by_url = click.option(
        "--url",
        metavar="URL",
        callback=nearest,
        expose_value=expose_value,
        help="The store, where no task is needed. Or $STOKER_URL.",
    )
    return app_option(by_url(command), expose_value=expose_value)


class NearestGroup(click.Group):
    """A group that suggests the command which was probably meant; alone it is its `list`, where it has one.

    The options that name the store may stand before the command, too: `stoker jobs --url URL list`. A word with a colon
    is no command but belongs to the list: `stoker queues app:jobs`, `stoker jobs is:dead`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move options that stand before the command behind it."""
        if ctx.resilient_parsing or "list" not in self.commands:  # a shell completes, or this is `stoker` itself
            return super().parse_args(ctx, args)
        at = self.first_word(ctx, args)
        options, words = args[:at], args[at:] or ["list"]
        if ":" in words[0]:
            words = ["list", *words]
        help_wanted = words[0] in ctx.help_option_names
        return super().parse_args(ctx, words if help_wanted else [words[0], *options, *words[1:]])

    @staticmethod
    def first_word(ctx: click.Context, args: list[str]) -> int:
        """The place behind the options that stand before the command."""
        at = 0
        while at < len(args) and args[at].startswith("-") and args[at] not in ctx.help_option_names:
            at += 2 if args[at] in STORE_OPTIONS else 1
        return at

    def names(self, ctx: click.Context) -> list[str]:
        """What can be typed here."""
        return self.list_commands(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; a wrong one is an error that names the nearest."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.names(ctx), n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else f" `{ctx.command_path} --help` lists them."
            raise click.UsageError(f"there is no command {args[0]!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(NearestGroup):
    """A group that imports a command when it is called."""

    def names(self, ctx: click.Context) -> list[str]:
        """Commands, and what people type by instinct."""
        return [*self.list_commands(ctx), *ALIASES]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, also by another name for it."""
        if args and args[0] not in COMMANDS and args[0] in ALIASES:
            args = [*ALIASES[args[0]], *args[1:]]
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every name, known or imported."""
        return sorted({*COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        rows = [(name, COMMANDS[name][1]) for name in self.list_commands(ctx) if name in COMMANDS]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        short = ("list", "show", "dead", "requeue", "retry", "cancel", "pause", "resume", "enqueue", "tail")
        formatter.write_paragraph()
        formatter.write_text(f"Also understood: {', '.join(short)}.")


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        from stoker.cli.text import say

        try:
            say(f"stoker {version('stoker')}")
        except PackageNotFoundError:
            say("stoker, from a bare checkout")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
@functools.partial(store_options, expose_value=False)
def stoker() -> None:
    """Background jobs and a transactional outbox."""
