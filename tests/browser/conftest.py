"""A demo shop behind a real server, and Debian's Chromium in front of it. Without a browser the tests are skipped."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import threading
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

from stoker import Limit
from stoker.admin import Admin
from stoker.app import Stoker
from stoker.model.control import Presence
from stoker.model.events import Point
from stoker.model.job import Demand, Note, Settlement, Status
from stoker.model.stats import BY_KIND
from stoker.model.throttle import Rate
from stoker.model.time import MINUTE
from stoker.web import Limits, Open, dashboard, hub
from stoker.web.hub import Reading
from tests import services
from tests.harness.absent import absent
from tests.harness.letters import letters
from tests.web.serving import Served

T = TypeVar("T")
PATIENCE = 90_000
"""Milliseconds after which a page that should be quick is given up: the machine may be busy."""
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
TROUBLE = (Path(__file__).parent / "trouble.js").read_text(encoding="utf-8")
ROOT = Path(__file__).resolve().parents[2]


def shop() -> ModuleType:
    """The demo shop of the scripts."""
    spec = importlib.util.spec_from_file_location("shop", ROOT / "scripts" / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    try:
        found = services.chromium_binary()
    except services.Unavailable as why:
        absent(f"no Chromium: {why}")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session", autouse=True)
def quick_beat() -> Iterator[None]:
    """Live pages change eight times as often: what a browser does with news is tested here, not how soon there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "EVERY", hub.EVERY / 8)
        yield


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("shop") / "shop.db"
    module = shop()
    apart(lambda: asyncio.run(module.fill(path)))
    limits = Limits(seconds=30)  # the machine may be busy
    app = module.declared(path)
    board = dashboard(app, auth=Open("ann"), env="production", color="red", limits=limits, late_after=240)
    served = Served(board)
    with _staying(module.declared(path)):
        yield served.url
    served.close()


async def _stay(app: Stoker, stop: threading.Event) -> None:
    """Keep the shop's workers in sight, so that nothing new happens while pages are looked at."""
    async with app:
        engine = await app.engine()
        present = await engine.control.workers()
        while not stop.is_set():
            for one in present:
                await engine.control.beat(msgspec.structs.replace(one, seen_at=0))
            await asyncio.to_thread(stop.wait, 2)


def apart(call: Callable[[], T]) -> T:
    """Call it in another thread: in this one the browser's driver runs a loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).result()


def first(site: str, query: str) -> str:
    """The id of the first job that a filter finds."""
    with urllib.request.urlopen(f"{site}/jobs?q={query}") as answer:
        return str(re.findall(r'name="id" value="([^"]+)"', answer.read().decode())[0])


class Looker:
    """A page that remembers what went wrong on it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", lambda message: self._hear(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._refuse)

    def _refuse(self, dialog: Dialog) -> None:
        self.complaints.append(f"dialog {dialog.message}")
        dialog.dismiss()

    def _hear(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.complaints.append(text)


@pytest.fixture
def look(browser: Browser) -> Iterator[Any]:
    """Opens pages; `look(width=390, dark=True, script=False, zone="Asia/Kolkata")`."""
    contexts = []

    def make(*, width: int = 1440, dark: bool = False, script: bool = True, zone: str | None = None) -> Looker:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=script,
            reduced_motion="reduce",
            timezone_id=zone,
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        return Looker(context.new_page())

    yield make
    for context in contexts:
        context.close()


class Small(NamedTuple):
    """A dashboard of an app of its own, and calls of that app."""

    app: Stoker
    url: str

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a call of the app."""
        return apart(lambda: self.app.run(call))


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Small]:
    app = Stoker(f"sqlite:///{tmp_path_factory.mktemp('small') / 'jobs.db'}", durability="process")
    app.declare("send")
    app.declare("sort")
    served = Served(dashboard(app, auth=Open("ann"), limits=Limits(seconds=30)))
    yield Small(app, served.url)
    served.close()
    apart(lambda: app.run(app.close()))


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A dashboard of a store in which all goes well; one job is dead."""
    url = f"sqlite:///{tmp_path_factory.mktemp('calm') / 'jobs.db'}"
    app = Stoker(url, durability="process")
    app.declare("send")

    async def fill() -> None:
        engine = await app.engine()
        await app.enqueue_many([app.draft("send", queue="mail") for _ in range(3)])
        await engine.jobs.renew("w", [], first=True)
        done, dead = await engine.jobs.claim(Demand("w", (("mail", 2),), 2))
        await engine.jobs.settle([Settlement(done.id, "w", done.token, Status.DONE)])
        await engine.jobs.settle([Settlement(dead.id, "w", dead.token, Status.DEAD, error="KeyError: 'sku'")])
        await app.schedule("nightly", app.draft("send"), cron="0 3 * * *")
        queues, kinds = {"mail": 5}, {"send": "app.send"}
        await engine.control.beat(
            Presence(worker="w", host="fra-1", pid=2201, queues=queues, kinds=kinds, version="0.1.0")
        )

    apart(lambda: app.run(fill()))
    with _served(app, late_after=3_600) as site, _staying(Stoker(url, durability="process")):
        yield site


class Heavy(NamedTuple):
    """A dashboard of a store with the longest names, texts and numbers that are let in, and its pages."""

    url: str
    pages: list[str]


@pytest.fixture(scope="session")
def heavy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heavy]:
    app = Stoker(f"sqlite:///{tmp_path_factory.mktemp('heavy') / 'jobs.db'}", durability="process")
    kind, queue, tenant, stream, consumer = ("k" * 128, "q" * 128, "t" * 128, "o" * 128, "c" * 128)
    app.declare(kind)
    long = "x" * 4_000
    trace = f"ValueError: {long}\nTraceback (most recent call last):\n" + f'  File "/srv/{long}.py", line 1\n' * 15

    async def fill() -> list[str]:
        engine = await app.engine()
        limit = Limit(1, "@tenant", name="l" * 64)
        more: dict[str, Any] = {"tenant": tenant, "limit": limit, "label": "l" * 80}
        drafts = [app.draft(kind, queue=queue, unique=f"{n}{'u' * 100}", **more) for n in range(3)]
        await app.enqueue_many(drafts)
        await engine.jobs.renew("w" * 100, [], first=True)
        [claim] = await engine.jobs.claim(Demand("w" * 100, ((queue, 1),), 1))
        await engine.jobs.settle([Settlement(claim.id, claim.worker, claim.token, Status.DEAD, error=trace)])
        [run] = await engine.jobs.claim(Demand("w" * 100, ((queue, 1),), 1))
        await engine.jobs.note([Note(run.id, run.worker, run.token, 0.4, None, (long,))])
        await app.schedule("s" * 128, app.draft(kind, queue=queue), cron="0 3 * * *")
        await app.queue(queue).pause(reason="r" * 900, by="b" * 100)
        await app.enqueue_many([app.draft(kind, queue="w" * 128)])
        await engine.control.tune("b" * 128, Rate(1_000_000, per=60))
        last = await engine.now() // MINUTE * MINUTE - MINUTE
        times = (1_000_000, 10**15, 10**10, 10**11, 10**12, 10**13)
        await engine.timeline.record([], [Point(kind, metric, last, *times) for metric in BY_KIND], now=last)
        await engine.control.beat(
            Presence(
                worker="w" * 100, host="h" * 200, pid=4_194_304, queues={queue: 60, "w" * 128: 60}, version="0.1.0"
            )
        )
        group = await app.group([app.draft(kind, queue=queue)], then=app.draft(kind, queue=queue))
        await letters(engine, 2, stream=stream, consumer=consumer, type_="y" * 128, keys="k" * 250, parks=True)
        admin = Admin(app, by="b" * 128)
        operation = await admin.operations.start("cancel", f"queue:{queue} kind:{kind} is:retrying")
        one = drafts[2].id
        pages = [f"/groups/{group.id}", f"/operations/{operation.id}", f"/jobs/{one}/edit", f"/jobs/{one}/move"]
        return [*pages, *(f"/jobs/{draft.id}" for draft in drafts)]

    made = apart(lambda: app.run(fill()))
    with _served(app, numbers=123_456_789_012, who="a" * 128, env="e" * 40) as site:
        shown = [
            "/",
            "/jobs",
            "/queues",
            f"/queues/{queue}",
            f"/queues/{'w' * 128}",
            "/kinds",
            f"/kinds/{kind}",
            "/workers",
            "/schedules",
            f"/schedules/{'s' * 128}",
        ]
        more = ["/groups", "/limits", f"/limits?queue={queue}", "/health", "/audit", "/jobs?q=is:dead&group=error"]
        more += ["/outbox", f"/outbox/{stream}/{consumer}", f"/outbox/letters?stream={stream}", "/operations"]
        more += ["/operations/letters/new?do=replay", "/new-schedule", f"/jobs?q=queue:{queue}+kind:{kind}+{'z' * 128}"]
        more += [f"/operations/new?do=requeue&q=is:dead+queue:{queue}+kind:{kind}", "/jobs?q=nothing:here"]
        yield Heavy(site, [*shown, *more, *made])


@contextmanager
def _served(
    app: Stoker, *, late_after: float = 60, numbers: int = 1, who: str = "ann", env: str | None = None
) -> Iterator[str]:
    """Serve an app's dashboard, and close both; every count is shown so many times as large."""
    board = dashboard(app, auth=Open(who), env=env, limits=Limits(seconds=30), late_after=late_after)
    take = board.hub._take

    def enlarged(reading: Reading) -> None:
        counts = [msgspec.structs.replace(one, n=one.n * numbers) for one in reading.census.counts]
        take(reading._replace(census=msgspec.structs.replace(reading.census, counts=counts)))

    if numbers > 1:
        board.hub._take = enlarged  # type: ignore[method-assign]
    served = Served(board)
    yield served.url
    served.close()
    apart(lambda: app.run(app.close()))


@contextmanager
def _staying(app: Stoker) -> Iterator[None]:
    """Keep the workers of a store in sight."""
    stop = threading.Event()
    keeper = threading.Thread(target=lambda: asyncio.run(_stay(app, stop)), daemon=True)
    keeper.start()
    yield
    stop.set()
    keeper.join(20)
