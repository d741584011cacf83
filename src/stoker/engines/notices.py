"""What is logged about a store once per start, however many engines and processes open it."""

from __future__ import annotations

import logging

_logged: set[tuple[str, str]] = set()
_kept: dict[tuple[str, str], logging.Logger] = {}
_parent_logs = False


def warn_once(logger: logging.Logger, store: str, text: str) -> None:
    """Log a warning about a store unless this process, or the supervisor that started it, has done so."""
    _log_once(logger, logging.WARNING, store, text)


def keep_for_workers(logger: logging.Logger, store: str, text: str) -> None:
    """Keep a note about a store until a worker starts on it; a process without a worker never logs it."""
    _kept[store, text] = logger


def log_kept(store: str) -> None:
    """Log the notes about a store, at INFO, unless that is done: a worker or its supervisor has opened it."""
    for (about, text), logger in list(_kept.items()):
        if about == store:
            _log_once(logger, logging.INFO, store, text)


def leave_to_parent() -> None:
    """From now on log nothing of this: this is a worker process, and its supervisor opened the same store before it."""
    global _parent_logs  # noqa: PLW0603 - a property of the process
    _parent_logs = True


def _log_once(logger: logging.Logger, level: int, store: str, text: str) -> None:
    if not _parent_logs and (store, text) not in _logged:
        _logged.add((store, text))
        logger.log(level, text)
