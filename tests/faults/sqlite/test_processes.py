"""Processes that fork, share a file, or freeze in the middle of a write."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stoker.engines.sqlite import SqliteEngine
from stoker.model.errors import EngineBusy, EngineClosed
from stoker.model.job import Demand, Status, Verdict
from tests.faults.fork_server import ForkServer, forked
from tests.faults.sqlite.audit import audit
from tests.faults.sqlite.test_busy import DEMAND, PATIENT, drafts, ending, holding

pytestmark = pytest.mark.engine("sqlite")


def use_after_fork(path: str) -> list[str]:
    """Fork with an open engine; returns the child's errors and what the parent found."""
    return asyncio.run(_use_after_fork(path))


async def _use_after_fork(path: str) -> list[str]:
    engine = SqliteEngine(path)
    await engine.open()
    await engine.jobs.insert(drafts(5))
    out, into = os.pipe()

    def child() -> None:
        logs = []
        for question in (engine.jobs.insert(drafts()), engine.operator.census(), engine.jobs.claim(DEMAND)):
            try:
                question.send(None)
            except EngineClosed as error:
                logs.append(str(error))
            except BaseException as error:
                logs.append(f"{type(error).__name__}: {error}")
        os.write(into, "\n".join(logs).encode())
        # Let go of everything inherited, as an ordinary exit does.
        engine._store._resources = None

    pid = forked(child)
    os.close(into)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    report = os.read(out, 65536).decode().splitlines()
    await engine.jobs.insert(drafts(5))
    twin = engine.for_loop()
    await twin.open()
    found = (await twin.operator.census()).by_status()[Status.PENDING]
    await twin.close()
    await engine.close()
    return [str(code), str(found), *report]


@pytest.mark.spec("FAULT-53")
def test_a_forked_child_is_refused_and_its_parent_does_not_notice(fork_server: ForkServer, tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    code, found, *report = fork_server.call(use_after_fork, path=str(path)).answer
    assert (code, found) == ("0", "10")
    assert len(report) == 3
    assert all("does not survive a fork" in words and "for_loop()" in words for words in report)
    assert audit(path) == []


@pytest.mark.spec("FAULT-54")
async def test_two_engines_of_one_process_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    """Closing one must not drop the other's locks, which POSIX would allow."""
    path = tmp_path / "jobs.db"
    first, second = SqliteEngine(path), SqliteEngine(path)
    await first.open()
    await second.open()
    await first.jobs.renew("a", [], first=True)
    await second.jobs.renew("b", [], first=True)
    await first.jobs.insert(drafts(20))
    one, two = await asyncio.gather(
        first.jobs.claim(Demand("a", (("default", 10),))), second.jobs.claim(Demand("b", (("default", 10),)))
    )
    assert len({claim.id for claim in (*one, *two)}) == 20
    third = SqliteEngine(path)
    await third.open()
    await third.close()
    with (
        holding(str(path)),
        pytest.raises(sqlite3.OperationalError),
        closing(sqlite3.connect(path, timeout=0)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
    await first.jobs.settle([ending(claim) for claim in one])
    await first.close()
    assert (await second.jobs.settle([ending(claim) for claim in two])).verdicts == [Verdict.APPLIED] * 10
    await second.close()
    assert audit(path) == []


def freeze_while_writing(path: str) -> None:
    """Insert for ever; the test stops this process."""

    async def main() -> None:
        engine = SqliteEngine(path)
        await engine.open()
        while True:
            await engine.jobs.insert(drafts(50))

    asyncio.run(main())


@pytest.mark.spec("FAULT-55")
def test_a_process_that_is_frozen_in_the_middle_makes_others_busy_and_no_more(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    report = fork_server.call(frozen, path=str(tmp_path / "jobs.db"), within=240).answer
    assert report["busy"] + report["inserted"] == 4
    assert report["after"] == 3
    assert audit(tmp_path / "jobs.db") == []


def frozen(path: str) -> dict[str, int]:
    async def main() -> dict[str, int]:
        engine = SqliteEngine(path, busy_timeout=0.1)
        await engine.open()
        report = {"busy": 0, "inserted": 0}
        for _ in range(4):
            pid = forked(lambda: freeze_while_writing(path))
            await asyncio.sleep(0.15)
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.wait_for(engine.jobs.insert(drafts()), PATIENT)
                report["inserted"] += 1
            except EngineBusy:
                report["busy"] += 1
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        report["after"] = len(await asyncio.wait_for(engine.jobs.insert(drafts()), PATIENT))
        await engine.close()
        return report

    return asyncio.run(main())
