"""Metrics in a real scrape."""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen, run

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stoker.admin import Admin, documents
from stoker.app import Stoker
from stoker.cli.command import stoker
from stoker.engines.base import outbox_of
from stoker.model.budgets import Rates, Spend
from stoker.model.control import Presence, Tuning
from stoker.model.errors import EngineError
from stoker.model.job import Demand
from stoker.model.measures import OUTCOMES, Measures, histogram_of
from stoker.model.operations import Operation
from stoker.model.outbox.cursor import Consumer
from stoker.model.outbox.delivery import Rejected, RetryLater
from stoker.model.outbox.stream import Stream
from stoker.model.schedule import tick
from stoker.model.throttle import Rate
from stoker.model.time import SECOND
from stoker.observe import metrics, process_metrics, prometheus
from stoker.testing.clock import VirtualClock
from stoker.testing.conformance.harness import Store
from stoker.testing.conformance.outbox import Orders
from stoker.testing.conformance.outbox_letters import PARK
from tests.harness.apps import PATIENCE, drain, make_engine
from tests.observe.test_monitoring import metrics_named

ROOT = Path(__file__).resolve().parents[2]


def values(text: str) -> dict[tuple[str, ...], float]:
    """Samples by name and labels."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.spec("METRIC-01")
async def test_a_scrape_shows_queues_jobs_and_workers(jobs: Stoker) -> None:
    @jobs.task(queue="mail", attempts=1)
    async def send(ok: bool) -> None:
        if not ok:
            raise ValueError

    await send.enqueue(True)
    await send.enqueue(False)
    await drain(jobs)
    await send.enqueue(True)
    await send.using(delay=60).enqueue(True)
    engine = await jobs.engine()
    await engine.control.tune("mail", Tuning(paused=True))
    await engine.control.beat(Presence(worker="w", host="h", pid=1, queues={"mail": 5, "idle": 2}))
    found = values(prometheus.text(await metrics.read(jobs)))
    statuses = ("ready", "scheduled", "running", "done", "dead")
    assert [found["stoker_queue_jobs", "mail", status] for status in statuses] == [1, 1, 0, 1, 1]
    assert found["stoker_jobs_total", "enqueued", "send"] == 4
    assert found["stoker_jobs_total", "failed", "send"] == 1
    assert (found["stoker_queue_paused", "mail"], found["stoker_queue_paused", "idle"]) == (1, 0)
    assert (found["stoker_queue_slots", "idle"], found["stoker_queue_workers", "idle"]) == (2, 1)
    assert found["stoker_queue_lag_seconds", "mail"] >= 0


@pytest.mark.spec("METRIC-01", "NEED-13", "NEED-17")
async def test_a_scrape_shows_what_needs_a_person(tmp_path: Path) -> None:
    clock = VirtualClock()
    app = Stoker(make_engine("sqlite", tmp_path, clock))
    app.declare("send")
    engine = await app.engine()

    async def scrape() -> dict[tuple[str, ...], float]:
        return values(prometheus.text(await metrics.read(app)))

    assert (await scrape())["stoker_without_worker_seconds",] == 0, "nothing is due"
    await app.enqueue(app.draft("send"))
    await Admin(app).schedules.create("hourly", app.draft("send"), cron="0 * * * *")
    clock.advance(90)
    found = await scrape()
    assert (found["stoker_without_worker_seconds",], found["stoker_workers",]) == (90, 0)
    seen = Presence(worker="w", host="h", pid=1, queues={"default": 5}, version="0.1.0", release="r42")
    await engine.control.beat(seen)
    found = await scrape()
    assert (found["stoker_without_worker_seconds",], found["stoker_workers",]) == (0, 1)
    assert found["stoker_info", "r42", "0.1.0"] == 1
    assert (found["stoker_queue_late", "default"], found["stoker_findings", "warn"]) == (1, 1)
    assert found["stoker_schedule_overdue_seconds", "hourly"] == 0
    [hourly] = await engine.schedules.read()
    await engine.schedules.fire(tick(hourly, clock()), [])
    clock.advance(3_600)
    found = await scrape()
    assert found["stoker_without_worker_seconds",] == 3_600
    assert found["stoker_schedule_overdue_seconds", "hourly"] == 90
    assert found["stoker_findings", "bad"] == 1
    await app.close()


@pytest.mark.spec("METRIC-08")
async def test_a_scrape_shows_schedules_budgets_and_operations(tmp_path: Path) -> None:
    clock = VirtualClock()
    app = Stoker(make_engine("sqlite", tmp_path, clock))
    app.declare("send")
    engine, admin = await app.engine(), Admin(app)
    await admin.limits.tune("api", Rate(10, per=60), create=True)
    await admin.schedules.create("hourly", app.draft("send"), cron="0 * * * *", misfire="skip")
    [hourly] = await engine.schedules.read()
    await engine.schedules.fire(tick(hourly, clock()), [])
    clock.advance(3 * 3_600)
    [hourly] = await engine.schedules.read()
    due = tick(hourly, clock())
    await engine.schedules.fire(due, [app.draft("send") for _ in due.fires])
    [hourly] = await engine.schedules.read()
    await engine.control.spend("api", 4)
    await engine.control.tune("llm", Rates({"a": Rate(5), "b": Rate(9)}))
    await engine.control.tune("by", Rates({"a": Rate(5)}, keyed=True))
    await engine.control.spend("by", Spend({"a": 1}, "acme"))
    await app.enqueue_many([app.draft("send") for _ in range(3)])
    ended = await admin.operations.start("cancel", "kind:send")
    await admin.operations.finish(ended.id)
    left = Operation(id="x", who="", action="cancel", filter="kind:send", bound=clock(), started=clock(), changed=7)
    await documents.put_operation(engine, left)
    found = values(prometheus.text(await metrics.read(app)))
    assert (found["stoker_budget_tokens", "api", ""], found["stoker_budget_capacity", "api", ""]) == (6, 10)
    assert (found["stoker_budget_tokens", "llm", "a"], found["stoker_budget_capacity", "llm", "b"]) == (5, 9)
    keyed = {(name, *labels): n for (name, *labels), n in found.items() if "by" in labels}
    assert keyed == {("stoker_budget_capacity", "by", "a"): 5}, "no series for a key"
    assert (found["stoker_operations", "running"], found["stoker_operations", "done"]) == (1, 1)
    assert found["stoker_operations_changed",] == 7
    assert found["stoker_schedule_missed_total", "hourly"] == hourly.missed > 0
    assert (found["stoker_schedule_enabled", "hourly"], found["stoker_schedule_failing", "hourly"]) == (1, 0)
    assert found["stoker_schedule_next_fire_timestamp_seconds", "hourly"] == (hourly.next_fire or 0) / SECOND
    clock.advance(60)
    assert values(prometheus.text(await metrics.read(app)))["stoker_operations", "interrupted"] == 1
    await app.close()


@pytest.mark.spec("METRIC-08")
async def test_a_scrape_tells_silent_workers_and_limited_queues(tmp_path: Path) -> None:
    clock = VirtualClock()
    app = Stoker(make_engine("sqlite", tmp_path, clock))
    app.declare("send")
    engine = await app.engine()
    await app.enqueue_many([app.draft("send", queue="mail") for _ in range(3)])
    await engine.control.tune("mail", Tuning(workers=1))
    await engine.jobs.renew("frozen", [], first=True)
    await engine.jobs.claim(Demand("frozen", (("mail", 1),), 1))
    await engine.control.beat(Presence(worker="frozen", host="h", pid=1, queues={"mail": 1}, running=1))
    clock.advance(120)
    await engine.control.beat(Presence(worker="fine", host="h", pid=2, queues={"mail": 1}))
    found = values(prometheus.text(await metrics.read(app)))
    assert (found["stoker_workers_silent",], found["stoker_workers",]) == (1, 1)
    assert (found["stoker_queue_limited", "mail"], found["stoker_queue_late", "mail"]) == (1, 0)
    await app.close()


@pytest.mark.spec("METRIC-08")
def test_a_kind_has_at_most_forty_series() -> None:
    every = {outcome: histogram_of([1.0]) for outcome in OUTCOMES.values()}
    from_workers = [
        sample
        for family in process_metrics.families(Measures({"send": every}, steps={"send": {"done": 1, "failed": 1}}))
        for sample in family.samples
        if sample.labels.get("kind") == "send"
    ]
    assert len(from_workers) + len(metrics.EVENTS) <= 40
    assert {sample.labels.get("outcome") for sample in from_workers} >= set(OUTCOMES.values())


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = Stoker(url)
    app.declare("send")

    async def fill() -> None:
        async with app:
            await app.enqueue(app.draft("send", queue="mail"))

    app.run(fill())
    return url


@pytest.fixture
def served(url: str) -> Iterator[str]:
    """`stoker metrics --port` as a process; gives its address."""
    with Popen(["stoker", "metrics", "--url", url, "--port", "0"], stderr=PIPE, text=True) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "served at" in line)
        yield line.split()[-1]
        process.terminate()


@pytest.mark.spec("METRIC-02")
def test_the_command_prints_and_serves_the_same(url: str, served: str) -> None:
    printed = CliRunner().invoke(stoker, ["metrics", "--url", url]).stdout
    with closing(urllib.request.urlopen(served)) as answer:
        fetched = answer.read().decode()
    key = ("stoker_queue_jobs", "mail", "ready")
    assert values(printed)[key] == values(fetched)[key] == 1
    assert values(printed).keys() == values(fetched).keys()


@pytest.mark.spec("METRIC-02")
def test_a_scrape_of_a_store_that_is_away_fails() -> None:
    registry = CollectorRegistry()
    registry.register(prometheus.StoreCollector(Stoker("redis://127.0.0.1:1")))
    with pytest.raises(EngineError):
        generate_latest(registry)


async def with_a_stream(app: Stoker, clock: VirtualClock) -> None:
    """A consumer that gave one message up and has two more to deliver."""
    engine = await app.engine()
    orders = await Orders.begin(Store(engine, clock, lambda _: engine))
    await orders.add("p", "q", "r")
    clock.advance(90)
    await orders.turn(RetryLater("poison", 0), PARK)


@pytest.mark.spec("METRIC-01")
async def test_a_scrape_shows_how_far_consumers_are_behind(tmp_path: Path) -> None:
    clock = VirtualClock()
    app = Stoker(make_engine("sqlite", tmp_path, clock))
    await with_a_stream(app, clock)
    found = values(prometheus.text(await metrics.read(app)))
    [place] = [key[1:] for key in found if key[0] == "stoker_outbox_lag"]
    assert (found["stoker_outbox_lag", *place], found["stoker_outbox_lag_seconds", *place]) == (2, 90)
    assert found["stoker_letters", *place] == 0, "a parked one is not counted"
    orders = await Orders.begin(Store(engine := await app.engine(), clock, lambda _: engine))
    await orders.turn(Rejected("bad"))
    found = values(prometheus.text(await metrics.read(app)))
    await app.close()
    assert found["stoker_letters", *place] == 2


def scraped(address: str) -> dict[tuple[str, ...], float]:
    with closing(urllib.request.urlopen(address)) as answer:
        return values(answer.read().decode())


@contextmanager
def at_work(url: str, *options: str) -> Iterator[tuple[Popen[str], str]]:
    """`stoker work` with a port for metrics; gives the process and the address."""
    command = ["stoker", "work", "tests.observe.apps.measured:jobs", "--metrics-port", "0", *options]
    with Popen(command, stderr=PIPE, text=True, cwd=ROOT, env={**os.environ, "STOKER_URL": url}) as process:
        assert process.stderr is not None
        address = next(line for line in process.stderr if "served at" in line).split()[-1]
        rest = threading.Thread(target=process.stderr.read, daemon=True)
        rest.start()
        try:
            yield process, address
        finally:
            process.terminate()
            process.wait(90)
            rest.join(PATIENCE)


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def runs(found: dict[tuple[str, ...], float], kind: str, outcome: str) -> float:
    return found.get(("stoker_job_outcome_seconds_count", kind, outcome), 0)


@pytest.mark.spec("METRIC-03", "METRIC-04", "METRIC-05", "TITLE-01")
def test_one_port_speaks_for_all_worker_processes_also_for_those_that_are_gone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = Stoker(url)
    for kind in ("quick", "apart", "hang", "in_steps"):
        app.declare(kind)

    async def fill() -> None:
        async with app:
            drafts = [app.draft("quick", {"ok": n % 2 == 0}, queue="mail", attempts=1) for n in range(40)]
            others = [app.draft("apart", queue="mail"), app.draft("hang", queue="slow")]
            await app.enqueue_many([*drafts, *others, app.draft("in_steps", queue="mail")])
            await Admin(app).schedules.create("yearly", app.draft("quick"), cron="0 0 1 1 *")
            await Admin(app).limits.tune("api", Rate(10, per=60), create=True)

    app.run(fill())
    with at_work(url, "-p", "2", "-q", "mail:2,slow:2") as (process, address):
        until(lambda: runs(scraped(address), "quick", "failed") == 20)
        until(lambda: runs(scraped(address), "apart", "completed") == 1)
        until(lambda: scraped(address)["stoker_slots_busy", "slow"] == 1)
        until(lambda: runs(scraped(address), "quick", "completed") == 20)
        until(lambda: steps(scraped(address), "in_steps") == (2, 3))
        until(lambda: runs(scraped(address), "in_steps", "completed") == 1)
        until(lambda: scraped(address)["stoker_job_wait_seconds_count", "mail"] == 43)
        found = scraped(address)
        assert found["stoker_store_call_seconds_count", "settle"] > 0
        assert found["stoker_store_call_seconds_count", "renew"] > 0
        assert found["stoker_lease_renewal_lag_seconds",] >= 0

        def titles() -> set[str]:
            return {title_of(pid) for pid in children(process.pid)}

        assert title_of(process.pid) == "stoker: supervisor of tests.observe.apps.measured:jobs, 2 processes"
        until(lambda: "stoker: worker of tests.observe.apps.measured:jobs, queues mail, slow" in titles())
        until(lambda: "stoker: handlers of tests.observe.apps.measured:jobs, idle" in titles())
        before = set(children(process.pid))
        os.kill(process.pid, signal.SIGHUP)  # replaces the worker processes
        until(lambda: not before & set(children(process.pid)))
        assert runs(scraped(address), "quick", "completed") == 20
        assert steps(scraped(address), "in_steps") == (2, 3), "of a process that is gone"
        app.run(_with_a_stream(url))
        named = {name for name, *_ in scraped(address)} | {name for name, *_ in values(text_of(url))}
        assert metrics_named() - named == set()
        durations = scraped(address)
        assert durations["stoker_job_duration_seconds_count", "quick"] == 40, "of every outcome"


def steps(found: dict[tuple[str, ...], float], kind: str) -> tuple[float, float]:
    """How many steps are done, and failed."""
    done, failed = (found.get(("stoker_steps_total", kind, state), 0) for state in ("done", "failed"))
    return done, failed


@pytest.mark.spec("METRIC-10")
def test_a_scrape_shows_the_steps_that_runs_stored(tmp_path: Path) -> None:
    """Each once, wherever its function ran; no sleep, no second try, no failure that ended a run."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = Stoker(url)
    kinds = ("in_steps", "in_steps_in_thread", "in_steps_apart")
    for kind in (*kinds, "lets_out", "quick"):
        app.declare(kind)

    async def fill() -> None:
        async with app:
            drafts = [app.draft(kind, queue="mail") for kind in kinds for _ in range(2)]
            lets_out = app.draft("lets_out", queue="mail", attempts=1)
            await app.enqueue_many([*drafts, lets_out, app.draft("quick", {"ok": True}, queue="mail")])

    async def ended() -> bool:
        census = await (await app.engine()).operator.census()
        return sum(total.completed + total.failed for total in census.totals.values()) == 8

    app.run(fill())
    with at_work(url, "-p", "2", "-q", "mail:4") as (_, address):
        until(lambda: app.run(ended()))
        until(lambda: all(steps(scraped(address), kind) == (4, 6) for kind in kinds))
        until(lambda: runs(scraped(address), "lets_out", "failed") == 1)
        until(lambda: runs(scraped(address), "quick", "completed") == 1)
        found = scraped(address)
        assert {key[1] for key in found if key[0] == "stoker_steps_total"} == {*kinds}
        assert {steps(found, kind) for kind in kinds} == {(4, 6)}
    app.run(app.close())


async def _with_a_stream(url: str) -> None:
    app = Stoker(url)
    await outbox_of(await app.engine()).register(Stream("orders"), [Consumer("mail")])
    await app.close()


def text_of(url: str) -> str:
    return CliRunner().invoke(stoker, ["metrics", "--url", url]).stdout


def children(pid: int) -> list[int]:
    """The processes below a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found += [int(stat.parent.name), *children(int(stat.parent.name))]
        except OSError:
            continue
    return found


def title_of(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


@pytest.mark.spec("METRIC-05")
def test_a_store_that_lives_in_one_process_has_no_port() -> None:
    command = ["stoker", "work", "tests.observe.apps.measured:jobs", "--metrics-port", "0"]
    done = run(
        command, env={**os.environ, "STOKER_URL": "memory://"}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--metrics-port" in done.stderr


@pytest.mark.spec("METRIC-01")
async def test_an_idle_consumer_is_not_behind_however_long_it_is_idle(tmp_path: Path) -> None:
    """Neither before the first message nor after the last one was delivered; the next one counts from its own time."""
    clock = VirtualClock()
    app = Stoker(make_engine("sqlite", tmp_path, clock))
    engine = await app.engine()
    orders = await Orders.begin(Store(engine, clock, lambda _: engine))

    async def lag() -> tuple[float, float]:
        found = values(prometheus.text(await metrics.read(app)))
        [place] = [key[1:] for key in found if key[0] == "stoker_outbox_lag"]
        return found["stoker_outbox_lag", *place], found["stoker_outbox_lag_seconds", *place]

    clock.advance(600)
    assert await lag() == (0, 0)
    await orders.add("p", "q")
    clock.advance(30)
    assert await lag() == (2, 30)
    await orders.drain()
    clock.advance(3600)
    assert await lag() == (0, 0)
    await orders.add("p")
    clock.advance(5)
    assert await lag() == (1, 5)
    await app.close()
