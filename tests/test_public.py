from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
import stoker.errors

ROOT = Path(__file__).parent.parent
HOW_TOS = sorted((ROOT / "docs" / "howto").glob("*.md"))
PYTHON = re.compile(r"^```python[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
NAMES = (
    "Stoker Worker Outbox Inbox Task Chunk JobHandle Job Step Draft chain PREVIOUS RESULTS Receipt Schedule current "
    "Context Transition FailedRun Unique Seal Limit Rate Curve Exponential Linear Fixed Delays Never Snooze Throttle "
    "Retry Reject StokerError JobFailed JobCanceled StepFailed GroupFailed GroupClosed ResultUnavailable NotFound "
    "Duplicate UnknownTask InvalidInput EngineError Raw Status JobLogFilter JsonFormatter RedactingFilter"
)
HOME = {
    "stoker",
    "stoker.errors",
    "stoker.admin",
    "stoker.testing",
    "stoker.outbox",
    "stoker.watching",
    "stoker.web",
    "stoker.contrib.django",
    "stoker.contrib.django.testing",
    "stoker.contrib.fastapi",
    "stoker.contrib.flask",
}
"""Where users import from."""


@pytest.mark.spec("API-20")
def test_the_public_names_are_exactly_these() -> None:
    assert " ".join(stoker.__all__) == NAMES
    assert len({*stoker.__all__, *stoker.ON_USE}) <= 53
    assert all(getattr(stoker, name) for name in (*stoker.__all__, *stoker.ON_USE))
    with pytest.raises(AttributeError, match="has no attribute 'Wroker'"):
        stoker.Wroker  # type: ignore[attr-defined]


@pytest.mark.spec("API-22")
@pytest.mark.parametrize("name", sorted({*stoker.__all__, *stoker.ON_USE}))
def test_every_public_name_is_used_in_a_how_to_page(name: str) -> None:
    pages = [path.read_text(encoding="utf-8") for path in HOW_TOS]
    assert any(re.search(rf"\b{name}\b", block) for page in pages for block in PYTHON.findall(page))


@pytest.mark.spec("API-32")
@pytest.mark.parametrize("path", HOW_TOS, ids=lambda path: path.stem)
def test_how_tos_import_from_the_public_modules_alone(path: Path) -> None:
    """The conformance suite is imported whole, from its place in `stoker.testing`."""
    for block in PYTHON.findall(path.read_text(encoding="utf-8")):
        for node in ast.walk(ast.parse(block)):
            found = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.Import):
                found = [one.name for one in node.names]
            ours = {name for name in found if name.partition(".")[0] == "stoker"}
            assert ours <= {*HOME, "stoker.testing.conformance"}, ast.unparse(node)


@pytest.mark.spec("API-32")
def test_every_error_that_is_documented_is_in_one_module() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) - {"TimeoutError"}
    assert documented == set(stoker.errors.__all__)
    assert all(issubclass(getattr(stoker.errors, name), stoker.StokerError) for name in documented)
    assert {name for name in stoker.__all__ if name in documented} <= set(dir(stoker.errors))


@pytest.mark.spec("API-33")
def test_an_app_shows_what_users_may_touch() -> None:
    """Each of these is in the reference, each method of the reference is among these."""
    app = stoker.Stoker("memory://")
    shown = {name for name in dir(app) if not name.startswith("_")}
    assert all(hasattr(app, name) for name in shown)
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    page = page[page.index("\n## Stoker\n") : page.index("\n## ", page.index("\n## Stoker\n") + 1)]
    named = set(re.findall(r"`(?:await )?(?:jobs\.)?(\w+)", page))
    assert shown - named == set()
    assert {name for name in named & set(vars(type(app))) if not name.startswith("_")} <= shown | {"transaction"}
    assert {"enqueue", "enqueue_sync", "queue"} <= shown
    assert not {"emit_altered", "insert_drafts", "block_turn", "with_engine"} & shown


WITHOUT = """
import sys
sys.modules["prometheus_client"] = None
import stoker
try:
    stoker.StoreCollector
except ImportError as error:
    assert "install stoker[prometheus]" in str(error), error
else:
    raise AssertionError
from stoker import *
assert JsonFormatter
"""


@pytest.mark.spec("API-20")
def test_a_name_that_needs_an_extra_names_it_and_import_star_does_not_need_it() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", WITHOUT], check=True, timeout=240)


LIGHT = """
import sys, stoker
heavy = {"stoker.worker", "stoker.engines.sqlite", "stoker.engines.memory", "sqlite3", "click", "rich"}
found = heavy & set(sys.modules)
assert not found, found
from stoker import Worker
assert Worker.__module__ == "stoker.worker.worker"
"""


@pytest.mark.spec("API-20")
def test_importing_the_package_loads_neither_the_worker_nor_an_engine() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", LIGHT], check=True, timeout=240)
