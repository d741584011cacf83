"""A store in the middle of a bad night, on any engine: many queues and kinds, two thousand dead jobs, a frozen worker.

`fill` builds it through the contract of engines, with the clock a day before at first and at the present moment in the
end. So every question of an operator has an answer in it, and what commands and pages show of it is known.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest

from stoker import Limit, Stoker
from stoker.engines.base import ERRORS, RELEASES, Engine, Feature
from stoker.engines.postgres import PostgresEngine
from stoker.engines.redis import RedisEngine
from stoker.engines.sqlite import SqliteEngine
from stoker.model import ids
from stoker.model.control import Presence, Tuning
from stoker.model.error_records import ErrorRecord, add_failures
from stoker.model.events import EventCount, EventType, Point
from stoker.model.ids import Mint
from stoker.model.job import Claim, Demand, Note, Settlement, Status
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Suspended
from stoker.model.query import Query
from stoker.model.releases import Release
from stoker.model.same_error import signature
from stoker.model.stats import COUNTED, Values, of_all, of_kind
from stoker.model.steps import Step, StepState
from stoker.model.throttle import Cool, Rate
from stoker.model.time import HOUR, MINUTE, SECOND, Instant
from stoker.registry import mint
from stoker.testing.clock import VirtualClock
from tests.harness.fixtures import clean, drop_schema, new_prefix
from tests.harness.letters import letters

AREAS: Final = (
    *("billing", "mail", "webhooks", "media", "search", "imports", "reports", "fraud", "stock", "orders"),
    *("carts", "prices", "taxes", "users", "sms", "push", "exports", "backups", "ledger", "payouts"),
    *("reviews", "images", "video", "audit", "crm", "ads", "seo", "cache", "geo", "support"),
)
"""The queues: thirty."""

VERBS: Final = ("sync", "charge_and_settle", "rebuild")
KINDS: Final = tuple(f"{area}.{verb}" for verb in VERBS for area in AREAS)[:67]
SLOW: Final = "reports.rebuild"
PAUSED, COOLING, LIMITED, LATE = "imports", "webhooks", "payouts", "billing"
FROZEN: Final = "fra-3.1"
OLD, NEW = "2.4.0", "2.4.1"
LIVING: Final = (("fra-1.1", NEW), ("fra-1.2", NEW), ("fra-2.1", OLD), ("fra-2.2", OLD), ("fra-3.2", NEW))
HOOK: Final = "ConnectTimeout: timed out after 10 s connecting to hooks.northwind.example"


class Failure(NamedTuple):
    """An error of the night: how many jobs died of it, in which kinds, and whether it is new."""

    text: str
    n: int
    kinds: tuple[str, ...]
    new: bool = False


def _trace(line: str, module: str, where: str) -> str:
    runner = "/srv/shop/venv/lib/python3.12/site-packages/stoker/worker/runner.py"
    return (
        f'{line}\nTraceback (most recent call last):\n  File "{runner}", line 88, in Runner._run\n'
        f'    return await handler(*args, **kwargs)\n  File "/srv/shop/{module}.py", line 63, in {where}\n    raise'
    )


FAILURES: Final = (
    Failure(_trace("KeyError: 'vat_id'", "billing", "charge"), 640, ("billing.charge_and_settle",), new=True),
    Failure(_trace(HOOK, "webhooks", "deliver"), 420, ("webhooks.sync", "crm.sync", "ads.sync")),
    Failure(_trace("OperationalError: deadlock detected", "ledger", "post"), 310, ("ledger.sync", "payouts.sync")),
    Failure(_trace("SMTPServerDisconnected: please run connect() first", "mail", "send"), 180, ("mail.sync",)),
    Failure(_trace("ValueError: invalid literal for int(): 'n/a'", "feeds", "parse"), 140, ("imports.sync",)),
    Failure("process died under the job for the third time: killed by signal 9", 90, ("video.sync", "media.rebuild")),
    Failure(_trace("TimeoutError: the job ran longer than 300 s", "reports", "build"), 70, (SLOW,)),
    Failure(_trace("AssertionError: totals differ by 0.01", "taxes", "check"), 55, ("taxes.sync",), new=True),
    Failure(
        _trace("PermissionError: [Errno 13] Permission denied: '/mnt/x'", "backups", "copy"), 40, ("backups.sync",)
    ),
    Failure(_trace("UnicodeDecodeError: invalid start byte", "reviews", "read"), 30, ("reviews.sync",)),
    Failure(_trace("IndexError: list index out of range", "geo", "near"), 20, ("geo.sync",)),
    Failure("Reject: the address is not deliverable", 5, ("sms.sync",)),
)
"""Twelve errors of two thousand dead jobs."""

Opened = Callable[[VirtualClock], Engine]


@contextmanager
def stored(
    name: str, request: pytest.FixtureRequest, folder: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> Iterator[str]:
    """The night on an engine: its URL; `run` runs what makes it."""
    prefix = new_prefix()
    if name == "sqlite":
        path = folder / "jobs.db"
        run(fill(lambda clock: SqliteEngine(path, clock=clock, durability="process"), f"sqlite:///{path}"))
        yield f"sqlite:///{path}"
    elif name == "postgres":
        server = request.getfixturevalue("postgres_url")
        url = f"{server}?schema={prefix}"
        run(fill(lambda clock: PostgresEngine(server, schema=prefix, clock=clock), url))
        yield url
        drop_schema(server, prefix)
    else:
        server = request.getfixturevalue("redis_url")
        url = f"{server}?prefix={prefix}"
        run(fill(lambda clock: RedisEngine(server, prefix=prefix, clock=clock), url))
        yield url
        clean(server, prefix)


async def fill(opened: Opened, url: str) -> None:
    """Make the night: `opened` gives an engine of the store with the given clock, `url` is where it is."""
    probe = Stoker(url)
    now = await (await probe.engine()).now()
    await probe.close()
    clock, chance = VirtualClock(now - HOUR), random.Random(31)
    app = Stoker(opened(clock), timeline=False, mint=Mint(clock.now, chance.randbytes))
    for kind in KINDS:
        app.declare(
            kind, queue=kind.partition(".")[0], label="order {order} for {customer}" if "charge" in kind else None
        )
    async with app:
        engine = await app.engine()
        await _points(engine, now, chance)
        clock.set(now - 50 * MINUTE)
        await _dead(app, engine, clock, new=False)
        clock.set(now - 40 * MINUTE)
        await _done_and_long(app, engine)
        clock.set(now - 8 * MINUTE)
        await _dead(app, engine, clock, new=True)
        clock.set(now - 6 * MINUTE)
        await _at_work(app, engine)
        await _errors(engine, now)
        clock.set(now - MINUTE)
        await _settings(app, engine)
        if Feature.OUTBOX in engine.features:
            await letters(engine, 3, type_="shop.OrderPlaced.v3")
        clock.set(now - 30 * SECOND)
        await beat(engine, (FROZEN, NEW))
        clock.set(now)
        await beat(engine, *LIVING)


async def _enqueue(app: Stoker, kind: str, n: int, **options: Any) -> None:
    payload = {"order": 48_000, "customer": "acme", "amount": "49.00", "card_token": "tok_1Kx0"}
    for start in range(0, n, 500):
        part = range(start, min(start + 500, n))
        await app.enqueue_many([app.draft(kind, {**payload, "order": 48_000 + one}, **options) for one in part])


async def _claimed(engine: Engine, queue: str, n: int, worker: str = "fra-1.1") -> list[Claim]:
    await engine.jobs.renew(worker, [], first=True, lease=3 * HOUR)
    found: list[Claim] = []
    while len(found) < n:
        wanted = min(n - len(found), 500)
        taken = await engine.jobs.claim(Demand(worker, ((queue, wanted),), wanted))
        assert taken, (queue, n)
        found += taken
    return found


async def _end(engine: Engine, claims: list[Claim], status: Status, error: str | None = None, **more: Any) -> None:
    for start in range(0, len(claims), 500):
        part = claims[start : start + 500]
        ends = [Settlement(one.id, one.worker, one.token, status, error=error, **more) for one in part]
        await engine.jobs.settle(ends)


async def _dead(app: Stoker, engine: Engine, clock: VirtualClock, *, new: bool) -> None:
    for failure in (one for one in FAILURES if one.new is new):
        share = failure.n // len(failure.kinds)
        for place, kind in enumerate(failure.kinds):
            n = failure.n - share * (len(failure.kinds) - 1) if not place else share
            await _enqueue(app, kind, n, attempts=1)
            claims = await _claimed(engine, kind.partition(".")[0], n)
            clock.advance(1)
            await _end(engine, claims, Status.DEAD, failure.text)


async def _done_and_long(app: Stoker, engine: Engine) -> None:
    """Jobs that are done, and one that runs ever since."""
    await _enqueue(app, "video.sync", 1)
    [long] = await _claimed(engine, "video", 1)
    await engine.jobs.note([Note(long.id, long.worker, long.token, 0.12)])
    for area in AREAS[:24]:
        await _enqueue(app, f"{area}.sync", 6)
        await _end(engine, await _claimed(engine, area, 6), Status.DONE)


async def _at_work(app: Stoker, engine: Engine) -> None:
    """Jobs that wait, run, and are tried again."""
    await _enqueue(app, "support.sync", 3)
    await _enqueue(app, "billing.charge_and_settle", 900)
    await _enqueue(app, "crm.sync", 12)
    await _end(engine, await _claimed(engine, "crm", 12), Status.RETRYING, FAILURES[1].text, after=HOUR)
    await _enqueue(app, "fraud.sync", 6)
    await _claimed(engine, "fraud", 6, FROZEN)
    await _enqueue(app, SLOW, 3)
    await _claimed(engine, "reports", 2)
    await _enqueue(app, "backups.sync", 4, delay=3 * 3600)
    await _enqueue(app, "imports.sync", 30)
    await _enqueue(app, "payouts.sync", 5, limit=Limit(1, name="payout"))
    await _claimed(engine, LIMITED, 1)
    app.declare("purchases.approve", queue="purchases", label="purchase {order}")
    await app.enqueue(app.draft("purchases.approve", {"order": 48_213}))
    [asks] = await _claimed(engine, "purchases", 1)
    question = b'{"ask":"May we buy order 48213?","schema":{"type":"boolean"}}'
    rows = (Step("reserve", value=b"48213"), Step("approval", StepState.WAITING, question))
    await engine.jobs.settle([conclude(asks, Suspended(rows))])
    await app.group(
        [app.draft("images.sync", {"order": n, "customer": "acme"}) for n in range(12)], then=app.draft("seo.sync")
    )
    await _end(engine, await _claimed(engine, "images", 7), Status.DONE)


async def _points(engine: Engine, now: Instant, chance: random.Random) -> None:
    """The throughput of a day in all, and of an hour by queue and kind."""
    last = now // MINUTE * MINUTE
    points: list[Point] = []
    for ago in range(10, 24 * 60, 10):
        at, done = last - ago * MINUTE, 400 + chance.randrange(200)
        points += [Point("", of_all(name), at, done) for name in ("completed", "enqueued")]
        points += [Point("", COUNTED, at, 1)]
    for ago in range(1, 60):
        at = last - ago * MINUTE
        failed = chance.randrange(60) if ago < 9 else ago % 3
        points += [Point("", of_all("failed"), at, failed), Point("", COUNTED, at, 1)]
        points += [
            Point("", of_all(name), at, 450 + chance.randrange(99)) for name in ("completed", "enqueued") if ago % 10
        ]
        slow = 1 + chance.random()
        times: Values = (500, 2e8, slow * 3e5, slow * 1.2e6, slow * 4e6, 9e6)
        points.append(Point("", of_all("total"), at, *times))
        for area in AREAS[:12]:
            points += [Point(area, "completed", at, 20 + chance.randrange(40)), Point(area, "enqueued", at, 40)]
            points.append(Point(area, "total", at, *times))
    for kind in KINDS:
        run = (280 if kind == SLOW else 0.2) * SECOND
        times = (30, 30.0 * run, run, 1.4 * run, 1.6 * run, 2 * run)
        points += [Point(kind, of_kind("completed"), last - 5 * MINUTE, 30)]
        points += [Point(kind, of_kind(name), last - 5 * MINUTE, *times) for name in ("processing", "wait")]
    for start in range(0, len(points), 1_000):
        await engine.timeline.record([], points[start : start + 1_000], now=now)


async def _errors(engine: Engine, now: Instant) -> None:
    """What workers would have rolled up of the errors, and the two releases."""
    known: dict[str, ErrorRecord] = {}
    for failure in FAILURES:
        for hour in [0] if failure.new else [1]:
            minute = (now - hour * HOUR) // MINUTE * MINUTE - 8 * MINUTE
            counts = [
                EventCount(
                    kind.partition(".")[0],
                    EventType.FAILED,
                    failure.n // len(failure.kinds),
                    kind,
                    signature(failure.text),
                    mint(),
                )
                for kind in failure.kinds
            ]
            known |= {name: one for name, one in add_failures(known, minute, counts, minute + MINUTE).items() if one}
    for one in known.values():
        await engine.documents.swap(ERRORS, one.id, None, msgspec.json.encode(one))
    for name, first in ((OLD, now - 30 * HOUR), (NEW, now - 12 * MINUTE)):
        await engine.documents.swap(RELEASES, name, None, msgspec.json.encode(Release(name, first)))


async def _settings(app: Stoker, engine: Engine) -> None:
    await engine.control.tune(PAUSED, Tuning(paused=True, reason="bad file from partner", by="maria"))
    await _enqueue(app, "webhooks.sync", 25)
    cool = Cool(0, 20 * MINUTE)
    throttled = await _claimed(engine, COOLING, 1)
    await _end(engine, throttled, Status.RETRYING, "Throttle: 429 Too Many Requests", after=20 * MINUTE, cool=cool)
    await engine.control.tune("stripe", Rate(100, per=60))
    await app.schedule("nightly-ledger", app.draft("ledger.sync"), cron="0 3 * * *", tz="Europe/Paris")
    await app.schedule("hourly-stock", app.draft("stock.sync"), cron="0 * * * *")


async def beat(engine: Engine, *places: tuple[str, str]) -> None:
    """Say that workers live: their ids and releases."""
    known = {kind: f"shop.{kind}" for kind in KINDS}
    running = (await engine.operator.find(Query(statuses=frozenset({Status.RUNNING}), limit=100))).jobs
    for worker, release in places:
        host, _, process = worker.partition(".")
        held = tuple(ids.text(one.id) for one in running if one.worker == worker)
        await engine.control.beat(
            Presence(
                worker=worker,
                host=f"worker-{host}",
                pid=2_200 + 10 * int(host[-1]) + int(process),
                queues=dict.fromkeys(AREAS[:-1], 10),
                kinds=known,
                running=len(held),
                jobs=held,
                version="0.1.0",
                release=release,
                uptime=5 * HOUR,
                memory=180_000_000,
                hour=((40, 1),) * 60,
            )
        )
