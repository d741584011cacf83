"""One storm: a store, processes that put and do work, faults among them, a calm end, and the judgement.

`python -m lab.storm` runs it in a process of its own, whose mounts and children vanish with it; the line of results
is the last one that it prints.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lab import faults, stores
from lab.judge import Verdict, examined
from lab.ledger import Ledger, identity
from lab.nursery import Nursery
from lab.place import CHILD_MEMORY, LEASE, Place
from lab.power import fail_power
from stoker import Stoker
from stoker.engines.base import Engine, outbox_of
from stoker.errors import EngineError
from stoker.model.job import FINISHED, Status
from tests.faults.fork_server import ROOT
from tests.worker.shell import alive

EMBEDDED, CREWS, PROCESSES, PRODUCERS = 3, 1, 2, 2
"""Programs with a worker inside, `stoker work` commands, worker processes of each, and producers."""

LULL: Final = 0.12
"""Seconds between two faults, on average, unless another number is given."""

CALM: Final = 180.0
"""Seconds in which everything must be over once there are no more faults; what is open then is stuck."""

SHORT_CALM: Final = 20.0
"""With a planted bug, which may leave what never ends."""

OPEN: Final = tuple(status for status in Status if status not in FINISHED)


def tell(text: str = "") -> None:
    """Show how far a storm is, in one line of a terminal that the next one replaces; in a pipe nothing."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


class Crew:
    """A `stoker work` command."""

    def __init__(self, environ: dict[str, str], log: Any) -> None:
        options = ("-p", str(PROCESSES), "--lease", f"{LEASE:g}s", "--grace", "5s", "--child-memory", str(CHILD_MEMORY))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stoker", "work", "lab.app:jobs", *options, "--log-level", "error"],
            cwd=ROOT,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    @property
    def children(self) -> list[int]:
        return children_of(self.process.pid)


def children_of(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split() if alive(int(child))]


class Storm:
    """The processes, and what faults do to them."""

    def __init__(self, store: Any, folder: Path, seed: int, bug: str = "") -> None:
        self.store, self.folder = store, folder
        self.chance = random.Random(seed)
        self.place = Place(store.url, str(folder / "ledger"))
        self.ledger = Ledger(self.place.ledger)
        self.log = (folder / "log").open("ab", buffering=0)
        self.tally: Counter[str] = Counter()
        self.frozen: dict[int, float] = {}
        self.environ = {**self.place.environ, "LAB_BUG": bug}
        self.nursery = Nursery(self.environ, self.log)
        self.embedded = [0] * EMBEDDED
        self.producers = [0] * PRODUCERS
        self.crews: list[Crew] = []
        self.orphans: set[int] = set()
        self.producing = True

    # --- life -------------------------------------------------------------------------------------------------------

    def fill(self) -> None:
        """Start whatever does not run: those that were killed, and those that ended because the store was away."""
        for pids, life in ((self.embedded, "work"), (self.producers, "produce")):
            for place, pid in enumerate(pids):
                if not pid or not alive(pid):
                    wanted = life == "work" or self.producing
                    pids[place] = self.nursery.born(life, self.chance.getrandbits(32)) if wanted else 0
        self.crews = [crew for crew in self.crews if crew.process.poll() is None]
        while len(self.crews) < CREWS:
            self.crews.append(Crew(self.environ, self.log))

    def workers(self) -> list[int]:
        """Processes that run jobs and are not frozen."""
        found = [*self.embedded, *(pid for crew in self.crews for pid in crew.children)]
        return [pid for pid in found if pid and pid not in self.frozen]

    def kill(self, role: str) -> bool:
        """Kill -9 one of these, and start it again; a process of `stoker work` is its supervisor's affair.

        The processes of a killed supervisor finish what they run and end.
        """
        if role == "supervisor":
            crew = self.chance.choice(self.crews)
            self.orphans |= set(crew.children)
            self._kill(crew.process.pid, role=role)
            crew.process.wait()
        else:
            pids = {"embedded": self.embedded, "producer": self.producers}.get(role) or [
                pid for crew in self.crews for pid in crew.children
            ]
            awake = [pid for pid in pids if pid and pid not in self.frozen]
            if not awake:
                return False
            self._kill(self.chance.choice(awake), role=role)
        self.fill()
        return True

    def kill_all(self) -> None:
        """Kill -9 all of them."""
        pids = [*self.embedded, *self.producers, *self.orphans]
        for crew in self.crews:
            pids += [crew.process.pid, *crew.children]
        self._kill(*(pid for pid in pids if pid), role="reboot")
        self.frozen.clear()
        for crew in self.crews:
            crew.process.wait()
        self.fill()

    def _kill(self, *pids: int, role: str) -> None:
        """Note it, kill, and wait until they are gone."""
        living = [pid for pid in pids if alive(pid)]
        for pid in living:
            with contextlib.suppress(OSError):
                self.ledger.write("kill", identity(pid), role)
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        give_up = time.monotonic() + 30
        while any(alive(pid) for pid in living):
            if time.monotonic() > give_up:
                raise TimeoutError(f"a killed process does not end: {living}")
            time.sleep(0.002)

    def freeze(self) -> bool:
        awake = self.workers()
        if not awake:
            return False
        pid = self.chance.choice(awake)
        with contextlib.suppress(OSError):
            self.ledger.write("freeze", identity(pid))
            os.kill(pid, signal.SIGSTOP)
            self.frozen[pid] = time.monotonic() + faults.FROZEN_FOR * LEASE
            return True
        return False

    def thaw(self, now: float = float("inf")) -> None:
        """Let those go on that were frozen long enough; without an instant all."""
        for pid, until in list(self.frozen.items()):
            if now >= until:
                del self.frozen[pid]
                with contextlib.suppress(OSError):
                    self.ledger.write("thaw", identity(pid))
                    os.kill(pid, signal.SIGCONT)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Around what takes the store away for a while."""
        self.ledger.write("away")
        yield
        self.ledger.write("back")

    # --- the storm --------------------------------------------------------------------------------------------------

    def rage(self, engine: str, seconds: float, lull: float) -> None:
        """Do one fault after the other."""
        chosen = [fault for fault in faults.FAULTS if engine not in fault.cannot]
        weights = [fault.share for fault in chosen]
        self.fill()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            shown = ", ".join(f"{self.tally[name]} {name}" for name in ("kills", "freezes", "restarts"))
            tell(f"{engine}: {end - time.monotonic():.0f} s of {seconds:.0f} left, {shown}")
            pause = time.monotonic() + self.chance.uniform(0, 2 * lull)
            while time.monotonic() < pause:
                time.sleep(0.02)
                self.thaw(time.monotonic())
            self.fill()
            [fault] = self.chance.choices(chosen, weights)
            if fault.act(self):
                self.tally[fault.count] += 1
                self.tally[fault.name] += 1

    def calm(self, within: float) -> dict[str, int]:
        """No more faults and no more work: let workers end what is there; what is open in the end."""
        self.producing = False
        self.thaw()
        for place, pid in enumerate(self.producers):
            if pid:
                self._kill(pid, role="end")
                self.producers[place] = 0
        if hasattr(self.store, "proxy"):
            self.store.proxy.heal()
        self.ledger.write("calm")
        return asyncio.run(self._calm(within))

    async def _calm(self, within: float) -> dict[str, int]:
        end, left, stopped = time.monotonic() + within, {"unknown": 1}, False
        while left and time.monotonic() < end:
            self.fill()
            with contextlib.suppress(EngineError):
                async with Stoker(self.store.direct) as jobs:
                    engine = await jobs.engine()
                    stopped = stopped or await self._stop_ticks(jobs, engine)
                    left = {**await self._left(engine), **({} if stopped else {"schedule": 1})}
            tell(f"the calm after it: {left}")
            await asyncio.sleep(0.5)
        return left

    async def _stop_ticks(self, jobs: Stoker, engine: Engine) -> bool:
        """Pause the schedule once it has made every occurrence until now; one that no longer fires is stuck."""
        schedule = jobs.schedule_handle("tick")
        following = (await schedule.info()).next_fire
        if following is None or round(following.timestamp() * 1e6) <= await engine.now():
            return False
        await schedule.pause()
        return True

    async def _left(self, engine: Engine) -> dict[str, int]:
        counts = (await engine.operator.census()).by_status()
        left = {status.value: counts[status] for status in OPEN}
        if self.place.transactional:
            [state] = await outbox_of(engine).streams(["orders"])
            left["messages"] = sum(one.waiting + one.cursor.parked for one in state.cursors)
        return {name: n for name, n in left.items() if n}

    def close(self) -> None:
        self.thaw()
        self._kill(
            *self.orphans, *(pid for crew in self.crews for pid in (crew.process.pid, *crew.children)), role="end"
        )
        for crew in self.crews:
            crew.process.wait()
        self.nursery.close()
        self.log.close()


def run(
    engine: str, minutes: float, seed: int, lull: float = LULL, keep: str | None = None, bug: str = ""
) -> dict[str, Any]:
    """A whole storm on a store of its own; what it found."""
    logging.getLogger("stoker").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="stoker-lab-") as scratch:
        folder = Path(scratch)
        folder.chmod(0o755)
        with stores.opened(engine, folder) as store:
            began = time.monotonic()
            storm = Storm(store, folder, seed, bug)
            try:
                asyncio.run(prepare(storm.place))
                storm.rage(engine, 60 * minutes, lull)
                raged = time.monotonic() - began
                left = storm.calm(CALM if not bug else SHORT_CALM)
                tell("judging")
                direct = storm.place._replace(url=store.direct)
                found = asyncio.run(examined(direct, left))
            finally:
                storm.close()
            if engine == "sqlite" and not bug:
                tell("looking into images of the disk that a loss of power could leave")
                storm.tally["power loss"] = fail_power(folder, minutes, seed, found)
            trouble = [line for line in (folder / "log").read_text(errors="replace").splitlines() if line.strip()]
            if keep:
                for name in ("ledger", "log"):
                    Path(keep, f"{engine}.{name}").write_bytes((folder / name).read_bytes())
            return line(engine, minutes, seed, lull, storm, found, trouble, raged, time.monotonic() - began - raged)


async def prepare(place: Place) -> None:
    """Make the tables of Stoker and of the user."""
    async with Stoker(place.url) as jobs:
        await jobs.engine()
    if place.transactional:
        place.furnish()


def line(
    engine: str,
    minutes: float,
    seed: int,
    lull: float,
    storm: Storm,
    found: Verdict,
    trouble: list[str],
    raged: float,
    finishing: float,
) -> dict[str, Any]:
    """One line of results."""
    by_itself = [text for text in trouble if "ended by itself" in text]
    if by_itself:
        found.complain("stopped", *by_itself)
    return {
        "engine": engine,
        "seed": seed,
        "minutes": minutes,
        "server": storm.store.version,
        "settings": {**storm.store.settings, "lease": LEASE, "lull": lull},
        "faults": dict(sorted(storm.tally.items())),
        "work": dict(sorted(found.work.items())),
        "wrong": {name: len(texts) for name, texts in found.complaints.items()},
        "complaints": {name: texts[:10] for name, texts in found.complaints.items() if texts},
        "thawed": dict(sorted(found.thawed.items())),
        "recovery": {name: dict(sorted(some.items())) for name, some in found.recovery.items()},
        "seconds": {"storm": round(raged, 1), "calm and judgement": round(finishing, 1)},
    }


def ended(number: int, _frame: Any) -> None:
    """End in order when asked to: what was started ends as well. A second signal is not heard."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, ended)
    signal.signal(signal.SIGINT, ended)
    try:
        print(json.dumps(run(**json.loads(sys.argv[1]))))
    finally:
        tell()
