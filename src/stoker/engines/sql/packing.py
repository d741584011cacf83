"""How the SQL engines pack a job's rarer fields; what cannot be read is reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from stoker.model.errors import CorruptRecord
from stoker.model.job import Options, salvaged, unpack
from stoker.model.query import Totals
from stoker.model.unique import TRAITS, Unique

_TRAITS = {traits: code for code, traits in enumerate(TRAITS)}


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


def read_log(stored: bytes | str | None) -> tuple[str, ...]:
    """The lines a run wrote."""
    try:
        return () if stored is None else _lines(stored)
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise CorruptRecord(f"the log cannot be read: {error}") from error


class Unpacked(NamedTuple):
    """The packed columns of a record; `corrupt` names the last one that cannot be read."""

    options: Options
    unique: Unique | None
    metadata: dict[str, str]
    log: tuple[str, ...]
    corrupt: str | None


def unpacked(values: Mapping[str, Any]) -> Unpacked:
    """Unpack columns; one that cannot be read counts as empty."""
    unique, metadata = None, None
    log: tuple[str, ...] = ()
    corrupt: str | None = None
    try:
        options = read_options(values["options"])
    except CorruptRecord as error:
        options, corrupt = salvaged(values["options"]), str(error)
    try:
        unique = read_unique(values["ukey"], values["utraits"])
    except CorruptRecord as error:
        corrupt = str(error)
    try:
        metadata = read_metadata(values["metadata"])
    except CorruptRecord as error:
        corrupt = str(error)
    try:
        log = read_log(values["log"])
    except CorruptRecord as error:
        corrupt = str(error)
    return Unpacked(options, unique, metadata or {}, log, corrupt)


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
