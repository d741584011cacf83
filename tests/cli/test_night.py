"""A bad night in the terminal: each of thirteen questions is answered, or done, with at most two commands.

The store of `tests/harness/night.py` is made once per engine. In `stoker top` each takes a few keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from textual.widgets import Input, Static

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.cli.command import stoker
from stoker.cli.terminal import Top
from stoker.cli.top_dialogs import Entry, Page, Question
from stoker.model.job import Status
from tests.cli.test_top import cells, heads, shows, text
from tests.harness import night
from tests.harness.letters import letters

ENGINES = [pytest.param(name, marks=pytest.mark.engine(name)) for name in ("sqlite", "postgres", "redis")]
VAT = "KeyError: 'vat_id'"


class Night(NamedTuple):
    """The store of the night."""

    engine: str
    url: str

    def run(self, *words: str) -> str:
        """What a command prints in a pipe."""
        found = CliRunner().invoke(stoker, [*words, "--url", self.url])
        assert found.exit_code == 0, (words, found.output)
        return found.stdout

    def rows(self, *words: str) -> list[dict[str, str]]:
        """The lines of a table by their heads."""
        head, *lines = (line.split("\t") for line in self.run(*words).splitlines() if "\t" in line)
        return [dict(zip(head, line, strict=False)) for line in lines]

    def alive(self) -> None:
        """Say that the workers live, but for the one that is frozen."""
        app = Stoker(self.url)

        async def beat() -> None:
            await night.beat(await app.engine(), *night.LIVING)

        app.run(beat())
        app.run(app.close())


@pytest.fixture(scope="module", params=ENGINES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    with night.stored(request.param, request, tmp_path_factory.mktemp("night"), asyncio.run) as url:
        yield Night(request.param, url)


@pytest.mark.spec("NIGHT-01")
def test_the_night_by_commands(store: Night) -> None:
    store.alive()
    # Why did they die, and which deploy brought it?
    errors = {one["error"]: one for one in store.rows("jobs", "errors")}
    assert len(errors) == 13  # with one that retries
    vat = errors[VAT]
    assert (vat["kinds"], vat["new since"]) == ("billing.charge_and_settle", night.NEW)
    assert errors["AssertionError: totals differ by 0.01"]["new since"] == night.NEW
    assert errors[night.HOOK]["new since"] == ""
    # Requeue one error, and watch that.
    assert store.run("jobs", "requeue", f"same_error:{vat['id']}", "--yes").endswith("requeue: 640 jobs\n")
    assert "640" in store.run("operations", "watch")
    assert store.run("jobs", "list", "is:dead", "--count") == "1,360\n"
    # Pause.
    store.run("queues", "pause", "mail", "--reason", "the relay is down")
    # Which kind is slow?
    assert store.rows("kinds", "--sort", "p95")[0]["kind"] == night.SLOW
    # Which worker is stuck?
    workers = {one["worker"]: one for one in store.rows("workers")}
    assert [name for name, one in workers.items() if one["state"] == "silent"] == [night.FROZEN]
    assert {one["release"] for one in workers.values()} == {night.OLD, night.NEW}
    # Why does it not run?
    waits = store.rows("jobs", "list", "queue:imports", "is:ready", "--limit", "1")[0]["id"]
    assert store.run("jobs", "explain", waits).startswith("paused: queue 'imports' is paused by maria")
    # Edit and retry.
    dead = store.rows("jobs", "list", "is:dead", "kind:taxes", "--limit", "1")[0]["id"]
    assert "edited and requeued" in store.run("jobs", "edit", dead, "--payload", '{"order": 7}', "--requeue")
    # Cancel one that runs long.
    [long] = store.rows("jobs", "list", "is:running", "kind:video.sync")
    assert long["progress"] == "12 %"
    store.run("jobs", "cancel", long["id"])
    # Change a schedule.
    assert "nightly-ledger" in [one["schedule"] for one in store.rows("schedules", "list")]
    store.run("schedules", "edit", "nightly-ledger", "--cron", "30 4 * * *")
    # Replay letters; Redis has no streams.
    if store.engine != "redis":
        assert len(store.rows("outbox", "letters", "orders")) == 3
        store.run("outbox", "replay", "orders", "--all", "--yes")
    # The throughput of a day.
    flow = {one["figure"]: one for one in store.rows("stats", "--last", "24h")}
    assert int(flow["completed"]["total"]) > 70_000
    # What all of this came to.
    app = Stoker(store.url)

    async def came() -> tuple[Any, ...]:
        async with app:
            admin = Admin(app)
            jobs = [(await admin.jobs.get(one)).job for one in (dead, long["id"])]
            schedule = await admin.schedules.get("nightly-ledger")
            return jobs, (await admin.queues.get("mail")).paused_why, schedule.cron

    (edited, asked), why, cron = app.run(came())
    assert (edited.status, edited.payload) == (Status.PENDING, b'{"order": 7}')
    assert asked.cancel_requested
    assert (why, cron) == ("the relay is down", "30 4 * * *")


@pytest.mark.spec("NIGHT-01")
async def test_the_night_in_top(store: Night, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Worst first, at 80 columns: what is wrong, which kind is slow, who is stuck, why it waits; and how to act."""
    await asyncio.to_thread(store.alive)
    app = Stoker(store.url)
    async with app:
        admin = Admin(app, by="ann")
        [dead] = (await admin.jobs.find("is:dead kind:geo.sync", limit=1)).jobs
        top = Top(admin)
        async with top.run_test(size=(80, 24)) as pilot:

            def said(words: str) -> Callable[[], object]:
                return lambda: words in text(top, "#said")

            def column(name: str) -> list[str]:
                return [row[heads(top).index(name)] for row in cells(top)] if name in heads(top) else []

            await shows(pilot, lambda: cells(top))
            assert "need you" in text(top, "#head")
            await pilot.press("3")  # why did they die, and which deploy brought it
            await shows(pilot, lambda: any("OperationalError" in " ".join(row) for row in cells(top)))
            assert night.NEW in column("new since")
            await pilot.press("5")  # the slow kind
            await shows(pilot, lambda: "p95" in heads(top) and cells(top))
            assert column("kind")[0] == night.SLOW
            await pilot.press("4")  # the stuck worker
            await shows(pilot, lambda: "silent" in column("state"))
            assert column("state")[0] == "silent"
            top.show_jobs("queue:payouts is:ready")  # as typed behind /
            await shows(pilot, lambda: "status" in heads(top) and len(cells(top)) == 4)
            await pilot.press("enter")  # why does it not run
            page = "VerticalScroll > Static"
            await shows(pilot, lambda: isinstance(top.screen, Page) and top.screen.query(page))
            assert "key_limited" in str(top.screen.query_one(page, Static).content)
            await pilot.press("escape")
            top.show_jobs("kind:reports.rebuild is:running")
            await shows(pilot, lambda: len(cells(top)) == 2)
            await pilot.press("c")  # cancel one that runs
            await shows(pilot, lambda: isinstance(top.screen, Question))
            await pilot.press("y")
            await shows(pilot, said("is asked to stop"))

            top.show_jobs(f"id:{dead.id}")
            await shows(pilot, lambda: len(cells(top)) == 1)
            editor = tmp_path / "editor"  # edit and retry; the pilot has no terminal that could be given to an editor
            editor.write_text(f"#!/bin/sh\nsed -i s/acme/globex/ $1\ncp $1 {tmp_path}/seen\n")
            editor.chmod(0o700)
            monkeypatch.setenv("EDITOR", str(editor))
            monkeypatch.delenv("VISUAL", raising=False)
            monkeypatch.setattr(top, "suspend", nullcontext)
            await pilot.press("e")
            await shows(pilot, lambda: isinstance(top.screen, Question))
            await pilot.press("y")
            await shows(pilot, said("is edited and requeued"))

            top.show_jobs("is:dead kind:reviews.sync")  # requeue one error, and watch it
            await shows(pilot, lambda: len(cells(top)) == 30)
            await pilot.press("A")
            await shows(pilot, lambda: isinstance(top.screen, Question))
            await pilot.press("y")
            await shows(pilot, said("requeued 30 jobs"))
            await pilot.press("6")
            await shows(pilot, lambda: "30 of 30 jobs" in column("so far"))
            assert column("state")[0] == "done"

            await pilot.press("7")  # change a schedule
            await shows(pilot, lambda: "hourly-stock" in column("schedule"))
            await pilot.press("e")
            await shows(pilot, lambda: isinstance(top.screen, Entry) and top.screen.query(Input))
            top.screen.query_one(Input).value = "15 * * * *"
            await pilot.press("enter")
            await shows(pilot, said("schedule hourly-stock is edited: 15 * * * * UTC"))

            await pilot.press("8")  # replay letters; Redis has no streams
            if store.engine == "redis":
                await shows(pilot, lambda: "No letter waits" in text(top, "#empty"))
            else:
                await letters(await app.engine(), 3, type_="shop.OrderPlaced.v3", at=9)
                await shows(pilot, lambda: len(column("reason")) == 6)
                await pilot.press("R")
                await shows(pilot, said("is delivered again"))
                await pilot.press("A")
                await shows(pilot, lambda: isinstance(top.screen, Question))
                await pilot.press("y")
                await shows(pilot, said("replayed "))
                await shows(pilot, lambda: set(column("status")) == {"pending, due"})

            await pilot.press("9")  # the throughput of a day
            await shows(pilot, lambda: "bars" in heads(top) and "completed" in column("figure"))
            assert int(column("total")[column("figure").index("completed")].replace(",", "")) > 70_000

            await pilot.press("1")
            await shows(pilot, lambda: "ready" in heads(top) and cells(top))
            queue = top.selected
            await pilot.press("p")  # pause
            await shows(pilot, said("is paused"))
        assert queue is not None
        assert (await admin.queues.get(queue)).paused
        edited = (await admin.jobs.reveal(dead.id)).job
        assert (edited.status, b'"globex"' in edited.payload, b"\n" in edited.payload) == (Status.PENDING, True, False)
        assert "acme" not in (tmp_path / "seen").read_text()
        assert (await admin.schedules.get("hourly-stock")).cron == "15 * * * *"
