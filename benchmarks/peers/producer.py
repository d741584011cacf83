"""Runs in the environment of a system: makes its schema, enqueues at a given pace, or becomes its worker.

Commands of a producer are lines of JSON on its input, one answer each: open, one, many, pace, close. It ends with its
input.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from benchmarks.peers.peer import DurablePeer, PythonPeer
from benchmarks.peers.systems import load

WARM = 20
"""Calls before the measured ones."""


async def one(peer: PythonPeer, count: int) -> list[float]:
    """Enqueue one by one; microseconds of each call."""
    for number in range(WARM):
        await peer.enqueue(number)
    taken = []
    for number in range(count):
        began = time.perf_counter_ns()
        await peer.enqueue(number)
        taken.append((time.perf_counter_ns() - began) / 1e3)
    return taken


async def many(peer: PythonPeer, count: int) -> float:
    """Enqueue all of them; seconds."""
    began = time.perf_counter()
    for start in range(0, count, peer.chunk):
        await peer.enqueue_many(range(start, min(start + peer.chunk, count)))
    return time.perf_counter() - began


async def stepped(peer: PythonPeer, count: int) -> None:
    """Enqueue jobs with steps."""
    assert isinstance(peer, DurablePeer)
    await peer.enqueue_stepped(range(count))


async def waiting(peer: PythonPeer, first: int, count: int) -> None:
    """Enqueue jobs that wait for an answer."""
    assert isinstance(peer, DurablePeer)
    await peer.enqueue_waiting(range(first, first + count))


async def answered(peer: PythonPeer, first: int, count: int, pause: float) -> dict[int, int]:
    """Answer them one after the other; by number, when that was on the monotonic clock."""
    assert isinstance(peer, DurablePeer)
    asked = {}
    for number in range(first, first + count):
        await asyncio.sleep(pause)
        asked[number] = time.monotonic_ns()
        await peer.answer(number)
    return asked


async def pace(
    peer: PythonPeer, first: int, count: int, pauses: list[float], delays: list[float] | None
) -> dict[int, int]:
    """Enqueue now and then; by number, when each job should have started on the monotonic clock."""
    due = {}
    chance = random.Random(first)
    at = time.perf_counter()
    for number in range(first, first + count):
        at += chance.uniform(*pauses)
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        delay = chance.uniform(*delays) if delays else None
        due[number] = time.monotonic_ns() + round((delay or 0) * 1e9)
        await peer.enqueue(number, delay)
    return due


async def serve(peer: PythonPeer) -> None:
    """Do what the input says."""
    loop = asyncio.get_running_loop()
    actions: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
        "one": one,
        "many": many,
        "stepped": stepped,
        "waiting": waiting,
        "answer": answered,
        "pace": pace,
    }
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command: dict[str, Any] = json.loads(line)
        name = command.pop("do")
        if name == "open":
            await peer.open()
            answer: Any = None
        elif name == "close":
            await peer.close()
            answer = None
        else:
            answer = await actions[name](peer, **command)
        print(json.dumps(answer), flush=True)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where the environment has it."""
    try:
        factory = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def main(key: str, action: str, *rest: str) -> None:
    """`KEY prepare`, `KEY produce`, `KEY work default`, `KEY work tuned`."""
    peer = load(key)
    assert isinstance(peer, PythonPeer)
    if action == "prepare":
        peer.prepare()
    elif action == "work":
        peer.work(tuned=rest == ("tuned",))
    else:
        run(serve(peer))


if __name__ == "__main__":
    main(*sys.argv[1:])
