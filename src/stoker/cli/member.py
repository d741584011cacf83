"""The worker processes of `stoker work`: a supervised worker whose logs look like the command's own."""

from __future__ import annotations

from typing import NoReturn

from stoker.cli import logs
from stoker.worker import member


def main() -> NoReturn:
    """Entry of the worker process."""
    member.main(lambda assignment: logs.configure(**assignment.extra))
