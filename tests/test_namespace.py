from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.app import Stoker
from stoker.engines.base import Engine
from stoker.engines.memory import MemoryEngine
from stoker.model.errors import InvalidName
from stoker.worker import Worker
from tests.harness.apps import drain, working


@pytest.mark.spec("API-30")
def test_a_namespace_goes_before_kinds_and_the_default_queue() -> None:
    app = Stoker(MemoryEngine(), namespace="billing", router={"billing.bulk": "slow"})

    @app.task
    def send() -> None: ...

    @app.task
    def bulk() -> None: ...

    @app.task(name="charge", queue="cash")
    def take() -> None: ...

    app.declare("shop.parcel")
    found = {draft.kind: draft.queue for draft in (send.draft(), bulk.draft(), take.draft(), app.draft("shop.parcel"))}
    assert found == {
        "billing.send": "billing.default",
        "billing.bulk": "slow",
        "charge": "cash",
        "shop.parcel": "billing.default",
    }
    assert send.using(queue="other").draft().queue == "other"
    assert app.draft("billing.send").kind == "billing.send"
    assert _served(Worker(app)) == {"billing.default", "slow", "cash"}


def _served(worker: Worker) -> set[str]:
    return {queue for lane in worker.lanes for queue in lane.queues}


@pytest.mark.spec("API-30")
def test_a_queue_that_is_written_stays_as_it_is() -> None:
    app = Stoker(MemoryEngine(), namespace="billing", queue="mail")

    @app.task
    def send() -> None: ...

    assert (send.draft().kind, send.draft().queue) == ("billing.send", "mail")
    assert _served(Worker(Stoker(MemoryEngine(), namespace="billing"))) == {"billing.default"}
    assert _served(Worker(Stoker(MemoryEngine()))) == {"default"}
    for wrong in ("no spaces", ""):
        with pytest.raises(InvalidName, match="namespace"):
            Stoker(MemoryEngine(), namespace=wrong)


@pytest.mark.spec("API-30")
async def test_services_with_namespaces_do_not_run_each_others_jobs(engine: Engine) -> None:
    ran: list[str] = []
    apps = [Stoker(engine, namespace="billing"), Stoker(engine.for_loop(), namespace="shop")]

    def send_of(app: Stoker) -> None:
        @app.task
        async def send() -> None:
            ran.append(app.namespace or "")

    for app in apps:
        send_of(app)
        await app.enqueue(app.draft(f"{app.namespace}.send"))
    for app in apps:
        await drain(app)
    assert ran == ["billing", "shop"]
    for app in apps:
        await app.close()


def _told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if "two functions" in one.getMessage()]


@pytest.mark.spec("PRESENCE-06")
async def test_two_workers_with_different_functions_under_one_kind_both_say_so_once(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    shop, billing = Stoker(engine), Stoker(engine.for_loop())

    def send() -> None: ...

    def other() -> None: ...

    shop.task(send)
    billing.task(name="send")(other)
    shop.task(name="same")(send)
    billing.task(name="same")(send)
    async with working(shop, ["default"]) as one, working(billing, ["default"]) as two:
        for worker in (one, two):
            await worker.maintenance.show_and_tune()
        for worker in (one, two, one, two):
            await worker.maintenance.warnings.look()
        here, there = (app.tasks["send"].path for app in (shop, billing))
        assert [(f"{here} here" in line, f"{there} here" in line) for line in _told(caplog)] == [
            (True, False),
            (False, True),
        ]
        assert all("'send'" in line and "namespace" in line for line in _told(caplog))
        presences = {one.worker: one.kinds for one in await one.engine.control.workers()}
        assert presences[one.id] == {"send": here, "same": here}
    for app in (shop, billing):
        await app.close()


SCRIPT = """
from stoker import Stoker
jobs = Stoker("memory://")
@jobs.task
def send() -> None: ...
print(send.path)
"""


@pytest.mark.spec("PRESENCE-06")
def test_a_script_shows_its_functions_as_those_who_import_it_do(tmp_path: Path) -> None:
    (tmp_path / "mailer.py").write_text(SCRIPT)
    paths = set()
    for args in (["mailer.py"], ["-m", "mailer"], ["-c", "import mailer"]):
        command = [sys.executable, *args]
        paths.add(subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=240).stdout)
    assert paths == {"mailer.send\n"}
