"""Runs a Django project in processes of its own: Django has one configuration in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import psycopg
import pytest

ROOT = Path(__file__).resolve().parents[3]
PROJECT = Path(__file__).parent / "project"


class Manage(Protocol):
    """Calls `manage.py` of the project with these words."""

    def __call__(self, *words: str, python: str = ..., ok: bool = ..., **environ: str) -> str: ...


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a process of the project, on a SQLite file in this folder if nothing else is said."""
    path = os.pathsep.join(map(str, (PROJECT, ROOT / "src", ROOT)))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "SHOP_FOLDER": str(folder),
        "SHOP_DATABASE": "file",
        "PYTHONWARNINGS": "error",
        **more,
    }


@pytest.fixture
def manage(tmp_path: Path) -> Manage:
    def call(*words: str, python: str = sys.executable, ok: bool = True, **environ: str) -> str:
        done = subprocess.run(
            [python, "-m", "django", *words],
            cwd=tmp_path,
            env=environment(tmp_path, **environ),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        said = done.stdout + done.stderr
        assert (done.returncode == 0) is ok, said
        return said

    return call


@pytest.fixture
def shop_database(postgres_url: str) -> Iterator[str]:
    """A Postgres database for the project; Django makes its test database beside it, under a name of its own."""
    name = f"shop_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as server:
        server.execute(f"create database {name}".encode())
        yield postgres_url.rpartition("/")[0] + f"/{name}"
        server.execute(f"drop database {name} with (force)".encode())
