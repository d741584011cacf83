"""How the SQL engines pack a job's rarer fields; what cannot be read is reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from stoker.engines.base import CORRUPT
from stoker.model.errors import CorruptRecord
from stoker.model.job import PLAIN, Options, unpack
from stoker.model.query import Totals
from stoker.model.unique import TRAITS, Unique

_TRAITS = {traits: code for code, traits in enumerate(TRAITS)}


class Packed(Protocol):
    """The packed columns of a record."""

    options: Any
    ukey: str | None
    utraits: int | None
    metadata: Any
    log: Any


encode = msgspec.json.Encoder().encode
_metadata = msgspec.json.Decoder(dict[str, str]).decode
_lines = msgspec.json.Decoder(tuple[str, ...]).decode


def pack_unique(unique: Unique | None) -> tuple[str | None, int | None]:
    """A key and its traits as two columns."""
    if unique is None:
        return None, None
    return unique.key, _TRAITS[unique.scope, unique.mode, unique.hold]


def read_unique(key: str | None, traits: int | None) -> Unique | None:
    """What `pack_unique` wrote."""
    if key is None:
        return None
    try:
        return Unique(key, *TRAITS[traits or 0])
    except (IndexError, TypeError, ValueError) as error:
        raise CorruptRecord(f"a unique key cannot be read: {error}") from error


def read_options(stored: bytes | str | None) -> Options:
    """What `job.pack` wrote."""
    try:
        return unpack(stored)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise CorruptRecord(f"the options cannot be read: {error}") from error


def read_metadata(stored: bytes | str | None) -> dict[str, str] | None:
    """What runs noted; None for nothing."""
    try:
        return None if stored is None else _metadata(stored)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise CorruptRecord(f"the metadata cannot be read: {error}") from error


def salvaged(stored: bytes | str | None) -> dict[str, str]:
    """What runs noted, as far as it can be read: a run must be able to end whatever is stored."""
    try:
        return read_metadata(stored) or {}
    except CorruptRecord:
        return {}


def salvaged_log(stored: bytes | str | None) -> tuple[str, ...]:
    """The lines a run wrote, as far as they can be read."""
    try:
        return read_log(stored)
    except CorruptRecord:
        return ()


def read_log(stored: bytes | str | None) -> tuple[str, ...]:
    """The lines a run wrote."""
    try:
        return () if stored is None else _lines(stored)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise CorruptRecord(f"the log cannot be read: {error}") from error


class Details(NamedTuple):
    """The packed columns of a record, unpacked."""

    options: Options
    unique: Unique | None
    metadata: dict[str, str]
    log: tuple[str, ...]


def details(record: Packed) -> Details:
    """The packed fields as operators see them; what cannot be read is left out and named."""
    options, unique = PLAIN, None
    metadata: dict[str, str] = {}
    log: tuple[str, ...] = ()
    try:
        metadata, log = read_metadata(record.metadata) or {}, read_log(record.log)
        options, unique = read_options(record.options), read_unique(record.ukey, record.utraits)
    except CorruptRecord as error:
        metadata[CORRUPT] = str(error)
    return Details(options, unique, metadata, log)


def totals(sums: Mapping[str, list[int]], troubles: Mapping[str, str]) -> dict[str, Totals]:
    """The five totals of each kind that has any, in the order in which engines count them."""
    return {
        kind: Totals(
            enqueued=enqueued,
            completed=completed,
            retried=retried,
            failed=failed,
            canceled=canceled,
            last_error=troubles.get(kind),
        )
        for kind, (enqueued, completed, retried, failed, canceled) in sorted(sums.items())
        if any((enqueued, completed, retried, failed, canceled))
    }


def legible(text: str) -> str:
    """Text as every database stores it: what a handler wrote must never keep its run from ending."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
