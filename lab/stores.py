"""The stores of the lab: real servers of its own and what can be done to each; for SQLite, a small disk of its own."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar

import psycopg
import redis

from lab.place import FileClock
from tests import services
from tests.harness.proxy import Proxy
from tests.services.binaries import other_user, postgres_binaries
from tests.services.clusters import Cluster, Node

ENGINES: Final = ("sqlite", "postgres", "redis", "redis-cluster")
DISK: Final = 1_000
"""MiB of the disk that can be filled up."""

Server = TypeVar("Server", services.PostgresServer, services.RedisServer)

NODE_TIMEOUT: Final = 4_000
"""Milliseconds of silence after which a cluster promotes a replica that may take over."""


class Store(Protocol):
    """`url` is how members reach it, `direct` how the judge does; `clock` is the one that it goes by, if it can jump.

    What else can be done to a store are methods of its class; `faults.py` names the engines that cannot have a fault.
    """

    settings: dict[str, Any]
    clock: services.WrongClock | FileClock | None

    @property
    def url(self) -> str: ...

    @property
    def direct(self) -> str: ...

    @property
    def version(self) -> str: ...


class Disk:
    """A small file system that can be filled up, where the machine allows one to be mounted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK}m,mode=0777", "tmpfs", str(folder)],
            capture_output=True,
            check=False,
        )
        self.mounted = done.returncode == 0

    def fill(self) -> None:
        """Leave no room."""
        with (self.folder / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(bytes(65_536))

    def free(self) -> None:
        (self.folder / "ballast").unlink()

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False, capture_output=True)


class Sqlite(Store):
    def __init__(self, disk: Disk, clock: FileClock) -> None:
        self.clock = clock
        self.disk = disk
        self.path = disk.folder / "jobs.db"
        self.settings = {"durability": "power", "journal": "wal"}

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    direct = url

    @property
    def version(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    def fill(self) -> bool:
        """Leave no room; False where no small disk could be mounted."""
        if self.disk.mounted:
            self.disk.fill()
        return self.disk.mounted

    def free(self) -> None:
        self.disk.free()


class Pair(Store, Generic[Server]):
    """Two servers, of which one leads and the other is its copy; members reach the leader through a proxy."""

    leader: Server
    copy: Server
    option: str
    """What names the lab's part of the store, in its URL."""

    def __init__(self, leader: Server, copy: Server, proxy: Proxy, clock: services.WrongClock | None) -> None:
        self.leader, self.copy, self.proxy, self.clock = leader, copy, proxy, clock
        self.alone = False
        """The leader's copy was a leader itself, which was killed."""

    @property
    def url(self) -> str:
        return f"{self.proxy.url}?{self.option}"

    @property
    def direct(self) -> str:
        return f"{self.leader.url}?{self.option}"

    def cut(self, chance: Any) -> None:
        """Lose or truncate the answer to one of the next orders."""
        if chance.random() < 0.5:
            self.proxy.lose_reply(skip=chance.randrange(20))
        else:
            self.proxy.truncate_reply(keep=chance.choice((1, 4, 5, 6, 17, 40)), skip=chance.randrange(20))

    def disconnect(self) -> None:
        self.proxy.reset()


class Postgres(Pair[services.PostgresServer]):
    """A primary and a standby that confirms every commit."""

    option = "schema=lab"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.settings = {"fsync": "on", "synchronous_commit": "on", "standby": "synchronous"}
        self.follow()
        self.leader.sql("create schema lab")

    @property
    def version(self) -> str:
        return "PostgreSQL " + str(self.leader.sql("show server_version")[0][0]).split(" ")[0]

    def _set(self, name: str, value: str) -> None:
        self.leader.sql(f"alter system set {name} = {value}")
        self.leader.sql("select pg_reload_conf()")

    def _streams(self) -> Any:
        return self.leader.sql("select 1 from pg_stat_replication where state = 'streaming'")

    def follow(self) -> None:
        """Make the standby a copy of the primary, and the primary wait for it from then on."""
        self._set("synchronous_standby_names", "''")
        if self.copy.pid is not None:
            self.copy.stop("immediate")
        target = self.copy.data / "cluster"
        shutil.rmtree(target)
        command = [str(postgres_binaries(self.copy.data.parent) / "pg_basebackup"), "-R", "-X", "stream", "-c", "fast"]
        command += ["--no-sync", "-D", str(target), "-d", self.leader.url]
        user, group = other_user() or (None, None)
        subprocess.run(command, check=True, capture_output=True, cwd="/", timeout=120, user=user, group=group)
        self.copy.start()
        wait(self._streams)
        self._set("synchronous_standby_names", "'*'")
        self._until_confirmed()

    def _until_confirmed(self) -> None:
        """Wait until every commit waits for the standby, and the standby has what was committed before.

        Backends look at a flag that the checkpointer sets: it reads a new setting at the latest when it begins the
        next checkpoint. A new session shows the settings that the server has passed on to its processes.
        """
        wait(lambda: self.leader.sql("show synchronous_standby_names") == [("*",)])
        self.leader.sql("checkpoint")
        [(written,)] = self.leader.sql("select pg_current_wal_lsn()")
        confirmed = f"sync_state = 'sync' and flush_lsn >= '{written}'"
        wait(lambda: self.leader.sql(f"select 1 from pg_stat_replication where {confirmed}"))

    def restart(self) -> None:
        """Crash and come back."""
        self.leader.stop("immediate")
        self.leader.start()

    def failover(self) -> bool:
        """Crash, and the standby takes over."""
        self.leader.stop("immediate")
        self.copy.promote()
        self.leader, self.copy, self.alone = self.copy, self.leader, True
        self._set("synchronous_standby_names", "''")
        self.proxy.redirect(self.leader.url)
        return True

    def mend(self) -> None:
        """Let the old primary follow as a copy, and wait until it confirms every commit."""
        if self.alone:
            self.follow()
            self.alone = False
        else:
            self._until_confirmed()

    def fill(self) -> bool:
        """Refuse writes, as managed servers do that have no room left."""
        self._set("default_transaction_read_only", "on")
        return True

    def free(self) -> None:
        self._set("default_transaction_read_only", "off")


class Redis(Pair[services.RedisServer]):
    """A master that syncs before it answers, and a replica."""

    option = "prefix=lab"

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.settings = {"appendonly": "yes", "appendfsync": "always"}
        self.follow()

    @property
    def version(self) -> str:
        return f"Redis {self._ask(self.leader, 'INFO', 'server')['redis_version']}"

    def _ask(self, server: services.RedisServer, *words: Any) -> Any:
        with redis.Redis.from_url(server.url, socket_timeout=60) as client:
            return client.execute_command(*words)

    def follow(self) -> None:
        self._ask(self.copy, "REPLICAOF", "127.0.0.1", self.leader.port)
        wait(lambda: self._ask(self.copy, "INFO", "replication")["master_link_status"] == "up")

    def restart(self) -> None:
        self.leader.kill()
        self.leader.start()

    def failover(self) -> bool:
        """The master accepts no more writes, its replica has all that it acknowledged; it is killed and replaced."""
        if not replicated(lambda *words: self._ask(self.leader, *words)):
            self.restart()
            self.copy.kill()  # it may have ended by itself: a pair without it would have no failover any more
            self.alone = True
            return False
        self.leader.kill()
        self._ask(self.copy, "REPLICAOF", "NO", "ONE")
        self.leader, self.copy, self.alone = self.copy, self.leader, True
        self.proxy.redirect(self.leader.url)
        return True

    def mend(self) -> None:
        """Let the old master follow as a replica."""
        if self.alone:
            self.copy.start()
            self.follow()
            self.alone = False

    def use_up_memory(self) -> None:
        self._ask(self.leader, "CONFIG", "SET", "maxmemory", 1)

    def free_memory(self) -> None:
        self._ask(self.leader, "CONFIG", "SET", "maxmemory", 0)


class RedisCluster(Store):
    """Three masters with a replica each. Members speak to the nodes themselves: there is no proxy in between."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.clock = cluster, None
        self.fallen: Node | None = None
        self.settings = {"appendonly": "yes", "appendfsync": "always", "masters": 3, "replicas": 3}
        self._hold_replicas()

    def _hold_replicas(self) -> None:
        """Let no replica take over by itself: on a busy machine a restart may take longer than the cluster waits."""
        for node in self.cluster.nodes:
            node.ask("CONFIG SET", "cluster-replica-no-failover", "yes")

    @property
    def version(self) -> str:
        return f"Redis {self.cluster.nodes[0].facts('INFO', 'server')['redis_version']}"

    @property
    def url(self) -> str:
        return f"{self.cluster.url}?prefix=lab"

    direct = url

    def _busiest(self) -> Node:
        """The master of the queue that has most of the work."""
        return self.cluster.owner(self.cluster.slot("{lab:default}:jobs"))

    def restart(self) -> None:
        master = self._busiest()
        master.server.kill()
        master.server.start()
        self.cluster.wait_whole()

    def failover(self) -> bool:
        master = self._busiest()
        if not replicated(master.ask):
            self.restart()
            return False
        self.cluster.replica(master).ask("CONFIG SET", "cluster-replica-no-failover", "no")
        heir = self.cluster.kill(master)
        self.cluster.promoted(heir)
        self.fallen = master
        return True

    def mend(self) -> None:
        """Let the old master follow as a replica."""
        if self.fallen is not None:
            self.cluster.revive(self.fallen)
            self.fallen = None
        self._hold_replicas()

    def disconnect(self) -> None:
        for node in self.cluster.masters:
            node.ask("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")

    def use_up_memory(self) -> None:
        for node in self.cluster.masters:
            node.ask("CONFIG SET", "maxmemory", 1)

    def free_memory(self) -> None:
        for node in self.cluster.nodes:
            node.ask("CONFIG SET", "maxmemory", 0)


def replicated(ask: Callable[..., Any]) -> bool:
    """Stop the writes of a master, and wait until its replica has confirmed all of them; False if that failed."""
    try:
        ask("CLIENT", "PAUSE", 60_000, "WRITE")
        if int(ask("WAIT", 1, 30_000)) == 1:
            return True
        why = f"no replica in 30 s: {ask('INFO', 'replication')}"
    except redis.RedisError as error:
        why = repr(error)
    print(f"a failover became a restart, {why}", file=sys.stderr, flush=True)
    return False


def wait(condition: Callable[[], Any], within: float = 90.0) -> None:
    give_up = time.monotonic() + within
    while True:
        with contextlib.suppress(psycopg.Error, redis.RedisError):
            if condition():
                return
        if time.monotonic() > give_up:
            raise TimeoutError(f"not within {within:g} s")
        time.sleep(0.02)


@contextmanager
def opened(engine: str, folder: Path) -> Iterator[Any]:
    """A store of the lab's own, gone afterwards."""
    with contextlib.ExitStack() as stack:
        if engine == "sqlite":
            disk = Disk(folder / "disk")
            stack.callback(disk.close)
            yield Sqlite(disk, FileClock(folder / "ledger.clock"))
            return
        clock = jumping(stack, engine, folder)
        environ: dict[str, Any] = clock.environ if clock else {}
        if engine == "postgres":
            servers = [
                stack.enter_context(services.postgres_server(shared_buffers="64MB", **environ)) for _ in range(2)
            ]
            yield Postgres(servers[0], servers[1], stack.enter_context(Proxy(servers[0].url)), clock)
        elif engine == "redis":
            pair = [stack.enter_context(services.redis_server(appendfsync="always", **environ)) for _ in range(2)]
            yield Redis(pair[0], pair[1], stack.enter_context(Proxy(pair[0].url)), clock)
        else:
            found = services.cluster(node_timeout=NODE_TIMEOUT, appendfsync="always")
            yield RedisCluster(stack.enter_context(found))


def jumping(stack: contextlib.ExitStack, engine: str, folder: Path) -> services.WrongClock | None:
    """A clock that can jump; None where the machine has no libfaketime, or the server does not run with it."""
    if engine == "redis-cluster":
        return None
    try:
        clock = stack.enter_context(services.WrongClock(0))
        if engine == "redis":
            services.redis_binary(folder, clock.environ)
    except services.Unavailable:
        return None
    return clock
