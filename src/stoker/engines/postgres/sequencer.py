"""Numbering: one process's part of it. The rule is in the SQL function `sequence`; this keeps where it goes on.

`seen` is the snapshot up to which everything is numbered. It is replaced only by the answer of a step that was
committed, and it belongs to one start of one server. At first, and once a minute, a step looks at everything; what only
such a step finds is a fault of the numbering, and is logged as one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from stoker.engines.postgres.statements import sql
from stoker.engines.sql.exchanges import Exchange, Row
from stoker.model.humanize import count
from stoker.model.outbox.cursor import LeaseRequest
from stoker.model.outbox.delivery import Advance

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_SEQUENCE = sql("outbox_sequence")
_LOOK = sql("outbox_look")
_LOCK = sql("outbox_sequence_lock")

FEWEST, MOST = 1_000, 100_000
"""Messages of one step: the number doubles while steps come back full, for each of them looks at the whole window."""

RECENT = 0.1
"""Seconds for which a turn that has more before it goes on without another step."""

WHOLE_EVERY = 60.0
"""Seconds between two steps that look at everything."""

_log = logging.getLogger("stoker.engines.postgres")


class Numbered(Enum):
    """How much of what is committed has a number now."""

    ALL = auto()
    SOME = auto()
    ELSEWHERE = auto()
    """Another session numbers at this moment."""


@dataclass
class _Window:
    """How far a stream is numbered, as this process knows."""

    seen: str | None = None
    home: int | None = None
    swept: float = 0.0
    stepped: float = 0.0
    most: int = FEWEST


class Sequencer:
    """Numbers the messages of an engine's streams."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._windows: dict[str, _Window] = {}

    async def look(
        self, request: LeaseRequest, change: Advance | None = None, *, patient: bool = False
    ) -> tuple[Numbered, list[Row]]:
        """Number what is committed, then show the cursors of a consumer, or the one that is to advance.

        One statement does both. A `patient` step waits a moment for another session that is at it.
        """
        place = (None, None) if change is None else (change.partition, change.position)
        asked = (request.consumer, place[0], request.worker, self._store.now(), place[1])
        numbered, rows = await self._step(request.stream, asked, patient=patient)
        return numbered, [row[4:] for row in rows if row[4] is not None]

    async def _step(self, stream: str, more: Row, *, patient: bool) -> tuple[Numbered, Sequence[Row]]:
        window = self._windows.setdefault(stream, _Window())
        at = time.monotonic()
        entire = window.seen is None or at - window.swept >= WHOLE_EVERY
        values = (stream, window.seen, window.home, window.most, entire, patient, *more)
        rows = await self._store.once("stream", _LOOK, values, extra=30.0)
        moved, seen, missed, started = rows[0][:4]
        if moved < 0:
            return Numbered.ELSEWHERE, rows
        if missed:
            _log.error(
                "%s of stream %s got a number late: committed, and found by no step until now. Consumers receive them "
                "now, perhaps out of order. Please report this",
                count(missed, "message"),
                stream,
            )
        full = moved >= window.most
        window.stepped = at
        if not full and entire:
            window.swept = at
        window.seen, window.home = seen, started
        window.most = min(window.most * 2, MOST) if full else FEWEST
        return Numbered.SOME if full else Numbered.ALL, rows

    def recent(self, stream: str) -> bool:
        """Whether a step was complete a short time ago."""
        window = self._windows.get(stream)
        return window is not None and time.monotonic() - window.stepped < RECENT


def number_all(sid: int, stream: str) -> Exchange[None]:
    """Number everything that is committed now, in a transaction that ends later."""
    yield _LOCK, (sid,)
    moved = MOST
    while moved >= MOST:
        [(moved, *_)] = yield _SEQUENCE, (stream, None, None, MOST, True, False)
