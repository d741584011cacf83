"""Labels as tasks declare them: what a job carries, where it is shown, and what is refused where it is written."""

from __future__ import annotations

from typing import Any

import pytest

from stoker import PREVIOUS, Chunk, Stoker
from stoker.admin import Admin
from stoker.model.errors import InvalidInput
from stoker.model.job import PLAIN
from stoker.model.redact import Redaction

pytestmark = pytest.mark.spec("LABEL-01")


def test_each_call_has_a_label_of_its_own() -> None:
    jobs = Stoker("memory://")

    @jobs.task(label="order {order.id} for {customer}")
    async def ship(order: dict[str, Any], customer: str = "walk-in") -> None: ...

    @jobs.task(label="{x} {more}")
    async def keep(*rest: int, **named: str) -> None: ...

    @jobs.task(label="document {docs}", chunk=Chunk(10, within=1))
    async def index(docs: list[int]) -> None: ...

    assert ship.draft({"id": 7}, "acme").options.label == "order 7 for acme"
    assert ship.draft({"id": 7}).options.label == "order 7 for walk-in"
    assert jobs.draft("ship", {"order": {"id": 8}}).options.label == "order 8 for walk-in"
    assert jobs.draft("ship", [{"id": 9}, "x"]).options.label == "order 9 for x"
    assert ship.using(label="{customer}").draft({}, "acme").options.label == "acme"
    assert keep.draft(1, x="y").options.label == "y –"
    assert index.draft(7).options.label == "document 7"
    assert ship.draft({}, customer=PREVIOUS).options.label == "order – for PREVIOUS"
    jobs.declare("elsewhere", label="{a}")
    assert jobs.draft("elsewhere", {"a": 1}).options.label == "1"
    assert jobs.draft("elsewhere", [1]).options.label == "–"


@pytest.mark.spec("LABEL-04")
def test_a_job_without_a_label_stores_nothing_for_it() -> None:
    jobs = Stoker("memory://")

    @jobs.task
    async def plain(n: int = 0) -> None: ...

    assert plain.draft(1).options is PLAIN
    assert jobs.draft("plain").options is PLAIN


@pytest.mark.spec("LABEL-03")
def test_a_bad_template_is_refused_where_it_is_written() -> None:
    jobs = Stoker("memory://")
    with pytest.raises(InvalidInput, match="braces hold an argument"):
        jobs.declare("elsewhere", label="{0}")
    with pytest.raises(InvalidInput, match="is no parameter of task send; these are: to"):

        @jobs.task(label="mail {id}")
        async def send(to: str, *more: str) -> None: ...


@pytest.mark.spec("LABEL-02")
async def test_an_operator_sees_the_label_masked_by_their_own_words() -> None:
    async with Stoker("memory://") as jobs:

        @jobs.task(label="plate={plate} {api_key}")
        async def park(plate: str, api_key: str) -> None: ...

        job = await park.enqueue("B-XY 12", "geheim")
        assert (await job.refresh()).label == "plate=B-XY 12 [hidden]"
        admin = Admin(jobs, redact=Redaction(frozenset({"plate"})))
        [found] = (await admin.jobs.find("is:ready")).jobs
        assert found.label is not None
        assert "B-XY" not in found.label
