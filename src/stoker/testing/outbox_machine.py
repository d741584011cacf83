"""Two engines in lock-step over streams: random appends, turns, failures, seeks and sweeps.

An engine and the memory engine get the same ids, the same clock and the same calls. Every lease, every answer to an
advance, every letter and every sweep must be the same, and after every step all cursors and letters. A few laws that
must hold whatever the model decides are checked on the way: tokens rise, a lease begins right behind its cursor and
has no gap, letters of a released key come in order.

    machine = stream_machine(lambda clock: MyEngine(fresh_place(), clock=clock))
    run_state_machine_as_test(machine, settings=settings(max_examples=30, stateful_step_count=40))
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker.engines.base import LEASE, Engine, Outbox, outbox_of
from stoker.engines.memory import MemoryEngine
from stoker.model.ids import Mint
from stoker.model.outbox.batch_size import Pace
from stoker.model.outbox.consumers import Drop, Pause, Release, Resume, Seek, Steering
from stoker.model.outbox.cursor import Consumer, Cursor, Lease, LeaseRequest, NothingDue, Start, Terms
from stoker.model.outbox.delivery import (
    Advanced,
    BatchOutcome,
    Delivered,
    Rejected,
    Rejection,
    RetryLater,
    Rules,
    conclude_batch,
)
from stoker.model.outbox.letters import (
    ClaimLetters,
    Clean,
    Count,
    DiscardLetters,
    GiveBack,
    LetterAction,
    LetterFilter,
    LetterStatus,
    Replay,
    Resolve,
    ResolveLetters,
    RestoreLetters,
)
from stoker.model.outbox.stream import Stream, entry
from stoker.model.query import Retention
from stoker.model.time import HOUR, SECOND
from stoker.testing.clock import VirtualClock
from stoker.testing.machine import MakeMachineEngine
from stoker.testing.machine_values import START

ORDERS = Stream("orders", 2)
KEYS = ("a", "b", "c")
CONSUMERS = ("publish", "project")
WORKERS = ("w0", "w1")
EVERY = LetterFilter(status=None, limit=1_000)

_T = TypeVar("_T")
_picks = st.integers(0, 30)
_keys = st.sampled_from(KEYS)
_consumers = st.sampled_from(CONSUMERS)
_counts = st.one_of(st.none(), st.integers(0, 4))
_outcomes: st.SearchStrategy[BatchOutcome] = st.one_of(
    st.just(Delivered()),
    st.builds(Delivered, _counts),
    st.builds(
        RetryLater,
        st.just("busy"),
        _counts,
        free=st.sampled_from([False, False, True]),
        after=st.sampled_from([None, 0, SECOND]),
    ),
    st.builds(Rejected, st.just("bad"), _counts),
)
_rules = st.builds(
    Rules,
    mode=st.sampled_from(["leased", "leased", "transactional"]),
    attempts=st.sampled_from([None, 1, 2]),
    then=st.sampled_from(["letter", "park"]),
    pace=st.builds(Pace, batch=st.sampled_from([2, 4]), retry_base=st.just(SECOND)),
)
_starts: st.SearchStrategy[Start] = st.one_of(
    st.just("beginning"),
    st.sampled_from(["beginning", "end"]),
    st.integers(0, 60).map(lambda seconds: START + seconds * SECOND),
)
_filters = st.builds(
    LetterFilter,
    stream=st.sampled_from([None, "orders"]),
    consumer=st.sampled_from([None, *CONSUMERS]),
    status=st.sampled_from([None, None, *LetterStatus]),
    key=st.sampled_from([None, None, *KEYS]),
    partition=st.sampled_from([None, None, 0]),
    limit=st.sampled_from([1, 2, 100]),
)


def _turn(cursor: Cursor) -> tuple[str, int, int]:
    return cursor.consumer, cursor.partition, cursor.token


class StreamLockStep(RuleBasedStateMachine):
    """Lives of streams. Make a runnable one with `stream_machine`."""

    make_engine: MakeMachineEngine

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.clock = VirtualClock(START)
        entropy = itertools.count(1)
        self.mint = Mint(self.clock, lambda n: next(entropy).to_bytes(n))
        self.model: Engine = MemoryEngine(self.clock)
        self.engine: Engine = type(self).make_engine(self.clock)
        self.leases: list[Lease] = []
        self.claimed: list[tuple[bytes, str, int]] = []
        self.tokens: dict[tuple[str, int], int] = {}
        self.refs: dict[tuple[str, int, int], Any] = {}

    # --- both at once -------------------------------------------------------------------------------------------

    def same(self, call: Callable[[Engine, Outbox], Awaitable[_T]]) -> _T:
        """The same call on both engines, with the same result."""

        async def run() -> tuple[_T, _T]:
            mine = await call(self.model, outbox_of(self.model))
            return mine, await call(self.engine, outbox_of(self.engine))

        mine, theirs = self.runner.run(run())
        assert self.without_ref(theirs) == mine
        return mine

    def without_ref(self, found: Any) -> Any:
        """What an engine answered, without what is private to it: that is kept for the end of the turn."""
        if isinstance(found, Advanced) and found.lease is not None:
            return msgspec.structs.replace(found, lease=self.without_ref(found.lease))
        if isinstance(found, Lease):
            self.refs[_turn(found.cursor)] = found.ref
            return msgspec.structs.replace(found, ref=None)
        return found

    @initialize(starts=st.tuples(_starts, _starts))
    def begin(self, starts: tuple[Start, Start]) -> None:
        consumers = [Consumer(name, start) for name, start in zip(CONSUMERS, starts, strict=True)]

        async def call(engine: Engine, outbox: Outbox) -> None:
            await engine.open()
            await outbox.register(ORDERS, consumers)
            for worker in WORKERS:
                assert (await engine.jobs.renew(worker, [], first=True)).known

        self.same(call)

    def teardown(self) -> None:
        async def close() -> None:
            await self.model.close()
            await self.engine.close()

        self.runner.run(close())
        self.runner.close()

    # --- calls --------------------------------------------------------------------------------------------------

    @rule(keys=st.lists(_keys, min_size=1, max_size=4), how=st.sampled_from(["alone", "alone", "together", "undone"]))
    def append(self, keys: list[str], how: str) -> None:
        """In a transaction of its own, in one with others, or in one that is rolled back."""
        entries = [
            entry(ORDERS, key, key.encode(), "t", id=self.mint(), headers={"key": key} if key == "b" else None)
            for key in keys
        ]

        async def call(engine: Engine, outbox: Outbox) -> None:
            if how == "alone":
                await outbox.append(ORDERS, entries)
                return
            try:
                async with engine.transaction() as tx:
                    await outbox.append(ORDERS, entries[:1], tx=tx)
                    await outbox.append(ORDERS, entries[1:], tx=tx)
                    if how == "undone":
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass

        self.same(call)

    @rule(worker=st.sampled_from(WORKERS), consumer=_consumers, limit=st.integers(1, 4), alive=st.booleans())
    def lease(self, worker: str, consumer: str, limit: int, alive: bool) -> None:
        """For a worker that renewed its lease, or may have lapsed."""
        if alive:
            self.renew()
        self.ask(worker, consumer, limit)

    def ask(self, worker: str, consumer: str, limit: int) -> Lease | NothingDue:
        request = LeaseRequest("orders", consumer, worker, limit, Terms(10 * SECOND))
        found = self.same(lambda _, outbox: outbox.lease(request))
        if isinstance(found, Lease):
            self.took(found)
        return found

    def took(self, lease: Lease) -> None:
        """A lease must be lawful: a token never seen, and messages without a gap behind the cursor."""
        cursor = lease.cursor
        assert cursor.token > self.tokens.get((cursor.consumer, cursor.partition), 0)
        self.tokens[cursor.consumer, cursor.partition] = cursor.token
        found = [message.number for message in lease.messages]
        if lease.released is not None:
            assert found == sorted(found)
        elif lease.replayed:
            assert len(found) == 1
        else:
            assert found == list(range(cursor.position + 1, cursor.position + 1 + len(found)))
            assert found
        self.leases.append(lease)

    @precondition(lambda self: self.leases)
    @rule(
        pick=st.sampled_from([0, 0, 0, 1, 2]),
        outcome=_outcomes,
        rejected=st.booleans(),
        rules=_rules,
        how=st.sampled_from(["alone", "alone", "wish", "tx", "undone"]),
    )
    def finish(self, pick: int, outcome: BatchOutcome, rejected: bool, rules: Rules, how: str) -> None:
        """End a turn, of late or long ago; sometimes lease again, or in a transaction."""
        lease = self.leases[-1 - pick % len(self.leases)]
        if rejected and lease.messages:
            refused = (Rejection(lease.messages[0].number, "odd"),)
            outcome = msgspec.structs.replace(outcome, rejections=refused)
        advance = conclude_batch(lease, outcome, self.clock(), rules)
        cursor = lease.cursor
        assert cursor.holder is not None
        request = (
            LeaseRequest("orders", cursor.consumer, cursor.holder, 3, Terms(10 * SECOND)) if how == "wish" else None
        )

        async def call(engine: Engine, outbox: Outbox) -> Advanced:
            ref = None if engine is self.model else self.refs[_turn(cursor)]
            stored = msgspec.structs.replace(advance, ref=ref)
            if how not in ("tx", "undone"):
                return await outbox.advance(stored, request=request)
            found = Advanced(applied=False)
            try:
                async with engine.transaction() as tx:
                    found = await outbox.advance(stored, tx=tx)
                    if how == "undone":
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            return found

        found = self.same(call)
        if found.lease is not None:
            self.took(found.lease)

    @rule(
        consumer=_consumers, keys=st.lists(_keys, max_size=4), outcome=_outcomes, rules=_rules, rejected=st.booleans()
    )
    def turn(self, consumer: str, keys: list[str], outcome: BatchOutcome, rules: Rules, rejected: bool) -> None:
        """Append, lease and end the turn, in one breath, or as soon as time allows it."""
        if keys:
            self.append(keys, "alone")
        self.renew()
        found = self.ask("w0", consumer, 4)
        if isinstance(found, NothingDue) and found.after is not None:
            self.clock.set(self.clock() + found.after)
            self.renew()
            found = self.ask("w0", consumer, 4)
            assert isinstance(found, Lease), "a rest says when it is over"
        if isinstance(found, Lease):
            self.finish(0, outcome, rejected, rules, "wish")

    @rule(consumer=_consumers, key=_keys, then=st.sampled_from(["letter", "park", "park"]), behind=_keys)
    def poison(self, consumer: str, key: str, then: str, behind: str) -> None:
        """A message that cannot be delivered, and another one behind it."""
        self.clock.set(self.clock() + SECOND)
        rules = Rules(attempts=1, then=then, pace=Pace(batch=4))  # type: ignore[arg-type]
        self.turn(consumer, [key, behind], RetryLater("poison", 0), rules, rejected=False)

    @rule(consumer=_consumers, key=_keys, outcome=_outcomes, rules=_rules)
    def release(self, consumer: str, key: str, outcome: BatchOutcome, rules: Rules) -> None:
        """Release a key, and often have its letters delivered at once."""
        self.clock.set(self.clock() + SECOND)
        self.steer(consumer, Release(key))
        self.turn(consumer, [], outcome, rules, rejected=False)

    @rule(chosen=_filters, consumer=_consumers, outcome=_outcomes, rules=_rules)
    def replay(self, chosen: LetterFilter, consumer: str, outcome: BatchOutcome, rules: Rules) -> None:
        """Mark letters for another delivery, and often deliver one at once."""
        self.letters(chosen, Replay())
        self.turn(consumer, [], outcome, rules, rejected=False)

    @rule(
        consumer=_consumers,
        change=st.one_of(
            st.builds(Seek, _starts),
            st.builds(Seek, st.dictionaries(st.integers(0, 2), st.integers(0, 12), max_size=2)),
            st.sampled_from([Pause(), Resume(), Resume(), Drop()]),
        ),
        start=_starts,
    )
    def change(self, consumer: str, change: Steering, start: Start) -> None:
        """Steer a consumer; one that was dropped is registered again at once, and a pause is short."""
        self.steer(consumer, change)
        if isinstance(change, Pause):
            self.turn(consumer, ["a"], Delivered(), Rules(), rejected=False)
            self.steer(consumer, Resume())
        if isinstance(change, Drop):
            self.same(lambda _, outbox: outbox.register(ORDERS, [Consumer(consumer, start)]))
            self.tokens = {key: token for key, token in self.tokens.items() if key[0] != consumer}
            self.leases = [lease for lease in self.leases if lease.cursor.consumer != consumer]

    def steer(self, consumer: str, change: Steering) -> None:
        self.same(lambda _, outbox: outbox.steer("orders", consumer, change))

    @rule(
        chosen=_filters,
        action=st.sampled_from(
            [
                *(None, Count(), Replay(), Replay(), ClaimLetters("op", 5 * SECOND), Clean(SECOND)),
                *(DiscardLetters(), ResolveLetters(), RestoreLetters()),
            ]
        ),
    )
    def letters(self, chosen: LetterFilter, action: LetterAction | None) -> None:
        found = self.same(lambda _, outbox: outbox.letters(chosen, action))
        if isinstance(action, ClaimLetters):
            self.claimed += [(letter.id, letter.consumer, letter.token) for letter in found.letters]

    @precondition(lambda self: self.claimed)
    @rule(pick=_picks, back=st.booleans())
    def end_claim(self, pick: int, back: bool) -> None:
        """Resolve a claimed letter or give it back, whether the claim still holds or not."""
        letter, consumer, token = self.claimed[-1 - pick % len(self.claimed)]
        action: LetterAction = GiveBack("op", token, "again") if back else Resolve("op", token)
        chosen = LetterFilter(consumer=consumer, status=None, ids=(letter,))
        self.same(lambda _, outbox: outbox.letters(chosen, action))

    @rule(limit=st.integers(1, 5))
    def vacuum(self, limit: int) -> None:
        self.same(lambda _, outbox: outbox.vacuum("orders", limit))

    @rule(ids=st.lists(st.sampled_from(["1", "2", "3"]), min_size=1, max_size=3), keep=st.sampled_from([0, SECOND]))
    def receive(self, ids: list[str], keep: int) -> None:
        async def call(engine: Engine, outbox: Outbox) -> list[bool]:
            async with engine.transaction() as tx:
                return await outbox.receive("billing", ids, keep=keep, tx=tx)

        self.same(call)
        self.same(lambda engine, _: engine.operator.expire(Retention()))

    @rule(span=st.sampled_from([1, SECOND, SECOND, 10 * SECOND, LEASE + 1, HOUR]), alive=st.booleans())
    def pass_time(self, span: int, alive: bool) -> None:
        """Let time pass, during which the workers renew their leases or not."""
        self.clock.set(self.clock() + span)
        if alive:
            self.renew()

    def renew(self) -> None:
        for worker in WORKERS:
            self.same(lambda engine, _, worker=worker: engine.jobs.renew(worker, []))  # type: ignore[misc]

    # --- laws ---------------------------------------------------------------------------------------------------

    @invariant()
    def everything_is_the_same(self) -> None:
        """The same cursors, waiting messages and letters in both."""
        if not self.tokens and not self.leases:
            return

        async def look(_: Engine, outbox: Outbox) -> Any:
            return await outbox.streams(), await outbox.letters(EVERY)

        self.same(look)


def stream_machine(make_engine: MakeMachineEngine) -> type[StreamLockStep]:
    """A machine that drives engines made by `make_engine`, one fresh store per example, beside the memory engine."""
    return type("StreamMachine", (StreamLockStep,), {"make_engine": staticmethod(make_engine)})
