"""The pace of a consumer as users write it."""

from __future__ import annotations

import msgspec

from stoker.model.errors import InvalidOption
from stoker.model.outbox import batch_size
from stoker.model.time import Seconds, span


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How much a consumer takes at once, and how long it rests. Durations are seconds or `timedelta`.

    `batch`: messages in a normal turn · `breath`: least rest between two turns of a partition · `idle`: how long to
    wait for a wake-up before looking again · `retry_base`, `retry_max`: rest after the first and after many failures
    in a row · `threshold`: failures in a row before batches shrink.
    """

    batch: int = 100
    breath: Seconds = 0
    idle: Seconds = 1
    retry_base: Seconds = 1
    retry_max: Seconds = 60
    threshold: int = 2

    def __post_init__(self) -> None:
        self.stored()

    def stored(self) -> batch_size.Pace:
        """The pace as the rules use it; raises for values that make no sense."""
        return batch_size.Pace(
            self.batch,
            span(self.breath, "breath"),
            span(self.idle, "idle"),
            span(self.retry_base, "retry_base"),
            span(self.retry_max, "retry_max"),
            self.threshold,
        )


def read_pace(given: batch_size.Profile | Pace, batch: int | None) -> batch_size.Pace:
    """The pace that an option names, with the batch that another one gives."""
    pace = given.stored() if isinstance(given, Pace) else batch_size.pace(given)
    if batch is None:
        return pace
    if type(batch) is not int:
        raise InvalidOption("batch", batch, "must be a whole number")
    return msgspec.structs.replace(pace, batch=batch)
