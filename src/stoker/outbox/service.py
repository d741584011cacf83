"""The service of a stream: its lanes and its vacuum, in every worker of the app."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from random import random

from stoker.engines.base import Outbox as Streams
from stoker.engines.base import outbox_of
from stoker.executors.threads import Threads
from stoker.model.errors import AWAY, StokerError, sentence
from stoker.model.outbox.stream import Stream, Vacuumed, topic
from stoker.outbox.consumer_loop import ConsumerLoop
from stoker.outbox.handlers import Handler
from stoker.services import ServiceContext

logger = logging.getLogger("stoker.outbox")

LISTEN = 30.0
"""Seconds of one wait for a wake-up; lanes look by themselves meanwhile."""

LAST_WAIT = 5.0
"""Seconds a canceled service waits for the advances of its lanes."""

VACUUM_EVERY = 1.0
"""Seconds between two looks of a vacuum that found nothing, on average."""

VACUUM_STEP = 5_000
"""Messages in one step, at most; an engine with one writer deletes fewer."""

VACUUM_REST, VACUUM_HURRY = 19.0, 3.0
"""A vacuum rests for so many times as long as its step took: 5 % of the time, or 25 % while far behind."""

FAR_BEHIND = 100_000
"""Messages deleted in a row after which the vacuum takes more of the time."""


class OutboxService:
    """Delivers the messages of a stream to its handlers; `app.services` has it."""

    def __init__(self, stream: Stream, handlers: Mapping[str, Handler]) -> None:
        self.stream = stream
        self._handlers = handlers

    @property
    def name(self) -> str:
        """Names the service in logs."""
        return f"outbox:{self.stream.name}"[:128]

    async def run(self, context: ServiceContext) -> None:
        """Deliver until the worker stops. Without handlers there is nothing to do."""
        handlers = [*self._handlers.values()]
        if not handlers:
            return
        with context.under_way.one():
            streams = outbox_of(context.engine)
            await streams.register(self.stream, [one.consumer for one in handlers])
            threads = Threads()
            consumers = [ConsumerLoop(self.stream.name, one, context, streams, threads) for one in handlers]
            lanes = [lane for one in consumers for lane in one.start()]
            beside = [
                asyncio.create_task(work, name=f"stoker-{self.name}")
                for work in (
                    _close_when_stopping(context, consumers),
                    _listen(context, self.stream.name, consumers),
                    vacuum(streams, self.stream.name),
                )
            ]
        try:
            await _ended(lanes, beside)
        finally:
            for task in beside:
                task.cancel()
            for one in consumers:
                one.hurry()
            await _settled(lanes)
            for one in consumers:
                await one.caller.close()
            threads.close()


async def _ended(lanes: list[asyncio.Task[None]], beside: list[asyncio.Task[None]]) -> None:
    """Wait until all lanes have ended; raises what ended a task before its time."""
    pending = {*lanes, *beside}
    while not all(lane.done() for lane in lanes):
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def _settled(lanes: list[asyncio.Task[None]]) -> None:
    """Let lanes that were interrupted store their outcomes, whatever cancels this service meanwhile."""
    end = time.monotonic() + LAST_WAIT
    while (left := [lane for lane in lanes if not lane.done()]) and time.monotonic() < end:
        try:
            await asyncio.wait(left, timeout=end - time.monotonic())
        except asyncio.CancelledError:
            continue  # the worker cancels until this has ended, and it has a limit of its own
    for lane in lanes:
        lane.cancel()
    await asyncio.gather(*lanes, return_exceptions=True)


async def _close_when_stopping(context: ServiceContext, consumers: list[ConsumerLoop]) -> None:
    await context.stopping
    for one in consumers:
        one.close()


async def _listen(context: ServiceContext, stream: str, consumers: list[ConsumerLoop]) -> None:
    """Wake the lanes of every consumer: a wake-up releases only one waiter of an engine."""
    pause = 0.0
    while True:
        try:
            woken = await context.engine.jobs.wait([topic(stream)], LISTEN)
        except AWAY:  # the lanes notice it too; they look by themselves
            pause = min(pause + 1.0, 10.0)
            await asyncio.sleep(pause)
            continue
        pause = 0.0
        if woken:
            for one in consumers:
                one.wake()


async def vacuum(streams: Streams, stream: str) -> None:
    """Delete what every consumer has passed, step by step, in a small part of the time."""
    deleted = 0
    while True:
        began = time.monotonic()
        try:
            swept = await streams.vacuum(stream, VACUUM_STEP)
        except StokerError as error:
            level = logging.DEBUG if isinstance(error, AWAY) else logging.WARNING
            logger.log(level, "stream %s could not be cleaned: %s It is tried again later.", stream, sentence(error))
            swept = Vacuumed()
        deleted = deleted + swept.deleted if swept.more else 0
        await asyncio.sleep(vacuum_rest(time.monotonic() - began, deleted, more=swept.more))


def vacuum_rest(took: float, deleted: int, *, more: bool) -> float:
    """Seconds until the next step, after one that took so long; `deleted`: in a row, without an end in sight."""
    if not more:
        return VACUUM_EVERY * (0.5 + random())
    return took * (VACUUM_HURRY if deleted > FAR_BEHIND else VACUUM_REST)
