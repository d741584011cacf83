"""Access tokens, sessions and operations: small documents that are read whole and changed by compare-and-set.

Every engine stores them alike, as JSON under a sort and a name; the types are here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import msgspec

from stoker.model.audit import By, Deed, of_operation, of_token
from stoker.model.operations import Operation
from stoker.model.time import Instant
from stoker.model.tokens import AccessToken, Session

TOKENS, SESSIONS, OPERATIONS = "tokens", "sessions", "operations"

T = TypeVar("T", AccessToken, Session, Operation)

Signed: TypeAlias = tuple[By, Deed]
"""Who made a change, and what to write of it into the audit log."""

_encode = msgspec.json.Encoder().encode


class Documents(ABC):
    """What an engine offers by storing documents."""

    @abstractmethod
    async def now(self) -> Instant:
        """The store's clock."""

    @abstractmethod
    async def _documents(self, sort: str) -> list[bytes] | list[bytes | str]:
        """All documents of a sort."""

    @abstractmethod
    async def _swap(self, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> bool:
        """Write a document, and in the same step its audit entry, if the stored one is still `before`.

        None: if there is none. An empty `after` removes it.
        """

    async def tokens(self) -> list[AccessToken]:
        return sorted(_read(await self._documents(TOKENS), AccessToken), key=lambda token: token.name)

    async def put_token(self, token: AccessToken, *, before: AccessToken | None = None, by: By | None = None) -> bool:
        known = None if before is None else _encode(before)
        signed = None if by is None else (by, of_token(before, token))
        return await self._swap(TOKENS, token.name, known, _encode(token), signed)

    async def sessions(self) -> list[Session]:
        found = _read(await self._documents(SESSIONS), Session)
        return sorted(found, key=lambda one: (one.created, one.sha256), reverse=True)

    async def put_session(self, session: Session) -> bool:
        return await self._swap(SESSIONS, session.sha256, None, _encode(session), None)

    async def drop_session(self, session: Session) -> None:
        await self._swap(SESSIONS, session.sha256, _encode(session), b"", None)

    async def operations(self) -> list[Operation]:
        found = _read(await self._documents(OPERATIONS), Operation)
        return sorted(found, key=lambda one: (one.started, one.id), reverse=True)

    async def put_operation(
        self, operation: Operation, *, before: Operation | None = None, by: By | None = None
    ) -> Operation | None:
        stamped = msgspec.structs.replace(operation, seen=await self.now())
        known = None if before is None else _encode(before)
        signed = None if by is None else (by, of_operation(before, stamped))
        return stamped if await self._swap(OPERATIONS, operation.id, known, _encode(stamped), signed) else None


def old_operations(found: list[bytes], before: Instant) -> list[tuple[str, bytes]]:
    """Operations that no call has written since an instant: each one's id, and the document as it is stored."""
    return [(one.id, raw) for raw, one in zip(found, _read(found, Operation), strict=True) if one.seen < before]


def _read(found: Sequence[bytes | str], type_: type[T]) -> list[T]:
    return [msgspec.json.decode(one, type=type_) for one in found]
