"""What commands print: text from the store cannot move a terminal's cursor, change its colours or forge a line."""

from __future__ import annotations

import click

from stoker.codec.error_text import one_line, safe

__all__ = ["one_line", "safe", "say"]


def say(text: str = "", *, err: bool = False, nl: bool = True, fg: str | None = None) -> None:
    """Print a text with control and direction characters made visible; every command prints through this.

    Tabs and line ends stay: a value that must not add a line passes `one_line` first. On a terminal it has the colour
    `fg`.
    """
    click.echo(click.style(safe(text), fg=fg) if fg else safe(text), err=err, nl=nl)
