"""The inbox: handle each message that others send once, however often they send it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Final, overload

from stoker.engines.base import Engine, Transaction, needs_transaction, outbox_of
from stoker.joining import Joined, joined
from stoker.model.errors import InvalidInput
from stoker.model.time import DAY, Seconds, span
from stoker.model.unique import check_text

if TYPE_CHECKING:
    from stoker.app import Stoker

KEEP: Final = timedelta(microseconds=7 * DAY)


class Inbox:
    """Remembers which messages of a sender were received, in the store of an app.

    `source` names the sender: ids of different sources are different. `keep`: how long an id is remembered; it must be
    longer than the sender may take to send a message again, because an id that is forgotten is new again. Raises
    `EngineRefused` where the store cannot join the transaction of your data (Redis).
    """

    def __init__(self, jobs: Stoker, *, source: str, keep: Seconds = KEEP) -> None:
        check_text("source", source)
        self.app = jobs
        self.source = source
        self._keep = span(keep, "keep")
        if not self._keep:
            raise InvalidInput("keep", keep, "must be longer than nothing, or every message would be new")
        outbox_of(jobs.root())

    def __repr__(self) -> str:
        return f"<Inbox {self.source}>"

    @overload
    async def receive(self, ids: str, *, tx: Transaction | None = None) -> bool: ...  # type: ignore[overload-overlap]
    @overload
    async def receive(self, ids: Iterable[str], *, tx: Transaction | None = None) -> list[bool]: ...
    async def receive(self, ids: str | Iterable[str], *, tx: Transaction | None = None) -> bool | list[bool]:
        """Return whether a message is new: True the first time its id is received, False ever after.

        Of several ids the answers come in their order; an id that is twice among them is new once. `tx` is the
        transaction that your own writes are in: if it is rolled back, the id was never received. A concurrent call with
        the same id waits until this transaction has ended, or one of them fails. Without `tx` it joins the block that
        this Task or thread is in, else it is refused.
        """
        given, place = _listed(ids), self._place(tx)
        fresh = await place.join(lambda engine, tx: self._receive(engine, given, tx))
        return fresh[0] if isinstance(ids, str) else fresh

    @overload
    def receive_sync(self, ids: str, *, tx: Transaction | None = None) -> bool: ...  # type: ignore[overload-overlap]
    @overload
    def receive_sync(self, ids: Iterable[str], *, tx: Transaction | None = None) -> list[bool]: ...
    def receive_sync(self, ids: str | Iterable[str], *, tx: Transaction | None = None) -> bool | list[bool]:
        """`receive` in a synchronous transaction; needs no loop at all."""
        given, place = _listed(ids), self._place(tx)
        fresh = place.join_sync(lambda engine, tx: self._receive(engine, given, tx))
        return fresh[0] if isinstance(ids, str) else fresh

    def _place(self, tx: Transaction | None) -> Joined:
        """The transaction of the call, which has to be one that answers now."""
        place = joined(self.app, tx)
        return needs_transaction("receive", None if place is None or place.deferred else place)

    def _receive(self, engine: Engine, ids: list[str], tx: Transaction | None) -> Awaitable[list[bool]]:
        return outbox_of(engine).receive(self.source, ids, keep=self._keep, tx=tx)


def _listed(ids: str | Iterable[str]) -> list[str]:
    """The ids as the engine takes them, which checks each."""
    if isinstance(ids, str):
        return [ids]
    if not isinstance(ids, Iterable):
        raise InvalidInput("id", ids, "must be text, or a list of texts")
    return list(ids)
