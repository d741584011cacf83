"""Folding counters: adding up the count rows and last errors that writes append.

Readers add what is folded to what is not yet folded, so counts are right whenever this runs, or if it never does. It
only keeps those reads short.
"""

from __future__ import annotations

from stoker.engines.postgres.statements import sql
from stoker.engines.sql.exchanges import Exchange

MOST = 20_000
"""Rows folded at once."""

_FOLD = sql("fold")
_FOLD_TROUBLES = sql("fold_troubles")


def fold() -> Exchange[int]:
    """Fold up to `MOST` rows; return how many counts there were."""
    [(folded,)] = yield _FOLD, (MOST,)
    yield _FOLD_TROUBLES, ()
    return int(folded)
