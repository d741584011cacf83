"""The pytest plugin of Stoker: the fixture `stoker_kit`, the mark `stoker`, and what the kit did in a test that fails.

pytest imports this package at every start, also in projects that never test a job. So it stands beside `stoker`, and
imports it when a test asks for the fixture.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stoker.testing import TestKit

APP = "the app that `stoker_kit` is made for, as module:attribute"
SEED = "what `kit.reorder()` and other choices by chance begin with: a whole number, as a failure names it"
TOLD = "stoker.testing.told"
INDEXED = r"ignore:Binding \d+ \('\?\d+'\) is a named parameter:DeprecationWarning"
"""What sqlite3 of Python 3.12.0 to 3.12.3 says of `?1`, wrongly. pytest replaces the filter that Stoker sets itself."""

MARK = 'stoker(engines=["memory", "sqlite", ...]): run a test that takes `stoker_kit` on each of these stores'


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stoker")
    group.addoption("--stoker-app", metavar="MODULE:ATTRIBUTE", help=APP)
    group.addoption("--stoker-seed", metavar="N", type=int, help=SEED)
    parser.addini("stoker_app", APP)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)
    if (3, 12) <= sys.version_info < (3, 12, 4):
        config.addinivalue_line("filterwarnings", INDEXED)
    seed = config.getoption("--stoker-seed")
    if seed is not None:
        os.environ["STOKER_TEST_SEED"] = str(seed)  # where kits read it, also those that a test makes itself


def pytest_runtest_setup() -> None:
    if TOLD in sys.modules:
        sys.modules[TOLD].lines.clear()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    outcome = yield
    report = outcome.get_result()
    told = sys.modules[TOLD].lines if TOLD in sys.modules else {}
    if report.failed and told:
        report.sections.append(("Stoker", "\n".join(told.values())))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("stoker")
    if mark is None:
        return
    where = f"@pytest.mark.stoker on {metafunc.definition.nodeid}"
    engines = mark.kwargs.get("engines")
    if mark.args or set(mark.kwargs) != {"engines"} or isinstance(engines, str) or not engines:
        raise pytest.UsageError(f'{where}: write it as @pytest.mark.stoker(engines=["memory", "sqlite"])')
    if "stoker_kit" not in metafunc.fixturenames:
        raise pytest.UsageError(f"{where}: the test takes no stoker_kit, so there is nothing to run on {engines!r}")
    names = [str(one).partition("://")[0] for one in engines]  # a URL may hold a password
    metafunc.parametrize("stoker_kit", list(engines), ids=names, indirect=True)


@pytest.fixture
def stoker_kit(request: pytest.FixtureRequest) -> Iterator[TestKit]:
    """Give the app that `--stoker-app` or the ini `stoker_app` names a store and a clock of the test's own."""
    path = request.config.getoption("--stoker-app") or request.config.getini("stoker_app")
    if not path:
        pytest.fail(
            "stoker_kit needs to know your app: write `stoker_app = shop.jobs:jobs` into the ini of pytest, or call "
            "pytest with --stoker-app=shop.jobs:jobs",
            pytrace=False,
        )
    from stoker.app_path import load
    from stoker.testing import TestKit

    app = load(path)
    kit_class: type[TestKit] = getattr(app, "kit_class", TestKit)  # a framework's app may have one of its own
    with kit_class(app, getattr(request, "param", "memory")) as kit:
        yield kit
