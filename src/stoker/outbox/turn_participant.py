"""The turn's part in a block: the cursor advances in the commit of the handler's writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.engines.base import Engine, Transaction, outbox_of
from stoker.model.outbox.delivery import Advance
from stoker.outbox.batch import Batch


class TurnParticipant:
    """Advances the cursor last.

    It needs no fence: the advance applies only under the turn's lease. After the block exactly one of these holds:
    `advanced` (committed), `doubt` is a text (unknown: do not repeat the advance, the next lease shows the truth), or
    neither (nothing was stored; the block raised). Once committed or in doubt the batch hands out nothing more.
    """

    def __init__(self, name: str, advance: Callable[[], Advance], batch: Batch[Any]) -> None:
        self.name = name
        self.advanced = False
        self.doubt: str | None = None
        self.written: Advance | None = None
        self._advance = advance
        self._batch = batch

    async def begin(self, engine: Engine, tx: Transaction) -> bool:  # noqa: ARG002 - the signature of all parts
        """Return True: no other worker writes the cursor of a leased partition."""
        return True

    async def end(self, engine: Engine, tx: Transaction) -> bool:
        """Advance; `advance()` is asked only now, after the handler."""
        self.written = self._advance()
        return (await outbox_of(engine).advance(self.written, tx=tx)).applied

    def committing(self) -> None:
        """Nothing to note."""

    def committed(self) -> None:
        """Note that the cursor has advanced."""
        self.advanced = True
        self._batch.close()

    def rolled_back(self) -> None:
        """Nothing to note."""

    def in_doubt(self, why: str) -> None:
        """Note that it is not known whether the cursor has advanced."""
        self.doubt = why
        self._batch.close()

    async def is_stored(self, engine: Engine) -> bool:
        """Return whether the turn's lease is gone. Asked until a factory has committed once: it costs a look at all."""
        done = self.written
        assert done is not None
        consumer = (done.stream, done.consumer)
        if consumer in _committing_consumers:
            return True
        for state in await outbox_of(engine).streams([done.stream]):
            for one in state.cursors:
                cursor = one.cursor
                turn = (cursor.consumer, cursor.partition, cursor.holder, cursor.token)
                if turn == (done.consumer, done.partition, done.holder, done.token):
                    return False
        _committing_consumers.add(consumer)
        return True


_committing_consumers: set[tuple[str, str]] = set()
"""Consumers of this process whose factory is known to commit."""
