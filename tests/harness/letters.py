"""Letters in a store: messages that a consumer did not take."""

from __future__ import annotations

from stoker.engines.base import Engine, outbox_of
from stoker.model.outbox.cursor import Consumer, Lease, LeaseRequest
from stoker.model.outbox.delivery import Delivered, Rejected, RetryLater, Rules, conclude_batch
from stoker.model.outbox.stream import Entry, Stream


async def letters(
    engine: Engine,
    n: int,
    *,
    stream: str = "orders",
    consumer: str = "warehouse",
    type_: str = "Placed",
    keys: str = "",
    parks: bool = False,
    at: int = 0,
) -> None:
    """Append so many messages, of one key or of one each, and refuse them all; `at` tells their ids from others'.

    The stream has one consumer. Where it parks, the first message refused parks its key.
    """
    streams, named = outbox_of(engine), Stream(stream, 1)
    await streams.register(named, [Consumer(consumer)])
    made = [Entry(bytes([at, one]) + b"0" * 14, keys or f"k{one}", 0, b"{}", type_) for one in range(n)]
    await streams.append(named, made)
    await engine.jobs.renew("w", [], first=True)
    rules = Rules(attempts=1, then="park") if parks else Rules()
    while isinstance(lease := await streams.lease(LeaseRequest(stream, consumer, "w", 1_000)), Lease):
        outcome = RetryLater("no vat_id") if parks else Delivered() if keys in lease.parked else Rejected("no vat_id")
        assert (await streams.advance(conclude_batch(lease, outcome, await engine.now(), rules))).applied
