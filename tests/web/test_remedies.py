"""Every reason why a job does not run has a button on the job's page that opens the gate."""

from __future__ import annotations

import html
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stoker import Limit
from stoker.app import Stoker
from stoker.model.control import Tuning
from stoker.model.explain import Reason
from stoker.model.job import Settlement, Status
from stoker.model.lifecycle import conclude
from stoker.model.outcome import Held, Snoozed
from stoker.model.throttle import Cool, Rate
from stoker.testing.clock import VirtualClock
from tests.web.conftest import Client, beat, claim, enqueue, text
from tests.web.test_actions import told, undo

KNOWN = {"send": "app.send"}


async def _scheduled(app: Stoker, clock: VirtualClock) -> str:
    return await enqueue(app, delay=3600)


async def _retrying(app: Stoker, clock: VirtualClock) -> str:
    id_ = await enqueue(app)
    [run] = await claim(app)
    await (await app.engine()).settle(
        [Settlement(run.id, run.worker, run.token, Status.RETRYING, error="KeyError: 1", after=60_000_000)]
    )
    return id_


async def _held(app: Stoker, clock: VirtualClock) -> str:
    await app.budget("llm").tune(Rate(10))
    id_ = await enqueue(app)
    [run] = await claim(app)
    await (await app.engine()).settle([conclude(run, Snoozed(60_000_000, Held("llm", 50)))])
    return id_


async def _paused(app: Stoker, clock: VirtualClock) -> str:
    await app.queue("default").pause()
    return await enqueue(app)


async def _cooling(app: Stoker, clock: VirtualClock) -> str:
    await enqueue(app)
    [run] = await claim(app)
    cool = Cool(0, 60_000_000)
    await (await app.engine()).settle(
        [Settlement(run.id, run.worker, run.token, Status.RETRYING, error="x", throttled=True, cool=cool)]
    )
    return await enqueue(app)


async def _rated(app: Stoker, clock: VirtualClock) -> str:
    await (await app.engine()).tune("default", Tuning(rate=Rate(1, per=3600), workers=7))
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


Scene = Callable[[Stoker, VirtualClock], Awaitable[str]]
SCENES: list[tuple[Reason, Scene, str, str]] = [
    (Reason.SCHEDULED, _scheduled, "Due", "Run now"),
    (Reason.SCHEDULED, _retrying, "Due", "Requeue now"),
    (Reason.HELD_BY_BUDGET, _held, "Due", "Run now"),
    (Reason.PAUSED, _paused, "Queue open", "Resume"),
    (Reason.COOLING, _cooling, "Queue open", "End cool-down"),
    (Reason.UNKNOWN_TASK, _unknown, "Task known", "Move to bulk"),
    (Reason.NO_WORKER, _unserved, "Worker", "Move to bulk"),
    (Reason.WORKER_UNHEALTHY, _silent, "Worker", "Move to bulk"),
    (Reason.RATE_LIMITED, _rated, "Rate", "Lift the rate"),
    (Reason.KEY_LIMITED, _limited, "Limit", "Let 2 run"),
    (Reason.BEHIND, _behind, "Line", "Move to the front"),
]
NO_GATES = {Reason.UNREADABLE, Reason.FINISHED, Reason.RUNNING, Reason.CANCELING}
"""Reasons of jobs that do not wait: what may be done to these stands at the top of the page."""


def form_of(page: str, gate: str) -> tuple[str, list[tuple[str, str]], str]:
    """The address, the fields and the button of the form of a gate."""
    [row] = re.findall(rf'<li class="(?:shut|later)" data-row="{gate}">.*?</li>', page, re.DOTALL)
    [(action, inside)] = re.findall(r'<form class="act" method="post" action="([^"]+)">(.*?)</form>', row, re.DOTALL)
    fields = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', inside)
    [button] = re.findall(r"<button[^>]*>(.*?)</button>", inside, re.DOTALL)
    return action, [(name, html.unescape(value)) for name, value in fields if name != "csrf"], button


async def reasons(client: Client, id_: str) -> set[str]:
    client.board.hub.forget()
    found = (await client.get(f"/api/v1/jobs/{id_}/explain")).json()
    return {gate["reason"] for gate in found["gates"]}


def test_every_reason_has_a_scene() -> None:
    assert {reason for reason, *_ in SCENES} | NO_GATES == set(Reason)


@pytest.mark.spec("WEB-26")
@pytest.mark.parametrize(("reason", "scene", "gate", "button"), SCENES)
async def test_a_shut_gate_has_a_button_that_opens_it(
    app: Stoker, client: Client, clock: VirtualClock, reason: Reason, scene: Scene, gate: str, button: str
) -> None:
    id_ = await scene(app, clock)
    assert reason.value in await reasons(client, id_)
    page = await client.get(f"/jobs/{id_}")
    action, fields, label = form_of(page.text, gate)
    assert label == button
    done = await client.post(action, fields)
    assert done.headers["location"] == f"/jobs/{id_}"  # back to the job
    if reason is not Reason.BEHIND:
        assert reason.value not in await reasons(client, id_)
    else:
        assert (await app.handle(id_).refresh()).priority == -100
    flash: dict[str, Any] = told(done)
    if flash["undo"]:
        await undo(client, flash)
        if reason is Reason.RATE_LIMITED:  # its tokens begin anew
            [queue] = await (await app.engine()).queues()
            assert (queue.rate, queue.workers) == (Rate(1, per=3600), 7)
        else:
            assert reason.value in await reasons(client, id_)


@pytest.mark.spec("WEB-26")
async def test_where_only_workers_help_the_page_says_what_to_start(app: Stoker, client: Client) -> None:
    id_ = await enqueue(app)
    page = await client.get(f"/jobs/{id_}")
    assert 'data-copy="stoker work app:jobs -q default"' in page.text
    assert 'name="queue"' not in page.text  # there is no other queue to move it to
    await beat(app, kinds={"resize": "app.resize"})
    client.board.hub.forget()
    assert "Deploy the task to the workers of this queue." in text(await client.get(f"/jobs/{id_}"))
