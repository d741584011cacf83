"""Messages between a supervisor and its worker processes: JSON lines, one value each."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from stoker.model.measures import Measures
from stoker.worker.fetcher import Order

# --- to the worker process --------------------------------------------------------------------------------------


class Assignment(msgspec.Struct, tag="assignment"):
    """Which worker to run. `extra` is for the entry point: the command sets up logging with it.

    `metrics`: measure runs and store calls, and report them.
    """

    app: str
    queues: dict[str, int] | list[str] | None = None
    order: Order = "own"
    drain: bool = False
    settings: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    supervisor: str | None = None
    metrics: bool = False


class Drain(msgspec.Struct, tag="drain"):
    """Finish running jobs and exit; a second one changes nothing."""


class Hurry(msgspec.Struct, tag="hurry"):
    """Interrupt running jobs and exit."""


class Quiet(msgspec.Struct, tag="quiet"):
    """Claim no more jobs."""


class Resume(msgspec.Struct, tag="resume"):
    """Claim jobs again."""


# --- from the worker process ------------------------------------------------------------------------------------


class Identity(msgspec.Struct, tag="identity"):
    """This process now claims as this worker."""

    worker: str


class Stats(msgspec.Struct, tag="stats"):
    """Settlements by status, running jobs, abandoned threads, resident bytes.

    `quiet`: it claims nothing for now. `resting`: it claims no more, and holds no claim.
    """

    ready: bool
    counts: dict[str, int]
    quiet: bool = False
    running: int = 0
    abandoned: int = 0
    slots: int = 0
    rss: int = 0
    resting: bool = False


class Measured(msgspec.Struct, tag="measured"):
    """What the process measured since it started."""

    measures: Measures


class StartFailed(msgspec.Struct, tag="unable"):
    """The worker could not start."""

    why: str


class Finished(msgspec.Struct, tag="finished"):
    """Everything is settled; `asked` is false when the worker stopped by itself because something in it broke.

    `ordered`: a user told this worker from afar to stop.
    """

    asked: bool
    counts: dict[str, int]
    ordered: bool = False


ToWorker: TypeAlias = Assignment | Drain | Hurry | Quiet | Resume
FromWorker: TypeAlias = Identity | Stats | Measured | StartFailed | Finished

encode = msgspec.json.Encoder().encode
read_order = msgspec.json.Decoder(ToWorker).decode
read_report = msgspec.json.Decoder(FromWorker).decode
