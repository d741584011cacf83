"""Kinds: the table in any order, and the page of one."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from stoker.app import Stoker
from stoker.model.events import Event, EventType
from stoker.model.job import Status
from stoker.model.time import SECOND
from stoker.registry import mint
from stoker.testing.clock import VirtualClock
from stoker.web.pages.kinds import HEADS, histogram
from tests.harness.rolled_up import died, rolled_up
from tests.web.conftest import Client, claim, end, enqueue, text

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("memory", "sqlite", "postgres", "redis")]


async def seen(app: Stoker, clock: VirtualClock) -> None:
    """Two kinds that ran: one fast, one slow that fails half of the time."""
    for kind in ("send", "charge"):
        await enqueue(app, kind)
    clock.advance(timedelta(seconds=2))
    fast, slow = sorted(await claim(app), key=lambda one: one.kind == "charge")
    clock.advance(timedelta(seconds=3))
    await end(app, [fast], Status.DONE, None)
    await end(app, [slow], error="KeyError: 7")
    at = await (await app.engine()).now()
    completed = [
        Event(at, EventType.COMPLETED, mint(), "default", kind, 1, took * SECOND, 9 * SECOND, wait * SECOND)
        for kind, took, wait in (("send", 1, 4), ("send", 1, 4), ("charge", 30, 1))
    ]
    await rolled_up(app, clock, [*completed, *died(at, "KeyError: 7", "charge")])


@pytest.mark.spec("WEB-67")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_kinds_show_how_long_runs_took_and_sort_by_any_column(
    app: Stoker, client: Client, clock: VirtualClock
) -> None:
    await seen(app, clock)
    client.board.hub.forget()
    page = await client.get("/kinds?sort=p95")
    assert re.findall(r'data-row="(\w+)"', page.text) == ["charge", "send"]
    assert re.search(r"charge KeyError: 7 0 0 0 1 50 % 30.0 s 30.0 s 30.0 s 1.0 s 1.0 s 1.0 s 2 ", text(page)), text(
        page
    )
    assert re.search(r"send 0 0 0 0 0 % 1.0 s 1.0 s 1.0 s 4.0 s 4.0 s 4.0 s 2 ", text(page))
    for order, first in {"wait95": "send", "failures": "charge", "kind": "charge", "completed": "send"}.items():
        found = await client.get(f"/kinds?sort={order}")
        assert re.findall(r'data-row="(\w+)"', found.text)[0] == first, order
    for _, order, _ in HEADS:
        assert (await client.get(f"/kinds?sort={order}")).status_code == 200
        assert f"sort={order}" in page.text
    assert (await client.get("/kinds?sort=size")).status_code == 422
    answer = (await client.get("/api/v1/kinds?sort=p95")).json()["kinds"]
    assert [(one["kind"], one["run_p95"], one["runs"], one["failure_ratio"]) for one in answer] == [
        ("charge", 30, 2, 0.5),
        ("send", 1, 2, 0),
    ]
    assert (await client.get("/api/v1/kinds?sort=size")).status_code == 422
    assert (await client.get("/api/v1/kinds/charge")).json() == answer[0]
    assert (await client.get("/api/v1/kinds/nobody")).status_code == 404


@pytest.mark.spec("WEB-68")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_kind_has_a_page_with_charts_run_times_runs_and_errors(
    app: Stoker, client: Client, clock: VirtualClock
) -> None:
    await seen(app, clock)
    client.board.hub.forget()
    page = await client.get("/kinds/charge")
    said = text(page)
    assert "in default ; 0 completed and 1 died since the store was made" in said
    assert "Run time, p95 30.0 s p50 30.0 s, p99 30.0 s" in said
    assert "Run times of the latest 1 run up to 5.0 s 1" in said
    assert "KeyError: 7 charge" in said
    assert "Slowest runs of the latest 1 run Job Took Ended" in said
    assert re.search(r"[0-9a-f]{8}…[0-9a-f]{4} dead 3.0 s 1 min ago", said)
    assert "kind=charge" in page.text
    drawn = (await client.get("/points.json?look=latency&kind=charge")).json()
    assert [value for value in drawn[2] if value is not None] == [30]
    waited = (await client.get("/points.json?look=latency&kind=charge&times=wait")).json()
    assert [value for value in waited[2] if value is not None] == [1]
    assert (await client.get("/kinds/nobody")).status_code == 404


@pytest.mark.spec("WEB-68")
def test_a_histogram_begins_and_ends_with_what_there_is() -> None:
    assert histogram([]) == []
    assert histogram([2 * SECOND, 4 * SECOND, 20 * SECOND]) == [
        ("up to 2.5 s", 1),
        ("up to 5.0 s", 1),
        ("up to 10.0 s", 0),
        ("up to 30.0 s", 1),
    ]
    assert histogram([7_200 * SECOND]) == [("over 30 min", 1)]
