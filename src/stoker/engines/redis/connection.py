"""Calls the server; the only module that knows the driver.

Replies are raw bytes. Every call has a time limit, so a half-open socket is noticed. A connection is closed after any
error, also after a canceled call, so no call receives the reply of another one. Calls that may safely be repeated are
repeated, with growing jittered pauses, until the connection's patience ends. Only this module turns the driver's errors
into Stoker's; none of them shows a URL. It is longer than other modules because no other may know the driver.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
import redis.exceptions as driver
from hiredis import pack_command
from redis.asyncio import Connection as Socket
from redis.asyncio import ConnectionPool, RedisCluster, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.connection import AbstractConnection, DefaultParser
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from stoker.engines.redis.keys import tag_of
from stoker.engines.redis.scripts import Script
from stoker.model.errors import (
    CorruptRecord,
    EngineBusy,
    EngineClosed,
    EngineError,
    EngineFull,
    EngineReadOnly,
    EngineRefused,
    EngineUnavailable,
    InvalidOption,
)
from stoker.model.health.facts import Transport

Command = Sequence[Any]

log = logging.getLogger("stoker.engines.redis")

__all__ = ["Address", "Connection", "Socket", "blocking", "hang_up", "listening", "read_url"]

IDLE_BEFORE_CHECK = 0.5
MOST_IDLE = 16
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
BLOCKING_MARGIN = 5.0

LARGEST_CALL = 8 << 20
"""Bytes after which a batch is split: while a script stores them, the server does nothing else."""

LEAST_PIECE = 1_000
"""The smallest piece of a reply that extends the call's time limit."""

SLOWEST = 1 << 20
"""Bytes per second of a slow network: a call may take so much longer for what it sends and receives."""

_LOST = (driver.ConnectionError, driver.TimeoutError, OSError, EOFError)
ACKNOWLEDGED = frozenset({"insert", "settle", "commit", "save", "answer"})
"""Scripts that acknowledge a write: their calls are counted, see `lost_writes`."""

_PASSING = (driver.BusyLoadingError, driver.ClusterDownError, driver.TryAgainError, driver.SlotNotCoveredError)


class Address(msgspec.Struct, frozen=True):
    """The server's URL as the driver reads it, and Stoker's own options."""

    url: str
    cluster: bool
    options: dict[str, str]


def read_url(url: str, own: Sequence[str]) -> Address:
    """Split Stoker's options from the driver's; the driver checks its own."""
    parts = urlsplit(url)
    cluster = parts.scheme.lower() == "redis+cluster"
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    options = {name: given.pop(name) for name in own if name in given}
    scheme = "redis" if cluster else parts.scheme.lower()
    plain = urlunsplit(SplitResult(scheme, parts.netloc, parts.path, urlencode(given), ""))
    return Address(plain, cluster, options)


def public_url(address: Address) -> str:
    """The URL without user, password and options."""
    parts = urlsplit(address.url)
    scheme = "redis+cluster" if address.cluster else parts.scheme
    return urlunsplit(SplitResult(scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def translated(error: BaseException) -> EngineError:
    """A driver's error as one of Stoker's."""
    text = str(error)
    if isinstance(error, driver.OutOfMemoryError) or "OOM " in text or "MISCONF" in text:
        return EngineFull(
            f"Redis refuses to store more: {text}. Nothing of this call was stored. Workers go on; enqueue again when "
            f"there is room, or raise maxmemory."
        )
    if isinstance(error, driver.ReadOnlyError | driver.NoPermissionError):
        return EngineReadOnly(f"Redis refuses writes: {text}. Nothing was stored. Is this address a replica?")
    if isinstance(error, driver.AuthenticationError | driver.AuthenticationWrongNumberOfArgsError):
        return EngineRefused("Redis refused the user name or password. Nothing was stored. Check the URL.")
    if isinstance(error, _PASSING) or "LOADING" in text or "MASTERDOWN" in text or "BUSY " in text:
        return EngineBusy(f"Redis is not ready: {text}. Nothing was stored; the call may be repeated.")
    if isinstance(error, TimeoutError | driver.TimeoutError):
        return EngineUnavailable(
            "Redis did not answer within the time limit. A write may or may not have happened; repeating it is safe. "
            "Workers keep trying. Is the server or the network overloaded? The URL's option timeout= allows more."
        )
    if isinstance(error, (*_LOST, driver.RedisClusterException)):
        return EngineUnavailable(
            f"Redis cannot be reached: {text.rstrip('.') or type(error).__name__}. A write may or may not have "
            f"happened; repeating it is safe. Workers keep trying."
        )
    if "WRONGTYPE" in text:
        return CorruptRecord(f"a key of the store holds another type than Stoker wrote there: {text}")
    return EngineError(f"Redis refused a call: {text}")


class Parser(DefaultParser):  # type: ignore[misc, valid-type]  # the driver's choice, with hiredis
    """Reads replies; each piece of a long one extends the call's time limit."""

    clock: asyncio.Timeout | None = None

    async def read_from_socket(self) -> bool:
        data = await self._stream.read(self._read_size)
        if not data:
            raise driver.ConnectionError("the server closed the connection")
        self._reader.feed(data)
        if self.clock is not None and len(data) >= LEAST_PIECE:
            until = self.clock.when()
            self.clock.reschedule(None if until is None else until + len(data) / SLOWEST)
        return True


class Guarded(AbstractConnection):
    """A connection that refuses to send once it is lost.

    The driver sends with `writelines`. On some releases of Python 3.12 and 3.13 that fails with an AttributeError on a
    lost connection, or leaves a dead file descriptor in the event loop, which the next connection may get.
    """

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        if self._writer is not None and self._writer.is_closing():
            raise driver.ConnectionError("the connection was lost")
        await super().send_packed_command(command, check_health)


class GuardedSocket(Guarded, Socket):
    """Over TCP."""


class GuardedTlsSocket(Guarded, SSLConnection):
    """Over TLS."""


class GuardedUnixSocket(Guarded, UnixDomainSocketConnection):
    """Over a socket of the file system."""


_GUARDED = {
    Socket: GuardedSocket,
    SSLConnection: GuardedTlsSocket,
    UnixDomainSocketConnection: GuardedUnixSocket,
}


class ClusterSocket(GuardedSocket):
    """A connection of a cluster, whose time limit grows with what a command sends and its reply brings.

    The driver routes commands, follows redirections and replaces dead nodes by itself. So the limit, one for a command
    and its reply, is here, and raises the driver's own error.
    """

    def __init__(self, *args: Any, socket_timeout: float, **options: Any) -> None:
        super().__init__(*args, socket_timeout=None, parser_class=Parser, **options)
        self._limit = socket_timeout
        self._deadline = 0.0

    async def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        size = len(command) if isinstance(command, bytes | str) else sum(map(len, command))
        deadline = time.monotonic() + self._limit + size / SLOWEST
        await self._until(deadline, super().send_packed_command(command, check_health))
        self._deadline = deadline

    async def read_response(self, disable_decoding: bool = False, timeout: float | None = None, **options: Any) -> Any:
        if timeout is not None:
            return await super().read_response(disable_decoding, timeout, **options)
        return await self._until(self._deadline, super().read_response(disable_decoding, math.inf, **options))

    async def _until(self, deadline: float, work: Awaitable[Any]) -> Any:
        parser = cast("Parser", self._parser)
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0)) as parser.clock:
                return await work
        except TimeoutError:
            raise driver.TimeoutError("the server did not answer within the time limit") from None
        finally:
            parser.clock = None


class ClusterTlsSocket(ClusterSocket, SSLConnection):
    """The same over TLS."""


def _cluster(url: str, timeout: float) -> RedisCluster:
    """The driver's client of a cluster, with connections of ours: it has no option for their class."""
    cluster = RedisCluster.from_url(
        url,
        protocol=2,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        socket_keepalive=True,
        client_name="stoker",
    )
    options = cluster.nodes_manager.connection_kwargs
    tls = options["connection_class"] is SSLConnection
    options["connection_class"] = ClusterTlsSocket if tls else ClusterSocket
    for node in cluster.nodes_manager.startup_nodes.values():
        node.connection_class = options["connection_class"]
    return cluster


class Node:
    """One server and its connections; a call or a pipeline has one for itself."""

    def __init__(self, url: str, timeout: float) -> None:
        self._timeout = timeout
        try:
            self._pool = ConnectionPool.from_url(
                url,
                protocol=2,
                # The driver's own limit costs a Task per call, and before Python 3.12 it may swallow a cancellation.
                socket_timeout=None,
                socket_connect_timeout=timeout,
                socket_keepalive=True,
                retry=Retry(NoBackoff(), 0),
                client_name="stoker",
                parser_class=Parser,
            )
        except (ValueError, TypeError) as error:
            raise InvalidOption("the Redis URL", "…", f"cannot be read: {error}") from None
        self._pool.connection_class = _GUARDED[self._pool.connection_class]
        self._idle: list[tuple[float, Socket]] = []

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands at once and read their replies; an error reply is returned, not raised."""
        socket = await self._take()
        data = _packed(commands)
        try:
            async with asyncio.timeout(self._timeout + len(data) / SLOWEST) as clock:
                socket._parser.clock = clock  # type: ignore[attr-defined]  # noqa: SLF001 - it is ours
                await socket.send_packed_command(data, check_health=False)
                replies = [await _reply(socket) for _ in commands]
            socket._parser.clock = None  # type: ignore[attr-defined]  # noqa: SLF001
        except BaseException:
            await _drop(socket)
            raise
        self._give_back(socket)
        return replies

    async def dedicated(self) -> Socket:
        """A new connection for calls that block. The caller closes it."""
        socket: Socket = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(self._timeout):
                await socket.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await _drop(socket)
            raise
        return socket

    async def close(self) -> None:
        while self._idle:
            await _drop(self._idle.pop()[1])

    async def _take(self) -> Socket:
        while self._idle:
            since, socket = self._idle.pop()
            if time.monotonic() - since < IDLE_BEFORE_CHECK or not await _stale(socket):
                return socket
            await _drop(socket)
        return await self.dedicated()

    def _give_back(self, socket: Socket) -> None:
        if len(self._idle) < MOST_IDLE:
            self._idle.append((time.monotonic(), socket))
        else:
            socket._close()  # type: ignore[no-untyped-call]  # noqa: SLF001 - the driver offers no other without waiting


def _packed(commands: Sequence[Command]) -> bytes:
    """Commands in the server's protocol; hiredis packs them in a tenth of the driver's time."""
    return b"".join(pack_command(tuple(command)) for command in commands)


async def _reply(socket: Socket) -> Any:
    try:
        return await socket.read_response()
    except driver.ResponseError as error:
        return error


async def _stale(socket: Socket) -> bool:
    """Did the server close it, or is a reply unread?"""
    try:
        return bool(await socket.can_read())
    except _LOST:
        return True


async def _drop(socket: Socket) -> None:
    try:
        await socket.disconnect(nowait=True)
    except (driver.RedisError, OSError):
        pass


class Connection:
    """The engine's connections to one server or to a cluster."""

    def __init__(self, address: Address, *, timeout: float, patience: float) -> None:
        self._address = address
        self._timeout = timeout
        self._patience = patience
        self._node: Node | None = None
        self._cluster: RedisCluster | None = None
        self._opened = False
        self.on_count: Callable[[str, int], None] | None = None
        self.calls = 0

    @property
    def cluster(self) -> bool:
        return self._address.cluster

    @property
    def opened(self) -> bool:
        return self._opened

    def transport(self) -> Transport:
        """How what is sent to the server is protected, as its URL says and the driver does."""
        parts = urlsplit(self._address.url)
        given = dict(parse_qsl(parts.query))
        encrypted = parts.scheme == "rediss"
        checked = given.get("ssl_cert_reqs", "required") == "required"
        named = given.get("ssl_check_hostname", "true").lower() not in {"0", "f", "false", "n", "no"}
        remedy = "Use rediss:// and leave ssl_cert_reqs and ssl_check_hostname as they are"
        if self._address.cluster:
            remedy = "Keep the cluster in a network of its own: Stoker reaches a cluster without TLS"
        host = "" if parts.scheme == "unix" else parts.hostname or "localhost"
        return Transport(host=host, encrypted=encrypted, verified=encrypted and checked and named, remedy=remedy)

    async def open(self) -> None:
        """Prepare; the first call connects."""
        if self._opened:
            return
        if self._address.cluster:
            self._cluster = _cluster(self._address.url, self._timeout)
        else:
            self._node = Node(self._address.url, self._timeout)
        self._opened = True

    async def close(self) -> None:
        self._opened = False
        if self._node is not None:
            await self._node.close()
        if self._cluster is not None:
            await self._cluster.aclose()
        self._node = self._cluster = None

    def inside(self) -> None:
        """Raise `EngineClosed` before open and after close."""
        if not self._opened:
            raise EngineClosed("the Redis engine is not open. Nothing was stored. Open it first: async with jobs: …")

    # --- calls --------------------------------------------------------------------------------------------------

    async def call(self, *command: Any, repeat: bool = True) -> Any:
        """One command."""
        [reply] = await self.pipeline([command], repeat=repeat)
        return reply

    async def pipeline(self, commands: Sequence[Command], *, repeat: bool = True) -> list[Any]:
        """Several commands at once, those on one key in their order; raises the first error reply."""
        if not commands:
            return []  # nothing must be sent: since Python 3.12 a transport never gets rid of an empty write
        replies = await self._ask(commands, repeat=repeat)
        for reply in replies:
            if isinstance(reply, Exception):
                raise translated(reply) from reply
        return replies

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Any], *, repeat: bool = True) -> Any:
        """One script, whether or not the server has it in its cache."""
        counted = self.on_count is not None and script.name in ACKNOWLEDGED
        if counted:
            keys = (*keys, f"{tag_of(keys[0])}:writes")
        tail = (len(keys), *keys, *args)
        [reply] = await self._ask([("EVALSHA", script.sha, *tail)], repeat=repeat)
        if isinstance(reply, driver.NoScriptError):
            [reply] = await self._ask([("EVAL", script.text, *tail)], repeat=repeat)
        if isinstance(reply, Exception):
            raise translated(reply) from reply
        if isinstance(reply, list) and reply and reply[0] == b"!":
            for text in reply[1]:
                log.warning("%s", text.decode(errors="backslashreplace"))
            reply = reply[2]
        if counted and b":" in reply[0]:
            reply[0], _, count = reply[0].partition(b":")
            assert self.on_count is not None
            self.on_count(tag_of(keys[0]), int(count))
        return reply

    async def each_node(self, *command: Any) -> dict[str, Any]:
        """One command on every server that takes writes; replies by the server's name."""
        self.inside()
        if self._cluster is None:
            parts = urlsplit(self._address.url)
            return {f"{parts.hostname or 'localhost'}:{parts.port or 6379}": await self.call(*command)}
        try:
            await self._cluster.initialize()
            nodes = self._cluster.get_primaries()
            replies = await asyncio.gather(*(node.execute_command(*command) for node in nodes))
        except (*_LOST, driver.RedisError, driver.RedisClusterException) as error:
            raise translated(error) from error
        return {node.name: reply for node, reply in zip(nodes, replies, strict=True)}

    async def dedicated(self, key: str) -> Socket:
        """A new connection to the server that has the key. The caller closes it."""
        self.inside()
        try:
            if self._cluster is None:
                assert self._node is not None
                return await self._node.dedicated()
            await self._cluster.initialize()
            node = self._cluster.get_node_from_key(key)
            if node is None:
                raise EngineUnavailable("no node of the Redis Cluster serves this key now; the call may be repeated")
            socket = GuardedSocket(host=node.host, port=node.port, **_plain(node.connection_kwargs))
            await socket.connect()  # type: ignore[no-untyped-call]
        except _LOST as error:
            raise translated(error) from error
        return socket

    async def _ask(self, commands: Sequence[Command], *, repeat: bool) -> list[Any]:
        """Send, and send again while that may succeed."""
        self.inside()
        self.calls += 1
        deadline = time.monotonic() + self._patience
        pause = FIRST_PAUSE
        while True:
            try:
                replies = await self._once(commands)
            except (*_LOST, driver.RedisClusterException) as error:
                if not repeat or time.monotonic() >= deadline:
                    raise translated(error) from error
            else:
                passing = any(isinstance(reply, _PASSING) for reply in replies)
                if not passing or not repeat or time.monotonic() >= deadline:
                    return replies
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, LONGEST_PAUSE)
            self.inside()

    async def _once(self, commands: Sequence[Command]) -> list[Any]:
        if self._node is not None:
            return await self._node.ask(commands)
        assert self._cluster is not None
        replies: list[Any] = [None] * len(commands)
        groups: dict[Any, list[int]] = {}
        for place, command in enumerate(commands):
            groups.setdefault(command[1] if len(command) > 1 else None, []).append(place)

        async def in_order(places: list[int]) -> None:
            for place in places:
                replies[place] = await self._routed(commands[place])

        await asyncio.gather(*(in_order(places) for places in groups.values()))
        return replies

    async def _routed(self, command: Command) -> Any:
        assert self._cluster is not None
        try:
            return await self._cluster.execute_command(*command)
        except driver.ResponseError as error:
            return error
        except AttributeError as error:
            # When a slot moves, the driver closes connections that other calls are using; those calls then meet a
            # writer that is None. As with every lost connection, the command may or may not have been sent.
            if error.obj is not None:
                raise
            raise driver.ConnectionError("the connection was closed while it was in use") from error


def _plain(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The options that a dedicated connection takes over from a cluster node's."""
    wanted = ("username", "password", "protocol", "socket_timeout", "socket_connect_timeout", "socket_keepalive")
    return {name: kwargs[name] for name in wanted if name in kwargs}


async def blocking(socket: Socket, command: Command, seconds: float) -> Any:
    """A command to which the server replies after at most `seconds`."""
    try:
        async with asyncio.timeout(seconds + BLOCKING_MARGIN):
            await socket.send_packed_command(pack_command(tuple(command)), check_health=False)
            return await socket.read_response(timeout=float("inf"))
    except driver.ResponseError as error:
        raise translated(error) from error
    except (*_LOST, TimeoutError) as error:
        raise translated(driver.ConnectionError(str(error))) from error


async def listening(socket: Socket, seconds: float) -> Any:
    """The next message on a connection that subscribed; None when none came within `seconds`."""
    try:
        return await socket.read_response(timeout=seconds)
    except driver.ResponseError as error:
        raise translated(error) from error
    except _LOST as error:
        raise translated(error) from error


async def hang_up(socket: Socket) -> None:
    """Close a dedicated connection."""
    await _drop(socket)


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task that uses the driver until it is done: the driver may take a cancellation for its own time-out."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.5)
