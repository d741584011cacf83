"""A demo shop behind a real server, and Debian's Chromium in front of it. Without a browser the tests are skipped."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import shutil
import threading
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

from stoker.app import Stoker
from stoker.web import Limits, Open, dashboard
from tests.web.serving import Served

T = TypeVar("T")
PATIENCE = 90_000
"""Milliseconds after which a page that should be quick is given up: the machine may be busy."""
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
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
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium on this machine: apt-get install chromium")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("shop") / "shop.db"
    module = shop()
    apart(lambda: asyncio.run(module.fill(path)))
    limits = Limits(seconds=30)  # the machine may be busy
    board = dashboard(module.declared(path), auth=Open("ann"), env="production", color="red", limits=limits)
    served = Served(board)
    stop = threading.Event()
    keeper = threading.Thread(target=lambda: asyncio.run(_stay(module.declared(path), stop)), daemon=True)
    keeper.start()
    yield served.url
    stop.set()
    keeper.join(20)
    served.close()


async def _stay(app: Stoker, stop: threading.Event) -> None:
    """Keep the shop's workers in sight, so that nothing new happens while pages are looked at."""
    async with app:
        engine = await app.engine()
        present = await engine.workers()
        while not stop.is_set():
            for one in present:
                await engine.beat(msgspec.structs.replace(one, seen_at=0))
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
    """Opens pages; `look(width=390, dark=True, script=False)`."""
    contexts = []

    def make(*, width: int = 1440, dark: bool = False, script: bool = True) -> Looker:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=script,
            reduced_motion="reduce",
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
