"""Groups of commands that name the nearest one when a command is mistyped."""

from __future__ import annotations

import difflib

import click


class NearestGroup(click.Group):
    """A group that suggests the command which was probably meant."""

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
