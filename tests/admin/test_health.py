"""The check-up, with each trouble provoked on a real store of every engine."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner

from stoker.admin import Admin
from stoker.app import Stoker
from stoker.cli.command import stoker
from stoker.engines.base import Feature, outbox_of
from stoker.engines.memory import MemoryEngine
from stoker.engines.postgres import PostgresEngine
from stoker.model.control import Presence, Tuning
from stoker.model.events import Event, EventType
from stoker.model.health.check import Check, Grade
from stoker.model.job import Demand
from stoker.model.outbox.cursor import Consumer
from stoker.model.outbox.delivery import RetryLater
from stoker.model.outbox.stream import Stream
from stoker.model.time import HOUR, MINUTE, SECOND
from stoker.registry import mint
from stoker.testing.clock import VirtualClock
from stoker.testing.conformance.harness import Store
from stoker.testing.conformance.outbox import Orders
from stoker.testing.conformance.outbox_letters import PARK
from stoker.worker.rollup import write_points
from tests.harness.apps import make_engine
from tests.harness.letters import letters


async def the(admin: Admin, name: str) -> Check:
    """The gravest check of a name."""
    order = list(Grade)
    found = [check for check in await admin.health.check() if check.name == name]
    assert found, name
    return max(found, key=lambda check: order.index(check.verdict))


async def verdict(admin: Admin, name: str) -> Grade:
    return (await the(admin, name)).verdict


def worker(**changes: object) -> Presence:
    given = {"worker": "w", "host": "h", "pid": 1, "queues": {"mail": 1}, "kinds": {"send": "app.send"}}
    return Presence(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.spec("HEALTH-07")
async def test_an_empty_store_has_nothing_wrong_but_the_clock_of_the_test(admin: Admin) -> None:
    found = await admin.health.check()
    bad = {check.name for check in found if check.verdict is Grade.WRONG}
    assert bad - {"durability"} == {"clock"}, "the Postgres server of the tests runs without fsync"
    assert "ahead of" in (await the(admin, "clock")).read
    assert await verdict(admin, "schema") is Grade.OK


@pytest.mark.spec("HEALTH-07")
async def test_queues_without_a_worker_and_kinds_that_no_worker_knows(admin: Admin, app: Stoker) -> None:
    await app.enqueue(app.draft("send", queue="mail"))
    assert await verdict(admin, "workers") is Grade.WRONG, "there is none at all"
    engine = await app.engine()
    await engine.control.beat(worker(queues={"other": 1}))
    assert await verdict(admin, "workers") is Grade.OK
    assert await verdict(admin, "queues") is Grade.WRONG
    assert "-q mail" in (await the(admin, "queues")).meaning
    await engine.control.beat(worker(kinds={"other": "app.other"}))
    assert await verdict(admin, "queues") is Grade.OK
    assert await verdict(admin, "kinds") is Grade.WRONG
    await engine.control.beat(worker())
    assert await verdict(admin, "kinds") is Grade.OK


@pytest.mark.spec("HEALTH-07")
async def test_silent_workers_and_dropped_events(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    engine = await app.engine()
    await engine.control.beat(worker(dropped=5))
    assert await verdict(admin, "workers") is Grade.OK
    assert await verdict(admin, "event buffers") is Grade.NOTE
    await app.enqueue(app.draft("send", queue="mail"))
    await engine.jobs.renew("w", [], first=True)
    await engine.jobs.claim(Demand("w", (("mail", 1),)))
    await engine.control.beat(worker(running=1))
    clock.advance(12)
    await engine.control.beat(worker(worker="v"))
    assert await verdict(admin, "workers") is Grade.WRONG
    await admin.workers.take_back("w")
    assert await verdict(admin, "workers") is Grade.OK


@pytest.mark.spec("HEALTH-11")
async def test_jobs_that_a_clock_that_was_ahead_has_stored(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    await app.enqueue(app.draft("send", queue="mail"))
    await app.enqueue(app.draft("send", queue="mail", delay=3600))
    assert await verdict(admin, "dates") is Grade.OK
    now = clock()
    clock.set(now + 3 * HOUR)
    late = await app.enqueue(app.draft("send", queue="mail"))
    clock.set(now)
    found = await the(admin, "dates")
    assert (found.verdict, late.id in found.read) == (Grade.WARNING, True)
    assert "1 job of mail" in found.read
    assert (await admin.jobs.run_now(late.id)).changed == 1


@pytest.mark.spec("HEALTH-07")
async def test_a_run_beyond_its_limit(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    handle = await app.enqueue(app.draft("send", queue="mail", timeout=10))
    engine = await app.engine()
    await engine.jobs.renew("w", [], first=True)
    assert await engine.jobs.claim(Demand("w", (("mail", 1),)))
    assert await verdict(admin, "running jobs") is Grade.OK
    clock.advance(20)
    found = await the(admin, "running jobs")
    assert found.verdict is Grade.WARNING
    assert handle.id in found.remedy


@pytest.mark.spec("HEALTH-07")
async def test_a_retry_storm(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    engine = await app.engine()
    ended = [EventType.RETRIED] * 15 + [EventType.COMPLETED] * 10
    events = [Event(clock() - 1, type_, bytes([n]) * 16, "mail", "send") for n, type_ in enumerate(ended)]
    await engine.timeline.record(events, now=clock())
    found = await the(admin, "retry storms")
    assert found.verdict is Grade.WARNING
    assert "15 of 25 runs of send" in found.read
    assert found.remedy == "stoker jobs list kind:send is:dead,retrying"  # runs that failed for good count too


@pytest.mark.spec("HEALTH-07")
async def test_runs_of_the_last_hour_are_judged_also_those_that_were_rolled_up(
    admin: Admin, app: Stoker, clock: VirtualClock
) -> None:
    """Each run counts once: the last two minutes as events tell, the others as their points do."""
    engine, start = await app.engine(), (clock() // HOUR + 1) * HOUR
    for minutes, type_, n in ((63, 3, 40), (50, 0, 12), (2, 2, 6), (1, 1, 9), (0, 0, 4)):
        clock.set(start + (63 - minutes) * MINUTE)
        ended = (EventType.RETRIED, EventType.COMPLETED, EventType.FAILED, EventType.RETRIED)[type_]
        events = [Event(clock() + 1, ended, mint(), "mail", "send") for _ in range(n)]
        await engine.timeline.record(events, now=clock())
        clock.advance(61)
        await write_points(engine)
    clock.set(start + 63 * MINUTE + 5 * SECOND)
    assert (await admin.health.situation(engine)).runs == {"send": (9, 22)}
    assert "22 of 31 runs of send" in (await the(admin, "retry storms")).read


@pytest.mark.spec("HEALTH-07")
async def test_a_queue_that_falls_behind(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    await app.enqueue(app.draft("send", queue="mail"))
    engine = await app.engine()
    await engine.control.beat(worker())
    assert await verdict(admin, "queues") is Grade.OK
    clock.advance(61)
    await engine.control.beat(worker())
    assert await verdict(admin, "queues") is Grade.WARNING


@pytest.mark.spec("HEALTH-07")
async def test_a_pause_that_is_forgotten(admin: Admin, app: Stoker, clock: VirtualClock) -> None:
    await app.enqueue(app.draft("send", queue="mail"))
    await (await app.engine()).control.tune("mail", Tuning(paused=True, by="ada"))
    assert await verdict(admin, "queues") is Grade.NOTE
    clock.advance(2 * 86_400)
    found = await the(admin, "queues")
    assert found.verdict is Grade.WARNING
    assert "by ada" in found.read


@pytest.mark.spec("HEALTH-07")
async def test_consumers_that_stand_still_letters_and_parked_keys(
    admin: Admin, app: Stoker, clock: VirtualClock
) -> None:
    engine = await app.engine()
    if Feature.OUTBOX not in engine.features:
        assert not [check for check in await admin.health.check() if check.name == "consumers"]
        return
    orders = await Orders.begin(Store(engine, clock, lambda _: engine))
    assert await verdict(admin, "consumers") is Grade.OK
    await orders.add("p", "q")
    clock.advance(700)
    await engine.control.beat(worker())
    assert await verdict(admin, "consumers") is Grade.WRONG
    await orders.turn(RetryLater("poison", 0), PARK)
    assert "has 1 parked key" in (await the(admin, "consumers")).read
    await outbox_of(engine).register(Stream("idle"), [Consumer("nobody")])
    await letters(engine, 2, stream="bills")
    found = [check.read for check in await admin.health.check() if check.name == "consumers"]
    assert "bills / warehouse has 2 letters to decide on" in found


@pytest.mark.spec("HEALTH-08")
async def test_a_store_that_cannot_be_used_is_one_check_without_a_drivers_words() -> None:
    for url in ("redis://127.0.0.1:1", "postgresql://nobody@127.0.0.1:1/x"):
        app = Stoker(url)
        [check] = await Admin(app).health.check()
        assert check.verdict is Grade.WRONG
        assert "127.0.0.1:1" in check.read
        assert "Errno" not in check.read + check.meaning
        await app.close()


@pytest.mark.spec("HEALTH-08")
async def test_a_file_that_is_no_database_is_named_as_the_cause(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"Dear diary, " * 1_000)
    app = Stoker(f"sqlite:///{tmp_path / 'jobs.db'}")
    [check] = await Admin(app).health.check()
    await app.close()
    assert (check.verdict, str(tmp_path / "jobs.db") in check.read) == (Grade.WRONG, True)
    assert "it is damaged, or no store of Stoker's" in check.read
    assert "server" not in str(check)
    assert "file is not a database" not in str(check)


@pytest.mark.spec("HEALTH-08")
async def test_a_schema_of_another_version_is_wrong(tmp_path: Path, postgres_url: str, postgres_schema: str) -> None:
    newer = "INSERT INTO {} (number, name, checksum, breaking) VALUES (999, 'later', '', 'stop all workers')"
    file = make_engine("sqlite", tmp_path)
    await file.open()
    await file.close()
    database = sqlite3.connect(tmp_path / "jobs.db")
    database.execute(newer.format("stoker_migration"))
    database.commit()
    database.close()
    engine = PostgresEngine(postgres_url, schema=postgres_schema)
    await engine.open()
    await engine.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        ledger = f'"{postgres_schema}".stoker_migration'
        connection.execute(f"DELETE FROM {ledger} WHERE number = (SELECT max(number) FROM {ledger})".encode())
    for store in (make_engine("sqlite", tmp_path), PostgresEngine(postgres_url, schema=postgres_schema)):
        app = Stoker(store)
        [check] = await Admin(app).health.check()
        assert (check.name, check.verdict) == ("schema", Grade.WRONG)
        assert "upgrade this process" in check.read or "stoker migrate" in check.read
        await app.close()


@pytest.mark.spec("HEALTH-08")
async def test_an_engine_without_facts_of_its_own_shows_what_it_warns_of() -> None:
    app = Stoker(MemoryEngine())
    assert await verdict(Admin(app), "durability") is Grade.NOTE
    await app.close()


@pytest.mark.spec("CLI-30")
def test_the_command_prints_checks_and_exits_with_1_when_something_is_wrong(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = Stoker(url)
    app.declare("send")

    async def begin(*, fill: bool) -> None:
        async with app:
            if fill:
                await app.enqueue(app.draft("send", queue="mail"))

    app.run(begin(fill=False))
    fine = CliRunner().invoke(stoker, ["doctor", "--url", url])
    assert fine.exit_code == 0, fine.output
    assert "ok       schema: up to date" in fine.output
    app.run(begin(fill=True))
    bad = CliRunner().invoke(stoker, ["doctor", "--url", url, "--json"])
    assert bad.exit_code == 1
    found = {line["name"]: line for line in map(json.loads, bad.stdout.splitlines())}
    assert found["workers"]["verdict"] == "wrong"
    assert set(found["workers"]) == {"name", "verdict", "read", "meaning", "remedy"}
    quiet = CliRunner().invoke(stoker, ["doctor", "--url", url, "--quiet"])
    assert "schema" not in quiet.output
    assert "mend: stoker work app:jobs\n" in quiet.output


@pytest.mark.spec("CLI-30")
def test_the_command_on_a_store_that_is_away_exits_with_1() -> None:
    found = CliRunner().invoke(stoker, ["doctor", "--url", "redis://127.0.0.1:1"])
    assert found.exit_code == 1
    assert "wrong    store: redis://127.0.0.1:1" in found.output


@pytest.mark.spec("HEALTH-06")
async def test_damaged_counters_and_keys_are_found(tmp_path: Path) -> None:
    app = Stoker(make_engine("sqlite", tmp_path))
    app.declare("send")
    await app.enqueue(app.draft("send", unique="one"))
    database = sqlite3.connect(tmp_path / "jobs.db")
    database.execute("UPDATE stoker_counts SET n = 7 WHERE what = 0")
    database.execute("INSERT INTO stoker_dedupe (slot, seq, weak) VALUES ('send/other', 999, 0)")
    database.commit()
    database.close()
    admin = Admin(app)
    assert await verdict(admin, "counters") is Grade.WRONG
    assert "default has 7 waiting jobs by the counter, 1 in fact" in (await the(admin, "counters")).read
    assert await verdict(admin, "unique keys") is Grade.WRONG
    await app.close()
