"""Pictures of the dashboard for the documentation. `scripts/screenshots --help` says which."""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Literal

import msgspec
import shop  # type: ignore[import-not-found]
import uvicorn
from playwright.sync_api import Browser, sync_playwright

from stoker import Stoker
from stoker.web import Limits, Open, dashboard

PATIENT = Limits(seconds=30)
"""A machine that takes pictures may be busy."""

ROOT = Path(__file__).resolve().parent.parent
SHOWN = {
    "overview": ("/", 1280, 900, "light"),
    "overview-dark": ("/", 1280, 900, "dark"),
    "job": ("{job}", 1280, 860, "light"),
    "queues": ("/queues", 1280, 640, "light"),
    "errors": ("/jobs?q=is:dead,retrying&group=error", 1280, 720, "light"),
    "kind": ("/kinds/imports.parse_supplier_feed", 1280, 860, "light"),
}
PAGES = {
    "overview": "/",
    "jobs": "/jobs?q=is:dead",
    "jobs-all": "/jobs",
    "by-error": "/jobs?q=is:dead&group=error",
    "job": "{job}",
    "job-dead": "{dead}",
    "job-running": "{running}",
    "job-edit": "{dead}/edit",
    "jobs-empty": "/jobs?q=is:dead+queue:search",
    "queues": "/queues",
    "queue": "/queues/billing",
    "kinds": "/kinds",
    "kind": "/kinds/billing.charge_subscription",
    "kind-week": "/kinds/webhooks.deliver?range=7d",
    "workers": "/workers",
    "worker": "{worker}",
    "questions": "/waits",
    "job-waiting": "{waiting}",
    "groups": "/groups",
    "group": "{group}",
    "schedules": "/schedules",
    "schedule": "/schedules/daily-digest",
    "new-schedule": "/new-schedule",
    "outbox": "/outbox",
    "cursors": "/outbox/orders/analytics",
    "letters": "/outbox/letters?stream=orders",
    "letters-new": "/operations/letters/new?do=replay&stream=orders",
    "limits": "/limits",
    "health": "/health",
    "audit": "/audit",
    "nowhere": "/nowhere",
    "letter": "{letter}",
    "operations": "/operations",
    "operation": "/operations/new?do=requeue&q=is:dead+queue:imports",
}


async def stay(jobs: Stoker, stop: threading.Event) -> None:
    """Keep the shop's workers in sight, but for one that fell silent, and its busy queues flowing."""
    async with jobs:
        engine = await jobs.engine()
        presences = [one for one in await engine.control.workers() if one.worker != "fra-3.0"]
        beats = 0
        while not stop.is_set():
            if beats % 2 == 0:
                for one in presences:
                    await engine.control.beat(msgspec.structs.replace(one, seen_at=0))
            await shop.flow(jobs, engine)
            beats += 1
            await asyncio.sleep(0.95)


def read(arguments: list[str]) -> tuple[Path, list[str]]:
    """The folder, and the pages that were chosen."""
    parser = argparse.ArgumentParser("scripts/screenshots", description="Take pictures of a demo shop's dashboard.")
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs" / "images", help="where to write them")
    pages = "pages to take at five widths, light and dark; without any, only those that the documentation shows"
    parser.add_argument("page", nargs="*", help=f"{pages}. One of: all, {', '.join(PAGES)}")
    read = parser.parse_args(arguments)
    if unknown := set(read.page) - {"all", *PAGES}:
        parser.error(f"no page is called {', '.join(sorted(unknown))}")
    return read.folder, read.page


def main(arguments: list[str]) -> None:
    folder, chosen = read(arguments)
    folder.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("there is no Chromium on this machine: apt-get install chromium")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "shop.db"
        asyncio.run(shop.fill(path))
        stop = threading.Event()
        keeper = threading.Thread(target=lambda: asyncio.run(stay(shop.declared(path), stop)))
        keeper.start()
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            site = f"http://127.0.0.1:{listening.getsockname()[1]}"
            board = dashboard(shop.declared(path), auth=Open("maria"), env="production", color="red", limits=PATIENT)
            server = uvicorn.Server(uvicorn.Config(board, log_level="error", timeout_graceful_shutdown=1))
            serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
            serving.start()
            time.sleep(6)
            try:
                with sync_playwright() as playwright:
                    browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                    take(browser, site, folder, chosen)
                    browser.close()
            finally:
                stop.set()
                server.should_exit = True
                serving.join()
                keeper.join()


TALLEST = {1440: 1700, 1024: 2000, 768: 2200, 390: 2600, 360: 2600}
"""Pictures of a whole page end here, by width: a list of fifty jobs is the same all the way down."""


def first(site: str, query: str) -> str:
    """The page of the first job that a filter finds."""
    with urllib.request.urlopen(f"{site}/jobs?q={query}") as answer:  # noqa: S310 - our own server
        return "/jobs/" + str(re.findall(r'name="id" value="([^"]+)"', answer.read().decode())[0])


def link(site: str, path: str, wanted: str) -> str:
    """The first link of a page that is as wanted."""
    with urllib.request.urlopen(site + path) as answer:  # noqa: S310 - our own server
        return str(re.findall(f'href="({wanted})"', answer.read().decode())[0])


def take(browser: Browser, site: str, folder: Path, chosen: list[str]) -> None:
    """Take the pictures."""
    found = {
        "job": first(site, "key:sub:48213"),
        "dead": first(site, "is:dead+queue:imports"),
        "running": first(site, "is:running+kind:media*"),
        "waiting": first(site, "is:waiting"),
        "worker": link(site, "/workers", '/workers/[^"?]+'),
        "group": link(site, "/groups", '/groups/[^"?]+'),
        "letter": link(site, "/outbox/letters?stream=orders", '/outbox/letters/[^"?]+'),
    }
    wanted = [(name, path, width, height, theme, False) for name, (path, width, height, theme) in SHOWN.items()]
    if chosen:
        wanted = [
            (f"{name}-{width}-{theme}", path, width, 900, theme, True)
            for name, path in PAGES.items()
            if name in chosen or "all" in chosen
            for width in TALLEST
            for theme in ("light", "dark")
        ]
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(site)  # a page is drawn in our fonts only if these are there at once: the first one fetches them
    page.evaluate("document.fonts.ready")
    while not page.locator("[data-hollow]").count():  # the pace of the running minute needs two readings
        page.reload()
    for name, path, width, height, theme, whole in wanted:
        scheme: Literal["dark", "light"] = "dark" if theme == "dark" else "light"
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": height})
        page.goto(site + path.format(**found))
        page.evaluate("document.fonts.ready")
        page.wait_for_timeout(500)
        if whole:
            tall = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({"width": width, "height": max(min(tall, TALLEST[width]), 900)})
            page.wait_for_timeout(300)
        page.screenshot(path=folder / f"{name}.png")
        print(f"wrote {folder / name}.png")
    context.close()


if __name__ == "__main__":
    main(sys.argv[1:])
