"""One connection to Postgres, and the only place that knows asyncpg.

Behind a pooler in transaction mode two statements of ours may run in two sessions: then nothing is prepared under a
name, and no session is told anything. Whether there is a pooler shows when the session that answers is not the one
that was connected to; the names of prepared statements are random, so that one that was missed is found by an error
and never by the answer of somebody else's statement.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, NamedTuple, TypeAlias

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

from stoker.engines.sql.steps import Row
from stoker.model.errors import (
    EngineBusy,
    EngineError,
    EngineFull,
    EngineReadOnly,
    EngineRefused,
    EngineUnavailable,
    SchemaMismatch,
)

Pooler: TypeAlias = Literal["auto", "none", "transaction"]

DriverError = (PostgresError, InterfaceError, InternalClientError, OSError)
"""What asyncpg raises; a lost socket is an OSError, a killed one an InternalClientError."""

COMMON = {"jit": "off", "application_name": "stoker", "tcp_user_timeout": "10000", "client_min_messages": "warning"}
DOORS = {
    **COMMON,
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}
"""The doors' statements are planned once, perhaps while every table is empty: they must not learn from that."""

DESK = {**COMMON, "enable_seqscan": "off"}
"""Questions of people are planned for what they ask, and never for a walk over everything."""


class Retriable(Exception):
    """The server gave up a transaction for another one's sake: nothing happened, and again it may work."""


class Conflict(Exception):
    """A row with this key is there already; the statement changed nothing."""


class _Named(NamedTuple):
    name: str = "known"


ARRAYS = {1000: (16, "bool"), 1005: (21, "int2"), 1007: (23, "int4"), 1016: (20, "int8"), 1022: (701, "float8")}
ARRAYS[2951] = (2950, "uuid")


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
    """Names its prepared statements like nobody else, and does not ask for types that everybody knows.

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


class Connection:
    """A session, or what a pooler makes of one. Belongs to whoever took it out of the store's hands."""

    __slots__ = ("_link", "pooled", "where")

    def __init__(self, link: Any, where: str, *, pooled: bool) -> None:
        self._link = link
        self.where = where
        self.pooled = pooled

    @classmethod
    async def open(
        cls, url: str, where: str, *, settings: dict[str, str] | None, pooler: Pooler, patience: float
    ) -> Connection:
        """Connect. `settings` are the session's, where there is one of our own."""
        try:
            link = None if pooler == "transaction" else await _direct(url, settings, pooler, patience)
            pooled = link is None
            if link is None:
                link = await _connect(url, None, 0, patience)
        except (*DriverError, TimeoutError) as error:
            raise translated(error, where) from error
        return cls(link, where, pooled=pooled)

    @property
    def usable(self) -> bool:
        """Can it be used again?"""
        return not self._link.is_closed()

    @property
    def link(self) -> Any:
        """The driver's own connection, for listening."""
        return self._link

    async def run(self, text: str, values: Sequence[Any], patience: float) -> list[Row]:
        """Run one statement. What the driver raises leaves as ours; a connection in doubt is not used again."""
        try:
            async with asyncio.timeout(patience):
                return await self._link.fetch(text, *values)  # type: ignore[no-any-return]
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
        except DriverError as error:
            if isinstance(error, InterfaceError) and self.usable:
                raise EngineError(f"{self.where}: the driver refused a value: {error}. Nothing was sent") from error
            self._doubt(error)
            raise translated(error, self.where) from error
        except TimeoutError as error:
            self._link.terminate()
            raise EngineUnavailable(
                f"{self.where} did not answer within {patience:g} s. Whether the call took effect is not known; it may "
                "be repeated safely. Stoker connects anew at the next call"
            ) from error
        except asyncio.CancelledError:
            # The server may still be at work for us: whoever comes next must not find its answer.
            self._link.terminate()
            raise

    async def command(self, text: str, patience: float) -> None:
        """Run a statement without values and without an answer: BEGIN, COMMIT, a migration."""
        try:
            async with asyncio.timeout(patience):
                await self._link.execute(text)
        except (DeadlockDetectedError, SerializationError) as error:
            raise Retriable(str(error)) from error
        except DriverError as error:
            self._doubt(error)
            raise translated(error, self.where) from error
        except TimeoutError as error:
            self._link.terminate()
            raise EngineUnavailable(f"{self.where} did not answer within {patience:g} s") from error
        except asyncio.CancelledError:
            self._link.terminate()
            raise

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
        if not state or state in GONE or state[:2] in ("08", "57", "XX"):
            self._link.terminate()


def _same(job: bytes) -> bytes:
    return job


async def _direct(url: str, settings: dict[str, str] | None, pooler: Pooler, patience: float) -> Any:
    """A session of our own; None when there is a pooler, which does not know our settings or shows us somebody else."""
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


async def _connect(url: str, settings: dict[str, str] | None, prepared: int, patience: float) -> Any:
    link = await asyncpg.connect(
        url,
        timeout=patience,
        connection_class=_Link,
        server_settings=settings,
        statement_cache_size=prepared,
        max_cached_statement_lifetime=0,
    )
    async with _unless_it_fails(link, patience):
        # Ids are sixteen bytes everywhere in the house.
        await link.set_type_codec("uuid", schema="pg_catalog", encoder=_same, decoder=bytes, format="binary")
    return link


@asynccontextmanager
async def _unless_it_fails(link: Any, patience: float) -> AsyncIterator[None]:
    """What is asked of a new connection before anybody holds it: in time, and if it fails nothing stays open."""
    try:
        async with asyncio.timeout(patience):
            yield
    except BaseException:
        link.terminate()
        raise


# --- errors -----------------------------------------------------------------------------------------------------

GONE = frozenset({"25006", "42P05"})
BUSY = frozenset({"55P03", "57014", "40P01", "40001"})
ABSENT = frozenset({"42P01", "3F000", "42703", "42883"})


def sqlstate(error: BaseException) -> str:
    """The five characters every driver of Postgres carries."""
    return str(getattr(error, "sqlstate", None) or "")


def translated(error: BaseException, where: str) -> EngineError:
    """A driver's error in our words. Works for psycopg's errors too: they carry the same code."""
    state = sqlstate(error)
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state in BUSY:
        return EngineBusy(f"{where} was held by somebody else for too long: {said}. Nothing was stored; try again")
    if state == "25006":
        return EngineReadOnly(
            f"{where} refuses writes: {said}. It may be a standby; Stoker connects anew at the next call"
        )
    if state in {"53100", "53200"} or state.startswith("54"):
        return EngineFull(f"{where} has no room: {said}. Nothing was stored. Make room, and try again")
    if state in ABSENT:
        return SchemaMismatch(f"{where} has no such schema, or an older one: {said}. Run: stoker migrate")
    if state == "42501" or state.startswith("28") or state == "3D000":
        return EngineRefused(f"{where} refused: {said}. Check the role, its password and its grants")
    if not state or state[:2] in ("08", "57", "53") or state in GONE:
        return EngineUnavailable(f"{where} cannot be reached: {said}. Nothing acknowledged is lost; Stoker tries again")
    return EngineError(f"{where} answered {state}: {said}. The call changed nothing")
