"""A fork beside an engine that writes: the child can write, and the fork never hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.sqlite.children import child

pytestmark = pytest.mark.engine("sqlite")

SETTING = """
import asyncio, os, signal, sys, threading, time, warnings
warnings.simplefilter("ignore")
from stoker.engines.sqlite import SqliteEngine, fork_gate
from stoker.model.errors import EngineBusy
from stoker.model.ids import Mint
from stoker.model.job import Draft

path, journal = sys.argv[1:3]
mint = Mint(lambda: time.time_ns() // 1_000, os.urandom)

async def insert(patience):
    engine = SqliteEngine(path, journal=journal, busy_timeout=patience)
    await engine.open()
    await engine.jobs.insert([Draft(mint(), "work")])
    await engine.close()

def fork(patience=60.0):
    # Return what the child printed: "stored", or its error.
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        message = "stored"
        try:
            asyncio.run(insert(patience))
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        message = answer.read()
    os.waitpid(pid, 0)
    return message
"""

WRITING = """
over = threading.Event()
begun = threading.Event()

async def busy():
    engine = SqliteEngine(path, journal=journal, busy_timeout=60.0)
    await engine.open()
    while not over.is_set():
        inserts = (engine.jobs.insert([Draft(mint(), "work")]) for _ in range(20))
        await asyncio.gather(*inserts, engine.operator.census())
        begun.set()
    await engine.close()

thread = threading.Thread(target=asyncio.run, args=(busy(),))
thread.start()
begun.wait()
answers = {"stored"}
for _ in range(int(sys.argv[3])):
    answers.add(fork())
    if len(answers) > 1:
        break
over.set()
thread.join()
print(*answers, flush=True)
"""


@pytest.mark.spec("SQLITE-84")
@pytest.mark.parametrize(("journal", "forks"), [("wal", 40), ("delete", 10)])
def test_a_child_forked_beside_a_writer_can_write(tmp_path: Path, campaign: bool, journal: str, forks: int) -> None:
    with child(SETTING + WRITING, tmp_path / "jobs.db", journal, forks * (10 if campaign else 1)) as parent:
        assert parent.line() == "stored"


INSIDE = """
fork_gate.LONGEST = 600.0
started = time.monotonic()

async def main():
    engine = SqliteEngine(path, journal=journal)
    await engine.open()
    async with engine.transaction():
        answer = fork(0.05)  # it would wait for itself
    fork_gate.LONGEST = 0.05
    async with engine.transaction():
        late = await asyncio.to_thread(fork, 0.05)
        inserted = asyncio.ensure_future(engine.jobs.insert([Draft(mint(), "work")]))
    await inserted
    await engine.close()
    return answer, late

answer, late = asyncio.run(main())
print(time.monotonic() - started < 300, flush=True)
print(answer, flush=True)
print(late, flush=True)
print(fork(), flush=True)
"""


@pytest.mark.spec("SQLITE-85")
def test_a_fork_inside_a_transaction_never_hangs_and_its_child_learns_why_it_cannot_write(tmp_path: Path) -> None:
    with child(SETTING + INSIDE, tmp_path / "jobs.db", "wal") as parent:
        assert parent.line() == "True"
        for _ in range(2):
            assert "This process was forked while a thread of its parent used the file" in parent.line()
        assert parent.line() == "stored"


HANDED_OVER = """
fork_gate.LONGEST = 60.0
gate = fork_gate.ForkGate()
gate.enter("first", path)
gate.hand_over("first")
ready = threading.Event()

def end():
    ready.wait()
    gate.leave("first")

threading.Thread(target=end).start()
threading.Timer(0.01, ready.set).start()
gate.before_fork()  # by the thread that began the transaction
print("waited" if ready.is_set() else "did not wait", flush=True)
late = threading.Thread(target=gate.enter, args=("second", path))
late.start()
late.join(0.05)
print("waits" if late.is_alive() else "went on", flush=True)
gate.after_in_parent()
late.join()
print("went on", flush=True)
"""


@pytest.mark.spec("SQLITE-84")
def test_a_fork_waits_for_a_commit_in_another_thread_and_transactions_wait_for_the_fork(tmp_path: Path) -> None:
    with child(SETTING + HANDED_OVER, tmp_path / "jobs.db", "wal") as parent:
        assert [parent.line() for _ in range(3)] == ["waited", "waits", "went on"]
