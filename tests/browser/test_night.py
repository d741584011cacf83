"""A bad night on the dashboard: each of thirteen questions is answered, or done, with at most three clicks.

A question begins on the overview; what is done to one job begins on the page of that job, which a link in a ticket or
an alert opens. The ordinary run walks on SQLite, the campaign on Postgres and Redis, too.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Locator, Page, expect

from stoker.app import Stoker
from stoker.engines.base import Feature
from stoker.web import Limits, Open, dashboard
from tests.browser.conftest import apart, first
from tests.harness import night
from tests.web.serving import Served

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres", "redis")]
MOST = 3


class Walk:
    """A visitor who counts clicks."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url, self.clicks = page, url, 0

    def begin(self, path: str = "/") -> Page:
        """The next question."""
        self.page.goto(self.url + path)
        self.clicks = 0
        return self.page

    def click(self, what: Locator) -> None:
        self.clicks += 1
        assert self.clicks <= MOST
        what.click()

    def nav(self, name: str) -> None:
        self.click(self.page.locator(".nav a", has_text=name))

    def link(self, name: str) -> None:
        self.click(self.page.locator("main").get_by_role("link", name=name, exact=True).first)

    def button(self, name: str, within: Locator | None = None) -> None:
        self.click((within or self.page.locator("main")).get_by_role("button", name=name, exact=True).first)


class Site(NamedTuple):
    """A dashboard of the night."""

    url: str
    streams: bool


@pytest.fixture(scope="module", params=ENGINES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, campaign: bool) -> Iterator[Site]:
    if request.param != "sqlite" and not campaign:
        pytest.skip("the walk on this engine: with --campaign")
    folder = tmp_path_factory.mktemp("night")
    with night.stored(request.param, request, folder, lambda made: apart(lambda: asyncio.run(made))) as url:
        app = Stoker(url)
        for kind in night.KINDS:
            app.declare(kind, queue=kind.partition(".")[0])
        served = Served(dashboard(app, auth=Open("ann"), limits=Limits(seconds=30)))
        with _alive(url):
            yield Site(served.url, Feature.OUTBOX in app.root().features)
        served.close()
        apart(lambda: app.run(app.close()))


@contextmanager
def _alive(url: str) -> Iterator[None]:
    """Keep the workers in sight, but for the one that is frozen."""
    stop = threading.Event()

    async def stay() -> None:
        async with Stoker(url) as app:
            while not stop.is_set():
                await night.beat(await app.engine(), *night.LIVING)
                await asyncio.to_thread(stop.wait, 2)

    keeper = threading.Thread(target=lambda: asyncio.run(stay()), daemon=True)
    keeper.start()
    yield
    stop.set()
    keeper.join(20)


@pytest.mark.spec("NIGHT-01")
def test_the_night_by_clicks(site: Site, look: Any) -> None:
    seen = look()
    walk = Walk(seen.page, site.url)

    # Why did they die?
    page = walk.begin()
    expect(page.get_by_role("heading", level=1)).to_contain_text("need you")
    walk.link("KeyError: 'vat_id'")
    walk.link("billing.charge_and_settle")
    expect(page.locator(".trace").first).to_contain_text("/srv/shop/billing.py")
    expect(page.locator("main")).to_contain_text("639 others died of the same error")

    # Which deploy? The charts mark it, and the list of errors tells which are new since.
    page = walk.begin()
    expect(page.locator("main")).to_contain_text(f"Deployed: {night.NEW}")
    walk.click(page.get_by_role("link", name=re.compile(r"^All \d+ errors")))
    expect(page.locator("li", has_text="vat_id").first).to_contain_text(f"new since {night.NEW}")

    # Requeue one error, and watch it.
    page = walk.begin()
    walk.click(page.locator(".troubles li", has_text="vat_id").get_by_role("link", name="Requeue…"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("640")
    page.locator("#typed").fill("640")
    walk.button("Requeue 640 jobs")
    expect(page.locator("main")).to_contain_text("640 of 640")
    expect(page.locator("main")).to_contain_text("Requeue is done")
    page = walk.begin()
    walk.nav("Jobs")
    walk.link("Operations")
    expect(page.locator("tbody tr").first).to_contain_text("Requeue")

    # Pause a queue.
    page = walk.begin()
    walk.nav("Queues")
    walk.button("Pause", page.locator("tr[data-row=mail]"))
    expect(page.locator(".toast")).to_contain_text("Paused mail")

    # Which kind is slow?
    page = walk.begin()
    walk.nav("Kinds")
    walk.link("p95")
    expect(page.locator("tbody tr").first).to_contain_text(night.SLOW)

    # Which worker is stuck, and what became of its jobs?
    page = walk.begin()
    walk.nav("Workers")
    walk.click(page.locator(f"li[data-row='{night.FROZEN}'] a.name"))
    expect(page.locator("main")).to_contain_text("6 jobs")
    expect(page.locator("main")).to_contain_text("last seen")

    # Why does it not run?
    page = walk.begin("/jobs?q=is:ready+queue:imports")
    walk.link("imports.sync")
    expect(page.locator("main")).to_contain_text("paused by maria")
    expect(page.locator(".gates .shut")).to_have_count(1)

    # Edit and retry.
    dead = first(site.url, "is:dead+kind:taxes.sync")
    page = walk.begin(f"/jobs/{dead}")
    walk.button("Reveal", page.locator("#payload"))
    walk.click(page.locator("#payload").get_by_role("link", name="Edit", exact=True))
    box = page.get_by_label("Payload")
    assert "tok_1Kx0" in box.input_value(), "ann is an admin"
    box.fill(box.input_value().replace("acme", "globex"))
    walk.button("Save and requeue")
    expect(page.locator(".toast")).to_contain_text("Requeued taxes.sync")

    # Cancel one that runs for long.
    page = walk.begin()
    walk.click(page.locator("table", has_text="Running for").get_by_role("link", name="video.sync"))
    walk.button("Cancel")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("worker-fra-1 / 2211")
    dialog.get_by_label("Why, if you like").fill("it hangs")
    walk.button("Ask it to stop", dialog)
    expect(page.locator(".toast")).to_contain_text("is asked to stop")

    # Change a schedule.
    page = walk.begin()
    walk.nav("Schedules")
    walk.link("nightly-ledger")
    page.get_by_label("Expression").fill("30 4 * * *")
    walk.button("Save")
    expect(page.locator("main")).to_contain_text("04:30")

    # Replay letters; Redis has no streams.
    if site.streams:
        page = walk.begin()
        walk.nav("Outbox")
        walk.link("Replay all 3…")
        walk.button("Replay 3 letters")
        expect(page.locator("main")).to_contain_text("3 of 3")

    # The throughput of a day.
    page = walk.begin()
    walk.link("24h")
    expect(page).to_have_url(f"{site.url}/?range=24h")
    expect(page.locator("figure[data-look=throughput]")).to_be_visible()
    assert seen.complaints == []
