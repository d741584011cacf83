"""Random lives of jobs, driven through each engine and the memory engine in lock-step."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from stoker.engines.memory import MemoryEngine
from stoker.testing.machine import MakeMachineEngine, engine_machine
from stoker.testing.outbox_machine import stream_machine
from tests.harness.shared_schema import SharedSchema

Factory = Callable[[pytest.FixtureRequest], MakeMachineEngine]


def _memory(_: pytest.FixtureRequest) -> MakeMachineEngine:
    """Against itself: whatever differs depends on something that a test cannot hold still."""
    return MemoryEngine


def _sqlite(request: pytest.FixtureRequest) -> MakeMachineEngine:
    engine = importlib.import_module("stoker.engines.sqlite").SqliteEngine
    folder: Path = request.getfixturevalue("tmp_path")
    numbers = itertools.count()
    return lambda clock: engine(folder / f"{next(numbers)}.db", clock=clock)


def _redis(request: pytest.FixtureRequest) -> MakeMachineEngine:
    engine = importlib.import_module("stoker.engines.redis").RedisEngine
    url, prefix = request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")
    numbers = itertools.count()
    return lambda clock: engine(url, prefix=f"{prefix}.{next(numbers)}", clock=clock)


def _redis_cluster(request: pytest.FixtureRequest) -> MakeMachineEngine:
    engine = importlib.import_module("stoker.engines.redis").RedisClusterEngine
    url, prefix = request.getfixturevalue("redis_cluster_url"), request.getfixturevalue("redis_cluster_prefix")
    numbers = itertools.count()
    return lambda clock: engine(url, prefix=f"{prefix}.{next(numbers)}", clock=clock)


def _postgres(request: pytest.FixtureRequest) -> MakeMachineEngine:
    engine = importlib.import_module("stoker.engines.postgres").PostgresEngine
    schema = SharedSchema(request.getfixturevalue("postgres_url"))
    request.addfinalizer(schema.close)
    return lambda clock: engine(f"{schema.url}?sslmode=disable", schema=schema.empty(), clock=clock)


def _engines(**factories: Factory) -> Iterator[Any]:
    """One parameter per engine whose package can be imported here."""
    for name, factory in factories.items():
        try:
            found = hasattr(importlib.import_module(f"stoker.engines.{name}"), f"{name.capitalize()}Engine")
        except ImportError:
            found = False
        if found:
            yield pytest.param(factory, id=name, marks=pytest.mark.engine(name))


def _settings(*, campaign: bool) -> settings:
    return settings(
        max_examples=200 if campaign else 30,
        stateful_step_count=60 if campaign else 40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # Explaining a failure runs very many more lives; the shrunk one says enough.
        phases=[phase for phase in Phase if phase is not Phase.explain],
    )


@pytest.mark.timeout(3_600)
@pytest.mark.spec("MODEL-05", "SQLITE-01", "EVENT-08")
@pytest.mark.parametrize("factory", [*_engines(memory=_memory, sqlite=_sqlite, redis=_redis, postgres=_postgres)])
def test_engines_live_in_lock_step(factory: Factory, request: pytest.FixtureRequest, campaign: bool) -> None:
    run_state_machine_as_test(engine_machine(factory(request)), settings=_settings(campaign=campaign))


@pytest.mark.timeout(3_600)
@pytest.mark.spec("MODEL-05")
@pytest.mark.engine("redis-cluster")
@pytest.mark.variant
def test_a_cluster_lives_in_lock_step(request: pytest.FixtureRequest, campaign: bool) -> None:
    """All jobs are in one queue: a call that reaches several is not one step there."""
    run_state_machine_as_test(engine_machine(_redis_cluster(request)), settings=_settings(campaign=campaign))


@pytest.mark.timeout(3_600)
@pytest.mark.spec("OUTBOX-64")
@pytest.mark.parametrize("factory", [*_engines(memory=_memory, sqlite=_sqlite, postgres=_postgres)])
def test_streams_live_in_lock_step(factory: Factory, request: pytest.FixtureRequest, campaign: bool) -> None:
    run_state_machine_as_test(stream_machine(factory(request)), settings=_settings(campaign=campaign))
