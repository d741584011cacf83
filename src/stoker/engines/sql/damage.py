"""What of a SQL store cannot be read, each in one clause for `doctor`, and what is logged about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from stoker.engines.base import PLACELESS
from stoker.engines.shared.budget_format import damaged_budgets
from stoker.engines.sql.exchanges import Row
from stoker.engines.sql.packing import is_declaration
from stoker.model.errors import CorruptRecord
from stoker.model.groups import unpack_callbacks
from stoker.model.health.facts import UNDECLARED
from stoker.model.ids import JobId, text

MOST_GROUPS = 1_000
"""Groups whose callbacks a check-up reads."""

DECLARED_OF_QUEUE = 18
"""Where the declaration is in a row of a queue."""


def damaged(
    placeless: Iterable[JobId],
    bodiless: Iterable[JobId],
    groups: Iterable[Row],
    queues: Sequence[Row],
    budgets: Sequence[Row],
) -> tuple[str, ...]:
    """Name what cannot be read; groups come with their callbacks."""
    found = [f"job {text(job)} cannot be read: {PLACELESS}" for job in placeless]
    found += [f"job {text(job)} waits, and its body is gone" for job in bodiless]
    for id_, stored in groups:
        try:
            callbacks(stored)
        except CorruptRecord as error:
            found.append(f"group {text(id_)}: {error}")
    found += [f"queue {row[0]}: {UNDECLARED}" for row in queues if not is_declaration(row[DECLARED_OF_QUEUE])]
    found += damaged_budgets(budgets)
    return tuple(found)


def callbacks(stored: bytes | str | None) -> dict[str, Any]:
    """The callbacks of a group as it is made with them. Raises `CorruptRecord`."""
    try:
        return msgspec.structs.asdict(unpack_callbacks(stored or b""))
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptRecord(f"its callbacks cannot be read ({error})") from error


def uncalled(group: JobId, error: CorruptRecord) -> str:
    """What is logged when a group closes whose callbacks cannot be read."""
    return f"group {text(group)} is closed without its callbacks: {error}. Enqueue what should follow it"
