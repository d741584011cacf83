"""A batch: the messages of one turn, handed out in order.

There is no way to look ahead: what was not handed out was not delivered. Handing out the next unit, a message or a
chunk, finishes the one before, so what is finished is always a prefix.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

from stoker.model.errors import EngineRefused, InvalidInput
from stoker.model.outbox.delivery import Progress, Rejection
from stoker.outbox.message import Message
from stoker.transaction_block import Block, Factory, OwnSyncTransaction, OwnTransaction

T_co = TypeVar("T_co", covariant=True)
H = TypeVar("H")


class Batch(Generic[T_co]):
    """The messages of one turn on a partition. Iterate over it, or take `next()`, `chunk(n)` or `rest()`.

    At the deadline iteration ends by itself; what was not handed out comes again. A handler in a thread may use it
    there.
    """

    def __init__(
        self,
        messages: Sequence[Message[Any]],
        partition: int,
        attempts: int,
        time_left: Callable[[], float],
        block: Callable[[Batch[Any], Factory[Any] | None], Block[Any, Any]] | None = None,
    ) -> None:
        self.partition = partition
        self.attempts = attempts
        """Earlier deliveries that began with the first message of this batch."""
        self._messages = messages
        self._time_left = time_left
        self._block = block
        self._progress = Progress(tuple([one.number for one in messages]))
        self._handed = 0
        self._closed = False
        self._lock = threading.Lock()  # a handler in a thread hands out while the loop may close the batch

    def __repr__(self) -> str:
        return f"<Batch of {len(self._messages)} in partition {self.partition}, {len(self)} left>"

    def __len__(self) -> int:
        """How many messages were not handed out yet."""
        return len(self._messages) - self._handed

    def __bool__(self) -> bool:
        return True  # a batch with nothing left is still a batch

    @property
    def remaining(self) -> float:
        """Seconds until the deadline, 0 from then on."""
        return max(self._time_left(), 0.0)

    # --- handing out --------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Message[T_co]]:
        while (message := self.next()) is not None:
            yield message

    def next(self) -> Message[T_co] | None:
        """The next message; None when there is none, or no time for it. The one before is finished."""
        handed = self._hand_out(1)
        return handed[0] if handed else None

    def chunk(self, n: int) -> list[Message[T_co]]:
        """The next messages, at most `n`; none when there are none, or no time for them. Those before are finished."""
        if n < 1:
            raise InvalidInput("chunk", n, "must be at least 1")
        return self._hand_out(n)

    def rest(self) -> list[Message[T_co]]:
        """All messages that are left, as one unit. Those before are finished."""
        return self._hand_out(max(len(self), 1))

    def _hand_out(self, n: int) -> list[Message[Any]]:
        with self._lock:
            if self._closed:
                return []
            self._progress = self._progress.through(self._handed)
            if self._time_left() <= 0:
                return []
            start, self._handed = self._handed, min(self._handed + n, len(self._messages))
            return list(self._messages[start : self._handed])

    # --- finishing ----------------------------------------------------------------------------------------------

    def done(self, message: Message[Any]) -> None:
        """Finish a message of the present unit, and with it those before: they are not delivered again."""
        with self._lock:
            self._check(message)
            if not self._closed:
                self._progress = self._progress.done(message.number)

    def reject(self, message: Message[Any], why: str) -> None:
        """Give up the message just handed out: it becomes a letter with this reason, and the batch goes on.

        Inside a chunk those before it must be `done` first.
        """
        with self._lock:
            self._check(message)
            if not self._closed:
                self._progress = self._progress.reject(message.number, why)

    def _check(self, message: Message[Any]) -> None:
        if message.number not in self._progress.numbers[: self._handed]:
            raise InvalidInput("message", message, "must be one that this batch has handed out")

    # --- one commit ---------------------------------------------------------------------------------------------

    @overload
    def transaction(self, factory: Factory[H]) -> Block[H, H]: ...

    @overload
    def transaction(self, factory: None = None) -> Block[OwnTransaction, OwnSyncTransaction]: ...

    def transaction(self, factory: Factory[Any] | None = None) -> Block[Any, Any]:
        """A block whose writes are committed together with the delivery of everything handed out, or not at all.

        `async with batch.transaction(Session.begin) as session:`, or `with` in a plain handler. When the block ends
        well the turn is over: nothing more is handed out, and what the handler still does changes nothing. `LostClaim`:
        another worker has the partition, and nothing was stored.
        """
        if self._block is None:
            raise EngineRefused(
                "this batch has no turn of its own that a transaction could end: its handler has a transaction already "
                "(mode='transactional'), or a letter is delivered here. Nothing was stored."
            )
        return self._block(self, factory)

    # --- for the lane -------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Hand out nothing more; what is not finished by now comes again."""
        with self._lock:
            self._closed = True

    def finish(self) -> None:
        """Finish all that was handed out: the handler returned."""
        with self._lock:
            if not self._closed:
                self._progress = self._progress.through(self._handed)

    @property
    def progress(self) -> Progress:
        """What is finished."""
        return self._progress

    @property
    def processed(self) -> int:
        """How many messages are finished."""
        return self._progress.processed

    @property
    def handed(self) -> int:
        """How many messages were handed out."""
        return self._handed

    @property
    def in_hand(self) -> int:
        """How many messages are handed out and not finished."""
        return max(self._handed - self._progress.processed, 0)

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """The messages that the handler gave up, in order."""
        return self._progress.rejections
