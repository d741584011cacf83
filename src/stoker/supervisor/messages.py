"""What a supervisor and its worker processes say to one another: JSON lines, one value each."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from stoker.worker.fetcher import Order

# --- to the worker process --------------------------------------------------------------------------------------


class Assignment(msgspec.Struct, tag="assignment"):
    """Which worker to be, and whose. `extra` is for whoever wraps the entry: a command sets up its logs with it."""

    app: str
    queues: dict[str, int] | list[str] | None = None
    order: Order = "own"
    drain: bool = False
    settings: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    guardian: str | None = None


class Drain(msgspec.Struct, tag="drain"):
    """Finish what runs and exit; saying it twice changes nothing."""


class Hurry(msgspec.Struct, tag="hurry"):
    """Do not wait for what runs."""


class Quiet(msgspec.Struct, tag="quiet"):
    """Claim nothing more."""


# --- from the worker process ------------------------------------------------------------------------------------


class Identity(msgspec.Struct, tag="identity"):
    """From now on this process claims as this worker."""

    worker: str


class Stats(msgspec.Struct, tag="stats"):
    """How it goes: settlements by status, running jobs, abandoned threads, resident bytes."""

    ready: bool
    counts: dict[str, int]
    running: int = 0
    abandoned: int = 0
    slots: int = 0
    rss: int = 0


class Unable(msgspec.Struct, tag="unable"):
    """The worker could not start."""

    why: str


class Farewell(msgspec.Struct, tag="farewell"):
    """Everything is settled; `asked` is false when the worker stopped by itself because something in it broke."""

    asked: bool
    counts: dict[str, int]


ToWorker: TypeAlias = Assignment | Drain | Hurry | Quiet
FromWorker: TypeAlias = Identity | Stats | Unable | Farewell

encode = msgspec.json.Encoder().encode
read_order = msgspec.json.Decoder(ToWorker).decode
read_report = msgspec.json.Decoder(FromWorker).decode
