"""What a relay is: the way of messages into another system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from stoker.outbox.message import Message

if TYPE_CHECKING:
    from stoker.app import Stoker
    from stoker.engines.base import Transaction


class Relay(Protocol):
    """Publishes messages to one target: `outbox.relay(target, name="orders-to-nats")`.

    A worker opens it before the first message, publishes batch after batch, one at a time for each partition, and
    closes it when it stops. A message may be published more than once, so every target gets `message.id`.
    """

    async def open(self) -> None:
        """Connect. After an error it is tried again, with longer and longer pauses; meanwhile messages wait."""
        ...

    async def publish(self, messages: Sequence[Message[Any]]) -> None:
        """Publish in order and return when the target has accepted all of them.

        Raise `Partial(n)` when only the first n were accepted: the rest comes at once in the next turn, or as the error
        or exit asks that it was raised from. Raise `Reject(why)` when a message can never be: the
        messages are then published one by one, and the one that is rejected alone becomes a letter. Any other error
        is a retry of all.
        """
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...


@runtime_checkable
class JoiningRelay(Protocol):
    """A relay that may write into the outbox's own store: then what it writes and the cursor are one commit."""

    def joins(self, app: Stoker) -> bool:
        """Is the target the store of this app?"""
        ...

    async def publish_in(self, messages: Sequence[Message[Any]], tx: Transaction) -> None:
        """Publish in a transaction of the store, which moves the cursor at its end."""
        ...


class Partial(Exception):
    """Only the first `n` messages of a publish were accepted: `raise Partial(3) from error`."""

    def __init__(self, n: int, why: str | None = None) -> None:
        self.n = n
        self.why = why
        super().__init__(f"only {n} messages were accepted" if why is None else why)
