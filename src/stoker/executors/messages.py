"""What a worker and its child processes say to one another: JSON lines, one value each. Nothing here names code to run
but the app's own path, which comes from the worker and never from a store.
"""

from __future__ import annotations

from typing import Any, TypeAlias, get_args

import msgspec

from stoker.model.ids import JobId
from stoker.model.job import Claim, Settlement
from stoker.model.outcome import Outcome
from stoker.model.steps import Step, StepState
from stoker.model.time import Span

# --- to the child -----------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, tag="hello"):
    """What to import, how much memory to use (MiB), from which level on to pass on log records."""

    app: str
    modules: tuple[str, ...] = ()
    memory: int | None = None
    level: int = 30


class Run(msgspec.Struct, tag="run"):
    """Run this claim's handler. `trace` is what its spans go on from, where the app traces.

    `keep`: how long the job stays when it is done, for a block that settles it.
    """

    claim: Claim
    trace: dict[str, str] | None = None
    keep: Span | None = None


class Stop(msgspec.Struct, tag="stop"):
    """The run should stop."""

    reason: str


class Stopping(msgspec.Struct, tag="stopping"):
    """The worker begins to stop; the run may go on until it is asked to stop."""


class Where(msgspec.Struct, tag="where"):
    """Tell where the handler stands."""


class Leave(msgspec.Struct, tag="leave"):
    """No more work: close what the lifespans opened and exit."""


# --- from the child ---------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, tag="ready"):
    """Imported and waiting."""


class Broken(msgspec.Struct, tag="broken"):
    """Cannot run the task at all: an import failed, or the task is not there after it."""

    why: str


class Began(msgspec.Struct, tag="began"):
    """The run has begun: from now on the child's death is the job's."""


class Said(msgspec.Struct, tag="said"):
    """Progress, log lines and metadata for the job's record; None in place of metadata that was removed again."""

    progress: float | None
    lines: tuple[str, ...]
    metadata: dict[str, str | None] | None = None


class Emitted(msgspec.Struct, tag="emitted"):
    """The handler has emitted a value: an entry as it is stored."""

    entry: msgspec.Raw


class Withheld(msgspec.Struct, tag="withheld"):
    """A block of the handler is open, and will store what was emitted; or it is over."""

    over: bool


class Stepped(msgspec.Struct, tag="stepped"):
    """The run has stored a step, as done or failed."""

    state: StepState


class Waits(msgspec.Struct, tag="waits"):
    """The handler begins to wait for another job, or ends."""

    job: JobId
    over: bool


class Logged(msgspec.Struct, tag="logged"):
    """A log record as text; `error` is what it says of an exception, whose line comes first."""

    name: str
    level: int
    text: str
    error: str = ""


class Settled(msgspec.Struct, tag="settled"):
    """A block of the handler has settled the job, in the commit of its writes."""

    settlement: Settlement


class Stands(msgspec.Struct, tag="stands"):
    """Where the handler stands: what runs it, and its stack."""

    place: str
    stack: str


class Ended(msgspec.Struct, tag="ended"):
    """The run is over. `tired`: the child should not be used again.

    `moved`: a block may have moved the claim. `doubt`: it is unknown whether the block's commit happened. `steps`: rows
    that the end of a durable run has to store.
    """

    kind: str
    outcome: msgspec.Raw
    metadata: dict[str, str] | None = None
    tired: bool = False
    moved: bool = False
    doubt: str | None = None
    steps: tuple[Step, ...] = ()

    def read(self) -> Outcome:
        """The outcome itself."""
        found: Outcome = msgspec.json.decode(self.outcome, type=OUTCOMES[self.kind])
        return found


OUTCOMES: dict[str, Any] = {cls.__name__: cls for cls in get_args(Outcome)}
"""Every outcome there is, so that a new one reaches the worker from a child process too."""

ToChild: TypeAlias = Hello | Run | Stop | Stopping | Where | Leave
FromChild: TypeAlias = (
    Ready | Broken | Began | Said | Emitted | Withheld | Stepped | Waits | Logged | Settled | Stands | Ended
)

encode = msgspec.json.Encoder().encode
read_order = msgspec.json.Decoder(ToChild).decode
read_report = msgspec.json.Decoder(FromChild).decode


def ended(
    outcome: Outcome,
    metadata: dict[str, str] | None,
    *,
    tired: bool,
    moved: bool = False,
    doubt: str | None = None,
    steps: tuple[Step, ...] = (),
) -> bytes:
    """The last message of a run."""
    return encode(Ended(type(outcome).__name__, msgspec.Raw(encode(outcome)), metadata, tired, moved, doubt, steps))
