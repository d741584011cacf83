"""What the guides say of attempts, counted with the real packages: N retries there are N + 1 attempts here."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

RUNS = 4
"""Three retries."""
pytestmark = pytest.mark.filterwarnings("ignore")  # those of other systems
runs: list[str] = []


def fail(*_: object) -> None:
    runs.append("a run")
    raise ConnectionError("away")


async def fail_in_arq(_: object, error: str) -> None:
    import arq

    runs.append("a run")
    raise arq.Retry(defer=0.01) if error == "Retry" else ConnectionError("away")


def celery(retries: int | None) -> None:
    app = importlib.import_module("celery").Celery(set_as_current=False, broker="memory://")
    app.conf.task_always_eager = True
    options = {} if retries is None else {"autoretry_for": (ConnectionError,), "max_retries": retries}
    with contextlib.suppress(ConnectionError):
        app.task(**options)(fail).apply()


def dramatiq(retries: int | None) -> None:
    library: Any = importlib.import_module("dramatiq")
    broker = importlib.import_module("dramatiq.brokers.stub").StubBroker()
    options = {} if retries is None else {"max_retries": retries}
    actor = library.actor(fail, broker=broker, min_backoff=1, max_backoff=1, **options)
    worker = library.Worker(broker, worker_timeout=10)
    actor.send()
    worker.start()
    try:
        broker.join(actor.queue_name, fail_fast=False)
        worker.join()
    finally:
        worker.stop()


def huey(retries: int | None) -> None:
    made = importlib.import_module("huey").MemoryHuey(immediate=True)
    made.task(**({} if retries is None else {"retries": retries}))(fail)()


def procrastinate(retries: int | None) -> None:
    library: Any = importlib.import_module("procrastinate")
    testing: Any = importlib.import_module("procrastinate.testing")
    app = library.App(connector=testing.InMemoryConnector())
    task = app.task(**({} if retries is None else {"retry": library.RetryStrategy(max_attempts=retries)}))(fail)

    async def work() -> None:
        async with app.open_async():
            await task.defer_async()
            for _ in range(RUNS + 2):
                await app.run_worker_async(wait=False, install_signal_handlers=False)

    asyncio.run(work())


@pytest.mark.parametrize("peer", [celery, dramatiq, huey, procrastinate], ids=lambda peer: peer.__name__)
def test_three_retries_are_four_attempts(peer: Callable[[int | None], None]) -> None:
    pytest.importorskip(peer.__name__)
    runs.clear()
    peer(RUNS - 1)
    assert len(runs) == RUNS


@pytest.mark.parametrize("peer", [celery, huey, procrastinate], ids=lambda peer: peer.__name__)
def test_without_an_option_they_run_once(peer: Callable[[int | None], None]) -> None:
    pytest.importorskip(peer.__name__)
    runs.clear()
    peer(None)
    assert len(runs) == 1


def test_the_default_of_dramatiq_is_twenty_retries() -> None:
    retries = pytest.importorskip("dramatiq.middleware").Retries()
    assert (retries.max_retries, retries.min_backoff, retries.max_backoff) == (20, 15_000, 604_800_000)


@pytest.mark.engine("redis")
@pytest.mark.parametrize(("retries", "expected"), [(RUNS - 1, RUNS), (None, 1)])
def test_rq_counts_retries(redis_url: str, retries: int | None, expected: int) -> None:
    library = pytest.importorskip("rq")
    redis: Any = importlib.import_module("redis")
    with redis.Redis.from_url(urlsplit(redis_url)._replace(path="/7").geturl()) as client:
        queue = library.Queue(connection=client)
        queue.enqueue(fail, retry=None if retries is None else library.Retry(max=retries))
        runs.clear()
        library.SimpleWorker([queue], connection=client).work(burst=True, logging_level="CRITICAL")
        client.flushdb()
    assert len(runs) == expected


@pytest.mark.engine("redis")
@pytest.mark.parametrize(("error", "expected"), [("Retry", RUNS), ("ConnectionError", 1)])
def test_arq_counts_runs_and_retries_only_what_asks_for_it(redis_url: str, error: str, expected: int) -> None:
    library = pytest.importorskip("arq")
    settings = importlib.import_module("arq.connections").RedisSettings.from_dsn(
        urlsplit(redis_url)._replace(path="/7").geturl()
    )

    async def work() -> None:
        pool = await library.create_pool(settings)
        await pool.enqueue_job("fail_in_arq", error)
        worker = library.Worker(
            [fail_in_arq],
            redis_settings=settings,
            burst=True,
            max_tries=RUNS,
            poll_delay=0.02,
            handle_signals=False,
        )
        await worker.async_run()
        await worker.close()
        await pool.flushdb()
        await pool.aclose()

    runs.clear()
    asyncio.run(work())
    assert len(runs) == expected
