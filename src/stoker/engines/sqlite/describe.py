"""Describe the store: version, durability, size and warnings, read back from SQLite."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.engines.base import Description
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sqlite import file_checks
from stoker.engines.sqlite.connection import LEVELS, VERSION, WAL_PAGES

if TYPE_CHECKING:
    from stoker.engines.sqlite.store import OpenResources, Options

_log = logging.getLogger("stoker.engines.sqlite")

LARGEST_LOG = 256 << 20
"""A write-ahead log above this size means that a reader never ends."""


def described(resources: OpenResources, path: str, options: Options, pragmas: dict[str, str]) -> Description:
    """Describe an open engine; `pragmas` are those of a strict transaction.

    `size` is that of the database without its write-ahead log. `connections` are those that this engine keeps open.
    """
    durability = options.durability
    level = LEVELS.get(int(pragmas["synchronous"]), pragmas["synchronous"])
    log = log_size(path)
    size = int(pragmas["page_size"]) * int(pragmas["page_count"])
    warnings = list(resources.warnings)
    if log > LARGEST_LOG:
        warnings.append(too_long(path, log))
    wanted = "full" if durability == "power" else "normal"
    if level not in (wanted, "extra"):
        warnings.append(f"synchronous is {level} although durability={durability!r} asks for {wanted}")
    return Description(
        engine="sqlite",
        version=VERSION,
        durable=True,
        durability=(
            f"an acknowledged write survives power loss (synchronous={level})"
            if level in ("full", "extra")
            else f"an acknowledged write survives the death of the process, not power loss (synchronous={level})"
        ),
        facts={
            "path": path,
            "journal": pragmas["journal_mode"],
            "synchronous": level,
            "wal_autocheckpoint": str(WAL_PAGES),
            "secure_delete": pragmas["secure_delete"],
            "database_bytes": str(size),
            "wal_bytes": str(log),
            "busy_timeout": f"{options.patience:g} s",
            "connections": str(2 + len(resources.transactions)),
            "filesystem": file_checks.filesystem(Path(path).parent) or "unknown",
            **{f"transactions_{mode}": str(count) for mode, count in resources.write_queue.modes.items()},
        },
        size=size,
        log_size=log,
        warnings=tuple(warnings),
        notes=resources.notes,
    )


def pragmas() -> Exchange[dict[str, str]]:
    """Read pragmas back."""
    found = {}
    for name in ("journal_mode", "synchronous", "page_size", "page_count", "secure_delete"):
        found[name] = str((yield f"PRAGMA {name}", ())[0][0])
    return found


def log_size(path: str) -> int:
    """Return the size of the write-ahead log in bytes."""
    try:
        return os.stat(f"{path}-wal").st_size  # noqa: PTH116 - no Path for a number
    except FileNotFoundError:
        return 0


def warn_of_log(path: str) -> None:
    """Log a warning if the log cannot be reset; called by every expire."""
    if (size := log_size(path)) > LARGEST_LOG:
        _log.warning(too_long(path, size))


def too_long(path: str, size: int) -> str:
    return (
        f"the write-ahead log of {path} has {size >> 20} MiB: a connection keeps an old transaction open, and the log "
        "cannot be reset. End that transaction, or restart the program that holds it"
    )
