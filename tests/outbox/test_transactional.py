"""Handlers whose writes and cursor are one commit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from stoker.app import Stoker
from stoker.engines.base import outbox_of
from stoker.model.errors import EngineRefused, InvalidInput
from stoker.model.outbox.delivery import RetryLater
from stoker.model.outcome import Reject, Retry, Snooze
from stoker.outbox import Batch, Message, Outbox
from stoker.outbox.consumer_loop import Delivery
from stoker.outbox.turn_participant import TurnParticipant
from stoker.transaction_block import OwnTransaction
from tests.harness.apps import PATIENCE, until, working
from tests.outbox.test_consumer_loop import QUICK, cursor, delivered, fill, letters


class Shop:
    """A SQLite file with a table of effects beside the stream."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        self.jobs = Stoker(f"sqlite:///{self.path}")
        self.outbox = Outbox[int](self.jobs, stream="orders", partitions=1)
        with self.begin() as db:
            db.execute("create table effects (body integer unique, thread integer)")

    @contextmanager
    def begin(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            db.execute("begin immediate")
            with db:
                yield db
        finally:
            db.close()

    def effects(self) -> list[int]:
        db = sqlite3.connect(self.path)
        try:
            return [body for (body,) in db.execute("select body from effects order by rowid")]
        finally:
            db.close()


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    await shop.jobs.close()


def write(db: Any, body: int) -> None:
    db.execute("insert into effects values (?, ?)", (body, threading.get_ident()))


@pytest.mark.spec("DELIVER-20")
async def test_writes_and_cursor_are_one_commit(shop: Shop) -> None:
    raised = 0

    @shop.outbox.deliver(mode="transactional", transaction=shop.begin, pace=QUICK)
    def publish(batch: Batch[int], db: sqlite3.Connection) -> None:
        nonlocal raised
        for one in batch:
            write(db, one.body)
            if one.body == 3 and raised < 3:
                raised += 1
                raise ValueError("half way")

    await fill(shop.outbox, 20)
    async with working(shop.jobs, {}):
        await delivered(shop.outbox, 20)
    assert raised == 3
    assert shop.effects() == list(range(20))


@pytest.mark.spec("DELIVER-20")
async def test_an_async_handler_takes_the_stores_own_transaction(shop: Shop) -> None:
    @shop.outbox.deliver(mode="transactional", pace=QUICK)
    async def publish(message: Message[int], tx: OwnTransaction) -> None:
        await tx.execute("insert into effects values (?, 0)", message.body)
        await shop.outbox.append("other", message.body, partition=0) if message.body == 5 else None

    await fill(shop.outbox, 6)
    async with working(shop.jobs, {}):
        await until(lambda: len(shop.effects()) >= 6)
        # The message that the handler appended came with its commit, and fails: its effect is there already.
        async with asyncio.timeout(PATIENCE):
            while (await cursor(shop.outbox)).cursor.failures == 0:
                await asyncio.sleep(0.005)
    assert shop.effects() == list(range(6))


@pytest.mark.spec("DELIVER-20")
async def test_chunks_with_sqlalchemy(shop: Shop) -> None:
    engine = create_engine(f"sqlite:///{shop.path}")
    sessions = sessionmaker(engine)

    @shop.outbox.deliver(mode="transactional", transaction=sessions.begin, chunk=3)
    def publish(messages: list[Message[int]], session: Session) -> None:
        for one in messages:
            session.execute(text("insert into effects values (:n, 0)"), {"n": one.body})

    await fill(shop.outbox, 10)
    async with working(shop.jobs, {}):
        await delivered(shop.outbox, 10)
    assert shop.effects() == list(range(10))
    engine.dispose()


@pytest.mark.spec("DELIVER-21")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("raised", [Retry("later"), Reject("never"), Snooze(0.001), ValueError("no")])
async def test_an_exit_keeps_the_writes_only_if_asked_to(shop: Shop, keep: bool, raised: BaseException) -> None:
    calls: list[int] = []

    @shop.outbox.deliver(mode="transactional", transaction=shop.begin, keep_writes=keep, pace=QUICK)
    def publish(batch: Batch[int], db: sqlite3.Connection) -> None:
        for one in batch:
            db.execute("insert or ignore into effects values (?, 0)", (one.body + 100 * len(calls),))
            if one.body == 1 and not calls:
                calls.append(batch.attempts)
                raise raised

    await fill(shop.outbox, 3)
    async with working(shop.jobs, {}):
        await delivered(shop.outbox, 3)
    rejected = [(one.number, one.reason) for one in await letters(shop.outbox)]
    assert rejected == ([(n, "never") for n in (1, 2, 3)] if isinstance(raised, Reject) else [])
    first = [0, 1] if keep and isinstance(raised, Retry | Reject) else []
    second = [] if isinstance(raised, Reject) else [100, 101, 102]
    assert shop.effects() == first + second


@pytest.mark.spec("DELIVER-21")
async def test_a_transactional_handler_that_takes_nothing_is_rolled_back(shop: Shop) -> None:
    calls = 0

    @shop.outbox.deliver(mode="transactional", transaction=shop.begin, pace=QUICK)
    def publish(batch: Batch[int], db: sqlite3.Connection) -> None:
        nonlocal calls
        calls += 1
        write(db, calls)
        if calls > 2:
            batch.rest()

    await fill(shop.outbox, 1)
    async with working(shop.jobs, {}):
        await delivered(shop.outbox, 1)
    assert shop.effects() == [3]


@pytest.mark.spec("DELIVER-21")
async def test_a_transactional_handler_is_rolled_back_at_its_deadline(shop: Shop) -> None:
    begun = asyncio.Event()

    @shop.outbox.deliver(mode="transactional", lease=0.6, headroom=0.4, pace=QUICK)
    async def publish(batch: Batch[int], tx: OwnTransaction) -> None:
        for one in batch:
            await tx.execute("insert into effects values (?, 0)", one.body)
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(PATIENCE)

    await fill(shop.outbox, 2)
    async with working(shop.jobs, {}):
        await delivered(shop.outbox, 2)
    assert shop.effects() == [0, 1]


@pytest.mark.spec("DELIVER-21")
async def test_a_transactional_handler_is_rolled_back_at_a_stop(shop: Shop) -> None:
    begun = asyncio.Event()

    @shop.outbox.deliver(mode="transactional")
    async def publish(batch: Batch[int], tx: OwnTransaction) -> None:
        await tx.execute("insert into effects values (1000, 0)")
        batch.rest()
        begun.set()
        await asyncio.sleep(PATIENCE)

    await fill(shop.outbox, 2)
    async with working(shop.jobs, {}) as worker:
        await begun.wait()
        await worker.stop(0)
    assert shop.effects() == []
    state = await cursor(shop.outbox)
    assert (state.cursor.position, state.cursor.attempts, state.cursor.holder) == (0, 0, None)


@pytest.mark.spec("DELIVER-22")
@pytest.mark.parametrize("plain", [False, True])
async def test_a_walked_batch_may_end_in_a_transaction_of_its_own(shop: Shop, plain: bool) -> None:
    later: list[BaseException] = []

    if plain:

        @shop.outbox.deliver(batch=4)
        def publish(batch: Batch[int]) -> None:
            messages = batch.rest()
            with batch.transaction(shop.begin) as db:
                for one in messages:
                    write(db, one.body)

    else:

        @shop.outbox.deliver(batch=4, name="publish")
        async def publish_async(batch: Batch[int]) -> None:
            first, second = batch.chunk(1), batch.chunk(1)
            async with batch.transaction() as tx:
                for one in (*first, *second):
                    await tx.execute("insert into effects values (?, 0)", one.body)
            assert batch.next() is None
            try:
                batch.transaction()
            except EngineRefused as error:
                later.append(error)
            raise ValueError("changes nothing")

    await fill(shop.outbox, 10)
    async with working(shop.jobs, {}):
        await delivered(shop.outbox, 10)
    assert shop.effects() == list(range(10))
    assert plain or "committed a transaction already" in str(later[0])


@pytest.mark.spec("DELIVER-23")
@pytest.mark.parametrize("mode", ["leased", "transactional"])
@pytest.mark.parametrize("happened", [True, False])
async def test_a_turn_whose_commit_is_in_doubt_is_no_success(
    shop: Shop, caplog: pytest.LogCaptureFixture, mode: str, happened: bool
) -> None:
    """The answer to the first commit is lost. The next lease shows whether it happened: no message is skipped, none
    is delivered twice, and the turn does not count as failed.
    """
    cuts = 0

    @contextmanager
    def cut() -> Iterator[sqlite3.Connection]:
        nonlocal cuts
        if cuts:
            with shop.begin() as db:
                yield db
            return
        cuts += 1
        db = sqlite3.connect(shop.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            db.execute("begin immediate")
            yield db
            db.execute("commit" if happened else "rollback")
        finally:
            db.close()
        raise ConnectionResetError("the answer was lost")

    if mode == "leased":

        @shop.outbox.deliver(batch=4, pace=QUICK, lease=2, headroom=0.5, name="publish")
        def publish(batch: Batch[int]) -> None:
            messages = batch.rest()
            first = not cuts
            with suppress(ConnectionResetError), batch.transaction(cut) as db:
                for one in messages:
                    write(db, one.body)
            if first:
                with pytest.raises(EngineRefused, match="or may have"):  # a second commit would deliver twice
                    batch.transaction(cut)

    else:

        @shop.outbox.deliver(
            mode="transactional", transaction=cut, batch=4, pace=QUICK, lease=2, headroom=0.5, name="publish"
        )
        def project(batch: Batch[int], db: sqlite3.Connection) -> None:
            for one in batch:
                write(db, one.body)

    await fill(shop.outbox, 10)
    async with working(shop.jobs, {}):
        await delivered(shop.outbox, 10)
    assert shop.effects() == list(range(10))
    assert (await cursor(shop.outbox)).cursor.failures == 0
    [line] = [record.getMessage() for record in caplog.records if "The next lease shows" in record.getMessage()]
    assert "the outcome of its commit is not known: ConnectionResetError" in line


@pytest.mark.spec("DELIVER-23")
async def test_nothing_more_is_stored_for_a_turn_that_may_have_ended() -> None:
    """An advance after a commit in doubt would give the messages back, or count a failure that was none."""
    advance: Any = object()
    part = TurnParticipant("a turn", lambda: advance, Batch[int]([], 0, 0, lambda: 1.0, None))
    turn = Delivery.__new__(Delivery)
    turn._part = part
    ended = []
    for written, doubt in ((None, False), (advance, False), (advance, True)):
        part.written = written
        if doubt:
            part.in_doubt("the answer was lost")
        ended.append(turn._ended_in_transaction(RetryLater("the answer was lost")))
    assert ended == [False, False, True]


@pytest.mark.spec("DELIVER-22")
async def test_a_transaction_that_fails_leaves_its_messages_undelivered(shop: Shop) -> None:
    failures: list[str] = []

    @shop.outbox.deliver(pace=QUICK)
    async def publish(batch: Batch[int]) -> None:
        try:
            async with batch.transaction():
                pass
        except InvalidInput as error:
            failures.append(str(error))
        messages = batch.rest()
        async with batch.transaction() as tx:
            for one in messages:
                await tx.execute("insert into effects values (?, 0)", one.body)
            if len(failures) < 3:
                raise OSError("no")

    await fill(shop.outbox, 3)
    async with working(shop.jobs, {}):
        await delivered(shop.outbox, 3)
    assert shop.effects() == [0, 1, 2]
    assert "must hand out messages" in failures[0]


@pytest.mark.spec("DELIVER-22")
async def test_a_batch_without_a_turn_of_its_own_is_refused(shop: Shop) -> None:
    refused: list[str] = []

    @shop.outbox.deliver(mode="transactional")
    async def publish(batch: Batch[int], tx: object) -> None:
        batch.rest()
        try:
            batch.transaction()
        except EngineRefused as error:
            refused.append(str(error))

    await fill(shop.outbox, 1)
    async with working(shop.jobs, {}):
        await delivered(shop.outbox, 1)
    assert "no turn of its own" in refused[0]


@pytest.mark.spec("DELIVER-20")
async def test_a_commit_that_fails_delivers_nothing_and_batches_shrink(shop: Shop) -> None:
    """A deferred constraint fails at the commit: no message is to blame until one is alone."""
    with shop.begin() as db:
        db.execute("create table parent (id integer primary key)")
        db.execute("create table child (id integer references parent deferrable initially deferred)")
    sizes: list[int] = []

    @contextmanager
    def strict() -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(shop.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            db.execute("pragma foreign_keys = on")
            db.execute("begin immediate")
            try:
                yield db
            except BaseException:
                db.execute("rollback")
                raise
            db.execute("commit")
        finally:
            db.close()

    @shop.outbox.deliver(
        mode="transactional", transaction=strict, pace=QUICK, attempts=2, lease=1, headroom=0.3, lanes=1
    )
    def publish(batch: Batch[int], db: sqlite3.Connection) -> None:
        sizes.append(len(batch))
        for one in batch:
            write(db, one.body)
            if one.body == 1:
                db.execute("insert into child values (7)")

    await fill(shop.outbox, 4)
    async with working(shop.jobs, {}):
        await delivered(shop.outbox, 4)
    assert shop.effects() == [0, 2, 3]
    assert [one.number for one in await letters(shop.outbox)] == [2]


@pytest.mark.engine("postgres")
@pytest.mark.spec("DELIVER-20", "DELIVER-21")
async def test_on_postgres_with_psycopg_with_the_stores_own_and_with_a_lost_lease(
    postgres_url: str, postgres_schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = Stoker(postgres_url, schema=postgres_schema)
    outbox = Outbox[int](jobs, stream="orders", partitions=4)
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(f"create table {postgres_schema}.effects (body int unique, who text)".encode())
        db.execute(f"create table {postgres_schema}.others (body int unique)".encode())
        db.execute(f"create table {postgres_schema}.third (body int unique)".encode())
    failures = 0
    turns: list[int] = []
    go_on = asyncio.Event()

    @contextmanager
    def begin() -> Iterator[psycopg.Connection]:
        with psycopg.connect(postgres_url) as db:
            yield db

    @outbox.deliver(mode="transactional", transaction=begin, pace=QUICK)
    def plain(batch: Batch[int], db: psycopg.Connection) -> None:
        nonlocal failures
        for one in batch:
            db.execute(f"insert into {postgres_schema}.effects values (%s, 'x')".encode(), [one.body])
        if failures < 5:
            failures += 1
            raise OSError("no")

    @outbox.deliver(mode="transactional")
    async def own(batch: Batch[int], tx: OwnTransaction) -> None:
        for one in batch:
            await tx.execute(f"insert into {postgres_schema}.others values ($1)", one.body)

    @outbox.deliver(mode="transactional", batch=1_000, pace=QUICK)
    async def slow(batch: Batch[int], tx: OwnTransaction) -> None:
        for one in batch:
            await tx.execute(f"insert into {postgres_schema}.third values ($1)", one.body)
        if not turns:
            turns.append(batch.partition)
            await go_on.wait()

    await fill(outbox, 200, str)
    streams = outbox_of(await jobs.engine())
    async with working(jobs, {}):
        await until(lambda: turns)
        await outbox.seek("slow", {turns[0]: 0})  # takes the lease of the turn under way
        go_on.set()
        async with asyncio.timeout(PATIENCE * 3):
            while True:
                [state] = await streams.streams(["orders"])
                if state.cursors and not any(one.waiting for one in state.cursors):
                    break
                await asyncio.sleep(0.05)
    with psycopg.connect(postgres_url) as db:
        for table in ("effects", "others", "third"):
            found = db.execute(f"select count(*), count(distinct body) from {postgres_schema}.{table}".encode())
            assert found.fetchone() == (200, 200)
    assert "consumer slow of stream orders lost the lease" in caplog.text
    await jobs.close()
