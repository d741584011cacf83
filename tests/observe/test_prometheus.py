"""Metrics in a real scrape."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stoker.app import Stoker
from stoker.cli.command import stoker
from stoker.model.control import Presence, Tuning
from stoker.model.errors import EngineError
from stoker.observe import prometheus
from tests.harness.apps import drain

MONITORING = Path(__file__).resolve().parents[2] / "docs" / "howto" / "monitoring"


def values(text: str) -> dict[tuple[str, ...], float]:
    """Samples by name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.spec("METRIC-01")
async def test_a_scrape_shows_queues_jobs_and_workers(jobs: Stoker) -> None:
    @jobs.task(queue="mail", attempts=1)
    async def send(ok: bool) -> None:
        if not ok:
            raise ValueError

    await send.enqueue(True)
    await send.enqueue(False)
    await drain(jobs)
    await send.enqueue(True)
    await send.using(delay=60).enqueue(True)
    engine = await jobs.engine()
    await engine.tune("mail", Tuning(paused=True))
    await engine.beat(Presence(worker="w", host="h", pid=1, queues={"mail": 5, "idle": 2}))
    found = values(prometheus.text(await prometheus.read(jobs)))
    statuses = ("ready", "scheduled", "running", "done", "dead")
    assert [found["stoker_queue_jobs", "mail", status] for status in statuses] == [1, 1, 0, 1, 1]
    assert found["stoker_jobs_total", "enqueued", "send"] == 4
    assert found["stoker_jobs_total", "failed", "send"] == 1
    assert (found["stoker_queue_paused", "mail"], found["stoker_queue_paused", "idle"]) == (1, 0)
    assert (found["stoker_queue_slots", "idle"], found["stoker_queue_workers", "idle"]) == (2, 1)
    assert found["stoker_queue_lag_seconds", "mail"] >= 0


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = Stoker(url)
    app.declare("send")

    async def fill() -> None:
        async with app:
            await app.enqueue(app.draft("send", queue="mail"))

    app.run(fill())
    return url


@pytest.fixture
def served(url: str) -> Iterator[str]:
    """`stoker metrics --port` as a process; gives its address."""
    with Popen(["stoker", "metrics", "--url", url, "--port", "0"], stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "served at" in line)
        yield line.split()[-1]
        process.terminate()


@pytest.mark.spec("METRIC-02")
def test_the_command_prints_and_serves_the_same(url: str, served: str) -> None:
    printed = CliRunner().invoke(stoker, ["metrics", "--url", url]).stdout
    with closing(urllib.request.urlopen(served)) as answer:
        fetched = answer.read().decode()
    key = ("stoker_queue_jobs", "mail", "ready")
    assert values(printed)[key] == values(fetched)[key] == 1
    assert values(printed).keys() == values(fetched).keys()


@pytest.mark.spec("METRIC-02")
def test_a_scrape_of_a_store_that_is_away_fails() -> None:
    registry = CollectorRegistry()
    registry.register(prometheus.StoreCollector(Stoker("redis://127.0.0.1:1")))
    with pytest.raises(EngineError):
        generate_latest(registry)


@pytest.mark.spec("METRIC-03")
def test_alerts_and_dashboard_name_metrics_that_exist(url: str) -> None:
    scraped = {name for name, *_ in values(CliRunner().invoke(stoker, ["metrics", "--url", url]).stdout)}
    board = json.loads((MONITORING / "grafana.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named = set(re.findall(r"stoker_\w+", " ".join([*expressions, (MONITORING / "alerts.yml").read_text()])))
    assert named
    assert named <= scraped
