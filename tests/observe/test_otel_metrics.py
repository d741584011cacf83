"""Metrics as an SDK of OpenTelemetry collects them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from stoker.app import Stoker
from stoker.context import current
from stoker.model.errors import StepFailed
from stoker.model.measures import BOUNDS
from stoker.observe import metrics, prometheus
from stoker.observe.otel_metrics import meter
from tests.harness.apps import drain, make_engine


class Collected:
    """What a reader of the SDK got."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)

    def now(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        scopes = [] if data is None else [scope for one in data.resource_metrics for scope in one.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def values(self, found: dict[str, Any]) -> dict[tuple[str, ...], float]:
        """Values by the name that Prometheus has for the metric, and its labels in their order."""
        return {
            (metrics.prometheus_name(one.name, one.unit), *map(str, dict(sorted(point.attributes.items())).values())): (
                point.value
            )
            for one in found.values()
            for point in one.data.data_points
            if hasattr(point, "value")
        }


@pytest.mark.spec("METRIC-09")
async def test_the_store_has_the_same_metrics_and_values_as_for_prometheus(tmp_path: Path) -> None:
    app = Stoker(make_engine("sqlite", tmp_path))
    app.declare("send")
    collected = Collected()
    meter(app, store=True, meter_provider=collected.provider)
    await app.enqueue_many([app.draft("send", queue="mail") for _ in range(3)])
    await app.enqueue(app.draft("send", queue="mail", delay=3600))
    found = await asyncio.to_thread(collected.now)
    mine = collected.values(found)
    scraped = {
        (sample.name.removesuffix("_total"), *dict(sorted(sample.labels.items())).values()): sample.value
        for family in text_string_to_metric_families(prometheus.text(await metrics.read(app)))
        for sample in family.samples
    }
    moving = {"stoker_queue_lag_seconds", "stoker_without_worker_seconds", "stoker_next_due_timestamp_seconds"}
    assert {key: value for key, value in mine.items() if key[0] not in moving} == {
        key: value for key, value in scraped.items() if key[0] not in moving
    }
    assert mine.keys() == scraped.keys()
    assert mine["stoker_queue_jobs", "mail", "ready"] == 3
    assert found["stoker.jobs"].data.is_monotonic
    assert found["stoker.queue.lag"].unit == "s"
    await app.close()


@pytest.mark.spec("METRIC-09")
async def test_runs_and_store_calls_are_measured_by_workers(jobs: Stoker) -> None:
    collected = Collected()
    meter(jobs, meter_provider=collected.provider)
    meter(jobs, meter_provider=collected.provider)

    @jobs.task(queue="mail", attempts=1)
    async def send(ok: bool) -> None:
        if not ok:
            raise ValueError

    for ok in (True, True, False):
        await send.enqueue(ok)
    await drain(jobs)
    found = collected.now()
    runs = {point.attributes["outcome"]: point for point in found["stoker.job.duration"].data.data_points}
    assert {outcome: point.count for outcome, point in runs.items()} == {"completed": 2, "failed": 1}
    assert runs["completed"].attributes["kind"] == "send"
    assert tuple(runs["completed"].explicit_bounds) == BOUNDS
    assert [point.count for point in found["stoker.job.wait"].data.data_points] == [3]
    assert sum(point.count for point in found["stoker.store.call"].data.data_points) > 3
    assert collected.values(found)["stoker_slots_busy", "mail"] == 0
    assert "stoker.queue.jobs" not in found, "only one process per store reads it"


@pytest.mark.spec("METRIC-04")
async def test_runs_with_a_transaction_of_their_own_are_measured(tmp_path: Path) -> None:
    """Whether the block settled the job, or left it to the end of the run."""
    jobs, collected = Stoker(make_engine("sqlite", tmp_path)), Collected()
    meter(jobs, meter_provider=collected.provider)

    @jobs.task(attempts=1)
    async def write(ok: bool) -> None:
        async with current().transaction():
            if not ok:
                raise ValueError

    for ok in (True, True, False):
        await write.enqueue(ok)
    await drain(jobs)
    points = collected.now()["stoker.job.duration"].data.data_points
    assert {point.attributes["outcome"]: point.count for point in points} == {"completed": 2, "failed": 1}
    await jobs.close()


@pytest.mark.spec("METRIC-09", "METRIC-10")
async def test_steps_are_counted_by_workers(jobs: Stoker) -> None:
    collected = Collected()
    meter(jobs, meter_provider=collected.provider)

    @jobs.task
    async def charge() -> None:
        await current().step("one", int)
        with suppress(StepFailed):
            await current().step("two", int, "x")

    await charge.enqueue()
    await charge.enqueue()
    await drain(jobs)
    found = collected.now()
    assert found["stoker.steps"].data.is_monotonic
    mine = {key: n for key, n in collected.values(found).items() if key[0] == "stoker_steps"}
    assert mine == {("stoker_steps", "charge", "done"): 2, ("stoker_steps", "charge", "failed"): 2}


@pytest.mark.spec("METRIC-09")
def test_while_the_store_is_away_no_old_number_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    collected = Collected()
    meter(Stoker("redis://127.0.0.1:1"), store=True, meter_provider=collected.provider)
    assert collected.values(collected.now()) == {}
    assert "127.0.0.1:1" in caplog.text
