"""The `stoker` command. One file per noun, imported only when its command is used, so that `--help` is quick.

Nothing but the tables are here: worker processes start from this package too, and need no command line.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

COMMANDS: Final = {
    "work": ("stoker.cli.work:work", "Run the jobs of an app: stoker work app:jobs"),
    "status": ("stoker.cli.status:status", "Show problems, queues, workers and errors on one screen"),
    "top": ("stoker.cli.top:top", "Watch queues, workers and failures live, and steer them by keys"),
    "jobs": ("stoker.cli.jobs:jobs", "List jobs, read one, ask why it does not run, requeue, cancel"),
    "groups": ("stoker.cli.groups:groups", "List groups of jobs, read one; cancel or retry all members"),
    "queues": ("stoker.cli.queues:queues", "Show queues; pause, resume and tune them"),
    "schedules": ("stoker.cli.schedules:schedules", "List schedules; pause, resume, run, edit or drop one"),
    "limits": ("stoker.cli.limits:limits", "Show rate budgets and limits by key; change them"),
    "kinds": ("stoker.cli.status:kinds", "List kinds: their jobs, run times and failures"),
    "workers": ("stoker.cli.workers:workers", "List workers; quiet, resume and stop one, see its stacks"),
    "stats": ("stoker.cli.stats:stats", "Show what went through over a time"),
    "scale": ("stoker.cli.scale:scale", "Show how many worker processes the claimable work needs"),
    "operations": ("stoker.cli.operations:operations", "List bulk actions; watch, stop and resume them"),
    "findings": ("stoker.cli.findings:findings", "List what needs a person; acknowledge a finding for a while"),
    "audit": ("stoker.cli.audit:audit", "List who changed what, when and why"),
    "metrics": ("stoker.cli.metrics:metrics", "Print a store's metrics for Prometheus, or serve them"),
    "outbox": ("stoker.cli.outbox:outbox", "Show streams and letters; replay, release, seek; run consumers"),
    "export": ("stoker.cli.archive:export", "Write jobs as lines of JSON, for another store or program"),
    "import": ("stoker.cli.archive:import_", "Store the jobs of an export, with their ids"),
    "migrate": ("stoker.cli.migrate:migrate", "Bring the schema of a store up to date, or show what is missing"),
    "reseal": ("stoker.cli.reseal:reseal", "Seal what is stored with the current key of a sealed app"),
    "serve": ("stoker.cli.serve:serve", "Serve the dashboard and the REST API: stoker serve app:jobs"),
    "tokens": ("stoker.cli.tokens:tokens", "Make, list and revoke tokens for the dashboard and the REST API"),
    "doctor": ("stoker.cli.doctor:doctor", "Check a store: what is wrong, and how to fix it"),
    "completion": ("stoker.cli.completion:completion", "Print what bash, zsh or fish need to complete commands"),
    "demo": ("stoker.cli.demo:demo", "Run 10,000 jobs of several kinds and show how they ended"),
}
"""Commands by name: where the code is, and the line that `stoker --help` shows without importing it."""

ALIASES: Final = {
    "list": ("jobs", "list"),
    "ls": ("jobs", "list"),
    "show": ("jobs", "show"),
    "explain": ("jobs", "explain"),
    "dead": ("jobs", "list", "is:dead"),
    "failed": ("jobs", "list", "is:dead"),
    "requeue": ("jobs", "requeue"),
    "retry": ("jobs", "retry"),
    "cancel": ("jobs", "cancel"),
    "discard": ("jobs", "discard"),
    "delete": ("jobs", "delete"),
    "enqueue": ("jobs", "enqueue"),
    "tail": ("jobs", "tail"),
    "pause": ("queues", "pause"),
    "resume": ("queues", "resume"),
    "tune": ("queues", "tune"),
    "tasks": ("kinds",),
    "cron": ("schedules",),
    "check": ("doctor",),
    "ui": ("serve",),
    "dashboard": ("serve",),
    "worker": ("work",),
    "run": ("work",),
    "start": ("work",),
}
"""What people type by instinct, and what it stands for; not listed by `--help`."""


def main() -> None:
    """Entry point; modules in the current folder can be imported, as with `python -m`."""
    from stoker.cli.command import stoker

    if "_STOKER_COMPLETE" in os.environ:
        import_module("stoker.cli.completion")  # bash is answered in a way of its own
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    stoker()
