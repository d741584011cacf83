"""For an engine that has no subqueues yet: refuses, by name, what needs them."""

from __future__ import annotations

from collections.abc import Iterable

from stoker.model.control import Tuning
from stoker.model.errors import EngineRefused
from stoker.model.job import Draft
from stoker.model.throttle import Rate


def refuse_drafts(engine: str, drafts: Iterable[Draft]) -> None:
    """Refuse jobs with a limit."""
    for draft in drafts:
        if draft.options.limit is not None:
            raise EngineRefused(
                f"{engine} has no limits by key yet, and job {draft.kind} has limit {draft.options.limit.name!r}. "
                "Nothing was stored. Leave limit= out, or use a store that has them."
            )


def refuse_tuning(engine: str, tuning: Tuning | Rate) -> None:
    """Refuse a fair queue and numbers of limits."""
    if isinstance(tuning, Tuning) and (tuning.fair or tuning.limits):
        raise EngineRefused(f"{engine} has no fair queues and no limits by key yet. Nothing was changed.")
