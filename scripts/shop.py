"""A lively shop for looking at the dashboard: an hour of history, several queues, trouble in some, schedules, streams.

`python scripts/shop.py FILE` fills a SQLite file. With `--serve PORT` it also works the queues and serves the dashboard
until it is stopped. `scripts/demo --serve` and `scripts/screenshots` use it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from stoker import Exponential, Limit, Rate, Stoker, Unique, Worker, current
from stoker.admin import Admin
from stoker.engines.base import ERRORS, RELEASES, Engine, outbox_of
from stoker.engines.sqlite import SqliteEngine
from stoker.engines.sqlite.file_checks import SIDE_FILES
from stoker.engines.sqlite.side_folder import END
from stoker.model import ids
from stoker.model.audit import By, Deed
from stoker.model.control import Presence, Tuning
from stoker.model.error_records import ErrorRecord, add_failures
from stoker.model.events import Event, EventCount, EventType, Point
from stoker.model.groups import Group, into_group, new_group
from stoker.model.ids import Mint
from stoker.model.job import Claim, Demand, Draft, Note, Settlement, Status
from stoker.model.lifecycle import conclude
from stoker.model.outbox.batch_size import Ending
from stoker.model.outbox.cursor import Consumer, Lease, LeaseRequest
from stoker.model.outbox.delivery import Advance
from stoker.model.outbox.letters import Letter
from stoker.model.outbox.stream import Entry, Message, Stream
from stoker.model.outcome import Suspended
from stoker.model.query import Prioritize, Query, Selection
from stoker.model.releases import Release
from stoker.model.same_error import signature
from stoker.model.stats import COUNTED, merge, of_all, of_kind
from stoker.model.steps import Step, StepState, told
from stoker.model.throttle import Cool
from stoker.model.time import HOUR, MINUTE, SECOND, Instant
from stoker.registry import mint
from stoker.testing.clock import VirtualClock
from stoker.worker.schedules import fire_due

RANDOM = random.Random(7)
QUEUES = {
    "default": (5_200, 0.3, 60),
    "webhooks": (2_600, 0.9, 60),
    "mail": (2_100, 0.5, 40),
    "search": (900, 0.1, 20),
    "billing": (300, 1.6, 20),
    "media": (12, 1.4, 20),
    "imports": (20, 1.1, 10),
    "reports": (2, 1.5, 10),
}
"""Completed per minute, seconds from enqueue to done, slots."""

KINDS = {
    "users.export_archive": "default",
    "cache.warm_product_pages": "default",
    "webhooks.deliver": "webhooks",
    "mail.send_receipt": "mail",
    "mail.send_digest": "mail",
    "search.reindex_product": "search",
    "billing.charge_subscription": "billing",
    "media.transcode_video": "media",
    "imports.parse_supplier_feed": "imports",
    "reports.monthly_revenue": "reports",
    "warehouse.inventory.reconcile_supplier_stock_levels_against_purchase_orders_v2": "default",
}
DIED = {
    "imports": dict(zip(range(23, 8, -1), (3, 9, 22, 36, 33, 29, 17, 12, 8, 5, 4, 3, 2, 3, 1), strict=True)),
    "webhooks": dict.fromkeys(range(5, 60, 5), 4),
    "media": dict.fromkeys(range(4, 59, 5), 2),
}
"""How many jobs of a queue died so many minutes ago: all of them are still dead."""

REFUND = "orders.refund_customer"
"""The durable kind: it looks the order up, asks a person, and pays back in two parts with a night between them."""

LABELS = {
    REFUND: "{amount} {currency} to {user_id}",
    "billing.charge_subscription": "{amount} {currency} of {user_id}",
    "users.export_archive": "archive of {user_id}",
    "media.transcode_video": "upload of {user_id}",
}
"""What some kinds write on their jobs."""

RELEASES_OF = (("2026.11.2", 50 * HOUR), ("2026.11.3", 24 * MINUTE))
"""Releases of the shop, and how long ago workers showed them first."""

CLAIMED_FOR = 3 * HOUR
"""The lease of the workers that are made up: the silent one holds its jobs until a visitor takes them back."""

LIMITED = """stripe.error.RateLimitError: Request rate limit exceeded. Too many requests to /v1/charges for acct_1Kx0.
Traceback (most recent call last):
  File "/srv/shop/venv/lib/python3.12/site-packages/stoker/worker/runner.py", line 88, in Runner._run
    return await handler(*args, **kwargs)
  File "/srv/shop/billing/tasks.py", line 41, in charge_subscription
    charge = await gateway.charge(subscription, key=current().id)
  File "/srv/shop/billing/gateway.py", line 117, in Gateway.charge
    return await self._client.charges.create_async(**body)
  File "/srv/shop/venv/lib/python3.12/site-packages/stripe/_charge.py", line 2094, in Charge.create_async
    return await cls._static_request_async('post', cls.class_url(), params)
Caused by httpx.HTTPStatusError: Client error '429 Too Many Requests' for url 'https://api.stripe.com/v1/charges'"""
SKU = """KeyError: 'sku'
Traceback (most recent call last):
  File "/srv/shop/venv/lib/python3.12/site-packages/stoker/worker/runner.py", line 88, in Runner._run
    return await handler(*args, **kwargs)
  File "/srv/shop/imports/feeds.py", line 63, in parse_supplier_feed
    products[row["sku"]] = row"""
TIMED_OUT = "httpx.ConnectTimeout: timed out after 10 s connecting to hooks.northwind.example"
KILLED = "process died under the job for the third time: killed by signal 9 (out of memory)"
TENANTS = ("acme", "northwind", "globex", "initech")


async def fill(path: Path) -> None:
    """Make the store."""
    end = SqliteEngine(path).for_loop()
    await end.open()
    now = await end.now()
    await end.close()
    clock = VirtualClock(now - 12 * MINUTE)
    engine = SqliteEngine(path, clock=clock)
    app = _app(engine, Mint(clock.now, RANDOM.randbytes))
    async with app:
        await _history(engine, clock, now)
        await _streams(engine, clock, now)
        clock.set(now - 12 * MINUTE)
        await _jobs(app, engine, clock, now)
        died = await _errors(engine, now)
        await _settings(engine, clock, now)
        clock.set(now)
        await _refunds(app, engine, clock, now)
        await _schedules(app, engine, clock, now)
        await _presences(engine)
    _totals(path, died)


def _totals(path: Path, died: Counter[str]) -> None:
    """Let the kinds count what their points and errors of the past tell, as if jobs had come and gone."""
    link = sqlite3.connect(path)
    with link:
        for what, metric in ((8, "enqueued"), (9, "completed")):
            link.execute(
                "INSERT INTO stoker_counts (qid, kind, what, n) "
                "SELECT c.qid, c.kind, ?1, sum(p.count) FROM stoker_counts AS c "
                "JOIN stoker_points AS p ON p.queue = c.kind AND p.metric = ?2 WHERE c.what = 8 GROUP BY c.qid, c.kind "
                "ON CONFLICT (qid, kind, what) DO UPDATE SET n = n + excluded.n",
                (what, of_kind(metric)),
            )
        for kind, n in died.items():
            link.execute(
                "INSERT INTO stoker_counts (qid, kind, what, n) "
                "SELECT qid, kind, 11, ?2 FROM stoker_counts WHERE kind = ?1 AND what = 8 LIMIT 1 "
                "ON CONFLICT (qid, kind, what) DO UPDATE SET n = n + excluded.n",
                (kind, n),
            )
    link.close()


def declared(path: Path) -> Stoker:
    """The shop's app on a store that `fill` made."""
    return _app(f"sqlite:///{path}")


def _app(store: Engine | str, mint: Callable[[], bytes] = mint) -> Stoker:
    app = Stoker(store, timeline=isinstance(store, str), mint=mint)
    for kind, queue in (*KINDS.items(), (REFUND, "refunds")):
        app.declare(kind, queue=queue, label=LABELS.get(kind))
    return app


async def _history(engine: Engine, clock: VirtualClock, now: Instant) -> None:
    """Points of the last two hours."""
    points = []
    last = now // MINUTE * MINUTE
    for queue, (rate, total, _) in QUEUES.items():
        level = float(rate)
        for ago in range(120, 0, -1):
            at = last - ago * MINUTE
            level += RANDOM.uniform(-0.08, 0.08) * rate + (rate - level) * 0.15
            done = max(round(level), 0)
            if queue == "imports" and ago < 9:
                done = 0
            if queue == "billing" and ago < 12:
                done = max(done * (ago - 4) // 10, 0)
            slow = 1 + max(0, 14 - ago) / 3 if queue == "billing" else 1.0
            come = max(done + RANDOM.randrange(-20, 21) * rate // 400, 0)
            come += 300 if queue == "billing" and ago < 14 else 0
            died = DIED.get(queue, {}).get(ago, 0)
            points += [Point(queue, "enqueued", at, come), Point(queue, "completed", at, done)]
            if died:
                points.append(Point(queue, "failed", at, died))
            if done:
                spans = [total * slow * factor * RANDOM.uniform(0.85, 1.15) * SECOND for factor in (1, 2.5, 5)]
                points += [
                    Point(queue, name, at, done, spans[0] * done * part, *_ranks(spans, part))
                    for name, part in (("total", 1.0), ("processing", 0.6))
                ]
    kinds = {queue: [kind for kind, home in KINDS.items() if home == queue] for queue in QUEUES}
    shares = {"processing": "processing", "total": "wait"}
    by_kind = [
        replace(
            one,
            queue=kind,
            metric=of_kind(shares.get(one.metric, one.metric)),
            count=one.count // len(kinds[one.queue]),
            **{name: getattr(one, name) * (n + 1) * 0.4 for name in ("sum", "p50", "p95", "p99", "max")},
        )
        for one in points
        for n, kind in enumerate(kinds[one.queue])
    ]
    points += merge([replace(one, queue="", metric=of_all(one.metric)) for one in points], 0, MINUTE)
    points += by_kind
    points += [Point("", COUNTED, last - ago * MINUTE, 1) for ago in range(120, 0, -1)]
    for start in range(0, len(points), 1_000):
        await engine.timeline.record([], points[start : start + 1_000], now=clock.now())


def _ranks(spans: list[float], part: float) -> tuple[float, float, float, float]:
    p50, p95, p99 = (one * part for one in spans)
    return p50, p95, p99, p99


async def _claimed(engine: Engine, worker: str, queue: str, n: int) -> list[Claim]:
    await engine.jobs.renew(worker, [], first=True, lease=CLAIMED_FOR)
    return await engine.jobs.claim(Demand(worker, ((queue, n),), n))


async def _enqueue(app: Stoker, kind: str, n: int = 1, group: Group | None = None, **options: Any) -> list[bytes]:
    drafts = [app.draft(kind, tenant=RANDOM.choice(TENANTS), payload=_payload(), **options) for _ in range(n)]
    if group is None:
        await app.enqueue_many(drafts)
    else:
        await app.insert_drafts(into_group(group.id, drafts), None, group)
    return [draft.job_id for draft in drafts]


def _payload() -> dict[str, Any]:
    return {
        "user_id": f"user_{RANDOM.randrange(9_999)}",
        "request_id": f"req-{RANDOM.randrange(16**8):08x}",
        "amount": "49.00",
        "currency": "EUR",
        "card_token": "tok_1Kx0hidden",
    }


async def _attempt(engine: Engine, clock: VirtualClock, job: bytes, **given: Any) -> None:
    """One more throttled attempt of a job."""
    ran = [one for one in await _claimed(engine, "old", "billing", 1) if one.id == job]
    lines = ("charging subscription 48213, 49.00 EUR", "gateway answered 429, Retry-After 60")
    await engine.jobs.note([Note(one.id, one.worker, one.token, None, None, lines) for one in ran])
    await _end(engine, ran, Status.RETRYING, LIMITED, took=10, clock=clock, throttled=True, **given)


async def _end(
    engine: Engine,
    claims: list[Claim],
    status: Status,
    error: str | None = None,
    *,
    took: float = 0,
    clock: VirtualClock | None = None,
    **given: Any,
) -> None:
    if clock is not None:
        clock.advance(took)
    await engine.jobs.settle(
        [Settlement(one.id, one.worker, one.token, status, error=error, **given) for one in claims]
    )
    at = await engine.now()
    ended = {Status.DONE: EventType.COMPLETED, Status.DEAD: EventType.FAILED, Status.RETRYING: EventType.RETRIED}
    events = [
        Event(
            *(at, ended[status], one.id, one.queue, one.kind, one.attempt, max(at - one.claimed_at, 1)),
            error=signature(error),
        )
        for one in claims
    ]
    starts = [Event(one.claimed_at, EventType.STARTED, one.id, one.queue, one.kind, one.attempt) for one in claims]
    await engine.timeline.record([*starts, *events], now=at)


async def _jobs(app: Stoker, engine: Engine, clock: VirtualClock, now: Instant) -> None:
    """Jobs in every state, as they came to be."""
    for part in range(11):
        feeds = None if part % 5 else new_group(mint(), sealed=True)
        await _enqueue(app, "imports.parse_supplier_feed", 17, feeds, attempts=1)
        await _end(engine, await _claimed(engine, "old", "imports", 17), Status.DEAD, SKU, took=0.3, clock=clock)
        await _enqueue(app, "webhooks.deliver", 9)
        ran = await _claimed(engine, "old", "webhooks", 9)
        await _end(engine, ran[:4], Status.DEAD, TIMED_OUT, took=2, clock=clock)
        await _end(engine, ran[4:], Status.RETRYING, TIMED_OUT, after=40 * MINUTE)
        await _enqueue(app, "media.transcode_video", 3)
        ran = await _claimed(engine, "old", "media", 3)
        await _end(engine, ran[:2], Status.DEAD, KILLED, took=2 + part / 3, clock=clock, crash=True)
        await _end(engine, ran[2:], Status.DONE, took=1, clock=clock)
    clock.set(now - 10 * MINUTE - 35 * SECOND)
    then, otherwise = (Draft(mint(), kind, queue="mail") for kind in ("mail.send_digest", "mail.send_receipt"))
    archive = new_group(mint(), then=then, on_failure=otherwise)
    for kind, queue, n, took in (
        ("search.reindex_product", "search", 60, 0.2),
        ("mail.send_receipt", "mail", 120, 0.4),
        ("cache.warm_product_pages", "default", 160, 0.3),
        ("billing.charge_subscription", "billing", 40, 0.9),
        ("users.export_archive", "default", 30, 1.1),
    ):
        await _enqueue(app, kind, n, archive if kind == "users.export_archive" else None)
        ran = await _claimed(engine, "old", queue, n)
        for start in range(0, n, 10):
            await _end(engine, ran[start : start + 10], Status.DONE, took=took * RANDOM.uniform(0.6, 1.6), clock=clock)
    clock.set(now - 9 * MINUTE - 30 * SECOND)
    [film] = await _enqueue(app, "media.transcode_video")
    [claim] = await _claimed(engine, "fra-2.1", "media", 1)
    lines = ("source 1920×1080, 24 min 10 s", "240p done", "480p done", "720p 12 %")
    await engine.jobs.note([Note(claim.id, claim.worker, claim.token, 0.64, None, lines)])
    await engine.timeline.record(
        [Event(clock.now(), EventType.STARTED, film, "media", "media.transcode_video", 1)], now=clock.now()
    )
    monthly = Limit(2, "@tenant", name="customer")
    for tenant, ago, progress in (
        ("acme", 468, 0.77),
        ("globex", 371, 0.48),
        ("acme", 214, 0.31),
        ("northwind", 97, 0.12),
    ):
        clock.set(now - ago * SECOND)
        await app.enqueue(app.draft("reports.monthly_revenue", tenant=tenant, payload=_payload(), limit=monthly))
        for claim in await _claimed(engine, "fra-1.2", "reports", 1):
            await engine.jobs.note([Note(claim.id, claim.worker, claim.token, progress)])
    clock.set(now - 8 * MINUTE - 4 * SECOND)
    given: dict[str, Any] = {"unique": Unique("sub:48213"), "timeout": 30, "priority": -1}
    backoff = Exponential(60, max=3600)
    [special] = await _enqueue(app, "billing.charge_subscription", backoff=backoff, **given)
    clock.advance(0.4)
    await _attempt(engine, clock, special, after=MINUTE)
    await _enqueue(app, "billing.charge_subscription", 260)
    ran = await _claimed(engine, "old", "billing", 120)
    await _end(engine, ran, Status.RETRYING, LIMITED, took=10, clock=clock, after=20 * MINUTE)
    clock.set(now - 6 * MINUTE - 40 * SECOND)
    await _attempt(engine, clock, special, after=2 * MINUTE)
    clock.set(now - 4 * MINUTE - 20 * SECOND)
    await _attempt(engine, clock, special, after=8 * MINUTE, cool=Cool(0, 7 * MINUTE))
    await _enqueue(app, "billing.charge_subscription", 1_800)
    clock.set(now - 2 * MINUTE)
    await _enqueue(app, "imports.parse_supplier_feed", 31)
    clock.set(now - 21 * SECOND)
    for _ in range(2):
        await app.enqueue(app.draft("reports.monthly_revenue", tenant="acme", payload=_payload(), limit=monthly))
    for kind, queue, n, worker in (
        ("cache.warm_product_pages", "default", 24, "fra-1.0"),
        ("users.export_archive", "default", 11, "fra-3.1"),
        ("webhooks.deliver", "webhooks", 30, "fra-2.0"),
        ("webhooks.deliver", "webhooks", 6, "fra-3.0"),
        ("mail.send_receipt", "mail", 31, "fra-1.1"),
        ("search.reindex_product", "search", 13, "fra-3.2"),
    ):
        clock.set(now - RANDOM.randrange(1, 40) * SECOND // 10)
        await _enqueue(app, kind, n, archive if kind == "users.export_archive" else None)
        await _claimed(engine, worker, queue, n)
    clock.set(now - SECOND)
    long = "warehouse.inventory.reconcile_supplier_stock_levels_against_purchase_orders_v2"
    await _enqueue(app, long, 3)
    await _enqueue(app, "webhooks.deliver", 122)
    await _enqueue(app, "mail.send_receipt", 9)
    await _enqueue(app, "mail.send_digest", 40, delay=16 * 3600)
    await _enqueue(app, "users.export_archive", 12, archive, delay=1200)
    await engine.groups.seal(archive.id)


async def _refunds(app: Stoker, engine: Engine, clock: VirtualClock, now: Instant) -> None:
    """Durable jobs: some ask a person, one of them called a job, others sleep until the morning."""
    looked_up = Step("look_up", value=b'{"order":48213,"amount":"49.00"}')
    for n, minutes in enumerate((140, 95, 31, 12, 4, 2)):
        clock.set(now - minutes * MINUTE)
        await _enqueue(app, REFUND, queue="refunds")
        [claim] = await _claimed(engine, "fra-1.0", "refunds", 1)
        ask = told(ask=f"May we pay {20 + 9 * n}.00 EUR back?", schema={"type": "boolean"})
        failed = Step("tell_bank", StepState.FAILED, told(kind="ConnectionError", error="the bank hung up"))
        rows = {
            0: (
                looked_up,
                Step("approval", value=b"true"),
                Step("until-morning", StepState.WAITING, None, now + 9 * HOUR),
            ),
            1: (looked_up, failed, Step("approval", StepState.WAITING, ask, now + 20 * HOUR)),
        }.get(n, (looked_up, Step("approval", StepState.WAITING, ask, now + 22 * HOUR)))
        ends = rows[-1].until
        assert ends is not None
        await engine.jobs.settle([conclude(claim, Suspended(rows, ends - clock.now()))])
    clock.set(now)


async def _errors(engine: Engine, now: Instant) -> Counter[str]:
    """What is known of the errors, as if workers had rolled them up for a week; returns who died before, by kind."""
    known: dict[str, ErrorRecord] = {}
    died = Counter[str]()
    for error, places, usual, hours in (
        (SKU, {"imports.parse_supplier_feed": "imports"}, 187, range(1)),
        (TIMED_OUT, {"webhooks.deliver": "webhooks"}, 44, range(1)),
        (TIMED_OUT, {"webhooks.deliver": "webhooks", "mail.send_digest": "mail"}, 9, range(3, 160, 3)),
        (KILLED, {"media.transcode_video": "media"}, 22, range(1)),
        (KILLED, {"media.transcode_video": "media"}, 2, range(5, 60, 5)),
        (LIMITED, {"billing.charge_subscription": "billing"}, 30, range(1, 168)),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", KINDS, 3, range(30, 90, 7)),
    ):
        for hour in sorted(hours, reverse=True):
            minute = (now - hour * HOUR) // MINUTE * MINUTE - 2 * MINUTE
            counts = [
                EventCount(queue, EventType.FAILED, _died(usual, hour), kind, signature(error), mint())
                for kind, queue in places.items()
            ]
            died.update({one.kind: one.n for one in counts if hour})
            known |= {name: one for name, one in add_failures(known, minute, counts, minute + MINUTE).items() if one}
    for one in known.values():
        await engine.documents.swap(ERRORS, one.id, None, msgspec.json.encode(one))
    for name, ago in RELEASES_OF:
        await engine.documents.swap(RELEASES, name, None, msgspec.json.encode(Release(name, now - ago)))
    return died


def _died(usual: int, hours_ago: int) -> int:
    return RANDOM.randint(1, 2 * usual) if hours_ago else usual


async def _settings(engine: Engine, clock: VirtualClock, now: Instant) -> None:
    clock.set(now - 26 * MINUTE)
    await engine.control.tune("webhooks", Tuning(workers=40))
    clock.set(now - 25 * MINUTE)
    await engine.control.tune("webhooks", Tuning(workers=60), by=By("jonas", "command line"))
    clock.set(now - 9 * MINUTE)
    maria = By("maria", "page", "bad file from partner", "5b0c9e12")
    await engine.control.tune("imports", Tuning(paused=True, reason=maria.reason, by=maria.who), by=maria)
    [dead] = (await engine.operator.find(Query(statuses=frozenset({Status.DEAD}), limit=1))).jobs
    await engine.audit.write(By("maria", "page"), Deed(action="jobs.reveal", target=f"job {ids.text(dead.id)}"))
    clock.set(now - 4 * MINUTE)
    later = Query(kinds=frozenset({"users.export_archive"}), statuses=frozenset({Status.PENDING}), due="later", limit=1)
    [late] = (await engine.operator.find(later)).jobs
    chosen = Selection((late.id,), (late.status,))
    await engine.operator.alter(chosen, Prioritize(-10), by=By("deploy-bot", "token", None, "77af01cd"))
    await engine.control.tune("stripe", Rate(100, per=60))
    await engine.control.tune("sendgrid", Rate(50, per=1))
    await engine.control.tune("openai", Rate(1, per=1, burst=60))
    await engine.control.drain("stripe")


async def _schedules(app: Stoker, engine: Engine, clock: VirtualClock, now: Instant) -> None:
    """Schedules that have fired, but for one that is paused."""
    clock.set(now - 65 * MINUTE)
    daily = "0 9 * * mon-fri"
    await app.schedule("search.refresh_facets", app.draft("search.reindex_product"), cron="*/2 * * * *")
    await app.schedule("supplier-feeds", app.draft("imports.parse_supplier_feed"), cron="0 6-18 * * mon-fri")
    await app.schedule("daily-digest", app.draft("mail.send_digest"), cron=daily, tz="Europe/Paris")
    await app.schedule("monthly-revenue", app.draft("reports.monthly_revenue"), cron="0 3 1 * *")
    await app.schedule("session-sweep", app.draft("cache.warm_product_pages"), every=6 * 3600)
    await app.schedule("crm-sync", app.draft("users.export_archive"), cron="*/15 * * * *")
    await app.schedule_handle("crm-sync").pause()
    await fire_due(app, engine, await engine.schedules.read())
    for ago in (20 * MINUTE, 2 * MINUTE):
        clock.set(now - ago)
        await fire_due(app, engine, await engine.schedules.read())
        await engine.jobs.renew("old", [], first=True, lease=HOUR)
        for queue in ("search", "mail", "default"):
            await _end(engine, await engine.jobs.claim(Demand("old", ((queue, 1),), 1)), Status.DONE)
    clock.set(now)


async def _streams(engine: Engine, clock: VirtualClock, now: Instant) -> None:
    """Two streams: one consumer keeps up, one is behind and has given up on three messages."""
    outbox = outbox_of(engine)
    orders, invoices = Stream("orders", 16), Stream("invoices", 4)
    clock.set(now - 2 * HOUR)
    await outbox.register(orders, [Consumer("analytics")])
    await outbox.append(orders, [_entry(n, 16, "shop.OrderPlaced.v3") for n in range(1_900)])
    await outbox.register(orders, [Consumer("warehouse", "end")])
    await engine.jobs.renew("fra-2.2", [], first=True, lease=3 * HOUR)
    reasons = ("Reject: schema v3 needs field 'vat_id'", "ValueError: Invalid isoformat string: '2026-13-01'")
    for turn in range(16):
        lease = await outbox.lease(LeaseRequest("orders", "analytics", "fra-2.2", 1_000))
        assert isinstance(lease, Lease)
        clock.set(now - (40 - 2 * turn) * MINUTE)
        bad = lease.messages[:1] if turn in {2, 7, 10} else ()
        letters = tuple(_letter(lease, one, reasons[turn % 2], clock.now()) for one in bad)
        await outbox.advance(_delivered(lease, letters))
    clock.set(now - 34 * SECOND)
    await outbox.append(orders, [_entry(n, 16, "shop.OrderPlaced.v3") for n in range(412)])
    await outbox.register(invoices, [Consumer("webhook-relay", "end")])
    clock.set(now)
    for _ in range(16):
        lease = await outbox.lease(LeaseRequest("orders", "warehouse", "fra-2.2", 1_000))
        assert isinstance(lease, Lease)
        await outbox.advance(_delivered(lease))
    await outbox.append(invoices, [_entry(n, 4, "shop.InvoiceIssued.v1") for n in range(94)])
    for _ in range(4):
        lease = await outbox.lease(LeaseRequest("invoices", "webhook-relay", "fra-2.2", 1_000))
        assert isinstance(lease, Lease)
        await outbox.advance(_delivered(lease))


def _entry(n: int, partitions: int, type_: str) -> Entry:
    key = f"customer-{RANDOM.randrange(600)}"
    return Entry(RANDOM.randbytes(16), key, n % partitions, b'{"order": 1}', type_)


def _delivered(lease: Lease, letters: tuple[Letter, ...] = ()) -> Advance:
    cursor, last = lease.cursor, lease.messages[-1].number
    return Advance(
        cursor.stream,
        cursor.consumer,
        cursor.partition,
        cursor.position,
        cursor.holder,
        cursor.token,
        Ending.DELIVERED,
        last,
        letters=letters,
    )


def _letter(lease: Lease, message: Message, reason: str, at: Instant) -> Letter:
    cursor = lease.cursor
    return Letter(
        message.id,
        cursor.stream,
        cursor.consumer,
        cursor.partition,
        message.number,
        message.key,
        message.payload or b"",
        message.type,
        {},
        False,
        message.created,
        reason,
        20 if reason.startswith("Value") else 1,
        at,
    )


async def _presences(engine: Engine) -> None:
    hosts = {
        "fra-1": ({"default": 30}, {"mail": 20, "default": 10}, {"reports": 10, "billing": 10}),
        "fra-2": ({"webhooks": 30}, {"media": 20}, {"mail": 20, "refunds": 5}),
        "fra-3": ({"webhooks": 20}, {"default": 20}, {"search": 20, "imports": 10}),
    }
    running = {"fra-1.0": 24, "fra-1.1": 31, "fra-1.2": 1, "fra-2.0": 30, "fra-2.1": 1, "fra-3.0": 6, "fra-3.1": 11}
    known = {kind: f"shop.{kind}" for kind in (*KINDS, REFUND)}
    for host, processes in hosts.items():
        for index, queues in enumerate(processes):
            worker = f"{host}.{index}"
            await engine.control.beat(
                Presence(
                    worker=worker,
                    host=f"worker-{host}",
                    pid=2201 + 3 * index + 20 * int(host[-1]),
                    queues=queues,
                    kinds=known,
                    running=running.get(worker, 0),
                    uptime=RELEASES_OF[-1][1],
                    memory=RANDOM.randrange(140, 420) << 20,
                    hour=tuple((RANDOM.randrange(180, 260), max(RANDOM.randrange(-9, 3), 0)) for _ in range(24)),
                    version="0.1.0",
                    release=RELEASES_OF[-1][0],
                    lease=CLAIMED_FOR,
                )
            )


FLOWING = {
    "cache.warm_product_pages": ("default", 87, "fra-1.0"),
    "webhooks.deliver": ("webhooks", 43, "fra-2.0"),
    "mail.send_receipt": ("mail", 35, "fra-1.1"),
    "search.reindex_product": ("search", 15, "fra-3.2"),
}
"""Jobs per second of the busy kinds, in which queue, and which worker runs them."""


async def flow(app: Stoker, engine: Engine) -> None:
    """A second of the busy kinds: as many jobs come and are done as the history tells."""
    for kind, (queue, n, worker) in FLOWING.items():
        await _enqueue(app, kind, n)
        claims = await engine.jobs.claim(Demand(worker, ((queue, n),), n))
        await engine.jobs.settle([Settlement(one.id, one.worker, one.token, Status.DONE) for one in claims])


class Work(NamedTuple):
    """What a kind of the served shop does: seconds of a run, the share that fails, and jobs that come in a second."""

    seconds: float
    failing: float = 0.0
    per_second: float = 0.0
    error: str = "RuntimeError: it failed in the demo, as some do"


WORK = {
    "users.export_archive": Work(1.0, 0.0, 0.5),
    "cache.warm_product_pages": Work(0.3, 0.01, 4),
    "webhooks.deliver": Work(0.4, 0.05, 3, TIMED_OUT),
    "mail.send_receipt": Work(0.2, 0.01, 3),
    "mail.send_digest": Work(0.2, 0.0, 0.2),
    "search.reindex_product": Work(0.1, 0.0, 3),
    "billing.charge_subscription": Work(0.5, 0.02, 0.5, LIMITED.partition("\n")[0]),
    "media.transcode_video": Work(40, 0.1, 0.05, KILLED),
    "imports.parse_supplier_feed": Work(0.6, 0.1, 0.3, "KeyError: 'sku'"),
    "reports.monthly_revenue": Work(90, 0.0, 0.01),
    "warehouse.inventory.reconcile_supplier_stock_levels_against_purchase_orders_v2": Work(2, 0.0, 0.1),
}
STUCK = "fra-3.0"
"""The worker that stays silent with its jobs, until a visitor takes them back."""


@asynccontextmanager
async def working(path: Path, pace: float = 1.0) -> AsyncIterator[Stoker]:
    """The shop at work: every queue has a worker, new jobs come, and what a visitor does has its effect.

    The workers that `fill` made up hand their jobs to real ones, but for one that stays silent. `pace` shortens runs.
    """
    jobs = Stoker(f"sqlite:///{path}")
    for kind, queue in KINDS.items():
        _task(jobs, kind, queue, WORK[kind], pace)
    _durable(jobs, pace)
    async with jobs:
        await _handed_over(jobs)
        slots = {queue: max(slots // 4, 4) for queue, (_, _, slots) in QUEUES.items()} | {"refunds": 2}
        halves = [dict(list(slots.items())[part::2]) for part in range(2)]
        tasks: list[asyncio.Task[None]] = []
        try:
            async with Worker(jobs, queues=halves[0]), Worker(jobs, queues=halves[1]):
                tasks.append(asyncio.create_task(_feed(jobs)))
                yield jobs
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _task(jobs: Stoker, kind: str, queue: str, work: Work, pace: float) -> None:
    async def run(**_: Any) -> None:
        parts = max(round(work.seconds / 2), 1)
        seconds = pace * RANDOM.uniform(0.5, 1.5) * work.seconds
        for part in range(parts):
            await asyncio.sleep(seconds / parts)
            if parts > 1:
                current().progress((part + 1) / parts)
        if RANDOM.random() < work.failing:
            raise Failed(work.error)

    run.__name__ = kind.rpartition(".")[2]
    run.__qualname__ = kind  # as the workers that are made up say
    jobs.task(name=kind, queue=queue, attempts=3, label=LABELS.get(kind))(run)


def _durable(jobs: Stoker, pace: float) -> None:
    @jobs.task(name=REFUND, queue="refunds", label=LABELS[REFUND])
    async def refund_customer(amount: str, **_: Any) -> str:
        run = current()
        await run.step("look_up", lambda: {"order": 48_213, "amount": amount})
        if not await run.wait("approval", bool, ask=f"May we pay {amount} EUR back?", timeout=86_400):
            return "refused"
        await run.step("pay_first_part", lambda: "paid")
        await run.sleep(60 * pace)
        await run.step("pay_the_rest", lambda: "paid")
        return "paid back"


class Failed(Exception):
    """What goes wrong in the demo."""


async def _handed_over(jobs: Stoker) -> None:
    """Stop the workers that only seemed to be there, and let real ones have their jobs."""
    engine, admin = await jobs.engine(), Admin(jobs)
    for one in await engine.control.workers():
        if one.worker != STUCK:
            await admin.workers.take_back(one.worker, reason="a real worker takes over")
            await engine.control.beat(replace(one, state="stopped", running=0, seen_at=0))


async def _feed(jobs: Stoker) -> None:
    """Enqueue as many jobs of each kind as come in a second, again and again."""
    while True:
        for kind, work in WORK.items():
            n = int(work.per_second) + (RANDOM.random() < work.per_second % 1)
            if n:
                await _enqueue(jobs, kind, n)
        await asyncio.sleep(1)


async def alive(path: Path, port: int) -> None:
    """Work the shop's queues and serve its dashboard, until it is stopped."""
    import uvicorn

    from stoker.web import Key, dashboard
    from stoker.web.server import config

    key = Key()
    print(f"the demo shop is at http://127.0.0.1:{port}/?key={key.secret}", flush=True)
    print(f"its log is in {log_of(path)}; stop it with Ctrl-C", flush=True)
    async with working(path) as jobs:
        board = dashboard(jobs, auth=key, env="demo", color="amber", compress=True)
        await uvicorn.Server(config(board, host="127.0.0.1", port=port)).serve()


def remove(path: Path) -> None:
    """Remove a store with all that lies beside it; a process that was killed leaves the folder too."""
    for end in ("", *SIDE_FILES):
        path.with_name(path.name + end).unlink(missing_ok=True)
    if (folder := path.with_name(path.name + END)).is_dir():
        shutil.rmtree(folder)


def log_of(path: Path) -> Path:
    """Where a served shop logs, a megabyte at most and as much from before: some of its jobs fail on purpose."""
    return path.with_suffix(".log")


def main(arguments: list[str]) -> None:
    path = Path(arguments[0])
    remove(path)
    if "--serve" in arguments:
        kept = RotatingFileHandler(log_of(path), maxBytes=1_000_000, backupCount=1, encoding="utf-8")
        logging.basicConfig(handlers=[kept], format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(fill(path))
    if "--serve" in arguments:
        with suppress(KeyboardInterrupt):
            asyncio.run(alive(path, int(arguments[arguments.index("--serve") + 1])))


if __name__ == "__main__":
    main(sys.argv[1:])
