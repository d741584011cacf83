"""The dashboard in a real browser: nothing shifts, overflows or complains; keys, live parts, and no script."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AxeResults  # type: ignore[import-untyped]
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import expect

from stoker.app import Stoker
from stoker.model.job import Demand, Settlement, Status
from stoker.web import Open, dashboard
from tests.browser.conftest import apart, first
from tests.web.serving import Served

pytestmark = pytest.mark.timeout(300)

PAGES = [
    "/",
    "/jobs",
    "/jobs?q=is:dead",
    "/jobs?q=is:dead&group=error",
    "/jobs?q=is:dead+queue:search",
    "/queues",
    "/queues/billing",
    "/kinds",
    "/workers",
    "/schedules",
    "/schedules/daily-digest",
    "/outbox",
    "/outbox/orders/analytics",
    "/limits",
    "/health",
    "/audit",
    "/operations",
    "/operations/new?do=requeue&q=is:dead+queue:imports",
]
SHIFTS = """window.shifted = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) window.shifted += one.value;
}).observe({ type: "layout-shift", buffered: true });"""
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
# What passed is most of the answer: it stays in the browser.
AUDIT = """axe.run({ resultTypes: ["violations"] })
  .then((found) => ({ ...found, passes: [], incomplete: [], inapplicable: [] }))"""


def all_pages(site: str) -> list[str]:
    jobs = [first(site, query) for query in ("is:dead+queue:imports", "key:sub:48213", "is:running+kind:media*")]
    return [*PAGES, *(f"/jobs/{id_}" for id_ in jobs)]


@pytest.mark.spec("BROWSER-01")
@pytest.mark.parametrize("width", [1440, 390])
def test_pages_are_accessible_calm_and_quiet(site: str, look: Any, width: int) -> None:
    seen = look(width=width)
    seen.page.add_init_script(SHIFTS)
    for path in all_pages(site):
        seen.page.emulate_media(color_scheme="light")
        seen.page.goto(site + path)
        seen.page.evaluate("document.fonts.ready")
        seen.page.evaluate(Axe().axe_script)
        for theme in ("light", "dark"):  # one load for both: a theme changes colours only
            seen.page.emulate_media(color_scheme=theme)
            assert seen.page.evaluate(f"matchMedia('(prefers-color-scheme: {theme})').matches")
            found = AxeResults(seen.page.evaluate(AUDIT))
            assert found.violations_count == 0, (path, width, theme, found.generate_report())
            assert seen.page.evaluate(FITS), path
            assert seen.page.evaluate("window.shifted") < 0.005, path
            assert seen.complaints == [], path


@pytest.mark.spec("BROWSER-02")
@pytest.mark.parametrize("width", [360, 768, 1100, 1280, 1920])
def test_no_page_scrolls_sideways(site: str, look: Any, width: int) -> None:
    seen = look(width=width)
    for path in ("/", "/jobs", "/queues", "/workers", "/schedules", "/outbox", "/health"):
        seen.page.goto(site + path)
        assert seen.page.evaluate(FITS), path


@pytest.mark.spec("BROWSER-03")
def test_charts_are_drawn_follow_the_mouse_and_the_theme(site: str, look: Any) -> None:
    seen = look()
    page = seen.page
    page.goto(site)
    page.wait_for_selector(".uplot canvas")
    page.wait_for_function("document.querySelectorAll('.uplot canvas').length === 3")
    box = page.locator(".u-over").first.bounding_box()
    before = page.locator("[data-of=throughput]").first.inner_text()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    page.wait_for_function(f"document.querySelector('[data-of=throughput]').textContent !== {before!r}")
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.wait_for_selector(".uplot canvas")
    page.mouse.move(box["x"] + box["width"] * 0.2, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40, steps=4)
    page.mouse.up()
    page.wait_for_url("**since=*")
    assert "until=" in page.url
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert seen.complaints == []


@pytest.mark.spec("BROWSER-04")
def test_keys_do_what_buttons_do(site: str, look: Any) -> None:
    seen = look()
    page = seen.page
    page.goto(site)
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.name") == "q"
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    page.goto(f"{site}/jobs?q=is:dead")
    for key in ("j", "j", "x"):
        page.keyboard.press(key)
    expect(page.locator("#picked")).to_have_text("1 selected")
    page.keyboard.press("e")
    expect(page.locator("h1")).to_contain_text("Requeue 1 job?")
    page.goto(f"{site}/queues")
    page.wait_for_selector("html.scripted")
    page.keyboard.press("?")
    expect(page.locator("#keylist")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keylist")).to_be_hidden()
    assert seen.complaints == []


@pytest.mark.spec("BROWSER-05")
def test_everything_works_without_script(site: str, look: Any) -> None:
    seen = look(script=False)
    page = seen.page
    page.goto(f"{site}/jobs?q=is:dead+queue:webhooks")
    page.locator("input[name=id]").nth(0).check()
    page.locator("input[name=id]").nth(1).check()
    page.get_by_role("button", name="Requeue", exact=True).click()
    expect(page.locator("h1")).to_have_text("Requeue 2 jobs?")
    page.get_by_role("button", name="Requeue 2").click()
    expect(page.locator(".note")).to_contain_text("Requeued 2")
    page.goto(f"{site}/jobs")
    page.fill("input[name=add]", "queue:media")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".chip")).to_contain_text("media")
    page.goto(f"{site}/jobs/{first(site, 'is:dead+queue:imports')}")
    page.get_by_role("button", name="Reveal").first.click()
    expect(page.locator("#payload pre")).to_contain_text("amount")
    page.goto(f"{site}/queues/search")
    page.get_by_role("button", name="Pause search").click()
    expect(page.locator(".note")).to_contain_text("Paused search")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".note")).to_contain_text("Resumed search")


@pytest.mark.spec("BROWSER-06")
def test_live_pages_change_by_themselves_and_hold_still(tmp_path: Path, look: Any) -> None:
    app = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}", durability="process")
    app.declare("send")
    apart(lambda: app.run(app.enqueue(app.draft("send"))))
    served = Served(dashboard(app, auth=Open()))
    seen = look()
    page = seen.page
    try:
        page.goto(served.url)
        expect(page.locator("h1")).to_have_text("One thing needs you")  # no worker serves the queue
        ready = page.locator("#live_tiles .tile-v").nth(1)
        expect(ready).to_have_text("1")
        apart(lambda: app.run(app.enqueue(app.draft("send"))))
        expect(ready).to_have_text("2", timeout=20_000)
        page.keyboard.press(".")
        expect(page.locator("#live")).to_contain_text("Held")
        page.keyboard.press(".")
        apart(lambda: app.run(app.queue("default").pause()))
        expect(page.locator("h1")).to_have_text("Everything keeps up", timeout=30_000)
        page.wait_for_function("document.title.startsWith('Everything keeps up')")
        assert seen.complaints == []
    finally:
        page.goto("about:blank")
        served.close()
        apart(lambda: app.run(app.close()))


@pytest.mark.spec("BROWSER-07")
def test_canaries_stay_text(tmp_path: Path, look: Any) -> None:
    canary = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>"
    path = tmp_path / "jobs.db"
    app = Stoker(f"sqlite:///{path}", durability="process")
    app.declare("send")
    draft = app.draft("send", payload={"x": canary}, tenant=canary[:60], unique=canary[:60], metadata={"note": canary})

    async def fill() -> None:
        engine = await app.engine()
        await app.enqueue(draft)
        await engine.renew("w", [], first=True)
        [claim] = await engine.claim(Demand("w", (("default", 1),), 1))
        await engine.settle([Settlement(claim.id, "w", claim.token, Status.DEAD, error=f"ValueError: {canary}")])
        await app.queue("default").pause(reason=canary, by=canary[:60])
        await app.enqueue(app.draft("send"))

    apart(lambda: app.run(fill()))
    with sqlite3.connect(path) as raw:  # names that no API lets in
        assert raw.execute("select count(*) from sqlite_master").fetchone()[0] > 0
    served = Served(dashboard(app, auth=Open(canary[:60]), env=canary[:40]))
    seen = look()
    page = seen.page
    try:
        from stoker.model import ids

        for place in ("/", "/jobs", f"/jobs/{ids.text(draft.id)}", "/queues", "/queues/default", "/kinds", "/health"):
            page.goto(served.url + place)
            assert page.locator("img").count() == 0, place
        page.goto(f"{served.url}/jobs?q={canary}&after={canary}")
        assert page.locator("img").count() == 0
        page.goto(f"{served.url}/jobs/{ids.text(draft.id)}")
        page.get_by_role("button", name="Reveal").first.click()
        assert page.locator("img").count() == 0
        assert [one for one in seen.complaints if "dialog" in one or "Refused" in one] == []
    finally:
        page.goto("about:blank")
        served.close()
        apart(lambda: app.run(app.close()))
