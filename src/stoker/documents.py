"""Documents beside the jobs on which no work depends: what a release cannot read of them, it leaves out."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

import msgspec

from stoker.engines.base import Engine

T = TypeVar("T")


async def readable(engine: Engine, kind: str, type_: type[T]) -> list[tuple[T, bytes]]:
    """The documents of a kind with their bytes, without those of a release that writes them in another form."""
    found: list[tuple[T, bytes]] = []
    for document in await engine.documents.read(kind):
        raw = document.encode() if isinstance(document, str) else document
        with suppress(msgspec.MsgspecError):
            found.append((msgspec.json.decode(raw, type=type_), raw))
    return found
