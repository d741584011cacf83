"""A project under Django's own test runner, and its commands: on SQLite and Postgres, on Django 5.2 and 6."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.contrib.django.conftest import ROOT, Manage, environment

ALL = ("shop.tests_kit", "shop.tests_backend", "shop.tests_dashboard", "shop.tests_transactions", "shop.tests_simple")
RAN = re.compile(r"^Ran (\d+) tests? in .*\n\nOK", re.MULTILINE)


def passed(said: str, least: int) -> None:
    """Were there as many tests, and did they all pass?"""
    found = RAN.search(said)
    assert found is not None, said
    assert int(found[1]) >= least, said


@pytest.mark.engine("sqlite")
@pytest.mark.spec("DJANGO-09", "DJANGO-10", "DJANGO-11", "DJANGO-12", "DJANGO-13", "DJANGO-14", "DJANGO-15")
@pytest.mark.spec("DJANGO-16", "DJANGO-17", "DJANGO-18", "DJANGO-21")
def test_all_of_it_on_a_file(manage: Manage) -> None:
    passed(manage("test", *ALL), 60)


@pytest.mark.engine("sqlite")
@pytest.mark.spec("DJANGO-14")
def test_in_memory_the_kit_is_the_store_of_every_test(manage: Manage, tmp_path: Path) -> None:
    passed(manage("test", "shop.tests_kit", "shop.tests_transactions.Joins", SHOP_DATABASE=":memory:"), 20)
    assert not list(tmp_path.glob("*memory*"))


@pytest.mark.spec("DJANGO-14")
def test_without_a_test_database_it_is_never_the_real_store(manage: Manage, tmp_path: Path) -> None:
    passed(manage("test", "shop.tests_simple"), 1)
    assert not (tmp_path / "shop.db").exists()


@pytest.mark.engine("postgres")
@pytest.mark.spec("DJANGO-09", "DJANGO-10", "DJANGO-12", "DJANGO-14", "DJANGO-15", "DJANGO-16")
def test_transactions_and_results_on_postgres(manage: Manage, shop_database: str) -> None:
    words = ("test", "--tag", "core", "--noinput", "shop.tests_transactions", "shop.tests_backend")
    passed(manage(*words, SHOP_DATABASE=shop_database), 11)


@pytest.mark.spec("DJANGO-13")
def test_the_example_passes_its_own_tests(tmp_path: Path) -> None:
    example = shutil.copytree(ROOT / "examples" / "django_shop", tmp_path / "django_shop")
    command = [sys.executable, "manage.py", "test"]
    done = subprocess.run(command, cwd=example, capture_output=True, text=True, timeout=240, check=False)
    passed(done.stdout + done.stderr, 4)
    assert not list(example.glob("shop.sqlite3*"))


# --- Django 6 -----------------------------------------------------------------------------------------------------


def newer_pythons() -> list[str]:
    """Interpreters of 3.12 and newer, the newest first."""
    names = [f"python3.{minor}" for minor in range(20, 11, -1)]
    found = [path for name in names if (path := shutil.which(name))]
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found += sorted(map(str, kept.glob("3.1[2-9]*/bin/python3")), reverse=True)
    return [
        path for path in found if subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
    ]


@pytest.fixture(scope="module")
def django_6() -> str:
    """An interpreter with Django 6 and what Stoker needs; made once, and kept beside the environment of the tests."""
    home = Path(sys.prefix) / "django6"
    python = home / "bin" / "python"
    if not (home / "complete").exists():
        pythons = [sys.executable] if sys.version_info >= (3, 12) else newer_pythons()
        if not pythons:
            pytest.skip("Django 6 needs Python 3.12 or newer, and none was found")
        shutil.rmtree(home, ignore_errors=True)
        subprocess.run([pythons[0], "-m", "venv", "--without-pip", home], check=True)
        wanted = ["django>=6,<7", "click", "cronsim", "msgspec", "rich", "uuid-utils", "jinja2", "starlette", "psycopg"]
        pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--only-binary", ":all:"]
        done = subprocess.run([*pip, *wanted, "asyncpg"], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"Django 6 cannot be installed for {pythons[0]}: {done.stderr[-300:]}")
        (home / "complete").touch()
    return str(python)


@pytest.mark.spec("DJANGO-19")
def test_it_works_on_django_6_with_its_own_tasks(manage: Manage, django_6: str) -> None:
    version = subprocess.run([django_6, "-m", "django", "--version"], capture_output=True, text=True, check=True).stdout
    assert int(version.split(".")[0]) >= 6
    passed(manage("test", *ALL, python=django_6), 60)


# --- commands -----------------------------------------------------------------------------------------------------


SET_UP = """
from django.core.management import call_command as call
from shop.later import in_a_loop

call("check")
call("makemigrations", "--check")
call("migrate", "--plan")
call("stoker", "migrate", "--plan")
call("migrate")
call("stoker", "migrate")
call("stoker", "jobs", "list")
try: call("stoker", "sttatus")
except SystemExit: pass
print(in_a_loop.using(queue_name="mail").enqueue("ada").id)
"""


@pytest.mark.spec("DJANGO-15", "DJANGO-20")
def test_migrate_makes_the_schema_and_the_command_line_is_stokers(manage: Manage) -> None:
    said = manage("shell", "-v", "0", "-c", SET_UP)
    steps = (
        "stoker.W002",  # SQLite without transaction_mode
        "No changes detected",
        "stoker.0001_initial",
        "statements are missing",
        "Applying Stoker's schema",
        "The schema is up to date",
        "id\tstatus\tqueue",
    )
    for step in steps:
        assert step in said
    assert "there is no command 'sttatus'. Did you mean 'status'?" in said
    job = re.findall(r"^[0-9a-f-]{36}$", said, re.MULTILINE)[-1]
    manage("check", "--fail-level", "WARNING", SHOP_MODE="IMMEDIATE")
    manage("stoker", "work", "--drain")
    assert json.loads(manage("stoker", "jobs", "show", job, "--json"))["status"] == "done"


RELOADS = """
from unittest import mock
from django.conf import settings
from django.core.management import execute_from_command_line as run
import stoker.cli.work as work

def asked(*words):
    with mock.patch.object(work, "_supervisor", side_effect=SystemExit) as made:
        try: run(["manage.py", "stoker", "work", *words])
        except SystemExit: pass
    return made.call_args.kwargs["reload"]

print(asked(), asked("--reload"))
from django.core.signals import request_started
from stoker.contrib.django import jobs
before = jobs.any_open() is jobs.root()
request_started.send(None)
print(before, jobs.any_open() is jobs.root())
settings.DEBUG = True
print(asked(), asked("--no-reload"))
"""


@pytest.mark.spec("DJANGO-20")
def test_with_debug_a_worker_reloads_and_a_first_request_opens_the_store(manage: Manage) -> None:
    manage("migrate", "-v", "0")
    found = re.findall(r"True|False", manage("shell", "-v", "0", "-c", RELOADS))
    assert found == ["False", "True"] + ["True", "False"] + ["True", "False"]


@pytest.mark.spec("DJANGO-09")
def test_requests_of_runserver_each_have_their_transaction(
    manage: Manage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_MODE", "IMMEDIATE")
    manage("migrate", "-v", "0")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    log = tmp_path / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "django", "runserver", "--noreload", address],
            cwd=tmp_path,
            env=environment(tmp_path, PYTHONWARNINGS="default"),
            stdout=out,
            stderr=subprocess.STDOUT,
        )

    def buy(body: dict[str, str]) -> int:
        try:
            return httpx.post(f"http://{address}/order", data=body, timeout=60).status_code
        except httpx.ConnectError:
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)  # the server is not there yet
            return buy(body)

    try:
        bodies = [{"email": f"{n}@example.com", **({"fail": "1"} if n % 2 else {})} for n in range(8)]
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(buy, bodies)) == [201, 500] * 4
    finally:
        process.terminate()
        process.wait(60)
    found = [json.loads(line) for line in manage("stoker", "jobs", "list", "--json").splitlines()]
    assert [job["kind"] for job in found] == ["confirm"] * 4
