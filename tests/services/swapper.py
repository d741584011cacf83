"""A transaction pooler of our own, meaner than real ones: no two transactions in a row meet the same session.

It behaves like PgBouncer in transaction mode as far as a client can tell. Prepared statements, settings, notifications
and whatever else lives in a session stay with the session, for the client that gets it next. A startup parameter that a
pooler could not keep is refused. A client that leaves inside a transaction takes the session along.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import struct
import sys
from collections import defaultdict, deque
from dataclasses import dataclass, field

from tests.services.pgwire import CANCEL, GSS, SSL, Message, Reader, strings

KEPT = {"client_encoding", "datestyle", "timezone", "standard_conforming_strings", "application_name"}
REQUESTS = {b"Q", b"S", b"F"}
"""Messages that are answered by ReadyForQuery."""

Who = tuple[str, str]


class Wire:
    """One connection, message by message."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, typed: bool) -> None:
        self._in = reader
        self.out = writer
        self._messages = Reader(typed=typed)
        self._read: deque[Message] = deque()

    async def receive(self) -> Message | None:
        while not self._read:
            try:
                data = await self._in.read(65_536)
            except OSError:
                return None
            if not data:
                return None
            self._read.extend(self._messages.feed(data))
        return self._read.popleft()

    async def send(self, *messages: Message) -> None:
        self.out.write(b"".join(message.raw for message in messages))
        await self.out.drain()


@dataclass
class Session:
    """A connection to the server, and the client that has it now."""

    wire: Wire
    greeting: list[Message] = field(default_factory=list)
    key: bytes = b""
    visit: RequestContext | None = None
    reading: asyncio.Task[None] | None = None


@dataclass
class RequestContext:
    """A client, and the session it has for the transaction it is in."""

    wire: Wire
    who: Who
    key: bytes
    session: Session | None = None
    waiting: int = 0


class Swapper:
    def __init__(self, behind: int, size: int) -> None:
        self._behind = behind
        self._size = size
        self._free: dict[Who, deque[Session]] = defaultdict(deque)
        self._count: dict[Who, int] = defaultdict(int)
        self._changed = asyncio.Condition()
        self._visits: dict[bytes, RequestContext] = {}
        self._numbers = itertools.count(1)

    # --- clients --------------------------------------------------------------------------------------------------

    async def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(reader, writer, typed=False)
        try:
            await self._serve(wire)
        except Refused as refusal:
            with contextlib.suppress(OSError):
                await wire.send(refusal.message)
        except OSError:
            pass  # a client that left needs no answer
        finally:
            writer.close()

    async def _serve(self, wire: Wire) -> None:
        hello = await wire.receive()
        while hello and hello.code in {SSL, GSS}:
            wire.out.write(b"N")
            hello = await wire.receive()
        if hello is None:
            return
        if hello.code == CANCEL:
            await self._cancel(hello.body[4:])
            return
        words = strings(hello.body[4:])
        given = {name: value for name, value in zip(words[::2], words[1::2], strict=False) if name}
        user = given.pop("user")
        database = given.pop("database", user)
        if strange := sorted(name for name in given if name.lower() not in KEPT):
            raise Refused(complaint("08P01", f"unsupported startup parameter: {strange[0]}"))
        visit = RequestContext(wire, (user, database), struct.pack("!II", os.getpid(), next(self._numbers)))
        await self._greet(visit)
        await self._attend(visit)

    async def _greet(self, visit: RequestContext) -> None:
        """As the server would, in its own words, but with a key to cancel by that is ours."""
        session = await self._take(visit.who)
        await self._give_back(visit.who, session)
        await visit.wire.send(*session.greeting, Message(b"K", visit.key), Message(b"Z", b"I"))

    async def _attend(self, visit: RequestContext) -> None:
        self._visits[visit.key] = visit
        try:
            while (message := await visit.wire.receive()) and message.kind != b"X":
                if visit.session is None:
                    visit.session = await self._take(visit.who)
                    visit.session.visit = visit
                if message.kind in REQUESTS:
                    visit.waiting += 1
                await visit.session.wire.send(message)
        finally:
            del self._visits[visit.key]
            if visit.session:
                visit.session.wire.out.close()

    async def _cancel(self, key: bytes) -> None:
        visit = self._visits.get(key)
        if visit and visit.session:
            _, writer = await asyncio.open_connection("127.0.0.1", self._behind)
            writer.write(Message(b"", struct.pack("!I", CANCEL) + visit.session.key).raw)
            await writer.drain()
            writer.close()

    # --- sessions -------------------------------------------------------------------------------------------------

    async def _take(self, who: Who) -> Session:
        """A new one while there are few, else the one that has rested longest."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._free[who] or self._count[who] < self._size)
            if self._count[who] >= self._size:
                return self._free[who].popleft()
            self._count[who] += 1
        try:
            session = await self._open(who)
        except BaseException:
            await self._forget(who)
            raise
        session.reading = asyncio.create_task(self._listen(who, session))
        return session

    async def _open(self, who: Who) -> Session:
        session = Session(Wire(*await asyncio.open_connection("127.0.0.1", self._behind), typed=True))
        words = ("user", who[0], "database", who[1])
        body = struct.pack("!I", 196608) + b"".join(word.encode() + b"\0" for word in words) + b"\0"
        await session.wire.send(Message(b"", body))
        while message := await session.wire.receive():
            if message.kind == b"Z":
                return session
            if message.kind == b"E":
                raise Refused(message)
            if message.kind == b"K":
                session.key = message.body
            else:
                session.greeting.append(message)
        raise Refused(complaint("08006", "the server closed the connection"))

    async def _listen(self, who: Who, session: Session) -> None:
        """Pass answers to the client that has the session, which ends with the transaction."""
        while message := await session.wire.receive():
            visit = session.visit
            if visit is None:
                continue  # a notification for the client that had it before, or a disconnect
            visit.waiting -= message.kind == b"Z"
            if message == Message(b"Z", b"I") and not visit.waiting:
                visit.session = session.visit = None
                await self._give_back(who, session)
            with contextlib.suppress(OSError):
                await visit.wire.send(message)
        session.wire.out.close()
        if session.visit:
            session.visit.wire.out.close()
        await self._forget(who, session)

    async def _give_back(self, who: Who, session: Session) -> None:
        async with self._changed:
            self._free[who].append(session)
            self._changed.notify_all()

    async def _forget(self, who: Who, session: Session | None = None) -> None:
        async with self._changed:
            if session and session in self._free[who]:
                self._free[who].remove(session)
            self._count[who] -= 1
            self._changed.notify_all()


class Refused(Exception):
    """The server did not let us in; its own words are passed on."""

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self.message = message


def complaint(code: str, text: str) -> Message:
    fields = (b"SFATAL", b"VFATAL", b"C" + code.encode(), b"M" + text.encode())
    return Message(b"E", b"\0".join(fields) + b"\0\0")


async def forever(port: int, behind: int, size: int) -> None:
    async with await asyncio.start_server(Swapper(behind, size).welcome, "127.0.0.1", port) as server:
        await server.serve_forever()


def main() -> None:
    port, behind, size = map(int, sys.argv[1:])
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(forever(port, behind, size))
