"""Metrics with OpenTelemetry: `meter(jobs)` measures the runs of this process, and with `store=True` reads the store.

Which metrics there are is in `observe.metrics`, for Prometheus too. Only the api is used (the extra `otel`): without an
SDK in the process nothing is measured and nothing is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from threading import Lock

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter

from stoker.app import Stoker
from stoker.hooks import Gauges
from stoker.model.errors import StokerError
from stoker.model.job import Claim, Status
from stoker.model.measures import BOUNDS, OUTCOMES, Recorder
from stoker.model.steps import StepState
from stoker.model.time import SECOND
from stoker.observe.metrics import (
    JOB_DURATION,
    JOB_WAIT,
    NOTHING,
    RENEWAL_LAG,
    SLOTS_BUSY,
    STEPS,
    STORE_CALL,
    Family,
    Measured,
    families,
    read,
)

SAME_COLLECTION = 1.0
"""Seconds for which a reading of the store serves all instruments: the SDK asks each of them by itself."""


def meter(app: Stoker, *, store: bool = False, meter_provider: MeterProvider | None = None) -> None:
    """Measure runs, steps, waits and store calls of the workers in this process, from their next start on.

    Twice is harmless. Call it where the app is made, so that worker processes do it too. `store`: also read the counts
    of the store whenever the SDK collects, which one process per store should do, as the one with the dashboard.
    """
    if app.metering is None:
        app.metering = Metering(meter_provider).recorder
    if store:
        StoreInstruments(app, meter_provider)


class Metering:
    """The instruments of the workers in this process."""

    def __init__(self, meter_provider: MeterProvider | None) -> None:
        made = get_meter("stoker", meter_provider=meter_provider)

        def histogram(one: Measured) -> Callable[[float, Mapping[str, str]], None]:
            bounds = list(BOUNDS)
            return made.create_histogram(
                one.name, one.unit, one.text, explicit_bucket_boundaries_advisory=bounds
            ).record

        self._record = tuple(map(histogram, (JOB_DURATION, JOB_WAIT, STORE_CALL)))
        self._step = made.create_counter(STEPS.name, STEPS.unit, STEPS.text).add
        self._gauges: Gauges | None = None
        made.create_observable_gauge(SLOTS_BUSY.name, [self._busy], SLOTS_BUSY.unit, SLOTS_BUSY.text)
        made.create_observable_gauge(RENEWAL_LAG.name, [self._lag], RENEWAL_LAG.unit, RENEWAL_LAG.text)

    def recorder(self, gauges: Gauges) -> Recorder:
        """Make the recorder of a worker; the gauges are those of the latest one."""
        self._gauges = gauges
        run, wait, call = self._record
        return OtelRecorder(run, wait, call, self._step)

    def _busy(self, _: CallbackOptions) -> Iterator[Observation]:
        busy = {} if self._gauges is None else self._gauges()[0]
        for queue, n in busy.items():
            yield Observation(n, {"queue": queue})

    def _lag(self, _: CallbackOptions) -> Iterator[Observation]:
        if self._gauges is not None:
            yield Observation(self._gauges()[1])


class OtelRecorder(Recorder):
    """Counts as every recorder does, and records each value with OpenTelemetry."""

    __slots__ = ("_call", "_run", "_step", "_wait")

    def __init__(
        self,
        run: Callable[[float, Mapping[str, str]], None],
        wait: Callable[[float, Mapping[str, str]], None],
        call: Callable[[float, Mapping[str, str]], None],
        step: Callable[[int, Mapping[str, str]], None],
    ) -> None:
        super().__init__()
        self._run, self._wait, self._call, self._step = run, wait, call, step

    def ran(self, claim: Claim, status: Status | None, seconds: float) -> None:
        """Count one run of a job."""
        super().ran(claim, status, seconds)
        self._run(max(seconds, 0.0), {"kind": claim.kind, "outcome": OUTCOMES[status]})
        self._wait(max((claim.claimed_at - claim.scheduled_at) / SECOND, 0.0), {"queue": claim.queue})

    def stepped(self, kind: str, state: StepState) -> None:
        """Count one step."""
        super().stepped(kind, state)
        self._step(1, {"kind": kind, "state": state.name.lower()})

    def called(self, name: str, seconds: float) -> None:
        """Count one call of the store."""
        super().called(name, seconds)
        self._call(max(seconds, 0.0), {"op": name})


class StoreInstruments:
    """An instrument for each metric of a store. While the store is away the SDK logs that, and shows no old number."""

    def __init__(self, app: Stoker, meter_provider: MeterProvider | None) -> None:
        self._app = app
        self._lock = Lock()
        self._read_at = float("-inf")
        self._found: dict[str, Family] | StokerError = {}
        made = get_meter("stoker", meter_provider=meter_provider)
        for one in families(NOTHING):
            create = made.create_observable_counter if one.counts else made.create_observable_gauge
            create(one.name, [self._observed(one.name)], one.unit, one.text)

    def _observed(self, name: str) -> Callable[[CallbackOptions], Iterator[Observation]]:
        def observe(_: CallbackOptions) -> Iterator[Observation]:
            family = self._now()[name]
            for labels, value in family.samples:
                yield Observation(value, dict(zip(family.labels, labels, strict=True)))

        return observe

    def _now(self) -> dict[str, Family]:
        """The families of this collection: the first instrument that asks reads the store."""
        with self._lock:
            if time.monotonic() - self._read_at > SAME_COLLECTION:
                try:
                    self._found = {one.name: one for one in families(self._app.run(read(self._app)))}
                except StokerError as error:
                    self._found = error
                self._read_at = time.monotonic()
            if isinstance(self._found, StokerError):
                raise self._found
            return self._found
