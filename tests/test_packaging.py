"""What the package says about itself, and what it imports without its extras."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import metadata, requires
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from stoker import Stoker
from stoker.engines.postgres import schema as postgres_schema_module
from stoker.engines.sql.migrations import Migration
from stoker.engines.sqlite import schema as sqlite_schema

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


# --- the wheel ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=240)
    [made] = folder.glob("*.whl")
    return made


def test_the_wheel_holds_the_package_its_licence_and_its_bill_of_materials(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [bom] = [name for name in names if name.endswith(".dist-info/sboms/sbom.cdx.json")]
        listed = {file["name"] for one in json.loads(archive.read(bom))["components"] for file in one["components"]}
    assert listed <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    wanted = {f.relative_to(ROOT / "src").as_posix() for f in (ROOT / "src").rglob("*") if f.is_file()}
    assert {name for name in wanted if "__pycache__" not in name} <= names


def test_the_metadata_is_of_a_version_that_indexes_know(wheel: Path) -> None:
    """Version 2.5 of 2026 is refused by index servers and tools that are a few months old; no field of it is used."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        assert archive.read(name).startswith(b"Metadata-Version: 2.4\n")


def test_the_sdist_holds_the_folders_that_are_listed_and_no_more(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=240)
    [made] = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        folders = {parts[1] for name in archive.getnames() if len(parts := Path(name).parts) > 2}
    assert folders == {"src", "tests", "docs", "examples", "deploy"}


OLDER = """
import asyncio, sys
import stoker
from stoker import Stoker, Worker
assert stoker.__file__.startswith(sys.argv[2]), stoker.__file__
jobs = Stoker(sys.argv[1])

@jobs.task
async def greet(name: str) -> str:
    return f"hello {name}"

async def main() -> None:
    async with jobs, Worker(jobs):
        print(await (await greet.enqueue("world")).result(timeout=60))

asyncio.run(main())
"""
ADDS = "CREATE TABLE stoker{0}later (n int); ALTER TABLE {1} ADD COLUMN later int;"


@pytest.fixture(scope="module")
def released(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the latest release: built from its tag, or from this tree where there is no tag yet."""
    git = ["git", "-C", str(ROOT)]
    tags = subprocess.run(
        [*git, "tag", "--list", "v*", "--sort=-version:refname"], capture_output=True, text=True, check=False
    )
    if not tags.stdout.strip():
        return wheel
    folder = tmp_path_factory.mktemp("released")
    archive = [*git, "archive", "--format=tar", "-o", str(folder / "source.tar"), tags.stdout.split()[0]]
    subprocess.run(archive, check=True, timeout=120)
    shutil.unpack_archive(folder / "source.tar", folder / "source", filter="data")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=folder / "source", check=True, capture_output=True, timeout=240)
    [made] = folder.glob("*.whl")
    return made


@pytest.mark.spec("PGOPEN-10")
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_release_works_beside_a_newer_schema_that_only_added(
    store: str, released: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wheel plays the running release, this process the next one, with a column and a table more."""
    if store == "sqlite":
        schema: ModuleType = sqlite_schema
        url, text = f"sqlite:///{tmp_path}/jobs.db", ADDS.format("_", "stoker_ready")
    else:
        schema = postgres_schema_module
        url = f"{request.getfixturevalue('postgres_url')}?schema={request.getfixturevalue('postgres_schema')}"
        text = ADDS.format(".", "stoker.job")
    release = tmp_path / "release"
    with zipfile.ZipFile(released) as archive:
        archive.extractall(release)
    (tmp_path / "older.py").write_text(OLDER, encoding="utf-8")

    def older() -> str:
        command = [sys.executable, str(tmp_path / "older.py"), url, str(release)]
        environment = {**os.environ, "PYTHONPATH": str(release)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        return done.stdout + done.stderr

    assert older() == "hello world\n"
    since = asyncio.run(Stoker(url).root().migrate(plan_only=True))
    later = Migration(len(schema.MIGRATIONS) + 1, "later", text)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, later))
    engine = Stoker(url).root()
    assert len(asyncio.run(engine.migrate())) == len(since) + 2
    assert older() == "hello world\n"
    breaking = Migration(later.number + 1, "gone", "-- breaking: stop all workers of 0.1\nSELECT 1;")
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, breaking))
    asyncio.run(engine.migrate(stopped=True))
    assert "stop all workers of 0.1" in older()
