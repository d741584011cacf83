"""Every reason why a job does not run has a button on the job's page that opens the gate."""

from __future__ import annotations

import html
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stoker import Limit
from stoker.app import Stoker
from stoker.model import ids
from stoker.model.control import Tuning
from stoker.model.explain import Reason
from stoker.model.job import Settlement, Status
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Held, Snoozed, Suspended
from stoker.model.steps import Step, StepState
from stoker.model.throttle import Cool, Rate
from stoker.testing.clock import VirtualClock
from tests.web.conftest import Client, beat, claim, enqueue, text
from tests.web.test_actions import hidden, told, undo

KNOWN = {"send": "app.send"}


async def _scheduled(app: Stoker, clock: VirtualClock) -> str:
    return await enqueue(app, delay=3600)


async def _retrying(app: Stoker, clock: VirtualClock) -> str:
    id_ = await enqueue(app)
    [run] = await claim(app)
    await (await app.engine()).jobs.settle(
        [Settlement(run.id, run.worker, run.token, Status.RETRYING, error="KeyError: 1", after=60_000_000)]
    )
    return id_


async def _held(app: Stoker, clock: VirtualClock) -> str:
    await app.budget("llm").tune(Rate(10))
    id_ = await enqueue(app)
    [run] = await claim(app)
    await (await app.engine()).jobs.settle([conclude(run, Snoozed(60_000_000, Held("llm", 50)))])
    return id_


async def _asleep(app: Stoker, clock: VirtualClock) -> str:
    id_ = await enqueue(app)
    [run] = await claim(app)
    sleep = Step("sleep", StepState.WAITING, None, run.claimed_at + 60_000_000)
    await (await app.engine()).jobs.settle([conclude(run, Suspended((sleep,), 60_000_000))])
    return id_


async def _paused(app: Stoker, clock: VirtualClock) -> str:
    await app.queue("default").pause()
    return await enqueue(app)


async def _cooling(app: Stoker, clock: VirtualClock) -> str:
    await enqueue(app)
    [run] = await claim(app)
    cool = Cool(0, 60_000_000)
    await (await app.engine()).jobs.settle(
        [Settlement(run.id, run.worker, run.token, Status.RETRYING, error="x", throttled=True, cool=cool)]
    )
    return await enqueue(app)


async def _rated(app: Stoker, clock: VirtualClock) -> str:
    await (await app.engine()).control.tune("default", Tuning(rate=Rate(1, per=3600), workers=7))
    await enqueue(app)
    await claim(app)
    return await enqueue(app)


async def _limited(app: Stoker, clock: VirtualClock) -> str:
    made = [await enqueue(app, limit=Limit(1, "@tenant", name="customer"), tenant="c1") for _ in range(2)]
    await claim(app)
    return made[1]


async def _unknown(app: Stoker, clock: VirtualClock) -> str:
    await beat(app, kinds={"resize": "app.resize"})
    await beat(app, "other", {"bulk": 5}, kinds=KNOWN)
    return await enqueue(app)


async def _unserved(app: Stoker, clock: VirtualClock) -> str:
    await beat(app, "other", {"bulk": 5}, kinds=KNOWN)
    return await enqueue(app)


async def _silent(app: Stoker, clock: VirtualClock) -> str:
    await beat(app, kinds=KNOWN)
    clock.advance(600)
    await beat(app, "other", {"bulk": 5}, kinds=KNOWN)
    return await enqueue(app)


async def _behind(app: Stoker, clock: VirtualClock) -> str:
    await enqueue(app)
    return await enqueue(app)


Setup = Callable[[Stoker, VirtualClock], Awaitable[str]]
SETUPS: list[tuple[Reason, Setup, str, str]] = [
    (Reason.SCHEDULED, _scheduled, "Due", "Run this one now"),
    (Reason.SCHEDULED, _retrying, "Due", "Run this one now"),
    (Reason.HELD_BY_BUDGET, _held, "Due", "Run this one now"),
    (Reason.WAITING, _asleep, "Due", "End the sleep"),
    (Reason.PAUSED, _paused, "Queue open", "Resume the queue…"),
    (Reason.COOLING, _cooling, "Queue open", "End the cool-down…"),
    (Reason.UNKNOWN_TASK, _unknown, "Task known", "Move to bulk"),
    (Reason.NO_WORKER, _unserved, "Worker", "Move to bulk"),
    (Reason.WORKER_UNHEALTHY, _silent, "Worker", "Move to bulk"),
    (Reason.RATE_LIMITED, _rated, "Rate", "Run this one now"),
    (Reason.KEY_LIMITED, _limited, "Limit", "Let 2 of each key run…"),
    (Reason.BEHIND, _behind, "Line", "Run this one now"),
]
REACHES_FURTHER = {
    Reason.PAUSED: "1 due job of it starts as workers are free, not this one alone.",
    Reason.COOLING: "1 due job of it starts as workers are free, not this one alone.",
    Reason.KEY_LIMITED: "1 key is full with jobs that wait, so that up to 1 job start as workers are free.",
}
"""Remedies that other jobs feel too, and what is asked before."""
NO_GATES = {Reason.UNREADABLE, Reason.FINISHED, Reason.RUNNING, Reason.CANCELING}
"""Reasons of jobs that do not wait: what may be done to these stands at the top of the page."""


def form_of(page: str, gate: str) -> tuple[str, list[tuple[str, str]], str]:
    """The address, the fields and the button of the form of a gate."""
    [row] = re.findall(rf'<li class="(?:shut|later)" data-row="{gate}">.*?</li>', page, re.DOTALL)
    [(action, inside)] = re.findall(
        r'<form class="act" method="post" action="([^"]+)"[^>]*>(.*?)</form>', row, re.DOTALL
    )
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', inside)
    [button] = re.findall(r"<button[^>]*>(.*?)</button>", inside, re.DOTALL)
    return action, [(name, html.unescape(value)) for name, value in fields if name != "csrf"], button


async def reasons(client: Client, id_: str) -> set[str]:
    client.board.hub.forget()
    found = (await client.get(f"/api/v1/jobs/{id_}/explain")).json()
    return {gate["reason"] for gate in found["gates"]}


def test_every_reason_has_a_scene() -> None:
    assert {reason for reason, *_ in SETUPS} | NO_GATES == set(Reason)


@pytest.mark.spec("WEB-26")
@pytest.mark.parametrize(("reason", "setup", "gate", "button"), SETUPS)
async def test_a_shut_gate_has_a_button_that_opens_it(
    app: Stoker, client: Client, clock: VirtualClock, reason: Reason, setup: Setup, gate: str, button: str
) -> None:
    id_ = await setup(app, clock)
    assert reason.value in await reasons(client, id_)
    page = await client.get(f"/jobs/{id_}")
    action, fields, label = form_of(page.text, gate)
    assert label == button
    assert ("asks", "yes") in fields or reason not in REACHES_FURTHER
    done = await client.post(action, fields)
    if reason in REACHES_FURTHER:
        assert REACHES_FURTHER[reason] in text(done)
        assert reason.value in await reasons(client, id_)  # nothing has happened yet
        done = await client.post(action, hidden(done))
    assert done.headers["location"] == f"/jobs/{id_}"  # back to the job
    flash: dict[str, Any] = told(done)
    if "/run-now" in action:
        [started] = await claim(app, n=9) if reason is Reason.RATE_LIMITED else await claim(app, n=1)
        assert ids.text(started.id) == id_
        return
    assert reason.value not in await reasons(client, id_)
    if flash["undo"]:
        await undo(client, flash)
        assert reason.value in await reasons(client, id_)


@pytest.mark.spec("WEB-26")
async def test_run_this_one_now_is_undone_and_says_what_it_does_not_pass(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app, delay=3600, priority=5)
    before = await app.handle(id_).refresh()
    await app.queue("default").pause()
    done = told(await client.post(f"/jobs/{id_}/run-now"))
    said = done["text"]
    assert isinstance(said, str)
    assert said.startswith("send is the first of default now. It still waits: queue 'default' is paused")
    assert await claim(app) == []
    await undo(client, done)
    after = await app.handle(id_).refresh()
    assert (after.priority, after.scheduled_at) == (before.priority, before.scheduled_at)


@pytest.mark.spec("WEB-26")
async def test_a_remedy_on_one_jobs_page_starts_no_other_job(app: Stoker, client: Client) -> None:
    """Of many that wait for tokens only this one starts, and the rate stays as it is."""
    await (await app.engine()).control.tune("default", Tuning(rate=Rate(1, per=3600)))
    made = [await enqueue(app) for _ in range(12)]
    await claim(app)
    action, fields, _ = form_of((await client.get(f"/jobs/{made[7]}")).text, "Rate")
    await client.post(action, fields)
    assert [ids.text(one.id) for one in await claim(app, n=50)] == [made[7]]
    assert await claim(app, n=50) == []
    [queue] = await (await app.engine()).control.queues()
    assert queue.rate == Rate(1, per=3600)


@pytest.mark.spec("WEB-26")
async def test_where_only_workers_help_the_page_says_what_to_start(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    page = await client.get(f"/jobs/{id_}")
    assert 'data-copy="stoker work app:jobs -q default"' in page.text
    assert 'name="queue"' not in page.text  # there is no other queue to move it to
    await beat(app, kinds={"resize": "app.resize"})
    client.board.hub.forget()
    assert "Deploy the task to the workers of this queue." in text(await client.get(f"/jobs/{id_}"))


@pytest.fixture
def importable(app: Stoker, monkeypatch: pytest.MonkeyPatch) -> str:
    """The app stands in a module before its dashboard is made."""
    monkeypatch.setitem(globals(), "corner_shop", app)
    return f"{__name__}:corner_shop"


@pytest.mark.spec("NEED-19")
async def test_pages_and_rest_name_the_app_that_can_be_imported(app: Stoker, importable: str, client: Client) -> None:
    start = f"stoker work {importable}"
    id_ = await enqueue(app)
    assert f'data-copy="{start} -q default"' in (await client.get(f"/jobs/{id_}")).text
    explained = (await client.get(f"/api/v1/jobs/{id_}/explain")).json()
    assert explained["gates"][0]["remedy"] == f"Start one: `{start} -q default`."
    for path in ("/", "/health"):
        page = await client.get(path)
        assert start in page.text
        assert "app:jobs" not in page.text
    [found] = (await client.get("/api/v1/overview")).json()["findings"]
    assert found["remedy"] == start
