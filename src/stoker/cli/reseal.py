"""`stoker reseal`: seal everything that is stored with the current key."""

from __future__ import annotations

import click

from stoker.admin import Operators
from stoker.admin.operations import OperationView
from stoker.cli.operations import bar, check_failed, finished, how_far
from stoker.cli.store import EXIT_CODES, ask, on_target
from stoker.cli.text import say
from stoker.model.humanize import count


@click.command(epilog=EXIT_CODES)
@on_target
def reseal(path: str | None, url: str | None) -> None:
    """Seal all that is stored with the current key of the app, while workers go on.

    What is stored in plain text is sealed, too. It is an operation: Ctrl-C stops it after its page, and `stoker
    operations resume` goes on from there. Deploy the new key to everything that enqueues or works before: what a
    process with the older key alone stores meanwhile keeps that key.
    """

    async def run(admin: Operators) -> OperationView:
        started = await admin.operations.start_reseal()
        with bar("record") as progress:
            return await finished(admin, started.id, progress)

    ended = ask(path, url, run)
    say(f"{ended.id} {ended.state}: {how_far(ended)}")
    say(f"{count(ended.changed, 'record')} sealed with the current key")
    if ended.blocked:
        left = f"{count(ended.blocked, 'record')} cannot be opened with the keys of this app, and stay as they are"
        say(f"{left}: keep the older keys until those records are gone. `stoker doctor` names them", err=True)
    check_failed(ended)
