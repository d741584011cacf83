"""Tables of commands: on a real terminal of 80×24 with long names, on wide ones, and in pipes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fcntl import ioctl
from pathlib import Path

import pytest
from click.testing import CliRunner

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.cli import tables
from stoker.cli.command import stoker
from stoker.cli.tables import Figure, Id, Layout, cut, mark, squeezed
from stoker.context import current
from stoker.model.control import Tuning
from stoker.model.events import Point
from stoker.model.ids import short
from stoker.model.stats import of_kind
from stoker.model.time import HOUR, MINUTE, instant
from tests.harness.apps import PATIENCE, drain, working

NOW = datetime(2026, 11, 16, 14, 28, 7, tzinfo=UTC)
QUEUE = "orders-" * 17 + "far-north"
KIND = "shop.mail.send-" * 8 + "reminder"
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def draw(heads: list[str], rows: list[list[object]], width: int | None, *goes_first: str) -> list[str]:
    return [str(line) for line in Layout(heads, rows, instant(NOW)).lines(width, goes_first)]


@pytest.mark.spec("CLI-72")
def test_columns_are_dropped_and_not_cut() -> None:
    assert (len(QUEUE), len(KIND)) == (128, 128)
    heads = ["queue", "ready", "lag", "seen", "state"]
    row = [QUEUE, 12_345, timedelta(seconds=252), NOW - timedelta(minutes=3), "paused by ada (a long migration)"]
    whole = f"{QUEUE}  12,345  4 min 12 s  3 min ago  paused by ada (a long migration)"
    assert draw(heads, [row], None)[1] == draw(heads, [row], 300)[1] == whole
    for width in range(40, 190):
        layout = Layout(heads, [row], instant(NOW))
        head, line = map(str, layout.lines(width, ("seen",)))
        assert len(line) <= width
        assert head.split() == [one for one in heads if one not in layout.dropped]
        assert "ready" in layout.dropped or re.search(r"(?<!\S)12,345(?!\S)", line)
        assert "lag" in layout.dropped or "  4 min 12 s" in line
        assert line.startswith("orders-o")
    assert Layout(heads, [row], 0).widths(24).keys() == {0}
    dropped = Layout(heads, [row], instant(NOW))
    dropped.widths(68, ("seen",))
    assert dropped.dropped == ["seen"]


@pytest.mark.spec("CLI-72")
def test_names_lose_their_middle_and_sentences_their_end() -> None:
    assert squeezed("orders-north", 12) == "orders-north"
    assert squeezed("orders-far-north", 12) == "orders…north"
    assert squeezed("注文-注文-注文", 9) == "注文…注文"
    assert cut("paused by ada", 8) == "paused…"
    assert cut("paused", 8) == "paused"


@pytest.mark.spec("CLI-73")
def test_figures_stand_at_the_right_with_their_units() -> None:
    heads = ["id", "n", "rate", "lag"]
    rows: list[list[object]] = [
        [Id("0193b0f0-0000-7000-8000-00000000abcd"), 1, Figure("0.5"), timedelta(seconds=1)],
        [Id("0193b0f0-0000-7000-8000-00000000abce"), 12_345, Figure("12"), None],
    ]
    assert draw(heads, rows, 40) == [
        "id                  n  rate    lag",
        "0193b0f0…abcd       1   0.5  1.0 s",
        "0193b0f0…abce  12,345    12",
    ]
    assert short("0193b0f0-0000-7000-8000-00000000abcd") == "0193b0f0…abcd"
    [_, line] = Layout(["dead"], [[mark(3, "bad")]], 0).lines(None)
    assert [(str(span.style), span.start, span.end) for span in line.spans if span.style] == [("red", 0, 4)]
    [_, line] = Layout(["dead"], [[mark(0, "bad", when=0)]], 0).lines(None)
    assert not [span for span in line.spans if span.style]


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with one dead job of a long kind in a long queue, and one that runs or waits in another."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("STOKER_URL", url)
    monkeypatch.delenv("STOKER_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    app = Stoker(url)

    @app.task(name=KIND, queue=QUEUE, attempts=1)
    async def send() -> None:
        raise ValueError("no such address")

    async def fill() -> None:
        async with app:
            await send.enqueue()
            await drain(app)
            await Admin(app, by="ada").queues.pause(QUEUE, reason="a long migration")

    app.run(fill())
    return url


def on_a_terminal(*words: str, size: tuple[int, int] = (80, 24)) -> str:
    """What a real process shows on a real terminal of this size."""
    child, terminal = pty.fork()
    if child == 0:
        ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        os.environ["TERM"] = "xterm-256color"
        os.environ.pop("COLUMNS", None)
        os.execvp(sys.executable, [sys.executable, "-m", "stoker", *words])
    seen = b""
    with suppress(OSError):  # the other side is closed
        while part := os.read(terminal, 65536):
            seen += part
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, seen
    return seen.decode()


@pytest.mark.spec("CLI-72")
@pytest.mark.spec("CLI-73")
def test_a_terminal_of_80_columns_shows_figures_beside_long_names(url: str) -> None:
    seen = on_a_terminal("queues", "list")
    head, row, dropped, *_ = CODES.sub("", seen).splitlines()
    assert {"queue", "ready", "running", "dead", "oldest", "state"} <= set(head.split())
    assert max(len(head), len(row)) <= 80
    assert re.match(r"orders-\S+…\S+far-north  +0 ", row)
    assert row.index(" 1 ") == head.index("dead") + 2, "figures stand below the end of their head"
    assert re.fullmatch(r"\d columns not shown; --wide shows every one\.", dropped)
    assert "\x1b[31m" in seen, "a dead job is wrong"
    assert "\x1b[33mpaused" in seen
    wide = CODES.sub("", on_a_terminal("queues", "list", "--wide"))
    assert QUEUE in wide
    assert "not shown" not in wide
    assert "paused by ada (a long migration)" in wide


@pytest.mark.spec("CLI-73")
def test_a_pipe_gets_everything_whole_and_plain(url: str) -> None:
    done = subprocess.run([sys.executable, "-m", "stoker", "jobs", "list"], capture_output=True, text=True, check=True)
    head, row = (line.split("\t") for line in done.stdout.splitlines())
    found = dict(zip(head, row, strict=True))
    assert (found["queue"], found["kind"], found["status"]) == (QUEUE, KIND, "dead")
    assert len(found["id"]) == 36
    assert datetime.fromisoformat(found["created"]).tzinfo is not None
    assert "\x1b" not in done.stdout


EMPTY = {
    "audit": "No change was made in this time.",
    "findings": "Everything keeps up.",
    "groups list": "No group was made yet.",
    "jobs errors": "No error in the last 7 days.",
    "jobs list": "No job matches.",
    "jobs waits": "No job waits for a signal.",
    "kinds": "No kind has jobs yet.",
    "limits": "No budget is in the store.",
    "limits full": "No job waits for a key at its limit.",
    "limits keys mail": "No job of the queue runs under a key.",
    "operations": "No action on many jobs was started yet.",
    "outbox": "No stream is in the store.",
    "outbox lag": "No stream has a consumer.",
    "queues list": "No queue has been used yet.",
    "schedules": "No schedule is in the store.",
    "tokens list": "No token was made yet.",
    "workers": "No worker has shown itself.",
}


@pytest.mark.spec("CLI-79")
def test_an_empty_list_says_so_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.delenv("STOKER_APP", raising=False)
    app = Stoker(url)
    app.run(app.engine())
    app.run(app.close())
    monkeypatch.setattr(tables, "on_terminal", lambda: True)
    for words, said in EMPTY.items():
        found = CliRunner().invoke(stoker, [*words.split(), "--url", url])
        assert (found.exit_code, found.stdout.splitlines()) == (0, [said]), (words, found.output)


@pytest.mark.spec("CLI-23")
def test_kinds_show_run_times_waits_and_their_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.delenv("STOKER_APP", raising=False)
    app = Stoker(url)

    async def fill() -> None:
        async with app:
            engine = await app.engine()
            now = await engine.now()
            at = now // MINUTE * MINUTE - 30 * MINUTE
            points = [
                Point("send", of_kind(metric), at, 4, *rest)
                for metric, *rest in (
                    ("completed",),
                    ("processing", 4_000_000, 1_000_000, 2_000_000, 3_000_000),
                    ("wait", 4_000_000, 4_000_000, 5_000_000, 6_000_000),
                )
            ]
            await engine.timeline.record([], points, now=now)
            await app.enqueue(app.draft("send"))

    app.declare("send")
    app.run(fill())
    found = CliRunner().invoke(stoker, ["kinds", "--url", url])
    head, row = (line.split("\t") for line in found.stdout.splitlines())
    send = dict(zip(head, row, strict=True))
    ranks = [send[f"{of}{rank}"] for of in ("", "wait ") for rank in ("p50", "p95", "p99")]
    assert ranks == ["1.0 s", "2.0 s", "3.0 s", "4.0 s", "5.0 s", "6.0 s"]
    assert (len(send["bars"]), send["bars"].count("█")) == (30, 1)


@pytest.mark.spec("CLI-74")
async def test_running_jobs_are_listed_with_start_progress_and_worker(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = Stoker(url)
    going, done = asyncio.Event(), asyncio.Event()

    @app.task(queue="slow")
    async def long() -> None:
        current().progress(0.25)
        going.set()
        await done.wait()

    async with app:
        job = await long.enqueue()
        async with working(app):
            await going.wait()
            async with asyncio.timeout(PATIENCE):
                while (await job.refresh()).progress is None:
                    await asyncio.sleep(0.02)
            listed = await asyncio.to_thread(_listed, url)
            done.set()
    assert listed["id"] == job.id
    assert listed["progress"] == "25 %"
    assert listed["worker"].endswith(f" / {os.getpid()}")
    assert datetime.fromisoformat(listed["started"]) <= datetime.now(UTC)
    assert list(listed) == ["id", "kind", "queue", "started", "progress", "worker", "attempts"]


def _listed(url: str) -> dict[str, str]:
    found = CliRunner().invoke(stoker, ["jobs", "list", "is:running", "--url", url]).stdout.splitlines()
    head, row = (line.split("\t") for line in found)
    return dict(zip(head, row, strict=True))


@pytest.mark.spec("CLI-75")
def test_stats_show_a_day_and_its_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.delenv("STOKER_APP", raising=False)
    app = Stoker(url)

    async def fill() -> int:
        async with app:
            engine = await app.engine()
            now = await engine.now()
            hour = now // HOUR * HOUR
            points = [
                Point(queue, f"{'' if queue else 'all_'}{metric}", hour - ago * HOUR, n, *rest)
                for queue in ("", "mail")
                for metric, ago, n, *rest in (
                    ("enqueued", 20, 1_000),
                    ("enqueued", 2, 500),
                    ("completed", 2, 1_440),
                    ("failed", 2, 7),
                    ("processing", 2, 1_440, 0, 200_000, 1_500_000),
                )
            ]
            await engine.timeline.record([], points, now=now)
            await Admin(app).queues.tune("mail", Tuning(workers=3), create=True)
            return now

    app.run(fill())

    def stats(*words: str) -> dict[str, dict[str, str]]:
        done = CliRunner().invoke(stoker, ["stats", *words, "--url", url])
        assert done.exit_code == 0, done.output
        head, *rows = (line.split("\t") for line in done.stdout.splitlines())
        return {row[0]: dict(zip(head, row, strict=True)) for row in rows}

    for words in (("--last", "24h"), ("--last", "24h", "--queue", "mail")):
        found = stats(*words)
        assert {name: row["total"] for name, row in found.items()} == {
            "enqueued": "1500",
            "completed": "1440",
            "retries": "0",
            "deaths": "7",
            "run time": "1440",
            "enqueue to end": "0",
        }
        assert found["completed"]["per minute"] == "1.0"
        assert (found["run time"]["p50"], found["run time"]["p95"]) == ("0.20 s", "1.5 s")
        bars = found["enqueued"]["bars"]
        assert len(bars) == len(found["completed"]["bars"]) in {24, 25}
        assert (bars.count("█"), bars.count("▅"), set(found["retries"]["bars"])) == (1, 1, {"▁"})
        assert bars.index("█") < bars.index("▅") == found["completed"]["bars"].index("█")
    assert stats("--last", "1h")["enqueued"]["total"] == "0"
    refused = CliRunner().invoke(stoker, ["stats", "--queue", "maill", "--url", url])
    assert (refused.exit_code, "Did you mean mail?" in refused.stderr) == (3, True)
    [first, *_] = CliRunner().invoke(stoker, ["stats", "--last", "24h", "--json", "--url", url]).stdout.splitlines()
    assert (json.loads(first)["total"], len(json.loads(first)["points"])) == (1500, 2)
