"""Small documents of operators: read all of a sort, change one by compare-and-set."""

from __future__ import annotations

from stoker.engines.sql.steps import Steps
from stoker.engines.sqlite.statements import sql

_DOCUMENTS = sql("documents")
_MAKE = sql("document_make")
_WRITE = sql("document_write")


def documents(sort: str) -> Steps[list[bytes]]:
    """Return all documents of a sort."""
    return [row[0] for row in (yield _DOCUMENTS, (sort,))]


def swap(sort: str, name: str, before: bytes | None, after: bytes) -> Steps[bool]:
    """Write a document if the stored one is still `before`; return whether it was."""
    if before is None:
        return bool((yield _MAKE, (sort, name, after)))
    return bool((yield _WRITE, (sort, name, after, before)))
