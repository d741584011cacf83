"""`stoker top`, through textual's pilot and once in a real terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable
from fcntl import ioctl
from functools import partial
from pathlib import Path

import pytest
from rich.text import Text
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.cli.terminal import HELP, Top
from stoker.cli.top_dialogs import Page, Question
from stoker.model.control import Tuning
from stoker.model.errors import EngineUnavailable
from stoker.model.job import Status
from tests.harness.apps import PATIENCE, drain, working

SIZES = [(80, 24), (200, 60)]


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Stoker]:
    """A store with twelve dead jobs, one done and one scheduled."""
    app = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task(queue="mail", attempts=1)
    async def send(to: str) -> str:
        if to.startswith("nowhere"):
            raise ValueError(f"no such address {to!r}\x1b[2J")
        return to

    async with app:
        for n in range(12):
            await send.enqueue(f"nowhere{n}")
        await send.enqueue("ada")
        await drain(app)
        await send.using(delay=3600, queue="later").enqueue("later")
        yield app


def text(top: Top, where: str) -> str:
    return str(top.query_one(where, Static).content)


def cells(top: Top) -> list[list[str]]:
    table = top.query_one(DataTable)
    return [[str(cell).strip() for cell in table.get_row_at(row)] for row in range(table.row_count)]


def heads(top: Top) -> list[str]:
    return [str(column.label).strip() for column in top.query_one(DataTable).ordered_columns]


def of_first(top: Top, head: str) -> str:
    """What the first row has under a head."""
    return cells(top)[0][heads(top).index(head)]


async def shows(pilot: Pilot[None], seen: Callable[[], object]) -> None:
    """Wait for what a worker of the view brings about."""
    async with asyncio.timeout(PATIENCE):
        while not seen():
            await pilot.pause(0.02)


@pytest.mark.spec("TOP-01")
@pytest.mark.parametrize("size", SIZES)
async def test_queues_are_shown_at_every_size(app: Stoker, size: tuple[int, int]) -> None:
    top = Top(Admin(app))
    async with top.run_test(size=size) as pilot:
        await shows(pilot, lambda: len(cells(top)) == 2)
        mail, later = (dict(zip(heads(top), row, strict=True)) for row in cells(top))
        assert (mail["queue"], mail["dead"], later["queue"]) == ("mail", "12", "later")
        assert (len(heads(top)) >= 7) if size[0] == 80 else (len(heads(top)) == 15)
        head = text(top, "#head")
        assert "One thing needs you" in head
        assert "12 dead" in head
        assert "12 jobs died in the last hour" in text(top, "#findings")
        table = top.query_one(DataTable)
        assert table.virtual_size.width <= size[0], "nothing is cut off"
        assert table.region.height >= 10


@pytest.mark.spec("TOP-02")
async def test_a_queue_is_paused_and_resumed(app: Stoker) -> None:
    admin = Admin(app, by="ada")
    top = Top(admin)
    async with top.run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda: len(cells(top)) == 2)
        await pilot.press("p")
        await shows(pilot, lambda: "queue mail is paused" in text(top, "#said"))
        await shows(pilot, lambda: cells(top)[1][0] == "mail" and "paused by ada" in cells(top)[1])
        assert (await admin.queues.get("mail")).paused_by == "ada"
        assert top.selected == "mail", "the cursor goes with its row"
        await pilot.press("r")
        await shows(pilot, lambda: of_first(top, "state") == "open")
        await admin.queues.tune("mail", Tuning(workers=3))
        await shows(pilot, lambda: of_first(top, "state").startswith("at most 3 at"))
        await pilot.press("2", "p")
        await shows(pilot, lambda: "select a queue to pause it" in text(top, "#said"))


@pytest.mark.spec("TOP-03")
async def test_jobs_are_filtered_opened_and_requeued(app: Stoker) -> None:
    admin = Admin(app)
    top = Top(admin)
    async with top.run_test(size=(200, 60)) as pilot:
        await shows(pilot, lambda: cells(top))
        await pilot.press("slash", *"is:daed", "enter")
        await shows(pilot, lambda: "Did you mean dead?" in text(top, "#said"))
        top.query_one(Input).value = "is:dead"
        await pilot.press("enter")
        await shows(pilot, lambda: len(cells(top)) == 12)
        assert "\x1b" not in str(cells(top))
        await pilot.press("enter")
        await shows(pilot, lambda: isinstance(top.screen, Page))
        shown = str(top.screen.query_one(Static).content)
        assert shown.startswith("finished: it is dead: ValueError: no such address")
        assert "\x1b" not in shown
        await pilot.press("escape")
        chosen = top.selected
        assert chosen is not None
        await pilot.press("R")
        await shows(pilot, lambda: f"job {chosen} is requeued" in text(top, "#said"))
        await shows(pilot, lambda: len(cells(top)) == 11)
        assert (await admin.jobs.get(chosen)).job.status is Status.PENDING
        await pilot.press("escape")
        await shows(pilot, lambda: top.looking_at == "queues" and len(cells(top)) == 2)


@pytest.mark.spec("TOP-04")
async def test_many_jobs_are_requeued_after_a_question(app: Stoker) -> None:
    admin = Admin(app)
    top = Top(admin)
    async with top.run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda: cells(top))
        await pilot.press("3")
        await shows(pilot, lambda: len(cells(top)) == 1)
        assert (of_first(top, "jobs"), of_first(top, "kinds")) == ("12", "send")
        await pilot.press("enter")
        await shows(pilot, lambda: top.looking_at == "jobs" and len(cells(top)) == 12)
        await pilot.press("3")
        await shows(pilot, lambda: top.looking_at == "failures" and cells(top))
        await pilot.press("R")
        await shows(pilot, lambda: isinstance(top.screen, Question))
        await pilot.press("n")
        await shows(pilot, lambda: "nothing was changed" in text(top, "#said"))
        await pilot.press("R")
        await shows(pilot, lambda: isinstance(top.screen, Question))
        await pilot.press("y")
        await shows(pilot, lambda: "requeued 12 jobs" in text(top, "#said"))
        await pilot.press("1")
        await shows(pilot, lambda: len(cells(top)) == 2 and of_first(top, "ready") == "12")
        await pilot.press("R")
        await shows(pilot, lambda: "no jobs match is:dead queue:mail" in text(top, "#said"))


@pytest.mark.spec("TOP-05")
async def test_workers_help_and_hold(app: Stoker) -> None:
    top = Top(Admin(app), every=0.05)
    async with top.run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda: cells(top))
        await pilot.press("4")
        await shows(pilot, lambda: len(cells(top)) == 1)
        assert of_first(top, "state") == "stopped"
        await pilot.press("enter")
        await shows(pilot, lambda: isinstance(top.screen, Page))
        assert str(top.screen.query_one(Static).content) == "it runs nothing"
        await pilot.press("escape", "question_mark")
        await shows(pilot, lambda: isinstance(top.screen, Page))
        assert str(top.screen.query_one(Static).content) == HELP
        await pilot.press("escape", "full_stop")
        await shows(pilot, lambda: "held" in text(top, "#head"))
        assert top.held
        await pilot.press("full_stop", "R")
        await shows(pilot, lambda: "select a queue" in text(top, "#said"))
        await pilot.press("q")
    assert not top.is_running


@pytest.mark.spec("TOP-06")
async def test_a_store_that_is_away_leaves_the_picture(app: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(app)
    top = Top(admin, every=0.05)
    async with top.run_test(size=(80, 24)) as pilot:
        await shows(pilot, lambda: cells(top))
        real = app.engine

        async def away() -> None:
            raise EngineUnavailable("nobody is at home")

        monkeypatch.setattr(app, "engine", away)
        await shows(pilot, lambda: "What you see is from" in text(top, "#findings"))
        assert len(cells(top)) == 2
        await pilot.press("p")
        await shows(pilot, lambda: "nobody is at home" in text(top, "#said"))
        monkeypatch.setattr(app, "engine", real)
        await shows(pilot, lambda: "died in the last hour" in text(top, "#findings"))


@pytest.mark.spec("TOP-07")
@pytest.mark.parametrize("size", SIZES)
async def test_it_runs_in_a_real_terminal(app: Stoker, size: tuple[int, int]) -> None:
    url = f"sqlite:///{app.root().where}"
    code, seen = await asyncio.to_thread(play, [sys.executable, "-m", "stoker", "top", "--url", url], size)
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert "needs you" in plain
    assert "mail" in plain


def play(command: list[str], size: tuple[int, int]) -> tuple[int, str]:
    """Run a command on a terminal of this size until it has drawn, press q, and return its exit code and output."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execvp(command[0], command)
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    seen, pressed, end = b"", False, time.monotonic() + 240
    while time.monotonic() < end:
        ready, _, _ = select.select([terminal], [], [], 0.2)
        if ready:
            try:
                seen += os.read(terminal, 65536)
            except OSError:  # the other side is closed
                break
        if not pressed and b"mail" in seen:
            os.write(terminal, b"q")
            pressed = True
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), seen.decode(errors="replace")


@pytest.mark.spec("TOP-08")
async def test_titles_are_text(app: Stoker) -> None:
    """The name of a worker or a kind neither colours the frame nor makes a button of it."""
    title = "worker a[bold]b [@click=app.quit]c\x1b[2J"
    top = Top(Admin(app))
    async with top.run_test(size=(80, 24)) as pilot:
        top.push_screen(Page(title, Text("x")))
        await shows(pilot, lambda: isinstance(top.screen, Page) and top.screen.query(VerticalScroll))
        drawn = top.screen.query_one(VerticalScroll)._border_title
        assert drawn is not None
        assert (drawn.plain.strip(), drawn.spans) == ("worker a[bold]b [@click=app.quit]c\\x1b[2J", [])
        top.push_screen(Question("requeue \x1b[2J?"))
        await shows(pilot, lambda: isinstance(top.screen, Question) and top.screen.query(Static))
        assert "\x1b" not in str(top.screen.query_one(Static).content)


def _says(top: Top, said: str) -> bool:
    return text(top, "#empty") == said


@pytest.mark.spec("TOP-09")
async def test_the_worst_comes_first_and_figures_are_seen(tmp_path: Path) -> None:
    """Thirty queues with names of 128 characters, on the picture of a terminal of 80×24."""
    app = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}")
    names = [f"{'orders-' * 17}{n:09}" for n in range(30)]
    assert {len(name) for name in names} == {128}

    @app.task(queue=names[17], attempts=1)
    async def send() -> None:
        raise ValueError("no such address")

    @app.task(queue=names[9])
    async def misspelt() -> None: ...

    async with app:
        admin = Admin(app)
        top = Top(admin)
        async with top.run_test(size=(80, 24)) as pilot:
            for key, said in (
                ("1", "No queue has been used yet."),
                ("2", "No job has been enqueued yet."),
                ("3", "No dead or retrying job: nothing has failed."),
                ("4", "No worker has shown itself."),
            ):
                await pilot.press(key)
                await shows(pilot, partial(_says, top, said))
            for name in names:
                await admin.queues.tune(name, Tuning(keep_done=3_600_000_000), create=True)
            await send.enqueue()
            await drain(app)
            await misspelt.enqueue()
            async with working(app, queues={names[17]: 1}):
                await pilot.press("1")
                await shows(pilot, lambda: len(cells(top)) == 30 and cells(top)[0][0].endswith("000000009"))
                table = top.query_one(DataTable)
                picture = [strip.text for strip in top.screen._compositor.render_strips()]
        keys = [str(table.coordinate_to_cell_key((row, 0)).row_key.value) for row in range(2)]  # type: ignore[arg-type]
        assert keys == [names[9], names[17]], "what a finding is about, then what died"
        [head] = [line for line in picture if "oldest waits" in line]
        assert {"queue", "ready", "running", "dead", "state"} <= set(head.split())
        [row] = [line for line in picture if line.strip().endswith("open") and "0009 " in line]
        assert "…" in row.split()[0]
        assert row.split()[1] == "1"
        assert any("…" in line and "has 1 ready job and no worker" in line for line in picture), "a finding is seen"
