"""The dashboard in a real browser: nothing shifts, overflows or complains; keys, live parts, and no script."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import pytest
from axe_playwright_python.base import AxeResults  # type: ignore[import-untyped]
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Page, expect

from stoker.admin import Admin, Filter
from stoker.app import Stoker
from stoker.model.errors import EngineUnavailable
from stoker.model.job import Claim, Demand, Note, Settlement, Status
from stoker.model.throttle import Rate
from stoker.web import Key, Limits, Open, dashboard, routes
from stoker.web.pages import overview
from stoker.worker import Worker
from tests.browser.conftest import CONTRAST, TROUBLE, Heavy, Small, apart, first
from tests.web.conftest import beat
from tests.web.serving import Served

pytestmark = pytest.mark.timeout(600)

PAGES = [
    "/",
    "/jobs",
    "/jobs?q=is:dead&group=error",
    "/jobs?q=is:dead+queue:search",
    "/queues",
    "/queues/billing",
    "/kinds",
    "/kinds/webhooks.deliver",
    "/workers",
    "/workers/fra-1.0",
    "/waits",
    "/schedules",
    "/schedules/daily-digest",
    "/new-schedule",
    "/outbox",
    "/outbox/orders/analytics",
    "/outbox/letters?stream=orders",
    "/operations/letters/new?do=replay",
    "/limits",
    "/health",
    "/audit",
    "/operations",
    "/groups",
    "/groups?state=closed",
    "/operations/new?do=requeue&q=is:dead+queue:imports",
]
SHIFTS = """window.shifted = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (!one.hadRecentInput) window.shifted += one.value;
}).observe({ type: "layout-shift", buffered: true });"""
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
# What sticks out on the right, where the page can be scrolled there.
STICKS_OUT = """() => {
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= width) return [];
  const out = [...document.querySelectorAll("main *")].filter((one) => one.getBoundingClientRect().right > width + 0.5);
  return out.map((one) => [one.tagName, one.className, one.textContent.trim().slice(0, 30)].join(" ")).slice(0, 9);
}"""
# What runs out of its box, over its neighbours or beyond the page.
RUNS_OUT = """() => [...document.querySelectorAll("body *")].filter((one) => {
  const style = getComputedStyle(one);
  if (style.overflowX !== "visible" || style.display === "inline" || one.clientWidth === 0) return false;
  if (one.scrollWidth <= one.clientWidth + 1 || !one.checkVisibility({ visibilityProperty: true })) return false;
  return !one.closest("svg, .vh, .skip, dialog, select, .table.list thead");
}).map((one) => `${one.tagName} ${one.className} ${one.scrollWidth} of ${one.clientWidth}`).slice(-5)"""
# Panels whose tables do not fit, and could only be read by scrolling.
CUT_OFF = """() => [...document.querySelectorAll("main .panel")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1)
  .map((one) => [one.querySelector("h2, th")?.textContent, one.scrollWidth, one.clientWidth].join(" "))"""
# Two elements of one name: a rule or a script means only one of them.
TWICE = """() => [...document.querySelectorAll("[id]")]
  .map((one) => one.id).filter((id, n, all) => all.indexOf(id) !== n)"""
NEAR = {1440: (1024, 1440), 390: (768, 390)}
# How many dots are drawn in charts; lines and bars have none.
DOTS = """window.dots = 0;
const arc = Path2D.prototype.arc;
Path2D.prototype.arc = function (...where) { window.dots += 1; return arc.apply(this, where); };"""
# It begins after a turn of the loop.
HTMX_RUNS = """new Promise((done) => {
  const look = () => setTimeout(window.htmx ? done : look, 50);
  look();
})"""
# What passed is most of the answer: it stays in the browser.
AUDIT = """(contrast) => axe.run({
  resultTypes: ["violations", "incomplete"],
  rules: { "color-contrast": { enabled: contrast } },
}).then((found) => ({ ...found, passes: [], inapplicable: [] }))"""
AXE = {1440: "dark", 390: "light"}
"""The theme in which axe looks at pages of a width: a theme changes only colours, and `legible` sees all of them."""


def linked(site: str, path: str, pattern: str) -> list[str]:
    """Pages that a page leads to."""
    with urllib.request.urlopen(f"{site}{path}") as answer:
        return re.findall(f'href="({pattern})"', answer.read().decode())


def all_pages(site: str) -> list[str]:
    jobs = [first(site, query) for query in ("is:dead+queue:imports", "key:sub:48213", "is:running+kind:media*")]
    more = [
        *linked(site, "/groups", r'/groups/[^"?]+'),
        *linked(site, "/outbox/letters", r"/outbox/letters/orders/[^\"]+")[:1],
    ]
    return [*PAGES, *more, *(f"/jobs/{id_}" for id_ in jobs), f"/jobs/{jobs[0]}/edit", f"/jobs/{jobs[1]}/move"]


def legible(page: Page, where: object) -> None:
    """Assert that every text stands out from its ground, those included that axe cannot decide about."""
    found = page.evaluate(CONTRAST)
    assert found["looked"] > 15, where
    assert found["bad"] == [], where


def audited(page: Page, where: object, *, contrast: bool = False) -> None:
    """Assert that axe finds nothing, and leaves nothing undecided but what `legible` decides.

    Contrast is most of its work, and `legible` decides about more texts than axe can.
    """
    found = page.evaluate(AUDIT, contrast)
    assert not found["violations"], (where, AxeResults(found).generate_report())
    undecided = [one["id"] for one in found["incomplete"] if one["id"] != "color-contrast"]
    assert undecided == [], where


@pytest.mark.spec("BROWSER-01")
@pytest.mark.parametrize("width", [1440, 390])
def test_pages_are_accessible_calm_and_quiet(site: str, look: Any, width: int, request: pytest.FixtureRequest) -> None:
    seen = look(width=width)
    page = seen.page
    page.add_init_script(SHIFTS)
    campaign = bool(request.config.getoption("--campaign"))
    for path in all_pages(site):
        page.emulate_media(color_scheme="light")
        page.goto(site + path)
        page.evaluate("document.fonts.ready")
        assert round(page.evaluate("window.shifted"), 3) == 0, (path, width)
        assert page.evaluate(FITS), (path, width)
        assert page.evaluate(TWICE) == [], path
        for other in NEAR[width]:
            page.set_viewport_size({"width": other, "height": 900})
            assert page.evaluate(CUT_OFF) == [], (path, other)
        page.evaluate(Axe().axe_script)
        for theme in ("light", "dark"):
            where = (path, width, theme)
            page.emulate_media(color_scheme=theme)
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == GROUNDS[theme], where
            legible(page, where)
            if theme == AXE[width] or campaign:
                audited(page, where, contrast=campaign)
            assert seen.complaints == [], where


GROUNDS = {"light": "rgb(247, 246, 243)", "dark": "rgb(18, 17, 16)"}


@pytest.mark.spec("BROWSER-01")
def test_a_chosen_theme_is_as_legible_as_that_of_the_system(site: str, look: Any) -> None:
    seen = look()
    page = seen.page
    for path in ("/", "/jobs?q=is:dead+queue:media", "/workers", "/health"):
        page.goto(site + path)
        page.wait_for_selector("html.scripted")
        with page.expect_response("**/theme"):
            page.click("#theme")
        theme = page.evaluate("document.documentElement.dataset.theme")
        for again in (False, True):
            if again:
                page.reload()
            assert page.evaluate("document.documentElement.dataset.theme") == theme
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == GROUNDS[theme]
            legible(page, (path, theme))
    assert seen.complaints == []


@pytest.mark.spec("BROWSER-02")
def test_no_page_scrolls_sideways_whatever_is_stored(heavy: Heavy, look: Any) -> None:
    page = look().page
    for path in heavy.pages:
        page.goto(heavy.url + path)
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        for width in (360, 801, 1001, 1181, 1440, 1920):  # where the page has the least room for its form
            page.set_viewport_size({"width": width, "height": 900})
            found = page.evaluate(f"[({STICKS_OUT})(), ({CUT_OFF})(), ({RUNS_OUT})()]")
            assert found == [[], [], []], (path, width)


@pytest.mark.spec("BROWSER-12")
def test_a_calm_system_has_no_colour_of_trouble(calm: str, look: Any) -> None:
    page = look().page
    for path in ("/", "/jobs", "/queues", "/queues/mail", "/kinds", "/workers", "/schedules", "/outbox", "/limits"):
        page.goto(calm + path)
        assert page.evaluate(TROUBLE) == [], path
    page.goto(calm)
    assert page.locator("h1").inner_text() == "Everything keeps up"


@pytest.mark.spec("BROWSER-13")
def test_every_status_has_a_word_and_a_shape_of_its_own(site: str, look: Any) -> None:
    page = look().page
    page.goto(f"{site}/jobs")
    shape = "(tab) => document.querySelector(tab.querySelector('use').getAttribute('href')).innerHTML"
    shapes = {}
    for name in ("Ready", "Scheduled", "Running", "Retrying", "Dead", "Done", "Canceled", "Discarded", "Retried"):
        shapes[name] = page.locator("#live_tabs a", has_text=name).evaluate(shape)
    assert len(set(shapes.values())) == len(shapes) == 9
    for path in ("/jobs?q=is:dead", "/jobs?q=is:running", "/jobs?q=is:retrying"):
        page.goto(site + path)
        words = set(page.locator("td.status").all_inner_texts())
        assert words == {path.rpartition(":")[2]}, path
    page.goto(f"{site}/workers")
    looks = page.evaluate("""() => ["busy", "long", "gone"].map((name) => {
      const slot = document.querySelector(".slots").appendChild(document.createElement("li"));
      slot.className = `slot ${name}`;
      const { backgroundImage, boxShadow } = getComputedStyle(slot);
      return [backgroundImage !== "none", boxShadow !== "none"].join();
    })""")
    assert len(set(looks)) == 3  # filled, filled with a hole, an outline: not only hues


@pytest.mark.spec("BROWSER-03")
def test_charts_are_drawn_follow_the_mouse_and_the_theme(site: str, look: Any) -> None:
    seen = look()
    page = seen.page
    page.add_init_script(DOTS)
    page.goto(site)
    page.wait_for_selector(".uplot canvas")
    page.wait_for_function("document.querySelectorAll('.uplot canvas').length === 3")
    box = page.locator(".u-over").first.bounding_box()
    before = page.locator("[data-of=throughput]").first.inner_text()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    page.wait_for_function(f"document.querySelector('[data-of=throughput]').textContent !== {before!r}")
    with page.expect_response("**/theme"):
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
    assert re.fullmatch(r"\d\d:\d\d:00 – \d\d:\d\d:00", page.locator(".window").inner_text()), "which window it is"
    expect(page.locator(".uplot canvas")).to_have_count(3)
    assert page.evaluate("window.dots") == 0, "every minute of it is over: none is drawn hollow"
    page.get_by_role("link", name="Show the last hour again").click()
    page.wait_for_url(lambda url: "since" not in url)
    expect(page.locator(".window")).to_have_count(0)


@pytest.mark.spec("BROWSER-03")
def test_nothing_moves_under_the_mouse(site: str, look: Any) -> None:
    seen = look()
    page = seen.page
    for path in ("/", "/kinds/webhooks.deliver", "/queues/webhooks"):
        page.goto(site + path)
        expect(page.locator(".uplot canvas")).to_have_count(3)
        for width in (1440, 1181, 1024, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.mouse.move(1, 1)
            expect(page.locator("[data-when~=latency]")).to_have_text("")
            before = page.evaluate(FRAMES)
            assert width < 1181 or round(before[0][1]) == round(before[2][1]), "charts side by side begin at one height"
            for at in (0.2, 0.6, 0.95):
                box = page.locator(".u-over").last.bounding_box()
                page.locator(".u-over").last.hover(position={"x": box["width"] * at, "y": 40})
                expect(page.locator("[data-when~=latency]")).to_have_text(re.compile(r"\d\d:\d\d"))
                after = page.evaluate(FRAMES)  # a page that has scrolled tells parts of a pixel otherwise
                assert after == [pytest.approx(one, abs=1) for one in before], (path, width)
    assert seen.complaints == []


# Where on the page each chart is: of throughput, deaths and times.
FRAMES = """[...document.querySelectorAll("figure[data-look]")].map((one) => {
  const { x, y, width, height } = one.getBoundingClientRect();
  return [x, y + scrollY, width, height];
})"""


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
    page.goto(f"{site}/jobs?q=queue:media")
    page.locator("input[name=all]").check()
    expect(page.locator(".bulk button[value=requeue]")).to_have_text(
        re.compile(r"^Requeue \d+$")
    )  # not for all of them
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
def test_live_pages_change_by_themselves_and_hold_still(small: Small, look: Any) -> None:
    small.do(small.app.enqueue(small.app.draft("send", queue="live")))
    seen, narrow = look(), look(width=390).page
    page = seen.page
    for one in (page, narrow):
        one.add_init_script(SHIFTS)
        one.goto(small.url)
        expect(one.locator("h1")).to_have_text("One thing needs you")  # no worker serves the queue
    ready = page.locator("#live_tiles .tile-v").nth(1)
    expect(ready).to_have_text("1")
    small.do(small.app.enqueue(small.app.draft("send", queue="live")))
    expect(ready).to_have_text("2")
    page.keyboard.press(".")
    expect(page.locator("#live")).to_contain_text("Held")
    page.keyboard.press(".")
    small.do(small.app.queue("live").pause())
    expect(page.locator("h1")).to_have_text("Everything keeps up")
    page.wait_for_function("document.title.startsWith('Everything keeps up')")
    _find_more(small, page, narrow)
    assert seen.complaints == []


def _find_more(small: Small, *pages: Page) -> None:
    """Assert that a new finding is told at once, and shown where it belongs when one asks for it."""
    small.do(small.app.enqueue(small.app.draft("send", queue="nobody")))
    for page in pages:
        notice = page.locator("#news button")
        expect(notice).to_have_text("No worker is at work")
        expect(page.locator("h1")).to_have_text("One thing needs you")
        rows = page.locator("#live_issues li")
        expect(rows).to_have_count(1)
        assert page.evaluate("window.shifted") < 0.001, page.viewport_size
        notice.click()
        expect(rows).to_have_count(2)
        expect(notice).to_have_count(0)
    small.do(small.app.queue("nobody").pause())  # nothing needs a person when the next test looks


@pytest.mark.spec("BROWSER-06")
def test_a_script_that_comes_late_does_not_keep_a_page_from_living(small: Small, look: Any) -> None:
    small.do(small.app.enqueue(small.app.draft("send")))
    page = look().page

    def late(route: Any) -> None:
        page.evaluate(HTMX_RUNS)
        route.continue_()

    page.route("**/hx-sse.min.js", late)
    with page.expect_request(lambda request: "/live?" in request.url):
        page.goto(small.url)


@pytest.mark.spec("BROWSER-08")
def test_rows_keep_their_place_and_one_that_is_held_waits(small: Small, look: Any, campaign: bool) -> None:
    async def fill() -> None:
        for queue in ("aa", "bb"):
            await small.app.enqueue(small.app.draft("send", queue=queue))

    small.do(fill())
    seen = look()
    page = seen.page
    page.add_init_script(SHIFTS)
    page.goto(f"{small.url}/queues")
    names = page.locator("#live_queues tbody tr .name")
    bb = page.locator("#live_queues tr[data-row=bb] td").nth(2)
    aa = page.locator("#live_queues tr[data-row=aa] td").nth(2)
    expect(bb).to_have_text("1")  # the page may share a reading made before the jobs were stored
    before = names.all_inner_texts()
    aa.hover()

    async def more() -> None:
        for queue in ("aa", "bb", "bb"):
            await small.app.enqueue(small.app.draft("send", queue=queue))

    small.do(more())
    expect(bb).to_have_text("3")
    expect(aa).to_have_text("1")  # the mouse is on it
    page.mouse.move(5, 5)
    expect(aa).to_have_text("2")
    assert names.all_inner_texts() == before
    page.locator("#live_queues tr[data-row=bb] a").first.focus()
    page.evaluate("window.shifted = 0")
    for n in range(40 if campaign else 1):  # the campaign looks for longer
        small.do(more())
        expect(aa).to_have_text(f"{n + 3}")
        assert page.evaluate("document.activeElement.closest('tr').dataset.row") == "bb"
        assert names.all_inner_texts() == before
    assert page.evaluate("window.shifted") < 0.001
    assert seen.complaints == []


@pytest.mark.spec("BROWSER-09", "BROWSER-20")
def test_newer_jobs_wait_behind_a_notice(small: Small, look: Any, campaign: bool) -> None:
    small.do(small.app.enqueue(small.app.draft("sort", queue="listed")))
    seen = look()
    page = seen.page
    page.add_init_script(SHIFTS)
    page.goto(f"{small.url}/jobs?q=queue:listed")
    rows = page.locator("table.jobs tbody tr")
    expect(rows).to_have_count(1)
    page.locator("input[name=id]").first.check()
    page.evaluate("window.shifted = 0")

    async def more() -> None:
        for _ in range(2):
            await small.app.enqueue(small.app.draft("sort", queue="listed"))

    notice = page.locator("#live_newer a")
    newer = 0
    for _ in range(24 if campaign else 1):  # the campaign looks for longer
        small.do(more())
        newer += 2
        expect(notice).to_have_text(f"{newer} newer")
        expect(rows).to_have_count(1)
        assert page.locator("input[name=id]").first.is_checked()
    assert page.evaluate("window.shifted") < 0.001
    notice.click()
    expect(rows).to_have_count(newer + 1)

    async def end() -> None:
        engine = await small.app.engine()
        await engine.jobs.renew("w", [], first=True)
        [one] = await engine.jobs.claim(Demand("w", (("listed", 1),), 1))
        await engine.jobs.settle([Settlement(one.id, "w", one.token, Status.DEAD, error="KeyError: 1")])

    small.do(end())
    expect(page.locator("tr[title^=It]")).to_have_attribute("title", "It is dead now")
    page.goto(f"{small.url}/jobs?q=queue:listed+is:dead+order:oldest")
    expect(rows).to_have_count(1)
    small.do(Admin(small.app).jobs.requeue(Filter.parse("queue:listed is:dead")))
    expect(page.locator("tr[title^=It]")).to_have_attribute("title", "It is ready now")
    assert seen.complaints == []


@pytest.mark.spec("BROWSER-10")
def test_the_form_of_a_schedule_shows_its_fires_while_one_types(small: Small, look: Any) -> None:
    seen = look()
    page = seen.page
    page.goto(f"{small.url}/new-schedule")
    page.fill("input[name=cron]", "0 9 * * mon-fri")
    page.fill("input[name=tz]", "Europe/Paris")
    expect(page.locator("#fires li")).to_have_count(5)
    expect(page.locator("#fires li").first).to_contain_text("09:00:00 Europe/Paris")
    page.fill("input[name=cron]", "0 9 * * nobody")
    expect(page.locator("#fires li")).to_have_count(0)
    page.fill("input[name=cron]", "@every 90s")
    page.fill("input[name=name]", "tick")
    page.fill("input[name=kind]", "send")
    expect(page.locator("#fires li")).to_have_count(5)
    page.get_by_role("button", name="Store the schedule").click()
    expect(page.locator("h1")).to_have_text("tick")
    assert seen.complaints == []


@pytest.mark.spec("BROWSER-11", "BROWSER-19")
def test_a_page_of_one_job_follows_the_job(small: Small, look: Any) -> None:
    app = small.app
    job = small.do(app.enqueue(app.draft("sort", queue="followed")))
    seen = look()
    page = seen.page
    page.goto(f"{small.url}/jobs/{job.id}")
    expect(page.locator("#live_status .pill")).to_have_text("ready")

    async def run(*, end: bool) -> None:
        engine = await app.engine()
        await engine.jobs.renew("w", [], first=True)
        if not end:
            held.extend(await engine.jobs.claim(Demand("w", (("followed", 1),), 1)))
            await engine.jobs.note([Note(one.id, "w", one.token, 0.4) for one in held])
        else:
            await engine.jobs.settle(
                [Settlement(one.id, "w", one.token, Status.DEAD, error="KeyError: 1") for one in held]
            )

    held: list[Claim] = []
    small.do(run(end=False))
    expect(page.locator("#live_status .pill")).to_have_text("running")
    expect(page.locator("#live_main")).to_contain_text("40 %")
    cancel = page.get_by_role("button", name="Cancel")
    cancel.click()
    dialog = page.get_by_role("dialog", name="Ask it to stop?")
    expect(dialog).to_contain_text(job.id)
    expect(dialog).to_contain_text("Running for")
    dialog.get_by_role("link", name="Let it run").click()
    expect(dialog).to_have_count(0)
    expect(cancel).to_be_focused()
    small.do(run(end=True))
    expect(page.locator("#live_status .pill")).to_have_text("dead")
    expect(page.get_by_role("button", name="Requeue")).to_be_visible()
    expect(page.locator("#live_main .trace")).to_contain_text("KeyError: 1")
    page.locator("summary[aria-label='More actions']").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text("Last error")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator(".toast")).to_contain_text("Deleted")
    assert seen.complaints == []


TIMES = "[...document.querySelectorAll('time')].map((one) => [one.dateTime, one.textContent, one.title])"


def in_india(text: str, at: datetime, now: datetime) -> str:
    """A text of a `<time>` in UTC as it is half past five hours later."""
    at, now = (one.astimezone(ZoneInfo("Asia/Kolkata")) for one in (at, now))
    if text.endswith("UTC"):
        return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} "
    if re.fullmatch(r"\d\d:\d\d", text):
        return f"{at:%H:%M}"
    if re.fullmatch(r"\d\d:\d\d:\d\d|\d+ [A-Z]..t? (\d\d:\d\d|\d{4})", text):
        if at.date() == now.date():
            return f"{at:%H:%M:%S}"
        return f"{at.day} {at:%b %H:%M}" if at.year == now.year else f"{at.day} {at:%b %Y}"
    return text


@pytest.mark.spec("BROWSER-18")
def test_local_means_every_time_on_every_page_and_chart(site: str, look: Any) -> None:
    seen = look(zone="Asia/Kolkata")
    page, forms = seen.page, set()
    dead, waits = first(site, "is:dead+queue:imports"), first(site, "is:scheduled")
    paths = [
        "/",
        "/jobs?q=is:scheduled",
        f"/jobs/{dead}",
        f"/jobs/{waits}",
        "/schedules",
        "/queues/billing",
        "/audit",
        "/health",
    ]
    for path in paths:
        page.goto(site + path)
        page.wait_for_selector("html.scripted")
        expect(page.locator("figure[data-points]:not(.drawn)")).to_have_count(0)
        page.evaluate("localStorage.removeItem('stoker-zone')")
        page.keyboard.press(".")  # nothing changes by itself meanwhile
        before, now = page.evaluate(TIMES), datetime.now(UTC)
        page.click("#zone")
        after = page.evaluate(TIMES)
        assert page.locator("#zone").inner_text() == "Local times"
        for (at, text, title), (_, shown, shown_title) in zip(before, after, strict=True):
            when = datetime.fromisoformat(at)
            assert shown.startswith(in_india(text, when, now)), (path, text, shown)
            assert shown_title.startswith(in_india(title, when, now)), (path, title, shown_title)
            forms.add(re.sub(r"\d+", "0", re.sub(r"[A-Z][a-z]+", "Mon", text)))
        words = page.evaluate("document.querySelector('main').innerText")
        assert not re.search(r"\d ?UTC\b", words), (path, words)
        page.click("#zone")
        assert page.evaluate(TIMES) == before, path
    assert {"0:0", "0:0:0", "0-0-0 0:0:0.0 UTC"} <= forms
    assert seen.complaints == []


@pytest.mark.spec("BROWSER-18")
def test_the_mouse_tells_the_minute_in_the_zone_that_is_chosen(site: str, look: Any) -> None:
    page = look(zone="Asia/Kolkata").page
    page.goto(site)
    expect(page.locator(".uplot canvas")).to_have_count(3)
    box, when = page.locator(".u-over").first.bounding_box(), page.locator("[data-when~=throughput]")
    assert when.inner_text() == "per minute"

    def hovered() -> datetime:
        page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
        expect(when).to_have_text(re.compile(r"\d\d:\d\d"))
        return datetime.strptime(when.inner_text(), "%H:%M").replace(tzinfo=UTC)

    utc = hovered()
    page.click("#zone")
    expect(page.locator(".uplot canvas")).to_have_count(3)
    expect(when).to_have_text("per minute")
    assert (hovered() - utc).seconds // 60 in (330, 331)


@pytest.mark.spec("BROWSER-14")
def test_an_open_page_says_since_when_its_figures_are_old(
    small: Small, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = dashboard(small.app, auth=Open("ann"), limits=Limits(seconds=30))
    served = Served(board)
    page = look().page
    try:
        small.do(small.app.enqueue(small.app.draft("send", queue="away")))
        page.goto(f"{served.url}/queues")
        expect(page.locator("#live")).to_have_text("Live")

        async def away() -> Any:
            raise EngineUnavailable("the driver's own words")

        with monkeypatch.context() as patch:
            patch.setattr(board.store, "engine", away)
            expect(page.locator("#live.stale")).to_have_text(re.compile(r"Figures of \d\d:\d\d:\d\d"))
        expect(page.locator("#live")).to_have_text("Live")
    finally:
        page.goto("about:blank")
        served.close()


@pytest.mark.spec("BROWSER-14")
def test_the_page_of_a_store_that_is_away_comes_back_by_itself(
    tmp_path: Path, look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "AGAIN", 1)
    board = dashboard(Stoker(f"sqlite:///{tmp_path / 'jobs.db'}", durability="process"), auth=Open("ann"))
    reading = board.hub.reading

    async def away() -> Any:
        raise EngineUnavailable("the driver's own words")

    monkeypatch.setattr(board.hub, "reading", away)
    served = Served(board)
    page = look(width=390).page
    try:
        page.goto(served.url)
        expect(page.locator("h1")).to_have_text("The store does not answer")
        assert "driver" not in page.content()
        page.evaluate(Axe().axe_script)
        audited(page, "away")
        monkeypatch.setattr(board.hub, "reading", reading)
        expect(page.locator("h1")).to_have_text("Nothing has been enqueued yet")
    finally:
        page.goto("about:blank")
        served.close()


@pytest.mark.spec("BROWSER-16")
def test_the_page_of_an_empty_store_fills_by_itself(tmp_path: Path, look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of workers too, without taking away what is being read or copied."""
    monkeypatch.setattr(overview, "AGAIN", 0.1)
    app = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}", durability="process")
    app.declare("send")
    served = Served(dashboard(app, auth=Open("ann")))
    seen = look()
    page = seen.page
    try:
        page.goto(served.url)
        expect(page.locator("#live_head")).to_contain_text("No worker has shown itself")
        page.locator("#first-run").evaluate("one => { one.dataset.kept = 'yes' }")
        apart(lambda: app.run(beat(app)))
        expect(page.locator("#live_head")).to_contain_text("1 worker waits")
        assert page.locator("#first-run").get_attribute("data-kept") == "yes", "the page was not loaded again"
        apart(lambda: app.enqueue_sync(app.draft("send")))
        expect(page.locator("#live_tiles")).to_be_visible()
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
        await engine.jobs.renew("w", [], first=True)
        [claim] = await engine.jobs.claim(Demand("w", (("default", 1),), 1))
        await engine.jobs.settle([Settlement(claim.id, "w", claim.token, Status.DEAD, error=f"ValueError: {canary}")])
        await app.queue("default").pause(reason=canary, by=canary[:60])
        await app.enqueue(app.draft("send"))

    apart(lambda: app.run(fill()))
    with sqlite3.connect(path) as raw:  # names that no API lets in
        assert raw.execute("select count(*) from sqlite_master").fetchone()[0] > 0
    served = Served(dashboard(app, auth=Open(canary[:60]), env=canary[:40], limits=Limits(seconds=30)))
    seen = look()
    page = seen.page
    try:
        for place in (
            "/",
            "/jobs",
            f"/jobs/{draft.id}",
            "/queues",
            "/queues/default",
            "/kinds",
            "/health",
        ):
            page.goto(served.url + place)
            assert page.locator("img").count() == 0, place
        page.goto(f"{served.url}/jobs?q={canary}&after={canary}")
        assert page.locator("img").count() == 0
        page.goto(f"{served.url}/jobs/{draft.id}")
        page.get_by_role("button", name="Reveal").first.click()
        assert page.locator("img").count() == 0
        assert [one for one in seen.complaints if "dialog" in one or "Refused" in one] == []
    finally:
        page.goto("about:blank")
        served.close()
        apart(lambda: app.run(app.close()))


@pytest.mark.spec("BROWSER-15")
def test_the_address_with_the_key_opens_the_dashboard_until_signing_out(tmp_path: Path, look: Any) -> None:
    """Its key leaves the address at once; forms and live parts work under the session that it began."""
    app, key = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}", durability="process"), Key()
    app.declare("send")
    apart(lambda: app.run(app.enqueue(app.draft("send", queue="mail"))))
    served = Served(dashboard(app, auth=key, limits=Limits(seconds=30)))
    looker = look()
    page = looker.page
    page.goto(f"{served.url}/?key={key.secret}")
    assert page.url == f"{served.url}/"
    apart(lambda: app.run(app.enqueue(app.draft("send", queue="mail"))))
    expect(page.locator("#live_tiles .tile-v").nth(1)).to_have_text("2")  # the page changes by itself
    page.goto(f"{served.url}/queues/mail")
    page.get_by_role("button", name="Pause mail").click()
    expect(page.locator("body")).to_contain_text("Paused mail")
    for width in (360, 768, 1000, 1001, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        for button in (page.locator("#zone"), page.locator("#theme"), page.get_by_role("button", name="Sign out")):
            button.click(trial=True)  # it is in sight, and nothing covers it
            box = button.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width, (width, box)
    assert looker.complaints == []  # after the end of the session the page's stream may ask once more, and is refused
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{served.url}/sign-in")
    page.goto(f"{served.url}/queues")
    expect(page.get_by_label("Key")).to_be_visible()
    page.get_by_label("Key").fill(key.secret)
    page.get_by_role("button", name="Sign in").click()
    expect(page).to_have_url(f"{served.url}/queues")
    expect(page.locator("body")).to_contain_text("mail")
    served.close()
    apart(lambda: app.run(app.close()))


# Where the columns of the table of rates begin.
PLACES = "[...document.querySelectorAll('#live_rates tr:last-child td')].map((one) => one.getBoundingClientRect().left)"


@pytest.mark.spec("BROWSER-17")
def test_nothing_moves_when_tokens_are_taken(small: Small, look: Any) -> None:
    """Fewer tokens and the time until the next one take the room of the full budget and of `now`."""
    budgets = [small.app.budget(name) for name in ("mailer", "maps", "stripe")]
    for budget in budgets:
        small.do(budget.tune(Rate(100, per=86_400)))
    seen = look()
    page = seen.page
    page.goto(f"{small.url}/limits")
    tokens = page.locator("#live_rates .num")
    expect(tokens).to_have_text(["100 of 100"] * 3)
    before = page.evaluate(PLACES)
    for budget in budgets:
        small.do(budget.drain())
    expect(tokens).to_have_text(["0 of 100"] * 3)
    assert page.evaluate(PLACES) == before
    assert seen.complaints == []


@pytest.mark.spec("ORDER-08", "ENQUEUE-01", "ENQUEUE-03")
def test_a_job_is_enqueued_by_its_form_and_its_worker_is_told_by_dialogs(tmp_path: Path, look: Any) -> None:
    """A form with a mistake, then without; its handler is seen in the stacks of the worker, which is quieted after."""
    app = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}", durability="process")
    gate = threading.Event()

    @app.task(name="resize", queue="images")
    def resize(file: str, width: int, fit: Literal["cover", "contain"] = "cover") -> None:
        """Make an image smaller."""
        gate.wait(90)

    async def work() -> None:
        async with Worker(app, shutdown_grace=0) as worker:
            ids.append(worker.id)
            while not gate.is_set():
                await asyncio.sleep(0.05)

    ids: list[str] = []
    served = Served(dashboard(app, auth=Open("ann"), limits=Limits(seconds=30)))
    working = threading.Thread(target=lambda: app.run(work()))
    working.start()
    try:
        seen = look()
        page = seen.page
        page.goto(f"{served.url}/queues/images")
        page.get_by_role("link", name="Enqueue…").click()
        page.get_by_role("link", name="resize").click()
        page.get_by_label("file").fill("a.png")
        page.get_by_label("width").fill("wide")
        page.get_by_label("fit").select_option("contain")
        page.get_by_role("button", name="Enqueue", exact=True).click()
        expect(page.get_by_label("width")).to_have_attribute("aria-invalid", "true")
        expect(page.locator("#wrong-argument\\.width")).to_have_text("must be a whole number")
        expect(page.get_by_label("file")).to_have_value("a.png")
        page.evaluate(Axe().axe_script)
        audited(page, "the form")
        legible(page, "the form")
        assert page.evaluate(RUNS_OUT) == []
        page.get_by_label("width").fill("640")
        page.get_by_role("button", name="Enqueue", exact=True).click()
        expect(page.locator(".toast")).to_contain_text("Enqueued resize.")
        expect(page.locator("#live_status .pill")).to_have_text("running")
        page.goto(f"{served.url}/workers/{ids[0]}")
        page.get_by_role("button", name="Stacks…").click()
        page.get_by_role("dialog").get_by_role("button", name="Ask it").click()
        expect(page.locator(".trace")).to_contain_text("gate.wait(90)")
        page.evaluate(Axe().axe_script)
        audited(page, "the stacks")
        legible(page, "the stacks")
        page.get_by_role("button", name="Quiet…").click()
        dialog = page.get_by_role("dialog", name="Let this worker claim no more jobs?")
        expect(dialog).to_contain_text("1 job")
        dialog.locator("input[name=reason]").fill("bad disk")
        dialog.get_by_role("button", name="Quiet it").click()
        expect(page.locator(".toast")).to_contain_text("Told")
        page.goto(f"{served.url}/audit")
        expect(page.locator("main")).to_contain_text("bad disk")
        assert [one for one in seen.complaints if "422" not in one] == []
    finally:
        gate.set()
        working.join()
        served.close()
        apart(lambda: app.run(app.close()))
