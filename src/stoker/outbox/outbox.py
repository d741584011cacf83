"""The outbox: messages that are stored in the transaction of the data they tell about, and delivered afterwards.

`Outbox` is what users touch: a stream of an app's store, the ways to append to it, and the handlers that its messages
are delivered to. `consumer_loop` delivers, `service` runs the loops in every worker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack, cast, overload

from stoker.engines.base import Engine, Transaction, outbox_of
from stoker.joining import joined
from stoker.model.errors import InvalidOption
from stoker.model.ids import text
from stoker.model.outbox.stream import Entry, Stream, check_entries, topic
from stoker.model.outbox.stream import entry as address
from stoker.model.time import Seconds, span
from stoker.outbox.batch import Batch
from stoker.outbox.consumers import StreamHandle, streams_of
from stoker.outbox.entries import encode
from stoker.outbox.handlers import DeliverOptions, Handler, RelayOptions, declare
from stoker.outbox.letters import LetterTerms, deliver_here, read_filter
from stoker.outbox.message import Message
from stoker.outbox.relays.base import JoiningRelay, Relay
from stoker.outbox.service import OutboxService
from stoker.settings import check_known

if TYPE_CHECKING:
    from stoker.app import Stoker

T = TypeVar("T")
H = TypeVar("H")
R = TypeVar("R", bound=Awaitable[None] | None)

RELAY_BATCH = 500


class Deliver(Protocol[T]):
    """What `@outbox.deliver(...)` returns: registers a handler for bodies of the stream's type."""

    @overload
    def __call__(self, fn: Callable[[Message[T]], R], /) -> Callable[[Message[T]], R]: ...
    @overload
    def __call__(self, fn: Callable[[Batch[T]], R], /) -> Callable[[Batch[T]], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[Message[T]]], R], /) -> Callable[[list[Message[T]]], R]: ...
    @overload
    def __call__(self, fn: Callable[[Message[T], H], R], /) -> Callable[[Message[T], H], R]: ...
    @overload
    def __call__(self, fn: Callable[[Batch[T], H], R], /) -> Callable[[Batch[T], H], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[Message[T]], H], R], /) -> Callable[[list[Message[T]], H], R]: ...


class Outbox(StreamHandle, Generic[T]):
    """A stream of messages with bodies of type `T`, in the store of an app.

    `partitions`: a power of two up to 64; messages of one key stay in one of them and are delivered in order, different
    partitions are delivered side by side. It cannot change later. `keep`: how long messages stay after every consumer
    has passed them. Raises `EngineRefused` where the store cannot join the transaction of your data (Redis).
    """

    def __init__(self, jobs: Stoker, *, stream: str, partitions: int = 16, keep: Seconds = 0) -> None:
        super().__init__(jobs, stream)
        self.stream = Stream(stream, partitions, span(keep, "keep"))
        outbox_of(jobs.root())
        self.handlers: dict[str, Handler] = {}
        service = OutboxService(self.stream, self.handlers)
        if any(one.name == service.name for one in jobs.services):
            raise InvalidOption("stream", stream, "this app has an Outbox of this stream already; use that one")
        jobs.services.add(service)

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

        Without `tx` it joins the block that this Task or thread is in, else it is a transaction of its own. Bytes
        are stored as they are, anything else as JSON of at most 64 KiB; `type` is by default the name of the body's
        class. Messages of one key keep their order; with `partition` the order holds inside that partition. A stream
        that is not stored yet is stored with the message.
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
        await engine.jobs.wake([topic(self.stream.name)])

    async def _store(self, entries: Sequence[Entry], tx: Transaction | None) -> None:
        check_entries(self.stream, entries)
        if not entries:
            return
        place = joined(self.app, tx)
        if place is None:
            await self._appending(entries)(await self.app.engine(), None)
        else:
            await place.join(self._appending(entries), wakes=[topic(self.stream.name)])

    def _store_sync(self, entries: Sequence[Entry], tx: Transaction | None, call: str) -> None:
        check_entries(self.stream, entries)
        place = joined(self.app, tx)
        if not entries:
            return
        if place is None:
            self.app.run(self._store(entries, False), instead=f"`await outbox.{call}`")
        else:
            place.join_sync(self._appending(entries), wakes=[topic(self.stream.name)])

    def _appending(self, entries: Sequence[Entry]) -> Callable[[Engine, Transaction | None], Awaitable[None]]:
        return lambda engine, tx: outbox_of(engine).append(self.stream, entries, tx=tx)

    # --- delivering ---------------------------------------------------------------------------------------------

    @overload
    def deliver(self, fn: Callable[[Message[T]], R], /) -> Callable[[Message[T]], R]: ...
    @overload
    def deliver(self, fn: Callable[[Batch[T]], R], /) -> Callable[[Batch[T]], R]: ...
    @overload
    def deliver(self, fn: Callable[[list[Message[T]]], R], /) -> Callable[[list[Message[T]]], R]: ...
    @overload
    def deliver(self, /, **options: Unpack[DeliverOptions]) -> Deliver[T]: ...
    def deliver(self, fn: Callable[..., Any] | None = None, /, **options: Unpack[DeliverOptions]) -> Any:
        """Register a handler: every worker of the app delivers the messages of the stream to it.

        The handler takes one `Message[T]`, a `Batch[T]` to walk, or a `list[Message[T]]`; it may be async, or plain and
        then runs in a thread. Returning means delivered. Whatever it raises is a retry with growing pauses, until
        `attempts` (no limit by default); `Reject` gives up, `Snooze` and `Throttle` cost no attempt. Messages of one
        key come in order, and may come more than once: `message.id` stays the same. For options see `DeliverOptions`.
        """

        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            self._add(declare(fn, options))
            return fn

        return register if fn is None else register(fn)

    def relay(self, target: Relay, *, name: str, **options: Unpack[RelayOptions]) -> None:
        """Publish every message to another system, as the consumer `name`, in batches of up to 500."""
        for method in ("open", "publish", "close"):
            if not callable(getattr(target, method, None)):
                raise InvalidOption("relay", target, f"needs an async method {method}(); see stoker.outbox.Relay")
        check_known(options, RelayOptions.__annotations__, "the option of relay")
        given = cast("DeliverOptions", {"batch": RELAY_BATCH, **options, "name": name})
        if isinstance(target, JoiningRelay) and target.joins(self.app):
            handler = declare(_publish_in, {**given, "mode": "transactional"})
        else:
            handler = declare(_publish, given)
        self._add(handler._replace(relay=target))

    async def replay(
        self,
        ids: Iterable[str] | None = None,
        *,
        here: bool = False,
        deadline: Seconds = 60,
        **chosen: Unpack[LetterTerms],
    ) -> int:
        """Have consumers deliver pending letters again; returns how many were marked.

        A letter is delivered alone, in the consumer's next turn on its partition: then it is resolved, or pending again
        with one attempt more. Without ids or a filter all pending letters of the stream are meant. With `here` this
        process calls the handlers now, one letter after the other, each for at most `deadline`, and returns how many
        were delivered.
        """
        if not here:
            return await super().replay(ids, **chosen)
        found = read_filter(self.name, ids, **chosen)
        return await deliver_here(await streams_of(self.app), found, self.handlers, deadline)

    def _add(self, handler: Handler) -> None:
        if handler.name in self.handlers:
            why = f"stream {self.stream.name!r} has a consumer of this name already; give one of them another name="
            raise InvalidOption("name", handler.name, why)
        self.handlers[handler.name] = handler


async def _publish_in(batch: Batch[Any], tx: Transaction) -> None:  # noqa: ARG001 - a handler
    """Stand in for a relay in a transaction."""
    raise AssertionError("a worker calls the relay itself")


async def _publish(batch: Batch[Any]) -> None:  # noqa: ARG001 - a handler
    """Stand in for a relay, which every worker opens for itself."""
    raise AssertionError("a worker calls the relay itself")
