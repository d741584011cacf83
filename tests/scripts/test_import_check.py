from __future__ import annotations

from pathlib import Path

import pytest

from scripts import import_check


def complaints(folder: Path, file: str, source: str) -> list[str]:
    path = folder / "stoker" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    return import_check.check(folder / "stoker")


@pytest.mark.parametrize(
    "source", ["import attrs", "import uuid_utils", "import time", "from random import choice", "import sqlite3"]
)
def test_model_is_pure(tmp_path: Path, source: str) -> None:
    assert len(complaints(tmp_path, "model/job.py", source)) == 1


@pytest.mark.parametrize(
    "source", ["import msgspec", "from cronsim import CronSim", "import datetime", "from stoker.model import time"]
)
def test_model_may_use_its_two_libraries(tmp_path: Path, source: str) -> None:
    assert complaints(tmp_path, "model/job.py", source) == []


@pytest.mark.parametrize("file", ["app.py", "engines/redis/jobs.py", "worker/lease.py", "connection.py"])
def test_a_driver_outside_connection_is_found_even_inside_a_function(tmp_path: Path, file: str) -> None:
    [complaint] = complaints(tmp_path, file, "def f() -> None:\n    import redis.asyncio\n")
    assert complaint == f"stoker/{file}:2: driver redis belongs into an engine's connection.py"


def test_connection_may_import_the_driver(tmp_path: Path) -> None:
    assert complaints(tmp_path, "engines/redis/connection.py", "import redis.asyncio") == []


def test_types_only_imports_and_our_own_modules_are_free(tmp_path: Path) -> None:
    source = "if TYPE_CHECKING:\n    import sqlite3\nfrom . import redis\nfrom stoker.engines import redis\n"
    assert complaints(tmp_path, "engines/sql/user_handles/handles.py", source) == []


def test_a_library_that_only_came_along_is_found(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\ndependencies = ["click>=8"]\n[project.optional-dependencies]\nx = ["rich"]\n'
        '[dependency-groups]\ndev = ["pytest[x]>=8; a"]\n'
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "import os\nimport click, pytest, rich\nimport hypothesis\nimport mine\n"
    )
    assert import_check.undeclared(tmp_path, ["tests"]) == [
        "tests/test_a.py:3: hypothesis is not named in pyproject.toml"
    ]
