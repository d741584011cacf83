"""`manage.py stoker …`: the command `stoker` with the app of the settings.

With `DEBUG` a worker starts with `--reload`, as `runserver` does; `--no-reload` turns it off.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from stoker.cli.command import stoker
from stoker.contrib.django.app import PATH
from stoker.contrib.django.settings import testing


class Command(BaseCommand):
    """Hands everything on to the one command line of Stoker."""

    help = "Run and steer background jobs: manage.py stoker work, status, jobs, queues, schedules, serve, doctor, …"
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Hand on all that stands behind `manage.py stoker`, options included."""
        run(argv[2:], f"{argv[0]} {argv[1]}")

    def add_arguments(self, parser: CommandParser) -> None:
        """Take what `call_command` gives."""
        parser.add_argument("args", nargs=argparse.REMAINDER)

    def handle(self, *arguments: Any, **_: Any) -> None:
        """Run for `call_command("stoker", "status")`: the end of the command is no end of the process."""
        if testing() and "work" in arguments:
            raise CommandError(
                "a worker is a process of its own, which does not know the test database. Nothing was started. Call "
                "drain() of stoker.contrib.django.testing instead."
            )
        try:
            run([str(one) for one in arguments], "manage.py stoker")
        except SystemExit as end:
            if end.code:
                raise


def run(arguments: list[str], name: str) -> None:
    """Run the command line with the app of the settings."""
    given = {"path": PATH, "work": {"reload": settings.DEBUG}}
    sys.exit(stoker.main(arguments, prog_name=name, default_map=given))
