"""`settings.STOKER`: where the jobs are, and one sentence for what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from stoker.contrib.django import checks, settings
from stoker.contrib.django.app import DjangoStoker
from stoker.contrib.django.backend import PER_JOB, PER_TASK, DjangoTask
from stoker.options import OPTIONS
from stoker.registry import POLICY
from tests.harness.django_settings import django, on_file, on_server

MYSQL = {"ENGINE": "django.db.backends.dummy", "NAME": "shop"}


@pytest.mark.spec("DJANGO-21")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, r"It is not set\.$"),
        ("sqlite:///jobs.db", "It is 'sqlite:///jobs.db'"),
        ({}, r"It has neither\.$"),
        ({"URL": "memory://", "DATABASE": "default"}, r"It has both\.$"),
        ({"DATABASE": "jobs"}, 'is \'jobs\', but DATABASES has "default", "other"'),
        ({"DATABASE": ["default"]}, "is \\['default'\\], but DATABASES has"),
        ({"DATABASE": "other"}, 'is "other", which is on unknown: jobs are kept on SQLite and Postgres'),
        ({"DATABASE": "default", "OUTSIDE": "later"}, 'one of "on_commit", "now", "refuse", not \'later\''),
        ({"DATABASE": "default", "OPTION": {}}, r"the key of STOKER: .* DATABASE, OPTIONS, OUTSIDE, URL; got 'OPTION'"),
        ({"DATABASE": "default", "OPTIONS": ["attempts"]}, "must be keywords of Stoker"),
        ({"DATABASE": "default", "OPTIONS": {"atempts": 3}}, r"did you mean attempts\?.*got 'atempts'"),
        ({"URL": 7}, "must be text"),
        ({"URL": "mysql://shop"}, "unknown scheme"),
    ],
)
def test_what_is_wrong_is_one_sentence_of_check(tmp_path: Path, given: Any, words: str) -> None:
    with django(on_file(tmp_path / "shop.db"), databases={"other": MYSQL}, STOKER=given):
        with pytest.raises(ImproperlyConfigured, match=words):
            DjangoStoker(settings.read())
        [found] = checks.check_stoker()
        assert found.id == "stoker.E001"


@pytest.mark.spec("DJANGO-08")
@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ({"NAME": "/srv/my shop.db"}, "sqlite:////srv/my%20shop.db"),
        ({"NAME": Path("shop.db"), "OPTIONS": {"timeout": 20}}, "sqlite:///shop.db?busy_timeout=20.0"),
        ({"NAME": ":memory:"}, None),
    ],
)
def test_the_address_of_a_file(entry: dict[str, Any], url: str | None) -> None:
    with django({"ENGINE": "django.db.backends.sqlite3", **entry}, STOKER={"DATABASE": "default"}):
        assert settings.read().address == url


@pytest.mark.spec("DJANGO-08")
@pytest.mark.parametrize(
    ("entry", "url"),
    [
        ({}, "postgresql:///shop"),
        ({"USER": "ann", "HOST": "db", "PORT": 5433}, "postgresql://ann@db:5433/shop"),
        ({"USER": "a@b", "PASSWORD": "p/:?", "HOST": "::1"}, "postgresql://a%40b:p%2F%3A%3F@[::1]/shop"),
        ({"HOST": "/run/pg", "PORT": "5433"}, "postgresql:///shop?host=%2Frun%2Fpg&port=5433"),
        (
            {"HOST": "db", "OPTIONS": {"sslmode": "require", "connect_timeout": 5, "pool": True, "isolation_level": 4}},
            "postgresql://db/shop?sslmode=require",
        ),
    ],
)
def test_the_address_of_a_server(entry: dict[str, Any], url: str) -> None:
    default = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop", **entry}
    with django(default, STOKER={"DATABASE": "default", "OPTIONS": {"schema": "jobs", "attempts": 3}}):
        assert settings.read().address == url
        app = DjangoStoker(settings.read())
        assert app.defaults.attempts == 3
        assert app.transaction is not None


@pytest.mark.engine("postgres")
@pytest.mark.spec("DJANGO-08")
def test_the_jobs_are_in_the_database_of_the_alias(postgres_url: str, postgres_schema: str) -> None:
    options = {"schema": postgres_schema}
    with django(on_server(postgres_url), STOKER={"DATABASE": "default", "OPTIONS": options}):
        app = DjangoStoker(settings.read())
        job = app.task(name="work")(lambda: None).enqueue_sync()
        assert job.refresh_sync().status == "pending"
        app.run(app.close())
        assert checks.check_stoker() == []


@pytest.mark.spec("DJANGO-21")
def test_a_database_in_memory_is_warned_of() -> None:
    with django({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, STOKER={"DATABASE": "default"}):
        [found] = checks.check_stoker()
        assert found.id == "stoker.W001"


@pytest.mark.spec("DJANGO-16")
def test_djangos_tasks_take_every_option_of_stokers() -> None:
    assert {*PER_JOB} == {*OPTIONS} - {"queue", "priority", "at"} | {"tx"}
    assert {*PER_TASK} == {*POLICY} - {"validate", "chunk"}
    assert {*PER_JOB, *PER_TASK} <= {*DjangoTask.__dataclass_fields__}
