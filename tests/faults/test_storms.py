"""Workers that are killed at any instant: groups close once, limits hold, effects happen exactly once."""

from __future__ import annotations

import secrets
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests import services
from tests.faults import blocks, flows, groups, limits
from tests.faults.fork_server import ForkServer
from tests.harness.proxy import Proxy

pytestmark = pytest.mark.timeout(3_600)

CRASHES = 10
"""Of a server in a storm."""

TRANSACTIONAL = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres")]
SERVERS = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("postgres", "redis")]
ENGINES = [
    *TRANSACTIONAL,
    pytest.param("redis", marks=pytest.mark.engine("redis")),
    pytest.param("redis-cluster", marks=[pytest.mark.engine("redis-cluster"), pytest.mark.variant]),
]


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    of = request.getfixturevalue
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path / 'jobs.db'}"
        case "postgres":
            base = of("postgres_url")
            return f"{base}{'&' if '?' in base else '?'}schema={of('postgres_schema')}"
        case "redis":
            return f"{of('redis_url')}?prefix={of('redis_prefix')}"
        case _:
            return f"{of('redis_cluster_url')}?prefix={of('redis_cluster_prefix')}"


def raged(fork_server: ForkServer, storm: Any, within: float, **arguments: Any) -> dict[str, Any]:
    """What a storm found with a seed of its own; nothing of it may be wrong."""
    seed = secrets.randbits(32)
    found: dict[str, Any] = fork_server.call(storm, within=within, seed=seed, **arguments).answer
    print(f"seed {seed}: {found}")
    assert not found["wrong"], "\n".join(found["wrong"])
    return found


@pytest.mark.spec("GROUP-29")
def test_a_storm_of_kills_closes_every_group_once(url: str, fork_server: ForkServer, campaign: bool) -> None:
    """And never before its members."""
    counts = (
        {"groups": 2_000, "largest": 200, "kills": 200, "workers": 4}
        if campaign
        else {"groups": 30, "largest": 20, "kills": 8, "workers": 2}
    )
    found = raged(fork_server, groups.storm, 3_000 if campaign else 600, url=url, **counts)
    assert found["groups"] == counts["groups"]


@pytest.mark.spec("LIMIT-43")
def test_a_storm_of_kills_never_exceeds_a_limit(
    url: str, tmp_path: Path, fork_server: ForkServer, campaign: bool
) -> None:
    """Also with slow and rolled-back transactions; jobs of a key that holds its slot run in order; none is left."""
    counts = (
        {"jobs": 100_000, "keys": 50, "kills": 200, "workers": 4, "call": 50}
        if campaign
        else {"jobs": 400, "keys": 20, "kills": 8, "workers": 2, "call": 3}
    )
    path = str(tmp_path / "runs.jsonl")
    found = raged(fork_server, limits.storm, 3_000 if campaign else 600, url=url, path=path, **counts)
    assert found["runs"] >= found["stored"] > 0


@pytest.mark.spec("BLOCK-17")
@pytest.mark.parametrize("url", TRANSACTIONAL, indirect=True)
def test_a_storm_of_kills_leaves_every_effect_of_a_block_once(
    url: str, fork_server: ForkServer, campaign: bool
) -> None:
    jobs = 10_000 if campaign else 500
    found = raged(fork_server, blocks.storm, 1_500 if campaign else 900, url=url, jobs=jobs)
    assert found["killed"] >= 5
    if url.startswith("sqlite"):
        assert blocks.Site(url).rows("pragma integrity_check") == [("ok",)]


@pytest.mark.spec("DURABLE-19")
def test_a_storm_of_kills_loses_no_step_and_no_signal(
    url: str, tmp_path: Path, fork_server: ForkServer, campaign: bool
) -> None:
    """No step runs after it was stored, each has one value for ever, every flow ends with its signal's value."""
    counts = (
        {"flows": 5_000, "kills": 250, "workers": 3, "parallel": 12, "calm": 900.0}
        if campaign
        else {"flows": 40, "kills": 10, "workers": 2}
    )
    ledger = str(tmp_path / "ledger")
    found = raged(fork_server, flows.storm, 3_000 if campaign else 600, url=url, path=ledger, **counts)
    assert found["flows"] == counts["flows"]
    assert found["steps"] >= (100_000 if campaign else 400)


@pytest.mark.spec("DURABLE-19")
@pytest.mark.parametrize("url", SERVERS, indirect=True)
def test_a_storm_of_kills_and_cut_connections_loses_no_step(
    url: str, tmp_path: Path, fork_server: ForkServer, campaign: bool
) -> None:
    """Connections break all the time, also between a write and its answer: it is sent again and found to be there."""
    if not campaign:
        pytest.skip("a storm with a whole network: with --campaign")
    ended = threading.Event()
    with Proxy(url) as proxy:

        def cut() -> None:
            while not ended.wait(0.3):
                proxy.reset()

        cutter = threading.Thread(target=cut)
        cutter.start()
        try:
            counts: dict[str, Any] = {"flows": 1_000, "kills": 60, "workers": 3, "through": proxy.url}
            ledger = str(tmp_path / "ledger")
            found = raged(fork_server, flows.storm, 1_500, url=url, path=ledger, **counts)
        finally:
            ended.set()
            cutter.join()
    assert found["flows"] == counts["flows"]


@pytest.mark.spec("DURABLE-19")
def test_a_storm_of_kills_and_frozen_workers_loses_no_step(
    url: str, tmp_path: Path, fork_server: ForkServer, campaign: bool
) -> None:
    """Frozen beyond their lease: such a worker may begin a step that another one has stored, and stores nothing."""
    if not campaign:
        pytest.skip("leases must pass: with --campaign")
    counts: dict[str, Any] = {"flows": 1_000, "kills": 60, "workers": 4, "freezing": 0.3}
    found = raged(fork_server, flows.storm, 1_500, url=url, path=str(tmp_path / "ledger"), **counts)
    assert found["flows"] == counts["flows"]
    assert found["frozen"] >= 1


@pytest.mark.spec("DURABLE-19")
@pytest.mark.parametrize("kind", SERVERS)
def test_a_storm_of_kills_and_server_crashes_loses_no_step(
    kind: str, tmp_path: Path, fork_server: ForkServer, campaign: bool
) -> None:
    """The server is killed and comes back, again and again, while workers are: what it acknowledged is there."""
    if not campaign:
        pytest.skip("a server of its own that crashes all the time: with --campaign")
    ended, crashes, ledger = threading.Event(), 0, tmp_path / "ledger"
    with services.postgres_server() if kind == "postgres" else services.redis_server() as server:
        if kind == "redis":
            server.end(signal.SIGTERM)
            server.start(appendfsync="always")

        def crash() -> None:
            nonlocal crashes
            while crashes < CRASHES and not ended.wait(1.0):
                if ledger.exists() and ledger.stat().st_size:  # the storm has begun
                    server.end(signal.SIGQUIT if kind == "postgres" else signal.SIGKILL)
                    server.start()
                    crashes += 1

        crasher = threading.Thread(target=crash)
        crasher.start()
        try:
            url = f"{server.url}{'&' if '?' in server.url else '?'}{'schema' if kind == 'postgres' else 'prefix'}=storm"
            counts: dict[str, Any] = {"flows": 1_000, "kills": 150, "workers": 3}
            found = raged(fork_server, flows.storm, 1_500, url=url, path=str(ledger), **counts)
        finally:
            ended.set()
            crasher.join()
    assert (found["flows"], crashes) == (counts["flows"], CRASHES)


@pytest.mark.spec("DURABLE-19")
@pytest.mark.parametrize("url", TRANSACTIONAL[:1], indirect=True)
@pytest.mark.parametrize("bug", flows.BUGS)
def test_a_storm_finds_out_designs_that_only_look_right(
    url: str, bug: str, tmp_path: Path, fork_server: ForkServer, campaign: bool
) -> None:
    if not campaign and bug != flows.SOON_FOUND:
        pytest.skip("it takes its time: with --campaign")
    counts: dict[str, Any] = {"flows": 40, "kills": 15 if campaign else 8, "workers": 2, "calm": 5.0}
    ledger, seed = str(tmp_path / "ledger"), secrets.randbits(32)
    found = fork_server.call(flows.storm, within=600, url=url, path=ledger, seed=seed, bug=bug, **counts).answer
    assert found["wrong"], f"seed {seed}"
