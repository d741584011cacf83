"""Tokens, sessions, operations, errors and orders as engines store them: JSON under a kind and a name."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from stoker.engines.base import (
    ACKNOWLEDGED,
    ERRORS,
    KIND_HOURS,
    OPERATIONS,
    ORDERS,
    RELEASES,
    SEALS,
    SESSIONS,
    STACKS,
    TOKENS,
    Engine,
)
from stoker.model.audit import By, Deed, of_acknowledgement, of_operation, of_token
from stoker.model.error_records import ErrorRecord
from stoker.model.errors import CorruptRecord
from stoker.model.findings import Acknowledgement
from stoker.model.kind_hours import KindHour
from stoker.model.operations import Operation
from stoker.model.orders import Orders, StackReport
from stoker.model.releases import Release
from stoker.model.seal import MARK
from stoker.model.tokens import AccessToken, Session

T = TypeVar("T", AccessToken, Session, Operation, ErrorRecord, Acknowledgement, Release, Orders, StackReport, KindHour)

_encode = msgspec.json.Encoder().encode


async def _read(engine: Engine, kind: str, type_: type[T]) -> list[T]:
    try:
        return [msgspec.json.decode(one, type=type_) for one in await engine.documents.read(kind)]
    except msgspec.MsgspecError as error:
        named = kind.replace("_", " ")
        raise CorruptRecord(
            f"the store has {named} that this release cannot read: {error}. A newer release may have written them."
        ) from None


async def seals(engine: Engine) -> list[str]:
    """The ids of the keys that seal the store; none: it is not sealed."""
    return sorted(map(msgspec.json.decode, await engine.documents.read(SEALS)))


async def tokens(engine: Engine) -> list[AccessToken]:
    """Every access token, also those that expired or were revoked, by name."""
    return sorted(await _read(engine, TOKENS, AccessToken), key=lambda token: token.name)


async def put_token(
    engine: Engine, token: AccessToken, *, before: AccessToken | None = None, by: By | None = None
) -> bool:
    """Store a token if the stored one of its name is still `before`; None: if there is none."""
    known = None if before is None else _encode(before)
    by_deed = None if by is None else (by, of_token(before, token))
    return await engine.documents.swap(TOKENS, token.name, known, _encode(token), by=by_deed)


async def sessions(engine: Engine) -> list[Session]:
    """Every session of the dashboard, also those that expired, the one that began last first."""
    found = await _read(engine, SESSIONS, Session)
    return sorted(found, key=lambda one: (one.created, one.sha256), reverse=True)


async def put_session(engine: Engine, session: Session) -> bool:
    """Store a session if there is none with its hash."""
    return await engine.documents.swap(SESSIONS, session.sha256, None, _encode(session))


async def drop_session(engine: Engine, session: Session) -> None:
    """Forget a session; one that is not there is left so."""
    await engine.documents.swap(SESSIONS, session.sha256, _encode(session), None)


async def operations(engine: Engine) -> list[Operation]:
    """Every operation, the one that was started last first."""
    found = await _read(engine, OPERATIONS, Operation)
    return sorted(found, key=lambda one: (one.started, one.id), reverse=True)


async def put_operation(
    engine: Engine, operation: Operation, *, before: Operation | None = None, by: By | None = None
) -> Operation | None:
    """Store an operation if the stored one of its id is still `before`; None: if there is none.

    Returns it as stored, with the store's time in `seen`; None when another call was faster.
    """
    stamped = msgspec.structs.replace(operation, seen=await engine.now())
    known = None if before is None else _encode(before)
    by_deed = None if by is None else (by, of_operation(before, stamped))
    stored = await engine.documents.swap(OPERATIONS, operation.id, known, _encode(stamped), by=by_deed)
    return stamped if stored else None


async def releases(engine: Engine) -> list[Release]:
    """Every release that workers showed, the latest first."""
    return sorted(await _read(engine, RELEASES, Release), key=lambda one: one.first, reverse=True)


async def kind_hours(engine: Engine) -> list[KindHour]:
    """What the busiest kinds did in each hour of the last days, in any order."""
    return await _read(engine, KIND_HOURS, KindHour)


async def error_records(engine: Engine) -> list[ErrorRecord]:
    """What is known of every error; the roll-up of workers writes it."""
    return await _read(engine, ERRORS, ErrorRecord)


async def acknowledgements(engine: Engine) -> list[Acknowledgement]:
    """Every acknowledgement of a finding, also those whose time has passed, by finding."""
    return sorted(await _read(engine, ACKNOWLEDGED, Acknowledgement), key=lambda one: one.finding)


async def put_acknowledgement(
    engine: Engine, finding: str, before: Acknowledgement | None, after: Acknowledgement | None, *, by: By | None = None
) -> bool:
    """Acknowledge a finding, or withdraw that, if what is stored of it is still `before`; None: nothing."""
    known, new = (None if one is None else _encode(one) for one in (before, after))
    by_deed = None if by is None else (by, of_acknowledgement(finding, before, after))
    return await engine.documents.swap(ACKNOWLEDGED, finding, known, new, by=by_deed)


async def orders(engine: Engine) -> list[Orders]:
    """What each worker was told, by worker."""
    return sorted(await _read(engine, ORDERS, Orders), key=lambda one: one.worker)


async def put_orders(
    engine: Engine, before: Orders | None, after: Orders, *, by: tuple[By, Deed] | None = None
) -> bool:
    """Store the orders of a worker if they are still `before`; None: if there are none."""
    known = None if before is None else _encode(before)
    return await engine.documents.swap(ORDERS, after.worker, known, _encode(after), by=by)


async def stacks(engine: Engine) -> list[StackReport]:
    """Where the handlers of workers stood that were asked lately, by worker, as far as this app can open it."""
    stored = await engine.documents.read(STACKS)
    found = [one if isinstance(one, str) else bytes(one).decode() for one in stored]
    readable = [msgspec.json.decode(one, type=StackReport) for one in found if MARK not in one[:10]]
    return sorted(readable, key=lambda one: one.worker)


async def drop(engine: Engine, old: Orders | StackReport) -> None:
    """Remove what was said to a worker or by it, if it is still stored so."""
    kind = ORDERS if isinstance(old, Orders) else STACKS
    await engine.documents.swap(kind, old.worker, _encode(old), None)
