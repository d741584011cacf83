"""`stoker outbox …`, as an operator types it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stoker.app import Stoker
from stoker.cli.command import stoker
from stoker.outbox import Message, Outbox, Pace
from tests.harness.apps import drain
from tests.harness.letters import letters

UNKNOWN = "0193b0f0-0000-7000-8000-000000000001"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with a stream, two consumers, a letter and a parked key."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    monkeypatch.setenv("STOKER_URL", url)
    monkeypatch.delenv("STOKER_APP", raising=False)
    monkeypatch.chdir(tmp_path)
    app = Stoker(url)
    outbox = Outbox[dict[str, str]](app, stream="orders", partitions=1)

    @outbox.deliver(attempts=1)
    async def publish(message: Message[dict[str, str]]) -> None:
        if message.body["to"] == "nowhere":
            raise ValueError("no such address\x1b[2J")

    @outbox.deliver(attempts=1, then="park")
    async def bill(message: Message[dict[str, str]]) -> None:
        if message.body["to"] == "nowhere":
            raise ValueError("no bill")

    @outbox.deliver(pace=Pace(retry_base=3600, retry_max=3600))
    async def stuck(message: Message[dict[str, str]]) -> None:
        raise OSError("sink is away")

    async def fill() -> None:
        async with app:
            for to in ("nowhere", "ada", "bob"):
                await outbox.append("k\x1b", {"to": to})
            await drain(app, queues={})

    app.run(fill())
    return url


def call(*words: str, code: int = 0) -> Result:
    done = CliRunner().invoke(stoker, ["outbox", *words])
    assert done.exit_code == code, done.output
    return done


def rows(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in call(*words, "--json").stdout.splitlines()]


@pytest.mark.spec("CLI-40")
def test_streams_and_consumers_are_shown(url: str) -> None:
    header, line = call("list").stdout.splitlines()
    assert header.split("\t") == ["stream", "partitions", "messages", "consumers", "waiting", "oldest"]
    assert line.split("\t")[:5] == ["orders", "1", "3", "3", "3"]
    shown = call("show", "orders").stdout
    assert "stuck\tfailing\t3" in shown
    assert "OSError: sink is away" in shown
    [state] = rows("show", "orders")
    assert [one["name"] for one in state["consumers"]] == ["bill", "publish", "stuck"]
    assert state["consumers"][0]["parked"] == 1
    assert [one["name"] for one in rows("list")] == ["orders"]
    late = rows("lag")
    assert [(one["name"], one["waiting"]) for one in late] == [("stuck", 3), ("bill", 0), ("publish", 0)]
    assert "partitions" not in late[0]
    assert len(call("lag", "orders").stdout.splitlines()) == 4


@pytest.mark.spec("CLI-40")
def test_what_is_not_there_has_its_exit_code(url: str) -> None:
    assert "stream 'nothing' is not in the store" in call("show", "nothing", code=3).output
    call("letters", "nothing", code=3)
    call("replay", "nothing", "--all", code=3)
    assert "known: bill, publish, stuck" in call("pause", "orders", "nobody", code=3).output
    call("release", "orders", "nothing", code=3)
    call("letters", "orders", "--status", "lost", code=2)


@pytest.mark.spec("CLI-41")
def test_letters_are_listed_replayed_and_discarded(url: str) -> None:
    lines = call("letters", "orders").stdout.splitlines()
    assert len(lines) == 2
    assert "no such address" in lines[1]
    assert "\x1b" not in "".join(lines), "nothing that moves the cursor"
    [letter] = rows("letters", "orders")
    assert (letter["payload"], letter["status"], letter["consumer"]) == ({"to": "nowhere"}, "pending", "publish")
    parked = [one["number"] for one in rows("letters", "orders", "--status", "parked")]
    assert sorted(parked) == [1, 2, 3]
    assert len(rows("letters", "orders", "--status", "all", "--limit", "2")) == 2
    assert "which letters?" in call("replay", "orders", code=2).output
    assert call("replay", "orders", letter["id"]).stdout == "replay: 1 letter\n"
    assert rows("replay", "orders", "--all") == [{"action": "replay", "changed": 0}]
    assert rows("letters", "orders")[0]["due"]
    assert "say --yes" in call("discard", "orders", "--consumer", "bill", code=2).output
    assert call("discard", "orders", "--consumer", "bill", "--yes").stdout == "discard: 3 letters\n"
    assert call("discard", "orders", letter["id"]).stdout == "discard: 1 letter\n"
    assert rows("letters", "orders") == []


@pytest.mark.spec("CLI-41", "LETTER-06", "LETTER-07")
def test_a_letter_is_shown_replaced_and_resolved(url: str) -> None:
    [letter] = rows("letters", "orders")
    assert letter["preview"] == '{"to":"nowhere"}'
    assert call("letter", "orders", letter["id"]).stdout, "of the consumer that failed last, whichever that was"
    shown = call("letter", "orders", letter["id"], "--consumer", "publish").stdout
    assert "no such address" in shown
    assert "\x1b" not in shown
    assert "nowhere" not in shown
    assert "nowhere" in call("letter", "orders", letter["id"], "--consumer", "publish", "--reveal").stdout
    [told] = rows("letter", "orders", letter["id"], "--reveal")
    assert (json.loads(told["payload"]), letter["id"] in told["letters_of_its_key"]) == ({"to": "nowhere"}, True)
    assert "must be JSON" in call("replace", "orders", letter["id"], "--payload", "{", code=2).output
    [done] = rows("replace", "orders", letter["id"], "--consumer", "publish", "--payload", '{"to": "ada"}')
    assert done["letter"] == letter["id"] != done["message"]
    assert rows("letters", "orders") == []
    assert "say --yes" in call("resolve", "orders", "--consumer", "bill", code=2).output
    assert call("resolve", "orders", "--consumer", "bill", "--yes").stdout == "resolve: 3 letters\n"
    call("letter", "orders", UNKNOWN, code=3)


@pytest.mark.spec("CLI-41", "BULK-07")
def test_letters_that_fail_while_a_person_answers_are_left(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answered(question: str, *, yes: bool) -> None:
        asked.append(question)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(asyncio.run, more_letters(url, 2, at=9)).result()

    asyncio.run(more_letters(url, 3))
    monkeypatch.setattr("stoker.cli.outbox.confirm", answered)
    assert call("discard", "bills", "--all").stdout == "discard: 3 letters\n"
    assert asked == ["discard 3 letters of stream bills?"]
    assert len(rows("letters", "bills")) == 2, "these failed after the count"
    [operation] = [
        json.loads(line) for line in CliRunner().invoke(stoker, ["operations", "--json"]).stdout.splitlines()
    ]
    assert (operation["action"], operation["filter"], operation["changed"]) == ("discard-letters", "stream:bills", 3)


async def more_letters(url: str, n: int, at: int = 0) -> None:
    """Let so many more messages fail."""
    async with Stoker(url) as app:
        await letters(await app.engine(), n, stream="bills", at=at)


@pytest.mark.spec("CLI-42")
def test_consumers_are_steered(url: str) -> None:
    assert call("pause", "orders", "stuck").stdout == "consumer stuck of stream orders is paused\n"
    assert rows("show", "orders")[0]["consumers"][2]["paused"]
    call("resume", "orders", "stuck")
    assert "say --yes" in call("seek", "orders", "stuck", "end", code=2).output
    call("seek", "orders", "stuck", "0=2", "--yes")
    assert rows("lag", "orders")[0]["waiting"] == 1
    call("seek", "orders", "stuck", "2020-01-01T00:00", "--yes")
    assert rows("lag", "orders")[0]["waiting"] == 3
    call("seek", "orders", "stuck", "end", "--yes")
    assert "is neither beginning nor end" in call("seek", "orders", "stuck", "middle", "--yes", code=2).output
    assert "say --yes" in call("drop", "orders", "stuck", code=2).output
    call("drop", "orders", "stuck", "--yes")
    assert [one["name"] for one in rows("show", "orders")[0]["consumers"]] == ["bill", "publish"]
    assert "is released" in call("release", "orders", "k\x1b").stdout


APP = """
import os
from stoker import Stoker
from stoker.outbox import Message, Outbox

jobs = Stoker("sqlite:///shop.db")
outbox = Outbox[dict](jobs, stream="orders", partitions=1)
idle = Stoker("sqlite:///shop.db")

@outbox.deliver(name="file")
def write(message: Message[dict]) -> None:
    with open("delivered", "a") as file:
        print(message.body["to"], os.getpid(), file=file)
"""


@pytest.mark.spec("CLI-43")
def test_run_delivers_without_running_jobs(url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    words = [sys.executable, "-m", "stoker", "outbox", "run"]
    done = subprocess.run(
        [*words, "shop:jobs", "--drain"], cwd=tmp_path, timeout=240, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "delivered").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["nowhere", "ada", "bob"]
    done = subprocess.run([*words, "shop:idle"], cwd=tmp_path, timeout=240, capture_output=True, text=True, check=False)
    assert (done.returncode, "has no Outbox" in done.stderr) == (2, True)


@pytest.mark.spec("CLI-53")
@pytest.mark.parametrize(
    "words, code, says",
    [
        (["letters", "orders", "--consumer", "bil"], 3, "has no consumer 'bil' (known: bill, publish, stuck)"),
        (["replay", "orders", "--partition", "7"], 3, "stream 'orders' has partitions 0 to 0"),
        (["replay", "orders", UNKNOWN], 3, "can be replayed"),
        (["discard", "orders", "seven"], 2, "letter id: must be a UUID"),
        (["seek", "orders", "bill", "7=1", "--yes"], 2, "it has 0 to 0"),
        (
            ["seek", "orders", "bill", "beginning"],
            2,
            "to beginning? Nothing was changed: there is no terminal to ask on; say --yes",
        ),
        (["shwo", "orders"], 2, "Did you mean 'show'?"),
    ],
)
def test_names_that_a_stream_has_not_are_refused(url: str, words: list[str], code: int, says: str) -> None:
    assert says in call(*words, code=code).output


@pytest.mark.spec("CLI-24")
def test_steering_answers_with_an_object(url: str) -> None:
    for verb, *more in (["pause"], ["seek", "end", "--yes"], ["drop", "--yes"]):
        [found] = rows(verb, "orders", "bill", *more)
        assert (found["stream"], found["consumer"]) == ("orders", "bill")


@pytest.mark.spec("CLI-41")
def test_ended_letters_are_cleaned(url: str) -> None:
    assert call("discard", "orders", "--consumer", "publish", "--yes").stdout == "discard: 1 letter\n"
    assert "say --yes" in call("clean", "orders", "--older-than", "0s", code=2).output
    assert rows("clean", "orders", "--older-than", "1h", "--yes")[0]["changed"] == 0
    assert call("clean", "orders", "--older-than", "0s", "--yes").stdout == "clean: 1 letter\n"
    assert not rows("letters", "orders", "--consumer", "publish", "--status", "all")
    assert rows("letters", "orders", "--status", "parked"), "what waits is never deleted"


@pytest.mark.spec("CLI-16")
def test_the_status_names_letters_to_decide_on(url: str) -> None:
    done = CliRunner().invoke(stoker, ["status", "--check", "--quiet"])
    assert done.exit_code == 0, "letters are a warning: nothing stands still"
    assert "attention: orders / publish has 1 letter to decide on. Messages wait for a decision: " in done.stdout
    assert "Run `stoker outbox letters orders`.\n" in done.stdout
    found = json.loads(CliRunner().invoke(stoker, ["status", "--json"]).stdout)
    assert found["verdict"] == "Two things need you"
