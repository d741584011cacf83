"""A storm over streams: writers with transactions of their own and consumers, killed and frozen at random instants.

A writer raises the counter of a key in a row of its own table and appends the new value in the same transaction, so the
values of a key tell the order of its commits. Some transactions are rolled back, some commit late. One consumer writes
what it was delivered into files before it advances; another one writes `effects` in the transaction that advances.

`judge` compares: what was sent was delivered, nothing else was, the first deliveries of each key are 1, 2, 3, …, every
effect happened once and in order, and numbers have no gap.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from stoker.engines.base import Engine, Outbox, outbox_of
from stoker.engines.url import engine_from_url
from stoker.model.errors import EngineError
from stoker.model.ids import Mint
from stoker.model.outbox.cursor import Consumer, Lease, Terms, Wish
from stoker.model.outbox.delivery import Delivered, conclude_batch
from stoker.model.outbox.stream import Stream, entry
from stoker.model.time import MILLISECOND, SECOND, Span
from tests.faults.zygote import forked

ORDERS = Stream("orders", 8)
KEYS = 40
LEASE: Span = SECOND
TERMS = Terms(LEASE, 100 * MILLISECOND)
FROZEN = 1.5
"""Seconds: longer than a lease, so that others take over what a frozen one held."""

TABLES = (
    "CREATE TABLE counters (key TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    "CREATE TABLE sent (id TEXT PRIMARY KEY)",
    "CREATE TABLE effects (n {number} PRIMARY KEY, key TEXT NOT NULL, value INTEGER NOT NULL, UNIQUE (key, value))",
)
Trouble = (sqlite3.OperationalError, psycopg.OperationalError, EngineError)
"""What a member may meet when it waits too long for others: it rolls back and tries again."""

Overtaken = (sqlite3.IntegrityError, psycopg.IntegrityError)
"""What a consumer meets that was frozen past its lease: another one has written the same effects. It rolls back. One
that meets this while it holds the partition would meet it again and again, and the storm would never end."""


class Site(NamedTuple):
    """Where the storm rages: the engine's URL, the files of its members, and how late a commit may come.

    `schema` is that of the engine on Postgres, and also holds the tables of the user.
    """

    url: str
    folder: str
    latest: float
    schema: str = ""

    def engine(self) -> Engine:
        return engine_from_url(f"{self.url}?schema={self.schema}" if self.schema else self.url)

    def connect(self) -> Handle:
        """A connection of the user's own."""
        if self.schema:
            return Handle(psycopg.connect(self.url, options=f"-csearch_path={self.schema}"), "%s")
        return Handle(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30), "?")


class Handle:
    """A connection of a driver, with one style of placeholders."""

    def __init__(self, raw: Any, mark: str) -> None:
        self.raw = raw
        self._mark = mark

    def run(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self.raw.execute(text.replace("?", self._mark), values)
        return cursor.fetchall() if cursor.description else []


# --- members --------------------------------------------------------------------------------------------------------


async def write(site: Site, quota: int, seed: int) -> None:
    """Commit so many messages."""
    chance = random.Random(seed)
    mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
    engine = site.engine()
    await engine.open()
    handle = site.connect()
    done = 0
    while done < quota:
        # In one order, so that writers do not deadlock. The counters are raised first: the transaction has begun long
        # before it appends.
        keys = sorted(f"k{chance.randrange(KEYS)}" for _ in range(chance.choice((1, 1, 1, 2, 5))))
        try:
            made = []
            for key in keys:
                raised = "UPDATE counters SET value = value + 1 WHERE key = ? RETURNING value"
                [(value,)] = handle.run(raised, key)
                made.append(entry(ORDERS, key, str(value).encode(), "t", id=mint()))
            late = site.latest * chance.random() if chance.random() < 0.05 else 0
            time.sleep(late * chance.random())
            for one in made:
                handle.run("INSERT INTO sent VALUES (?)", one.id.hex())
                await outbox_of(engine).append(ORDERS, [one], tx=handle.raw)
            time.sleep(late * chance.random())
            if chance.random() < 0.12:
                handle.raw.rollback()
            else:
                handle.raw.commit()
                done += len(keys)
        except Trouble:
            handle.raw.rollback()


class Member:
    """A consumer process: it renews its worker's lease and delivers to both consumers, for ever."""

    def __init__(self, site: Site, name: str) -> None:
        self.site = site
        self.engine = site.engine()
        self.outbox: Outbox = outbox_of(self.engine)
        self.worker = f"{name}.{os.getpid()}"
        self.renewed = 0.0
        self.chance = random.Random()
        self.log = os.open(Path(site.folder) / self.worker, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def live(self) -> None:
        await self.engine.open()
        handle = self.site.connect()
        while True:
            try:
                await self.renew()
                worked = await self.publish()
                worked |= await self.project(handle)
                if self.chance.random() < 0.05:
                    await self.outbox.vacuum("orders", 50)
            except (*Trouble, *Overtaken):
                handle.raw.rollback()
                worked = False
            if not worked:
                await asyncio.sleep(0.01)

    async def renew(self) -> None:
        if time.monotonic() - self.renewed < 0.2:
            return
        self.renewed = time.monotonic()
        if not (await self.engine.renew(self.worker, [], lease=LEASE)).known:
            self.worker += "+"
            await self.engine.renew(self.worker, [], lease=LEASE, first=True)

    async def publish(self) -> bool:
        """Deliver to the consumer that writes files; sometimes go on with the same partition."""
        wish = Wish("orders", "publish", self.worker, 20, TERMS)
        lease: Any = await self.outbox.lease(wish)
        worked = isinstance(lease, Lease)
        while isinstance(lease, Lease):
            for one in lease.messages:
                assert one.payload is not None
                place = f"{one.partition} {one.number}"
                line = f"{time.monotonic_ns()} {one.key} {one.payload.decode()} {one.id.hex()} {place}\n"
                os.write(self.log, line.encode())
            if self.chance.random() < 0.5:
                await asyncio.sleep(0.05 * self.chance.random())
            found = await self.outbox.advance(
                conclude_batch(lease, Delivered(), 0), wish=wish if self.chance.random() < 0.5 else None
            )
            if not found.applied:
                os.write(self.log, b"refused\n")
            lease = found.lease
        return worked

    async def project(self, handle: Handle) -> bool:
        """Deliver to the consumer that writes its effects in the transaction that advances."""
        lease = await self.outbox.lease(Wish("orders", "project", self.worker, 20, TERMS))
        if not isinstance(lease, Lease):
            return False
        for one in lease.messages:
            handle.run("INSERT INTO effects (key, value) VALUES (?, ?)", one.key, int(one.payload or b""))
        found = await self.outbox.advance(conclude_batch(lease, Delivered(), 0), tx=handle.raw)
        handle.raw.commit() if found.applied else handle.raw.rollback()
        return True


# --- the storm ------------------------------------------------------------------------------------------------------


def storm(
    url: str,
    folder: str,
    messages: int,
    seed: int,
    latest: float = 0.04,
    schema: str = "",
    crowd: int = 4,
    calm: float = 0.0,
) -> dict[str, int]:
    """Write and deliver so many messages; returns how many members were killed and frozen.

    `calm`: further seconds between two blows. A consumer that is killed takes a second to begin again, so blows without
    pause leave hardly any time to deliver.
    """
    site = Site(url, folder, latest, schema)
    chance = random.Random(seed)
    asyncio.run(prepare(site))
    share = messages // crowd
    writers = [_writer(site, share, chance.getrandbits(32)) for _ in range(crowd)]
    members = [_member(site, f"c{n}") for n in range(3)]
    tally = {"killed": 0, "writers killed": 0, "frozen": 0}
    while bool(writers) or (missing := messages - sent(site)) > 0 or asyncio.run(left(site)):
        if not writers and missing > 0:
            writers = [_writer(site, missing, chance.getrandbits(32))]  # for those that were killed
        time.sleep(0.1 + 0.3 * chance.random() + calm)
        writers = [pid for pid in writers if not os.waitpid(pid, os.WNOHANG)[0]]
        for pid in members:
            if os.waitpid(pid, os.WNOHANG)[0]:
                raise RuntimeError("a consumer ended by itself; its error stands above")
        place = chance.randrange(len(members))
        if chance.random() < 0.2:
            os.kill(members[place], signal.SIGSTOP)
            time.sleep(FROZEN)
            os.kill(members[place], signal.SIGCONT)
            tally["frozen"] += 1
        else:
            _kill(members[place])
            members[place] = _member(site, f"c{place}")
            tally["killed"] += 1
        if writers and chance.random() < 0.2:
            _kill(writers.pop())
            writers.append(_writer(site, share // 2, chance.getrandbits(32)))
            tally["writers killed"] += 1
    for pid in members:
        _kill(pid)
    return tally


async def prepare(site: Site) -> None:
    engine = site.engine()
    await engine.open()
    await outbox_of(engine).register(ORDERS, [Consumer("publish"), Consumer("project")])
    await engine.close()
    handle = site.connect()
    for statement in TABLES:
        handle.run(statement.format(number="bigint GENERATED ALWAYS AS IDENTITY" if site.schema else "INTEGER"))
    for n in range(KEYS):
        handle.run("INSERT INTO counters VALUES (?, 0)", f"k{n}")
    handle.raw.commit()
    handle.raw.close()


def sent(site: Site) -> int:
    """How many messages were committed."""
    handle = site.connect()
    [(count,)] = handle.run("SELECT count(*) FROM sent")
    handle.raw.close()
    return int(count)


async def left(site: Site) -> int:
    engine = site.engine()
    await engine.open()
    [state] = await outbox_of(engine).streams(["orders"])
    await engine.close()
    return sum(one.waiting for one in state.cursors)


def _writer(site: Site, quota: int, seed: int) -> int:
    return forked(lambda: asyncio.run(write(site, quota, seed)))


def _member(site: Site, name: str) -> int:
    return forked(lambda: asyncio.run(Member(site, name).live()))


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


# --- the judgement --------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One delivery, as its consumer wrote it."""

    at: int
    key: str
    value: int
    id: str
    partition: int
    number: int


def judge(folder: Path, ask: Callable[[str], list[tuple[Any, ...]]]) -> tuple[dict[str, int], list[str]]:
    """Compare what was sent with what was delivered; returns figures and complaints."""
    lines, refused = _lines(folder)
    sent = {str(row[0]) for row in ask("SELECT id FROM sent")}
    complaints = _in_order([(one.key, one.value) for one in _first(lines)], "delivery")
    effects = [(str(key), int(value)) for key, value in ask("SELECT key, value FROM effects ORDER BY n")]
    complaints += _in_order(effects, "effect")
    delivered = {one.id for one in lines}
    complaints += [f"skipped {one}" for one in sent - delivered]
    complaints += [f"delivered, but rolled back: {one}" for one in delivered - sent]
    if len(effects) != len(sent):
        complaints.append(f"{len(effects)} effects of {len(sent)} messages")
    values = {str(key): int(value) for key, value in ask("SELECT key, value FROM counters") if value}
    if Counter(key for key, _ in effects) != values:
        complaints.append("the effects of a key end before its counter")
    numbers: dict[int, set[int]] = defaultdict(set)
    for one in lines:
        numbers[one.partition].add(one.number)
    complaints += [f"gap in partition {partition}" for partition, found in numbers.items() if len(found) != max(found)]
    figures = {"sent": len(sent), "delivered": len(lines), "again": len(lines) - len(delivered), "refused": refused}
    return figures, complaints


def _lines(folder: Path) -> tuple[list[Line], int]:
    lines: list[Line] = []
    refused = 0
    for file in folder.glob("c[0-9].*"):
        for text in file.read_bytes().split(b"\n")[:-1]:
            parts = text.decode().split()
            if len(parts) == len(Line._fields):
                at, key, value, id_, partition, number = parts
                lines.append(Line(int(at), key, int(value), id_, int(partition), int(number)))
            refused += parts == ["refused"]
    return sorted(lines), refused


def _first(lines: list[Line]) -> list[Line]:
    """Every message's first delivery."""
    seen: set[str] = set()
    return [one for one in lines if not (one.id in seen or seen.add(one.id))]  # type: ignore[func-returns-value]


def _in_order(found: list[tuple[str, int]], what: str) -> list[str]:
    last: Counter[str] = Counter()
    complaints = []
    for key, value in found:
        if value != last[key] + 1:
            complaints.append(f"{what} of {key}: {value} came after {last[key]}")
        last[key] = value
    return complaints
