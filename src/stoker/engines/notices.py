"""Warnings about a store that are logged once per start, however many engines and processes open it."""

from __future__ import annotations

import logging

_logged: set[tuple[str, str]] = set()
_parent_logs = False


def warn_once(logger: logging.Logger, store: str, text: str) -> None:
    """Log a warning about a store unless this process, or the supervisor that started it, has done so."""
    if not _parent_logs and (store, text) not in _logged:
        _logged.add((store, text))
        logger.warning(text)


def leave_to_parent() -> None:
    """From now on log none of them: this is a worker process, and its supervisor opened the same store before it."""
    global _parent_logs  # noqa: PLW0603 - a property of the process
    _parent_logs = True
