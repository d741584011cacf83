"""Lanes: one lane delivers one partition at a time to a handler.

The loop of a lane: lease a partition with its messages, hand them to the handler under a deadline, conclude, advance;
an advance may lease the same partition again, for a few turns. Of the lanes of a consumer only one asks for a lease;
when it has got one, the next one asks. Any lane of any process takes any free partition.

`delivery.conclude_batch` decides what an outcome does. A lane never repeats an advance whose answer was lost: the next
lease shows what is stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

from stoker.codec.error_text import one_line
from stoker.engines.base import Outbox as Streams
from stoker.executors.threads import Threads
from stoker.model import humanize
from stoker.model.errors import AWAY, PASSING, EngineRefused, InvalidInput, NotFound, StokerError, sentence
from stoker.model.outbox import stream as stored
from stoker.model.outbox.batch_size import Ending, sequencer_wait
from stoker.model.outbox.cursor import Lease, LeaseRequest, attempts_seen, deadline, remaining
from stoker.model.outbox.delivery import (
    Advance,
    Advanced,
    BatchOutcome,
    Delivered,
    RetryLater,
    after_crash,
    conclude_batch,
    crashes,
    cut_short,
    handed_out,
    quarantine,
    readable,
)
from stoker.model.outcome import Reject, Retry, gravest
from stoker.model.seal import why_closed
from stoker.model.time import SECOND, Instant
from stoker.outbox.batch import Batch
from stoker.outbox.calls import Caller
from stoker.outbox.failed_turns import FailedTurns
from stoker.outbox.handlers import Handler
from stoker.outbox.message import Message
from stoker.outbox.outcomes import STOPPED, first_line, outcome_of_error, outcome_of_stop
from stoker.outbox.turn_participant import TurnParticipant
from stoker.services import ServiceContext
from stoker.transaction_block import Block

logger = logging.getLogger("stoker.outbox")

MOST_TURNS = 8
LONGEST_STAY = 0.2
"""A lane stays on a partition for so many turns or seconds, then others have their turn."""

AGAIN = 0.05
"""Seconds until the next look while another session numbers messages."""

UNWIND = 2.0
"""Seconds a handler gets to unwind after it was interrupted."""

Clock: TypeAlias = Callable[[], float]


class ConsumerLoop:
    """The lanes of one consumer in one worker."""

    def __init__(
        self,
        stream: str,
        handler: Handler,
        context: ServiceContext,
        streams: Streams,
        threads: Threads,
        clock: Clock = time.monotonic,
    ) -> None:
        self.stream = stream
        self.handler = handler
        self.context = context
        self.streams = streams
        self.clock = clock
        self.caller = Caller(handler, threads)
        self._told = asyncio.Event()
        self._looking = False
        self.closed = False
        self.hurried: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.counts: dict[Ending, int] = dict.fromkeys(Ending, 0)
        self._context = asyncio.Lock()
        self._idle = handler.rules.pace.idle / SECOND
        self._failures = 0
        self._failed_turns = FailedTurns()
        self.loop = asyncio.get_running_loop()
        self._abandoned: set[asyncio.Task[BaseException | None]] = set()

    def __repr__(self) -> str:
        return f"consumer {self.handler.name} of stream {self.stream}"

    # --- asked by the service -----------------------------------------------------------------------------------

    def start(self) -> list[asyncio.Task[None]]:
        """Start the lanes. They count as looking from now on: a worker that drains waits for their first look."""
        self._count(looking=True)
        name = f"stoker-outbox-{self.stream}-{self.handler.name}"
        return [asyncio.create_task(self._serve(), name=f"{name}-{n}") for n in range(self.handler.lanes)]

    def wake(self) -> None:
        """Have a lane look now: something was appended or changed."""
        self._told.set()
        self._count(looking=True)

    def close(self) -> None:
        """Lease no more; turns under way go on."""
        self.closed = True
        self._told.set()

    def hurry(self) -> None:
        """Interrupt the handlers; what they finished is kept."""
        self.close()
        if not self.hurried.done():
            self.hurried.set_result(None)

    def abandon(self, task: asyncio.Task[BaseException | None], batch: Batch[Any]) -> None:
        """Go on without a handler that ignores its interruption."""
        logger.error(
            "%r ignores that it was interrupted in partition %d and is left behind; its messages may be delivered "
            "beside it. A handler must let CancelledError out.",
            self,
            batch.partition,
        )
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)

    # --- the loop of a lane -------------------------------------------------------------------------------------

    async def _serve(self) -> None:
        while True:
            async with self._context:
                found = await self._ask()
                if found is not None and crashes(found[0].cursor):
                    # Its first message may kill the process: nothing else is leased that would die with it.
                    await self._stay(*found, alone=True)
                    continue
            if found is None:
                return
            await self._stay(*found)

    async def _ask(self) -> tuple[Lease, float] | None:
        """Wait until there is a lease; None when the lanes are closed. The time is that before the call."""
        while not self.closed:
            self._count(looking=True)
            self._told.clear()
            before = self.clock()
            wait, unsure = self._idle, False
            try:
                if self.context.taking():
                    found = await self.streams.lease(self.request())
                    self._failures = 0
                    if isinstance(found, Lease):
                        return found, before
                    wait = self._idle if found.after is None else min(self._idle, found.after / SECOND)
                    if found.numbering:
                        wait, unsure = min(wait, AGAIN), True
            except NotFound:
                logger.warning("%r was deleted; delivery stopped. Restart the worker to register it again.", self)
                self.close()
            except StokerError as error:
                wait, unsure = self._wait_for_store(error), isinstance(error, PASSING)
            await self._rest(wait, looking=unsure)
        self._count(looking=False)
        return None

    def _count(self, *, looking: bool) -> None:
        """Tell the worker whether a lane is about to look; while it rests there is nothing to wait for."""
        before, self._looking = self._looking, looking
        self.context.under_way.add(looking - before)

    def request(self) -> LeaseRequest:
        """What a lane asks for, under the id that the worker has now."""
        handler = self.handler
        limit = handler.rules.pace.batch
        return LeaseRequest(self.stream, handler.name, self.context.worker_id(), limit, handler.terms)

    def _wait_for_store(self, error: StokerError) -> float:
        wait = sequencer_wait(self._failures) / SECOND
        level = logging.DEBUG if isinstance(error, AWAY) else logging.WARNING  # the worker says that its store is away
        logger.log(level, "%r cannot lease: %s It tries again in %.1f s.", self, sentence(error), wait)
        self._failures += 1
        return wait

    async def _rest(self, seconds: float, *, looking: bool) -> None:
        """Wait until it is time to look again; `looking`: the last look failed, or may have missed messages."""
        self._count(looking=looking or self._told.is_set())
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._told.wait()

    # --- turns --------------------------------------------------------------------------------------------------

    async def _stay(self, lease: Lease, before: float, *, alone: bool = False) -> None:
        with self.context.under_way.one():
            await self._turns(lease, before, MOST_TURNS if not alone else 1)
            self.wake()  # the lane that asks may rest because this one had the partition

    async def _turns(self, lease: Lease | None, before: float, most: int) -> None:
        """Work on a partition for a few turns."""
        began, turns = before, 0
        while lease is not None:
            turn = Delivery(self, lease, before)
            advance = await turn.run()
            turns += 1
            stays = turns < most and self.clock() - began < LONGEST_STAY and self.context.taking()
            before = self.clock()
            request = self.request() if stays and not self.closed else None
            lease = await self._store(turn, advance, request)

    async def _store(self, turn: Delivery, advance: Advance | None, request: LeaseRequest | None) -> Lease | None:
        """Store the result of a delivery; returns the next lease of the partition, if there is one."""
        if advance is None:
            return None
        try:
            advanced = await self.streams.advance(advance, request=request)
        except StokerError as error:
            logger.warning(
                "%r: whether the outcome of a turn on partition %d was stored is not known: %s The next lease shows "
                "it; messages may be delivered again.",
                self,
                advance.partition,
                sentence(error),
            )
            return None
        self.report(turn, advance, advanced)
        return advanced.lease

    def report(self, turn: Delivery, advance: Advance, advanced: Advanced) -> None:
        """Log the result of a delivery."""
        if not advanced.applied:
            logger.warning(
                "%r lost the lease of partition %d before its outcome was stored: nothing of the outcome is, and the "
                "turn is delivered again (%s). Give deliver() a longer lease= if that happens often.",
                self,
                advance.partition,
                humanize.count(len(turn.lease.messages), "message"),
            )
            return
        self.counts[advance.ending] += 1
        if advance.letters:
            first = advance.letters[0]
            logger.warning(
                "%r: %s in partition %d, from message %d on (key %s): %s",
                self,
                humanize.count(len(advance.letters), "new letter"),
                first.partition,
                first.number,
                one_line(first.key),
                first_line(first.reason),
            )
        if advance.ending is Ending.RETRY and advance.report is not None:
            untold = None if turn.given_back else self._failed_turns.failed(self.clock())
            logger.log(
                logging.DEBUG if untold is None else logging.WARNING,
                "%r could not deliver in partition %d (%d in a row, %d more not logged); next try in %.1f s. %s",
                self,
                advance.partition,
                advance.failures,
                untold or 0,
                advance.after / SECOND,
                first_line(advance.report),
            )


class Delivery:
    """One lease in the hands of a lane."""

    def __init__(self, lanes: ConsumerLoop, lease: Lease, before: float) -> None:
        self._lanes = lanes
        self._handler = lanes.handler
        self._clock = lanes.clock
        self._leased = self._clock()
        self._end = deadline(round(before * SECOND), lanes.handler.terms)
        self._part: TurnParticipant | None = None
        self._decided: BatchOutcome | None = None
        self.lease = lease
        self.given_back = False

    async def run(self) -> Advance | None:
        """Deliver; returns what to store, None where the handler's own transaction has done so, or may have."""
        missing, run = readable(self.lease.messages)
        if missing:
            return quarantine(self.lease, missing, self.now())
        if len(run) < len(self.lease.messages):
            self.lease = msgspec.structs.replace(self.lease, messages=tuple(run), more=True)
        found = after_crash(self.lease, self.now(), self._handler.rules)
        if isinstance(found, Advance):
            return found
        self.lease = found
        messages = handed_out(found)
        if not messages:
            return self.conclude(Delivered())
        if self._lanes.closed:
            self.given_back = True
            return self.conclude(RetryLater(STOPPED, 0, free=True))
        if (why := next(filter(None, (why_closed(one.payload) for one in messages)), None)) is not None:
            return self.conclude(RetryLater(f"a message cannot be read: {why}", 0, free=True))
        outcome = await self._deliver(self._batch(messages))
        return None if self._ended_in_transaction(outcome) else self.conclude(outcome)

    def now(self) -> Instant:
        """The store's time, counted on from the lease by this process's own clock."""
        return self.lease.cursor.served + round((self._clock() - self._leased) * SECOND)

    def time_left(self) -> float:
        """Seconds until the deadline."""
        return remaining(self._end, round(self._clock() * SECOND)) / SECOND

    def conclude(self, outcome: BatchOutcome) -> Advance:
        """What an outcome of this turn does to the cursor."""
        return conclude_batch(self.lease, outcome, self.now(), self._handler.rules)

    def _batch(self, messages: Sequence[stored.Message]) -> Batch[Any]:
        read, stream = self._handler.read, self._lanes.stream
        given: list[Message[Any]] = [Message(one, stream, read) for one in messages]
        cursor = self.lease.cursor
        block = self._own_block if self._handler.rules.mode == "leased" else None
        return Batch[Any](given, cursor.partition, attempts_seen(cursor), self.time_left, block)

    # --- the handler --------------------------------------------------------------------------------------------

    async def _deliver(self, batch: Batch[Any]) -> BatchOutcome:
        """Call the handler, until its deadline or until the worker cannot wait any longer."""
        task = asyncio.create_task(self._call(batch))
        hurried = self._lanes.hurried
        try:
            both: set[asyncio.Future[Any]] = {task, hurried}
            await asyncio.wait(both, timeout=self.time_left(), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return self._outcome(task, batch)
            batch.close()
            task.cancel()
            await asyncio.wait({task}, timeout=UNWIND)
        except asyncio.CancelledError:
            batch.close()
            task.cancel()
            raise
        if not task.done():
            self._lanes.abandon(task, batch)
        if hurried.done():
            self.given_back = True
            return outcome_of_stop(batch)
        logger.warning(
            "%r did not finish its batch in partition %d in the time of its lease and was interrupted; messages "
            "finished: %d of %d. Give deliver() a longer lease= or smaller batches.",
            self._lanes,
            batch.partition,
            batch.processed,
            len(handed_out(self.lease)),
        )
        return msgspec.structs.replace(cut_short(batch.progress), unit=batch.in_hand)

    def _outcome(self, task: asyncio.Task[BaseException | None], batch: Batch[Any]) -> BatchOutcome:
        error = asyncio.CancelledError("the handler canceled itself") if task.cancelled() else task.result()
        if error is None:
            batch.finish()
        if error is None or isinstance(error, NothingTaken):
            return Delivered(batch.processed, batch.rejections)
        outcome = outcome_of_error(error, batch, self._handler.rules.pace.retry_base)
        if self._decided is not None and isinstance(outcome, RetryLater):
            return msgspec.structs.replace(outcome, processed=None)  # the commit failed: any message may be the cause
        return outcome

    async def _call(self, batch: Batch[Any]) -> BaseException | None:
        caller, handler = self._lanes.caller, self._handler
        if handler.rules.mode == "leased":
            return await caller.call(batch)
        if not handler.is_async:
            block = self._block(batch, handler.transaction)
            error: BaseException | None = await caller.threads.run(self._call_here, (batch, block), {})
            return error
        try:
            async with self._block(batch, handler.transaction) as handle:
                self._decide(batch, await caller.call(batch, handle))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler or a commit may raise anything
            return error
        return None

    # --- in a transaction ---------------------------------------------------------------------------------------

    def _call_here(self, batch: Batch[Any], block: Block[Any, Any]) -> BaseException | None:
        """Call a plain handler in its transaction, in this thread."""
        try:
            with block as handle:
                self._decide(batch, self._lanes.caller.call_here(batch, handle))
        except BaseException as error:  # noqa: BLE001 - a handler or a commit may raise anything
            return error
        return None

    def _decide(self, batch: Batch[Any], error: BaseException | None) -> None:
        """Let the transaction commit, with what it does to the cursor, or raise to roll it back."""
        if error is None:
            if not batch.handed:
                raise NothingTaken
            self._decided = Delivered(batch.handed, batch.rejections)
        elif self._handler.keep_writes and isinstance(gravest(error), Retry | Reject):
            self._decided = outcome_of_error(error, batch, self._handler.rules.pace.retry_base)
        else:
            raise error

    def _block(self, batch: Batch[Any], factory: Any) -> Block[Any, Any]:
        """The transaction of a transactional handler."""

        def advance() -> Advance:
            assert self._decided is not None
            return self.conclude(self._decided)

        return self._make_block(batch, factory, advance)

    def _own_block(self, batch: Batch[Any], factory: Any) -> Block[Any, Any]:
        """A transaction that a leased handler opens itself: it delivers everything handed out."""
        if self._part is not None and (self._part.advanced or self._part.doubt is not None):
            raise EngineRefused(
                f"{self._part.name} has committed a transaction already, or may have. Nothing was stored."
            )

        def advance() -> Advance:
            if not batch.handed:
                raise InvalidInput("batch", batch, "must hand out messages before its transaction ends")
            return self.conclude(Delivered(batch.handed, batch.rejections))

        return self._make_block(batch, factory, advance)

    def _make_block(self, batch: Batch[Any], factory: Any, advance: Callable[[], Advance]) -> Block[Any, Any]:
        app = self._lanes.context.app
        name = f"the turn of {self._lanes!r} on partition {batch.partition}"
        self._part = TurnParticipant(name, advance, batch)
        return Block(app, self._part, factory or app.transaction, loop=self._lanes.loop)

    def _ended_in_transaction(self, outcome: BatchOutcome) -> bool:
        """Whether a transaction has ended this turn, or may have: then nothing more is stored for it."""
        part = self._part
        if part is None or part.written is None:
            return False
        if part.advanced:
            if not isinstance(outcome, Delivered):
                text = "%s is committed; what its handler did afterwards changes nothing: %s"
                logger.warning(text, part.name, first_line(outcome.reason))
            self._lanes.report(self, part.written, Advanced(applied=True))
            return True
        if part.doubt is not None:
            logger.error("%s: %s The next lease shows what is stored.", part.name, sentence(part.doubt))
            return True
        return False


class NothingTaken(Exception):
    """A transactional handler returned and took nothing of its batch: its writes are rolled back."""
