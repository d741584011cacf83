"""One module for each system: how it enqueues, how it works, and when nothing is left."""

from __future__ import annotations

import importlib

from benchmarks.peers.peer import Peer

MODULES = (
    "stoker",
    "huey",
    "rq",
    "procrastinate",
    "celery",
    "dramatiq",
    "taskiq",
    "arq",
    "saq",
    "pgqueuer",
    "dbos",
    "bullmq",
    "graphile_worker",
    "pg_boss",
)
"""In the order of the first round."""


def of_module(name: str) -> tuple[Peer, ...]:
    """A system on each store that it is measured on."""
    found: tuple[Peer, ...] = importlib.import_module(f"{__name__}.{name}").PEERS
    return found


def everything() -> list[Peer]:
    """All systems on all their stores."""
    return [peer for name in MODULES for peer in of_module(name)]


def load(key: str) -> Peer:
    """By its name in the results."""
    module = key.partition(".")[0].replace("-", "_")
    [peer] = [peer for peer in of_module(module) if peer.key == key]
    return peer
