"""What every test may ask for: the options of `scripts/test`, the counting of cases, and the fixtures."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

pytest_plugins = ["tests.harness.fixtures", "tests.harness.apps"]

CONFORMANCE = Path(__file__).parent / "conformance"
COUNTED = ("passed", "failed", "skipped", "deselected", "xfailed", "error")

# Machines differ and are shared: a deadline would only measure the neighbours.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=100)
hypothesis.settings.register_profile("campaign", deadline=None, max_examples=2_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stoker")
    group.addoption("--engine", action="append", metavar="NAME", help="run engine tests only on NAME (repeatable)")
    group.addoption("--campaign", action="store_true", help="big counts, long storms, engine variants in full")


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("campaign" if config.getoption("--campaign") else "default")


def engine_of(item: pytest.Item) -> str | None:
    """The engine a test belongs to: its mark, else for a conformance test the name of its file."""
    if marker := item.get_closest_marker("engine"):
        return str(marker.args[0])
    if item.path.parent == CONFORMANCE:
        return item.path.stem.removeprefix("test_")
    return None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--engine")
    campaign = config.getoption("--campaign")
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        engine = engine_of(item)
        other = bool(wanted) and engine is not None and engine not in wanted
        slow = item.get_closest_marker("variant") and not item.get_closest_marker("core") and not campaign
        (dropped if other or slow else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


class Tally:
    """Counts per engine what ran, for the end of the run and for `scripts/test`."""

    def __init__(self) -> None:
        self.engines: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" and not report.skipped and (engine := engine_of(item)):
            self.engines[engine] += 1
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.engines:
            counts = ", ".join(f"{name} {count}" for name, count in sorted(self.engines.items()))
            terminalreporter.write_line(f"cases per engine: {counts}")
        if path := os.environ.get("STOKER_TEST_TALLY"):
            outcomes = {name: len(terminalreporter.stats.get(name, ())) for name in COUNTED}
            outcomes["errors"] = outcomes.pop("error")
            Path(path).write_text(json.dumps({"outcomes": outcomes, "engines": self.engines}), encoding="utf-8")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(Tally(), "stoker-tally")
