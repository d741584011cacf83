"""`stoker cron`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from stoker.app import Stoker
from stoker.cli import schedules as cron
from stoker.cli.command import stoker
from stoker.model.job import Status
from stoker.model.schedule import failed, tick
from stoker.worker.schedules import declare, fire_due

APP = """
from stoker import Stoker

jobs = Stoker({url!r})

@jobs.cron("0 9 * * mon-fri", tz="Europe/Paris", queue="mail")
async def digest(region: str = "eu") -> None: ...

@jobs.cron(every=3600)
async def poll() -> None: ...
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'jobs.db'}"


@pytest.fixture
def app(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The path of an app whose schedules a worker has stored."""
    (tmp_path / "cron_app.py").write_text(APP.format(url=url))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("STOKER_URL", raising=False)
    monkeypatch.delenv("STOKER_APP", raising=False)
    from cron_app import jobs  # type: ignore[import-not-found]

    asyncio.run(started(jobs))
    yield "cron_app:jobs"
    del sys.modules["cron_app"]


async def started(jobs: Stoker) -> None:
    """What a worker does first: store what is declared, and seed it."""
    async with jobs:
        engine = await jobs.engine()
        await declare(jobs, engine)
        await fire_due(jobs, engine, await engine.schedules.read())


def run(*args: str) -> Result:
    return CliRunner().invoke(stoker, ["cron", *args])


def rows(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.output
    return [line.split("\t") for line in result.output.splitlines()]


@pytest.mark.spec("CLI-19")
def test_a_list_shows_when_each_fires_next_and_what_became_of_the_last(app: str, url: str) -> None:
    head, digest, poll = rows(run("list", "--app", app))
    assert head == [*cron.COLUMNS, "status"]
    assert digest[:4] == ["digest", "0 9 * * mon-fri Europe/Paris", "digest", "mail"]
    assert datetime.fromisoformat(digest[4]) > datetime.now(UTC)
    assert digest[5:] == ["", ""]
    assert poll[:4] == ["poll", "@every 3600s", "poll", "default"]
    [first, second] = [json.loads(line) for line in run("list", "--url", url, "--json").output.splitlines()]
    assert (first["name"], first["tz"], first["payload"], first["source"]) == ("digest", "Europe/Paris", {}, "code")
    assert second["next_fire"].endswith("Z")


@pytest.mark.spec("CLI-19")
def test_a_schedule_is_paused_resumed_run_and_dropped(app: str, url: str) -> None:
    assert run("pause", "poll", "--url", url).output == "schedule poll is paused\n"
    assert rows(run("list", "--app", app))[2][4] == "paused"
    assert run("resume", "poll", "--app", app).output == "schedule poll is resumed\n"
    assert rows(run("list", "--app", app))[2][4] == "soon"
    job = run("run", "poll", "--url", url).output.strip()

    async def status() -> Status:
        async with Stoker(url) as jobs:
            return (await jobs.handle(job).refresh()).status

    assert asyncio.run(status()) is Status.PENDING
    assert run("drop", "poll", "--url", url).output == "schedule poll is dropped\n"
    assert [row[0] for row in rows(run("list", "--url", url))] == ["schedule", "digest"]


@pytest.mark.spec("CLI-19")
def test_an_edited_schedule_is_marked_and_given_back_to_the_code(app: str, url: str) -> None:
    async def edit() -> None:
        async with Stoker(url) as jobs:
            await jobs.schedule_handle("poll").edit(every=60)

    asyncio.run(edit())
    assert rows(run("list", "--app", app))[2][1:] == ["@every 60s", "poll", "default", "soon", "", "edited"]
    assert run("reset", "poll", "--app", app).output == "schedule poll is as the code declares it: @every 3600s UTC\n"
    assert rows(run("list", "--app", app))[2][6] == ""
    refused = run("reset", "poll", "--url", url)
    assert refused.exit_code == 1
    assert "no code of this app declares schedule 'poll'" in refused.output


@pytest.mark.spec("CLI-19")
def test_what_became_of_the_last_time_is_one_line(app: str, url: str) -> None:
    async def fails() -> None:
        async with Stoker(url) as jobs:
            engine = await jobs.engine()
            [_, poll] = await engine.schedules.read()
            late = tick(msgspec.structs.replace(poll, next_fire=1), 7_200_000_001)
            broken = failed(late, "no room\nfor \x1b[31mit")
            await engine.schedules.fire(msgspec.structs.replace(broken, at=poll.changed_at, seen=poll.next_fire))

    asyncio.run(fails())
    assert rows(run("list", "--url", url))[2][6] == r"error; missed 3; no room for \x1b[31mit"


@pytest.mark.spec("CLI-19")
def test_a_schedule_that_no_code_declares_is_marked(app: str, url: str) -> None:
    async def leave_behind() -> None:
        other = Stoker(url)
        other.cron("@daily", name="old")(_nothing)
        await started(other)

    asyncio.run(leave_behind())
    assert rows(run("list", "--app", app))[2][6] == "not declared by this app"
    assert rows(run("list", "--url", url))[2][6] == "", "a URL names no code"


def _nothing() -> None: ...


@pytest.mark.spec("CLI-19")
def test_the_next_occurrences_are_shown_in_the_zone_and_in_utc(app: str) -> None:
    head, *found = rows(run("next", "digest", "-n", "3", "--app", app))
    assert (head, len(found)) == (["local", "utc", "when"], 3)
    assert all("T09:00:00+0" in local and utc.endswith(":00:00+00:00") for local, utc, _ in found)
    [one] = [json.loads(line) for line in run("next", "digest", "-n", "1", "--json", "--app", app).output.splitlines()]
    assert one["utc"].endswith("+00:00")


@pytest.mark.spec("CLI-19")
@pytest.mark.parametrize("command", ["pause", "resume", "run", "next", "drop"])
def test_a_schedule_that_is_not_there_ends_with_code_3(app: str, url: str, command: str) -> None:
    result = run(command, "nowhere", "--url", url)
    assert (result.exit_code, "'nowhere' is not in the store" in result.output) == (3, True)
    assert run(command, "no spaces", "--url", url).exit_code == 2


@pytest.mark.spec("CLI-19")
def test_a_schedule_is_shown_and_edited(app: str) -> None:
    assert "cron: 0 9 * * mon-fri" in run("show", "digest", "--app", app).output
    assert run("edit", "digest", "--cron", "0 8 * * *", "--jitter", "30s", "--app", app).output == (
        "schedule digest is edited: 0 8 * * * Europe/Paris\n"
    )
    shown = json.loads(run("show", "digest", "--json", "--app", app).output)
    assert (shown["cron"], shown["edited"]) == ("0 8 * * *", True)
    assert run("edit", "digest", "--app", app).exit_code == 2
    assert run("edit", "digest", "--cron", "never", "--app", app).exit_code == 2
    assert json.loads(run("run", "digest", "--json", "--app", app).output)["schedule"] == "digest"
    assert json.loads(run("reset", "digest", "--json", "--app", app).output)["edited"] is False
