"""The small packing of a job's rarer fields, the same in every SQL engine; what cannot be read is said, not hidden."""

from __future__ import annotations

from typing import get_args

import msgspec

from stoker.model.errors import CorruptRecord
from stoker.model.job import Options, unpack
from stoker.model.unique import Hold, Mode, Scope, Unique

_SCOPES, _MODES, _HOLDS = get_args(Scope), get_args(Mode), get_args(Hold)
_UNIQUES = [(scope, mode, hold) for scope in _SCOPES for mode in _MODES for hold in _HOLDS]
_TRAITS = {traits: code for code, traits in enumerate(_UNIQUES)}

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
        return Unique(key, *_UNIQUES[traits or 0])
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
    """What runs noted, as far as it can be read: a run must be able to end whatever stands there."""
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


def legible(text: str) -> str:
    """Text as every database stores it. What somebody wrote about a run must never keep the run from ending."""
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()
