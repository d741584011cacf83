"""Transactions that callers see: the engine's own, and a joined transaction of the user.

`Own` is the engine's own transaction, on its own connection. A transaction of the user runs the same exchange through
`user_handles.handles`. Only plain values cross there: ids as text, everything else as any Postgres driver takes it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

import msgspec

from stoker.engines.base import Transaction, needs_transaction
from stoker.engines.call_times import timed
from stoker.engines.postgres import schema
from stoker.engines.postgres.claim import Lease, Ref, subqueue_of
from stoker.engines.postgres.connection import BEGIN, Connection, DriverError, Retriable
from stoker.engines.postgres.errors import is_lost, translated
from stoker.engines.postgres.facet import Facet
from stoker.engines.postgres.settle import is_simple, settle
from stoker.engines.postgres.statements import call, sql
from stoker.engines.postgres.unit_of_work import Unit
from stoker.engines.sql.exchanges import Exchange, Row, Touch
from stoker.engines.sql.user_handles import after_commit, handles
from stoker.model.errors import EngineBusy, EngineClosed, EngineError, EngineRefused, LostClaim, StokerError
from stoker.model.ids import JobId
from stoker.model.ids import text as id_text
from stoker.model.job import Claim, Settlement, Verdict
from stoker.model.lifecycle import KEEP_DONE, check_settlements
from stoker.model.run_origins import number
from stoker.model.time import SECOND, Instant

if TYPE_CHECKING:
    from stoker.engines.postgres.claim import Claimer
    from stoker.engines.postgres.store import Store

T = TypeVar("T")

Run: TypeAlias = Callable[[Any, str, Row], Awaitable[list[Row]]]

_NOW = sql("now")
_WHERE = sql("whereabouts")
_HOLD = sql("hold")

TRUSTED = 10.0
"""Seconds for which a connection that was seen in the database is not asked again where it is, and how late it is."""

_ANY = (0, (1 << 63) - 1)
"""Numbers of leases, where that of a claim is not known."""


class Transactions(Facet):
    """Runs calls of the engine in the transactions of callers."""

    def __init__(self, store: Store, claimer: Claimer) -> None:
        super().__init__(store)
        self._claimer = claimer

    async def join(
        self, tx: Any, make: Callable[[Unit], Exchange[T]], *, moves_jobs: bool = False, run: Run | None = None
    ) -> T:
        """Run an exchange inside the caller's transaction. `moves_jobs`: it may queue jobs.

        `run` runs a statement on a handle of the user's: `handles.run` unless given.
        """
        if isinstance(tx, Own):
            if tx.store is not self._store:
                raise EngineRefused("tx= is a transaction of another engine. Use the engine it was made by")
            tx.moves_jobs |= moves_jobs
            return await tx.run(make)
        return await _on_theirs(self._store, self._claimer, tx, make, run or handles.run)

    async def look(self, tx: Any, make: Callable[[Instant], Exchange[T]]) -> T:
        """Run an exchange that only reads inside the caller's transaction."""
        return await self.join(tx, lambda unit: make(unit.now), run=handles.look)

    @timed(write=True)
    async def hold(self, claim: Claim, *, tx: Transaction) -> Claim | None:
        """Return the claim while it is still its worker's, with where it is stored now.

        A statement of the engine's own sets the job apart, before the transaction has a snapshot: at every isolation
        level it can then be settled whatever its siblings do. This is an early check; the settlement is what fences. A
        claim that has a lease of its own is only looked at, in one round trip with the begin of our own transaction.
        """
        needs_transaction("hold", tx)
        self._claimer.held(claim.kind)
        store = self._store
        if isinstance(tx, Own) and tx.store is store and not tx.begun and _is_alone(claim):
            return claim if await tx.begin_with(claim) else None
        rows = await store.at_home(lambda: store.each("settle", lambda: _held(claim)))
        if isinstance(tx, Own) and rows:
            tx.take_time(rows[0][5])
        await self.join(tx, _nothing)
        return msgspec.structs.replace(claim, ref=_ref(claim, rows[0])) if rows else None

    @timed(write=True)
    async def settle_last(self, settlement: Settlement, *, tx: Transaction) -> bool:
        """Settle a held claim at the end of the caller's transaction, of our own in one round trip with its commit."""
        needs_transaction("settle_last", tx)
        check_settlements([settlement])
        if isinstance(tx, Own) and tx.store is self._store and is_simple(settlement):
            await tx.settle_with_commit(settlement)
            return True
        return await self.join(tx, lambda unit: settle(unit, [settlement]), moves_jobs=True) == [Verdict.APPLIED]

    @asynccontextmanager
    async def own(self) -> AsyncIterator[Own]:
        """A transaction of the engine's own: commits when the block ends, rolls back if it raises.

        Users run statements of their own in it, so its session has neither the planner settings nor the types of ours.
        """
        store = self._store
        async with store.lend("transaction") as connection:
            tx = Own(store, connection)
            try:
                yield tx
                await tx.commit()
            except BaseException as error:
                tx.connection = None
                if tx.begun and connection.usable:
                    await connection.rollback()
                if isinstance(error, Retriable):
                    raise tx.aborted(error) from error
                raise
        if tx.moves_jobs:
            self._claimer.forget()
        if tx.woken:
            store.notify(tx.woken)
        if tx.touched_groups:
            store.group_closer.add(tx.touched_groups)


def _is_alone(claim: Claim) -> bool:
    """Whether the claim is known to have a lease of its own."""
    ref = claim.ref
    return type(ref) is Ref and ref.id == claim.id and ref.lease.size == 1


def _held(claim: Claim) -> Exchange[list[Row]]:
    """Set the job apart, in the lease that is known; one that was held before is in another."""
    ref, fence = claim.ref, (claim.worker, claim.token, claim.id)
    if type(ref) is Ref and ref.id == claim.id:
        rows: list[Row] = yield _HOLD, (*fence, ref.lease.id, ref.lease.id)
        if rows:
            return rows
    rows = yield _HOLD, (*fence, *_ANY)
    return rows


def _ref(claim: Claim, row: Row) -> Ref:
    number, claimed, queue, size, pos, _ = row
    return Ref(
        lease=Lease(number, claim.token, claimed, claim.worker, queue, size),
        id=claim.id,
        pos=pos,
        kind=claim.kind,
        attempt=claim.attempt,
        priority=claim.priority,
        slot=None if claim.unique is None else claim.unique.slot(claim.kind),
        throttles=claim.throttles,
        group=claim.options.group,
        subqueue=subqueue_of(claim.options),
    )


def _nothing(_: Unit) -> Exchange[None]:
    """Do nothing; the transaction is checked all the same."""
    yield from ()


def _whole(unit: Unit, exchange: Exchange[T]) -> Exchange[T]:
    answer = yield from exchange
    yield from unit.end()
    return answer


# --- our own ----------------------------------------------------------------------------------------------------


class Own:
    """The engine's own transaction. Made by `Transactions.own`.

    It begins with its first statement: `begin_with` is then one round trip for two.
    """

    def __init__(self, store: Store, connection: Connection) -> None:
        self.store = store
        self.connection: Connection | None = connection
        self.woken: set[str] = set()
        self.touched_groups: set[JobId] = set()
        self.moves_jobs = False
        """May it have queued jobs?"""
        self.begun = False
        self.rolled_back = False
        """Did the end raise although it is certain that nothing was committed?"""
        self._last: Settlement | None = None

    async def begin(self) -> Connection:
        """Begin, unless that is done; returns the connection."""
        connection = self._open()
        if not self.begun:
            self.begun = True
            await connection.command(BEGIN, self.store.options.patience)
        return connection

    async def begin_with(self, claim: Claim) -> bool:
        """Begin; return whether a claim with a lease of its own is still its worker's."""
        connection, patience = self._open(), self.store.options.patience
        self.begun = True
        look = call(self.store.options.schema, "check_claim", claim.ref.lease.id, claim.worker, claim.token)
        try:
            await connection.command(f"{BEGIN}; {look}", patience)
        except EngineError as error:
            if not is_lost(error):
                raise
            await connection.command(f"ROLLBACK; {BEGIN}", patience)
            return False
        return True

    async def settle_with_commit(self, settlement: Settlement) -> None:
        """Settle a held claim together with the commit, which raises `LostClaim` if it is lost meanwhile."""
        self.check(await self.begin())
        self._last = settlement

    async def commit(self) -> None:
        """Commit. `rolled_back` is set where an error leaves no doubt."""
        connection = self._open()
        self.connection = None
        if not self.begun:
            return
        self.check(connection)
        last = self._last
        try:
            await connection.command(
                "COMMIT" if last is None else f"{_ended(self.store, last)}; COMMIT", self.store.options.patience
            )
        except BaseException as error:
            # The server is still in the transaction: it has refused the settlement and not come to the commit.
            self.rolled_back = connection.usable and connection.link.is_in_transaction()
            if last is not None and is_lost(error):
                raise LostClaim(f"job {id_text(last.id)} ({last.ref.kind})") from error
            raise

    async def _now(self, connection: Connection) -> Instant:
        """The store's time; a connection is asked now and then, and it is counted on from there."""
        now = self.store.now()
        if now is not None:
            return now
        if connection.clock is None or time.monotonic() - connection.clock[1] > TRUSTED:
            [(read,)] = await connection.run(self.store.texts[_NOW], (), self.store.options.patience)
            connection.clock = read, time.monotonic()
        read, at = connection.clock
        return read + round((time.monotonic() - at) * SECOND)

    def take_time(self, now: Instant) -> None:
        """Take over the store's time, which a statement has just returned."""
        self._open().clock = now, time.monotonic()

    async def run(self, make: Callable[[Unit], Exchange[T]]) -> T:
        connection, store = await self.begin(), self.store
        self.check(connection)
        unit = Unit(await self._now(connection))
        patience = store.options.patience
        try:
            answer = await _play(
                store,
                _whole(unit, make(unit)),
                lambda text, values: connection.run(text, values, patience),
                lambda text, values: connection.touch(text, values, patience),
            )
        except Retriable as error:
            raise self.aborted(error) from error
        self.woken |= unit.woken
        self.touched_groups |= unit.touched_groups
        return answer

    @property
    def raw(self) -> Any:
        """The driver's connection, in the transaction that was begun."""
        if not self.begun:
            raise EngineRefused("this transaction has not begun. Await its begin() first")
        return self._open().link

    def _open(self) -> Connection:
        if self.connection is None:
            raise EngineClosed("this transaction is over")
        return self.connection

    async def execute(self, statement: str, values: Sequence[Any]) -> list[Row]:
        """Run a statement of the user's own; returns its rows. Raises what the driver raises."""
        connection = await self.begin()
        return [tuple(row) for row in await connection.link.fetch(statement, *values)]

    def check(self, connection: Connection) -> None:
        """Refuse to go on outside of the transaction: every statement would be committed by itself."""
        if not connection.link.is_in_transaction():
            raise EngineRefused(
                "this transaction was committed or rolled back inside its block. Leave the commit to the block"
            )

    def aborted(self, error: Retriable) -> EngineBusy:
        """The error of a transaction that the server gave up."""
        return EngineBusy(
            f"{self.store.options.where} aborted this transaction because of another one ({error}). Nothing of it is "
            "stored; begin it again"
        )


def _ended(store: Store, settlement: Settlement) -> str:
    """The call that settles a plain success whose claim has a lease of its own."""
    ref, result = settlement.ref, settlement.result
    return call(
        store.options.schema,
        "settle_claim",
        store.now(),
        ref.lease.id,
        settlement.worker,
        settlement.token,
        settlement.id,
        ref.kind,
        ref.attempt,
        settlement.keep,
        KEEP_DONE,
        None if result is None else result.decode(),
        number(settlement.worker),
    )


# --- theirs -----------------------------------------------------------------------------------------------------


async def _on_theirs(store: Store, claimer: Claimer, handle: Any, make: Callable[[Unit], Exchange[T]], run: Run) -> T:
    """Run an exchange on a user's handle, inside the transaction that the user will end."""
    where = store.options.where
    if handles.dialect_of(handle) != "postgresql":
        who, dialect = handles.describe_handle(handle), handles.dialect_of(handle)
        raise EngineRefused(f"tx= is a {who} on {dialect}, but the jobs are in {where}. Nothing was stored")
    try:
        found = await _time_there(store, handle, run)
        now = store.now()
        unit = Unit(found if now is None else now)
        answer = await _play(store, _whole(unit, make(unit)), partial(run, handle), partial(handles.touch, handle))
    except StokerError:
        raise
    except Exception as error:
        if isinstance(error, DriverError) or hasattr(error, "sqlstate"):
            raise translated(error, where) from error
        raise
    if unit.woken or unit.touched_groups:
        after_commit.after_commit(handle, lambda delay: _committed(store, claimer, unit, delay))
    return answer


def _committed(store: Store, claimer: Claimer, unit: Unit, delay: float) -> None:
    """A user has committed, in whatever thread: jobs are there that were stamped a while ago."""

    def tell() -> None:
        claimer.late(unit.woken, unit.now)
        if unit.woken:
            store.notify(unit.woken)
        if unit.touched_groups:
            store.group_closer.add(unit.touched_groups)

    store.later(delay, tell)


async def _time_there(store: Store, handle: Any, run: Run) -> Instant:
    """Return the store's time after checking that a handle is in this very database.

    A driver's connection never leaves its database, so it is asked only now and then; a session of another library may
    have another connection each time.
    """
    lasting = handles.connection_of(handle)
    asked = None if lasting is None else store.asked.get(lasting)
    if asked is not None and time.monotonic() - asked[1] < TRUSTED:
        return asked[0] + round((time.monotonic() - asked[1]) * SECOND)
    [row] = await run(handle, store.texts[_WHERE], ())
    await _check(store, handle, row)
    if lasting is not None:
        store.asked[lasting] = int(row[3]), time.monotonic()
    return int(row[3])


async def _check(store: Store, handle: Any, row: Row) -> None:
    """Refuse a handle on anything but this very database, by name.

    A server that was restarted or replaced since the engine was opened is another one by its start: before a handle is
    refused the engine asks where it would connect to now.
    """
    database, _, ours = row[:3]
    if _is_home(store, row):
        return
    if ours and store.identity is not None:
        if handles.suspends(handle):
            store.identity = await schema.whereabouts(store.options)
        else:
            store.identity = _beside_the_loop(schema.whereabouts(store.options))
        if _is_home(store, row):
            return
    raise EngineRefused(
        f"tx= is a {handles.describe_handle(handle)} on the database {database}, but the jobs are in "
        f"{store.options.where}, schema {store.options.schema}. Nothing was stored: one transaction cannot hold both. "
        "Use a connection to the same database, or enqueue without tx="
    )


def _is_home(store: Store, row: Row) -> bool:
    database, started, ours = row[:3]
    home = store.identity
    wanted = unquote(urlsplit(store.options.url).path.strip("/")) if home is None else home[0]
    return bool(ours and (not wanted or database == wanted) and (home is None or home[1] == started))


def _beside_the_loop(asking: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in its own thread: a synchronous caller may have no loop, or blocks it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, asking).result()


async def _play(
    store: Store,
    exchange: Exchange[T],
    run: Callable[[str, Row], Awaitable[list[Row]]],
    touch: Callable[[str, Row], Awaitable[int]],
) -> T:
    """Run the statements of an exchange in a session that has its driver's own types."""
    send: Callable[[Any], Any] = exchange.send
    answer: Any = None
    try:
        while True:
            asked = send(answer)
            text, values = store.statement(asked)
            send = exchange.send
            outward = tuple(map(_outward, values))
            try:
                if isinstance(asked, Touch):
                    answer = await touch(text, outward)
                    continue
                rows = await run(text, outward)
                answer = [tuple(map(_inward, row)) for row in rows]
            except Exception as error:  # noqa: BLE001 - the exchange may undo something first
                send, answer = exchange.throw, error
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _outward(value: Any) -> Any:
    """Ids as text, which every driver takes for a uuid."""
    if type(value) is bytes:
        return str(uuid.UUID(bytes=value))
    if type(value) is list and any(type(one) is bytes for one in value):
        return [None if one is None else str(uuid.UUID(bytes=one)) for one in value]
    return value


def _inward(value: Any) -> Any:
    return value.bytes if isinstance(value, uuid.UUID) else value
