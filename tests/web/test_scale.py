"""`GET /scale`, and manifests that read it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stoker.app import Stoker
from stoker.observe import metrics, prometheus
from tests.web.conftest import Client

MANIFESTS = Path(__file__).resolve().parents[2] / "docs" / "howto" / "scaling"


def given_in(name: str, field: str) -> str:
    """What a manifest says of a field."""
    [found] = re.findall(rf"^\W*{field}: (.+)$", (MANIFESTS / name).read_text(), re.MULTILINE)
    return str(found).strip("\"'")


@pytest.mark.spec("SCALE-09")
async def test_scale_answers_for_queues(client: Client, app: Stoker) -> None:
    await app.enqueue_many([app.draft("send", queue="mail") for _ in range(30)])
    await app.enqueue(app.draft("send", queue="late", delay=60))
    found = (await client.get("/api/v1/scale")).json()
    assert (found["processes"], found["claimable"], found["target_wait"], found["next_due_in"]) == (1, 30, 10, 60)
    two = (await client.get("/api/v1/scale?queue=mail,late&slots=1&target_wait=0")).json()
    assert [(one["name"], one["processes"]) for one in two["queues"]] == [("late", 0), ("mail", 30)]
    assert "Did you mean mail?" in (await client.get("/api/v1/scale?queue=mial")).json()["hint"]
    for wrong in ("slots=0", "target_wait=3601", "queues=mail", "queue=a%00b"):
        assert (await client.get(f"/api/v1/scale?{wrong}")).status_code == 422


@pytest.mark.spec("SCALE-10")
async def test_the_manifest_for_keda_reads_a_number(client: Client, app: Stoker) -> None:
    await app.enqueue_many([app.draft("send", queue="mail") for _ in range(500)])
    url = urlsplit(given_in("keda.yaml", "url"))
    found: Any = (await client.get(f"{url.path}?{url.query}")).json()
    for part in given_in("keda.yaml", "valueLocation").split("."):
        found = found[part]
    assert found == 5


@pytest.mark.spec("SCALE-10")
async def test_the_manifest_for_an_autoscaler_names_a_metric(app: Stoker) -> None:
    await app.enqueue_many([app.draft("send", queue="mail") for _ in range(500)])
    text = prometheus.text(await metrics.read(app))
    metric = re.search(r"metric:\s+name: (\w+)", (MANIFESTS / "hpa.yaml").read_text())
    assert metric is not None
    assert f'{metric[1]}{{queue="{given_in("hpa.yaml", "queue")}"}} 5.0' in text
    assert metric[1] in given_in("prometheus-adapter.yaml", "seriesQuery")
