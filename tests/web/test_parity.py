"""Everything that pages do, the REST API does: both route tables are compared."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest

from stoker.model.actions import MANY
from stoker.web.api.endpoints import ENDPOINTS
from stoker.web.api.jobs import BulkBody
from stoker.web.routes import routes

JOB, QUEUE, SCHEDULE = "/jobs/{id}", "/queues/{name}", "/schedules/{name}"
CONSUMER, LETTERS = "/streams/{stream}/consumers/{consumer}", "/streams/{stream}/letters"
SAME = {
    f"{JOB}/delete": ("DELETE", JOB),
    f"{JOB}/edit": ("PATCH", JOB),
    f"{JOB}/edit-back": ("PATCH", JOB),
    f"{JOB}/force-cancel": ("POST", f"{JOB}/cancel"),
    "/operations": ("POST", "/operations"),
    "/operations/new": ("GET", "/preview"),
    f"{QUEUE}/tune": ("PATCH", QUEUE),
    "/enqueue": ("POST", "/jobs"),
    "/new-schedule": ("POST", "/schedules"),
    f"{SCHEDULE}/edit": ("PATCH", SCHEDULE),
    "/limits/{name}/tune": ("PUT", "/limits/{name}"),
    "/limits/{name}/set": ("PUT", f"{QUEUE}/limits/{{limit}}"),
    "/limits/{name}/clear": ("DELETE", f"{QUEUE}/limits/{{limit}}"),
    "/outbox/letters/{stream}/reveal": ("POST", f"{LETTERS}/{{id}}/reveal"),
    "/outbox/letters/{stream}/replace": ("POST", f"{LETTERS}/{{id}}/replace"),
}
"""Where the API has another address than the page; elsewhere it is the same one."""


def as_api(path: str) -> tuple[str, str]:
    """The call that does what a page does at this address."""
    moved = path.replace("/outbox/letters/{stream}", LETTERS).replace("/outbox/{stream}/{consumer}", CONSUMER)
    return SAME.get(path, ("POST", moved))


@pytest.mark.spec("REST-12")
def test_every_action_of_a_page_is_a_call_of_the_api() -> None:
    calls = {(one.method, one.path): one.role for one in ENDPOINTS}
    acts = {way.path: way.role for way in routes() if way.kind == "action"}
    assert len(acts) > 30
    missing = {path: as_api(path) for path in acts if as_api(path) not in calls}
    assert missing == {}
    other = {path for path, role in acts.items() if calls[as_api(path)] != role}
    assert other == {"/operations/new"}  # counting what would change is reading
    assert SAME.keys() <= acts.keys()  # no line is left of an action that went


@pytest.mark.spec("REST-12")
def test_what_pages_do_to_many_jobs_the_api_does_to_many() -> None:
    assert get_args(get_type_hints(BulkBody)["action"]) == tuple(MANY)


@pytest.mark.spec("REST-12")
def test_every_page_that_can_be_read_has_a_call_that_reads_the_same() -> None:
    calls = {one.path for one in ENDPOINTS if one.method == "GET"}
    pages = {way.path for way in routes() if way.kind == "page" and way.method == "GET"}
    assert pages == READ.keys() | FORMS
    assert {path: call for path, call in READ.items() if call not in calls} == {}


READ = {
    "/": "/overview",
    "/points.json": "/points",
    "/jobs": "/jobs",
    "/jobs/{id}": "/jobs/{id}",
    "/waits": "/waits",
    "/groups": "/groups",
    "/groups/{id}": "/groups/{id}",
    "/operations": "/operations",
    "/operations/{id}": "/operations/{id}",
    "/queues": "/queues",
    "/queues/{name}": "/queues/{name}",
    "/kinds": "/kinds",
    "/kinds/{name}": "/kinds/{name}",
    "/workers": "/workers",
    "/workers/{worker}": "/workers/{worker}",
    "/schedules": "/schedules",
    "/schedules/{name}": "/schedules/{name}",
    "/limits": "/at-limit",
    "/outbox": "/streams",
    "/outbox/letters": "/streams/{stream}/letters",
    "/outbox/letters/{stream}/{consumer}/{id}": "/streams/{stream}/letters/{id}",
    "/outbox/{stream}/{consumer}": "/streams/{stream}",
    "/health": "/health",
    "/audit": "/audit",
}
FORMS = {
    "/live",
    "/pieces",
    "/enqueue",
    "/jobs/{id}/edit",
    "/jobs/{id}/move",
    "/operations/new",
    "/operations/letters/new",
    "/new-schedule",
    "/new-schedule/fires",
}
"""Pages that show no more than the others: streams of their parts, and forms."""
