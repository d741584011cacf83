"""Small documents of operators: read all of a sort, change one by compare-and-set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stoker.engines.postgres.statements import sql
from stoker.engines.sql.steps import Steps

if TYPE_CHECKING:
    from stoker.engines.postgres.store import Store

_DOCUMENTS = sql("documents")
_MAKE = sql("document_make")
_WRITE = sql("document_write")


async def documents(store: Store, sort: str) -> list[bytes]:
    """All documents of a sort."""
    return await store.read(lambda _: _documents(sort))


def _documents(sort: str) -> Steps[list[bytes]]:
    return [row[0].encode() for row in (yield _DOCUMENTS, (sort,))]


async def swap(store: Store, sort: str, name: str, before: bytes | None, after: bytes) -> bool:
    """Write a document if the stored one is still `before`."""
    return await store.write(lambda _: _swap(sort, name, before, after), lane="desk")


def _swap(sort: str, name: str, before: bytes | None, after: bytes) -> Steps[bool]:
    if before is None:
        return bool((yield _MAKE, (sort, name, after.decode())))
    return bool((yield _WRITE, (sort, name, after.decode(), before.decode())))
