"""Adding up what the doors appended: counts and the last errors of kinds.

The truth is the sum of what is folded and what is not, so it does not matter when this happens or whether it does; it
only keeps the questions of people short.
"""

from __future__ import annotations

from stoker.engines.postgres.statements import sql
from stoker.engines.sql.steps import Steps

MOST = 20_000
"""Rows folded at once."""

_FOLD = sql("fold")
_FOLD_TROUBLES = sql("fold_troubles")


def fold() -> Steps[int]:
    """Fold some rows; answers how many counts there were."""
    [(folded,)] = yield _FOLD, (MOST,)
    yield _FOLD_TROUBLES, ()
    return int(folded)
