"""The worker processes of `stoker work`: a supervised worker whose logs look like the command's own."""

from __future__ import annotations

from typing import NoReturn

from stoker.cli import logs
from stoker.supervisor import child


def main() -> NoReturn:
    """Entry of the worker process."""
    child.main(lambda assignment: logs.configure(**assignment.extra))
