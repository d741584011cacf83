"""Reads what a check-up of a SQLite store judges (`model.health`). Nothing is decided here."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stoker.engines.sql import damage
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.engines.sqlite.connection import LEVELS, VERSION
from stoker.engines.sqlite.describe import log_size
from stoker.engines.sqlite.file_checks import user_name, version_warning
from stoker.engines.sqlite.statements import sql
from stoker.model.health.facts import MOST_COUNTED, Counted, Facts, SqliteFacts

_COUNTS = sql("diagnose_counts")
_KEYS = sql("diagnose_keys")
_PLACELESS, _BODILESS, _GROUPS = sql("diagnose_placeless"), sql("diagnose_bodiless"), sql("diagnose_groups")
_QUEUES, _BUDGETS = sql("queues"), sql("budgets")


def counts() -> Exchange[tuple[list[Row], int, tuple[str, ...]]]:
    """Counters beside counts, keys that no active job holds, and what cannot be read."""
    rows: list[Row] = yield _COUNTS, (MOST_COUNTED + 1,)
    [(keys,)] = yield _KEYS, (MOST_COUNTED,)
    placeless = [job for (job,) in (yield _PLACELESS, (MOST_COUNTED,))]
    bodiless = [job for (job,) in (yield _BODILESS, (MOST_COUNTED,))]
    groups: list[Row] = yield _GROUPS, (damage.MOST_GROUPS,)
    queues = yield _QUEUES, ()
    budgets: list[Row] = yield _BUDGETS, ()
    return rows, keys, damage.damaged(placeless, bodiless, groups, queues, budgets)


def facts(path: str, asked: str, pragmas: dict[str, str], found: tuple[list[Row], int, tuple[str, ...]]) -> Facts:
    """All facts about an open file; `pragmas` are those of a strict transaction."""
    rows, keys, damaged = found
    log = log_size(path)
    journal = pragmas["journal_mode"]
    version = tuple(int(part) for part in VERSION.split("."))
    found_file = os.stat(path)  # noqa: PTH116 - no Path for a number
    return Facts(
        idle_keys=keys,
        counters=tuple(Counted(queue or "all queues", what, counter, count) for what, queue, counter, count in rows),
        damaged=damaged,
        sqlite=SqliteFacts(
            version=VERSION,
            affected=journal == "wal" and version_warning(version) is not None,
            journal=journal,
            synchronous=LEVELS.get(int(pragmas["synchronous"]), pragmas["synchronous"]),
            asked=asked,
            bytes=int(pragmas["page_size"]) * int(pragmas["page_count"]) + log,
            log_bytes=log,
            free_bytes=_free(path),
            mode=stat.S_IMODE(found_file.st_mode),
            owner=None if found_file.st_uid in {0, os.geteuid()} else user_name(found_file.st_uid),
        ),
    )


def _free(path: str) -> int | None:
    try:
        disk = os.statvfs(Path(path).parent)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize
