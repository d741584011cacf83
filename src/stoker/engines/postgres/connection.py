"""One connection to Postgres, and the only place that knows asyncpg.

Behind a pooler in transaction mode two statements of ours may run in two sessions: then nothing is prepared under a
name, and no session gets a setting. Whether there is a pooler shows when the session that answers is not the one
that was connected to; the names of prepared statements are random, so that one that was missed is found by an error
and never by the answer to another caller's statement.
"""

from __future__ import annotations

import asyncio
import os
import select
import ssl
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import asyncpg
from asyncpg.exceptions import (
    DeadlockDetectedError,
    InterfaceError,
    InternalClientError,
    InvalidCachedStatementError,
    InvalidSQLStatementNameError,
    PostgresError,
    ProtocolViolationError,
    SerializationError,
    UniqueViolationError,
)

from stoker.engines.postgres.errors import GONE, STOPPED, sqlstate, translated
from stoker.engines.sql.exchanges import Row
from stoker.engines.sql.user_handles.drivers import touched
from stoker.model.errors import EngineError, EngineUnavailable
from stoker.model.health.facts import Transport
from stoker.model.time import Instant

Pooler: TypeAlias = Literal["auto", "none", "transaction"]
T = TypeVar("T")

DriverError = (PostgresError, InterfaceError, InternalClientError, OSError)
"""What asyncpg raises; a lost socket is an OSError, a killed one an InternalClientError."""

LEVEL = "read committed"
BEGIN = f"BEGIN ISOLATION LEVEL {LEVEL}"
"""How our transactions begin, whatever the database's default is: the fences of our statements rest on this level, and
a stricter one would only make the server give up transactions that do each other no harm."""

COMMON = {
    "jit": "off",
    "tcp_user_timeout": "10000",
    "client_min_messages": "warning",
    "default_transaction_isolation": LEVEL,
}
FOR_JOBS = {
    **COMMON,
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
}
"""Statements about jobs are planned once, perhaps while every table is empty: they must not learn from that. They walk
along an index in its order; a bitmap would read and sort every dead entry that a held snapshot keeps."""

FOR_ADMIN = {**COMMON, "enable_seqscan": "off"}
"""Questions of people are planned for what they ask, and never for a walk over everything."""


class Retriable(Exception):
    """The server aborted a transaction for a deadlock or conflict: nothing happened; a retry may work."""


class Conflict(Exception):
    """A row with this key is there already; the statement changed nothing."""


class _Named(NamedTuple):
    name: str = "known"


ARRAYS = {1000: (16, "bool"), 1005: (21, "int2"), 1007: (23, "int4"), 1016: (20, "int8"), 1022: (701, "float8")}
ARRAYS |= {1001: (17, "bytea"), 2951: (2950, "uuid")}


def _array(oid: int) -> dict[str, Any]:
    """What the server would say about an array type of its own; its numbers never change."""
    element, name = ARRAYS[oid]
    return {
        **dict.fromkeys(("basetype", "range_subtype", "attrtypoids", "attrnames", "basetype_name")),
        "oid": oid,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "elemtype": element,
        "elemdelim": b",",
        "depth": 0,
        "elemtype_name": name,
        "range_subtype_name": None,
    }


class _Link(asyncpg.Connection):  # type: ignore[misc]
    """Names its prepared statements like no other session, and does not ask for types that never change.

    asyncpg asks each new connection about arrays, with a query that costs more than all of ours together and changes
    a setting of the session.
    """

    async def _introspect_types(self, typeoids: Any, timeout: float | None) -> Any:
        if all(oid in ARRAYS for oid in typeoids):
            return [_array(oid) for oid in typeoids], _Named()
        return await super()._introspect_types(typeoids, timeout)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._prefix = os.urandom(6).hex()
        self._count = 0

    def _get_unique_id(self, prefix: str) -> str:
        self._count += 1
        return f"stoker_{prefix}_{self._prefix}_{self._count}"

    def _cancel_current_command(self, waiter: asyncio.Future[None], *more: Any) -> None:
        # No caller asks how a request to cancel ended: the connection is given up with its call.
        waiter.add_done_callback(_retrieve)
        super()._cancel_current_command(waiter, *more)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Look at an error, so that the loop does not report it as never retrieved."""
    if not future.cancelled():
        future.exception()


class Connection:
    """A session, or what a pooler makes of one. Used by one caller of the store at a time."""

    __slots__ = ("_limit", "_link", "_strict", "clock", "pooled", "turn", "where")

    def __init__(
        self, link: Any, where: str, *, pooled: bool, strict: bool = False, limit: float | None = None
    ) -> None:
        self._link = link
        self._strict = strict
        self._limit = limit
        self.where = where
        self.pooled = pooled
        self.clock: tuple[Instant, float] | None = None
        """The server's time when it was last asked for, and when that was by our clock."""
        self.turn: asyncio.Semaphore | None = None
        """Whose place on a lane it takes while it is lent."""

    @classmethod
    async def open(
        cls,
        url: str,
        where: str,
        *,
        purpose: str,
        settings: dict[str, str],
        pooler: Pooler,
        patience: float,
        ids: bool = True,
        limit: float | None = None,
    ) -> Connection:
        """Connect. `settings` are the session's, where there is one of our own; `ids`: a uuid is sixteen bytes.

        `purpose` is what it is for, as `pg_stat_activity` shows it.

        The server stops a statement after `limit` seconds. Behind a pooler each transaction says so itself.
        """
        settings = {**settings, "application_name": f"stoker {purpose}"}
        if limit is not None:
            settings["statement_timeout"] = _milliseconds(limit)
        try:
            link = None if pooler == "transaction" else await _direct(url, settings, pooler, patience)
            pooled = link is None
            if link is None:
                link = await _connect(url, None, 0, patience)
            strict = pooled and (limit is not None or await _default_level(link, patience) != LEVEL)
            if not ids:
                async with _unless_it_fails(link, patience):
                    await link.reset_type_codec("uuid", schema="pg_catalog")
        except (*DriverError, TimeoutError) as error:
            raise translated(error, where) from error
        return cls(link, where, pooled=pooled, strict=strict, limit=limit if pooled else None)

    @property
    def usable(self) -> bool:
        """Whether it can be used again."""
        return not self._link.is_closed()

    def unread(self) -> bool:
        """Whether the server has sent something, or hung up, that the loop has not read yet."""
        waiting = select.poll()
        waiting.register(self._link._transport.get_extra_info("socket").fileno(), select.POLLIN)  # noqa: SLF001
        return bool(waiting.poll(0))

    @property
    def version(self) -> str:
        """The server's version, which it says when a connection begins."""
        return str(getattr(self._link.get_settings(), "server_version", ""))

    def transport(self) -> Transport:
        """How what is sent to the server, or to the pooler before it, is protected."""
        host, tls = self._link._addr, self._link._transport.get_extra_info("ssl_object")  # noqa: SLF001
        verified = tls is not None and tls.context.verify_mode == ssl.CERT_REQUIRED and tls.context.check_hostname
        remedy = "Add sslmode=verify-full and sslrootcert=… to the URL"
        host = host if isinstance(host, str) else host[0]
        return Transport(host=host, encrypted=tls is not None, verified=verified, remedy=remedy)

    @property
    def link(self) -> Any:
        """The driver's own connection, for listening."""
        return self._link

    async def run(self, text: str, values: Sequence[Any], patience: float) -> list[Row]:
        """Run one statement."""
        if not self._strict or self._link.is_in_transaction():
            return await self._answer(self._link.fetch(text, *values), patience)
        # Sessions behind a pooler have the database's own level: a lone statement gets a transaction of ours.
        await self.command(self.within_limit(BEGIN), patience)
        try:
            rows: list[Row] = await self._answer(self._link.fetch(text, *values), patience)
            await self.command("COMMIT", patience)
        except BaseException:
            if self.usable:
                await self.rollback()
            raise
        return rows

    def within_limit(self, begin: str) -> str:
        """How a transaction begins, with the time limit of its statements where the session has none."""
        return begin if self._limit is None else f"{begin}; SET LOCAL statement_timeout = {_milliseconds(self._limit)}"

    async def touch(self, text: str, values: Sequence[Any], patience: float) -> int:
        """Run one statement that returns no rows, inside a transaction; return how many rows it touched."""
        return touched(await self._answer(self._link.execute(text, *values), patience))

    async def _answer(self, asked: Awaitable[T], patience: float) -> T:
        """Translate the driver's errors; do not reuse a connection in an unknown state."""
        try:
            async with asyncio.timeout(patience):
                return await asked
        except UniqueViolationError as error:
            raise Conflict from error
        except (DeadlockDetectedError, SerializationError) as error:
            raise Retriable(str(error)) from error
        except InvalidSQLStatementNameError as error:
            # Prepared in a session that is not this one: a pooler that was not noticed. Nothing was run.
            self.pooled = True
            self._link.terminate()
            raise Retriable(str(error)) from error
        except InvalidCachedStatementError as error:
            # Prepared before a migration. Nothing was run.
            self._link.terminate()
            raise Retriable(str(error)) from error
        except TimeoutError as error:  # an OSError, so before the driver's
            raise self._silent(patience) from error
        except DriverError as error:
            if isinstance(error, InterfaceError) and self.usable:
                raise EngineError(f"{self.where}: the driver refused a value: {error}. Nothing was sent") from error
            self._doubt(error)
            raise translated(error, self.where) from error
        except asyncio.CancelledError:
            # The server may still run the statement: the next caller must not receive its reply.
            self._link.terminate()
            raise

    async def command(self, text: str, patience: float) -> None:
        """Run a statement without values and without an answer: BEGIN, COMMIT, a migration."""
        try:
            async with asyncio.timeout(patience):
                await self._link.execute(text)
        except (DeadlockDetectedError, SerializationError) as error:
            raise Retriable(str(error)) from error
        except TimeoutError as error:
            raise self._silent(patience) from error
        except DriverError as error:
            self._doubt(error)
            raise translated(error, self.where) from error
        except asyncio.CancelledError:
            self._link.terminate()
            raise

    def _silent(self, patience: float) -> EngineUnavailable:
        """Give up the connection after a time-out; the outcome of the call is unknown."""
        self._link.terminate()
        return EngineUnavailable(
            f"{self.where} did not answer within {patience:.3g} s. Whether the call took effect is not known; it may "
            "be repeated safely. Stoker connects anew at the next call"
        )

    async def rollback(self) -> None:
        """Give up a transaction; a connection that cannot do even that is not used again."""
        try:
            async with asyncio.timeout(1):
                await self._link.execute("ROLLBACK")
        except (*DriverError, TimeoutError):
            self._link.terminate()

    async def close(self) -> None:
        try:
            await self._link.close(timeout=1)
        except (*DriverError, TimeoutError):
            self._link.terminate()

    def terminate(self) -> None:
        self._link.terminate()

    def _doubt(self, error: BaseException) -> None:
        """Is it still worth keeping? A server that is no primary any more is left: the next call looks anew."""
        state = sqlstate(error)
        if not state or state in GONE or (state[:2] in ("08", "57", "XX") and state != STOPPED):
            self._link.terminate()


def _milliseconds(seconds: float) -> str:
    return str(max(round(seconds * 1_000), 1))


_ABANDONED: set[asyncio.Future[Any]] = set()
"""Abandoned attempts to connect; the loop itself holds them only weakly."""


def _same(job: bytes) -> bytes:
    return job


async def _direct(url: str, settings: dict[str, str] | None, pooler: Pooler, patience: float) -> Any:
    """A session of our own; None when there is a pooler, which does not know our settings or shows another session."""
    try:
        link = await _connect(url, settings, 256, patience)
    except ProtocolViolationError:
        if pooler == "none":
            raise
        return None
    async with _unless_it_fails(link, patience):
        if pooler == "none" or link.get_server_pid() == await link.fetchval("select pg_backend_pid()"):
            return link
        await link.close()
    return None


async def _default_level(link: Any, patience: float) -> str:
    """The isolation of transactions that do not say theirs."""
    async with _unless_it_fails(link, patience):
        return str(await link.fetchval("select current_setting('default_transaction_isolation')"))


def _drop(connecting: asyncio.Future[Any]) -> None:
    """End a connection that came after its caller had gone."""
    _ABANDONED.discard(connecting)
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().terminate()


async def _connect(url: str, settings: dict[str, str] | None, prepared: int, patience: float) -> Any:
    connecting = asyncio.ensure_future(
        asyncpg.connect(
            url,
            timeout=patience,
            connection_class=_Link,
            server_settings=settings,
            statement_cache_size=prepared,
            max_cached_statement_lifetime=0,
        )
    )
    try:
        # A driver that is canceled while it connects may leave a future behind whose error is never retrieved: it ends
        # by itself, in time, and what it brings is dropped.
        link = await asyncio.shield(connecting)
    except asyncio.CancelledError:
        _ABANDONED.add(connecting)
        connecting.add_done_callback(_drop)
        raise
    async with _unless_it_fails(link, patience):
        # Ids are sixteen bytes everywhere in the house.
        await link.set_type_codec("uuid", schema="pg_catalog", encoder=_same, decoder=bytes, format="binary")
    return link


@asynccontextmanager
async def _unless_it_fails(link: Any, patience: float) -> AsyncIterator[None]:
    """Set up a new connection; close it on failure or timeout."""
    try:
        async with asyncio.timeout(patience):
            yield
    except BaseException:
        link.terminate()
        raise
