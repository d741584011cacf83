"""`stoker demo`: ten thousand jobs of several kinds on a fresh SQLite file, and what became of them."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from stoker.app import Stoker
from stoker.cli.command import nearest
from stoker.cli.text import say
from stoker.context import current
from stoker.engines.base import Description
from stoker.handle import JobHandle
from stoker.model.errors import StokerError
from stoker.model.events import Transition
from stoker.model.job import FINISHED, LARGEST_BATCH, Draft, Status
from stoker.model.outcome import Snooze
from stoker.model.query import LARGEST_PAGE, Query
from stoker.model.retry import Fixed
from stoker.model.time import SECOND
from stoker.worker import Worker

if TYPE_CHECKING:
    from stoker.task import Task

TOTAL = 10_000
PATIENCE = 55.0
"""Seconds after which the demo gives up."""

Advance = Callable[[str, int], None]


class Demo:
    """The app, its tasks, and counts of what they did."""

    def __init__(self, url: str, total: int) -> None:
        self.jobs = Stoker(url, attempts=4, backoff=Fixed(0.2))
        self.total = total
        self.seen: Counter[Status] = Counter()
        self.snoozed = False
        self.nearly_at: float | None = None
        self.advance: Advance = lambda _stage, _count: None
        self.jobs.listener(self._count)
        self._register()

    def _register(self) -> None:
        jobs = self.jobs

        @jobs.task
        async def resize(image: int, *, width: int = 800) -> str:
            return f"{image}@{width}"

        @jobs.task(queue="mail", retry_on=ConnectionError)
        def send(to: str, *, fails: int = 0) -> None:  # a plain function: runs in a thread
            if current().attempt <= fails:
                raise ConnectionError(f"{to}: the mail server hung up")

        @jobs.task(queue="slow", timeout=10)
        async def report(month: int) -> int:
            for step in range(4):
                await asyncio.sleep(0.05)
                current().progress((step + 1) / 4)
            return month

        @jobs.task(give_up_on=ValueError)
        async def charge(order: int) -> None:
            raise ValueError(f"order {order} has no address: no retry will help")

        @jobs.task
        async def sync_calendar() -> str:
            if not self.snoozed:
                self.snoozed = True
                raise Snooze(1)
            return "in sync"

        self.resize, self.send, self.report, self.charge, self.sync_calendar = (
            resize,
            send,
            report,
            charge,
            sync_calendar,
        )

    def _count(self, change: Transition) -> None:
        if change.before is not None and change.after is not None:
            self.seen[change.after] += 1
            if change.after in FINISHED:
                self.advance("run", 1)
                if self.nearly_at is None and self.finished >= self.total * 0.99:
                    self.nearly_at = time.perf_counter()

    def drafts(self) -> list[Draft]:
        """The jobs: most are quick, some slow, some fail and recover, a few never will."""
        some = self.total // 100
        found: list[Draft] = [self.report.draft(month) for month in range(some // 2)]
        found += [self.charge.draft(order) for order in range(some // 10)]
        found += [self.send.draft(f"user{n}@example.com", fails=int(n % 10 == 0)) for n in range(5 * some)]
        found += [self.send.draft(f"flaky{n}@example.com", fails=2) for n in range(some)]
        found += [self.sync_calendar.draft(), later(self.resize, 2.0).draft(1, width=64)]
        return found + [self.resize.draft(n) for n in range(self.total - 1 - len(found))]

    @property
    def finished(self) -> int:
        """How many jobs have ended, one way or another."""
        return sum(self.seen[status] for status in FINISHED)

    async def run(self) -> tuple[float, float, float]:
        """Enqueue everything, then work until all of it has ended.

        Returns the seconds to enqueue, to run all, and until 99 % had ended; the last ones are delayed.
        """
        begun = time.perf_counter()
        doomed: JobHandle[Any] = await later(self.resize, 3600).enqueue(0)
        drafts = self.drafts()
        for start in range(0, len(drafts), LARGEST_BATCH):
            receipts = await self.jobs.enqueue_many(drafts[start : start + LARGEST_BATCH])
            self.advance("enqueue", len(receipts))
        await doomed.cancel(reason="the picture is no longer needed")
        self.advance("enqueue", 1)
        enqueued = time.perf_counter()
        async with Worker(self.jobs, {"default": 20, "mail": 20, "slow": 20}), asyncio.timeout(PATIENCE):
            while self.finished < self.total:
                await asyncio.sleep(0.02)
        assert self.nearly_at is not None
        return enqueued - begun, time.perf_counter() - enqueued, self.nearly_at - enqueued

    async def waits_and_runs(self) -> tuple[list[float], list[float]]:
        """Seconds from enqueue to finish, and of the last claim to finish, as the store recorded them; both sorted."""
        engine = await self.jobs.engine()
        query = Query(statuses=frozenset({Status.DONE}), limit=LARGEST_PAGE)
        waits, runs = [], []
        while True:
            page = await engine.operator.find(query)
            for job in page.jobs:
                if job.finished_at is not None and job.started_at is not None:
                    waits.append((job.finished_at - job.created_at) / SECOND)
                    runs.append((job.finished_at - job.started_at) / SECOND)
            if page.cursor is None:
                return sorted(waits), sorted(runs)
            query = Query(statuses=query.statuses, limit=LARGEST_PAGE, cursor=page.cursor)


def later(task: Task[..., Any], delay: float) -> Task[..., Any]:
    """The task with a delay."""
    return task.using(delay=delay)


def percentiles(values: list[float]) -> str:
    """p50, p95 and p99 of sorted seconds."""
    if not values:
        return "nothing measured"
    picked = [values[min(len(values) - 1, int(len(values) * share))] for share in (0.50, 0.95, 0.99)]
    return " · ".join(f"{name} {_short(value)}" for name, value in zip(("p50", "p95", "p99"), picked, strict=True))


def _short(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"


@click.command()
@click.option("--url", callback=nearest, help="A store to use instead of a fresh SQLite file; it is not cleaned up.")
@click.option("--keep", is_flag=True, help="Leave the SQLite file where it is, to look at it.")
@click.option("--jobs", "total", type=click.IntRange(200, 1_000_000), default=TOTAL, show_default=True)
def demo(url: str | None, keep: bool, total: int) -> NoReturn:
    """Run jobs of several kinds on a fresh SQLite file: quick, slow, failing, canceled, scheduled and snoozing ones."""
    logging.basicConfig(level=logging.CRITICAL)
    folder = Path(tempfile.mkdtemp(prefix="stoker-demo-")) if url is None else None
    try:
        store = url or f"sqlite:///{folder}/demo.db"
        rows, notes, good = asyncio.run(_demo(Demo(store, total)))
    except (StokerError, TimeoutError) as error:
        raise click.ClickException(str(error) or "the jobs did not end in time") from None
    finally:
        if folder is not None and not keep:
            shutil.rmtree(folder, ignore_errors=True)
    _print(rows, notes)
    sys.exit(0 if good else 1)


async def _demo(demo: Demo) -> tuple[list[tuple[str, str]], tuple[str, ...], bool]:
    async with demo.jobs, _progress(demo):
        enqueueing, working, nearly = await demo.run()
        waits, runs = await demo.waits_and_runs()
        description = await (await demo.jobs.engine()).describe()
    rows = [
        ("jobs", f"{demo.total:,}"),
        ("done", f"{demo.seen[Status.DONE]:,}"),
        ("retried", f"{demo.seen[Status.RETRYING]:,}"),
        ("dead", f"{demo.seen[Status.DEAD]:,}"),
        ("canceled", f"{demo.seen[Status.CANCELED]:,}"),
        ("enqueued", f"{enqueueing:.2f} s ({demo.total / enqueueing:,.0f} jobs/s)"),
        ("worked", f"{working:.2f} s; one job was scheduled 2 s ahead"),
        ("speed", f"{demo.total * 0.99 / nearly:,.0f} jobs/s, until 99 % had ended"),
        ("enqueue to finish", percentiles(waits)),
        ("claim to finish", percentiles(runs)),
        *_store(description, demo.jobs.root().where),
    ]
    some = demo.total // 100
    expected = {Status.DEAD: some // 10, Status.CANCELED: 1, Status.RETRYING: len(range(0, 5 * some, 10)) + 2 * some}
    good = all(demo.seen[status] == count for status, count in expected.items())
    return rows, description.warnings, good and sum(expected.values()) > 0


def _store(description: Description, where: str) -> list[tuple[str, str]]:
    where = where if description.durable else "in this process"
    size = "" if description.size is None else f" ({description.size / (1 << 20):.1f} MiB)"
    return [
        ("store", f"{description.engine} {description.version}: {where}{size}"),
        ("durability", description.durability),
    ]


@asynccontextmanager
async def _progress(demo: Demo) -> AsyncIterator[None]:
    """Bars on a terminal, nothing in a pipe."""
    if not sys.stdout.isatty():
        yield
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bars = Progress(TextColumn("{task.description:>8}"), BarColumn(40), MofNCompleteColumn(), TimeElapsedColumn())
    with bars:
        tasks = {stage: bars.add_task(stage, total=demo.total) for stage in ("enqueue", "run")}
        demo.advance = lambda stage, count: bars.advance(tasks[stage], count)
        yield


def _print(rows: list[tuple[str, str]], notes: tuple[str, ...]) -> None:
    from stoker.cli.text import safe

    if sys.stdout.isatty():
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(show_header=False, title="stoker demo")
        for name, value in rows:
            table.add_row(name, Text(safe(value)))
        Console().print(table)
    else:
        width = max(len(name) for name, _ in rows)
        for name, value in rows:
            say(f"{name:<{width}}  {safe(value)}")
    for note in notes:
        say(f"note: {safe(note)}")
