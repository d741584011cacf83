"""What jobs emit, through REST as server-sent events and on their page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.app import Stoker
from stoker.context import current
from stoker.web import Limits, Open, dashboard
from tests.harness.apps import drain
from tests.web.conftest import Client, text
from tests.web.test_api import ENGINES, UNKNOWN


async def told(app: Stoker) -> str:
    """A job that has emitted a secret, reported progress and logged."""

    @app.task
    async def talk() -> None:
        run = current()
        run.emit({"token": "one", "password": "hunter2"})
        run.progress(0.5, "reading password=hunter2", {"secret": "hunter2", "pages": 3})
        run.log("a line with password=hunter2")

    job = await talk.enqueue()
    await drain(app)
    return job.id


def events(body: str) -> list[tuple[str, str, Any]]:
    """Name, id and data of server-sent events."""
    found = []
    for part in body.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.split("\n"))
        found.append((fields["event"], fields["id"], json.loads(fields["data"])))
    return found


@pytest.mark.spec("WATCH-10")
@pytest.mark.parametrize("engine_name", ENGINES)
async def test_a_job_is_followed_as_server_sent_events(app: Stoker, client: Client) -> None:
    job = await told(app)
    path = f"/api/v1/jobs/{job}/stream"
    answer = await client.get(path)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "hunter2" not in answer.text
    seen = events(answer.text)
    assert [name for name, _, _ in seen] == ["emitted", "progressed", "logged", "ended"]
    assert seen[0][2]["value"]["token"] is not None
    assert (seen[1][2]["fraction"], seen[1][2]["data"]["pages"]) == (0.5, 3)
    assert (seen[3][2]["status"], seen[3][2]["ended"]) == ("done", True)
    for n, (_, id_, _) in enumerate(seen[:-1]):
        rest = await client.get(path, headers={"last-event-id": id_})
        told_again = ("progressed", None)  # how far the job is now, as its record has it
        found = [one for one in events(rest.text) if (one[0], one[2].get("text")) != told_again]
        assert found == seen[n + 1 :]
    assert events((await client.get(f"{path}?after=1")).text) == seen[1:]
    assert (await client.get(path, headers={"last-event-id": seen[-1][1]})).status_code == 204
    assert (await client.get(f"/api/v1/jobs/{UNKNOWN}/stream")).status_code == 404
    for bad in ("x", "99"):
        refused = await client.get(f"{path}?after={bad}")
        assert (refused.status_code, refused.json()["field"]) == (422, "after")
    assert client.board.streams.total() == 0


@pytest.mark.spec("WATCH-10", "WATCH-11")
async def test_a_role_that_may_only_read_sees_no_values(app: Stoker) -> None:
    job = await told(app)
    board = dashboard(app, auth=Open("ann", role="read"), limits=Limits(seconds=30))
    client = Client(board)
    seen = events((await client.get(f"/api/v1/jobs/{job}/stream")).text)
    assert (seen[0][2]["value"], seen[1][2]["data"]) == (None, None)
    page = text(await client.get(f"/jobs/{job}"))
    assert "2 values; your role may not see them" in page
    assert "pages" not in page
    await client.close()
    await board.close()


@pytest.mark.spec("WATCH-10")
async def test_streams_are_bounded(app: Stoker) -> None:
    """In how many there are, and in how long one lasts; one that is refused gives its place back."""
    app.declare("send")
    job = (await app.enqueue(app.draft("send"))).id
    path = f"/api/v1/jobs/{job}/stream"
    for limits, status in ((Limits(seconds=30, streams=0), 429), (Limits(seconds=30, stream_seconds=0), 200)):
        board = dashboard(app, auth=Open("ann"), limits=limits)
        client = Client(board)
        assert (await client.get(path)).status_code == status
        assert board.streams.total() == 0
        await client.close()
        await board.close()


@pytest.mark.spec("WATCH-11")
async def test_the_page_of_a_job_shows_what_it_emitted(app: Stoker, client: Client) -> None:
    job = await told(app)
    answer = await client.get(f"/jobs/{job}")
    page = text(answer)
    assert "hunter2" not in answer.text
    assert "Emitted 2 values" in page
    assert "50% reading" in page
    parts = await client.get(f"/pieces?page=job&id={job}")
    assert "Emitted" in parts.text
