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
    """Seal all jobs, their steps and the schedules with the current key of the app, while workers go on.

    What is stored in plain text is sealed, too. It is an operation: Ctrl-C stops it after its page, and `stoker
    operations resume` goes on from there. Messages, letters, emitted values and callbacks of open groups keep their
    key until they are gone, so keep an older key in the app as long as there are such.
    """

    async def run(admin: Operators) -> OperationView:
        started = await admin.operations.start_reseal()
        with bar("job") as progress:
            return await finished(admin, started.id, progress)

    ended = ask(path, url, run)
    say(f"{ended.id} {ended.state}: {how_far(ended)}")
    say(f"{count(ended.changed, 'record')} sealed with the current key")
    if ended.blocked:
        say(f"{count(ended.blocked, 'job')} cannot be opened with the keys of this app, and stay as they are", err=True)
    check_failed(ended)
