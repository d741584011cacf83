"""The ear of a process: one connection that listens for every engine on a database, whatever loop it lives on."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.engines.base import CONTROL
from stoker.engines.postgres import PostgresEngine
from stoker.engines.postgres.connection import Connection
from stoker.engines.postgres.url import DEFAULTS, read_url
from stoker.engines.postgres.wakeup import listener, notifier
from stoker.model.ids import JobId
from stoker.model.query import Cancel, Selection
from stoker.worker import Worker
from tests.engines.postgres.sleepers import SOON, Make, until, woken
from tests.harness.proxy import Proxy

pytestmark = pytest.mark.engine("postgres")

T = TypeVar("T")

LISTENERS = "select pid from pg_stat_activity where datname = current_database() and query ~* '^(listen|select 1$)'"

FORKING = """
import asyncio, os, signal, sys, threading
from stoker.context import current
from stoker.engines.base import CONTROL
from stoker.engines.postgres import PostgresEngine
from stoker.engines.postgres.wakeup import listener

url, schema = sys.argv[1:]
engine = PostgresEngine(url, schema=schema)
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()

def run(work):
    return asyncio.run_coroutine_threadsafe(work, loop).result(60)

async def hears(engine, sender):
    await engine.jobs.wait([CONTROL], 0)
    await sender.open()
    await sender.jobs.wake([CONTROL])
    heard = await asyncio.wait_for(engine.jobs.wait([CONTROL], 120), 60)
    await sender.close()
    return heard == {CONTROL}

async def in_the_child():
    await engine.close()
    await engine.open()
    heard = await hears(engine, engine.for_loop())
    await engine.close()
    return heard

run(engine.open())
assert run(hears(engine, engine.for_loop()))
lock = listener._registry.lock
lock.acquire()  # as another thread might in the moment of the fork
child = os.fork()
if child == 0:
    signal.alarm(150)
    os._exit(0 if asyncio.run(in_the_child()) else 1)
lock.release()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child has an ear of its own"
assert run(hears(engine, engine.for_loop())), "and its parent's was not touched"
run(engine.close())
"""


class Elsewhere:
    """A loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wait_for(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self.loop)), SOON)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SOON)
        self.loop.close()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    place = Elsewhere()
    yield place
    place.close()


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    """A database of the test's own: every listener there belongs to the test."""
    name = f"ear_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        yield urlsplit(postgres_url)._replace(path=f"/{name}").geturl()
        connection.execute(f"drop database {name} with (force)".encode())


def listeners(url: str) -> set[int]:
    with psycopg.connect(url) as connection:
        return {pid for (pid,) in connection.execute(LISTENERS.encode()).fetchall()}


def threads() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "stoker-listen"}


def place(engine: PostgresEngine) -> listener.Subscriber:
    assert engine._store.notifier._subscription is not None
    return engine._store.notifier._subscription[1]


async def opened(engine: PostgresEngine, *topics: str) -> None:
    """Open an engine, and let it hear of these."""
    await engine.open()
    await engine.jobs.wait(topics, 0)


async def cancel(url: str, job: str) -> None:
    engine = PostgresEngine(url)
    await engine.open()
    try:
        await engine.operator.alter(Selection((JobId(uuid.UUID(job).bytes),)), Cancel())
    finally:
        await engine.close()


@pytest.mark.spec("PGEAR-01")
async def test_a_worker_has_one_connection_that_listens(database: str) -> None:
    async with Stoker(database, migrate="auto") as jobs:
        before = threads()
        async with Worker(jobs, ["mail"]) as worker:
            engine = worker.engine
            assert isinstance(engine, PostgresEngine)
            [ear] = [ear for ear in listener._registry._listeners.values() if ear.address.url == engine._options.url]
            await until(lambda: len(ear.subscribers) == 2)
            await until(lambda: ear.settled)
            assert len(listeners(database)) == 1
            assert len(threads() - before) == 1
            assert sorted(subscriber.queues for subscriber in ear.subscribers) == [False, True], (
                "a keeper hears of cancels alone"
            )


@pytest.mark.spec("PGEAR-01")
async def test_engines_on_two_loops_hear_on_one_connection(make: Make, elsewhere: Elsewhere, postgres_url: str) -> None:
    before = listeners(postgres_url)
    here = await make()
    there = here.for_loop()
    try:
        await here.jobs.wait(["mail", CONTROL], 0)
        await elsewhere.run(opened(there, CONTROL))
        assert place(there).settled.is_set(), "who comes later does not wait"
        assert len(listeners(postgres_url) - before) == 1
        other = await make()
        await other.jobs.wake([CONTROL, "mail"])
        assert await woken(here, CONTROL) == {CONTROL}
        assert await elsewhere.run(woken(there, CONTROL)) == {CONTROL}
        assert await woken(here, "mail") == {"mail"}
        assert not there._store.notifier._waiters.remembers(["mail"]), "it never waited for that"
        await here.jobs.wake([CONTROL])
        assert await elsewhere.run(woken(there, CONTROL)) == {CONTROL}, "a twin of the same process hears it too"
    finally:
        await elsewhere.run(there.close())


@pytest.mark.spec("PGEAR-02")
async def test_when_one_engine_closes_the_others_keep_the_same_listening_connection(
    make: Make, elsewhere: Elsewhere, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PULSE", 3 * SOON)
    monkeypatch.setattr(notifier, "LAST_WAIT", SOON)
    before, running = listeners(postgres_url), threads()
    first, sender = await make(), await make()
    second = first.for_loop()
    await first.jobs.wait(["mail"], 0)
    ears = listeners(postgres_url) - before
    await elsewhere.run(opened(second, "mail"))
    await first.close()
    await sender.jobs.wake(["mail"])
    assert await elsewhere.run(woken(second, "mail")) == {"mail"}
    assert listeners(postgres_url) - before == ears
    await elsewhere.run(second.close())
    assert place(second).released.is_set(), "the last one saw it closed"
    await until(lambda: not listeners(postgres_url) - before)
    await until(lambda: not threads() - running)


@pytest.mark.spec("PGEAR-02")
async def test_a_connection_that_is_lost_is_made_anew_for_all(
    make: Make, elsewhere: Elsewhere, postgres_url: str
) -> None:
    before = listeners(postgres_url)
    here, sender = await make(), await make()
    there = here.for_loop()
    try:
        await here.jobs.wait([CONTROL], 0)
        await elsewhere.run(opened(there, CONTROL))
        [ear] = listeners(postgres_url) - before
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("select pg_terminate_backend(%s)", (ear,))
        assert await woken(here, CONTROL) == {CONTROL}, "what was missed is not known"
        assert await elsewhere.run(woken(there, CONTROL)) == {CONTROL}
        await sender.jobs.wake([CONTROL])
        assert await woken(here, CONTROL) == {CONTROL}
        assert await elsewhere.run(woken(there, CONTROL)) == {CONTROL}
        assert len(listeners(postgres_url) - before - {ear}) == 1
    finally:
        await elsewhere.run(there.close())


@pytest.mark.spec("PGEAR-03")
async def test_a_cancel_reaches_the_keeper_of_a_loop_that_is_blocked(database: str) -> None:
    """Also when an engine of the blocked loop was the first to wait. The next renewal would be due in 30 seconds."""
    heard: list[bool] = []
    async with Stoker(database, migrate="auto") as jobs:

        @jobs.task
        async def blocks() -> None:
            before = worker.lease_keeper.renewed_at
            canceling = threading.Thread(target=asyncio.run, args=(cancel(database, current().id),))
            canceling.start()
            deadline = time.monotonic() + SOON
            while worker.lease_keeper.renewed_at == before and time.monotonic() < deadline:
                time.sleep(0.005)
            heard.append(worker.lease_keeper.renewed_at > before)
            canceling.join(SOON)

        await (await jobs.engine()).jobs.wait(["mail"], 0)
        await blocks.enqueue()
        async with Worker(jobs, lease=90) as worker:
            await until(lambda: heard)
    assert heard == [True]


@pytest.mark.spec("PGEAR-04")
async def test_schemas_share_the_connection_and_do_not_hear_each_other(make: Make, database: str) -> None:
    one, other = await make(database, migrate="auto"), await make(database, schema="other", migrate="auto")
    said: list[str] = []
    witness = await asyncpg.connect(database)
    try:
        await witness.add_listener(listener.CHANNEL, lambda *heard: said.append(heard[3]))
        for engine in (one, other):
            await engine.jobs.wait(["mail", "post", CONTROL], 0)
        assert len(listeners(database) - {witness.get_server_pid()}) == 1
        await other.jobs.wake(["mail", CONTROL])
        await one.jobs.wake(["mail"])
        assert await woken(one, "mail") == {"mail"}
        await until(lambda: len(said) == 2)  # its own words come back to the one that said them
        twin = one.for_loop()
        await twin.open()
        await twin.jobs.wake(["post"])
        assert await woken(one, "mail", "post", CONTROL) == {"post"}
        await twin.close()
    finally:
        await witness.close()


@pytest.mark.spec("PGEAR-04")
async def test_a_foreign_notification_on_the_channel_does_no_harm(
    make: Make, postgres_url: str, postgres_schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await make()
    await engine.jobs.wait(["mail"], 0)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for message in ("", "nonsense", postgres_schema, f"{postgres_schema} ", "  ", f"{postgres_schema} x mail"):
            connection.execute("select pg_notify(%s, %s)", (listener.CHANNEL, message))
    assert await woken(engine, "mail") == {"mail"}
    assert caplog.records == []


@pytest.mark.spec("PGEAR-08")
async def test_a_direct_url_that_cannot_be_used_is_reported_once_without_its_password(
    make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await make(direct="postgresql://app:hush/hush@127.0.0.1/shop")  # a slash that was not quoted
    tries: list[str] = []
    connect = Connection.open

    async def counted(url: str, *rest: Any, **options: Any) -> Connection:
        tries.append(url)
        return await connect(url, *rest, **options)

    monkeypatch.setattr(listener, "LONGEST_BACKOFF", 0.01)
    monkeypatch.setattr(Connection, "open", counted)
    assert await engine.jobs.wait(["mail"], 0) == frozenset()
    await until(lambda: len(tries) >= 3)
    await engine.jobs.wake(["mail"])
    assert await woken(engine, "mail") == {"mail"}, "what this engine does it knows without listening"
    [said] = [record.getMessage() for record in caplog.records]
    assert "workers poll for jobs" in said
    assert "ValueError" in said
    assert "hush" not in said


@pytest.mark.spec("PGEAR-05")
def test_a_forked_child_has_an_ear_of_its_own(postgres_url: str, postgres_schema: str) -> None:
    script = [sys.executable, "-c", FORKING, postgres_url, postgres_schema]
    done = subprocess.run(script, check=False, timeout=3 * SOON, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.spec("PGEAR-06")
def test_an_engine_opened_again_on_another_loop_hears_again(postgres_url: str, postgres_schema: str) -> None:
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    before = threads()

    async def heard() -> frozenset[str]:
        sender = engine.for_loop()
        await opened(engine, "mail")
        await sender.open()
        await sender.jobs.wake(["mail"])
        try:
            return await woken(engine, "mail")
        finally:
            await sender.close()
            await engine.close()
            await until(lambda: not threads() - before)

    for _ in range(2):
        assert asyncio.run(heard()) == {"mail"}


@pytest.mark.spec("PGEAR-06")
async def test_a_loop_that_ends_without_its_engine_does_not_keep_the_ear(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PULSE", 0.05)
    before, running = listeners(postgres_url), threads()
    options = read_url(postgres_url, clock=None, given=DEFAULTS)

    async def left_behind() -> None:
        subscriber = listener.Subscriber("stoker", "x", lambda _: None)
        listener.join(options, subscriber)
        await asyncio.wait_for(subscriber.settled.wait(), SOON)
        assert len(threads() - running) == 1

    await asyncio.to_thread(asyncio.run, left_behind())
    await until(lambda: not threads() - running)
    await until(lambda: not listeners(postgres_url) - before)


@pytest.mark.spec("PGEAR-06")
async def test_closing_does_not_wait_for_a_server_that_is_silent(make: Make, postgres_url: str) -> None:
    before = threads()
    with Proxy(postgres_url) as proxy:
        heard, connecting = await make(direct=proxy.url), await make(direct=proxy.url + "?ssl=disable")
        await heard.jobs.wait([CONTROL], 0)
        proxy.blackhole()
        first = asyncio.create_task(connecting.jobs.wait([CONTROL], 2 * SOON))
        await until(lambda: len(threads() - before) == 2)
        for engine in (heard, connecting):
            await asyncio.wait_for(engine.close(), SOON)
        assert await asyncio.wait_for(first, SOON) == frozenset(), "also who still waited for the ear goes home"
        await until(lambda: not threads() - before)


@pytest.mark.spec("PGEAR-07")
async def test_a_loop_that_is_held_up_is_asked_once_to_fetch_what_was_heard() -> None:
    fetched: list[frozenset[str]] = []
    subscriber = listener.Subscriber("stoker", "x", fetched.append)
    subscriber.queues = True

    def speak() -> None:
        for n in range(1_000):
            subscriber.notify(frozenset({f"queue-{n % 3}"}))

    sender = threading.Thread(target=speak)
    sender.start()
    sender.join(SOON)  # the loop stands still meanwhile
    assert fetched == []
    await until(lambda: fetched)
    assert fetched == [{"queue-0", "queue-1", "queue-2"}]
    subscriber.notify(frozenset({"mail"}))
    await until(lambda: len(fetched) == 2)
    assert fetched[1] == {"mail"}


@pytest.mark.spec("PGOP-21")
async def test_sessions_say_what_they_are_for(postgres_url: str, make: Make) -> None:
    engine = await make()
    await engine.operator.census()
    async with engine.transaction() as tx:
        await tx.execute("select 1", ())
        await engine.jobs.wait([CONTROL], 0)
        with psycopg.connect(postgres_url) as connection:
            names = connection.execute(
                "select application_name from pg_stat_activity where datname = current_database()"
            )
            found = {name for (name,) in names}
    assert {"stoker jobs", "stoker admin", "stoker transaction", "stoker wake-ups"} <= found
