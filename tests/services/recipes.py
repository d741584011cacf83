"""How each kind of server is run in a directory of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.services.binaries import (
    Unavailable,
    nats_binary,
    other_user,
    pgbouncer_binary,
    postgres_binaries,
    rabbitmq_script,
    redis_binary,
)

PORTS = range(15_000, 22_000)
"""Below the ports that systems hand out by themselves: none is taken while its server is down, and a client that
knocks at it meanwhile cannot by chance be connected with itself. A cluster node also needs the port 10,000 above."""

Settings = dict[str, str]


class Recipe(Protocol):
    given: Settings
    stop: signal.Signals
    as_root: bool
    """Whether it stays with our user even if that is root."""

    @property
    def environ(self) -> Settings:
        """What the server's own environment has beside ours."""

    def prepare(self) -> None:
        """Make the directory ready; once."""

    def command(self, port: int) -> list[str]:
        """The server in the foreground on a port of the loopback interface."""

    def ready(self, port: int, pid: int) -> bool:
        """Whether the server answers now."""

    def url(self, port: int) -> str: ...


def recipe(kind: str, home: Path, data: Path, settings: Settings) -> Recipe:
    kinds: dict[str, Callable[[Path, Path, Settings], Recipe]] = {
        "postgres": Postgres,
        "redis": Redis,
        "pgbouncer": Pgbouncer,
        "swapper": Swapper,
        "rabbitmq": RabbitMq,
        "nats": Nats,
    }
    return kinds[kind](home, data, settings)


def free_port() -> int:
    for port in random.sample(PORTS, 500):
        with contextlib.suppress(OSError), socket.socket() as probe, socket.socket() as bus:
            for number, candidate in ((port, probe), (port + 10_000, bus)):
                candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                candidate.bind(("127.0.0.1", number))
            return port
    raise Unavailable(f"no free port among {PORTS}")


def listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 0.5).close()
    except OSError:
        return False
    return True


def before_exec(stop: signal.Signals, *, as_root: bool = False) -> Callable[[], None]:
    """What a child does before it becomes the server: drop root, and ask to be stopped if the keeper is killed."""
    who = None if as_root else other_user()
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def drop() -> None:
        if who:
            os.setgroups([])
            os.setgid(who[1])
            os.setuid(who[0])
        if prctl:
            prctl(1, int(stop))  # PR_SET_PDEATHSIG; after setuid, which clears it

    return drop


@dataclass
class Program:
    """What all of them have in common. Settings in capitals are variables of the server's environment."""

    home: Path
    data: Path
    given: Settings = field(default_factory=dict)
    as_root = False

    @property
    def environ(self) -> Settings:
        return {name: value for name, value in self.given.items() if name.isupper()}

    @property
    def settings(self) -> Settings:
        return {name: value for name, value in self.given.items() if not name.isupper()}


class Postgres(Program):
    stop = signal.SIGINT  # fast shutdown: does not wait for clients

    def prepare(self) -> None:
        self.bin = postgres_binaries(self.home)
        options = ["-U", "postgres", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8"]
        done = subprocess.run(
            [self.bin / "initdb", "-D", self.data / "cluster", *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd="/",
            preexec_fn=before_exec(signal.SIGKILL),
            check=False,
        )
        if done.returncode:
            raise Unavailable(f"initdb failed: {done.stdout[-500:]}{done.stderr[-1500:]}")

    def command(self, port: int) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "dynamic_shared_memory_type": "mmap",  # /dev/shm may be tiny or closed
            "fsync": "off",
            **self.settings,
        }
        flags = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [str(self.bin / "postgres"), "-D", str(self.data / "cluster"), "-p", str(port), *flags]

    def ready(self, port: int, pid: int) -> bool:
        # The last line tells the truth even while the port already accepts connections.
        try:
            lines = (self.data / "cluster" / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # A killed server has left its own.
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() in {"ready", "standby"}

    def url(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"


class Redis(Program):
    stop = signal.SIGTERM

    def prepare(self) -> None:
        self.bin = redis_binary(self.home, self.environ)

    def command(self, port: int) -> list[str]:
        settings = {
            "bind": "127.0.0.1",
            "dir": str(self.data),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "repl-diskless-sync": "yes",  # else a master that saves nothing leaves a dump after all
            "repl-diskless-sync-delay": "0",
            **self.settings,
        }
        flags = [word for key, value in settings.items() for word in (f"--{key}", *(value.split() or [""]))]
        return [str(self.bin), "--port", str(port), *flags]

    def ready(self, port: int, pid: int) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), 0.5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def url(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"


class Pgbouncer(Program):
    """PgBouncer in transaction mode before the Postgres on port `behind`, as any user of any database of it."""

    stop = signal.SIGINT

    def prepare(self) -> None:
        self.bin = pgbouncer_binary()

    def command(self, port: int) -> list[str]:
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(port),
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": str(self.home / "users"),
            "auth_query": "select usename, '' from pg_shadow where usename = $1",
            "pool_mode": "transaction",
            "default_pool_size": self.settings["size"],
            "min_pool_size": self.settings["size"],
            "max_client_conn": "500",
            "server_round_robin": "1",  # the next transaction gets another session
            "server_login_retry": "1",  # seconds; the usual 15 would outlast a test
            "query_wait_timeout": "30",
            "logfile": str(self.data / "log"),
        }
        lines = [
            "[databases]",
            f"* = host=127.0.0.1 port={self.settings['behind']} auth_user=postgres",
            "[pgbouncer]",
            *(f"{key} = {value}" for key, value in settings.items()),
        ]
        (self.home / "users").write_text('"postgres" ""\n')
        (self.home / "ini").write_text("\n".join(lines) + "\n")
        return [str(self.bin), "-q", str(self.home / "ini")]

    def ready(self, port: int, pid: int) -> bool:
        return listening(port)

    def url(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"


class Swapper(Program):
    """Our own pooler, where there is no PgBouncer and where every transaction must meet another session."""

    stop = signal.SIGTERM
    as_root = True  # the interpreter may lie where `nobody` cannot enter

    def prepare(self) -> None:
        """It is the interpreter that runs us."""

    def command(self, port: int) -> list[str]:
        root = Path(__file__).resolve().parents[2]
        code = f"import sys; sys.path.insert(0, {str(root)!r}); from tests.services import swapper; swapper.main()"
        return [sys.executable, "-I", "-c", code, str(port), self.settings["behind"], self.settings["size"]]

    def ready(self, port: int, pid: int) -> bool:
        return listening(port)

    def url(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"


class RabbitMq(Program):
    """RabbitMQ as one node without `epmd`, the daemon by which nodes find one another and which would outlive it."""

    stop = signal.SIGTERM
    port = 0

    def prepare(self) -> None:
        self.bin = rabbitmq_script()
        (self.home / "rabbitmq.conf").write_text("loopback_users = none\n")

    def command(self, port: int) -> list[str]:
        self.port = port
        return [str(self.bin)]

    @property
    def environ(self) -> Settings:
        node = f"stoker{self.port}@localhost"
        places = {name: str(self.data / name.lower()) for name in ("MNESIA_BASE", "LOG_BASE", "PID_FILE")}
        names = {
            **places,
            "ENABLED_PLUGINS_FILE": str(self.home / "plugins"),
            "CONFIG_FILE": str(self.home / "rabbitmq.conf"),
            "CONF_ENV_FILE": str(self.home / "none"),
            "LOGS": "-",
            "NODE_IP_ADDRESS": "127.0.0.1",
            "NODE_PORT": str(self.port),
            "NODENAME": node,
            "SERVER_ADDITIONAL_ERL_ARGS": f"-sname {node} -start_epmd false -erl_epmd_port {self.port + 10_000} +S 1:1",
        }
        prefixed = {f"RABBITMQ_{name}": value for name, value in names.items()}
        # Without the last one the script stays as the parent, and a kill would meet only the script.
        return {**super().environ, **prefixed, "HOME": str(self.data), "RUNNING_UNDER_SYSTEMD": "true"}

    def ready(self, port: int, pid: int) -> bool:
        return listening(port)

    def url(self, port: int) -> str:
        return f"amqp://guest:guest@127.0.0.1:{port}/"


class Nats(Program):
    """NATS with JetStream."""

    stop = signal.SIGTERM

    def prepare(self) -> None:
        self.bin = nats_binary()

    def command(self, port: int) -> list[str]:
        return [str(self.bin), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(self.data)]

    def ready(self, port: int, pid: int) -> bool:
        return listening(port)

    def url(self, port: int) -> str:
        return f"nats://127.0.0.1:{port}"
