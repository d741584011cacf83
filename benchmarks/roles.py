"""What other processes do in a measurement. Run by `benchmarks.children`, never by hand."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.app import BURN, NOOP, PAYLOAD, QUEUE, STAMP, SWITCH_INTERVAL, ends, make_app, note_end, stamps, woken
from benchmarks.bare import LEVELS, Bare, bell_of
from benchmarks.doors import successes
from benchmarks.grounds import Bare as BareServer
from benchmarks.grounds import Name, open_bare
from benchmarks.pace import trickle
from benchmarks.watched import Watched
from stoker.engines.sqlite import SqliteEngine
from stoker.engines.sqlite.connection import NORMAL
from stoker.engines.url import engine_from_url
from stoker.model.job import Claim, Demand, Draft, Status
from stoker.model.time import HOUR
from stoker.registry import mint
from stoker.worker import Worker

Figures: TypeAlias = dict[str, Any]


async def told() -> str:
    """The next line from the parent process; empty when it is gone."""
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.strip()


async def begin() -> None:
    print("ready", flush=True)
    if await told() != "go":
        raise SystemExit(1)


async def producer(path: str, seconds: float, batch: int, burn: float) -> Figures:
    """Enqueue without pause; how long each call took, in ms."""
    engine = SqliteEngine(path)
    await engine.open()
    kind, payload = (BURN, b'{"seconds":%g}' % burn) if burn else (NOOP, PAYLOAD)
    waits: list[float] = []
    await begin()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        drafts = [Draft(mint(), kind, payload, QUEUE) for _ in range(batch)]
        began = time.perf_counter_ns()
        await engine.jobs.insert(drafts)
        waits.append(round((time.perf_counter_ns() - began) / 1e6, 3))
    await engine.close()
    return {"waits": waits}


async def trickler(url: str, rate: float, seconds: float) -> Figures:
    """Enqueue jobs one by one, so many a second."""
    engine = engine_from_url(url)
    await engine.open()

    async def send() -> None:
        await engine.jobs.insert([Draft(mint(), STAMP, b'{"sent":%d}' % time.monotonic_ns(), QUEUE)])

    await send()  # the first call finds nothing prepared; it is one of many
    await begin()
    sent = await trickle(send, rate, seconds)
    await engine.close()
    return {"sent": sent}


async def worker(url: str, noting: bool = False) -> Figures:
    """Work until told to stop; when asked, with a note of when each job ended."""
    app = make_app(engine_from_url(url))
    if noting:
        app.listener(note_end)
    async with app:
        runner = Worker(app)
        await runner.start()
        await begin()
        await told()
        await runner.stop(grace=0)
    return {"done": runner.counts[Status.DONE], "stamps": stamps, "ends": ends, "woken": woken}


async def bare_worker(name: Name, server: str, part: str) -> Figures:
    """The plain loop as an idle worker, until told to stop; when it had each job in its hands."""
    taken: list[int] = []

    async def work(bare: BareServer) -> None:
        while True:
            await bare.heard()
            await bare.turn(1)
            while bare.holding:
                taken.append(time.monotonic_ns())
                await bare.turn(1)

    async with open_bare(name)(server, part) as bare:
        await bare.prepare(1)
        working = asyncio.create_task(work(bare))
        await asyncio.sleep(0.5)
        await begin()
        await told()
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working
    return {"taken": taken}


async def bare_sqlite(path: str, durability: str) -> Figures:
    """The same on an SQLite file: each signal means one stored job."""
    taken: list[int] = []
    with Bare(Path(path), durability) as bare, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(bell_of(Path(path)))

        def work() -> None:
            while ear.recv(16) != b"stop":
                bare.care(NORMAL)  # a claim that is lost is only made again
                held, claimed = bare.turn(1, [], 0)
                taken.append(time.monotonic_ns())
                bare.care(LEVELS[durability])
                bare.turn(1, held, claimed)

        working = asyncio.create_task(asyncio.to_thread(work))
        await begin()
        await told()
        ear.sendto(b"stop", bell_of(Path(path)))
        await working
    return {"taken": taken}


async def listener(path: str) -> Figures:
    """Wait for wake-ups until told to stop; when each was heard, in ns of the monotonic clock."""
    engine = SqliteEngine(path)
    await engine.open()
    heard: list[int] = []

    async def listen() -> None:
        while True:
            if await engine.jobs.wait([QUEUE], 5.0):
                heard.append(time.monotonic_ns())

    listening = asyncio.create_task(listen())
    await asyncio.sleep(0.05)
    await begin()
    await told()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    await engine.close()
    return {"heard": heard}


async def drainer(url: str, batch: int | None) -> Figures:
    """Work until nothing is due; how many jobs, from when to when in ns, and what CPU it took."""
    app = make_app(engine_from_url(url))
    async with app:
        runner = Worker(app, drain=True, claim_batch=batch, settle_batch=batch)
        await begin()
        await runner.start()
        began, cpu = time.monotonic_ns(), time.process_time()
        await runner.join()
        ended, spent = time.monotonic_ns(), time.process_time() - cpu
        return {"done": runner.counts[Status.DONE], "began": began, "ended": ended, "cpu": spent}


async def taker(url: str, name: str, batch: int) -> Figures:
    """Settle and take batches until the queue is dry; how many jobs, from when to when in ns, and what CPU it took."""
    engine = engine_from_url(url)
    await engine.open()
    await engine.jobs.renew(name, [], lease=HOUR, first=True)
    demand = Demand(name, ((QUEUE, batch),), batch)
    claims: list[Claim] = []
    done = 0
    await begin()
    began = ended = time.monotonic_ns()
    cpu = time.process_time()
    while claims or (await engine.operator.census()).by_status()[Status.PENDING]:
        while True:
            done += len(claims)
            claims = (await engine.jobs.settle(successes(claims), demand=demand)).claims
            ended = time.monotonic_ns()
            if not claims:
                break
    cpu = time.process_time() - cpu
    await engine.close()
    return {"done": done, "began": began, "ended": ended, "cpu": cpu}


async def idle(url: str, seconds: float, rounds: int) -> Figures:
    """A worker with nothing to do: the percentage of one core it takes, in each of several stretches."""
    app = make_app(engine_from_url(url), timeline=True)
    percents: list[float] = []
    async with app, Worker(app):
        await begin()
        await asyncio.sleep(1.0)
        for _ in range(rounds):
            cpu, wall = time.process_time(), time.perf_counter()
            await asyncio.sleep(seconds)
            percents.append((time.process_time() - cpu) / (time.perf_counter() - wall) * 100)
    return {"percents": percents}


async def keeper(path: str, seconds: float, lease: float) -> Figures:
    """A busy worker: by how many ms each renewal of its lease was stored too late."""
    app = make_app(Watched(path))
    async with app:
        runner = Worker(app, lease=lease)
        await runner.start()
        await begin()
        await asyncio.sleep(seconds)
        await runner.stop(grace=0)
    gaps = [after - before for before, after in zip(Watched.renewals, Watched.renewals[1:], strict=False)]
    # The last gap is the farewell's.
    late = [max(0.0, gap - lease / 3) * 1000 for gap in gaps[:-1]]
    return {"late": late, "done": runner.counts[Status.DONE]}


async def memory(path: str, first: int, timeline: bool) -> Figures:
    """Drain a store; private memory in MiB after `first` jobs and at the end."""
    app = make_app(SqliteEngine(path, durability="process"), timeline=timeline)
    samples: list[tuple[int, float]] = []
    async with app:
        runner = Worker(app, drain=True)
        await begin()
        await runner.start()
        joined = asyncio.ensure_future(runner.join())
        while not joined.done():
            await asyncio.wait({joined}, timeout=0.05)
            samples.append((runner.counts[Status.DONE], private_memory()))
    early = next((size for done, size in samples if done >= first), samples[-1][1])
    return {"early": early, "late": samples[-1][1], "done": samples[-1][0]}


def private_memory() -> float:
    """RssAnon in MiB: what belongs to this process alone and to no file."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise OSError("this system does not tell a process's private memory")


ROLES: dict[str, Callable[..., Awaitable[Figures]]] = {
    role.__name__: role
    for role in (producer, trickler, worker, bare_worker, bare_sqlite, drainer, taker, listener, idle, keeper, memory)
}


async def play(role: str, arguments: dict[str, Any]) -> Figures:
    return await ROLES[role](**arguments)


if __name__ == "__main__":
    logging.getLogger("stoker").setLevel(logging.ERROR)
    sys.setswitchinterval(SWITCH_INTERVAL)
    print(json.dumps(asyncio.run(play(sys.argv[1], json.loads(sys.argv[2])))), flush=True)
