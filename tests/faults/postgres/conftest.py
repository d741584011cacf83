from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from stoker.engines.postgres import PostgresEngine, leases
from tests import services
from tests.faults.network import Attempt
from tests.faults.postgres.trials import IMPATIENT, Make, trial
from tests.faults.trial import SOON
from tests.harness.proxy import Proxy


@pytest.fixture(scope="session")
def victim() -> Iterator[services.PostgresServer]:
    # What the machine's own cache holds survives the server, so nothing here needs a sync.
    with services.postgres_server(fsync=False, max_connections="100", shared_buffers="32MB") as server:
        yield server


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch, campaign: bool) -> None:
    """Calls take a second at most here, so claims whose answer was lost may come back sooner than after five."""
    if not campaign:
        monkeypatch.setattr(leases, "ORPHANED_AFTER", SOON)


@pytest.fixture
def server(victim: services.PostgresServer) -> Iterator[services.PostgresServer]:
    """A Postgres to be hurt; whatever a test did to it, the next one finds it up."""
    yield victim
    if victim.pid is None:
        victim.start()


@pytest.fixture
def schema() -> str:
    """It is not dropped: the server ends with the module."""
    return f"t_{uuid.uuid4().hex}"


@pytest.fixture
def proxy(server: services.PostgresServer) -> Iterator[Proxy]:
    with Proxy(server.url) as found:
        yield found


@pytest.fixture
def make(server: services.PostgresServer, schema: str) -> Make:
    """An engine on the test's schema, by a URL; directly without one."""

    def engine(url: str | None = None, **options: Any) -> PostgresEngine:
        return PostgresEngine(url or server.url, **{"schema": schema, "timeout": IMPATIENT, **options})

    return engine


@pytest.fixture
def attempt(make: Make, proxy: Proxy) -> Attempt:
    return functools.partial(trial, make, proxy.url)
