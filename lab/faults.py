"""The table of faults. Each is done to a running storm; an engine that cannot have one says why."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lab.storm import Storm

FROZEN_FOR: Final = 1.7
"""Leases for which a process stands still."""

MOST_FROZEN: Final = 3
FARTHEST: Final = 12
"""Seconds that the store's clock may be ahead."""

SHORT: Final = 1.0
"""Seconds without room or memory."""


def kill_embedded(storm: Storm) -> bool:
    return storm.kill("embedded")


def kill_process(storm: Storm) -> bool:
    return storm.kill("process")


def kill_supervisor(storm: Storm) -> bool:
    return storm.kill("supervisor")


def kill_producer(storm: Storm) -> bool:
    return storm.kill("producer")


def freeze(storm: Storm) -> bool:
    return len(storm.frozen) < MOST_FROZEN and storm.freeze()


def restart(storm: Storm) -> bool:
    with storm.away():
        storm.store.restart()
    storm.store.mend()
    return True


def reboot(storm: Storm) -> bool:
    """All processes that have the file open end at the same moment, as with their host; only the file is left."""
    storm.kill_all()
    storm.ledger.write("back")
    return True


def failover(storm: Storm) -> bool:
    with storm.away():
        done: bool = storm.store.failover()
    storm.store.mend()
    return done


def cut_reply(storm: Storm) -> bool:
    storm.store.cut(storm.chance)
    return True


def disconnect(storm: Storm) -> bool:
    storm.store.disconnect()
    return True


def fill_disk(storm: Storm) -> bool:
    with storm.away():
        if not storm.store.fill():
            return False
        time.sleep(SHORT)
        storm.store.free()
    return True


def use_up_memory(storm: Storm) -> bool:
    with storm.away():
        storm.store.use_up_memory()
        time.sleep(SHORT)
        storm.store.free_memory()
    return True


def jump(storm: Storm) -> bool:
    """Forth or back, by seconds: most jumps are longer than a lease."""
    if storm.store.clock is None:
        return False
    storm.ledger.write("jump")
    storm.store.clock.set(storm.chance.randrange(FARTHEST + 1))
    return True


@dataclass(frozen=True)
class Fault:
    """`count` is the number of the report that it adds to. `cannot`: engines that cannot have it, and why."""

    name: str
    what: str
    share: float
    act: Callable[[Storm], bool]
    count: str
    cannot: Mapping[str, str] = field(default_factory=dict)


NO_SERVER: Final = "a file has no server"
FILE: Final = "an embedded store has no connection"
LOG: Final = "a Redis that cannot write its log ends itself, which is a restart"
SERVERS: Final = ("postgres", "redis", "redis-cluster")

FAULTS: Final = (
    Fault("kill embedded worker", "kill -9 of a program with a worker inside", 40, kill_embedded, "kills"),
    Fault("kill worker process", "kill -9 of a process of `stoker work`", 10, kill_process, "kills"),
    Fault("kill supervisor", "kill -9 of `stoker work` itself", 2, kill_supervisor, "kills"),
    Fault("kill producer", "kill -9 of a process that enqueues", 30, kill_producer, "kills"),
    Fault("freeze", "SIGSTOP of a worker beyond its lease, then SIGCONT", 9, freeze, "freezes"),
    Fault("restart server", "the server is killed and starts again", 2, restart, "restarts", {"sqlite": NO_SERVER}),
    Fault(
        "reboot",
        "every process is killed at once",
        2,
        reboot,
        "restarts",
        dict.fromkeys(SERVERS, "the server is not on the host of the workers; see `restart server`"),
    ),
    Fault(
        "failover",
        "the server is killed, a replica that has every acknowledged write takes over",
        0.5,
        failover,
        "failovers",
        {"sqlite": NO_SERVER},
    ),
    Fault(
        "cut reply",
        "an order is carried out, its answer is lost or truncated",
        12,
        cut_reply,
        "cut replies",
        {"sqlite": FILE, "redis-cluster": "clients speak to the nodes themselves; see `disconnect`"},
    ),
    Fault("disconnect", "all connections are reset", 2, disconnect, "disconnects", {"sqlite": FILE}),
    Fault(
        "disk full",
        "no room for a second; Postgres refuses writes, as managed servers do then",
        1,
        fill_disk,
        "full disks",
        {"redis": LOG, "redis-cluster": LOG},
    ),
    Fault(
        "memory full",
        "the server accepts no writes for a second",
        1,
        use_up_memory,
        "full memories",
        dict.fromkeys(("sqlite", "postgres"), "it needs no memory for what it stores"),
    ),
    Fault(
        "clock jump",
        "the clock of the store jumps by up to 12 s, forth or back",
        0.5,
        jump,
        "clock jumps",
        {"redis-cluster": "its nodes measure silence by the same clock, so a jump is a failover of all masters"},
    ),
    Fault(
        "power loss",
        "the images of the disk that could be left, from the system calls of a run",
        0,
        lambda _: False,
        "power loss",
        dict.fromkeys(SERVERS, "its files are the server's own; the lab kills the server"),
    ),
)
