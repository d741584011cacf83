"""The `stoker` command. One file per noun, imported only when its command is used, so that `--help` is quick.

Nothing but the table is here: worker processes start from this package too, and need no command line.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

COMMANDS: Final = {
    "work": ("stoker.cli.work:work", "Run the jobs of an app: stoker work app:jobs"),
    "status": ("stoker.cli.status:status", "Show queues, workers, failing kinds and what needs attention"),
    "jobs": ("stoker.cli.jobs:jobs", "List jobs, read one, ask why it does not run, requeue, cancel"),
    "queues": ("stoker.cli.queues:queues", "Show queues; pause, resume and tune them"),
    "workers": ("stoker.cli.status:workers", "List workers: where they are and what they run"),
    "metrics": ("stoker.cli.metrics:metrics", "Print a store's metrics for Prometheus, or serve them"),
    "migrate": ("stoker.cli.migrate:migrate", "Bring the schema of a store up to date, or show what is missing"),
    "cron": ("stoker.cli.cron:cron", "List schedules; pause, resume, run, reset or drop one"),
    "serve": ("stoker.cli.serve:serve", "Serve the dashboard and the REST API: stoker serve app:jobs"),
    "tokens": ("stoker.cli.tokens:tokens", "Make, list and revoke tokens for the dashboard and the REST API"),
    "demo": ("stoker.cli.demo:demo", "Run 10,000 jobs of several kinds and show what became of them"),
}
"""Commands by name: where the code is, and the line that `stoker --help` shows without importing it."""


def main() -> None:
    """Entry point; modules in the current folder can be imported, as with `python -m`."""
    from stoker.cli.command import stoker

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    stoker()
