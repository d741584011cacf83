"""The Grafana board and the alert rules of the docs."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from stoker.model.filter import Filter
from tests import services
from tests.harness.absent import absent

MONITORING = Path(__file__).resolve().parents[2] / "docs" / "howto" / "monitoring"
ALERTS = MONITORING / "alerts.yml"
UNIT_TESTS = Path(__file__).with_name("alerts_test.yml")
BOARD: dict[str, Any] = json.loads((MONITORING / "grafana.json").read_text())
PANELS: list[dict[str, Any]] = BOARD["panels"]
SUBSTITUTES = {"$__rate_interval": "5m", "$store": ".*", "$queue": ".*", "$kind": ".*"}


def expressions() -> Iterator[str]:
    """Every query of the board: of its panels and of its marks."""
    for panel in PANELS:
        yield from (target["expr"] for target in panel["targets"])
    yield from (mark["expr"] for mark in BOARD["annotations"]["list"])


def metrics_named() -> set[str]:
    """Every metric that the alert rules and the board name."""
    variables = [one["definition"] for one in BOARD["templating"]["list"] if one["type"] == "query"]
    rules = re.sub(r"summary:.*", "", ALERTS.read_text())
    found = set(re.findall(r"\bstoker_\w+", " ".join([*expressions(), *variables, rules])))
    assert len(found) > 30
    return found


def unit_of(expression: str) -> set[str]:
    """The units of Grafana that fit what a query yields."""
    if "vector(0)" in expression:
        return unit_of(expression.partition(" > 0 or vector(0)")[0].partition(" or vector(0)")[0])
    if re.search(r"_bucket|_seconds_sum|_seconds\b", expression):
        return {"s"}
    if " / " in expression:
        return {"percentunit"}
    if "rate(stoker" in expression:
        return {"cpm"} if expression.startswith("60 * ") else {"cps"}
    return {"none", "short", "bool_yes_no"}


@pytest.mark.spec("METRIC-06")
@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_has_the_unit_of_what_it_shows_and_is_chosen_by_variables(panel: dict[str, Any]) -> None:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    for target in panel["targets"]:
        assert unit in unit_of(target["expr"]), target["expr"]
        assert 'store=~"$store"' in target["expr"]
        assert ("queue" not in target["expr"]) or 'queue=~"$queue"' in target["expr"]
        assert ("kind" not in target["expr"]) or 'kind=~"$kind"' in target["expr"]
        assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


@pytest.mark.spec("METRIC-06")
def test_the_board_has_variables_stats_a_heat_map_marks_and_links() -> None:
    assert [one["name"] for one in BOARD["templating"]["list"]] == ["datasource", "store", "queue", "kind", "stoker"]
    assert [panel["type"] for panel in PANELS].count("heatmap") == 1
    stats = [panel for panel in PANELS if panel["type"] == "stat"]
    assert {panel["gridPos"]["y"] for panel in stats} == {0}, "one row"
    assert sum(panel["gridPos"]["w"] for panel in stats) == 24
    assert [mark["name"] for mark in BOARD["annotations"]["list"]] == ["Deploys", "Pauses"]
    assert any("Failure ratio" in panel["title"] for panel in PANELS)
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


@pytest.mark.spec("METRIC-06")
def test_links_into_the_list_of_jobs_are_filters() -> None:
    links = [link["url"] for panel in PANELS for link in panel["fieldConfig"]["defaults"].get("links", ())]
    filters = [unquote(url.partition("/jobs?q=")[2]) for url in links if "/jobs?q=" in url]
    assert len(filters) > 5
    for text in filters:
        for status in ("ready", "scheduled", "retrying"):
            Filter.parse(re.sub(r"\$\{[^}]+\}", "mail", text.replace("${__field.labels.status}", status)))


@pytest.fixture(scope="module")
def promtool() -> Path:
    try:
        return services.promtool_binary()
    except services.Unavailable as why:
        absent(f"no promtool: {why}")


def told(promtool: Path, *words: str | Path) -> str:
    done = subprocess.run([promtool, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.spec("METRIC-07")
def test_promtool_accepts_the_rules_the_scrapes_and_every_query_of_the_board(promtool: Path, tmp_path: Path) -> None:
    told(promtool, "check", "config", MONITORING / "prometheus.yml")
    queries = list(expressions())
    for name, value in SUBSTITUTES.items():
        queries = [query.replace(name, value) for query in queries]
    rules = [{"record": f"board:{n}", "expr": query} for n, query in enumerate(queries)]
    (tmp_path / "board.yml").write_text(json.dumps({"groups": [{"name": "board", "rules": rules}]}))
    assert f"{len(rules)} rules found" in told(promtool, "check", "rules", tmp_path / "board.yml")


@pytest.mark.spec("METRIC-07")
def test_every_alert_fires_when_it_should_and_only_then(promtool: Path, tmp_path: Path) -> None:
    text, tests = ALERTS.read_text(), UNIT_TESTS.read_text()
    alerts = re.findall(r"- alert: (\w+)", text)
    assert len(re.findall(r"labels: {severity: (?:critical|warning|info)}", text)) == len(alerts)
    for alert in alerts:
        assert re.search(rf"alertname: {alert}\b,?\s+exp_alerts", tests), f"no test lets {alert} fire"
    # Sentences for people are left out: the tests say which alerts fire.
    (tmp_path / "alerts.yml").write_text(re.sub(r"\n +annotations:\n +summary:.*", "", text))
    (tmp_path / "tests.yml").write_text(tests)
    assert "SUCCESS" in told(promtool, "test", "rules", tmp_path / "tests.yml")
