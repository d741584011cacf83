"""A storm over streams: writers with transactions of their own and consumers, killed and frozen at random instants.

A writer raises the counter of a key in a row of its own table and appends the new value in the same transaction, so the
values of a key tell the order of its commits. Some transactions are rolled back, whole or to a savepoint, some commit
late, some have begun long before they append. One consumer writes what it was delivered into files before it advances;
another one writes `effects` in the transaction that advances; a third one has a handler in a worker's lanes, which
fails at random and so parks the key.

`judge` compares: what was sent was delivered, nothing else was, the first deliveries of each key are 1, 2, 3, …, every
effect happened once and in order, numbers have no gap, and a message came again only in turns whose advance did not
apply or that had begun before.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from stoker.app import Stoker
from stoker.engines.base import Engine, Outbox, outbox_of
from stoker.engines.url import engine_from_url
from stoker.model.errors import EngineBusy, EngineError, StokerError
from stoker.model.ids import Mint
from stoker.model.outbox.cursor import Consumer, Lease, LeaseRequest, Terms
from stoker.model.outbox.delivery import Delivered, conclude_batch
from stoker.model.outbox.letters import LetterStatus
from stoker.model.outbox.stream import Message, Stream, entry
from stoker.model.time import MILLISECOND, SECOND, Span
from stoker.outbox import Message as Delivery
from stoker.outbox import Outbox as Face
from stoker.outbox import Pace
from stoker.worker import Worker
from tests.faults import seeded_streams
from tests.faults.fork_server import forked
from tests.faults.members import Members, kill
from tests.harness.freezing import freeze

ORDERS = Stream("orders", 8)
LEASE: Span = SECOND
TERMS = Terms(LEASE, 100 * MILLISECOND)
BATCH = 50
FAILING = 0.02
"""How many deliveries of the third consumer fail: each of them parks a key."""

OVERSLEEPING = 0.01
"""How many turns stay longer than their lease between delivery and advance."""

FROZEN = 1.5
"""Seconds: longer than a lease, so that others take over what a frozen one held."""

FAULTS = 60
"""How many parts of the deliveries are done between two faults each: so a storm ends, however slow the machine is."""

LONGEST_LULL = 2.0
"""Seconds after which a fault falls all the same."""

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

    `schema` is that of the engine on Postgres, and also holds the tables of the user. Writers of one of the `keys` wait
    for each other: few keys make many meetings, many keys make many messages.
    """

    url: str
    folder: str
    latest: float
    schema: str = ""
    keys: int = 40

    @property
    def store(self) -> str:
        return f"{self.url}?schema={self.schema}" if self.schema else f"{self.url}?durability=process"

    def engine(self) -> Engine:
        return engine_from_url(self.store)

    def connect(self) -> Handle:
        """A connection of the user's own."""
        if self.schema:
            return Handle(psycopg.connect(self.url, options=f"-csearch_path={self.schema}"), "%s")
        handle = Handle(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30), "?")
        handle.run("PRAGMA synchronous = normal")  # processes die here, machines do not
        return handle


class Handle:
    """A connection of a driver, with one style of placeholders."""

    def __init__(self, raw: Any, mark: str) -> None:
        self.raw = raw
        self._mark = mark

    def run(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self.raw.execute(text.replace("?", self._mark), values)
        return cursor.fetchall() if cursor.description else []

    def insert(self, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Insert rows by one statement: most of a storm's time is that of round trips."""
        row = f"({', '.join('?' * len(rows[0]))})"
        self.run(f"INSERT INTO {into} VALUES {', '.join([row] * len(rows))}", *itertools.chain(*rows))

    def raised(self, keys: Iterable[str]) -> list[tuple[str, int]]:
        """Raise the counters of keys, of some more than once; the values that they had on the way, key by key."""
        times = Counter(keys)
        ordered = sorted(times)  # so that writers do not deadlock
        marks = ", ".join("?" * len(ordered))
        if self._mark == "%s":
            self.run(f"SELECT 1 FROM counters WHERE key IN ({marks}) ORDER BY key FOR UPDATE", *ordered)
        found = []
        for n in sorted(set(times.values())):
            some = [key for key in ordered if times[key] == n]
            text = f"UPDATE counters SET value = value + {n} WHERE key IN ({', '.join('?' * len(some))})"
            for key, last in self.run(f"{text} RETURNING key, value", *some):
                found += [(key, value) for value in range(last - n + 1, last + 1)]
        return found


# --- members --------------------------------------------------------------------------------------------------------


async def write(site: Site, engine: Engine, quota: int, seed: int) -> None:
    """Commit so many messages. The engine is closed: in transactions of the user's own it needs no connection."""
    chance = random.Random(seed)
    mint = Mint(lambda: time.time_ns() // 1000, os.urandom)
    handle = site.connect()
    done = 0
    while done < quota:
        # The counters are raised first: the transaction begins before it appends, and sometimes long before that.
        keys = [f"k{chance.randrange(site.keys)}" for _ in range(chance.choice((1, 1, 2, 5, 20)))]
        try:
            if site.schema and chance.random() < 0.1:
                handle.run("SELECT pg_current_xact_id()")
                time.sleep(site.latest * chance.random())
            raised = handle.raised(keys)
            made = [entry(ORDERS, key, str(value).encode(), "t", id=mint()) for key, value in raised]
            late = site.latest * chance.random() if chance.random() < 0.05 else 0
            time.sleep(late * chance.random())
            handle.insert("sent", [(one.id.hex(),) for one in made])
            for part in (made,) if chance.random() < 0.8 else [made[:1], made[1:]]:
                if chance.random() < 0.1:
                    handle.run("SAVEPOINT mine")
                    undone = entry(ORDERS, keys[0], b"0", "t", id=mint())
                    await outbox_of(engine).append(ORDERS, [undone], tx=handle.raw)
                    handle.run("ROLLBACK TO mine")  # the savepoint stays, and what follows is inside it
                await outbox_of(engine).append(ORDERS, part, tx=handle.raw)
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
                await asyncio.sleep(0.02 if self.site.schema else 0.01)  # looks cost a server more

    async def renew(self) -> None:
        if time.monotonic() - self.renewed < 0.2:
            return
        self.renewed = time.monotonic()
        if not (await self.engine.jobs.renew(self.worker, [], lease=LEASE)).known:
            self.worker += "+"
            await self.engine.jobs.renew(self.worker, [], lease=LEASE, first=True)

    async def publish(self) -> bool:
        """Deliver to the consumer that writes files; sometimes go on with the same partition."""
        request = LeaseRequest("orders", "publish", self.worker, BATCH, TERMS)
        lease: Any = await self.outbox.lease(request)
        worked = isinstance(lease, Lease)
        while isinstance(lease, Lease):
            turn = lease.cursor.token
            os.write(self.log, b"".join(_line(*one, turn) for one in map(_delivered, lease.messages)))
            if self.chance.random() < OVERSLEEPING:
                time.sleep(2 * FROZEN)
            elif self.chance.random() < 0.2:
                await asyncio.sleep(0.05 * self.chance.random())
            found = await self.outbox.advance(
                conclude_batch(lease, Delivered(), 0), request=request if self.chance.random() < 0.5 else None
            )
            os.write(self.log, f"{'applied' if found.applied else 'refused'} {turn}\n".encode())
            lease = found.lease
        return worked

    async def project(self, handle: Handle) -> bool:
        """Deliver to the consumer that writes its effects in the transaction that advances."""
        lease = await self.outbox.lease(LeaseRequest("orders", "project", self.worker, BATCH, TERMS))
        if not isinstance(lease, Lease):
            return False
        handle.insert("effects (key, value)", [(one.key, int(one.payload or b"")) for one in lease.messages])
        found = await self.outbox.advance(conclude_batch(lease, Delivered(), 0), tx=handle.raw)
        handle.raw.commit() if found.applied else handle.raw.rollback()
        return True


def _delivered(one: Message) -> tuple[str, bytes | None, str, int, int]:
    return one.key, one.payload, one.id.hex(), one.partition, one.number


def _line(key: str, payload: bytes | None, id_: str, partition: int, number: int, turn: int) -> bytes:
    """One delivery, as `Line` reads it."""
    assert payload is not None
    return f"{time.monotonic_ns()} {key} {payload.decode()} {id_} {partition} {number} {turn}\n".encode()


async def serve(site: Site, name: str) -> None:
    """Deliver in a worker's lanes, for ever; release the keys that were parked."""
    jobs = Stoker(site.store, timeline=False)
    face: Face[int] = Face(jobs, stream=ORDERS.name, partitions=ORDERS.partitions)
    chance = random.Random()
    log = os.open(Path(site.folder) / f"{name}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    pace = Pace(batch=BATCH, idle=0.05, retry_base=0.01, retry_max=0.05)

    @face.deliver(name="serve", pace=pace, lease=LEASE / SECOND, headroom=0.1, attempts=1, then="park")
    async def take(message: Delivery[int]) -> None:
        if chance.random() < FAILING:
            raise RuntimeError("by chance")
        id_ = message.id.replace("-", "")
        os.write(log, _line(message.key, message.payload, id_, message.partition, message.number, 0))

    async with jobs, Worker(jobs, {}, lease=LEASE / SECOND, poll=0.05):
        while True:
            with suppress(StokerError):  # another one may have released it, and it is delivered already
                page = await face.letters(consumer="serve", status=LetterStatus.PARKED)
                for key in {one.key for one in page.letters}:
                    await face.release(key, consumer="serve")
            await asyncio.sleep(0.1)


# --- the storm ------------------------------------------------------------------------------------------------------


def storm(
    url: str,
    folder: str,
    messages: int,
    seed: int,
    latest: float = 0.04,
    schema: str = "",
    writer_count: int = 4,
    lull: float = LONGEST_LULL,
    faults: int = FAULTS,
    bug: str = "",
    freezing: float = 0.2,
    keys: int = 40,
) -> dict[str, int]:
    """Write and deliver so many messages; returns how many members were killed and frozen.

    A fault comes when another part of the work is done, or after a `lull` of so many seconds. `bug`: one that is
    planted first; the storm ends when the judge has found it out. `freezing`: how many of the faults freeze.
    """
    site = Site(url, folder, latest, schema, keys)
    chance = random.Random(seed)
    seeded_streams.plant(bug)
    engine = asyncio.run(prepare(site))
    seeded_streams.plant_in_server(bug, site)
    share = messages // writer_count
    writers = [_writer(site, engine, share, chance.getrandbits(32)) for _ in range(writer_count)]
    names = ["c0", "c1", "c2", "s0", "s1"]
    # A planted bug may break a member as well: it begins anew, so that the judge sees what the bug does to others.
    works = [partial(_persist, site, name, Exception if bug else EngineBusy) for name in names]
    members = Members(works, chance, freezing=freezing, frozen_for=FROZEN)
    while bool(writers) or (missing := messages - sent(site)) > 0 or asyncio.run(left(site)):
        if bug and found_out(site, [*members.awake, *writers]):
            break
        if not writers and missing > 0:
            few = min(writer_count, missing // 100 + 1)  # for those that were killed
            writers = [_writer(site, engine, missing // few + 1, chance.getrandbits(32)) for _ in range(few)]
        _await_part(site, 3 * messages // faults, lull)
        writers = [pid for pid in writers if not os.waitpid(pid, os.WNOHANG)[0]]
        members.check()
        if not members.fault():
            continue
        for pid in writers[: max(writer_count // 16, 1)] if chance.random() < 0.4 else ():
            kill(pid)
            writers.remove(pid)
            members.tally["writers killed"] += 1
    members.end()  # frozen as they are: what they wrote now would not be what was found out
    for pid in writers:
        kill(pid)
    return dict(members.tally)


def _await_part(site: Site, part: int, lull: float) -> None:
    """Wait until so many more deliveries are done, at most so many seconds."""
    end, handle = time.monotonic() + lull, site.connect()
    positions = f"SELECT coalesce(sum(position), 0) FROM {'cursor' if site.schema else 'stoker_cursors'}"
    [(before,)] = handle.run(positions)
    while time.monotonic() < end and handle.run(positions)[0][0] < before + part:
        handle.raw.rollback()
        time.sleep(0.03)
    handle.raw.close()


def found_out(site: Site, awake: Sequence[int]) -> bool:
    """Whether the judge has seen an order or a repetition that must not be; what is missing may come yet.

    All stand still meanwhile: what a consumer wrote behind the judge's back would seem to be left out.
    """
    freeze(*awake)
    handle = site.connect()
    _, complaints = judge(Path(site.folder), handle.run)
    handle.raw.close()
    found = any(" came after " in one or " came again " in one for one in complaints)
    for pid in () if found else awake:
        os.kill(pid, signal.SIGCONT)
    return found


async def prepare(site: Site) -> Engine:
    """Make the stream and the tables of the user; returns an engine that was opened once, and so knows its server."""
    engine = site.engine()
    await engine.open()
    await outbox_of(engine).register(ORDERS, [Consumer("publish"), Consumer("project"), Consumer("serve")])
    await engine.close()
    handle = site.connect()
    for statement in TABLES:
        handle.run(statement.format(number="bigint GENERATED ALWAYS AS IDENTITY" if site.schema else "INTEGER"))
    for n in range(site.keys):
        handle.run("INSERT INTO counters VALUES (?, 0)", f"k{n}")
    handle.raw.commit()
    handle.raw.close()
    return engine


def sent(site: Site) -> int:
    """How many messages were committed."""
    handle = site.connect()
    [(count,)] = handle.run("SELECT count(*) FROM sent")
    handle.raw.close()
    return int(count)


async def left(site: Site) -> int:
    """How many messages are to be delivered yet, and how many keys are parked."""
    engine = site.engine()
    try:
        await engine.open()
        [state] = await outbox_of(engine).streams(["orders"])
    except EngineBusy:
        return 1  # a frozen member holds the only lock
    finally:
        await engine.close()
    return sum(one.waiting + one.cursor.parked for one in state.cursors)


def _writer(site: Site, engine: Engine, quota: int, seed: int) -> int:
    return forked(lambda: asyncio.run(write(site, engine, quota, seed)))


async def _persist(site: Site, name: str, trouble: type[Exception]) -> None:
    """Live, for ever; begin anew after trouble, as when a frozen one has held the lock for too long."""
    while True:
        with suppress(trouble):
            await (serve(site, name) if name.startswith("s") else Member(site, name).live())


# --- the judgement --------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One delivery, as its consumer wrote it."""

    at: int
    key: str
    value: int
    id: str
    partition: int
    number: int
    turn: int


def judge(folder: Path, ask: Callable[[str], list[tuple[Any, ...]]]) -> tuple[dict[str, int], list[str]]:
    """Compare what was sent with what was delivered; returns figures and complaints."""
    lines, applied, refused = _lines(folder, "c")
    served, _, _ = _lines(folder, "s")
    sent = {str(row[0]) for row in ask("SELECT id FROM sent")}
    effects = [(str(key), int(value)) for key, value in ask("SELECT key, value FROM effects ORDER BY n")]
    complaints = _in_order(effects, "effect")
    for found, what in ((lines, "delivery"), (served, "delivery in lanes")):
        complaints += _in_order([(one.key, one.value) for one in _first(found)], what)
        delivered = {one.id for one in found}
        complaints += [f"{what}: skipped {one}" for one in sent - delivered]
        complaints += [f"{what}: {one} was rolled back" for one in delivered - sent]
    complaints += _came_again(lines, applied)
    if len(effects) != len(sent):
        complaints.append(f"{len(effects)} effects of {len(sent)} messages")
    values = {str(key): int(value) for key, value in ask("SELECT key, value FROM counters") if value}
    if Counter(key for key, _ in effects) != values:
        complaints.append("the effects of a key end before its counter")
    numbers: dict[int, set[int]] = defaultdict(set)
    for one in lines:
        numbers[one.partition].add(one.number)
    complaints += [f"gap in partition {partition}" for partition, found in numbers.items() if len(found) != max(found)]
    again = len(lines) - len({one.id for one in lines})
    figures = {"sent": len(sent), "delivered": len(lines), "again": again, "refused": refused, "served": len(served)}
    return figures, complaints


def _lines(folder: Path, sort: str) -> tuple[list[Line], set[tuple[int, int]], int]:
    """What the consumers of a sort wrote: deliveries by time, partition and turn of applied advances, refused ones."""
    lines: list[Line] = []
    applied: set[tuple[int, int]] = set()
    refused = 0
    for file in folder.glob(f"{sort}[0-9].*"):
        partition = 0
        for text in file.read_bytes().split(b"\n")[:-1]:
            parts = text.decode().split()
            if parts[0] == "applied":
                applied.add((partition, int(parts[1])))
            elif parts[0] == "refused":
                refused += 1
            else:
                at, key, value, id_, part, number, turn = parts
                partition = int(part)
                lines.append(Line(int(at), key, int(value), id_, partition, int(number), int(turn)))
    return sorted(lines), applied, refused


def _first(lines: list[Line]) -> list[Line]:
    """Every message's first delivery."""
    seen: set[str] = set()
    return [one for one in lines if not (one.id in seen or seen.add(one.id))]  # type: ignore[func-returns-value]


def _came_again(lines: list[Line], applied: set[tuple[int, int]]) -> list[str]:
    """Messages of a turn that is stored, in a turn that began later: no turn may have them again."""
    stored = {one.id: one.turn for one in reversed(lines) if (one.partition, one.turn) in applied}
    return [
        f"message {one.number} of partition {one.partition} came again after its turn was stored"
        for one in lines
        if one.turn > stored.get(one.id, one.turn)
    ]


def _in_order(found: list[tuple[str, int]], what: str) -> list[str]:
    last: Counter[str] = Counter()
    complaints = []
    for key, value in found:
        if value != last[key] + 1:
            complaints.append(f"{what} of {key}: {value} came after {last[key]}")
        last[key] = value
    return complaints
