"""Small documents of operators: read all of a sort, change one by compare-and-set."""

from __future__ import annotations

from stoker.engines.shared.documents import Signed
from stoker.engines.sql.exchanges import Exchange
from stoker.engines.sqlite import audit
from stoker.engines.sqlite.statements import sql
from stoker.engines.sqlite.unit_of_work import Unit

_DOCUMENTS = sql("documents")
_MAKE = sql("document_make")
_WRITE = sql("document_write")
_DROP = sql("document_drop")


def documents(sort: str) -> Exchange[list[bytes]]:
    """Return all documents of a sort."""
    return [row[0] for row in (yield _DOCUMENTS, (sort,))]


def swap(unit: Unit, sort: str, name: str, before: bytes | None, after: bytes, signed: Signed | None) -> Exchange[bool]:
    """Write or drop a document if the stored one is still `before`, with its audit entry; return whether it was."""
    if not after:
        statement: tuple[str, tuple[object, ...]] = (_DROP, (sort, name, before))
    else:
        statement = (_MAKE, (sort, name, after)) if before is None else (_WRITE, (sort, name, after, before))
    swapped = bool((yield statement))
    if swapped and signed is not None:
        yield from audit.write(unit, *signed)
    return swapped
