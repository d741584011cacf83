"""What the package says about itself, and what it imports without its extras."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHON = "Programming Language :: Python :: "


def extra(name: str) -> dict[str, Requirement]:
    """What an extra asks for, by library."""
    wanted = [Requirement(one) for one in requires("stoker") or ()]
    return {one.name: one for one in wanted if one.marker is not None and one.marker.evaluate({"extra": name})}


@pytest.mark.parametrize(
    ("name", "library", "tried", "next_major"),
    [("web", "starlette", "1.10", "2.0"), ("redis", "redis", "8.1", "9.0"), ("top", "textual", "8.2", "9.0")],
)
def test_a_next_major_version_is_not_taken_unseen(name: str, library: str, tried: str, next_major: str) -> None:
    allowed = extra(name)[library].specifier
    assert allowed.contains(tried)
    assert not allowed.contains(next_major)


def test_users_are_offered_no_tools_of_developers() -> None:
    offered = set(metadata("stoker").get_all("Provides-Extra") or ())
    assert "conformance" in offered
    assert "dev" not in offered
    assert {"mypy", "ruff"} <= {Requirement(one).name for one in PROJECT["dependency-groups"]["dev"]}
    assert "pytest" not in extra("all")


def test_every_python_that_is_named_is_allowed() -> None:
    found = metadata("stoker")
    named = [one.removeprefix(PYTHON) for one in found.get_all("Classifier") or () if one.startswith(f"{PYTHON}3.")]
    assert named == ["3.11", "3.12", "3.13", "3.14"]
    allowed = SpecifierSet(found["Requires-Python"])
    assert all(allowed.contains(one) for one in named)
    assert found["Author"] == "The Stoker authors"


WITHOUT = """
import sys
sys.modules |= dict.fromkeys(("pytest", "_pytest", "pytest_asyncio", "hypothesis"))
import stoker.testing, stoker.testing.clock, stoker.testing.faults, stoker.testing.history
try:
    import stoker.testing.conformance
except ImportError as error:
    print(error)
"""


@pytest.mark.spec("API-31")
def test_without_pytest_the_conformance_suite_alone_is_missing_and_names_its_extra() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the conformance suite needs pytest: pip install 'stoker[conformance]'\n"


@pytest.mark.spec("API-31")
def test_the_conformance_extra_brings_what_the_suite_needs() -> None:
    assert {"pytest", "pytest-asyncio", "hypothesis"} <= set(extra("conformance"))
