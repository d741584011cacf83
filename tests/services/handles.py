"""What tests hold of a server: its URL, and the means to hurt it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from tests.services.binaries import Unavailable, clock_shifter
from tests.services.keeper import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
KEEPER = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.services import keeper; keeper.main()"


class Server:
    """One server of the test's own; it comes back on the same port and directory."""

    def __init__(self, keeper: subprocess.Popen[str], kind: str) -> None:
        self._keeper = keeper
        self.kind = kind
        answer = self._answer()
        self.url: str = answer["url"]
        self.port: int = answer["port"]
        self.data = Path(answer["data"])
        self.pid: int | None = answer["pid"]

    def _answer(self) -> dict[str, Any]:
        assert self._keeper.stdout
        line = self._keeper.stdout.readline()
        if not line:
            raise Unavailable(f"no {self.kind} for the tests; the reason stands above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Unavailable(answer["error"])
        return answer

    def _order(self, **order: Any) -> None:
        assert self._keeper.stdin
        self._keeper.stdin.write(json.dumps(order) + "\n")
        self._keeper.stdin.flush()
        self.pid = self._answer()["pid"]

    def end(self, number: signal.Signals) -> None:
        """Send a signal, and return when the server is gone."""
        self._order(do="end", signal=int(number))

    def kill(self) -> None:
        """Kill -9: nothing is flushed, no client is notified."""
        self.end(signal.SIGKILL)

    def start(self, **settings: str) -> None:
        """Start it where it was, with these settings changed from now on; it answers when this returns.

        `_` in a name stands for `-` where the server's own names have that; names in capitals are its environment's.
        """
        self._order(do="start", settings=spelled(self.kind, settings))

    def freeze(self) -> None:
        """SIGSTOP: sockets stay open, nothing answers. On Postgres only those who come new are concerned."""
        assert self.pid
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.pid
        os.kill(self.pid, signal.SIGCONT)


class PostgresServer(Server):
    def stop(self, how: str = "fast") -> None:
        """`immediate` is what a crash of the machine is to the store; `fast` disconnects all clients first."""
        self.end({"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[how])

    def restart(self, how: str = "immediate", **settings: str) -> None:
        self.stop(how)
        self.start(**settings)

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """One statement as the superuser, on a connection of its own."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []

    def terminate_all(self) -> int:
        """Every session of a client but our own ends, as by an administrator; how many there were."""
        found = self.sql(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity "
            "where pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
        return int(found[0][0])

    def demote(self) -> None:
        """Bring it back in recovery, like a standby one has failed over to too early: it reads, and refuses writes."""
        self.stop()
        (self.data / "cluster" / "standby.signal").touch()
        self.start()

    def promote(self) -> None:
        self.sql("select pg_promote(true, 30)")


class RedisServer(Server):
    def stop(self) -> None:
        """An orderly end, with whatever the configuration saves then."""
        self.end(signal.SIGTERM)

    @property
    def log_of_writes(self) -> Path:
        """The file that the server appends its writes to (AOF)."""
        newer = sorted(self.data.glob("appendonlydir/*.incr.aof"), key=lambda path: int(path.name.split(".")[-3]))
        return newer[-1] if newer else self.data / "appendonly.aof"


@contextlib.contextmanager
def kept(kind: str, settings: dict[str, str] | None = None) -> Iterator[Server]:
    """Start a keeper, hand out the server it reports, and let go of it at the end."""
    keeper = spawn(kind, settings)
    assert keeper.stdin
    assert keeper.stdout
    with keeper.stdin as leash, keeper.stdout:
        try:
            yield {"postgres": PostgresServer, "redis": RedisServer}.get(kind, Server)(keeper, kind)
        finally:
            leash.close()
            keeper.wait(PATIENCE)


def spelled(kind: str, settings: dict[str, str]) -> dict[str, str]:
    """Settings as the server spells them."""
    dashed = kind == "redis"
    return {name.replace("_", "-") if dashed and not name.isupper() else name: settings[name] for name in settings}


class WrongClock:
    """A clock that is wrong by so many seconds, for whatever server is given its environment."""

    def __init__(self, by: int) -> None:
        library = clock_shifter()
        handle, name = tempfile.mkstemp(prefix="stoker-clock-", dir="/tmp" if os.geteuid() == 0 else None)
        os.close(handle)
        self._file = Path(name)
        self._file.chmod(0o644)
        self.set(by)
        self.environ = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": name,
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, by: int) -> None:
        """Let it jump, at once."""
        self._file.write_text(f"{by:+d}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.unlink()


def spawn(kind: str, settings: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-c", KEEPER, kind, json.dumps(spelled(kind, settings or {}))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for the tests; the keeper is told by the pipe
    )
