"""A bad network: a TCP proxy before a server of the tests, whose connections can be hurt in every known way.

It runs on a thread and loop of its own, so that tests of any kind can use it. A fault holds until `heal`:

    with Proxy(redis_url) as proxy:
        app = Stoker(proxy.url)
        proxy.blackhole()
        ...
        proxy.heal()

`lose_reply` is the finest of them: the order arrives and is carried out, and only its answer is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypeVar
from urllib.parse import urlsplit

from tests.services.pgwire import Client, Reader
from tests.services.recipes import free_port

T = TypeVar("T")

PATIENCE = 60.0
CHUNK = 65_536


class Talk(Protocol):
    """What the proxy understands of one connection."""

    def orders(self, data: bytes) -> list[bytes]:
        """What the client's bytes ask the server to do."""

    def answered(self, data: bytes) -> bool:
        """Whether the server's bytes since the last order are a whole answer, so that everything is carried out."""


class Plain:
    """Redis, and whatever else answers only when it is done."""

    def orders(self, data: bytes) -> list[bytes]:
        return [data]

    def answered(self, data: bytes) -> bool:
        return True


class Postgres:
    """A statement is its text also when it was prepared long before; it is done when the server is ready again."""

    def __init__(self) -> None:
        self._client = Client()
        self._server: Reader | None = None

    def orders(self, data: bytes) -> list[bytes]:
        return list(self._client.executed(data))

    def answered(self, data: bytes) -> bool:
        # Followed from an order on: nothing is on its way then, and the untyped beginning is over.
        self._server = self._server or Reader(typed=True)
        done = any(message.kind == b"Z" for message in self._server.feed(data))
        if done:
            self._server = None
        return done


@dataclass
class Loss:
    """An answer that shall not arrive: to which order, how much of it may pass, and what happens to the connection."""

    order: bytes
    passing: int
    then: Literal["reset", "silence", "close"]
    times: int
    skip: int
    happened: int = 0


class Link:
    """A client and the server, with the proxy between."""

    def __init__(self, talk: Talk, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.talk = talk
        self.client = (reader, writer)
        self.server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.losing: Loss | None = None
        self.silent = False

    def reset(self) -> None:
        """End both sides as a rebooted router would: with RST, nothing unsent is sent."""
        for _, writer in filter(None, (self.client, self.server)):
            with contextlib.suppress(OSError):
                plug = writer.get_extra_info("socket")
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def close(self) -> None:
        """End both sides in the orderly way."""
        for _, writer in filter(None, (self.client, self.server)):
            writer.close()


class Proxy:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._postgres = parts.scheme.startswith("postgres")
        self._behind = (parts.hostname or "127.0.0.1", parts.port or (5432 if self._postgres else 6379))
        self.port = free_port()
        user = f"{parts.username}@" if parts.username else ""
        self.url = parts._replace(netloc=f"{user}127.0.0.1:{self.port}").geturl()
        self.connections = 0
        """How many clients have come so far."""
        self._links: set[Link] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._dark = False
        self._latency = 0.0
        self._pace: float | None = None
        self._losses: list[Loss] = []

    # --- for tests ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    @property
    def open(self) -> int:
        """How many connections there are now."""
        return len(self._links)

    def heal(self, *, half_open: bool = False) -> None:
        """Everything passes again. Connections that swallowed something are reset, or left half open: silent for good.

        Such a connection cannot be served again, as its streams have holes. New connections are served in any case.
        """
        self._call(self._heal(half_open=half_open))

    def reset(self) -> None:
        """RST to all connections; new ones are served."""
        self._call(self._reset())

    def refuse(self) -> None:
        """RST to all connections, and the port is closed."""
        self._call(self._refuse())

    def redirect(self, url: str) -> None:
        """RST to all connections, and new ones reach another server, as after a failover."""
        parts = urlsplit(url)
        self._behind = (parts.hostname or "127.0.0.1", parts.port or self._behind[1])
        self.reset()

    def blackhole(self) -> None:
        """Connections stay open, also new ones, but nothing arrives on either side, as after a cut cable."""
        self._call(self._darken())

    def latency(self, seconds: float) -> None:
        """Every piece of data takes so long in each direction."""
        self._latency = seconds

    def trickle(self, rate: float = 1.0) -> None:
        """Answers arrive at so many bytes per second."""
        self._pace = 1 / rate

    def lose_reply(
        self, order: bytes = b"", *, then: Literal["reset", "silence"] = "reset", times: int = 1, skip: int = 0
    ) -> Loss:
        """Let the next order with these bytes be carried out, and its answer be lost; `happened` counts.

        On Postgres an order is the text of an executed statement, on Redis what the client sends. The connection is
        reset, or falls silent for good. The first `skip` such orders are spared.
        """
        return self._plan(Loss(order, 0, then, times, skip))

    def truncate_reply(self, order: bytes = b"", *, keep: int = 1, times: int = 1, skip: int = 0) -> Loss:
        """As `lose_reply`, but the first bytes of the answer arrive before the connection ends."""
        return self._plan(Loss(order, keep, "close", times, skip))

    def wait(self, condition: Callable[[], Any], what: str = "") -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up, f"not within {PATIENCE:g} s: {what or condition}"
            time.sleep(0.005)

    # --- on the proxy's own loop ----------------------------------------------------------------------------------

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def _plan(self, loss: Loss) -> Loss:
        self._losses.append(loss)
        return loss

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._welcome, "127.0.0.1", self.port)

    async def _heal(self, *, half_open: bool) -> None:
        self._latency, self._pace, self._dark = 0.0, None, False
        self._losses.clear()
        for link in list(self._links):
            if link.silent and not half_open:
                link.reset()
        if self._listener is None:
            await self._listen()

    async def _reset(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _refuse(self) -> None:
        if self._listener:
            # asyncio forgets to close a connection that it has accepted when its server closes at that moment: accept
            # no more, let those in whose task waits for its turn, and close the port then.
            for plug in self._listener.sockets:
                self._loop.remove_reader(plug.fileno())
            for _ in range(5):
                await asyncio.sleep(0)
            self._listener.close()
            self._listener = None
        await self._reset()

    async def _darken(self) -> None:
        self._dark = True
        for link in self._links:
            link.silent = True

    async def _close(self) -> None:
        await self._refuse()
        await asyncio.sleep(0.02)  # who was just being let in gets to its own end
        await self._reset()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # sockets are closed a turn after their connections

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(Postgres() if self._postgres else Plain(), reader, writer)
        link.silent = self._dark
        self.connections += 1
        self._links.add(link)
        try:
            while link.silent and await reader.read(CHUNK):
                pass
            if not link.silent:
                link.server = await asyncio.open_connection(*self._behind)
                await self._connect(link, link.server)
        except (OSError, asyncio.CancelledError):
            pass  # either side went away
        finally:
            self._links.discard(link)
            link.close()

    async def _connect(self, link: Link, server: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        forth = asyncio.create_task(self._forth(link, link.client[0], server[1]))
        back = asyncio.create_task(self._back(link, server[0], link.client[1]))
        done, rest = await asyncio.wait({forth, back}, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*done, *rest, return_exceptions=True)

    async def _forth(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            await asyncio.sleep(self._latency)
            if link.silent:
                continue
            for order in link.talk.orders(data):
                link.losing = link.losing or self._fits(order)
            writer.write(data)
            await writer.drain()

    def _fits(self, order: bytes) -> Loss | None:
        for loss in self._losses:
            if loss.order in order:
                if loss.skip:
                    loss.skip -= 1
                    continue
                loss.times -= 1
                if not loss.times:
                    self._losses.remove(loss)
                return loss
        return None

    async def _back(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if loss := link.losing:
                await self._lose(link, loss, data)
                continue
            await asyncio.sleep(self._latency)
            await self._deliver(link, data, writer)

    async def _lose(self, link: Link, loss: Loss, data: bytes) -> None:
        if loss.passing and not link.silent:
            link.client[1].write(data[: loss.passing])
            await link.client[1].drain()
        link.silent = True
        if link.talk.answered(data):
            link.losing = None
            if loss.then != "silence":
                (link.reset if loss.then == "reset" else link.close)()
            loss.happened += 1

    async def _deliver(self, link: Link, data: bytes, writer: asyncio.StreamWriter) -> None:
        while data and not link.silent:
            if self._pace is None:
                piece, data = data, b""
            else:
                piece, data = data[:1], data[1:]
                await asyncio.sleep(self._pace)
            writer.write(piece)
            await writer.drain()
