"""The same commands on SQLite, Postgres and Redis: the same words, the same exit codes."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.cli.command import stoker
from stoker.cli.operations import finished
from stoker.model.throttle import Rate
from stoker.outbox import Message, Outbox
from tests.harness.apps import PATIENCE, drain

UNKNOWN = "0193b0f0-0000-7000-8000-000000000001"

READS = (
    "status",
    "jobs list",
    "jobs list is:dead --count",
    "jobs show DEAD",
    "jobs explain WAITING",
    "queues list",
    "queues show mail",
    "schedules list",
    "schedules show nightly",
    "schedules next nightly -n 2",
    "limits list",
    "limits keys mail",
    "limits full",
    "kinds",
    "workers",
    "operations list",
    "audit",
    "tokens list",
    "doctor",
    "migrate --plan",
)
STREAM_READS = ("outbox list", "outbox show orders", "outbox lag", "outbox letters orders --status all")

MISTAKES = {
    f"jobs show {UNKNOWN}": 3,
    "jobs requeue DONE": 4,
    "jobs list since:999999999w": 0,
    "jobs list since:99999999999999999999d": 2,
    "jobs list since:1h until:2h": 2,
    'jobs list payload:"open': 2,
    "jobs edit WAITING --payload 3": 2,
    "jobs edit WAITING --attempts 9999999999": 2,
    "jobs enqueue any.kind {} --delay 99999999d": 2,
    "queues pause mail --until 2001-01-01T00:00": 2,
    "queues show nope": 3,
    "schedules show nope": 3,
    "limits drain nope": 3,
    f"operations show {UNKNOWN}": 3,
    "tokens revoke nope": 3,
}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    from tests.harness.fixtures import clean, drop_schema, new_prefix

    server, redis, name = request.getfixturevalue("postgres_url"), request.getfixturevalue("redis_url"), new_prefix()
    found = {
        "sqlite": f"sqlite:///{tmp_path_factory.mktemp('cli') / 'jobs.db'}",
        "postgres": f"{server}?schema={name}",
        "redis": f"{redis}?prefix={name}",
    }
    for engine, url in found.items():
        filled(url, streams=engine != "redis")
    yield found
    clean(redis, name)
    drop_schema(server, name)


def filled(url: str, *, streams: bool) -> None:
    """A store with a job of each sort, a schedule, a budget, an operation, a token, a stream and two letters."""
    app = Stoker(url)
    app.budget("geo", Rate(1, per=1))

    @app.task(queue="mail", attempts=1)
    async def send(to: str) -> str:
        if to == "nowhere":
            raise ValueError("no such address\nsecond line: größe")
        return to

    outbox = Outbox[dict[str, str]](app, stream="orders", partitions=1) if streams else None
    if outbox is not None:

        @outbox.deliver(attempts=1)
        async def publish(message: Message[dict[str, str]]) -> None:
            raise ValueError("no such address")

    async def fill() -> None:
        async with app:
            for to in ("nowhere", "ada"):
                await send.enqueue(to)
            if outbox is not None:
                await outbox.append("a", {"to": "ada"})
                await outbox.append("b", {"to": "bob"})
            admin = Admin(app, by="ada")
            async with asyncio.timeout(PATIENCE):
                await drain(app)
                while streams and await admin.outbox.count_letters(stream="orders") < 2:
                    await drain(app)
            await send.using(delay=3600).enqueue("later")
            await app.schedule("nightly", send.draft("ada"), cron="0 9 * * mon-fri", tz="Europe/Paris")
            await admin.operations.finish((await admin.operations.start("requeue", "is:done")).id)
            await admin.tokens.create("ada", "read")

    app.run(fill())


def call(line: str, url: str) -> Result:
    return CliRunner().invoke(stoker, [*line.split(), "--url", url])


def named(line: str, url: str) -> str:
    """The line with the ids of a dead, a done and a waiting job."""
    for word, view in (("DEAD", "is:dead"), ("DONE", "is:done"), ("WAITING", "is:scheduled")):
        if word in line:
            [job] = call(f"jobs list {view} --json", url).stdout.splitlines()
            line = line.replace(word, json.loads(job)["id"])
    return line


def shape(value: Any) -> Any:
    """The names of the fields, of the first of each list."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items() if key not in ("engine", "missing")}
    return [shape(value[0])] if isinstance(value, list) and value else type(value).__name__


@pytest.mark.spec("CLI-47")
@pytest.mark.parametrize("line", [*READS, *STREAM_READS])
def test_what_is_read_is_json_of_one_shape_on_every_engine(line: str, urls: dict[str, str]) -> None:
    shapes = {}
    for engine, url in urls.items():
        done = call(f"{named(line, url)} --json", url)
        if line in STREAM_READS and engine == "redis":
            assert done.exit_code == 1
            assert "redis has no streams" in done.stderr
            continue
        assert done.exit_code == 0 or line == "doctor", done.output  # the tests' servers do not sync
        assert isinstance(done.exception, SystemExit | None)
        found = [json.loads(row) for row in done.stdout.splitlines()]
        assert found or line in ("limits keys mail", "limits full")
        if not line.startswith(("doctor", "status", "jobs list")):  # these have what each store warns of, or orders
            shapes[engine] = shape(found[:1])
    assert len({json.dumps(one, sort_keys=True) for one in shapes.values()}) <= 1, shapes


@pytest.mark.spec("CLI-48")
@pytest.mark.parametrize(("line", "code"), MISTAKES.items())
def test_mistakes_are_answered_alike_on_every_engine(line: str, code: int, urls: dict[str, str]) -> None:
    said = set()
    for url in urls.values():
        done = call(named(line, url), url)
        assert done.exit_code == code, done.output
        assert isinstance(done.exception, SystemExit | None)
        said.add(re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+ s ago", "…", done.stderr))
    [text] = said
    assert not re.search(r"Traceback|object at|timedelta|\d{12}\.", text.replace(line, "")), text


@pytest.mark.spec("CLI-49")
@pytest.mark.parametrize("line", ["queues pause mail", "doctor"])
@pytest.mark.parametrize("url", ["postgresql://ada:s3cret@127.0.0.1:1/x", "redis://:s3cret@127.0.0.1:1/0"])
def test_a_store_that_is_away_is_named_without_its_password(line: str, url: str) -> None:
    done = call(line, url)
    assert done.exit_code == 1
    assert re.search(r"127\.0\.0\.1:1\b.* cannot be reached", done.output), done.output
    for text in ("s3cret", "Errno", "ConnectionError", "write", "tries again"):
        assert text not in done.output


@pytest.mark.spec("CLI-50")
@pytest.mark.parametrize("words", [["operations"], ["operations", "list"], ["outbox"], ["tokens", "list"], ["queues"]])
def test_a_store_is_named_before_the_command_too(words: list[str], urls: dict[str, str]) -> None:
    group, *command = words
    done = CliRunner().invoke(stoker, [group, "--url", urls["sqlite"], *command, "--json"])
    again = CliRunner().invoke(stoker, [group, "list", "--json", "--url", urls["sqlite"]])
    assert (done.exit_code, len(done.stdout.splitlines())) == (0, 1)
    assert done.stdout.partition('"lag"')[0] == again.stdout.partition('"lag"')[0]
    assert CliRunner().invoke(stoker, [group, "--url", "x", "--help"]).stdout.startswith(f"Usage: stoker {group}")


@pytest.mark.spec("CLI-51")
async def test_an_interrupted_bulk_action_stops_at_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As Ctrl-C does it: the task that waits is canceled while the store is still open."""
    app = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}?durability=process")

    @app.task
    async def nothing(n: int) -> None:
        pass

    async with app:
        await app.enqueue_many([nothing.draft(n) for n in range(5_000)])
        admin = Admin(app, by="ada")
        started = await admin.operations.start("cancel", "is:ready")
        waiting = asyncio.create_task(finished(admin, started.id))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        stopped = await admin.operations.get(started.id)
        assert stopped.state == "stopped"
        assert stopped.changed < 5_000
        assert f"`stoker operations resume {started.id}` goes on from there" in capsys.readouterr().err
        await admin.operations.resume(started.id)
        assert (await admin.operations.finish(started.id)).changed == 5_000
