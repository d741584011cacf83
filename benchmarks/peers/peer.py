"""The interface of a system under measurement, and what its jobs do. Only the standard library is used here.

A module of `benchmarks.peers.systems` is imported twice: by the benchmark, which reads what is written about the
system, and by the Python of the system's own environment, which enqueues and works. So it imports the system inside
functions.
"""

from __future__ import annotations

import os
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol, TypeAlias

Store: TypeAlias = Literal["sqlite", "redis", "postgres"]
Setting: TypeAlias = Literal["default", "tuned"]

RUN = struct.Struct("<qq")
"""One execution: the number of the job, and the monotonic clock in nanoseconds."""

STEPS = 10
"""Of a job that is measured with steps."""

_runs: list[int] = []


def ran(number: int) -> None:
    """What every job does: append one execution to the file of the measurement, in one write."""
    if not _runs:
        _runs.append(os.open(os.environ["BENCH_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644))
    os.write(_runs[0], RUN.pack(number, time.monotonic_ns()))


def url() -> str:
    """The store of this measurement."""
    return os.environ["BENCH_URL"]


class Copy(NamedTuple):
    """A table with rows of finished jobs, and the expressions that make a copy of such a row unique."""

    table: str
    fresh: Mapping[str, str]


class Ask(Protocol):
    """Questions to the store of a measurement."""

    def sql(self, statement: str) -> int:
        """The one number that a statement returns, on SQLite or Postgres."""

    def size(self, *keys: str) -> int:
        """The entries of these keys of Redis together; of a stream those that are not acknowledged."""


class Peer(ABC):
    """One system on one store, with the settings it is measured with."""

    name: ClassVar[str]
    """As tables show it."""
    environment: ClassVar[str]
    """Its line in `pins`."""
    store: Store
    default: ClassVar[str]
    """Its settings as its first pages show them, in words."""
    tuned: ClassVar[str]
    """The settings that drained fastest here, in words."""
    bulk: ClassVar[str]
    """How many jobs are enqueued at once."""
    finished: ClassVar[str]
    """What becomes of a finished job."""
    jobs: tuple[int, int]
    """How many jobs one process drains in about a second: with default settings, and tuned."""
    stepped: ClassVar[int] = 0
    """How many jobs of ten steps one process runs in about a second; 0: it has no steps."""
    chunk: ClassVar[int] = 1_000
    """Jobs in one bulk call."""
    latency: ClassVar[Setting] = "default"
    """Whichever setting starts jobs sooner."""
    delays: ClassVar[bool] = True
    """Can its worker alone start a job at a given time?"""
    history: ClassVar[tuple[Copy, ...]] = ()
    """Where Postgres has finished jobs, if the system keeps them."""
    language: ClassVar[Literal["python", "node"]] = "python"

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.environment}.{self.store}"

    @property
    def keeps(self) -> bool:
        """Can it be measured beside a million finished jobs?"""
        return bool(self.history) and self.store == "postgres"

    @abstractmethod
    def left(self, ask: Ask) -> int:
        """How many jobs wait or run, as its store says."""


class PythonPeer(Peer):
    """What runs in the system's own environment."""

    def prepare(self) -> None:
        """Make the schema, where the system asks for that."""

    @abstractmethod
    async def open(self) -> None:
        """Connect as a producer."""

    @abstractmethod
    async def enqueue(self, number: int, delay: float | None = None) -> None:
        """Enqueue one job, to start now or in `delay` seconds."""

    @abstractmethod
    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """Enqueue these jobs in the quickest way it has."""

    async def close(self) -> None:
        """Disconnect."""

    @abstractmethod
    def work(self, *, tuned: bool) -> None:
        """Become one worker process, until it is killed."""


class DurablePeer(PythonPeer):
    """A system whose jobs can have steps."""

    @abstractmethod
    async def enqueue_stepped(self, numbers: Sequence[int]) -> None:
        """Enqueue these jobs, each with ten steps."""

    @abstractmethod
    async def enqueue_waiting(self, numbers: Sequence[int]) -> None:
        """Enqueue these jobs, each of which waits for an answer before it does anything."""

    @abstractmethod
    async def answer(self, number: int) -> None:
        """Send a waiting job its answer."""
