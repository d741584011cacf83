"""`stoker jobs steps`, `waits`, `signal` and `fork`, as an operator types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.app import Stoker
from stoker.context import current
from tests.cli.test_operate import UNKNOWN, call, rows
from tests.harness.apps import drain


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job that waits for an answer, in a store of its own."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("STOKER_URL", url)
    monkeypatch.delenv("STOKER_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    app = Stoker(url)

    @app.task
    async def order() -> bool:
        await current().step("quote", lambda: 700)
        yes: bool = await current().wait("approval", bool, ask="May we buy this?")
        return yes

    async def fill() -> str:
        async with app:
            made = await order.enqueue()
            await drain(app)
            return made.id

    return app.run(fill())


@pytest.mark.spec("DURABLE-23", "DURABLE-24")
def test_a_wait_is_found_and_answered(job: str) -> None:
    assert [(one["name"], one["state"], one["value"]) for one in rows("jobs", "steps", job)] == [
        ("quote", "done", 700),
        ("approval", "waiting", None),
    ]
    assert call("jobs", "steps", job).stdout.splitlines()[1].split("\t")[-1] == "700"
    assert [(one["job"], one["name"], one["ask"]) for one in rows("jobs", "waits")] == [
        (job, "approval", "May we buy this?")
    ]
    assert rows("jobs", "waits", "queue:nobody") == []
    assert [one["id"] for one in rows("jobs", "list", "is:waiting")] == [job]
    assert f"`stoker jobs signal {job} approval VALUE` answers it." in call("jobs", "explain", job).stdout
    bad = call("jobs", "signal", job, "approval", "yes please", code=2)
    assert "VALUE is no JSON: yes please. Text is written as '\"text\"'" in bad.stderr
    kept = f"job {job} does not wait for aproval: the signal is kept until it does. Now it waits for approval.\n"
    assert call("jobs", "signal", job, "aproval", "true").stdout == kept
    assert call("jobs", "signal", job, "approval", "true").stdout == f"job {job} has its answer to approval\n"
    refused = call("jobs", "signal", job, "approval", "false", code=1).stderr
    assert "has its answer to approval. --replace gives another" in refused and "Nothing was changed" in refused
    [answered] = rows("jobs", "signal", job, "approval", "false", "--replace")
    assert answered == {"job": job, "name": "approval", "taken": True}
    refused = call("jobs", "signal", job, "approval", "false", "--json", code=1).stdout
    assert json.loads(refused) == {"job": job, "name": "approval", "taken": False}
    call("jobs", "signal", UNKNOWN, "approval", code=3)
    assert rows("jobs", "waits") == []


@pytest.mark.spec("DURABLE-24")
def test_a_job_that_has_ended_takes_no_answer(job: str) -> None:
    call("jobs", "cancel", job)
    for replace in ((), ("--replace",)):
        refused = call("jobs", "signal", job, "approval", "true", *replace, code=1).stderr
        assert f"job {job} is canceled and takes no answer. `stoker jobs fork` makes a copy" in refused


@pytest.mark.spec("DURABLE-21")
def test_a_cancel_takes_the_called_jobs_along(job: str) -> None:
    assert "goes with the id of one job" in call("jobs", "cancel", "is:waiting", "--children", "--yes", code=2).stderr
    assert call("jobs", "cancel", job, "--children").stdout == "cancel: 1 job\n"


@pytest.mark.spec("DURABLE-20")
def test_a_job_is_forked_behind_a_step(job: str) -> None:
    call("jobs", "fork", job, "--after", "quote")
    [_, copy] = rows("jobs", "list", "order:oldest")
    assert [one["name"] for one in rows("jobs", "steps", copy["id"])] == ["quote"]
    assert "its finished steps are quote" in call("jobs", "fork", job, "--after", "qoute", code=2).stderr
