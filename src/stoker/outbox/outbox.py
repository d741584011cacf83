"""The outbox: messages that are stored in the transaction of the data they tell about, and delivered afterwards.

`Outbox` is what users touch: a stream of an app's store, the ways to append to it, and the handlers that its messages
are delivered to. `lane` delivers, `service` runs the lanes in every worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from stoker.engines.base import Transaction, outbox_of
from stoker.model.ids import text
from stoker.model.outbox.stream import Entry, Stream, check_entries, topic
from stoker.model.outbox.stream import entry as address
from stoker.model.time import Seconds, span
from stoker.outbox.entries import encode

if TYPE_CHECKING:
    from stoker.app import Stoker

T = TypeVar("T")


class Outbox(Generic[T]):
    """A stream of messages with bodies of type `T`, in the store of an app.

    `partitions`: a power of two up to 64; messages of one key stay in one of them and are delivered in order, different
    partitions are delivered side by side. It cannot change later. `keep`: how long messages stay after every consumer
    has passed them. Raises `EngineRefused` where the store cannot join the transaction of your data (Redis).
    """

    def __init__(self, jobs: Stoker, *, stream: str, partitions: int = 16, keep: Seconds = 0) -> None:
        self.app = jobs
        self.stream = Stream(stream, partitions, span(keep, "keep"))
        outbox_of(jobs.root())

    def __repr__(self) -> str:
        return f"<Outbox {self.stream.name} of {self.stream.partitions} partitions>"

    # --- appending ----------------------------------------------------------------------------------------------

    async def append(
        self,
        key: str,
        body: T,
        *,
        tx: Transaction | None = None,
        type: str | None = None,  # noqa: A002 - the field's name
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
    ) -> str:
        """Append a message and return its id. It exists if and only if the transaction `tx` commits.

        Without `tx` the append is a transaction of its own. Bytes are stored as they are, anything else as JSON of at
        most 64 KiB; `type` is by default the name of the body's class. Messages of one key keep their order; with
        `partition` the order holds inside that partition. A stream that is not stored yet is stored with the message.
        """
        made = self.entry(key, body, type=type, headers=headers, partition=partition)
        await self._store([made], tx)
        return text(made.id)

    def append_sync(
        self,
        key: str,
        body: T,
        *,
        tx: Transaction | None = None,
        type: str | None = None,  # noqa: A002 - the field's name
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
    ) -> str:
        """`append` for code without a loop; a synchronous `tx` of yours needs no loop at all."""
        made = self.entry(key, body, type=type, headers=headers, partition=partition)
        self._store_sync([made], tx, "append(...)")
        return text(made.id)

    async def append_many(self, entries: Iterable[Entry], *, tx: Transaction | None = None) -> list[str]:
        """Append entries, all or none, in their order; returns their ids. Empty: nothing."""
        given = list(entries)
        await self._store(given, tx)
        return [text(one.id) for one in given]

    def append_many_sync(self, entries: Iterable[Entry], *, tx: Transaction | None = None) -> list[str]:
        """`append_many` for code without a loop."""
        given = list(entries)
        self._store_sync(given, tx, "append_many(...)")
        return [text(one.id) for one in given]

    def entry(
        self,
        key: str,
        body: T,
        *,
        type: str | None = None,  # noqa: A002 - the field's name
        headers: Mapping[str, str] | None = None,
        partition: int | None = None,
    ) -> Entry:
        """A message that is checked and encoded but not stored, for `append_many`."""
        payload, kind, raw = encode(body, type)
        return address(
            self.stream,
            key,
            payload,
            kind,
            id=self.app.mint(),
            partition=partition,
            headers=None if headers is None else dict(headers),
            raw=raw,
        )

    async def wake(self) -> None:
        """Have consumers look for messages now.

        Needed after a commit that Stoker cannot see: appends through a plain driver's handle or from SQL. Without it
        they are found within the idle time of the consumer's pace.
        """
        engine = await self.app.engine()
        await engine.wake([topic(self.stream.name)])

    async def _store(self, entries: Sequence[Entry], tx: Transaction | None) -> None:
        check_entries(self.stream, entries)
        if entries:
            await outbox_of(await self.app.engine()).append(self.stream, entries, tx=tx)

    def _store_sync(self, entries: Sequence[Entry], tx: Transaction | None, call: str) -> None:
        if tx is None:
            self.app.run(self._store(entries, None), instead=f"`await outbox.{call}`")
            return
        check_entries(self.stream, entries)
        if entries:
            self.app.drive(lambda engine: outbox_of(engine).append(self.stream, entries, tx=tx))
